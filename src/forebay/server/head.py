"""The head of an HTTP/1.1 request, parsed strictly: what two parsers could read differently is refused.

Source: RFC 9112 (HTTP/1.1) sections 2-6 and 11.2 (request smuggling), RFC 9110 for field syntax. Stricter than the RFC
where it allows leniency: lines end in CRLF only, no folded values, no white space before a colon, no second
Content-Length even if equal, no Transfer-Encoding but `chunked`, nothing beyond ASCII in the request line.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES_MAX = 16 << 10  # S3 allows 8 KiB of headers; the longest key, percent-encoded, takes 3 KiB more
HEADERS_MAX = 128  # user metadata of 2 KiB cannot need more
CONTENT_LENGTH_DIGITS_MAX = 15

_METHODS = frozenset((b"GET", b"HEAD", b"PUT", b"POST", b"DELETE", b"OPTIONS"))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VISIBLE = bytes(range(0x21, 0x7F))
_NOT_CONTROL = b"\t" + bytes(byte for byte in range(0x20, 0x100) if byte != 0x7F)


class BadHead(Exception):  # noqa: N818 - a verdict on a head, answered with `status` and followed by closing
    """A head that is not served. `code` is the S3 error code of the answer and `status` its HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Head(NamedTuple):
    """A request head. `headers` holds (name, value) as received, without white space around values.

    `content_length` is None if the head has none; `chunked` means Transfer-Encoding: chunked, and then it has none. A
    request with neither has no body.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    content_length: int | None
    chunked: bool
    expects_continue: bool
    keep_alive: bool

    @property
    def has_body(self) -> bool:
        """Whether at least one byte of body or of its framing follows the head."""
        return self.chunked or bool(self.content_length)


def parse_head(data: bytes) -> Head:
    """Parse `data`, a whole head up to and without the CRLF CRLF that ends it. Raises BadHead."""
    lines = data.split(b"\r\n")
    if data.translate(None, _NOT_CONTROL) != b"\r\n" * (len(lines) - 1):
        raise BadHead("InvalidRequest", "The request head holds a control character or a bare line end.")
    method, target, minor_version = _parse_request_line(lines[0])
    if len(lines) > HEADERS_MAX + 1:
        raise BadHead("RequestHeaderSectionTooLarge", f"The request has more than {HEADERS_MAX} header fields.")
    headers = []
    framing: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        kind = _names_seen.get(name)
        if kind is None:
            kind = _classify(name)
        if not colon or kind == _BAD:
            raise BadHead("InvalidRequest", f"The header line {line[:64]!r} is not of the form 'Name: value'.")
        value = value.strip(b" \t")
        headers.append((name, value))
        if kind:
            if kind in framing:
                raise BadHead("InvalidRequest", f"The header {name.decode()} is given twice.")
            framing[kind] = value
    content_length, chunked = _parse_framing(framing, minor_version)
    expects_continue = framing.get(b"expect", b"").lower() == b"100-continue"  # others are ignored, as S3 does
    keep_alive = _parse_connection(framing.get(b"connection"), minor_version)
    return Head(method, target, headers, content_length, chunked, expects_continue, keep_alive)


_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"expect", b"connection"))
_BAD = b"?"  # the kind of a name that is no token
_names_seen: dict[bytes, bytes] = {}  # good names -> themselves in lower case if they matter here, else b""
_NAMES_SEEN_MAX = 1024


def _classify(name: bytes) -> bytes:
    if not name or name.translate(None, _TOKEN):
        return _BAD
    lower = name.lower()
    kind = lower if lower in _FRAMING else b""
    if len(_names_seen) < _NAMES_SEEN_MAX:
        _names_seen[name] = kind
    return kind


def _parse_request_line(line: bytes) -> tuple[str, bytes, int]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise BadHead("InvalidRequest", "The request line is not of the form 'METHOD target HTTP/1.1'.")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead("InvalidRequest", f"The protocol version {version[:16]!r} is not served; use HTTP/1.1.", 505)
    if method not in _METHODS:
        raise BadHead("MethodNotAllowed", "The specified method is not allowed against this resource.", 405)
    if not target or target.translate(None, _VISIBLE):
        raise BadHead("InvalidURI", "The request target must be percent-encoded ASCII.")
    return method.decode(), target, version[-1] - 0x30


def _parse_framing(framing: dict[bytes, bytes], minor_version: int) -> tuple[int | None, bool]:
    length, coding = framing.get(b"content-length"), framing.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadHead("InvalidRequest", "Content-Length and Transfer-Encoding exclude each other.")
        if minor_version == 0:
            raise BadHead("InvalidRequest", "HTTP/1.0 has no Transfer-Encoding.")
        if coding.lower() != b"chunked":
            raise BadHead("NotImplemented", f"The transfer coding {coding[:64]!r} is not served.", 501)
        return None, True
    if length is None:
        return None, False
    if not length.isdigit() or len(length) > CONTENT_LENGTH_DIGITS_MAX:
        raise BadHead("InvalidRequest", f"Content-Length {length[:32]!r} is not a length in bytes.")
    return int(length), False


def _parse_connection(value: bytes | None, minor_version: int) -> bool:
    if value is None:
        return minor_version == 1
    options = {option.strip() for option in value.lower().split(b",")}
    if b"close" in options:
        return False
    return minor_version == 1 or b"keep-alive" in options
