"""One client connection on a worker's event loop: heads in, answers out, one request at a time and in order.

Small requests are handled wholly on the loop, without a task or a thread, if the handler answers at once. Large bodies
are moved by a thread (see `transfer`), to which the socket is lent meanwhile. Pipelined requests wait in `_pending`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from forebay.errors import StoreError
from forebay.s3.chunked import Body
from forebay.server.exchange import Answer, Application, Exchange
from forebay.server.head import HEAD_BYTES_MAX, BadHead, Head, parse_head
from forebay.server.message import CONTINUE, RequestIds, Response, Stream, encode_head
from forebay.server.transfer import (
    STALL_TIMEOUT_S,
    BrokenStream,
    PeerGone,
    RelayWire,
    SocketWire,
    Wire,
    send_stream,
    stalled,
)

SMALL_BODY_BYTES = 68 << 10  # an inline object with its aws-chunked framing: waited for on the loop
RECEIVE_BUFFER_BYTES = 128 << 10  # shared by a worker's connections: a small body with its head fits
PENDING_BYTES_MAX = 256 << 10  # pipelined input held while a request is being handled
WRITE_BUFFER_BYTES = 256 << 10  # unsent answers above this stop the handling of pipelined requests
IDLE_TIMEOUT_S = 180.0  # longer than the 60-75 s that proxies and SDKs keep idle connections
HEAD_TIMEOUT_S = 30.0  # from the first byte of a head to the last of it, and of a small body
LINGER_IDLE_S = 5.0  # after the last answer: how long to wait for the client to close
LINGER_TOTAL_S = 60.0
SWEEP_S = 1.0

_log = logging.getLogger("forebay.server")
T = TypeVar("T")


class Listener:
    """What the connections of one worker share. Lives on the loop's thread."""

    def __init__(
        self,
        app: Application,
        loop: asyncio.AbstractEventLoop,
        transfers: ThreadPoolExecutor,
        *,
        connections_max: int = 4096,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self.app = app
        self.loop = loop
        self.transfers = transfers
        self.connections_max = connections_max
        self.stall_timeout_s = stall_timeout_s
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.ids = RequestIds()
        self.connections: set[Connection] = set()
        self.draining = False
        self.emptied = asyncio.Event()  # set when the last connection went, while draining
        self.tasks: set[asyncio.Task[None]] = set()
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    def connection(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    def sweep(self) -> None:
        """End what has waited too long; to be called every SWEEP_S."""
        now = time.monotonic()
        for connection in [each for each in self.connections if each.deadline < now]:
            connection.timed_out()

    async def drain(self, timeout_s: float) -> None:
        """Let requests in flight end and close every connection; after `timeout_s` break those that are left."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()
        give_up = time.monotonic() + timeout_s
        while self.connections and time.monotonic() < give_up:
            self.sweep()
            try:
                await asyncio.wait_for(self.emptied.wait(), SWEEP_S)
            except TimeoutError:
                pass
        if self.connections:
            _log.warning("%d connections were still busy after %.0f s and are cut", len(self.connections), timeout_s)
        for connection in list(self.connections):
            connection.abort()
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=5.0)


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection; see the module's text. Everything runs on the loop."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.deadline = math.inf
        self._transport: asyncio.Transport | None = None
        self._pending = b""
        self._head: Head | None = None  # parsed; its small body is being waited for
        self._exchange: Exchange | None = None
        self._more: asyncio.Future[bool] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False  # the client sends no more
        self._linger_until = 0.0  # set once the last answer is out
        self._socket: socket.socket | None = None  # our duplicate, lent to threads
        self._lent = False
        self._relay: RelayWire | None = None

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)  # type: ignore[attr-defined]
        listener = self.listener
        full = len(listener.connections) >= listener.connections_max
        listener.connections.add(self)
        self._wait(listener.head_timeout_s)
        if full or listener.draining:
            self._refuse(StoreError("SlowDown"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        listener = self.listener
        listener.connections.discard(self)
        if listener.draining and not listener.connections:
            listener.emptied.set()
        self._transport = None
        self._ended = True
        for waiter in (self._more, self._flushed):
            if waiter is not None and not waiter.done():
                waiter.set_exception(PeerGone())
        if self._relay is not None:
            self._relay.end(broken=True)
        self._close_lost_socket()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. One buffer serves all connections: it is emptied before the loop reads again."""
        return self.listener.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._linger_until:
            self.deadline = min(time.monotonic() + LINGER_IDLE_S, self._linger_until)
            return
        data = bytes(self.listener.receive_buffer[:nbytes])
        if self._relay is not None:
            self._pause_reading()
            self._relay.deliver(data)
            return
        self._pending = self._pending + data if self._pending else data
        if self._exchange is None:
            self._advance()
        elif self._more is not None and not self._more.done():
            self._more.set_result(True)
        elif len(self._pending) > PENDING_BYTES_MAX:
            self._pause_reading()

    def eof_received(self) -> bool:
        """See asyncio. The answer to a request in flight is still sent."""
        self._ended = True
        if self._relay is not None:
            self._relay.end(broken=False)
        if self._more is not None and not self._more.done():
            self._more.set_result(False)
        if self._exchange is None and self._head is not None:  # within a small body: the application says what is missing
            self._advance()
        return self._exchange is not None and not self._is_tls

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writing_paused = True
        if self._exchange is None:
            self._wait(self.listener.stall_timeout_s)

    def resume_writing(self) -> None:
        """See asyncio."""
        self._writing_paused = False
        if self._relay is not None:
            self._relay.set_writable(True)
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        if self._exchange is None and not self._linger_until:
            self._advance()

    # --- requests

    def _advance(self) -> None:
        """Handle what is pending, until a request needs time or input."""
        while (self._pending or self._head) and self._exchange is None and not (self._writing_paused or self._linger_until):
            if not self._begin():
                return
        if self._exchange is None and not (self._pending or self._writing_paused or self._linger_until):
            if self._ended or self.listener.draining:
                self._finish_writing()
            else:
                self._resume_reading()
                self._wait(self.listener.idle_timeout_s)

    def _begin(self) -> bool:
        """Start the next request; False if more input is needed for that, or the connection is ending."""
        head = self._head
        if head is None:
            if self._pending.startswith(b"\r\n"):  # RFC 9112 section 2.2: an empty line before a request
                self._pending = self._pending[2:]
            end = self._pending.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
            if end < 0:
                return self._need_head()
            try:
                head = parse_head(self._pending[:end])
            except BadHead as error:
                return self._refuse(error)
            self._pending = self._pending[end + 4 :]
        length = head.content_length or 0
        if len(self._pending) < length <= SMALL_BODY_BYTES and not head.expects_continue and not self._ended:
            if self._head is None:
                self._wait(self.listener.head_timeout_s)
            self._head = head
            self._resume_reading()
            return False
        self._head = None
        self.deadline = math.inf
        exchange = self._exchange = Exchange(self, head, self.listener.ids.draw())
        if head.expects_continue and head.content_length == 0 and self._transport is not None:
            # RFC 9110 section 10.1.1 lets us skip it, but botocore (aws-cli) misreads the connection's next answer if we do.
            exchange.sent_continue = True
            self._transport.write(CONTINUE)
        try:
            answer = self.listener.app.handle(exchange)
        except Exception as error:
            answer = self.listener.app.failed(exchange, error)
        if type(answer) is Response and type(answer.body) is bytes:
            self._answer(exchange, answer)
        else:
            self._run(self._answer_later(exchange, answer))
        return True

    def _need_head(self) -> bool:
        if len(self._pending) >= HEAD_BYTES_MAX + 4:
            message = f"The request head is longer than {HEAD_BYTES_MAX} bytes."
            return self._refuse(BadHead("RequestHeaderSectionTooLarge", message))
        if self._ended:
            self._finish_writing()
        elif self.deadline - time.monotonic() > self.listener.head_timeout_s:  # its first bytes
            self._wait(self.listener.head_timeout_s)
        self._resume_reading()
        return False

    def _refuse(self, error: BadHead | StoreError) -> bool:
        request_id = self.listener.ids.draw()
        response = self.listener.app.refused(error, request_id, self.listener.ids.host_id)
        assert isinstance(response.body, bytes)
        self._pending = b""
        if self._transport is not None:
            head = encode_head(response, request_id, self.listener.ids.host_id, close=True)
            self._transport.write(head + response.body)
            self._finish_writing()
        return False

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.listener.loop.create_task(work)
        self.listener.tasks.add(task)
        task.add_done_callback(self.listener.tasks.discard)

    async def _answer_later(self, exchange: Exchange, answer: Answer) -> None:
        app = self.listener.app
        try:
            response = answer if isinstance(answer, Response) else await answer
            if isinstance(response.body, Stream) and exchange.head.method != "HEAD":
                await self._send_stream(exchange, response, response.body)
                return
        except PeerGone:
            self.abort()
            app.completed(exchange, Response(499, error_code="ClientClosedRequest"), 0)
            return
        except Exception as error:
            response = app.failed(exchange, error)
        self._answer(exchange, response)
        self._advance()

    # --- answers

    def _must_close(self, exchange: Exchange, response: Response) -> bool:
        """Whether the connection ends with this answer. Drops an unread body that is here, so that it need not."""
        if not exchange.head.keep_alive or response.close or self.listener.draining:
            return True
        if exchange.head.chunked:
            return exchange.received_bytes == 0 or response.status >= 400
        unread = (exchange.head.content_length or 0) - exchange.received_bytes
        if unread > len(self._pending):
            return True
        self._pending = self._pending[unread:] if unread else self._pending
        return unread < 0

    def _answer(self, exchange: Exchange, response: Response) -> None:
        transport = self._transport
        self._exchange = None
        body = response.body if exchange.head.method != "HEAD" else b""
        assert isinstance(body, bytes)
        if transport is None:
            self.listener.app.completed(exchange, response, 0)
            return
        close = self._must_close(exchange, response)
        try:
            head = encode_head(response, exchange.request_id, exchange.host_id, close=close)
        except ValueError as error:  # a handler's mistake: an answer that HTTP cannot carry
            response = self.listener.app.failed(exchange, error)
            assert isinstance(response.body, bytes)
            body = response.body if body else b""
            head = encode_head(response, exchange.request_id, exchange.host_id, close=close)
        transport.write(head + body if body else head)
        self.listener.app.completed(exchange, response, len(body))
        if close:
            self._finish_writing()

    async def _send_stream(self, exchange: Exchange, response: Response, stream: Stream) -> None:
        close = self._must_close(exchange, response)
        head = encode_head(response, exchange.request_id, exchange.host_id, close=close)
        try:
            await self.lend(exchange, lambda wire: send_stream(wire, head, stream))
        except BrokenStream as error:
            _log.error("%s: the answer was cut off: %s", exchange.request_id, error.__cause__ or error)
            self.abort()
            self.listener.app.completed(exchange, Response(500, error_code="BrokenStream"), 0)
            return
        self._exchange = None
        self.listener.app.completed(exchange, response, stream.length)
        if close:
            self._finish_writing()
        else:
            self._advance()

    def _finish_writing(self) -> None:
        """The last answer is written: tell the client, and read on for a while.

        Closing at once would answer bytes under way with a reset, which may destroy the answer before it is read.
        """
        transport = self._transport
        if transport is None:
            return
        now = time.monotonic()
        self._linger_until = now + LINGER_TOTAL_S
        self.deadline = now + LINGER_IDLE_S
        self._pending = b""
        if self._ended:
            transport.close()
            return
        if transport.can_write_eof():  # TLS cannot; its client sees `Connection: close`
            transport.write_eof()
        self._resume_reading()

    # --- input and output for the request being handled: what an exchange needs, see Input

    @property
    def host_id(self) -> str:
        """See Input."""
        return self.listener.ids.host_id

    @property
    def pending_bytes(self) -> int:
        """See Input."""
        return len(self._pending)

    def feed(self, exchange: Exchange, body: Body, pieces: list[bytes]) -> bool:
        """See Input."""
        data = memoryview(self._pending)
        position = 0
        while not body.finished and position < len(data):
            if body.payload_size:
                piece = data[position : position + body.payload_size]
                body.payload_received(piece)
                pieces.append(bytes(piece))
                taken = len(piece)
            else:
                taken = body.feed(data[position:])
            position += taken
            exchange.received_bytes += taken
        self._pending = self._pending[position:] if position else self._pending
        return body.finished

    async def more(self, exchange: Exchange) -> bool:
        """See Input."""
        if self._transport is None:
            raise PeerGone
        if self._ended:
            return False
        if exchange.head.expects_continue and not exchange.sent_continue:
            exchange.sent_continue = True
            self._transport.write(CONTINUE)
        self._more = self.listener.loop.create_future()
        self._wait(self.listener.stall_timeout_s)
        self._resume_reading()
        try:
            return await self._more
        finally:
            self._more = None
            self.deadline = math.inf

    async def lend(self, exchange: Exchange, work: Callable[[Wire], T]) -> T:
        """See Input."""
        if self._transport is None:
            raise PeerGone
        self._pause_reading()
        await self._flush()
        wire = self._open_wire(exchange)
        self._pending = b""
        self._lent = True
        try:
            return await self.listener.loop.run_in_executor(self.listener.transfers, work, wire)
        finally:
            self._lent = False
            self._relay = None
            self._pending = bytes(wire.leftover)
            exchange.received_bytes += wire.received_bytes
            self._close_lost_socket()

    def _close_lost_socket(self) -> None:
        if self._transport is None and self._socket is not None and not self._lent:
            self._socket.close()

    async def _flush(self) -> None:
        """Wait until earlier answers have left, so that a thread may write."""
        transport = self._transport
        assert transport is not None
        if transport.get_write_buffer_size() == 0 or self._is_tls:
            return
        transport.set_write_buffer_limits(high=0)
        try:
            while transport.get_write_buffer_size():
                self._flushed = self.listener.loop.create_future()
                self._wait(self.listener.stall_timeout_s)
                await self._flushed
        finally:
            self._flushed = None
            self.deadline = math.inf
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    @property
    def _is_tls(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def _open_wire(self, exchange: Exchange) -> Wire:
        assert self._transport is not None
        listener = self.listener
        send_continue = exchange.head.expects_continue and not exchange.sent_continue
        if self._is_tls:
            self._relay = RelayWire(
                self._pending,
                send_continue=send_continue,
                stall_timeout_s=listener.stall_timeout_s,
                on_loop=listener.loop.call_soon_threadsafe,
                resume_reading=self._resume_reading,
                write=self._relay_write,
            )
            if self._ended:
                self._relay.end(broken=False)
            return self._relay
        if self._socket is None:
            original = self._transport.get_extra_info("socket")
            self._socket = socket.socket(fileno=os.dup(original.fileno()))
            self._socket.setblocking(False)
        return SocketWire(self._socket, self._pending, send_continue=send_continue, stall_timeout_s=listener.stall_timeout_s)

    def _relay_write(self, data: bytes) -> None:
        if self._transport is not None and self._relay is not None:
            self._transport.write(data)
            self._relay.set_writable(not self._writing_paused)

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self._ended:
            self._reading_paused = False
            self._transport.resume_reading()

    # --- ends

    def _wait(self, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s

    def timed_out(self) -> None:
        """The deadline passed."""
        self.deadline = math.inf
        if self._more is not None and not self._more.done():
            self._more.set_exception(stalled())
        elif self._exchange is None and not self._linger_until and (self._pending or self._head is not None):
            self._head = None
            self._refuse(stalled())
        elif self._is_still_sending():
            self.deadline = min(time.monotonic() + LINGER_IDLE_S, self._linger_until)
        else:
            self.abort()

    def _is_still_sending(self) -> bool:
        """Whether the last answer is on its way to a slow client."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return unsent and time.monotonic() < self._linger_until

    def drain(self) -> None:
        """Close as soon as the request in flight, if any, is answered."""
        idle = self._exchange is None and not self._pending and self._head is None and not self._linger_until
        if idle and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection now; a thread that has it finds it broken."""
        if self._socket is not None and self._lent:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already broken
        if self._transport is not None:
            self._transport.abort()
