"""Holding background work to a rate, and stopping it."""

from __future__ import annotations

import threading
import time

BURST_S = 0.1  # work may run ahead of its rate by so much


class Stopping(Exception):  # noqa: N818 - not an error of the program
    """The background work is told to end."""


class Pace:
    """At most `bytes_per_s` (0: no limit), until `stop` is set."""

    def __init__(self, bytes_per_s: float, stop: threading.Event) -> None:
        """Nothing was done yet."""
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._paid_until_s = time.monotonic()

    def spend(self, size_bytes: int) -> None:
        """So many bytes were moved: wait until that is within the rate. Raises Stopping."""
        self.check()
        if not self._bytes_per_s:
            return
        now_s = time.monotonic()
        self._paid_until_s = max(self._paid_until_s, now_s - BURST_S) + size_bytes / self._bytes_per_s
        if self._paid_until_s > now_s:
            self._stop.wait(self._paid_until_s - now_s)
            self.check()

    def check(self) -> None:
        """Raises Stopping."""
        if self._stop.is_set():
            raise Stopping
