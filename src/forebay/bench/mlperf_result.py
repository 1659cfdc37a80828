"""The result of `forebay bench mlperf`: the reference harness's `summary.json`, what is honest beside it, and the report.

`metric` has the names of the reference harness (DLIO's, as MLPerf Storage publishes them); its "GB" are GiB.
"""

from __future__ import annotations

from statistics import pstdev
from typing import Any

import msgspec

from forebay.bench.figures import (
    GIB,
    average_rate,
    half_rates,
    mean_of_rates,
    median_of,
    show_rate,
    show_seconds,
    show_size,
    spread,
)
from forebay.bench.limits import Limits
from forebay.bench.machine_report import ABOVE_RATIO, above_limit, limits_section, machine_section
from forebay.bench.report import Lines, Report, Section, Series, Table, Tile
from forebay.bench.result import SCHEMA, Head
from forebay.bench.s3_result import StoreFacts, store_facts

NOT_COMPARABLE = "not comparable with published results"
CLIFF_RATIO = 0.8  # a second half slower than this is pointed out


class Direction(msgspec.Struct, frozen=True, kw_only=True):
    """All checkpoints written, or all read. Rates in bytes per second."""

    checkpoint_bytes: int
    durations_s: list[float]
    mean_of_rates: float  # what MLPerf publishes
    average_rate: float  # all bytes over all seconds
    median_rate: float
    slowest_rate: float
    first_half_rate: float | None
    second_half_rate: float | None
    parts: int
    part_latency_p50_s: float
    part_latency_p99_s: float
    part_latency_max_s: float
    part_latency_is_of: str  # "part", or "object" where a library does not show its parts
    client_cpu_s_per_gib: float
    server_cpu_s_per_gib: float | None
    limit_bytes_per_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """The average rate over the machine's limit."""
        return None if self.limit_bytes_per_s is None else self.average_rate / self.limit_bytes_per_s


class MlperfResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document: the reference harness's names first, then ours."""

    start: str
    end: str
    num_accelerators: int
    num_hosts: int
    hostname: str
    metric: dict[str, float]
    head: Head
    model: str
    processes: int
    scale: str
    is_comparable: bool
    checkpoint_bytes: int
    objects_per_checkpoint: int
    part_bytes: int
    in_flight_per_process: int
    client: str
    target: str
    write: Direction | None
    read: Direction | None
    generation_bytes_per_s: float  # all processes making content at once, nothing else going on
    generation_cpu_s_per_gib: float
    verified_checkpoints: int
    settings: list[tuple[str, str]]
    store: StoreFacts | None
    limits: Limits | None
    notes: list[str]
    schema: str = SCHEMA
    kind: str = "mlperf"


def direction_of(checkpoint_bytes: int, durations_s: list[float], **measured: Any) -> Direction:
    """The figures of one direction from its durations; `measured` are the fields that durations do not give."""
    rates = [checkpoint_bytes / duration for duration in durations_s]
    first, second = half_rates(checkpoint_bytes, durations_s) or (None, None)
    return Direction(
        checkpoint_bytes=checkpoint_bytes,
        durations_s=durations_s,
        mean_of_rates=mean_of_rates(checkpoint_bytes, durations_s),
        average_rate=average_rate(checkpoint_bytes, durations_s),
        median_rate=median_of(rates),
        slowest_rate=min(rates),
        first_half_rate=first,
        second_half_rate=second,
        **measured,
    )


def reference_metric(checkpoint_bytes: int, write: Direction | None, read: Direction | None) -> dict[str, float]:
    """The `metric` object of the reference harness."""
    metric: dict[str, float] = {}
    for verb, direction in (("save", write), ("load", read)):
        if direction is not None:
            rates = [checkpoint_bytes / GIB / duration for duration in direction.durations_s]
            metric[f"{verb}_checkpoint_io_mean_GB_per_second"] = direction.mean_of_rates / GIB
            metric[f"{verb}_checkpoint_io_stdev_GB_per_second"] = pstdev(rates)
            metric[f"{verb}_checkpoint_duration_mean_seconds"] = spread(direction.durations_s).mean
            metric[f"{verb}_checkpoint_duration_stdev_seconds"] = spread(direction.durations_s).stdev
    metric["checkpoint_size_GB"] = checkpoint_bytes / GIB
    return metric


