"""Names, limits, times and tokens."""

import datetime
import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3 import names
from forebay.s3.tokens import TOKEN_CHARS_MAX, decode_token, encode_token

TIME_S = st.integers(0, 4_000_000_000)


def code_of(function, *args):
    with pytest.raises(StoreError) as caught:
        function(*args)
    return caught.value.code


@pytest.mark.parametrize("name", ["abc", "a" * 63, "0ab", "a-b", "a--b", "aaa.111", "1.2.3", "1.2.3.4.5", "my.bucket-1"])
def test_good_bucket_names(name):
    names.check_bucket_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "a", "aa", "a" * 64, "Abc", "a_b", "-abc", "abc-", ".abc", "abc.", "a..b", "foo.-bar", "foo-.bar", "192.168.5.123", "a b", "a/b",
     "é" * 5, "xn--abc", "sthree-abc", "abc-s3alias", "abc--ol-s3", "abc.mrap", "abc--x-s3", "abc\n"],
)  # fmt: skip
def test_bad_bucket_names(name):
    assert code_of(names.check_bucket_name, name) == "InvalidBucketName"


def test_key_length_is_in_bytes():
    names.check_key("é" * 512)
    assert code_of(names.check_key, "é" * 512 + "a") == "KeyTooLongError"
    assert code_of(names.check_key, "😀" * 257) == "KeyTooLongError"


def test_user_metadata():
    headers = {"x-amz-meta-a": "1", "x-amz-meta-b-c": "", "x-amz-acl": "private"}
    assert names.user_metadata(headers) == {"a": "1", "b-c": ""}
    names.user_metadata({"x-amz-meta-a": "v" * 2047})
    assert code_of(names.user_metadata, {"x-amz-meta-a": "v" * 2048}) == "MetadataTooLarge"


def test_tagging_header():
    assert names.parse_tagging_header("") == []
    assert names.parse_tagging_header("a=1&b%20c=%C3%A9+x&d") == [("a", "1"), ("b c", "é x"), ("d", "")]
    assert names.parse_tagging_header("\xc3\xa9=1") == [("é", "1")]  # bytes of a header, latin-1 decoded
    assert code_of(names.parse_tagging_header, "a=%ff") == "InvalidArgument"
    assert code_of(names.parse_tagging_header, "a=1&a=2") == "InvalidTag"
    assert code_of(names.parse_tagging_header, "=1") == "InvalidTag"


@pytest.mark.parametrize(
    "tags",
    [
        [("", "v")],
        [("k" * 129, "v")],
        [("k", "v" * 257)],
        [("aws:x", "v")],
        [("k", "a<b")],
        [("k\n", "v")],
        [("k", "v"), ("k", "w")],
        [(f"k{i}", "") for i in range(11)],
    ],
)
def test_bad_tags(tags):
    assert code_of(names.check_tags, tags) == "InvalidTag"


def test_good_tags():
    names.check_tags([("k" * 128, "v" * 256), ("+ -=._:/@", "日本語 é"), *((f"k{i}", "") for i in range(8))])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bucket/key", ("bucket", "key", None)),
        ("/bucket/key", ("bucket", "key", None)),
        ("/bucket//key", ("bucket", "/key", None)),
        ("bucket/a%20b%2Bc+d", ("bucket", "a b+c+d", None)),
        ("bucket%2Fkey", ("bucket", "key", None)),
        ("bucket/%3FversionId", ("bucket", "?versionId", None)),
        ("bucket/a?b", ("bucket", "a?b", None)),
        ("bucket/foo%3Fbar?versionId=v1", ("bucket", "foo?bar", "v1")),
        ("bucket/foo?versionId=a?versionId=b", ("bucket", "foo?versionId=a", "b")),
        ("bucket/\xc3\xa9", ("bucket", "é", None)),
        ("bucket/..", ("bucket", "..", None)),
    ],
)
def test_copy_source(value, expected):
    assert names.parse_copy_source(value) == expected


@pytest.mark.parametrize("value", ["", "/", "bucket", "bucket/", "/bucket/", "bucket/%ff", "bucket/key?versionId="])
def test_bad_copy_sources(value):
    assert code_of(names.parse_copy_source, value) == "InvalidArgument"


# --- times


@given(TIME_S)
def test_http_dates(time_s):
    text = names.http_date(time_s)
    assert text == email.utils.formatdate(time_s, usegmt=True)
    assert names.parse_http_date(text) == time_s


@given(st.integers(0, 4_000_000_000_000))
def test_iso_times(time_ms):
    text = names.iso_time(time_ms * 10**6 + 999_999)
    moment = datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC) + datetime.timedelta(milliseconds=time_ms % 1000)
    assert text == moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03}Z"
    assert names.parse_iso_time(text) == time_ms * 10**6
    assert names.parse_http_date(text) == time_ms // 1000


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 06 Nov 1994 09:49:37 +0100",
        "1994-11-06T08:49:37Z",
        "1994-11-06T09:49:37.5+01:00",
        "19941106T084937Z",
    ],
)
def test_date_formats(text):
    assert names.parse_http_date(text) == 784_111_777


@pytest.mark.parametrize("text", ["", "now", "1994-11-06", "Sun, 32 Nov 1994 08:49:37 GMT", "9" * 100, "T", "é"])
def test_no_dates(text):
    assert names.parse_http_date(text) is None


@given(st.text(max_size=80))
def test_any_text_is_a_date_or_none(text):
    names.parse_http_date(text)
    names.parse_iso_time(text)


# --- tokens


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_token_round_trip(position):
    token = encode_token(position)
    assert decode_token(token) == position
    assert token.isascii()
    assert "/" not in token
    assert "+" not in token


def test_the_longest_key_fits():
    token = encode_token("k" * 1024)
    assert len(token) <= TOKEN_CHARS_MAX
    assert decode_token(token) == "k" * 1024


@given(st.text(max_size=40))
def test_other_texts_are_no_tokens(token):
    assert code_of(decode_token, token) == "InvalidArgument"


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.data())
def test_damaged_tokens(position, data):
    token = encode_token(position)
    index = data.draw(st.integers(0, len(token) - 1))
    char = data.draw(st.sampled_from("ABCabc012-_").filter(lambda char: char != token[index]))
    assert code_of(decode_token, token[:index]) == "InvalidArgument"
    changed = token[:index] + char + token[index + 1 :]
    try:
        found = decode_token(changed)
    except StoreError:
        return
    assert found == position  # only the bits that base64 leaves unused changed
