"""What a client process of a benchmark sees: its job, barriers, and a line back to the crew that started it.

The crew (see `crew`) starts every client with `python -m MODULE` and talks to it in JSON lines over the pipes of
standard input and output. Every message of a client carries its clock (CLOCK_MONOTONIC, one for the whole machine)
and the CPU seconds that it has used with its children, so that no benchmark counts CPU in a way of its own. Standard
output belongs to the protocol: whatever a client library prints goes to standard error.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from forebay.bench.errors import BenchmarkFailed

PROGRESS_INTERVAL_S = 0.1


def cpu_seconds() -> float:
    """User and system time of this process, its threads, and its children that have been waited for."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Seat:
    """A client's place in the crew. Not for use by several threads at once."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands = commands
        self._answers = answers
        self._progress_due_s = 0.0
        first: dict[str, Any] = msgspec.json.decode(self._next_line())
        self.index: int = first["index"]
        self.count: int = first["count"]
        self.job: dict[str, Any] = first["job"]

    def barrier(self, name: str, report: dict[str, Any] | None = None) -> float:
        """Wait until every client of the crew has arrived at `name` and the crew lets them go.

        `report` is what this client has to say about the stretch that ends here. Returns the clock just after the
        release.
        """
        self._send({"at": name, "report": report or {}})
        answer = msgspec.json.decode(self._next_line())
        assert answer == {"go": name}, f"the crew answered {answer!r} at the barrier {name}"
        return time.monotonic()

    def progress(self, done: float) -> None:
        """Say how far this client is within the stretch (bytes, operations.

        What the crew was told). Sent at most 10 times a second.
        """
        now_s = time.monotonic()
        if now_s >= self._progress_due_s:
            self._progress_due_s = now_s + PROGRESS_INTERVAL_S
            self._send({"progress": done})

    def _send(self, message: dict[str, Any]) -> None:
        message |= {"clock_s": time.monotonic(), "cpu_s": cpu_seconds()}
        self._answers.write(msgspec.json.encode(message) + b"\n")
        self._answers.flush()

    def _next_line(self) -> bytes:
        line = self._commands.readline()
        if not line:  # the crew is gone: nobody would read a result
            sys.exit("the benchmark that started this client has ended")
        return line


def client_main(work: Callable[[Seat], dict[str, Any]]) -> None:
    """Run `work` as a client process: call this under `if __name__ == "__main__"` of a module that a crew starts.

    `work` returns its report about the last stretch, which ends at the barrier `end`.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    seat = Seat(sys.stdin.buffer, answers)
    try:
        seat.barrier("end", work(seat))
    except BenchmarkFailed as error:
        sys.exit(str(error))
