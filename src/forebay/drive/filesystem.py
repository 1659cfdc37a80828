"""What lies under a folder: which filesystem, and whether it is a drive of ours, a fresh one or an unmounted one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from forebay.drive.failures import Reporting
from forebay.drive.layout import IDENTITY_DRAFT_PREFIX, IDENTITY_FILE

FS_IOC_GETFSUUID = 0x80111500  # linux/fs.h, since Linux 6.9: struct fsuuid2 { u8 len; u8 uuid[16]; }
FRESH_FILESYSTEM = frozenset({"lost+found"})  # what mkfs itself leaves in a new filesystem


class FolderKind(Enum):
    """What `classify_folder` found. MISSING and EMPTY may be formatted, the others must not be touched."""

    MISSING = "missing"  # no such folder, and nothing suspicious about that
    EMPTY = "empty"  # nothing in it, and nothing suspicious about that
    OURS = "ours"  # holds a forebay.json
    FOREIGN = "foreign"  # holds something else, or is no folder
    UNMOUNTED = "unmounted"  # nothing there, but on another filesystem than the peers remember: its disk may be away


def filesystem_identity(path: str) -> str:
    """A name of the filesystem under `path`: it survives a restart and differs between filesystems. Raises DriveFailed.

    The filesystem's UUID where the kernel tells it, else its `f_fsid` (derived from the UUID on ext4 and btrfs, from the
    device number on XFS), else type and source of the mount.
    """
    with Reporting(path, "identify the filesystem"):
        uuid = _uuid(path)
        if uuid is not None:
            return f"uuid:{uuid}"
        number = os.statvfs(path).f_fsid
        return f"fsid:{number:016x}" if number else f"mount:{_mount_of(path).source}"


def classify_folder(path: str, remembered: Collection[str] = ()) -> FolderKind:
    """Say what `path` is; `remembered` are the filesystem identities that the peers recorded for this position.

    An emptied drive lies on the filesystem that is remembered; of a replaced one, another whole filesystem is mounted
    right there. Anything else that is empty while another filesystem is remembered may be the bare mount point of a disk
    that is not there, also one handed into a container: in doubt, it is UNMOUNTED. Raises DriveFailed if the folder
    cannot be read.
    """
    folder = Path(path).absolute()
    with Reporting(path, "look at the folder"):
        try:
            names = {entry.name for entry in folder.iterdir()}
        except FileNotFoundError:
            nearest = next(parent for parent in folder.parents if parent.exists())
            known = not remembered or filesystem_identity(str(nearest)) in remembered
            return FolderKind.MISSING if known else FolderKind.UNMOUNTED
        except NotADirectoryError:
            return FolderKind.FOREIGN
    if IDENTITY_FILE in names:
        return FolderKind.OURS
    if not is_blank(names):
        return FolderKind.FOREIGN
    known = not remembered or _is_mounted_disk(path) or filesystem_identity(path) in remembered
    return FolderKind.EMPTY if known else FolderKind.UNMOUNTED


def is_blank(names: Collection[str]) -> bool:
    """Whether a folder with these names holds nothing of anybody's: an interrupted format leaves only drafts."""
    return all(name in FRESH_FILESYSTEM or name.startswith(IDENTITY_DRAFT_PREFIX) for name in names)


def _uuid(path: str) -> str | None:
    answer = bytearray(17)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, FS_IOC_GETFSUUID, answer)
    except OSError:  # an older kernel, or a filesystem without a UUID
        return None
    finally:
        os.close(descriptor)
    uuid = answer[1 : 1 + answer[0]]
    return uuid.hex() if any(uuid) else None


class _Mount(NamedTuple):
    point: str  # where it is mounted
    root: str  # what of its filesystem is: `/` unless it is a bind mount or a subvolume
    source: str  # type:device


def _is_mounted_disk(path: str) -> bool:
    """Whether `path` is where a whole filesystem is mounted."""
    mount = _mount_of(path)
    return mount.point == os.path.realpath(path) and mount.root == "/"


def _mount_of(path: str) -> _Mount:
    """The mount that `path` is on, by /proc/self/mountinfo (proc_pid_mountinfo(5)); the last one hides those before."""
    real = os.path.realpath(path)
    best = _Mount("", "", "unknown")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        root, point = (field.encode().decode("unicode_escape") for field in fields.split()[3:5])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = _Mount(point, root, ":".join(tail.split()[:2]))
    return best
