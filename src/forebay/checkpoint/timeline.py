"""What a save or restore did and when: spans with bytes, printable and loadable in Perfetto.

The trace format is Chrome's "Trace Event Format", complete events (`ph: X`) in microseconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RECENT_MAX = 8
SPANS_MAX = 100_000
"""Spans kept per timeline; later ones only count in the totals, so that a huge save stays within bounds."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work: its stage (`plan`, `stage`, `checksum`, `upload`, `commit`, `read`, …), what it worked on,
    and when.
    """

    stage: str
    what: str
    start_s: float
    duration_s: float
    size_bytes: int
    thread: str


@dataclass(frozen=True, slots=True)
class StageTotal:
    """All spans of a stage: how many, the sum of their durations (threads overlap), first start to last end, and
    bytes.
    """

    count: int
    busy_s: float
    elapsed_s: float
    size_bytes: int


_recent: deque[Timeline] = deque(maxlen=RECENT_MAX)


def timelines() -> tuple[Timeline, ...]:
    """Those of the last saves and loads of this process, oldest first; the newest may still be growing."""
    return tuple(_recent)


class Timeline:
    """Collects spans from any thread. Times are seconds since the timeline was made. One that says `what` it is of is
    found by `timelines`.
    """

    def __init__(self, rank: int = 0, what: str = "") -> None:
        self.rank, self.what = rank, what
        if what:
            _recent.append(self)
        self._zero_s = time.perf_counter()
        self._spans: list[Span] = []
        self._totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, float("inf"), 0.0, 0])
        self._lock = threading.Lock()

    @contextmanager
    def span(self, stage: str, what: str = "", size_bytes: int = 0) -> Iterator[None]:
        """Record the enclosed work, also when it raises."""
        start_s = time.perf_counter() - self._zero_s
        try:
            yield
        finally:
            self.add(stage, what, start_s, time.perf_counter() - self._zero_s - start_s, size_bytes)

    def now_s(self) -> float:
        """Seconds since the timeline was made."""
        return time.perf_counter() - self._zero_s

    def add(self, stage: str, what: str, start_s: float, duration_s: float, size_bytes: int = 0) -> None:
        """Record work that was timed by the caller."""
        span = Span(stage, what, start_s, duration_s, size_bytes, threading.current_thread().name)
        with self._lock:
            if len(self._spans) < SPANS_MAX:
                self._spans.append(span)
            total = self._totals[stage]
            total[0] += 1
            total[1] += duration_s
            total[2] = min(total[2], start_s)
            total[3] = max(total[3], start_s + duration_s)
            total[4] += size_bytes

    def spans(self) -> tuple[Span, ...]:
        """What was recorded so far, in order of ending."""
        with self._lock:
            return tuple(self._spans)

    def totals(self) -> dict[str, StageTotal]:
        """Sums by stage, in order of first start."""
        with self._lock:
            rows = sorted(self._totals.items(), key=lambda item: item[1][2])
            return {k: StageTotal(int(t[0]), t[1], t[3] - t[2], int(t[4])) for k, t in rows}

    def text(self) -> str:
        """A table for people: stage, spans, seconds from first to last, seconds of work, GiB, GiB/s."""
        lines = [self.what] * bool(self.what)
        lines += [f"{'stage':<12}{'spans':>7}{'elapsed s':>11}{'busy s':>9}{'GiB':>9}{'GiB/s':>8}"]
        for stage, total in self.totals().items():
            gib = total.size_bytes / 2**30
            rate = f"{gib / total.elapsed_s:8.2f}" if gib and total.elapsed_s else " " * 8
            lines.append(f"{stage:<12}{total.count:>7}{total.elapsed_s:>11.3f}{total.busy_s:>9.3f}{gib:>9.3f}{rate}")
        return "\n".join(lines)

    def perfetto(self) -> bytes:
        """JSON for https://ui.perfetto.dev (or chrome://tracing): one process a rank, one row a thread."""
        threads: dict[str, int] = {}
        events: list[dict[str, object]] = []
        for span in self.spans():
            tid = threads.setdefault(span.thread, len(threads))
            events.append(
                {
                    "name": f"{span.stage} {span.what}".strip(),
                    "cat": span.stage,
                    "ph": "X",
                    "pid": self.rank,
                    "tid": tid,
                    "ts": span.start_s * 1e6,
                    "dur": span.duration_s * 1e6,
                    "args": {"bytes": span.size_bytes},
                }
            )
        for thread, tid in threads.items():
            events.append({"name": "thread_name", "ph": "M", "pid": self.rank, "tid": tid, "args": {"name": thread}})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
