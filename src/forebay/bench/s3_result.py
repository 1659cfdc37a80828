"""The result of `forebay bench s3` as a document, and the report made of it."""

from __future__ import annotations

import msgspec

from forebay.bench.figures import GIB, MIB, median_of, show_rate, show_seconds, show_size
from forebay.bench.limits import Limits
from forebay.bench.machine_report import ABOVE_RATIO, above_limit, limits_section, machine_section
from forebay.bench.report import Bar, Bars, Lines, Report, Section, Series, Table, Tile
from forebay.bench.result import SCHEMA, Head
from forebay.bench.tally import TIMELINE_STEP_S


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One timed stretch."""

    operations_per_s: float
    bytes_per_s: float
    operations: int
    bytes: int
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    latency_max_s: float
    verified_share: float  # of the operations that return content
    client_cpu_s: float
    server_cpu_s: float | None
    timeline_bytes_per_s: list[float]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """An operation at a size, with as many readings as the run repeated it."""

    operation: str  # put, get, mixed, list
    size_bytes: int
    objects: int
    connections: int
    processes: int
    payload_check: str  # sha256, crc64nvme, none
    readings: list[Reading]
    limit_bytes_per_s: float | None = None  # what the machine allows for this operation, if that was measured

    @property
    def bytes_per_s(self) -> float:
        """The median rate."""
        return median_of([reading.bytes_per_s for reading in self.readings])

    @property
    def operations_per_s(self) -> float:
        """The median number of operations a second."""
        return median_of([reading.operations_per_s for reading in self.readings])

    @property
    def ratio(self) -> float | None:
        """The median rate over the limit."""
        return None if self.limit_bytes_per_s is None else self.bytes_per_s / self.limit_bytes_per_s

    @property
    def is_small(self) -> bool:
        """Whether operations a second say more than bytes a second."""
        return self.size_bytes < MIB

    @property
    def title(self) -> str:
        """`put 4 KiB`; `list 1000 of 2,000`."""
        if self.operation == "list":
            return f"list, {self.objects:,} keys"
        return f"{self.operation} {show_size(self.size_bytes)}"


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the run knows about the store it measured."""

    endpoint: str
    geometry: str  # "3+1", or "unknown"
    started_by_benchmark: bool
    on_this_host: bool
    peak_resident_bytes: int | None
    reported: list[tuple[str, str]]  # what it says of itself


