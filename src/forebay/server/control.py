"""The line between the supervisor and a worker: messages as JSON lines over a socket pair, in both directions.

A message with `ask` is a question and is answered by one with the same `id`, which has `data` or `error`. Either end sees
the other's death as the end of the stream.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec

from forebay.errors import StoreError

_log = logging.getLogger("forebay.server")

MESSAGE_BYTES_MAX = 4 << 20  # the report on hundreds of drives
_PR_SET_PDEATHSIG = 1


class Message(msgspec.Struct, omit_defaults=True):
    """One line. `kind` is for statements; questions have `ask`, answers have `id` and no `ask`."""

    kind: str = ""
    id: int = 0
    ask: str = ""
    data: Any = None
    error: dict[str, str] | None = None  # {"code": …, "message": …}


Answerer = Callable[[str, Any], Awaitable[Any]]


class Channel:
    """One end of the line. `ask` raises StoreError as the other end's answerer did, ConnectionError if it is gone."""

    def __init__(
        self,
        end: socket.socket,
        *,
        on_statement: Callable[[Message], None],
        answer: Answerer,
        on_end: Callable[[], None],
    ) -> None:
        self._end = end
        self._on_statement = on_statement
        self._answer = answer
        self._on_end = on_end
        self._ids = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start listening to the other end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._end, limit=MESSAGE_BYTES_MAX)
        self._spawn(self._listen(reader))

    def say(self, kind: str, data: Any = None) -> None:
        """Send a statement; lost if the other end is gone."""
        self._send(Message(kind=kind, data=data))

    async def ask(self, question: str, data: Any = None) -> Any:
        """Send a question and wait for its answer."""
        number = next(self._ids)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(Message(id=number, ask=question, data=data))
        try:
            return await future
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        """Close this end."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: Message) -> None:
        if self._writer is None or self._writer.is_closing():
            raise ConnectionError("the other process is gone")
        self._writer.write(msgspec.json.encode(message) + b"\n")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._take(msgspec.json.decode(line, type=Message))
        except (ConnectionError, msgspec.DecodeError):
            pass  # a line cut off by the other end's death
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionError("the other process is gone"))
        self._on_end()

    def _take(self, message: Message) -> None:
        if message.ask:
            self._spawn(self._reply(message))
        elif message.kind:
            self._on_statement(message)
        elif (future := self._asked.get(message.id)) is not None and not future.done():
            if message.error is not None:
                future.set_exception(StoreError(message.error["code"], message.error["message"]))
            else:
                future.set_result(message.data)

    async def _reply(self, question: Message) -> None:
        try:
            reply = Message(id=question.id, data=await self._answer(question.ask, question.data))
        except StoreError as error:
            reply = Message(id=question.id, error={"code": error.code, "message": error.message or error.code})
        except Exception as error:  # the asker must not wait for ever
            _log.exception("answering %r failed in an unforeseen way", question.ask)
            reply = Message(id=question.id, error={"code": "InternalError", "message": f"{type(error).__name__}: {error}"})
        self._send(reply)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the supervisor dies: every state on the drives survives kill -9 anyway."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)
