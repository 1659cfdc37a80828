"""Large bodies, moved by a thread: the socket is lent to it by the event loop and comes back with what is left over.

Why threads: receiving in a thread straight into the engine's buffers costs a third less CPU than through the loop, and
while a thread waits for a buffer the socket is not read, so TCP slows the client down instead of memory filling up.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.errors import StoreError
from forebay.s3.chunked import Body, incomplete
from forebay.server.message import CONTINUE, Stream

STALL_TIMEOUT_S = 60.0  # a peer that moves no byte for so long has lost its transfer
PEER_BYTES_PER_S_MIN = 16 << 10  # a slower one, averaged over the transfer, holds buffers that others need
RECEIVE_BYTES_MAX = 1 << 20  # per system call: hashed while still in the cache
FRAMING_BYTES_MAX = 4096  # chunk heads and trailers are asked for in such pieces


class PeerGone(Exception):  # noqa: N818 - not our error: the client closed or broke the connection
    """The connection ended; nobody is there to answer."""


class Wire(Protocol):
    """A connection on loan to a thread. Methods may raise PeerGone, and StoreError RequestTimeout after a stall."""

    received_bytes: int  # body bytes taken, framing included

    @property
    def leftover(self) -> memoryview:
        """Received but not yet taken; what remains at the end belongs to the next request."""

    def recv_into(self, view: memoryview) -> int:
        """Take between 1 and `len(view)` bytes; 0 if the peer sends no more."""

    def recv(self, size_bytes: int) -> bytes:
        """Take at most `size_bytes`; b"" if the peer sends no more."""

    def give_back(self, data: memoryview) -> None:
        """Return bytes that `recv` took too many."""

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send all of `buffers`; they are free again when it returns."""


class Sink(Protocol):
    """Where payload goes. `buffer` returns writable space (it may wait for it), `filled` says how much of it is used.

    An engine's writer is one.
    """

    def buffer(self) -> memoryview:
        """At least one byte of space, the same until `filled` is called."""

    def filled(self, count: int) -> None:
        """The first `count` bytes of the space are payload."""


def receive_body(wire: Wire, body: Body, sink: Sink, observe: Callable[[memoryview], None]) -> int:
    """Receive a whole body into `sink`, decoding its framing; `observe` sees each run of payload while it is in cache.

    Returns the payload's length. Raises StoreError (from the decoder and for stalls) and PeerGone.
    """
    payload_bytes = 0
    while not body.finished:
        if body.payload_size:
            space = sink.buffer()
            view = space[: min(body.payload_size, RECEIVE_BYTES_MAX)]
            count = wire.recv_into(view)
            if count == 0:
                raise incomplete()
            body.payload_received(view[:count])
            observe(view[:count])
            sink.filled(count)
            payload_bytes += count
        else:
            feed_framing(wire, body)
    return payload_bytes


def feed_framing(wire: Wire, body: Body) -> None:
    """Hand the decoder the framing bytes that it waits for."""
    data = wire.recv(FRAMING_BYTES_MAX)
    if not data:
        raise incomplete()
    taken = body.feed(data)
    if taken < len(data):
        wire.give_back(memoryview(data)[taken:])


class BrokenStream(Exception):  # noqa: N818 - what happened to the answer
    """A streamed answer ended early, after its head was sent."""


def send_stream(wire: Wire, head: bytes, stream: Stream) -> None:
    """Send a streamed answer, in a transfer thread.

    Raises BrokenStream, PeerGone, and whatever the stream raises before its first chunk, when nothing has been sent.
    """
    chunks = stream.chunks()
    try:
        first = next(chunks)
        sent = len(first)
        try:
            wire.send([head, first])
            for chunk in chunks:
                sent += len(chunk)
                wire.send([chunk])
        except PeerGone:
            raise
        except Exception as error:
            raise BrokenStream from error
        if sent != stream.length:
            raise BrokenStream(f"{sent} of {stream.length} bytes were read")
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