def report_of(result: MlperfResult) -> Report:
    """The report of a run."""
    directions = [(name, each) for name, each in (("write", result.write), ("read", result.read)) if each is not None]
    sections = [
        Section("Results", _HOW_TO_READ, [_rates(directions), _parts(directions), *_charts(directions)]),
        Section("How it was done", [], [Table(["setting", "value"], [list(pair) for pair in _settings(result)], text_columns=2)]),
    ]
    if result.limits is not None:
        sections.append(limits_section(result.limits))
    sections.append(machine_section(result.head, [] if result.store is None else store_facts(result.store)))
    scaled = "" if result.is_comparable else f", {NOT_COMPARABLE}"
    return Report(
        title="MLPerf Storage checkpointing",
        subtitle=f"{result.model}, {result.processes} processes, scale {result.scale}, client {result.client}{scaled}",
        tiles=[tile for name, each in directions for tile in _tiles(name, each)],
        sections=sections,
        warnings=warnings_of(result),
    )


_HOW_TO_READ = [
    "A checkpoint lasts as long as its slowest process, between two barriers. 'Mean of rates' is what MLPerf Storage publishes; the "
    "average rate is all bytes over all seconds, which is what training waits for. They part when durations vary."
]


def warnings_of(result: MlperfResult) -> list[str]:
    """Everything that makes the figures less than they seem."""
    found = list(result.notes)
    if not result.is_comparable:
        found.insert(0, f"Scale {result.scale}, {result.processes} processes: {NOT_COMPARABLE}.")
    directions = [(name, each) for name, each in (("write", result.write), ("read", result.read)) if each is not None]
    above = above_limit([name for name, each in directions if (each.ratio or 0) > ABOVE_RATIO])
    found += [above] if above else []
    for name, each in directions:
        if result.generation_bytes_per_s < 2 * each.median_rate and name == "write":
            rate = show_rate(result.generation_bytes_per_s)
            found.append(f"Making the content ran at {rate}, less than twice the writes: they measure the generator too.")
        first, second = each.first_half_rate, each.second_half_rate
        if first is not None and second is not None and second < CLIFF_RATIO * first:
            found.append(f"The second half of the {name}s ran at {second / first:.0%} of the first, as when a cache fills up.")
    return found


def _tiles(name: str, each: Direction) -> list[Tile]:
    note = "all bytes over all seconds" if each.ratio is None else f"{each.ratio:.0%} of the machine's limit"
    return [
        Tile(f"{name}, average", show_rate(each.average_rate), note),
        Tile(f"{name}, mean of rates", show_rate(each.mean_of_rates), "as MLPerf publishes it"),
    ]


def _rates(directions: list[tuple[str, Direction]]) -> Table:
    columns = ["GiB/s", "average", "mean of rates", "median", "slowest", "1st half", "2nd half", "of limit"]
    rows = []
    for name, each in directions:
        rates = [each.average_rate, each.mean_of_rates, each.median_rate, each.slowest_rate, each.first_half_rate, each.second_half_rate]
        cells = ["" if rate is None else f"{rate / GIB:.2f}" for rate in rates]
        rows.append([name, *cells, "" if each.ratio is None else f"{each.ratio:.2f}"])
    return Table(columns, rows)


def _parts(directions: list[tuple[str, Direction]]) -> Table:
    columns = ["requests", "count", "p50", "p99", "slowest", "CPU-s/GiB: client", "server"]
    rows = []
    for name, each in directions:
        latencies = [each.part_latency_p50_s, each.part_latency_p99_s, each.part_latency_max_s]
        server = "" if each.server_cpu_s_per_gib is None else f"{each.server_cpu_s_per_gib:.3f}"
        cells = [*map(show_seconds, latencies), f"{each.client_cpu_s_per_gib:.3f}", server]
        rows.append([f"{name} ({each.part_latency_is_of})", f"{each.parts:,}", *cells])
    return Table(columns, rows)


def _charts(directions: list[tuple[str, Direction]]) -> list[Lines]:
    charts = []
    for name, each in directions:
        points = [(float(n), each.checkpoint_bytes / duration / GIB) for n, duration in enumerate(each.durations_s, 1)]
        limit = None if each.limit_bytes_per_s is None else each.limit_bytes_per_s / GIB
        charts.append(Lines(f"Each checkpoint: {name}", "checkpoint", "GiB/s", [Series(name, points)], limit, "limit"))
    return charts


def _settings(result: MlperfResult) -> list[tuple[str, str]]:
    return [
        ("checkpoint", f"{result.checkpoint_bytes:,} bytes ({show_size(result.checkpoint_bytes)}), "
         f"{result.objects_per_checkpoint} objects"),
        ("parts", f"{show_size(result.part_bytes)}, {result.in_flight_per_process} in flight a process"),
        ("content", f"AES-CTR, new for every object; made at {show_rate(result.generation_bytes_per_s)} when nothing else runs "
         f"({result.generation_cpu_s_per_gib:.3f} CPU-s/GiB, counted as the client's)"),
        ("verified", f"{result.verified_checkpoints} checkpoint(s), every byte, after the timed reads"),
        *result.settings,
    ]  # fmt: skip
