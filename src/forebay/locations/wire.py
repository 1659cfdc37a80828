"""HTTP/1.1 to one S3 endpoint: a pool of connections, time-outs, and retries.

Bodies are sent from the caller's buffers and received into them, on blocking sockets: threads move bytes at the least CPU per GiB, and
`http.client` frames them. A request is tried again after a broken connection, a time-out, and the statuses that mean "later"; every
request that is made here may be repeated, and the callers resolve those whose first answer was lost.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from forebay.errors import ConfigError, LocationUnavailable
from forebay.locations.interface import Buffer
from forebay.locations.same_host import connect_on_host

CONNECT_TIMEOUT_S = 10.0
IDLE_S_MAX = 15.0
"""Connections idle for longer are not used again: servers close them after some time, often 20 s."""
RETRY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0
ANSWER_BYTES_MAX = 2**31
"""No answer that is read whole is longer; the manifest of a million pieces is a twentieth of it."""
GATHER_MAX = 512
"""Buffers given to the kernel at once; Linux takes 1,024."""

Failure = (OSError, http.client.HTTPException)
"""What a connection can raise."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (lower-case names) and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it goes over the wire: path and query encoded, headers signed."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Sequence[Buffer] = ()


class Wire:
    """Connections to one endpoint; `read_timeout_s` bounds every wait for bytes, `retry_s` all tries of one request together."""

    def __init__(self, endpoint: str, read_timeout_s: float, retry_s: float) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the S3 endpoint {endpoint!r} is no http:// or https:// URL")
        if parts.username or parts.password:
            raise ConfigError("the S3 endpoint holds a user name: give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.secure else 80)
        self.netloc = parts.netloc
        self.path = parts.path.rstrip("/")
        self._read_timeout_s, self._retry_s = read_timeout_s, retry_s
        self._context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE")) if self.secure else None
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def tries(self, operation: str, url: str) -> Iterator[Try]:
        """The tries of one request, with growing pauses. The loop's body ends it by `break` or `return`, or notes why to go on in
        `Try.failed`. Raises `LocationUnavailable` when the time is up.
        """
        deadline_s = time.monotonic() + self._retry_s
        for number in range(1_000_000):
            one = Try()
            yield one
            pause_s = min(BACKOFF_S * 2**number, BACKOFF_S_MAX) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries
            if time.monotonic() + pause_s > deadline_s:
                raise LocationUnavailable(
                    operation, url, f"{one.reason or 'no answer'} (tried {number + 1} times in {self._retry_s:.0f} s)"
                )
            time.sleep(pause_s)

    @contextmanager
    def exchange(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give the answer, its body unread. The connection is kept if the body is read to its end.

        Raises one of `Failure`.
        """
        connection, response = self._send(request)
        try:
            yield response
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            _close_all(self._idle)

    def _send(self, request: Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A kept connection may have been closed by the server meanwhile; that shows at once, and a fresh one is tried."""
        while (connection := self._kept()) is not None:
            try:
                return connection, self._ask(connection, request)
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
            except Failure:
                connection.close()
                raise
        connection = self._connect()
        try:
            return connection, self._ask(connection, request)
        except BaseException:
            connection.close()
            raise

    def _ask(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.sock is not None
        send_buffers(connection.sock, [memoryview(buffer).cast("B") for buffer in request.body])
        return connection.getresponse()

    def _kept(self) -> http.client.HTTPConnection | None:
        with self._lock:
            while self._idle:
                since_s, connection = self._idle.pop()
                if time.monotonic() - since_s < IDLE_S_MAX:
                    return connection
                connection.close()
        return None

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=CONNECT_TIMEOUT_S, context=self._context)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_TIMEOUT_S)
            if (on_host := connect_on_host(self.host, self.port, CONNECT_TIMEOUT_S)) is not None:
                on_host.settimeout(self._read_timeout_s)
                connection.sock = on_host
                return connection
        connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(self._read_timeout_s)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _close_all(idle: list[tuple[float, http.client.HTTPConnection]]) -> None:
    while idle:
        idle.pop()[1].close()


class Try:
    """One try of a request: `reason` says why it has to be repeated."""

    reason: str = ""

    def failed(self, reason: object) -> None:
        """Note why."""
        self.reason = str(reason) or type(reason).__name__


def send_buffers(sock: socket.socket, views: list[memoryview]) -> None:
    """Send all buffers, gathered where the socket can (TLS cannot)."""
    views = [view for view in views if len(view)]
    if isinstance(sock, ssl.SSLSocket):
        for view in views:
            sock.sendall(view)
        return
    while views:
        sent = sock.sendmsg(views[:GATHER_MAX])
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


def read_all(request: Request, response: http.client.HTTPResponse) -> Answer:
    """The whole answer, if it is not larger than `ANSWER_BYTES_MAX`. Raises one of `Failure`, also if it was cut short."""
    body = response.read(ANSWER_BYTES_MAX)
    if not response.isclosed() and response.read(1):
        raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    length = response.headers.get("content-length", "")
    if request.method != "HEAD" and length.isdigit() and len(body) < int(length) and response.status != 304:
        raise http.client.IncompleteRead(body, int(length) - len(body))
    return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)
