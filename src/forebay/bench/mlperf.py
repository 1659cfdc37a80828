"""`forebay bench mlperf`.

The MLPerf Storage checkpointing workload, with barriers, exact bytes, and honest figures beside the usual ones.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from forebay.bench.crew import Crew, Stretch
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, show_size
from forebay.bench.limits import Gauge, Limits
from forebay.bench.machine import filesystem_of
from forebay.bench.machine_report import unsteady
from forebay.bench.mlperf_plan import PART_BYTES, RankJob, Workload
from forebay.bench.mlperf_result import Direction, MlperfResult, direction_of, reference_metric
from forebay.bench.page_cache import drop_page_cache
from forebay.bench.result import Run
from forebay.bench.s3 import store_facts_of
from forebay.bench.store import Geometry, Store, remove_keys
from forebay.bench.tally import Tally, put_together
from forebay.bench.terminal import Show
from forebay.bench.wire import Connection

WORK = "forebay.bench.mlperf_work"  # run as client processes, not imported
FOLDER_CLIENTS = ("forebay", "posix")
S3_CLIENTS = ("forebay", "wire", "boto3", "s3torchconnector", "s3dlio")
STREAMING_CLIENTS = ("s3torchconnector", "s3dlio")
GAUGE_SECONDS = 4.0


@dataclass(frozen=True)
class MlperfOptions:
    """What to do, and what may be left out."""

    workload: Workload
    client: str
    writes: int = 10
    reads: int = 10
    pause_s: float = 5.0
    drop_caches: bool = True
    verify: bool = True


@dataclass(frozen=True)
class Target:
    """Where the checkpoints go: a bucket's prefix on a store, or a folder (then `store` is None)."""

    url: str
    store: Store | None

    def validate_client(self, client: str) -> None:
        """Raise BenchmarkFailed for a client that cannot reach this target."""
        known = FOLDER_CLIENTS if self.store is None else S3_CLIENTS
        if client not in known:
            raise BenchmarkFailed(f"{client!r} cannot write to {self.url}: choose from {', '.join(known)}")

    @property
    def folder(self) -> Path | None:
        """A folder on the filesystem that takes the bytes, if it is on this host."""
        return Path(self.url).parent if self.store is None else self.store.limit_folder

    @property
    def geometry(self) -> Geometry | None:
        """How bytes are spread there."""
        return Geometry() if self.store is None else self.store.geometry


@contextmanager
def folder_target(path: Path) -> Iterator[Target]:
    """A new folder below `path`, removed afterwards."""
    if not path.is_dir():
        raise BenchmarkFailed(f"{path} is not a folder: make it first, on the filesystem to be measured")
    folder = path.resolve() / f"mlperf-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield Target(str(folder), None)
    finally:
        shutil.rmtree(folder)


@contextmanager
def store_target(store: Store, bucket: str, prefix: str = "") -> Iterator[Target]:
    """A new prefix in `bucket` (made if there is none of that name), emptied afterwards unless the store goes anyway."""
    prefix = f"{prefix.strip('/')}/mlperf-{secrets.token_hex(4)}".lstrip("/")
    connection = Connection(store.endpoint)
    connection.request("PUT", f"/{bucket}", expect=(200, 409))
    connection.close()
    try:
        yield Target(f"s3://{bucket}/{prefix}", store)
    finally:
        if not store.started_here:
            connection = Connection(store.endpoint)
            remove_keys(connection, bucket, prefix)
            connection.close()


def run_mlperf(options: MlperfOptions, target: Target, show: Show) -> MlperfResult:
    """Run the workload on `target`."""
    target.validate_client(options.client)
    run, workload = Run(), options.workload
    start = _now()
    gauge = None if target.folder is None else Gauge(target.folder, seconds=GAUGE_SECONDS)
    _require_space(options, target)
    if gauge is not None:
        show.step("the machine's limits", 3 * gauge.seconds)
        gauge.sample()
    stretches = _run_ranks(options, target, run, show)
    if gauge is not None:
        show.step("the machine's limits", 3 * gauge.seconds)
        gauge.sample()
    write, read = (_direction(options, target, stretches, verb, gauge) for verb in ("write", "read"))
    generation = stretches["generate"][0]
    generated_bytes = sum(report["bytes"] for report in generation.reports)
    _take_notes(options, target, run, gauge)
    return MlperfResult(
        start=start,
        end=_now(),
        num_accelerators=workload.processes,
        num_hosts=1,
        hostname=socket.gethostname(),
        metric=reference_metric(workload.checkpoint_bytes, write, read),
        head=run.head([] if target.folder is None else [target.folder], ["boto3", "s3torchconnector", "s3dlio", "obstore", "awscrt"]),
        model=workload.model.name,
        processes=workload.processes,
        scale=str(workload.scale),
        is_comparable=workload.is_comparable,
        checkpoint_bytes=workload.checkpoint_bytes,
        objects_per_checkpoint=2 * workload.processes,
        part_bytes=PART_BYTES,
        in_flight_per_process=workload.in_flight,
        client=options.client,
        target=target.url if target.store is None else f"{target.store.endpoint.url}, {target.url}",
        write=write,
        read=read,
        generation_bytes_per_s=generated_bytes / generation.seconds,
        generation_cpu_s_per_gib=generation.client_cpu_s / (generated_bytes / GIB),
        verified_checkpoints=1 if options.verify else 0,
        settings=_settings(options, target),
        store=None if target.store is None else store_facts_of(target.store),
        limits=None if gauge is None else gauge.limits(),
        notes=run.notes,
    )


