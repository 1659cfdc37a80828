"""The arithmetic of the reports: rates, averages, percentiles, spreads.

A mean of rates is not an average rate. Ten saves of equal size in 9 s (five times) and 50 s (five times) have a mean
of rates that is twice what a user waited for: bytes over seconds. Both are computed here; reports lead with the
second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean, median, pstdev

import msgspec

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

_UNITS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "m": MIB,
    "mib": MIB,
    "g": GIB,
    "gib": GIB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of numbers looks like; all in the unit of the numbers."""

    count: int
    mean: float
    stdev: float
    minimum: float
    p50: float
    p90: float
    p99: float
    maximum: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise `values` (not empty; population standard deviation)."""
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=fmean(ordered),
        stdev=pstdev(ordered),
        minimum=ordered[0],
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        maximum=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of an ordered sequence.

    The smallest value that at least `percent` % do not exceed.
    """
    assert ordered, "a percentile of nothing"
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def mean_of_rates(size_bytes: int, durations_s: Sequence[float]) -> float:
    """Bytes per second as MLPerf Storage publishes it: the arithmetic mean of size / duration."""
    return fmean(size_bytes / duration for duration in durations_s)


def average_rate(size_bytes: int, durations_s: Sequence[float]) -> float:
    """Bytes per second as a user waits for it: all bytes over all seconds."""
    return size_bytes * len(durations_s) / math.fsum(durations_s)


def half_rates(size_bytes: int, durations_s: Sequence[float]) -> tuple[float, float] | None:
    """The average rates of the first and of the second half (the middle one left out); None for fewer than two.

    A second half far below the first shows a cache that filled up.
    """
    half = len(durations_s) // 2
    if not half:
        return None
    return average_rate(size_bytes, durations_s[:half]), average_rate(size_bytes, durations_s[-half:])


def median_of(values: Sequence[float]) -> float:
    """The median; the mean of the middle two for an even count."""
    return median(values)


def parse_size(text: str) -> int:
    """Bytes from `4KiB`, `64MiB`, `1g`, `4096` (k, m, g alone are binary). Raises ValueError naming the text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size: write 4096, 4KiB, 64MiB or 1GiB")
    return round(float(match[1]) * unit)


def show_size(size_bytes: float) -> str:
    """`4 KiB`, `1.5 GiB`: at most one decimal, none where it is exact."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            value = size_bytes / unit
            return f"{value:.0f} {name}" if value == int(value) else f"{value:.1f} {name}"
    return f"{size_bytes:.0f} B"


def show_rate(bytes_per_s: float) -> str:
    """`1.23 GiB/s`, or MiB/s below a tenth of that."""
    if bytes_per_s >= GIB / 10:
        return f"{bytes_per_s / GIB:.2f} GiB/s"
    return f"{bytes_per_s / MIB:.1f} MiB/s"


def show_seconds(seconds: float) -> str:
    """`12.3 s`, `4.56 ms`, `78 µs`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.0f} µs"
