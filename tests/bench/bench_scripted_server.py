"""An HTTP server on loopback that answers as a test says, byte for byte."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from forebay.bench.wire import Endpoint

Script = Callable[[bytes, bytes], bytes | None]


class ScriptedServer:
    """`script(head, body)` returns the whole answer, or None to close the connection instead. Requests are kept."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.heads: list[bytes] = []
        self.connections = 0
        port = self._listener.getsockname()[1]
        self.endpoint = Endpoint(host="127.0.0.1", port=port, access_key="AKID", secret_key="secret")

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._converse(connection)
            except OSError:  # a client goes away at the first wrong answer
                pass

    def _converse(self, connection: socket.socket) -> None:
        received = b""
        while True:
            while b"\r\n\r\n" not in received:
                data = connection.recv(1 << 16)
                if not data:
                    return
                received += data
            head, _, received = received.partition(b"\r\n\r\n")
            length = int(found[1]) if (found := re.search(rb"content-length:(\d+)", head)) else 0
            while len(received) < length:
                received += connection.recv(1 << 16)
            body, received = received[:length], received[length:]
            self.heads.append(head)
            answer = self._script(head, body)
            if answer is None:
                return
            connection.sendall(answer)
            if b"Connection: close" in answer:
                return


def answer(body: bytes = b"", status: str = "200 OK", length: int | None = None, extra: str = "") -> bytes:
    """An answer; `length` lies about its body."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n{extra}\r\n".encode() + body
