"""Request heads: addressing styles, exact keys, headers sent twice, limits."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3.request import Hosts, parse_request

HOSTS = Hosts(["s3.example.com", "example.com", "node-1.example.com", "Node2:9000"])


def parse(target, host="localhost:9000", method="GET", headers=(), hosts=HOSTS):
    target = target if isinstance(target, bytes) else target.encode()
    return parse_request(method, target, [(b"Host", host.encode()), *headers], hosts)


def refusal(*args, **kwargs):
    with pytest.raises(StoreError) as caught:
        parse(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("target", "bucket", "key"),
    [
        ("/", None, None),
        ("/bucket", "bucket", None),
        ("/bucket/", "bucket", None),
        ("/bucket//", "bucket", "/"),
        ("/bucket///", "bucket", "//"),
        ("/bucket/key", "bucket", "key"),
        ("/bucket/key/", "bucket", "key/"),
        ("/bucket//key", "bucket", "/key"),
        ("/bucket/a//b", "bucket", "a//b"),
        ("/bucket/.", "bucket", "."),
        ("/bucket/..", "bucket", ".."),
        ("/bucket/../etc/passwd", "bucket", "../etc/passwd"),
        ("/bucket/%2e%2e/%2E", "bucket", "../."),
        ("/bucket/a%2Fb", "bucket", "a/b"),
        ("/bucket%2Fkey", "bucket", "key"),
        ("/bucket/a+b", "bucket", "a+b"),
        ("/bucket/a%20b", "bucket", "a b"),
        ("/bucket/%C3%A9", "bucket", "é"),
        ("/bucket/%00%01", "bucket", "\x00\x01"),
        ("/bucket/%252F", "bucket", "%2F"),
        ("/bucket/a?b/c", "bucket", "a"),
        ("http://localhost:9000/bucket/key", "bucket", "key"),
        ("HTTPS://localhost", None, None),
    ],
)
def test_path_style(target, bucket, key):
    request = parse(target)
    assert (request.bucket, request.key, request.virtual_hosted) == (bucket, key, False)


@pytest.mark.parametrize(
    ("target", "key"),
    [("/", None), ("//", "/"), ("/key", "key"), ("//key", "/key"), ("/bucket/key", "bucket/key"), ("/..", "..")],
)
def test_virtual_hosted(target, key):
    request = parse(target, host="bucket.s3.example.com")
    assert (request.bucket, request.key, request.virtual_hosted) == ("bucket", key, True)
    assert request.path == target.encode()


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("localhost", None),
        ("localhost:9000", None),
        ("127.0.0.1:9000", None),
        ("[::1]:9000", None),
        ("s3.example.com", None),
        ("S3.Example.COM.:443", None),
        ("node-1.example.com", None),
        ("node2", None),
        ("elsewhere.org", None),
        ("", None),
        ("bucket.localhost:9000", "bucket"),
        ("my.bucket.s3.example.com", "my.bucket"),
        ("bucket.example.com", "bucket"),
        ("Bucket.node2:9000", "bucket"),
        ("bucket.127.0.0.1:9000", "bucket"),
        (".s3.example.com", None),
    ],
)
def test_hosts(host, bucket):
    assert HOSTS.bucket_of(host) == bucket
    assert HOSTS.bucket_of(host) == bucket  # from the cache


def test_host_cache_is_bounded():
    hosts = Hosts()
    for i in range(3000):
        hosts.bucket_of(f"bucket{i}.localhost")
    assert len(hosts._cache) <= 1024


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=50))
def test_any_key_survives(key):
    assert parse(f"/bucket/{quote(key, safe='/')}").key == key
    assert parse(f"/bucket/{quote(key, safe='')}").key == key
    assert parse(f"/{quote(key, safe='')}", host="bucket.localhost").key == key


def test_query():
    request = parse("/b?prefix=a+b%2B&delimiter=%2F&uploads&x=&&max-keys=1=2")
    assert request.query == [("prefix", "a b+"), ("delimiter", "/"), ("uploads", ""), ("x", ""), ("max-keys", "1=2")]
    assert request.params == dict(request.query)
    assert parse("/b").query == []
    assert parse("/b?").params == {}


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/b?a=1&a=2", "InvalidArgument"),
        ("/b?a%3D=1&a%3d=2", "InvalidArgument"),
        ("/b/%ff", "InvalidURI"),
        ("/b?a=%ff", "InvalidURI"),
        (b"/b/\xff", "InvalidURI"),
        ("//key", "InvalidURI"),
        ("*", "InvalidURI"),
        ("ftp://a/b", "InvalidURI"),
        ("/b?" + "&".join(f"a{i}" for i in range(101)), "InvalidURI"),
        ("/" + "a" * 20_000, "URITooLong"),
        ("/b/" + "k" * 1025, "KeyTooLongError"),
        ("/b/" + "%C3%A9" * 513, "KeyTooLongError"),
    ],
)
def test_refused_targets(target, code):
    assert refusal(target).code == code


def test_longest_keys_pass():
    assert len(parse("/b/" + "k" * 1024).key) == 1024
    assert len(parse("/b/" + "%C3%A9" * 512).key) == 512


def test_absolute_form_replaces_the_host():
    request = parse("http://bucket.localhost:9000/key?a", host="other")
    assert (request.bucket, request.key, request.headers["host"]) == ("bucket", "key", "bucket.localhost:9000")


def test_headers():
    headers = [(b"X-Amz-Meta-A", b" one "), (b"x-amz-meta-a", b"two"), (b"X-B", b"\xc3\xa9")]
    request = parse("/", headers=headers)
    assert request.headers["x-amz-meta-a"] == "one,two"
    assert request.headers["x-b"].encode("latin-1") == b"\xc3\xa9"


@pytest.mark.parametrize(
    "name", [b"Host", b"Authorization", b"Content-Length", b"content-MD5", b"X-Amz-Content-Sha256", b"X-Amz-Copy-Source"]
)
def test_single_headers_sent_twice(name):
    assert refusal("/", headers=[(name, b"a"), (name.lower(), b"a")]).code == "InvalidRequest"


def test_head_limits():
    assert refusal("/", headers=[(b"x-a%d" % i, b"") for i in range(200)]).code == "RequestHeaderSectionTooLarge"
    assert refusal("/", headers=[(b"x-a", b"v" * 40_000)]).code == "RequestHeaderSectionTooLarge"
    with pytest.raises(StoreError, match="Host"):
        parse_request("GET", b"/", [], HOSTS)


def test_resource():
    assert parse("/").resource == "/"
    assert parse("/b").resource == "/b"
    assert parse("/b/k/").resource == "/b/k/"


@given(st.binary(max_size=60), st.lists(st.tuples(st.binary(max_size=10), st.binary(max_size=10)), max_size=5))
def test_only_store_errors_escape(target, headers):
    try:
        request = parse_request("GET", target, headers, HOSTS)
    except StoreError:
        return
    assert request.key is None or request.bucket
