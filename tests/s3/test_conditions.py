"""Conditional requests, row by row."""

import pytest

from forebay.errors import StoreError
from forebay.s3.conditions import (
    Current,
    WriteCondition,
    check_copy_source,
    check_expected_owner,
    check_read,
    delete_condition,
    parse_etags,
    range_applies,
    write_condition,
)

MTIME_S = 1_750_000_000
CURRENT = Current("abc", MTIME_S * 10**9 + 999_999_999, 5)
BEFORE, SAME, AFTER = "Sun, 15 Jun 2025 15:06:39 GMT", "Sun, 15 Jun 2025 15:06:40 GMT", "Sun, 15 Jun 2025 15:06:41 GMT"


def outcome(check, *args):
    try:
        check(*args)
    except StoreError as error:
        return error.code
    return None


READS = [
    ({}, None),
    ({"if-match": '"abc"'}, None),
    ({"if-match": "abc"}, None),
    ({"if-match": 'W/"abc"'}, None),
    ({"if-match": '"x", "abc"'}, None),
    ({"if-match": "*"}, None),
    ({"if-match": '"abd"'}, "PreconditionFailed"),
    ({"if-match": ""}, "PreconditionFailed"),
    ({"if-none-match": '"abc"'}, "NotModified"),
    ({"if-none-match": "*"}, "NotModified"),
    ({"if-none-match": '"x","abc"'}, "NotModified"),
    ({"if-none-match": '"x"'}, None),
    ({"if-modified-since": BEFORE}, None),
    ({"if-modified-since": SAME}, "NotModified"),
    ({"if-modified-since": AFTER}, "NotModified"),
    ({"if-modified-since": "yesterday"}, None),
    ({"if-unmodified-since": BEFORE}, "PreconditionFailed"),
    ({"if-unmodified-since": SAME}, None),
    ({"if-unmodified-since": AFTER}, None),
    ({"if-unmodified-since": "yesterday"}, None),
    # RFC 9110 section 13.2.2: a matching ETag outranks a date, in both pairs.
    ({"if-match": '"abc"', "if-unmodified-since": BEFORE}, None),
    ({"if-match": '"x"', "if-unmodified-since": AFTER}, "PreconditionFailed"),
    ({"if-none-match": '"x"', "if-modified-since": AFTER}, None),
    ({"if-none-match": '"abc"', "if-modified-since": BEFORE}, "NotModified"),
    ({"if-match": '"x"', "if-none-match": '"abc"'}, "PreconditionFailed"),
    ({"if-match": '"abc"', "if-none-match": '"abc"'}, "NotModified"),
]


@pytest.mark.parametrize(("headers", "code"), READS)
def test_reads(headers, code):
    assert outcome(check_read, headers, CURRENT) == code


def test_not_modified_carries_the_validators():
    with pytest.raises(StoreError) as caught:
        check_read({"if-none-match": "*"}, CURRENT)
    assert caught.value.headers == {"ETag": '"abc"', "Last-Modified": SAME}


@pytest.mark.parametrize(("headers", "code"), READS)
def test_copy_sources(headers, code):
    prefixed = {f"x-amz-copy-source-{name}": value for name, value in headers.items()}
    assert outcome(check_copy_source, prefixed, CURRENT) == ("PreconditionFailed" if code else None)
    assert outcome(check_copy_source, headers, CURRENT) is None


@pytest.mark.parametrize(
    ("headers", "with_object", "without"),
    [
        ({"if-none-match": "*"}, "PreconditionFailed", None),
        ({"if-none-match": '"abc"'}, "PreconditionFailed", None),
        ({"if-none-match": "x"}, None, None),
        ({"if-match": '"abc"'}, None, "NoSuchKey"),
        ({"if-match": "*"}, None, "NoSuchKey"),
        ({"if-match": "x"}, "PreconditionFailed", "NoSuchKey"),
        ({"if-match": '"abc"', "if-none-match": "*"}, "PreconditionFailed", "NoSuchKey"),
    ],
)
def test_writes(headers, with_object, without):
    condition = write_condition(headers)
    assert outcome(condition.check, CURRENT) == with_object
    assert outcome(condition.check, None) == without


@pytest.mark.parametrize(
    ("headers", "with_object", "without"),
    [
        ({"if-match": '"abc"'}, None, "PreconditionFailed"),
        ({"if-match": "*"}, None, "PreconditionFailed"),
        ({"if-match": "x"}, "PreconditionFailed", "PreconditionFailed"),
        ({"x-amz-if-match-size": "5"}, None, None),
        ({"x-amz-if-match-size": "6"}, "PreconditionFailed", None),
        ({"x-amz-if-match-last-modified-time": SAME}, None, None),
        ({"x-amz-if-match-last-modified-time": "2025-06-15T15:06:40.000Z"}, None, None),
        ({"x-amz-if-match-last-modified-time": BEFORE}, "PreconditionFailed", None),
        ({"if-match": "abc", "x-amz-if-match-size": "6"}, "PreconditionFailed", "PreconditionFailed"),
    ],
)
def test_deletes(headers, with_object, without):
    condition = delete_condition(headers)
    assert outcome(condition.check, CURRENT) == with_object
    assert outcome(condition.check, None) == without


def test_unconditional():
    assert write_condition({"if-modified-since": SAME}) is None
    assert delete_condition({}) is None
    assert outcome(WriteCondition().check, CURRENT) is None


@pytest.mark.parametrize(
    ("read", "headers"),
    [
        (write_condition, {"if-match": ""}),
        (write_condition, {"if-none-match": '""'}),
        (delete_condition, {"if-match": " "}),
        (delete_condition, {"x-amz-if-match-size": "-1"}),
        (delete_condition, {"x-amz-if-match-size": "9" * 50}),
        (delete_condition, {"x-amz-if-match-size": "²"}),
        (delete_condition, {"x-amz-if-match-last-modified-time": "yesterday"}),
    ],
)
def test_a_condition_that_says_nothing_is_refused(read, headers):
    assert outcome(read, headers) == "InvalidArgument"


@pytest.mark.parametrize(
    ("value", "applies"),
    [(None, True), ('"abc"', True), ('W/"abc"', False), ('"abd"', False), (SAME, True), (AFTER, False), ("abc", False), ("", False)],
)
def test_if_range(value, applies):
    assert range_applies({} if value is None else {"if-range": value}, CURRENT) is applies


def test_expected_owner():
    headers = {"x-amz-expected-bucket-owner": "o", "x-amz-source-expected-bucket-owner": "p"}
    assert outcome(check_expected_owner, {}, "o") is None
    assert outcome(check_expected_owner, headers, "o") is None
    assert outcome(check_expected_owner, headers, "p") == "AccessDenied"
    check_expected_owner(headers, "p", of_source=True)
    with pytest.raises(StoreError):
        check_expected_owner(headers, "o", of_source=True)


def test_etags():
    assert parse_etags(' "a" , W/"b",c,,"" ') == ("a", "b", "c")
    assert parse_etags(" * ") == ("*",)
