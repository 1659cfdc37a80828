"""What lies under a folder: which filesystem, and whether it is a drive of ours, a fresh one or an unmounted one."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class FolderKind(Enum):
    """What `classify_folder` found."""

    MISSING = "missing"  # no such folder
    EMPTY = "empty"  # nothing in it, and its filesystem is the one remembered or none is remembered
    OURS = "ours"  # holds a forebay.json
    FOREIGN = "foreign"  # holds something else
    UNMOUNTED = "unmounted"  # nothing in it, but another filesystem is remembered here: the disk is likely not mounted


def filesystem_identity(path: str) -> str:
    """A name of the filesystem under `path` that survives a restart and differs between filesystems. Raises DriveFailed."""
    raise NotImplementedError


def classify_folder(path: str, remembered: Collection[str] = ()) -> FolderKind:
    """Say what `path` is; `remembered` are the filesystem identities that the peers recorded for this position."""
    raise NotImplementedError
