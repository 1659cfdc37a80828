"""A client process of `forebay bench checkpoint`: one library, one save, one restore, every bit compared."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from forebay.bench.checkpoint_plan import ITEM_BYTES, Restored, Saved, SaveJob, state_shapes
from forebay.bench.contenders import MAKERS, Arrays, ForebayAgain
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.seat import Seat, client_main, cpu_seconds

WARMUP_BYTES = 1 << 20
PAGE_BYTES = 4096

ValueType = TypeVar("ValueType")


def work(seat: Seat) -> dict[str, Any]:
    """The client process: barriers `save`, `restore` and `end`."""
    job = msgspec.convert(seat.job, SaveJob)
    make = MAKERS[job.contender]
    if job.endpoint is not None:
        os.environ.update(AWS_ACCESS_KEY_ID=job.endpoint.access_key, AWS_SECRET_ACCESS_KEY=job.endpoint.secret_key)
        os.environ.update(AWS_ENDPOINT_URL=job.endpoint.url, AWS_REGION=job.endpoint.region)
    _warm_up(job)
    arrays = _state(job)
    contender = make(arrays, job.endpoint)
    if isinstance(contender, ForebayAgain):
        contender.prepare(job.target)
        arrays = contender.arrays_of(contender.state)
    seat.barrier("save")
    saved = _save(job, contender, arrays)
    seat.barrier("restore", msgspec.to_builtins(saved))
    restored, peak_bytes, restore_s, cpu_s = _watched(lambda: _in_memory(contender.arrays_of(contender.restore(job.target))))
    _require_equal(job.contender, arrays, restored)
    report: dict[str, Any] = msgspec.to_builtins(Restored(restore_s=restore_s, cpu_s=cpu_s, peak_extra_bytes=peak_bytes))
    return report


def _state(job: SaveJob) -> Arrays:
    generator = np.random.default_rng(job.seed)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in state_shapes(job.size_bytes).items()}


def _warm_up(job: SaveJob) -> None:
    """Import and initialise everything on a tiny state, so that the timed save is not a process's first."""
    arrays = {name: np.zeros(shape, np.float32) for name, shape in state_shapes(WARMUP_BYTES).items()}
    contender = MAKERS[job.contender](arrays, job.endpoint)
    with tempfile.TemporaryDirectory(dir=None if job.endpoint else Path(job.target).parent) as folder:
        target = f"{job.target}-warm-up" if job.endpoint else f"{folder}/warm-up"
        if isinstance(contender, ForebayAgain):
            contender.prepare(target)
        contender.save(target)()
        contender.restore(target)


def _in_memory(arrays: Arrays) -> Arrays:
    """Read a byte of every page: some libraries only map the file and let later reads wait for the disk."""
    for array in arrays.values():
        array.reshape(-1).view(np.uint8)[::PAGE_BYTES].max(initial=0)
    return arrays


def _save(job: SaveJob, contender: Any, arrays: Arrays) -> Saved:
    marks: dict[str, float] = {}

    def save() -> None:
        start_s = time.monotonic()
        wait = contender.save(job.target)
        marks["blocked_s"] = time.monotonic() - start_s
        wait()
        if job.endpoint is None:
            _sync_all(Path(job.target))

    _, peak_bytes, durable_s, cpu_s = _watched(save)
    return Saved(
        state_bytes=sum(array.size for array in arrays.values()) * ITEM_BYTES,
        arrays=len(arrays),
        blocked_s=marks["blocked_s"],
        durable_s=durable_s,
        cpu_s=cpu_s,
        peak_extra_bytes=peak_bytes,
        moved_bytes=contender.moved_bytes if isinstance(contender, ForebayAgain) else None,
    )


def _watched(act: Callable[[], ValueType]) -> tuple[ValueType, int, float, float]:
    """The result of `act`, the memory that it took at its peak beyond what was there before, its seconds and CPU seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (proc(5))
    before_bytes = _status_bytes("VmRSS")
    cpu_s, start_s = cpu_seconds(), time.monotonic()
    result = act()
    seconds, cpu_s = time.monotonic() - start_s, cpu_seconds() - cpu_s
    return result, max(0, _status_bytes("VmHWM") - before_bytes), seconds, cpu_s


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise BenchmarkFailed(f"/proc/self/status has no {name}")


def _sync_all(folder: Path) -> None:
    """fsync every file and folder of a checkpoint, and the folder above: what a crash would need to have been done."""
    for path in [folder.parent, folder, *folder.rglob("*")]:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _require_equal(contender: str, expected: Arrays, got: Arrays) -> None:
    if expected.keys() != got.keys():
        raise BenchmarkFailed(f"{contender} restored other names: {sorted(expected.keys() ^ got.keys())[:5]}")
    for name, array in expected.items():
        if array.dtype != got[name].dtype or not np.array_equal(array.view(np.uint32), np.asarray(got[name]).view(np.uint32)):
            raise BenchmarkFailed(f"{contender} restored {name} with other bits")


if __name__ == "__main__":
    client_main(work)