def _run_ranks(options: MlperfOptions, target: Target, run: Run, show: Show) -> dict[str, list[Stretch]]:
    """Every rank through every stretch; the stretches by verb."""
    verbs = [("generate", 1), ("write", options.writes), ("read", options.reads), ("verify", int(options.verify))]
    names = ["generate"] + [f"{verb} {number}" for verb, count in verbs[1:] for number in range(count)] + ["end"]
    stretches: dict[str, list[Stretch]] = {verb: [] for verb, _ in verbs}
    cpu = (lambda: None) if target.store is None else target.store.cpu_seconds
    with Crew(WORK, _jobs(options, target), server_cpu=cpu, on_progress=show.moved) as crew:
        show.step("starting the ranks", 0)
        crew.arrive(names[0])
        for name, following in pairwise(names):
            verb = name.split()[0]
            if name == "read 0" and options.drop_caches and not drop_page_cache():
                run.note("The page cache could not be dropped between writes and reads (that takes root): reads may come from memory.")
            if verb in ("write", "read") and name != "write 0":
                show.step("pause", options.pause_s)
                time.sleep(options.pause_s)
            show.step(name, 0)
            stretches[verb].append(crew.stretch(name, following))
    return stretches


def _jobs(options: MlperfOptions, target: Target) -> list[dict[str, Any]]:
    workload = options.workload
    seed = secrets.token_hex(8)
    return [
        msgspec.to_builtins(
            RankJob(
                target=target.url,
                endpoint=None if target.store is None else target.store.endpoint,
                client=options.client,
                objects=workload.objects(rank),
                in_flight=workload.in_flight,
                seed=seed,
                writes=options.writes,
                reads=options.reads,
                verifies=int(options.verify),
            )
        )
        for rank in range(workload.processes)
    ]


def _direction(
    options: MlperfOptions, target: Target, stretches: dict[str, list[Stretch]], verb: str, gauge: Gauge | None
) -> Direction | None:
    found = stretches[verb]
    if not found:
        return None
    tally = put_together(msgspec.convert(report, Tally, strict=False) for stretch in found for report in stretch.reports)
    total_gib = options.workload.checkpoint_bytes * len(found) / GIB
    server_cpu_s = [stretch.server_cpu_s for stretch in found if stretch.server_cpu_s is not None]
    streams = verb == "write" and options.client in STREAMING_CLIENTS
    return direction_of(
        options.workload.checkpoint_bytes,
        [stretch.seconds for stretch in found],
        parts=tally.operations,
        part_latency_p50_s=tally.latency_percentile_s(50),
        part_latency_p99_s=tally.latency_percentile_s(99),
        part_latency_max_s=tally.latency_percentile_s(100),
        part_latency_is_of="object" if streams else "part" if verb == "write" else "range",
        client_cpu_s_per_gib=sum(stretch.client_cpu_s for stretch in found) / total_gib,
        server_cpu_s_per_gib=sum(server_cpu_s) / total_gib if server_cpu_s else None,
        limit_bytes_per_s=None if gauge is None else _limit(gauge.limits(), target.geometry, verb),
    )


def _limit(limits: Limits, geometry: Geometry | None, verb: str) -> float | None:
    if verb == "read":
        return limits.direct_read_bytes_per_s
    return None if geometry is None else limits.direct_write_bytes_per_s / geometry.write_factor


def _require_space(options: MlperfOptions, target: Target) -> None:
    if target.folder is None:
        return
    factor = 1.0 if target.geometry is None else target.geometry.write_factor
    wanted_bytes = int(options.workload.checkpoint_bytes * options.writes * factor * 1.02)
    free_bytes = filesystem_of(target.folder).free_bytes
    if free_bytes < wanted_bytes:
        raise BenchmarkFailed(
            f"{target.folder} has {show_size(free_bytes)} free and this run writes {show_size(wanted_bytes)}: "
            "choose a smaller --scale, such as 1/64, or fewer --writes"
        )


def _take_notes(options: MlperfOptions, target: Target, run: Run, gauge: Gauge | None) -> None:
    if not options.drop_caches and options.reads:
        run.note("The page cache was not dropped between writes and reads: reads may come from memory.")
    if gauge is None:
        run.note("The machine's limits were not measured: say --limit-dir FOLDER, on the filesystem of the store's drives.")
        return
    if filesystem_of(gauge.folder).is_memory:
        run.note(f"{gauge.folder} is memory, not a drive: nothing here says how fast a drive would be.")
    if (warning := unsteady(gauge.samples)) is not None:
        run.note(warning)


def _settings(options: MlperfOptions, target: Target) -> list[tuple[str, str]]:
    if target.store is None:
        durability = "fsync of every file, inside the timed write"
        placement = "the folder is on this host"
    else:
        durability = "when the store acknowledges (Forebay: after fdatasync on a write quorum of drives)"
        placement = "same host as the store, over loopback" if target.store.process_roots else "another host than the store"
    return [
        ("target", target.url),
        ("durability", durability),
        ("erasure geometry", "unknown" if target.geometry is None else str(target.geometry)),
        ("client placement", placement),
        ("pause between checkpoints", f"{options.pause_s:g} s, not timed"),
        ("page cache between writes and reads", "dropped on this host, where permitted" if options.drop_caches else "kept"),
    ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
