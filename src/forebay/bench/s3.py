"""`forebay bench s3`.

Puts, gets, a mix and listings, by client processes of their own, against the machine's limits.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay.bench.crew import Crew, Stretch
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.figures import GIB, KIB, MIB, show_size
from forebay.bench.limits import Gauge
from forebay.bench.machine import filesystem_of
from forebay.bench.machine_report import unsteady
from forebay.bench.page_cache import drop_page_cache
from forebay.bench.result import Run
from forebay.bench.s3_plan import stretch_name
from forebay.bench.s3_result import Measurement, Reading, S3Result, StoreFacts
from forebay.bench.store import Store, bucket_for_run, remove_keys
from forebay.bench.tally import TIMELINE_STEP_S, Tally, put_together
from forebay.bench.terminal import Show
from forebay.bench.wire import Connection

OPERATIONS = ("put", "get", "mixed", "list")
SMALL_BYTES_MAX = 256 * KIB
GAUGE_SECONDS_MAX = 5.0  # as long as the stretches that it judges: disks take short bursts faster
SETTLE_S = 0.5  # after deleting what a stretch wrote
WORK = "forebay.bench.s3_work"  # run as client processes, not imported


@dataclass(frozen=True)
class S3Options:
    """What to measure. None stands for a default that depends on the size of the objects."""

    operations: list[str] = field(default_factory=lambda: ["put", "get", "mixed", "list"])
    sizes_bytes: list[int] = field(default_factory=lambda: [4 * KIB, 64 * MIB])
    connections: int | None = None  # 32 small, 4 large
    processes: int | None = None  # half the cores small, as many as cores large
    seconds: float = 5.0
    warmup_s: float = 1.0
    repeats: int = 3
    objects: int | None = None  # 10,000 small; 1 GiB worth large, at least 8
    payload_check: str | None = None  # sha256 small, crc64nvme large
    mixed_get_share: float = 0.7
    list_keys: list[int] = field(default_factory=lambda: [2_000, 20_000])

    def validate(self) -> None:
        """Raise BenchmarkFailed naming the first option that makes no sense."""
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise BenchmarkFailed(f"{operation!r} is no operation: choose from {', '.join(OPERATIONS)}")
        if self.payload_check not in (None, "sha256", "crc64nvme", "none"):
            raise BenchmarkFailed(f"{self.payload_check!r} is no payload check: choose sha256, crc64nvme or none")
        for name in ("connections", "processes", "seconds", "repeats", "objects"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise BenchmarkFailed(f"{name} must be above zero, not {value}")


def run_s3(options: S3Options, store: Store, bucket: str | None, show: Show) -> S3Result:
    """Measure `store`. What is written is removed again, or goes with the store that the benchmark started."""
    options.validate()
    run = Run()
    gauge = None if store.limit_folder is None else Gauge(store.limit_folder, seconds=min(options.seconds, GAUGE_SECONDS_MAX))
    if gauge is not None and filesystem_of(gauge.folder).is_memory:
        run.note(f"{gauge.folder} is memory, not a drive: nothing here says how fast a drive would be.")
    if gauge is None:
        run.note("The machine's limits were not measured: say --limit-dir FOLDER, on the filesystem of the store's drives.")
    transfers = [operation for operation in options.operations if operation != "list"]
    measurements: list[Measurement] = []
    with bucket_for_run(store.endpoint, bucket, keep=store.started_here) as name:
        bench = _Bench(options, store, name, show, run, gauge)
        for size_bytes in options.sizes_bytes if transfers else []:
            measurements += bench.transfers(transfers, size_bytes)
    if "list" in options.operations:
        for keys in options.list_keys:
            with bucket_for_run(store.endpoint, None, keep=store.started_here) as name:
                measurements.append(_Bench(options, store, name, show, run, gauge).listing(keys))
    return _result(run, store, measurements, gauge)


def _result(run: Run, store: Store, measurements: list[Measurement], gauge: Gauge | None) -> S3Result:
    if gauge is not None and (warning := unsteady(gauge.samples)) is not None:
        run.note(warning)
    limits = gauge.limits() if gauge is not None and gauge.samples else None
    if store.geometry is None and limits is not None:
        run.note("The store's erasure geometry is unknown: say --geometry 3+1, or its writes are compared with an uncoded limit.")
    facts = store_facts_of(store)
    if limits is not None:
        write_factor = 1.0 if store.geometry is None else store.geometry.write_factor
        ceilings = {"put": limits.direct_write_bytes_per_s / write_factor, "get": limits.direct_read_bytes_per_s}
        measurements = [msgspec.structs.replace(each, limit_bytes_per_s=ceilings.get(each.operation)) for each in measurements]
    folders = [] if gauge is None else [gauge.folder]
    head = run.head(folders, ["uvloop", "awscrt", "cryptography"])
    return S3Result(head=head, store=facts, measurements=measurements, limits=limits, notes=run.notes)


def store_facts_of(store: Store) -> StoreFacts:
    """What the result says of the store."""
    return StoreFacts(
        endpoint=f"{store.endpoint.url}{' by its UNIX socket' if store.endpoint.by_unix_socket else ''}",
        geometry="unknown" if store.geometry is None else str(store.geometry),
        started_by_benchmark=store.started_here,
        on_this_host=bool(store.process_roots),
        peak_resident_bytes=store.peak_resident_bytes(),
        reported=store.facts(),
    )


class _Bench:
    """One bucket's worth of measuring."""

    def __init__(self, options: S3Options, store: Store, bucket: str, show: Show, run: Run, gauge: Gauge | None) -> None:
        self.options = options
        self.store = store
        self.bucket = bucket
        self.show = show
        self.run = run
        self.gauge = gauge
        self.prefix = f"run-{secrets.token_hex(3)}/"

    def transfers(self, operations: list[str], size_bytes: int) -> list[Measurement]:
        """Every operation at one size: fill, warm up, then as many readings as asked, the limits sampled between."""
        options, small = self.options, size_bytes <= SMALL_BYTES_MAX
        setup = {
            "size_bytes": size_bytes,
            "objects": options.objects or (10_000 if small else max(8, GIB // size_bytes)),
            "small": small,
            "payload_check": options.payload_check or ("sha256" if small else "crc64nvme"),
        }
        fill = [] if operations == ["put"] else [("fill", 0.0)]
        warm = [(operation, options.warmup_s) for operation in operations if options.warmup_s]
        timed = [(operation, options.seconds) for operation in operations] * options.repeats
        connections = options.connections or (32 if small else 4)
        processes = options.processes or (max(1, _cores() // 2) if small else _cores())
        jobs = self._jobs(setup, fill + warm + timed, connections, processes)
        first = len(fill + warm)
        rounds = [first] if small else range(first, first + len(timed) + 1, len(operations))
        readings = self._readings(jobs, fill + warm + timed, sample_before=rounds)[first:]
        return [self._measurement(operation, setup, jobs, readings[index :: len(operations)]) for index, operation in enumerate(operations)]

    def listing(self, keys: int) -> Measurement:
        """The latency of a page of 1,000 at random places of a bucket of `keys` empty objects, one client."""
        setup = {"size_bytes": 0, "objects": keys, "small": True, "payload_check": "sha256"}
        fill = [("fill", 0.0)]
        self._readings(self._jobs(setup, fill, 64, 1), fill)
        timed = [("list", self.options.warmup_s or 0.1)] + [("list", self.options.seconds)] * self.options.repeats
        jobs = self._jobs(setup, timed, 1, 1)
        return self._measurement("list", setup, jobs, self._readings(jobs, timed)[1:])

    def _measurement(self, operation: str, setup: dict[str, Any], jobs: list[dict[str, Any]], readings: list[Reading]) -> Measurement:
        return Measurement(
            operation=operation,
            size_bytes=setup["size_bytes"],
            objects=setup["objects"],
            connections=sum(job["connections"] for job in jobs),
            processes=len(jobs),
            payload_check=setup["payload_check"],
            readings=readings,
        )

    def _jobs(self, setup: dict[str, Any], stretches: list[tuple[str, float]], connections: int, processes: int) -> list[dict[str, Any]]:
        processes = min(processes, connections)
        common = {
            "endpoint": msgspec.structs.asdict(self.store.endpoint),
            "bucket": self.bucket,
            "prefix": f"{self.prefix}{setup['size_bytes']}/",
            "seed": f"{self.prefix}{setup['size_bytes']}",
            "mixed_get_share": self.options.mixed_get_share,
            "stretches": [{"operation": operation, "seconds": seconds} for operation, seconds in stretches],
        }
        shares = [connections // processes + (index < connections % processes) for index in range(processes)]
        return [{**common, **setup, "connections": share} for share in shares]

    def _readings(
        self, jobs: list[dict[str, Any]], stretches: list[tuple[str, float]], sample_before: Container[int] = ()
    ) -> list[Reading]:
        """Run the stretches, one reading each.

        The limits are sampled before those stretches, while the clients wait.
        """
        names = [stretch_name(index, operation) for index, (operation, _) in enumerate(stretches)] + ["end"]
        readings: list[Reading] = []
        with Crew(WORK, jobs, server_cpu=self.store.cpu_seconds, on_progress=self.show.moved) as crew:
            crew.arrive(names[0])
            for index, (operation, seconds) in enumerate(stretches):
                if index in sample_before:
                    self._sample_limits()
                self._require_space(operation, seconds)
                self.show.step(f"{operation} {show_size(jobs[0]['size_bytes'])}", seconds)
                readings.append(_reading(crew.stretch(names[index], names[index + 1])))
                self._clean_up(operation, jobs[0]["prefix"])
            if len(stretches) in sample_before:
                self._sample_limits()
        return readings

    def _sample_limits(self) -> None:
        if self.gauge is not None:
            self.show.step("the machine's limits", 3 * self.gauge.seconds)
            self.gauge.sample()

    def _require_space(self, operation: str, seconds: float) -> None:
        """Refuse to start what may fill the drives: as many bytes as the disk can take in that time, and some more."""
        if self.gauge is None or not self.gauge.samples or operation not in ("put", "mixed"):
            return
        free_bytes = filesystem_of(self.gauge.folder).free_bytes
        wanted_bytes = self.gauge.samples[-1].direct_write_bytes_per_s * seconds * 1.5
        if free_bytes < wanted_bytes:
            raise BenchmarkFailed(
                f"{self.gauge.folder} has {show_size(free_bytes)} free, and {operation} for {seconds} s may write "
                f"{show_size(wanted_bytes)}: make room or lower --seconds"
            )

    def _clean_up(self, operation: str, prefix: str) -> None:
        """After a stretch, outside of all timing.

        Remove what it wrote, or make sure that what comes next is read from drives.
        """
        if operation in ("put", "mixed"):
            self.show.step("removing what was written", 0)
            connection = Connection(self.store.endpoint)
            remove_keys(connection, self.bucket, f"{prefix}new/")
            connection.close()
            time.sleep(SETTLE_S)
        if operation == "fill" and self.store.process_roots and not drop_page_cache():
            self.run.note("The page cache could not be dropped before reading (that takes root).")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _reading(stretch: Stretch) -> Reading:
    tally = put_together(msgspec.convert(report, Tally, strict=False) for report in stretch.reports)
    steps = int(tally.window_s / TIMELINE_STEP_S)
    reads = tally.read_operations
    return Reading(
        operations_per_s=tally.operations_per_s,
        bytes_per_s=tally.bytes_per_s,
        operations=tally.operations,
        bytes=tally.bytes,
        latency_p50_s=tally.latency_percentile_s(50),
        latency_p90_s=tally.latency_percentile_s(90),
        latency_p99_s=tally.latency_percentile_s(99),
        latency_max_s=tally.latency_percentile_s(100),
        verified_share=tally.verified_operations / reads if reads else 0.0,
        client_cpu_s=stretch.client_cpu_s,
        server_cpu_s=stretch.server_cpu_s,
        timeline_bytes_per_s=[tally.timeline_bytes.get(step, 0.0) / TIMELINE_STEP_S for step in range(steps)],
    )
