"""Heads: what is accepted, and that every ambiguity is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.server.head import HEADERS_MAX, BadHead, parse_head


def test_plain_head() -> None:
    head = parse_head(b"PUT /b/k%20?x=y HTTP/1.1\r\nHost: h\r\nContent-Length:  12 \r\nX-Amz-Meta-A:\t\xc3\xa9, b\t")
    assert head.method == "PUT"
    assert head.target == b"/b/k%20?x=y"
    assert head.headers == [(b"Host", b"h"), (b"Content-Length", b"12"), (b"X-Amz-Meta-A", b"\xc3\xa9, b")]
    assert (head.content_length, head.chunked, head.expects_continue, head.keep_alive) == (12, False, False, True)
    assert head.has_body


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"Connection: close", False),
        (b"Connection: Keep-Alive, Close", False),
        (b"Connection: upgrade", True),
        (b"X: y", True),
    ],
)
def test_keep_alive(lines: bytes, expected: bool) -> None:
    assert parse_head(b"GET / HTTP/1.1\r\n" + lines).keep_alive is expected


def test_http_1_0() -> None:
    assert not parse_head(b"GET / HTTP/1.0\r\nHost: h").keep_alive
    assert parse_head(b"GET / HTTP/1.0\r\nConnection: keep-alive").keep_alive


def test_chunked_and_expect() -> None:
    head = parse_head(b"PUT / HTTP/1.1\r\ntransfer-encoding: Chunked\r\nEXPECT: 100-Continue")
    assert head.chunked
    assert head.content_length is None
    assert head.expects_continue
    assert head.has_body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1, 1", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: +1", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1_0", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 0x10", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: \xb2", 400),
        (b"GET / HTTP/1.1\r\nContent-Length:", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 9999999999999999", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 501),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding : chunked", 400),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        (b"GET / HTTP/1.1\r\nContent-Length : 1", 400),
        (b"GET / HTTP/1.1\r\n Content-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded", 400),
        (b"GET / HTTP/1.1\r\nA: b\nContent-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nA: b\rContent-Length: 1", 400),
        (b"GET / HTTP/1.1\r\nA: b\x00", 400),
        (b"GET / HTTP/1.1\r\nno colon", 400),
        (b"GET / HTTP/1.1\r\n: empty name", 400),
        (b"GET / HTTP/1.1\r\nA\xe9: b", 400),
        (b"GET  / HTTP/1.1\r\nA: b", 400),
        (b"GET /a b HTTP/1.1\r\nA: b", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nA: b", 400),
        (b"GET / HTTP/2.0\r\nA: b", 505),
        (b"GET / HTTP/1.1 \r\nA: b", 400),
        (b"get / HTTP/1.1\r\nA: b", 405),
        (b"CONNECT / HTTP/1.1\r\nA: b", 405),
        (b"GET / HTTP/1.1" + b"\r\nA: b" * (HEADERS_MAX + 1), 400),
        (b"", 400),
    ],
)
def test_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadHead) as caught:
        parse_head(data)
    assert caught.value.status == status


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(tail: bytes) -> None:
    try:
        head = parse_head(b"PUT /k HTTP/1.1\r\n" + tail)
    except BadHead:
        return
    rebuilt = b"PUT /k HTTP/1.1" + b"".join(b"\r\n%b: %b" % pair for pair in head.headers)
    assert parse_head(rebuilt) == head
