"""One request and its answer, as the application sees it; and the application, as the wire sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from forebay.errors import StoreError
from forebay.s3.chunked import Body, incomplete
from forebay.server.head import BadHead, Head
from forebay.server.message import Response
from forebay.server.transfer import Wire

T = TypeVar("T")
Answer = Response | Coroutine[Any, Any, Response]


class Input(Protocol):
    """The connection that an exchange reads its body from."""

    @property
    def host_id(self) -> str:
        """Names the worker."""

    @property
    def pending_bytes(self) -> int:
        """How much input is here and not taken."""

    def feed(self, exchange: Exchange, body: Body, pieces: list[bytes]) -> bool:
        """Decode what is here of a body into `pieces`; True once the body is finished. Raises StoreError."""

    async def more(self, exchange: Exchange) -> bool:
        """Wait for more input; False if the client sends no more. Raises StoreError after a stall, and PeerGone."""

    async def lend(self, exchange: Exchange, work: Callable[[Wire], T]) -> T:
        """Run `work` in a transfer thread, which owns the connection meanwhile."""


class Exchange:
    """One request and its answer, as the application sees it."""

    __slots__ = (
        "_connection",
        "head",
        "operation",
        "received_bytes",
        "request_id",
        "resource",
        "sent_continue",
        "started_s",
    )

    def __init__(self, connection: Input, head: Head, request_id: str) -> None:
        self._connection = connection
        self.head = head
        self.request_id = request_id
        self.received_bytes = 0  # of the body, framing included
        self.sent_continue = False
        self.started_s = time.perf_counter()
        self.operation = ""  # set by the application, for the metrics
        self.resource = ""  # set by the application, for error documents

    @property
    def host_id(self) -> str:
        """Names the worker in answers: x-amz-id-2."""
        return self._connection.host_id

    @property
    def body_is_here(self) -> bool:
        """Whether the whole body has been received, so that `take_body` will finish."""
        length = self.head.content_length
        return not self.head.chunked and self._connection.pending_bytes >= (length or 0)

    def take_body(self, body: Body) -> bytes:
        """Decode a body that is here. Raises StoreError."""
        pieces: list[bytes] = []
        if not self._connection.feed(self, body, pieces):
            raise incomplete()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_body(self, body: Body, bytes_max: int) -> bytes:
        """Receive a body of at most `bytes_max` on the loop. Raises StoreError (too long, stalls) and PeerGone."""
        pieces: list[bytes] = []
        while not self._connection.feed(self, body, pieces):
            if sum(map(len, pieces)) + body.payload_size > bytes_max:
                raise StoreError("MaxMessageLengthExceeded")
            if not await self._connection.more(self):
                raise incomplete()
        data = b"".join(pieces)
        if len(data) > bytes_max:
            raise StoreError("MaxMessageLengthExceeded")
        return data

    async def in_transfer(self, work: Callable[[Wire], T]) -> T:
        """Run `work` in a thread that owns the connection meanwhile; it receives the body."""
        return await self._connection.lend(self, work)


class Application(Protocol):
    """What handles requests. `handle` may answer at once or return a coroutine; it must not block."""

    def handle(self, exchange: Exchange) -> Answer:
        """Serve a request. Whatever it raises goes to `failed`."""

    def failed(self, exchange: Exchange, error: Exception) -> Response:
        """The answer to a request whose handling raised. Must not raise."""

    def refused(self, error: BadHead | StoreError, request_id: str, host_id: str) -> Response:
        """The answer to a head that is not served, after which the connection ends. Must not raise."""

    def completed(self, exchange: Exchange, response: Response, sent_bytes: int) -> None:
        """Called once for each answered request. Must not raise."""
