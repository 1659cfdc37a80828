"""`forebay bench compare`: runs of `bench mlperf` side by side, with the published v3.0 rows of the 8B model.

The published rows are from the public results of MLPerf Storage v3.0 (github.com/mlcommons/storage_results_v3.0); the durations of the row
that publishes them give its real average. None was measured on the machines of these runs: the conditions say what is behind each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, average_rate, half_rates, mean_of_rates, show_size
from forebay.bench.mlperf_plan import MODELS
from forebay.bench.mlperf_result import Direction, MlperfResult
from forebay.bench.report import Bar, Bars, Report, Section, Table
from forebay.bench.result import read_json

SIZE_BYTES = MODELS["llama3-8b"].total_bytes


@dataclass(frozen=True)
class Row:
    """One line of the comparison; rates in GiB/s, None where unknown."""

    name: str
    write_mean_of_rates: float | None
    write_average: float | None
    write_first_half: float | None
    write_second_half: float | None
    read_mean_of_rates: float | None
    read_average: float | None
    conditions: str


OPENLAKE_WRITES_S = (9.25, 9.13, 8.95, 8.99, 10.06, 40.98, 53.89, 53.07, 48.83, 51.04)
OPENLAKE_READS_S = (7.85, 8.26, 8.07, 8.20, 8.48, 8.51, 8.07, 11.32, 13.21, 11.79)


def _openlake() -> Row:
    first, second = half_rates(SIZE_BYTES, OPENLAKE_WRITES_S) or (None, None)
    return Row(
        name="OpenLake, v3.0-0075",
        write_mean_of_rates=mean_of_rates(SIZE_BYTES, OPENLAKE_WRITES_S) / GIB,
        write_average=average_rate(SIZE_BYTES, OPENLAKE_WRITES_S) / GIB,
        write_first_half=None if first is None else first / GIB,
        write_second_half=None if second is None else second / GIB,
        read_mean_of_rates=mean_of_rates(SIZE_BYTES, OPENLAKE_READS_S) / GIB,
        read_average=average_rate(SIZE_BYTES, OPENLAKE_READS_S) / GIB,
        conditions="client on the same host, loopback; data fsync, payload hash and content ETag off; RAID0; 756 GiB RAM; no cache drop",
    )


def _published_means(name: str, write: float, read: float) -> Row:
    return Row(name, write, None, None, None, read, None, "one separate client; durations not at hand, so no real average")


PUBLISHED = [
    _openlake(),
    _published_means("NVIDIA AIStore, 3 nodes, v3.0", 3.02, 6.99),
    _published_means("NVIDIA AIStore, 12 nodes, v3.0", 3.20, 8.33),
]


def load_results(paths: list[Path]) -> list[MlperfResult]:
    """Read results of `bench mlperf`. Raises BenchmarkFailed naming the file that is none."""
    results = [read_json(path, MlperfResult) for path in paths]
    for path, result in zip(paths, results, strict=True):
        if result.kind != "mlperf":
            raise BenchmarkFailed(f"{path} is a result of `bench {result.kind}`, not of `bench mlperf`")
    return results


def report_of(names: list[str], results: list[MlperfResult]) -> Report:
    """The comparison as a report."""
    rows = [_row(name, result) for name, result in zip(names, results, strict=True)]
    not_comparable = [row.name for row, result in zip(rows, results, strict=True) if not result.is_comparable]
    warnings = []
    if not_comparable:
        warnings.append(
            f"Scaled or with other processes than the rules, not comparable with the published rows: {', '.join(not_comparable)}."
        )
    every = rows + PUBLISHED
    tables = [_table(every), Table(["run", "conditions"], [[row.name, row.conditions] for row in every], text_columns=2)]
    charts = [_bars("Write, GiB/s", every, write=True), _bars("Read, GiB/s", every, write=False)]
    return Report(
        title="MLPerf Storage checkpointing, side by side",
        subtitle="average = all bytes over all seconds; mean of rates = what is published",
        tiles=[],
        sections=[Section("Runs", [], [*tables, *charts])],
        warnings=warnings,
    )


def _row(name: str, result: MlperfResult) -> Row:
    conditions = [
        f"{result.client}, scale {result.scale}, {result.processes} processes",
        f"{show_size(result.head.machine.memory_bytes)} RAM, {result.head.machine.cores} cores",
        *(
            f"{key}: {value}"
            for key, value in result.settings
            if key in ("durability", "client placement", "page cache between writes and reads")
        ),
    ]
    if result.store is not None:
        conditions.append(f"erasure coding {result.store.geometry}")
    if result.verified_checkpoints:
        conditions.append("content verified")
    write, read = result.write, result.read
    return Row(
        name=name,
        write_mean_of_rates=_gib(write, "mean_of_rates"),
        write_average=_gib(write, "average_rate"),
        write_first_half=_gib(write, "first_half_rate"),
        write_second_half=_gib(write, "second_half_rate"),
        read_mean_of_rates=_gib(read, "mean_of_rates"),
        read_average=_gib(read, "average_rate"),
        conditions="; ".join(conditions),
    )


def _gib(direction: Direction | None, name: str) -> float | None:
    value = None if direction is None else getattr(direction, name)
    return None if value is None else value / GIB


def _table(rows: list[Row]) -> Table:
    columns = ["GiB/s", "write avg", "write mean", "1st half", "2nd half", "read avg", "read mean"]
    cells = [
        [row.name]
        + [
            "" if value is None else f"{value:.2f}"
            for value in (
                row.write_average,
                row.write_mean_of_rates,
                row.write_first_half,
                row.write_second_half,
                row.read_average,
                row.read_mean_of_rates,
            )
        ]
        for row in rows
    ]
    return Table(columns, cells)


def _bars(title: str, rows: list[Row], *, write: bool) -> Bars:
    bars = []
    for row in rows:
        average = row.write_average if write else row.read_average
        published = row.write_mean_of_rates if write else row.read_mean_of_rates
        if average is not None:
            bars.append(Bar(row.name, average, f"{average:.2f}"))
        elif published is not None:
            bars.append(Bar(row.name, published, f"{published:.2f} (mean of rates)"))
    return Bars(title, bars)
