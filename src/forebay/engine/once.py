"""Saying a thing once."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

REMEMBERED_MAX = 10_000
REMEMBERED_S = 60.0  # what was reported is not reported again for so long


class Once:
    """Lets each thing through once in a while, so that a thousand readers of one bad block make one report."""

    def __init__(self) -> None:
        self._seen_s: dict[Hashable, float] = {}
        self._mutex = threading.Lock()

    def is_new(self, thing: Hashable) -> bool:
        """Whether it was not here lately."""
        now_s = time.monotonic()
        with self._mutex:
            if now_s - self._seen_s.get(thing, -REMEMBERED_S) < REMEMBERED_S:
                return False
            if len(self._seen_s) >= REMEMBERED_MAX:
                self._seen_s.clear()
            self._seen_s[thing] = now_s
            return True
