"""The supervisor: locks the drives, settles what a crash left, starts the workers, replaces those that die, and ends with them.

Order of a start: lock folders, prepare the drives, bind the port, start workers, and announce readiness once all serve. SIGTERM and
SIGINT end it gracefully: workers finish what is in flight. SIGKILL is safe: the kernel kills the workers, and the
next start needs no repair by hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from forebay.drive import DEADLY_SIGNALS
from forebay.engine.opening import Layout, prepare
from forebay.engine.placement import Geometry
from forebay.engine.shared import SharedState
from forebay.errors import ConfigError, DriveError, ForebayError
from forebay.server.background import Background
from forebay.server.config import Config, warnings_of
from forebay.server.control import Channel, Message
from forebay.server.exclusive import FolderLocks, prepare_run_dir, remove_run_dir
from forebay.server.orders import DRAIN_S, LOG_FORMAT, Orders
from forebay.server.sockets import bind_listeners, close_all
from forebay.server.unix_socket import UnixListener, open_unix_listener

START_TIMEOUT_S = 60.0
RESTART_DELAY_S = 0.2  # doubled for each worker that died young, up to RESTART_DELAY_MAX_S
RESTART_DELAY_MAX_S = 10.0
YOUNG_S = 10.0
STOP_TIMEOUT_S = DRAIN_S + 10.0

_log = logging.getLogger("forebay.server")


class WorkerProcess:
    """A running worker, as the supervisor sees it."""

    def __init__(self, slot: int, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self.slot = slot
        self.process = process
        self.channel = channel
        self.started_s = time.monotonic()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()


class Supervisor:
    """One per server. Runs on its own event loop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._locks = FolderLocks()
        self._listeners: list[socket.socket] = []
        self._unix: UnixListener | None = None
        self._workers: dict[int, WorkerProcess] = {}
        self._stopping = asyncio.Event()
        self._failures = 0
        self._serving = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until a signal; returns the exit code. Raises ForebayError if it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        config = self._config
        try:
            self._run_dir = prepare_run_dir(config.run_dir, config.data_dirs, self._locks)
            self._locks.lock(config.data_dirs)
            self._shared_path = str(Path(self._run_dir) / "shared")
            shared = SharedState(self._shared_path)
            geometry = Geometry(config.set_size - config.parity_count, config.parity_count)
            self._layout: Layout = await loop.run_in_executor(None, prepare, config.data_dirs, geometry, shared)
            self._locks.lock(config.data_dirs)  # those that were made just now
            self._background = Background(config, self._layout, shared, self.worker_pids, self._lock_folder)
            self._listeners = bind_listeners(*config.address, config.workers)
            self._unix = self._listen_on_host()
            return await self._serve()
        finally:
            await self._shut_down()

    def _listen_on_host(self) -> UnixListener | None:
        """The UNIX socket. Raises ConfigError only for one that was asked for."""
        config = self._config
        host, port = self._listeners[0].getsockname()[:2]
        try:
            return open_unix_listener(config.unix_socket, (host, port), is_tls=config.tls_cert is not None)
        except ConfigError as error:
            if config.unix_socket is not None:
                raise
            _log.warning("clients on this host will use TCP: %s", error)
            return None

    async def _serve(self) -> int:
        host, port = self._listeners[0].getsockname()[:2]
        scheme = "https" if self._config.tls_cert else "http"
        _announce(f"forebay: {len(self._config.data_dirs)} drives, sets of {self._layout.data}+{self._layout.parity}, "
                  f"{self._config.workers} workers, listening on {scheme}://{_shown(host)}:{port}")  # fmt: skip
        for slot in range(self._config.workers):
            await self._start(slot)
        if not await self._all_ready():
            return 0 if self._stopping.is_set() else 1
        self._serving = True
        self._background.start()
        _announce("forebay: ready" if self._background.engine.ready() else "forebay: serving, but writes would fail; see "
                  "`forebay drive list`")  # fmt: skip
        await self._stopping.wait()
        return 0

    async def _all_ready(self) -> bool:
        """Wait until every worker serves; False if one died instead, or the server is being stopped."""
        everyone = asyncio.gather(*(worker.ready.wait() for worker in self._workers.values()))
        ends = [worker.ended.wait() for worker in self._workers.values()]
        others = [asyncio.ensure_future(each) for each in (self._stopping.wait(), *ends)]
        watched: list[asyncio.Future[Any]] = [everyone, *others]
        await asyncio.wait(watched, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        ready = everyone.done()
        for each in watched:
            each.cancel()
        try:
            await everyone
        except asyncio.CancelledError:
            pass
        if not ready and not self._stopping.is_set():
            _log.error("a worker did not start; its message is above")
            self._stopping.set()
        return ready

    # --- workers

    def worker_pids(self) -> set[int]:
        """The processes that may be writing to the drives now, the supervisor included."""
        return {os.getpid(), *(worker.process.pid for worker in self._workers.values())}

    def _lock_folder(self, path: str) -> None:
        self._locks.lock([path])

    async def _start(self, slot: int) -> None:
        ours, theirs = socket.socketpair()
        listener = self._listeners[slot]
        unix_fd = self._unix.sock.fileno() if self._unix is not None else None
        inherited = [theirs.fileno(), listener.fileno(), *([] if unix_fd is None else [unix_fd]), *self._locks.fds]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - fork and exec take about a millisecond
                [sys.executable, "-m", "forebay.server.worker", str(theirs.fileno())],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
            )
        finally:
            theirs.close()
        orders = Orders(
            slot=slot,
            parent_pid=os.getpid(),
            config=self._config,
            layout=self._layout,
            run_dir=self._run_dir,
            shared_path=self._shared_path,
            listen_fd=listener.fileno(),
            unix_fd=unix_fd,
        )
        ours.sendall(msgspec.json.encode(orders) + b"\n")
        ours.setblocking(False)
        channel = Channel(
            ours,
            on_statement=lambda message: self._told(slot, message),
            answer=self._answer,
            on_end=lambda: None,
        )
        await channel.open()
        worker = self._workers[slot] = WorkerProcess(slot, process, channel)
        pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._exited, worker, pidfd)

    def _told(self, slot: int, message: Message) -> None:
        if message.kind == "ready":
            self._workers[slot].ready.set()

    async def _answer(self, question: str, data: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, self._background.answer, question, data)

    def _exited(self, worker: WorkerProcess, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        code = worker.process.wait()
        worker.channel.close()
        worker.ended.set()
        if self._stopping.is_set():
            return
        _log.error("worker %d (pid %d) ended with %s", worker.slot, worker.process.pid, _shown_exit(code))
        if -code in DEADLY_SIGNALS:
            self._background.check_indexes()
        if self._serving or worker.ready.is_set():
            self._spawn_replacement(worker)

    def _spawn_replacement(self, dead: WorkerProcess) -> None:
        young = time.monotonic() - dead.started_s < YOUNG_S
        self._failures = self._failures + 1 if young else 0
        delay_s = min(RESTART_DELAY_S * 2**self._failures, RESTART_DELAY_MAX_S) if young else 0.0
        task = asyncio.get_running_loop().create_task(self._replace(dead, delay_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, dead: WorkerProcess, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if self._stopping.is_set():
            return
        del self._workers[dead.slot]
        await asyncio.get_running_loop().run_in_executor(None, self._background.collect_staging)
        await self._start(dead.slot)

    # --- the end

    async def _shut_down(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        running = [worker for worker in self._workers.values() if not worker.ended.is_set()]
        for worker in running:
            try:
                worker.channel.say("stop")
            except ConnectionError:
                worker.process.terminate()
        close_all(self._listeners)
        if self._unix is not None:
            self._unix.close()
        if running:
            ends = [asyncio.ensure_future(worker.ended.wait()) for worker in running]
            _, late = await asyncio.wait(ends, timeout=STOP_TIMEOUT_S)
            for worker in running if late else []:
                if not worker.ended.is_set():
                    _log.error("worker %d does not end and is killed", worker.slot)
                    worker.process.kill()
                    await worker.ended.wait()
        if hasattr(self, "_background"):
            await asyncio.get_running_loop().run_in_executor(None, self._background.close)
        if hasattr(self, "_run_dir"):
            remove_run_dir(self._run_dir, is_ours=self._config.run_dir is None)
        self._locks.close()


def _announce(line: str) -> None:
    print(line, flush=True)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shown_exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def run(config: Config) -> int:
    """Run a server until SIGTERM or SIGINT. Returns the exit code; prints errors that keep it from starting."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    _raise_file_limit()
    for warning in warnings_of(config):
        print(f"forebay: warning: {warning}", file=sys.stderr, flush=True)
    try:
        return asyncio.run(_run(config))
    except (ConfigError, DriveError) as error:
        print(f"forebay: {error}", file=sys.stderr, flush=True)
        return 2
    except ForebayError as error:
        print(f"forebay: {error}", file=sys.stderr, flush=True)
        return 1


def _raise_file_limit() -> None:
    """Connections, shards and locks are files: take as many as this user may have. The workers inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(config: Config) -> int:
    return await Supervisor(config).run()