class S3Result(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    head: Head
    store: StoreFacts
    measurements: list[Measurement]
    limits: Limits | None
    notes: list[str]
    schema: str = SCHEMA
    kind: str = "s3"


def report_of(result: S3Result) -> Report:
    """The report of a run."""
    measured = result.measurements
    transfers = [each for each in measured if each.operation != "list"]
    above = above_limit([each.title for each in measured if not each.is_small and (each.ratio or 0) > ABOVE_RATIO])
    sections = [
        Section("Results", _how_to_read(result), [_table(measured), *_rate_bars(transfers)]),
        Section("Latency", [], _latency_bars(measured)),
        Section("Over time", ["The first reading of each, 0.1 s a step. A cliff is a cache that filled up."], _timelines(transfers)),
        Section("Where the CPU time goes", [_CPU_TEXT], [_cpu_table(measured)]),
    ]
    if result.limits is not None:
        sections.append(limits_section(result.limits))
    sections.append(machine_section(result.head, store_facts(result.store)))
    return Report(
        title="S3 benchmark",
        subtitle=f"{result.store.endpoint}, geometry {result.store.geometry}, {result.head.started_at}",
        tiles=[*(_tile(each) for each in measured), *_listing_tiles(measured)],
        sections=[section for section in sections if section.items],
        warnings=[*result.notes, *([above] if above else [])],
    )


_CPU_TEXT = (
    "Client: the benchmark's own processes. Server: the store's process tree. For large objects per GiB, for small ones per operation, "
    "everything moved counted, the tail after the window included."
)


def _how_to_read(result: S3Result) -> list[str]:
    lines = [
        "Every answer's status and length is checked; 'verified' is the share of reads whose content was compared, byte for byte or "
        "by CRC64NVME. Rates are medians over the repeats (± half their range); latencies are those of the median reading. "
        "'4 in 2' clients are four connections in two processes."
    ]
    if result.limits is not None:
        lines.append(
            f"The limit of a put is the direct write rate of the drives' filesystem divided by what erasure coding adds "
            f"({result.store.geometry}); that of a get is its direct read rate; both were measured in this run."
        )
    return lines


def _tile(each: Measurement) -> Tile:
    value = f"{each.operations_per_s:,.0f}/s" if each.is_small or each.operation == "list" else show_rate(each.bytes_per_s)
    clients = f"{each.connections} client{'s' if each.connections != 1 else ''}"
    if each.operation == "list":
        return Tile(each.title, show_seconds(_page_s(each)), f"median, pages of 1,000 keys, {clients}")
    if each.ratio is not None and not each.is_small:
        return Tile(each.title, f"{each.ratio:.0%} of the limit", f"{value}, {clients}")
    return Tile(each.title, value, clients)


def _listing_tiles(measured: list[Measurement]) -> list[Tile]:
    """How much longer a page takes in the largest bucket than in the smallest."""
    lists = sorted((each for each in measured if each.operation == "list"), key=lambda each: each.objects)
    if len(lists) < 2:
        return []
    few, many = lists[0], lists[-1]
    ratio = _page_s(many) / _page_s(few)
    return [Tile(f"a page of {many.objects:,} keys", f"{ratio:.2f} times", f"as long as one of {few.objects:,} keys")]


def _page_s(each: Measurement) -> float:
    return median_of([reading.latency_p50_s for reading in each.readings])


def _middle(each: Measurement) -> Reading:
    ordered = sorted(each.readings, key=lambda reading: reading.operations_per_s)
    return ordered[(len(ordered) - 1) // 2]


def _table(measured: list[Measurement]) -> Table:
    rows = []
    for each in measured:
        middle = _middle(each)
        rows.append(
            [
                each.title,
                f"{each.connections} in {each.processes}",
                f"{each.operations_per_s:,.0f}",
                "" if each.operation == "list" else show_rate(each.bytes_per_s),
                "" if each.ratio is None or each.is_small else f"{each.ratio:.2f}",
                show_seconds(middle.latency_p50_s),
                show_seconds(middle.latency_p99_s),
                f"{middle.verified_share:.0%}" if each.operation in ("get", "mixed") else "",
                _scatter([reading.operations_per_s for reading in each.readings]),
            ]
        )
    columns = ["operation", "clients", "ops/s", "rate", "of limit", "p50", "p99", "verified", "repeats"]
    return Table(columns, rows)


def _scatter(values: list[float]) -> str:
    """How far the repeats lie apart: half their range over their median."""
    return "1" if len(values) == 1 else f"{len(values)}, ±{(max(values) - min(values)) / 2 / median_of(values):.0%}"


def _cpu_table(measured: list[Measurement]) -> Table:
    rows = [[each.title, _cpu(each, server=False), _cpu(each, server=True)] for each in measured]
    return Table(["operation", "client", "server"], rows)


def _cpu(each: Measurement, *, server: bool) -> str:
    middle = _middle(each)
    cpu_s = middle.server_cpu_s if server else middle.client_cpu_s
    if cpu_s is None:
        return "unknown"
    if each.is_small or each.operation == "list":
        return f"{cpu_s / middle.operations * 1e6:.1f} µs/op"
    return f"{cpu_s / (middle.bytes / GIB):.3f} s/GiB"


def _rate_bars(measured: list[Measurement]) -> list[Bars]:
    charts = []
    large, small = [each for each in measured if not each.is_small], [each for each in measured if each.is_small]
    limited = [each for each in large if each.ratio is not None and each.limit_bytes_per_s is not None]
    if limited:
        bars = [_bar(each, 1 / each.limit_bytes_per_s, f"{each.ratio:.2f}") for each in limited if each.limit_bytes_per_s]
        charts.append(Bars("Rate over the machine's limit", bars, limit=1.0, limit_label="limit"))
    elif large:
        charts.append(Bars("Rate, GiB/s", [_bar(each, 1 / GIB, show_rate(each.bytes_per_s)) for each in large]))
    if small:
        bars = []
        for each in small:
            values = [reading.operations_per_s for reading in each.readings]
            bars.append(Bar(each.title, each.operations_per_s, f"{each.operations_per_s:,.0f}/s", min(values), max(values)))
        charts.append(Bars("Small requests a second", bars))
    return charts


def _bar(each: Measurement, scale: float, text: str) -> Bar:
    values = [reading.bytes_per_s * scale for reading in each.readings]
    return Bar(each.title, each.bytes_per_s * scale, text, min(values), max(values))


def _latency_bars(measured: list[Measurement]) -> list[Bars]:
    """Small and large apart: on one scale the small ones would be invisible."""
    groups = [("small requests and listings", [each for each in measured if each.is_small]),
              ("large objects", [each for each in measured if not each.is_small])]  # fmt: skip
    return [Bars(f"Median latency of {name}, ms; the whisker ends at p99", [*map(_latency_bar, group)]) for name, group in groups if group]


def _latency_bar(each: Measurement) -> Bar:
    middle = _middle(each)
    label = f"{show_seconds(middle.latency_p50_s)} · p99 {show_seconds(middle.latency_p99_s)}"
    return Bar(each.title, middle.latency_p50_s * 1e3, label, middle.latency_p50_s * 1e3, middle.latency_p99_s * 1e3)


def _timelines(measured: list[Measurement]) -> list[Lines]:
    charts = []
    for each in measured:
        unit, scale = ("ops/s", each.size_bytes) if each.is_small else ("GiB/s", GIB)
        timeline = each.readings[0].timeline_bytes_per_s
        points = [(step * TIMELINE_STEP_S, rate / scale) for step, rate in enumerate(timeline)]
        limit = None if each.limit_bytes_per_s is None or each.is_small else each.limit_bytes_per_s / GIB
        charts.append(Lines(each.title, "s", unit, [Series(each.title, points)], limit, "limit"))
    return charts


def store_facts(store: StoreFacts) -> list[tuple[str, str]]:
    """The store's rows in the table of the machine and the run."""
    facts = [
        ("store", store.endpoint + (" (started by the benchmark)" if store.started_by_benchmark else "")),
        ("erasure geometry", store.geometry),
        ("client placement", "same host as the store, over loopback" if store.on_this_host else "another host than the store"),
    ]
    if store.peak_resident_bytes is not None:
        facts.append(("store's peak memory", f"{show_size(store.peak_resident_bytes)} (sum over its processes)"))
    return facts + store.reported
