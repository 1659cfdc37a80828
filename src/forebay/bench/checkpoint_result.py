"""The result of `forebay bench checkpoint` as a document, and the report made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from forebay.bench.checkpoint_plan import CONTENDERS, Restored, Saved
from forebay.bench.figures import GIB, median_of, show_seconds, show_size
from forebay.bench.limits import Limits
from forebay.bench.machine_report import limits_section, machine_section
from forebay.bench.report import Bar, Bars, Report, Section, Table, Tile
from forebay.bench.result import SCHEMA, Head
from forebay.bench.s3_result import StoreFacts, store_facts


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One save and one restore, in a process of their own."""

    saved: Saved
    restored: Restored
    objects: int
    stored_bytes: int
    server_cpu_s: float | None  # of save and restore together


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A contender at a size and a place; `failure` says why it has no rounds."""

    contender: str
    place: str  # folder or store
    size_bytes: int
    rounds: list[Round]
    failure: str = ""

    def median(self, pick: Callable[[Round], float]) -> float:
        """The median over the rounds."""
        return median_of([pick(each) for each in self.rounds])

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, exactly."""
        return self.rounds[0].saved.state_bytes

    @property
    def save_bytes_per_s(self) -> float:
        """The state over the time until it is durable."""
        return self.state_bytes / self.median(lambda each: each.saved.durable_s)

    @property
    def restore_bytes_per_s(self) -> float:
        """The state over the time of a restore."""
        return self.state_bytes / self.median(lambda each: each.restored.restore_s)


class CheckpointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    head: Head
    trials: list[Trial]
    store: StoreFacts | None
    store_write_factor: float  # bytes written for a byte stored
    limits: Limits
    notes: list[str]
    schema: str = SCHEMA
    kind: str = "checkpoint"


def report_of(result: CheckpointResult) -> Report:
    """The report of a run."""
    sections = []
    groups = list(dict.fromkeys((trial.place, trial.size_bytes) for trial in result.trials))
    for place, size_bytes in groups:
        trials = [trial for trial in result.trials if (trial.place, trial.size_bytes) == (place, size_bytes)]
        sections.append(_section(f"{show_size(size_bytes)} to a {place}", trials, result))
    sections += [limits_section(result.limits), machine_section(result.head, [] if result.store is None else store_facts(result.store))]
    return Report(
        title="Checkpoint libraries, side by side",
        subtitle=f"{result.head.started_at}; each in a process of its own, every restored bit compared",
        tiles=[tile for place, size in groups for tile in _tiles(result, place, size)],
        sections=sections,
        warnings=result.notes,
    )


_HOW = [
    "blocked: until the state may be changed. durable: until every file is fsynced; where a library does not do that itself, the benchmark "
    "does, within the time. restore: from cold (page cache dropped where permitted) until every page of every array is in memory. "
    "memory: beyond the state itself, at the worst moment; a restore's includes the restored state where the library allocates it."
]


def _section(title: str, trials: list[Trial], result: CheckpointResult) -> Section:
    ran = [trial for trial in trials if trial.rounds]
    failed = [[trial.contender, trial.failure] for trial in trials if not trial.rounds]
    items: list[Table | Bars] = []
    if ran:
        items += [*_tables(ran, result), *_bars(ran, result)]
    if failed:
        items.append(Table(["did not run", "why"], failed, text_columns=2))
    names = [f"{trial.contender}: {CONTENDERS[trial.contender][0]}." for trial in ran]
    return Section(title, [*_HOW, " ".join(names)], items)


def _limit(trial: Trial, result: CheckpointResult) -> float:
    factor = result.store_write_factor if trial.place == "store" else 1.0
    return result.limits.direct_write_bytes_per_s / factor


def _tables(trials: list[Trial], result: CheckpointResult) -> list[Table]:
    times = ["library", "blocked", "durable", "GiB/s", "of limit", "restore", "GiB/s", "of limit", "objects"]
    costs = ["library", "memory: save", "restore", "CPU-s/GiB: save", "restore", "server", "stored", "moved"]
    return [
        Table(times, [_times(trial, result) for trial in trials]),
        Table(costs, [_costs(trial) for trial in trials]),
    ]


