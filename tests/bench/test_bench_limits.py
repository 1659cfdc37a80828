"""The machine's limits: plausible, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.limits import BLOCK_BYTES, Gauge, LimitSample
from forebay.bench.machine import describe, filesystem_of
from forebay.bench.machine_report import unsteady

MIB = 1 << 20


def test_limits_are_plausible_and_leave_nothing(tmp_path: Path) -> None:
    gauge = Gauge(tmp_path, threads=2, seconds=0.2)
    gauge.sample()
    limits = gauge.limits()
    assert MIB < limits.direct_write_bytes_per_s < 1 << 40
    assert MIB < limits.direct_read_bytes_per_s < 1 << 40
    assert 50 * MIB < limits.loopback_bytes_per_s < 1 << 40
    assert 0 <= limits.samples[0].direct_write_cpu_s_per_gib < 30
    assert (limits.threads, limits.block_bytes) == (2, BLOCK_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises((BenchmarkFailed, FileNotFoundError), match="nowhere"):
        Gauge(tmp_path / "nowhere", seconds=0.1).sample()


def sample(write: float, read: float) -> LimitSample:
    return LimitSample(
        direct_write_bytes_per_s=write, direct_read_bytes_per_s=read, loopback_bytes_per_s=1.0, direct_write_cpu_s_per_gib=0.0,
        direct_read_cpu_s_per_gib=0.0, loopback_cpu_s_per_gib=0.0,
    )  # fmt: skip


def test_a_moving_limit_is_pointed_out() -> None:
    assert unsteady([sample(100, 100)]) is None
    assert unsteady([sample(100, 100), sample(110, 90)]) is None
    assert "write" in (unsteady([sample(100, 100), sample(130, 100)]) or "")
    assert "read" in (unsteady([sample(100, 100), sample(100, 70)]) or "")


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = describe([tmp_path], ["pytest", "no-such-distribution"])
    assert machine.cores >= 1 and machine.memory_bytes > 64 * MIB and machine.cpu
    assert set(machine.versions) == {"pytest"}
    [found] = machine.filesystems
    assert found.folder == str(tmp_path) and found.free_bytes > 0
    assert "unknown" not in (found.type, found.device)
    assert msgspec.json.decode(msgspec.json.encode(machine), type=type(machine)) == machine


def test_memory_is_recognised() -> None:
    assert filesystem_of(Path("/dev/shm")).is_memory
    assert not filesystem_of(Path("/proc")).is_memory
