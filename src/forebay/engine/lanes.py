"""Threads that belong to a drive, and waiting for several of them with a time limit.

A drive that hangs must not hang the store. Every call that can block on a drive runs on one of its lanes, and whoever waits for the
drives of a set stops waiting at a deadline. A lane whose call never returns is abandoned: its thread is a daemon, and the drive gets
new lanes when it is admitted again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from forebay.errors import DriveFailed


class Abandoned(DriveFailed):
    """A call that was never made, as its drive was taken out, or opened again, while it waited. It says nothing new about the drive."""


class Gather:
    """Collects the outcomes of calls by position. `outcomes[p]` is the value returned or the exception raised."""

    def __init__(self, expected: int) -> None:
        """`expected` calls will report."""
        self.outcomes: dict[int, object] = {}
        self._missing = expected
        self._mutex = threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()
        self._callbacks: list[Callable[[], object]] = []
        if not expected:
            self._finished.release()

    def report(self, position: int, outcome: object) -> None:
        """Called once by each call."""
        with self._mutex:
            self.outcomes[position] = outcome
            self._missing -= 1
            if self._missing:
                return
            self._finished.release()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_finished(self, callback: Callable[[], object]) -> None:
        """Call `callback` once every call has reported, at once if they have; it must not block or raise."""
        with self._mutex:
            if self._missing:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float) -> dict[int, object]:
        """The outcomes so far, once all are there or the time is up."""
        if self._finished.acquire(timeout=timeout_s):
            self._finished.release()
        with self._mutex:
            return dict(self.outcomes)


class Lanes:
    """A few threads for one drive, started when first needed."""

    def __init__(self, name: str, threads: int) -> None:
        """`threads` calls may be at the drive at once; more wait in order."""
        self._name = name
        self._threads = threads
        self._queue: SimpleQueue[tuple[Gather, int, Callable[[], object]] | None] = SimpleQueue()
        self._started = False
        self._mutex = threading.Lock()
        self._since_s: dict[int, float] = {}  # thread -> when its call began
        self._ended: Exception | None = None

    def submit(self, gather: Gather, position: int, call: Callable[[], object]) -> None:
        """Have `call` made, its outcome reported to `gather`."""
        if not self._started:
            self._start()
        self._queue.put((gather, position, call))
        if self._ended is not None:  # perhaps no thread looks any more
            self._drain(self._ended)

    def close(self, error: Exception) -> None:
        """Let the threads end after what is queued; later calls get `error`."""
        self._ended = error
        for _ in range(self._threads):
            self._queue.put(None)

    def abandon(self, error: Exception) -> None:
        """Report `error` for every call that waits or comes later, and let the threads end."""
        self._ended = error
        self._drain(error)

    def _drain(self, error: Exception) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                break
            if job is not None:
                job[0].report(job[1], error)
        self.close(error)

    def busy_s(self) -> float:
        """How long the oldest call under way has taken so far; 0 if there is none."""
        began = list(self._since_s.values())
        return time.monotonic() - min(began) if began else 0.0

    def _start(self) -> None:
        with self._mutex:
            if self._started:
                return
            for i in range(self._threads):
                threading.Thread(target=self._run, args=(i,), name=f"{self._name}-{i}", daemon=True).start()
            self._started = True

    def _run(self, number: int) -> None:
        while (job := self._queue.get()) is not None:
            gather, position, call = job
            self._since_s[number] = time.monotonic()
            try:
                outcome: object = call()
            except Exception as e:
                outcome = e
            del self._since_s[number]
            gather.report(position, outcome)
            del job, gather, call, outcome  # a lane that waits must not keep buffers alive
