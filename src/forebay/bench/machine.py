"""What the figures were measured on: the host, the drives' filesystem, and the versions of what took part."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import msgspec


class Filesystem(msgspec.Struct, frozen=True, kw_only=True):
    """The filesystem that holds a folder."""

    folder: str
    type: str
    device: str
    free_bytes: int

    @property
    def is_memory(self) -> bool:
        """Whether it keeps its files in RAM, so that nothing measured on it says anything about a drive."""
        return self.type in {"tmpfs", "ramfs"}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A host as the report describes it."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    filesystems: list[Filesystem]
    versions: dict[str, str]


def describe(folders: list[Path], packages: list[str]) -> Machine:
    """Describe this host.

    `packages` names the distributions whose versions matter (those not installed are left out).
    """
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        filesystems=[filesystem_of(folder) for folder in folders],
        versions={name: version for name in packages if (version := _version(name)) is not None},
    )


def filesystem_of(folder: Path) -> Filesystem:
    """The filesystem of an existing folder, found in the mount table by its device number."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kind, source = "unknown", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            kind, source = after.split()[:2]
    return Filesystem(folder=str(folder), type=kind, device=source, free_bytes=shutil.disk_usage(folder).free)


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
