"""What every operation has at hand: the engine, the configuration, and ways to wait without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from forebay.engine.committer import Op
from forebay.engine.engine import Engine
from forebay.errors import StoreError
from forebay.s3.request import Request
from forebay.s3.routing import Operation
from forebay.s3.sigv4 import Verified
from forebay.s3.xml_responses import Owner
from forebay.server.config import Config
from forebay.server.exchange import Exchange

T = TypeVar("T")


class Identity(NamedTuple):
    """Who sent a request. `is_root`: may use the admin API and every bucket."""

    access_key: str
    is_root: bool

    @property
    def is_anonymous(self) -> bool:
        """The request was not signed."""
        return not self.access_key


ANONYMOUS = Identity("", False)
"""Of a request without a signature; no credential has an empty access key."""


class Call:
    """One authenticated and authorised S3 request."""

    __slots__ = ("bucket", "exchange", "headers", "identity", "key", "operation", "params", "request", "verified")

    def __init__(self, exchange: Exchange, request: Request, verified: Verified, identity: Identity, operation: Operation) -> None:
        self.exchange = exchange
        self.request = request
        self.verified = verified
        self.identity = identity
        self.operation = operation
        self.headers = request.headers
        self.params = request.params
        self.bucket = request.bucket or ""
        self.key = request.key.encode() if request.key else b""

    @property
    def version_id(self) -> str | None:
        """The version asked for. Raises StoreError InvalidArgument for an empty one."""
        version_id = self.params.get("versionId")
        if version_id == "":
            raise StoreError("InvalidArgument", "Version id cannot be the empty string", ArgumentName="versionId")
        return version_id


class Services:
    """One per worker; lives on the loop's thread."""

    engine: Engine  # set before the first request: opening it needs `notify`

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, blocking: ThreadPoolExecutor) -> None:
        self.config = config
        self.accounts = {owner.id: owner.display_name for owner in (owner_of(pair.access_key) for pair in config.credentials)}
        self._loop = loop
        self._blocking = blocking

    async def commit(self, submit: Callable[[Callable[[Op[T]], None]], Op[T]]) -> T:
        """Wait for an engine request: `submit(on_done)` hands it in. Raises its StoreError."""
        future: asyncio.Future[T] = self._loop.create_future()
        submit(partial(_settle, future))
        return await future

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work that needs no connection."""
        return await self._loop.run_in_executor(self._blocking, work)

    def notify(self, ops: list[Op[Any]]) -> None:
        """The engine's `notify`: called in a committing thread, it tells the loop."""
        self._loop.call_soon_threadsafe(_done, list(ops))


def _done(ops: list[Op[Any]]) -> None:
    for op in ops:
        if op.on_done is not None:
            op.on_done(op)


def _settle(future: asyncio.Future[T], op: Op[T]) -> None:
    if future.done():
        return
    if op.error is not None:
        future.set_exception(op.error)
    else:
        future.set_result(op.result)  # type: ignore[arg-type]


def owner_of(access_key: str) -> Owner:
    """The owner that documents show for an access key: a stable id of the form that S3 has."""
    return Owner(sha256(b"forebay owner " + access_key.encode()).hexdigest(), access_key)