def _times(trial: Trial, result: CheckpointResult) -> list[str]:
    return [
        trial.contender,
        show_seconds(trial.median(lambda each: each.saved.blocked_s)),
        show_seconds(trial.median(lambda each: each.saved.durable_s)),
        f"{trial.save_bytes_per_s / GIB:.2f}",
        f"{trial.save_bytes_per_s / _limit(trial, result):.2f}",
        show_seconds(trial.median(lambda each: each.restored.restore_s)),
        f"{trial.restore_bytes_per_s / GIB:.2f}",
        f"{trial.restore_bytes_per_s / result.limits.direct_read_bytes_per_s:.2f}",
        str(trial.rounds[0].objects),
    ]


def _costs(trial: Trial) -> list[str]:
    gib = trial.state_bytes / GIB
    server = [each.server_cpu_s for each in trial.rounds if each.server_cpu_s is not None]
    return [
        trial.contender,
        show_size(trial.median(lambda each: each.saved.peak_extra_bytes)),
        show_size(trial.median(lambda each: each.restored.peak_extra_bytes)),
        f"{trial.median(lambda each: each.saved.cpu_s) / gib:.2f}",
        f"{trial.median(lambda each: each.restored.cpu_s) / gib:.2f}",
        f"{median_of(server) / gib:.2f}" if server else "",
        show_size(trial.median(lambda each: each.stored_bytes)),
        _moved(trial),
    ]


def _moved(trial: Trial) -> str:
    moved = [each.saved.moved_bytes for each in trial.rounds if each.saved.moved_bytes is not None]
    return f"{median_of(moved) / trial.state_bytes:.1%}" if moved else ""


def _bars(trials: list[Trial], result: CheckpointResult) -> list[Bars]:
    write_limit, read_limit = _limit(trials[0], result) / GIB, result.limits.direct_read_bytes_per_s / GIB
    saves = [_bar(trial, [trial.state_bytes / GIB / each.saved.durable_s for each in trial.rounds]) for trial in trials]
    restores = [_bar(trial, [trial.state_bytes / GIB / each.restored.restore_s for each in trial.rounds]) for trial in trials]
    blocked = [_bar(trial, [each.saved.blocked_s for each in trial.rounds], "{:.2f} s") for trial in trials]
    memory = [_bar(trial, [each.saved.peak_extra_bytes / trial.state_bytes for each in trial.rounds], "{:.2f}") for trial in trials]
    return [
        Bars("Durable save, GiB/s", saves, write_limit, "direct write"),
        Bars("Restore, GiB/s", restores, read_limit, "direct read"),
        Bars("Training blocked, seconds (shorter is better)", blocked),
        Bars("Extra memory of a save, times the state (shorter is better)", memory),
    ]


def _bar(trial: Trial, values: list[float], form: str = "{:.2f}") -> Bar:
    return Bar(trial.contender, median_of(values), form.format(median_of(values)), min(values), max(values))


def _tiles(result: CheckpointResult, place: str, size_bytes: int) -> list[Tile]:
    """Forebay's best against the best of the others, where both ran."""
    ran = [trial for trial in result.trials if trial.rounds and (trial.place, trial.size_bytes) == (place, size_bytes)]
    ours = [trial for trial in ran if trial.contender in ("forebay-jax", "forebay-torch")]
    others = [trial for trial in ran if not trial.contender.startswith("forebay")]
    if not ours or not others:
        return []
    where = f"{show_size(size_bytes)} to a {place}"
    picks: list[tuple[str, Callable[[Trial], float]]] = [
        ("durable save", lambda trial: trial.save_bytes_per_s),
        ("restore", lambda trial: trial.restore_bytes_per_s),
    ]
    tiles = []
    for name, pick in picks:
        our, other = max(ours, key=pick), max(others, key=pick)
        ratio = pick(our) / pick(other)
        note = f"{our.contender} {pick(our) / GIB:.2f} GiB/s, {other.contender} {pick(other) / GIB:.2f} GiB/s"
        level: Literal["good", "bad"] = "good" if ratio >= 1 else "bad"
        tiles.append(Tile(f"{name}, {where}", f"{ratio:.2f} times the best other", note, level))
    return tiles
