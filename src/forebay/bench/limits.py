"""The machine's own limits, measured in the same run as what is compared with them.

A ratio to a limit is worth more than a rate: it survives a slow disk, a busy neighbour, another machine. Limits are
sampled before, between and after the stretches they judge; a report uses their median and shows how far they moved.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from forebay.bench.crew import Crew, Stretch
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, median_of
from forebay.bench.machine import filesystem_of

BLOCK_BYTES = 4 << 20
TCP_BLOCK_BYTES = 1 << 20
TCP_SECONDS_MAX = 1.0
BYTES_MAX = 8 << 30  # however fast the disk, no more than this is written in a sample
FREE_BYTES_MIN = 1 << 30  # left free on the filesystem whatever is measured


class LimitSample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of the machine; bytes per second, and CPU seconds per GiB where it was counted."""

    direct_write_bytes_per_s: float
    direct_read_bytes_per_s: float
    loopback_bytes_per_s: float
    direct_write_cpu_s_per_gib: float
    direct_read_cpu_s_per_gib: float
    loopback_cpu_s_per_gib: float


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a run and their medians."""

    folder: str
    filesystem_type: str
    threads: int
    block_bytes: int
    samples: list[LimitSample]

    @property
    def direct_write_bytes_per_s(self) -> float:
        """Median rate of direct writes, fdatasync included."""
        return median_of([sample.direct_write_bytes_per_s for sample in self.samples])

    @property
    def direct_read_bytes_per_s(self) -> float:
        """Median rate of direct reads."""
        return median_of([sample.direct_read_bytes_per_s for sample in self.samples])

    @property
    def loopback_bytes_per_s(self) -> float:
        """Median rate of one TCP connection over loopback, sender and receiver on this host."""
        return median_of([sample.loopback_bytes_per_s for sample in self.samples])


class Gauge:
    """Measures the limits of the filesystem that holds `folder`, as often as asked, and keeps the samples."""

    def __init__(self, folder: Path, *, threads: int = 4, seconds: float = 2.0) -> None:
        self.folder = folder
        self.threads = threads
        self.seconds = seconds
        self.samples: list[LimitSample] = []

    def sample(self) -> LimitSample:
        """Measure once.

        Three stretches of `seconds` each. Raises BenchmarkFailed when the folder cannot take direct writes.
        """
        filesystem = filesystem_of(self.folder)
        bytes_max = min(BYTES_MAX, filesystem.free_bytes - FREE_BYTES_MIN)
        if bytes_max < self.threads * BLOCK_BYTES:
            raise BenchmarkFailed(f"{self.folder}: too little free space to measure its limits ({filesystem.free_bytes} bytes free)")
        job = {"folder": str(self.folder), "threads": self.threads, "seconds": self.seconds, "bytes_max": bytes_max}
        with Crew("forebay.bench.limits_work", [job]) as crew:
            write, read, tcp = crew.stretch("write", "read"), crew.stretch("read", "tcp"), crew.stretch("tcp", "end")
        self.samples.append(
            LimitSample(
                direct_write_bytes_per_s=_rate(write),
                direct_read_bytes_per_s=_rate(read),
                loopback_bytes_per_s=_rate(tcp),
                direct_write_cpu_s_per_gib=_cpu_s_per_gib(write),
                direct_read_cpu_s_per_gib=_cpu_s_per_gib(read),
                loopback_cpu_s_per_gib=_cpu_s_per_gib(tcp),
            )
        )
        return self.samples[-1]

    def limits(self) -> Limits:
        """All samples so far (at least one)."""
        assert self.samples, "no limit was measured"
        return Limits(
            folder=str(self.folder),
            filesystem_type=filesystem_of(self.folder).type,
            threads=self.threads,
            block_bytes=BLOCK_BYTES,
            samples=list(self.samples),
        )


def _bytes(stretch: Stretch) -> int:
    return int(stretch.reports[0]["bytes"])


def _rate(stretch: Stretch) -> float:
    return _bytes(stretch) / stretch.seconds


def _cpu_s_per_gib(stretch: Stretch) -> float:
    return stretch.client_cpu_s / (_bytes(stretch) / GIB)
