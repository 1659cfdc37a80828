"""What one client counts during a stretch, and how the counts of several are put together.

A stretch ends at a deadline that catches requests in flight. They are waited for and validated; the throughput
credits each with the part of its time that lies before the deadline, so that neither the last request nor an idle
tail bends a rate over the window in which all connections were busy. CPU is divided by everything that was moved,
tail included.

Latencies go into buckets 1% apart: percentiles are exact to half a percent, memory does not grow with the number of
requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

TIMELINE_STEP_S = 0.1
_LOG_STEP = math.log(1.01)


class Tally(msgspec.Struct, kw_only=True):
    """Counts of one client, or of several put together. Bytes are payload bytes."""

    window_s: float = 0.0
    window_operations: float = 0.0
    window_bytes: float = 0.0
    operations: int = 0
    bytes: int = 0
    read_operations: int = 0  # those that return content
    verified_operations: int = 0  # those of them whose content was compared with what was written
    latency_buckets: dict[int, int] = msgspec.field(default_factory=dict)
    timeline_bytes: dict[int, float] = msgspec.field(default_factory=dict)  # per TIMELINE_STEP_S from the start

    @property
    def operations_per_s(self) -> float:
        """Operations per second within the window."""
        return self.window_operations / self.window_s

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes per second within the window."""
        return self.window_bytes / self.window_s

    def latency_percentile_s(self, percent: float) -> float:
        """The latency that `percent` % of the operations did not exceed."""
        wanted = max(1, math.ceil(self.operations * percent / 100))
        seen = 0
        for bucket in sorted(self.latency_buckets):
            seen += self.latency_buckets[bucket]
            if seen >= wanted:
                return math.exp(bucket * _LOG_STEP)
        raise AssertionError("a percentile of nothing")


class Recorder:
    """Collects the operations of one stretch of one client, from one thread, as cheaply as it can."""

    def __init__(self, start_s: float, deadline_s: float) -> None:
        self.start_s = start_s
        self.deadline_s = deadline_s
        self.read_operations = 0
        self.verified_operations = 0
        self._spans: list[tuple[float, float, int]] = []
        self._counts = Tally()
        self._latencies: Counter[int] = Counter()

    def add(self, begin_s: float, end_s: float, size_bytes: int) -> None:
        """Record one finished operation."""
        self._spans.append((begin_s, end_s, size_bytes))
        if len(self._spans) == 10_000:
            self._fold()

    def tally(self) -> Tally:
        """Everything recorded. With no deadline (infinite) the window ends with the last operation."""
        self._fold()
        counts = self._counts
        counts.read_operations = self.read_operations
        counts.verified_operations = self.verified_operations
        counts.latency_buckets = dict(self._latencies)
        if math.isfinite(self.deadline_s):
            counts.window_s = self.deadline_s - self.start_s
        return counts

    def _fold(self) -> None:
        counts, timeline = self._counts, self._counts.timeline_bytes
        for begin_s, end_s, size_bytes in self._spans:
            share = 1.0 if end_s <= self.deadline_s else max(0.0, self.deadline_s - begin_s) / (end_s - begin_s)
            counts.operations += 1
            counts.bytes += size_bytes
            counts.window_operations += share
            counts.window_bytes += share * size_bytes
            counts.window_s = max(counts.window_s, end_s - self.start_s)
            self._latencies[round(math.log(max(end_s - begin_s, 1e-7)) / _LOG_STEP)] += 1
            _spread_over(timeline, begin_s - self.start_s, end_s - self.start_s, size_bytes)
        self._spans.clear()


def _spread_over(timeline: dict[int, float], begin_s: float, end_s: float, size_bytes: int) -> None:
    """Add an operation's bytes to the steps that it lay in, evenly over its time."""
    first, last = int(begin_s / TIMELINE_STEP_S), int(end_s / TIMELINE_STEP_S)
    if first == last:
        timeline[first] = timeline.get(first, 0.0) + size_bytes
        return
    rate = size_bytes / (end_s - begin_s)
    for step in range(first, last + 1):
        overlap_s = min(end_s, (step + 1) * TIMELINE_STEP_S) - max(begin_s, step * TIMELINE_STEP_S)
        timeline[step] = timeline.get(step, 0.0) + rate * overlap_s


def put_together(tallies: Iterable[Tally]) -> Tally:
    """One tally of clients that ran side by side: sums, over the longest window."""
    total = Tally()
    latencies: Counter[int] = Counter()
    for tally in tallies:
        total.window_s = max(total.window_s, tally.window_s)
        total.window_operations += tally.window_operations
        total.window_bytes += tally.window_bytes
        total.operations += tally.operations
        total.bytes += tally.bytes
        total.read_operations += tally.read_operations
        total.verified_operations += tally.verified_operations
        latencies.update(tally.latency_buckets)
        for step, size_bytes in tally.timeline_bytes.items():
            total.timeline_bytes[step] = total.timeline_bytes.get(step, 0.0) + size_bytes
    total.latency_buckets = dict(latencies)
    return total
