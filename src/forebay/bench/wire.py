"""A signed S3 client over one plain connection, light enough to share its cores with the server that it measures.

Heads are signed afresh for every request (SigV4, about 4 µs): a template is filled in, and the two halves of the HMAC
start from prepared states. `forebay.s3.sigv4` derives nothing here, so that a server is not measured by its own
mistakes; a test compares the two.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import select
import socket
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import msgspec

from forebay.bench.content import Buffer
from forebay.bench.errors import BenchmarkFailed
from forebay.locations.same_host import connect_on_host

UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
DATE_VALID_S = 60.0  # S3 accepts 15 minutes; a signature's date is renewed long before
HEAD_BYTES_MAX = 64 << 10
RECEIVE_BYTES = 1 << 20


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store listens and with which keys: all that a client process must know."""

    host: str
    port: int
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    by_unix_socket: bool = False  # as the library does on its own

    @property
    def authority(self) -> str:
        """The Host header."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The endpoint URL as other clients want it."""
        return f"http://{self.authority}"


def endpoint_of(url: str, access_key: str, secret_key: str, region: str) -> Endpoint:
    """Parse `http://host:port`. Raises BenchmarkFailed for anything else: TLS would be measured, not the store."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise BenchmarkFailed(f"{url!r}: this client speaks plain HTTP to http://HOST[:PORT] only")
    return Endpoint(host=parts.hostname, port=parts.port or 80, access_key=access_key, secret_key=secret_key, region=region)


def connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """A connection. Raises OSError, and BenchmarkFailed where a UNIX socket is asked for and there is none to be trusted."""
    if endpoint.by_unix_socket:
        on_host = connect_on_host(endpoint.host, endpoint.port, timeout_s)
        if on_host is None:
            raise BenchmarkFailed(f"no UNIX socket of this user or root stands for {endpoint.url}; leave out --unix")
        return on_host
    made = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Signer:
    """Builds complete request heads for one endpoint. Not for use by several threads at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._renew_s = 0.0
        self._day = ""

    def head(self, method: str, path: str, query: str, payload_sha256: str, length: int, crc64nvme: str = "") -> bytes:
        """A signed head.

        `path` and the sorted `query` are percent-encoded; `crc64nvme` becomes a signed checksum header.
        """
        now_s = time.monotonic()
        if now_s >= self._renew_s:
            self._renew(now_s)
        if crc64nvme:
            names = "host;x-amz-checksum-crc64nvme;x-amz-content-sha256;x-amz-date"
            checksum = f"x-amz-checksum-crc64nvme:{crc64nvme}\n"
        else:
            names, checksum = "host;x-amz-content-sha256;x-amz-date", ""
        host, date = self._endpoint.authority, self._date
        headers = f"host:{host}\n{checksum}x-amz-content-sha256:{payload_sha256}\nx-amz-date:{date}\n"
        canonical = f"{method}\n{path}\n{query}\n{headers}\n{names}\n{payload_sha256}"
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update((self._to_sign + hashlib.sha256(canonical.encode()).hexdigest()).encode())
        outer.update(inner.digest())
        target = f"{path}?{query}" if query else path
        lines = headers.replace("\n", "\r\n")
        return (
            f"{method} {target} HTTP/1.1\r\n{lines}authorization:{self._credential}, SignedHeaders={names}, "
            f"Signature={outer.hexdigest()}\r\ncontent-length:{length}\r\n\r\n"
        ).encode()

    def _renew(self, now_s: float) -> None:
        self._renew_s = now_s + DATE_VALID_S
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{self._date[:8]}/{self._endpoint.region}/s3/aws4_request"
        self._to_sign = f"AWS4-HMAC-SHA256\n{self._date}\n{scope}\n"
        self._credential = f"AWS4-HMAC-SHA256 Credential={self._endpoint.access_key}/{scope}"
        if self._day != self._date[:8]:
            self._day = self._date[:8]
            key = f"AWS4{self._endpoint.secret_key}".encode()
            for part in scope.split("/"):
                key = hmac.digest(key, part.encode(), "sha256")
            padded = key.ljust(64, b"\0")
            self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
            self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))


