"""Answers: what a handler returns, and the bytes that go before its body."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from http import HTTPStatus
from itertools import count

SERVER_NAME = "Forebay"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_NOT_CONTROL = b"\t" + bytes(byte for byte in range(0x20, 0x100) if byte != 0x7F)
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: {SERVER_NAME}\r\n" for status in HTTPStatus}
BODYLESS = frozenset((204, 304))  # RFC 9110 section 6.4.1: such answers never have a body


class Stream:
    """A body that a thread sends, `length` bytes in all. `chunks()` is called in that thread.

    Each chunk may be reused by the iterator once the next one is asked for. An error before the first chunk becomes an
    error answer; one after it breaks the connection, so that no client takes what it got for the whole.
    """

    __slots__ = ("chunks", "length")

    def __init__(self, length: int, chunks: Callable[[], Iterator[memoryview]]) -> None:
        self.length = length
        self.chunks = chunks


class Response:
    """An answer. `headers` are written as given, after those that every answer has.

    `length` is what Content-Length says when it is not the body's own length: answers to HEAD. `close` ends the
    connection after it. `error_code` is for the metrics and the log.
    """

    __slots__ = ("body", "close", "error_code", "headers", "length", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | Stream = b"",
        *,
        length: int | None = None,
        close: bool = False,
        error_code: str = "",
    ) -> None:
        self.status = status
        self.headers = headers or {}
        self.body = body
        self.length = length
        self.close = close
        self.error_code = error_code


class RequestIds:
    """Names of requests: x-amz-request-id, unique in this process and, by its random start, practically everywhere."""

    def __init__(self) -> None:
        self._prefix = os.urandom(4).hex().upper()
        self._next = count(int.from_bytes(os.urandom(3), "big"))
        self.host_id = os.urandom(18).hex()

    def draw(self) -> str:
        """A new name, 16 characters."""
        return f"{self._prefix}{next(self._next) & 0xFFFFFFFF:08X}"


class _Clock:
    """The Date header, formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def date(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._text = formatdate(second, usegmt=True)
            self._second = second
        return self._text


_clock = _Clock()


def encode_head(response: Response, request_id: str, host_id: str, *, close: bool) -> bytes:
    """The head of an answer, up to the empty line.

    Raises ValueError if a header holds a control character: a handler let something through that would forge headers.
    """
    status = response.status
    if response.length is not None:
        length = response.length
    else:
        length = response.body.length if isinstance(response.body, Stream) else len(response.body)
    lines = [
        f"x-amz-request-id: {request_id}\r\nx-amz-id-2: {host_id}\r\nDate: {_clock.date()}\r\n",
        *[f"{name}: {value}\r\n" for name, value in response.headers.items()],
    ]
    if status not in BODYLESS:
        lines.append(f"Content-Length: {length}\r\n")
    if close:
        lines.append("Connection: close\r\n")
    text = "".join(lines)
    head = f"{_STATUS_LINES[status]}{text}\r\n".encode("latin-1")
    breaks = 6 + len(response.headers) + (status not in BODYLESS) + close
    if head.translate(None, _NOT_CONTROL) != b"\r\n" * breaks:
        raise ValueError(f"an answer's headers hold a control character: {response.headers!r}")
    return head
