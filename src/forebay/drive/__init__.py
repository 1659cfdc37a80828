"""One drive: its identity, its index, its shard files, and the seam where faults are injected."""

from forebay.drive.check import DEADLY_SIGNALS, check_index, check_opening
from forebay.drive.crash import crash_point
from forebay.drive.filesystem import FolderKind, classify_folder, filesystem_identity
from forebay.drive.interface import (
    FORMAT_VERSION,
    KEY_BYTES_MAX,
    PEER_KEY_PREFIX,
    SEQ_KEY,
    Cursor,
    Drive,
    Identity,
    ShardReader,
    ShardWriter,
    Space,
)
from forebay.drive.local import LocalDrive

__all__ = [
    "DEADLY_SIGNALS",
    "FORMAT_VERSION",
    "KEY_BYTES_MAX",
    "PEER_KEY_PREFIX",
    "SEQ_KEY",
    "Cursor",
    "Drive",
    "FolderKind",
    "Identity",
    "LocalDrive",
    "ShardReader",
    "ShardWriter",
    "Space",
    "check_index",
    "check_opening",
    "classify_folder",
    "crash_point",
    "filesystem_identity",
]
