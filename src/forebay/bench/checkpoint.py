"""`forebay bench checkpoint`: Forebay beside the other checkpoint libraries, to a folder and to a store, in the same run."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forebay.bench.checkpoint_plan import CONTENDERS, Restored, Saved, SaveJob
from forebay.bench.checkpoint_result import CheckpointResult, Round, Trial
from forebay.bench.crew import Crew, Stretch
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, show_size
from forebay.bench.limits import Gauge
from forebay.bench.machine import filesystem_of
from forebay.bench.machine_report import unsteady
from forebay.bench.page_cache import drop_page_cache
from forebay.bench.result import Run
from forebay.bench.s3 import store_facts_of
from forebay.bench.store import Store, key_sizes, remove_keys
from forebay.bench.terminal import Show
from forebay.bench.wire import Connection

WORK = "forebay.bench.checkpoint_work"  # run as client processes, not imported
GAUGE_SECONDS = 3.0
ROOM_FACTOR = 2.5  # a save of a library may hold two copies on disk for a moment
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false"}
PACKAGES = ["jax", "torch", "safetensors", "orbax-checkpoint", "tensorstore", "s3torchconnector", "numpy", "obstore"]
FAILURE_LINES = 3


@dataclass(frozen=True)
class CheckpointOptions:
    """What to compare."""

    sizes_bytes: list[int] = field(default_factory=lambda: [GIB])
    contenders: list[str] = field(default_factory=lambda: list(CONTENDERS))
    repeats: int = 3

    def validate(self) -> None:
        """Raise BenchmarkFailed naming a contender that there is not."""
        for name in self.contenders:
            if name not in CONTENDERS:
                raise BenchmarkFailed(f"{name!r} is no contender: choose from {', '.join(CONTENDERS)}")


def run_checkpoint(options: CheckpointOptions, folder: Path | None, store: Store | None, bucket: str, show: Show) -> CheckpointResult:
    """Every contender at every size to `folder`, and those that can to `store`; rounds go through all contenders in turn."""
    options.validate()
    gauge_folder = folder or (None if store is None else store.limit_folder)
    if gauge_folder is None:
        raise BenchmarkFailed("the store's drives are not on this host: say --limit-dir, or give a folder with --dir")
    run, gauge = Run(), Gauge(gauge_folder, seconds=GAUGE_SECONDS)
    _require_space(options, gauge_folder)
    if filesystem_of(gauge_folder).is_memory:
        run.note(f"{gauge_folder} is memory, not a drive: nothing here says how fast a drive would be.")
    bench = _Bench(folder, store, bucket, run, show)
    for size_bytes in options.sizes_bytes:
        for _ in range(options.repeats):
            show.step("the machine's limits", 3 * gauge.seconds)
            gauge.sample()
            for place, contender in _pairs(options, folder, store):
                bench.round(contender, place, size_bytes)
    show.step("the machine's limits", 3 * gauge.seconds)
    gauge.sample()
    if (warning := unsteady(gauge.samples)) is not None:
        run.note(warning)
    return CheckpointResult(
        head=run.head([gauge_folder], PACKAGES),
        trials=list(bench.trials.values()),
        store=None if store is None else store_facts_of(store),
        store_write_factor=1.0 if store is None or store.geometry is None else store.geometry.write_factor,
        limits=gauge.limits(),
        notes=run.notes,
    )


def _pairs(options: CheckpointOptions, folder: Path | None, store: Store | None) -> list[tuple[str, str]]:
    pairs = [("folder", name) for name in options.contenders if folder is not None]
    return pairs + [("store", name) for name in options.contenders if store is not None and CONTENDERS[name][1]]


def _require_space(options: CheckpointOptions, folder: Path) -> None:
    wanted_bytes, free_bytes = int(max(options.sizes_bytes) * ROOM_FACTOR), filesystem_of(folder).free_bytes
    if free_bytes < wanted_bytes:
        raise BenchmarkFailed(f"{folder} has {show_size(free_bytes)} free and this run needs {show_size(wanted_bytes)}")


class _Bench:
    """Collects rounds into trials."""

    def __init__(self, folder: Path | None, store: Store | None, bucket: str, run: Run, show: Show) -> None:
        self._folder = folder
        self._store = store
        self._bucket = bucket
        self._run = run
        self._show = show
        self.trials: dict[tuple[str, str, int], Trial] = {}

    def round(self, contender: str, place: str, size_bytes: int) -> None:
        """One save and restore. A contender that fails once is left out from then on, with the reason."""
        key = (contender, place, size_bytes)
        trial = self.trials.setdefault(key, Trial(contender=contender, place=place, size_bytes=size_bytes, rounds=[]))
        if trial.failure:
            return
        self._show.step(f"{contender}, {show_size(size_bytes)} to a {place}", 0)
        try:
            done = self._in_folder(contender, size_bytes) if place == "folder" else self._in_store(contender, size_bytes)
            trial.rounds.append(done)
        except BenchmarkFailed as error:
            lines = "; ".join(str(error).strip().splitlines()[-FAILURE_LINES:])
            self.trials[key] = msgspec.structs.replace(trial, rounds=[], failure=lines)
            self._run.note(f"{contender} failed to a {place} at {show_size(size_bytes)} and is left out.")

    def _in_folder(self, contender: str, size_bytes: int) -> Round:
        assert self._folder is not None
        with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=self._folder) as root:
            target = Path(root) / "checkpoint"
            save, restore = self._stretches(SaveJob(contender=contender, size_bytes=size_bytes, seed=1, target=str(target)))
            sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
        return _round(save, restore, sizes)

    def _in_store(self, contender: str, size_bytes: int) -> Round:
        assert self._store is not None
        prefix = f"checkpoint-{secrets.token_hex(4)}"
        job = SaveJob(
            contender=contender, size_bytes=size_bytes, seed=1, target=f"s3://{self._bucket}/{prefix}", endpoint=self._store.endpoint
        )
        try:
            save, restore = self._stretches(job)
            connection = Connection(self._store.endpoint)
            sizes = key_sizes(connection, self._bucket, f"{prefix}/")
            connection.close()
        finally:
            connection = Connection(self._store.endpoint)
            remove_keys(connection, self._bucket, prefix)
            connection.close()
        return _round(save, restore, sizes)

    def _stretches(self, job: SaveJob) -> tuple[Stretch, Stretch]:
        cpu = (lambda: None) if self._store is None or job.endpoint is None else self._store.cpu_seconds
        with Crew(WORK, [msgspec.to_builtins(job)], environment=ENVIRONMENT, server_cpu=cpu) as crew:
            save = crew.stretch("save", "restore")
            if not drop_page_cache():
                self._run.note("The page cache could not be dropped before restores (that takes root): they may read from memory.")
            return save, crew.stretch("restore", "end")


def _round(save: Stretch, restore: Stretch, sizes_bytes: list[int]) -> Round:
    server_cpu_s = None
    if save.server_cpu_s is not None and restore.server_cpu_s is not None:
        server_cpu_s = save.server_cpu_s + restore.server_cpu_s
    return Round(
        saved=msgspec.convert(save.reports[0], Saved),
        restored=msgspec.convert(restore.reports[0], Restored),
        objects=len(sizes_bytes),
        stored_bytes=sum(sizes_bytes),
        server_cpu_s=server_cpu_s,
    )
