"""One worker: an event loop, the engine over the drives, and a listening socket of its own.

Started by the supervisor as a fresh interpreter: `python -m forebay.server.worker FD`, where FD is its end of the control line. The first
message there says all the rest, so that no secret is in an argument list or the environment.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

from forebay.engine.opening import open_engine
from forebay.engine.shared import SharedState
from forebay.errors import ForebayError, StoreError
from forebay.server.admin import Admin
from forebay.server.config import Config
from forebay.server.connection import SWEEP_S, Listener
from forebay.server.control import Channel, Message, die_with_parent
from forebay.server.gateway import Gateway, Identities
from forebay.server.metrics import Counters
from forebay.server.orders import DRAIN_S, LOG_FORMAT, Orders, receive_orders
from forebay.server.services import Services

TRANSFERS_MAX = 64  # threads that move large bodies; more wait their turn, and their sockets are not read
BLOCKING_MAX = 16  # threads for other blocking calls

TLS_CLOSE_S = 2.0  # clients that just drop the connection are not waited for longer

_log = logging.getLogger("forebay.server")


class Worker:
    """The state of a worker process, on its loop."""

    def __init__(self, orders: Orders, control: socket.socket) -> None:
        self._orders = orders
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._channel = Channel(control, on_statement=self._told, answer=self._asked, on_end=self._orphaned)

    async def run(self) -> None:
        """Serve until told to stop, then finish what is in flight."""
        orders, config = self._orders, self._orders.config
        await self._channel.open()
        self._loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        with (
            ThreadPoolExecutor(TRANSFERS_MAX, "transfer") as transfers,
            ThreadPoolExecutor(BLOCKING_MAX, "blocking") as blocking,
        ):
            services = Services(config, self._loop, blocking)
            services.engine = engine = open_engine(
                orders.layout,
                SharedState(orders.shared_path),
                notify=services.notify,
                arena_bytes=config.buffer_bytes // config.workers,
            )
            counters = Counters(orders.run_dir, orders.slot)
            identities = Identities(config)
            admin = Admin(services, orders.run_dir, identities.identify, self._channel.ask)
            listener = Listener(Gateway(services, identities, admin, counters), self._loop, transfers)
            sock = socket.socket(fileno=orders.listen_fd)
            tls = _tls(config)
            server = await self._loop.create_server(
                listener.connection, sock=sock, ssl=tls, ssl_shutdown_timeout=TLS_CLOSE_S if tls else None
            )
            servers = [server]
            if orders.unix_fd is not None:
                shared = socket.socket(fileno=orders.unix_fd)
                servers.append(await self._loop.create_unix_server(listener.connection, sock=shared))
            self._channel.say("ready")
            await self._serve(listener, counters)
            for each in servers:
                each.close()
            await listener.drain(DRAIN_S)
            await self._loop.run_in_executor(None, engine.close)
        self._channel.close()

    async def _serve(self, listener: Listener, counters: Counters) -> None:
        while not self._stopping.is_set():
            listener.sweep()
            counters.connections(len(listener.connections))
            try:
                await asyncio.wait_for(self._stopping.wait(), SWEEP_S)
            except TimeoutError:
                pass

    def _told(self, message: Message) -> None:
        if message.kind == "stop":
            self._stopping.set()

    async def _asked(self, question: str, data: Any) -> Any:
        raise StoreError("NotImplemented", f"a worker does not answer {question!r}")

    def _orphaned(self) -> None:
        self._stopping.set()


def _tls(config: Config) -> ssl.SSLContext | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.tls_cert, config.tls_key)
    return context


def main() -> int:
    """The entry point of a worker process."""
    control = socket.socket(fileno=int(sys.argv[1]))
    orders = receive_orders(control)
    die_with_parent(orders.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the supervisor decides
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    control.setblocking(False)
    try:
        uvloop.run(_run(orders, control))
    except (ForebayError, ConnectionError) as error:
        _log.error("worker %d: %s", orders.slot, error)
        return 1
    return 0


async def _run(orders: Orders, control: socket.socket) -> None:
    await Worker(orders, control).run()


if __name__ == "__main__":
    sys.exit(main())
