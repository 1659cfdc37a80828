"""Where things lie in a drive's folder (docs/formats/drive.md)."""

from __future__ import annotations

import os
from pathlib import Path

IDENTITY_FILE = "forebay.json"
IDENTITY_DRAFT_PREFIX = ".forebay.json."  # + a random number: an identity that is not in place yet
INDEX_FOLDER = "index"
INDEX_FILE = "index/data.mdb"
BLOBS_FOLDER = "blobs"
STAGING_FOLDER = "staging"
TRASH_FOLDER = "trash"

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def blob_folder(drive: str, prefix_byte: int) -> str:
    """The folder of the published shards whose blob id starts with `prefix_byte`."""
    return f"{drive}/{BLOBS_FOLDER}/{prefix_byte:02x}"


def shard_path(drive: str, blob_id: bytes) -> str:
    """A published shard."""
    return f"{drive}/{BLOBS_FOLDER}/{blob_id[0]:02x}/{blob_id.hex()}"


def trash_path(drive: str, blob_id: bytes) -> str:
    """A shard on its way out."""
    return f"{drive}/{TRASH_FOLDER}/{blob_id.hex()}"


def staging_path(drive: str, name: str, pid: int, number: int) -> str:
    """A file that process `pid` is writing; `number` tells apart its files of one name."""
    return f"{drive}/{STAGING_FOLDER}/{name}.{pid}.{number}"


def staging_pid(name: str) -> int | None:
    """The process that writes the file `name` in `staging/`; None if no drive of ours named it."""
    pid = name.split(".")[1] if name.count(".") == 2 else ""
    return int(pid) if pid.isdecimal() else None


def make_folders(drive: str) -> None:
    """Create, durably, whatever folders of the drive are missing. Raises OSError."""
    blobs = Path(drive, BLOBS_FOLDER)
    for name in (INDEX_FOLDER, STAGING_FOLDER, TRASH_FOLDER, BLOBS_FOLDER):
        Path(drive, name).mkdir(FOLDER_MODE, exist_ok=True)
    missing = {f"{prefix:02x}" for prefix in range(256)} - {folder.name for folder in blobs.iterdir()}
    for name in missing:
        (blobs / name).mkdir(FOLDER_MODE, exist_ok=True)
    if missing:
        sync_folder(str(blobs))
    sync_folder(drive)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
