"""A worker's wire in a thread, with a small application that shows what the wire delivers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import uvloop

from forebay.errors import StoreError
from forebay.server.connection import Listener
from forebay.server.exchange import Answer, Exchange
from forebay.server.head import BadHead
from forebay.server.message import Response, Stream
from forebay.server.transfer import Wire, receive_body


class LengthBody:
    """A body of known length, as the decoder of a plain request."""

    def __init__(self, length: int) -> None:
        self.payload_size = length
        self.trailers: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        return self.payload_size == 0

    def feed(self, data: bytes) -> int:
        raise AssertionError("there is no framing")

    def payload_received(self, view: memoryview) -> None:
        self.payload_size -= len(view)


class ListSink:
    """Collects payload through a small buffer."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.space = memoryview(bytearray(1 << 16))
        self.data = bytearray()
        self.delay_s = delay_s

    def buffer(self) -> memoryview:
        time.sleep(self.delay_s)
        return self.space

    def filled(self, count: int) -> None:
        self.data += self.space[:count]


class EchoApp:
    """GET /n streams n bytes; PUT answers with what it got; /refuse never reads; /fail raises."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int, int]] = []
        self.sink_delay_s = 0.0

    def handle(self, exchange: Exchange) -> Answer:
        head = exchange.head
        path = head.target.decode()
        if path == "/refuse":
            raise StoreError("AccessDenied")
        if path == "/forge":
            return Response(200, {"X-Bad": "a\r\nSet-Cookie: b"}, b"x")
        if path == "/late":
            return self.late()
        if head.method in ("GET", "HEAD"):
            return self.get(path)
        body = LengthBody(head.content_length or 0)
        if path == "/document":
            return self.document(exchange, body)
        if exchange.body_is_here:
            return self.answer(exchange.take_body(body))
        return self.large(exchange, body)

    async def late(self) -> Response:
        await asyncio.sleep(0.05)
        return Response(200, body=b"late")

    def get(self, path: str) -> Response:
        if path.startswith("/stream/"):
            parts = path.split("/")
            return Response(200, body=Stream(int(parts[2]), lambda: chunks(int(parts[3]))))
        return Response(200, {"X-Path": path}, b"hello")

    def answer(self, data: bytes) -> Response:
        return Response(200, body=b"%d:" % len(data) + data[:32])

    async def document(self, exchange: Exchange, body: LengthBody) -> Response:
        return self.answer(await exchange.read_body(body, 1 << 20))

    async def large(self, exchange: Exchange, body: LengthBody) -> Response:
        sink = ListSink(self.sink_delay_s)

        def work(wire: Wire) -> bytes:
            receive_body(wire, body, sink, lambda view: None)
            return bytes(sink.data)

        return self.answer(await exchange.in_transfer(work))

    def failed(self, exchange: Exchange, error: Exception) -> Response:
        if isinstance(error, StoreError):
            return Response(403 if error.code == "AccessDenied" else 400, body=error.code.encode())
        return Response(500, body=type(error).__name__.encode())

    def refused(self, error: BadHead | StoreError, request_id: str, host_id: str) -> Response:
        return Response(getattr(error, "status", 503), body=error.code.encode())

    def completed(self, exchange: Exchange, response: Response, sent_bytes: int) -> None:
        self.done.append((exchange.head.target.decode(), response.status, sent_bytes))


def chunks(length: int) -> Iterator[memoryview]:
    if length < 0:
        raise StoreError("AccessDenied")
    while length > 0:
        size = min(length, 100_000)
        yield memoryview(b"s" * size)
        length -= size


class WireServer:
    """Runs a Listener on a free loopback port."""

    def __init__(self, make_app: Callable[[], EchoApp] = EchoApp, ssl: object = None, **limits: float) -> None:
        self.app = make_app()
        self.limits = limits
        self.ssl = ssl
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: uvloop.run(self.main()))
        self.errors: list[dict[str, object]] = []

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.loop, self.stop = loop, asyncio.Event()
        with ThreadPoolExecutor(4) as pool:
            self.listener = Listener(self.app, loop, pool, **self.limits)
            server = await loop.create_server(self.listener.connection, "127.0.0.1", 0, ssl=self.ssl)
            self.port = server.sockets[0].getsockname()[1]
            self.ready.set()
            while not self.stop.is_set():
                self.listener.sweep()
                try:
                    await asyncio.wait_for(self.stop.wait(), 0.05)
                except TimeoutError:
                    pass
            server.close()
            await self.listener.drain(1.0)

    def __enter__(self) -> WireServer:
        self.thread.start()
        assert self.ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.loop.call_soon_threadsafe(self.stop.set)
        except RuntimeError:
            pass  # the test stopped it: the loop is closed
        self.thread.join(10)
        assert not self.thread.is_alive()
        assert not self.errors, self.errors

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client


class Answers:
    """Reads answers from a socket."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.data = b""

    def more(self) -> bool:
        piece = self.client.recv(1 << 16)
        self.data += piece
        return bool(piece)

    def head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self.data:
            assert self.more(), f"closed within a head: {self.data!r}"
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:])
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in pairs}

    def next(self, bodyless: bool = False) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.head()
        length = 0 if bodyless or status in (100, 204, 304) else int(headers["content-length"])
        while len(self.data) < length:
            assert self.more(), "closed within a body"
        body, self.data = self.data[:length], self.data[length:]
        return status, headers, body

    def closed(self) -> bool:
        """Whether the server ends the connection, with nothing more before that."""
        return not self.data and not self.more()
