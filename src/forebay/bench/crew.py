"""The one way to start client processes, hold barriers, take a clock and count CPU on both sides.

A benchmark is a list of stretches. Between two barriers every client does one stretch; the crew takes the clock when
it releases the first barrier and when the last client arrives at the second, so a stretch lasts as long as its
slowest client. Client CPU is what the clients report of themselves; server CPU is read from /proc for the server's
process tree when it runs on this host.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from forebay.bench.errors import BenchmarkFailed

STRETCH_TIMEOUT_S = 3600.0
STDERR_TAIL_BYTES = 4000


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two barriers."""

    name: str
    start_s: float  # CLOCK_MONOTONIC, when the clients were released
    end_s: float  # when the last client had arrived
    client_cpu_s: float
    server_cpu_s: float | None  # None: the server is not on this host, or unknown
    reports: list[dict[str, Any]]  # one a client, in their order

    @property
    def seconds(self) -> float:
        """How long the slowest client took."""
        return self.end_s - self.start_s


class _Client:
    def __init__(self, module: str, environment: dict[str, str] | None) -> None:
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `Crew.__exit__`
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self.pending = b""
        self.cpu_s = 0.0  # at the last barrier
        self.progress = 0.0

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")
        self.process.stdin.flush()

    def last_words(self) -> str:
        size = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        return self.stderr.read().decode(errors="replace").strip()


class Crew:
    """Client processes of one benchmark. Use as a context manager: leaving it ends every process that it started.

    `module` is run by each client (see `seat.client_main`); `jobs` holds what each is to do (JSON). `server_cpu`
    returns the server's CPU seconds so far, or None. `on_progress` gets the sum of what the clients report within the
    current stretch.
    """

    def __init__(
        self,
        module: str,
        jobs: Sequence[dict[str, Any]],
        *,
        environment: dict[str, str] | None = None,
        server_cpu: Callable[[], float | None] = lambda: None,
        on_progress: Callable[[float], None] = lambda _done: None,
    ) -> None:
        self._module = module
        self._server_cpu = server_cpu
        self._on_progress = on_progress
        self._clients: list[_Client] = []
        self._environment = environment
        self._jobs = jobs
        self._arrived: str | None = None  # the barrier at which all clients stand

    def __enter__(self) -> Self:
        """Start every client and give it its job."""
        try:
            for index, job in enumerate(self._jobs):
                client = _Client(self._module, self._environment)
                self._clients.append(client)
                client.send({"index": index, "count": len(self._jobs), "job": job})
        except BrokenPipeError:
            self._fail(client, "ended before it took its job")
        except BaseException:
            self._end_processes()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let the clients end by themselves after a good run, end them after a bad one."""
        try:
            if kind is None:
                self.arrive("end")
                self._release("end")
                for client in self._clients:
                    if client.process.wait(timeout=60):
                        self._fail(client, f"ended with exit code {client.process.returncode}")
        finally:
            self._end_processes()

    def stretch(self, start: str, end: str, timeout_s: float = STRETCH_TIMEOUT_S) -> Stretch:
        """Release the clients from the barrier `start` and wait until all stand at `end`, which stays closed.

        The next stretch starts at `end`. The first call also waits until all have come to `start`. Raises
        BenchmarkFailed with the client's own words when one fails, dies, or takes longer than `timeout_s`.
        """
        self.arrive(start, timeout_s)
        cpu_before_s = [client.cpu_s for client in self._clients]
        server_before_s = self._server_cpu()
        for client in self._clients:
            client.progress = 0.0
        start_s = time.monotonic()
        self._release(start)
        reports, end_s = self._gather(end, timeout_s)
        server_after_s = self._server_cpu()
        self._arrived = end
        return Stretch(
            name=start,
            start_s=start_s,
            end_s=end_s,
            client_cpu_s=sum(client.cpu_s for client in self._clients) - sum(cpu_before_s),
            server_cpu_s=None if server_before_s is None or server_after_s is None else server_after_s - server_before_s,
            reports=reports,
        )

    def arrive(self, name: str, timeout_s: float = STRETCH_TIMEOUT_S) -> None:
        """Wait until every client stands at the barrier `name`: what they prepare before it is not measured."""
        if self._arrived is None:
            self._gather(name, timeout_s)
            self._arrived = name
        assert self._arrived == name, f"the clients stand at {self._arrived}, not at {name}"

    def _release(self, name: str) -> None:
        self._arrived = None
        for client in self._clients:
            try:
                client.send({"go": name})
            except BrokenPipeError:
                self._fail(client, f"ended at the barrier {name}")

    def _gather(self, name: str, timeout_s: float) -> tuple[list[dict[str, Any]], float]:
        deadline_s = time.monotonic() + timeout_s
        reports: dict[int, dict[str, Any]] = {}
        end_s = 0.0
        while len(reports) < len(self._clients):
            for client, message in self._messages(deadline_s, name):
                if "progress" in message:
                    client.progress = message["progress"]
                    self._on_progress(sum(each.progress for each in self._clients))
                    continue
                assert message["at"] == name, f"a client stands at {message['at']}, the others at {name}"
                reports[self._clients.index(client)] = message["report"]
                client.cpu_s = message["cpu_s"]
                end_s = max(end_s, message["clock_s"])
        return [reports[index] for index in range(len(self._clients))], end_s

    def _messages(self, deadline_s: float, name: str) -> list[tuple[_Client, dict[str, Any]]]:
        """The messages that have come in, waiting for at least one."""
        by_file = {client.process.stdout.fileno(): client for client in self._clients if client.process.stdout is not None}
        poll = select.poll()  # not select: a thousand clients have file numbers beyond its reach
        for file in by_file:
            poll.register(file, select.POLLIN)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not ready:
            raise BenchmarkFailed(f"{self._module}: the clients did not reach {name!r} in time")
        messages = []
        for file, _event in ready:
            client = by_file[file]
            data = os.read(file, 1 << 16)
            if not data:
                self._fail(client, f"ended before it reached {name!r}")
            *lines, client.pending = (client.pending + data).split(b"\n")
            messages += [(client, msgspec.json.decode(line)) for line in lines]
        return messages

    def _fail(self, client: _Client, what: str) -> None:
        try:
            client.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed its pipe and lives on; ended below
            pass
        words = client.last_words() or "it left no message"
        self._end_processes()
        raise BenchmarkFailed(f"{self._module}, client {self._clients.index(client)}, {what}:\n{words}")

    def _end_processes(self) -> None:
        for client in self._clients:
            if client.process.poll() is None:
                client.process.kill()
        for client in self._clients:
            client.process.wait()
            for pipe in (client.process.stdin, client.process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # unsent bytes for a process that has ended
                        pass
            if not client.stderr.closed:
                client.stderr.close()