class Answer(msgspec.Struct, frozen=True):
    """Status, headers (lower-case names) and body of an answer; the body is empty when it went to a sink."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One keep-alive connection, used by one thread, one request at a time.

    Every answer is checked: a status other than the expected one, or a body of another length than announced, raises
    BenchmarkFailed with the server's own words.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float = 120.0) -> None:
        self.signer = Signer(endpoint)
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._connect()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    def _connect(self) -> None:
        self._socket = connect(self._endpoint, self._timeout_s)
        self._server_closes = False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        body: Buffer = b"",
        sha256: str | None = None,
        crc64nvme: str = "",
        byte_range: str = "",
        expect: tuple[int, ...] = (200, 204),
        sink: Callable[[memoryview], None] | None = None,
        into: memoryview | None = None,
    ) -> Answer:
        """Send a request and read its answer.

        `sha256` is the body's digest, or UNSIGNED (default: computed here). The body of an expected answer goes to
        `sink` piece by piece (each piece is valid only during the call), or straight into `into`, or else into
        `Answer.body`.
        """
        view = memoryview(body)
        digest = sha256 or (hashlib.sha256(view).hexdigest() if view else EMPTY_SHA256)
        head = self.signer.head(method, path, query, digest, len(view), crc64nvme)
        if byte_range:
            head = head[:-2] + f"range:{byte_range}\r\n\r\n".encode()
        self._send(head, view)
        status, headers, rest = self._receive_head()
        length = 0 if method == "HEAD" or status == 204 else _length(headers)
        if status not in expect:
            words = bytearray()
            self._receive_body(rest, length, words.extend)
            raise BenchmarkFailed(f"{method} {path}?{query}: answered {status}: {words[:1000].decode(errors='replace')}")
        if into is not None:
            self._receive_into(rest, length, into)
            return Answer(status, headers, b"")
        collected = bytearray()
        self._receive_body(rest, length, sink or collected.extend)
        return Answer(status, headers, bytes(collected))

    def _send(self, head: bytes, body: memoryview) -> None:
        if self._server_closes or is_closed(self._socket):
            self._socket.close()
            self._connect()
        if len(body) <= RECEIVE_BYTES:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)

    def _receive_head(self) -> tuple[int, dict[str, str], memoryview]:
        filled = 0
        while True:
            count = self._socket.recv_into(self._buffer[filled:])
            if not count:
                raise BenchmarkFailed("the server closed the connection instead of answering")
            filled += count
            end = bytes(self._buffer[: min(filled, HEAD_BYTES_MAX)]).find(b"\r\n\r\n")
            if end >= 0:
                break
            if filled >= HEAD_BYTES_MAX:
                raise BenchmarkFailed("the server's answer has no end of head within 64 KiB")
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._server_closes = headers.get("connection", "").lower() == "close"
        return int(first.split(" ", 2)[1]), headers, self._buffer[end + 4 : filled]

    def _receive_body(self, rest: memoryview, length: int, sink: Callable[[memoryview], object]) -> None:
        if len(rest) > length:
            raise BenchmarkFailed(f"the answer has {len(rest) - length} bytes more than its content-length {length}")
        if rest:
            sink(rest)
        left = length - len(rest)
        while left:
            count = self._socket.recv_into(self._buffer, min(left, RECEIVE_BYTES))
            if not count:
                raise BenchmarkFailed(f"the connection broke {left} bytes before the end of an answer of {length}")
            sink(self._buffer[:count])
            left -= count

    def _receive_into(self, rest: memoryview, length: int, into: memoryview) -> None:
        if length != len(into):
            raise BenchmarkFailed(f"the answer has {length} bytes, {len(into)} were asked for")
        into[: len(rest)] = rest
        done = len(rest)
        while done < length:
            count = self._socket.recv_into(into[done:])
            if not count:
                raise BenchmarkFailed(f"the connection broke {length - done} bytes before the end of an answer of {length}")
            done += count


def is_closed(idle: socket.socket) -> bool:
    """Whether the server has closed a connection on which no answer is outstanding: there is something to read, its end."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def _length(headers: dict[str, str]) -> int:
    if "content-length" not in headers:
        raise BenchmarkFailed("the answer has no content-length: chunked answers are not measured here")
    return int(headers["content-length"])


def quote_path(bucket: str, key: str) -> str:
    """`/bucket/key`, percent-encoded as SigV4 wants it."""
    return f"/{bucket}/{quote(key, safe='/-_.~')}"


def element(xml: bytes, name: str) -> str | None:
    """The text of the first element `name` of an S3 answer (no entities: ids and tokens have none that matter here)."""
    found = re.search(rf"<{name}>([^<]*)</{name}>".encode(), xml)
    return found[1].decode() if found else None
