"""Signals that announce the end, such as SIGTERM before a machine is taken away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any


class PreemptionWatch:
    """Notes the first of `signals` to arrive, between `install` and `remove`. A handler that the program had is called
    as well.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self.signals = tuple(signals)
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Begin to watch. Only the main thread may set handlers, so elsewhere nothing is watched."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.signals:
            self._previous[number] = signal.signal(number, self._note)

    def remove(self) -> None:
        """Put the former handlers back. Harmless twice."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ends_process(self, number: int) -> bool:
        """Whether the signal would have ended the program: it had no handler of its own."""
        return self._previous.get(number, signal.SIG_DFL) is signal.SIG_DFL

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        previous: Callable[[int, FrameType | None], Any] | int | None = self._previous.get(number)
        if callable(previous):
            previous(number, frame)