class SocketWire:
    """A plain TCP socket in non-blocking mode, read and written by the thread itself."""

    def __init__(self, sock: socket.socket, leftover: bytes, *, send_continue: bool, stall_timeout_s: float) -> None:
        self.received_bytes = 0
        self._leftover = memoryview(leftover)
        self._sock = sock
        self._send_continue = send_continue
        self._stall_timeout_s = stall_timeout_s
        self._waited_s = 0.0  # for the peer; waiting for our own drives does not count
        self._moved_bytes = 0
        self._poll = select.poll()

    @property
    def leftover(self) -> memoryview:
        """See Wire."""
        return self._leftover

    def recv_into(self, view: memoryview) -> int:
        """See Wire."""
        if self._leftover:
            count = min(len(view), len(self._leftover))
            view[:count] = self._leftover[:count]
            self._leftover = self._leftover[count:]
        else:
            count = self._recv_into(view)
        self.received_bytes += count
        return count

    def recv(self, size_bytes: int) -> bytes:
        """See Wire."""
        if self._leftover:
            data = bytes(self._leftover[:size_bytes])
            self._leftover = self._leftover[len(data) :]
        else:
            buffer = bytearray(size_bytes)
            data = bytes(memoryview(buffer)[: self._recv_into(memoryview(buffer))])
        self.received_bytes += len(data)
        return data

    def give_back(self, data: memoryview) -> None:
        """See Wire."""
        self._leftover = memoryview(bytes(data) + bytes(self._leftover))
        self.received_bytes -= len(data)

    def _recv_into(self, view: memoryview) -> int:
        if self._send_continue:
            self._send_continue = False
            self.send([CONTINUE])
        while True:
            try:
                count = self._sock.recv_into(view)
                self._moved_bytes += count
                return count
            except BlockingIOError:
                self._wait(select.POLLIN)
            except OSError as error:
                raise PeerGone from error

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """See Wire."""
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while views:
            try:
                sent = self._sock.sendmsg(views)
            except BlockingIOError:
                self._wait(select.POLLOUT)
                continue
            except OSError as error:
                raise PeerGone from error
            self._moved_bytes += sent
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _wait(self, event: int) -> None:
        """Until the socket is ready: at most the stall time, and less for a peer that was slow all along."""
        patience_s = self._stall_timeout_s + self._moved_bytes / PEER_BYTES_PER_S_MIN - self._waited_s
        self._poll.register(self._sock, event)
        before_s = time.monotonic()
        if not self._poll.poll(max(0, int(min(patience_s, self._stall_timeout_s) * 1000))):
            raise stalled()
        self._waited_s += time.monotonic() - before_s


def stalled() -> StoreError:
    """The answer to a client that stopped sending or reading."""
    return StoreError("RequestTimeout")


class RelayWire:
    """A connection whose bytes only the event loop can read and write (TLS): the loop relays them to the thread.

    The loop calls `deliver`, `end` and `set_writable`; it is asked through `on_loop` to run `resume_reading` and
    `write`. One delivery is asked for at a time and one write is outstanding at a time, so memory stays bounded.
    """

    def __init__(
        self,
        leftover: bytes,
        *,
        send_continue: bool,
        stall_timeout_s: float,
        on_loop: Callable[..., object],
        resume_reading: Callable[[], None],
        write: Callable[[bytes], None],
    ) -> None:
        self.received_bytes = 0
        self._chunks: deque[memoryview] = deque([memoryview(leftover)] if leftover else [])
        self._condition = threading.Condition()
        self._ended = False
        self._broken = False
        self._writable = True
        self._send_continue = send_continue
        self._stall_s = stall_timeout_s
        self._on_loop = on_loop
        self._resume_reading = resume_reading
        self._write = write

    # --- called on the loop

    def deliver(self, data: bytes) -> None:
        """Bytes arrived; the loop has paused reading."""
        with self._condition:
            self._chunks.append(memoryview(data))
            self._condition.notify_all()

    def end(self, *, broken: bool) -> None:
        """The peer sends no more; `broken`: the connection is gone altogether."""
        with self._condition:
            self._ended = True
            self._broken = self._broken or broken
            self._condition.notify_all()

    def set_writable(self, writable: bool) -> None:
        """The transport's buffer is above or below its limit."""
        with self._condition:
            self._writable = writable
            self._condition.notify_all()

    # --- called in the thread

    @property
    def leftover(self) -> memoryview:
        """Everything that arrived and was not taken."""
        return memoryview(b"".join(self._chunks))

    def recv_into(self, view: memoryview) -> int:
        """See Wire."""
        data = self.recv(len(view))
        view[: len(data)] = data
        return len(data)

    def recv(self, size_bytes: int) -> bytes:
        """See Wire."""
        if self._send_continue:
            self._send_continue = False
            self.send([CONTINUE])
        with self._condition:
            if not self._chunks and not self._ended:
                self._on_loop(self._resume_reading)
                if not self._condition.wait_for(lambda: self._chunks or self._ended, self._stall_s):
                    raise stalled()
            if self._broken:
                raise PeerGone
            if not self._chunks:
                return b""
            chunk = self._chunks.popleft()
            if len(chunk) > size_bytes:
                self._chunks.appendleft(chunk[size_bytes:])
        data = bytes(chunk[:size_bytes])
        self.received_bytes += len(data)
        return data

    def give_back(self, data: memoryview) -> None:
        """See Wire."""
        with self._condition:
            self._chunks.appendleft(memoryview(bytes(data)))
        self.received_bytes -= len(data)

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """See Wire. The bytes are copied, as the loop sends them later."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._writable or self._broken, self._stall_s):
                raise stalled()
            if self._broken:
                raise PeerGone
            self._writable = False  # until the loop has taken these bytes and says so
        self._on_loop(self._write, b"".join(buffers))
