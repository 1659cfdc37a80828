"""A drive that is a folder of this machine. The layout is described in docs/formats/drive.md."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock

from forebay.directio import ALIGNMENT_BYTES, Arena
from forebay.drive import shards
from forebay.drive.failures import Reporting
from forebay.drive.identity import check_identity, read_identity, write_identity
from forebay.drive.index import Index
from forebay.drive.interface import Cursor, Identity, Space
from forebay.drive.layout import make_folders
from forebay.errors import DriveFailed, DriveFull, DriveMismatch

RESERVE_BYTES_MIN = 64 << 20  # room for the index to shrink in: LMDB needs new pages even to delete
RESERVE_FRACTION = 0.005
SPACE_AGE_S = 1.0


class LocalDrive:
    """A drive that is a folder. See `forebay.drive.interface.Drive` for what its methods promise."""

    def __init__(self, path: str, identity: Identity, index: Index, reserve_bytes: int | None) -> None:
        self.path = path
        self.identity = identity
        self._index = index
        self._closed = False
        self._gauge = _SpaceGauge(path, reserve_bytes)
        self._probe_lock = Lock()
        self._probe_buffers = Arena(ALIGNMENT_BYTES, 2)

    @classmethod
    def format(cls, path: str, identity: Identity) -> None:
        """Make `path` (missing or empty) a drive with this identity.

        Raises DriveMismatch, having changed nothing, if it holds anything; DriveFailed or DriveFull if it cannot be
        written.
        """
        write_identity(path, identity)

    @classmethod
    def read_identity(cls, path: str) -> Identity:
        """The identity in `path`, without opening the drive. Raises as `open` does."""
        return read_identity(path)

    @classmethod
    def open(cls, path: str, expected: Identity | None = None, *, reserve_bytes: int | None = None) -> LocalDrive:
        """Open the drive in `path`; its folders and its index are created if they are missing.

        Raises DriveMismatch if it is not a drive, has an unknown format version, a damaged identity, or another
        deployment, set, position or geometry than `expected` (its `drive_id` and `device` are compared when not empty).
        Shards are refused with DriveFull while less than `reserve_bytes` is free (default: 64 MiB or half a percent,
        whichever is more); the index may use the reserve.
        """
        identity = read_identity(path)
        if expected is not None:
            check_identity(path, identity, expected)
        with Reporting(path, "create the folders"):
            make_folders(path)
        return cls(path, identity, Index.open(path), reserve_bytes)

    def get(self, key: bytes) -> bytes | None:
        """The record at `key`."""
        return self._index.get(key)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The records at `keys`."""
        return self._index.get_many(keys)

    def scan(self, start: bytes, stop: bytes, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """At most `limit` records of a range."""
        return self._index.scan(start, stop, limit, reverse)

    def cursor(self) -> AbstractContextManager[Cursor]:
        """A walk over one snapshot."""
        return self._index.cursor()

    def seq(self) -> int:
        """Sequence number of the newest commit. RecordCorrupt if its record is damaged."""
        return self._index.seq()

    def commit(self, seq: int, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Apply `deletes`, then `puts`, durably, as commit `seq`."""
        self._index.commit(seq, puts, deletes)

    def create_shard(self, blob_id: bytes) -> shards.LocalShardWriter:
        """Start writing the shard of a blob."""
        return shards.LocalShardWriter(self.path, blob_id, self._gauge.require)

    def open_shard(self, blob_id: bytes) -> shards.LocalShardReader | None:
        """Open the shard, even in the trash."""
        return shards.open_shard(self.path, blob_id)

    def shard_size(self, blob_id: bytes) -> int | None:
        """Length of a published shard."""
        return shards.shard_size(self.path, blob_id)

    def list_shards(self, prefix_byte: int) -> list[tuple[bytes, int]]:
        """Published shards whose id starts with `prefix_byte`."""
        return shards.list_shards(self.path, prefix_byte)

    def trash_shard(self, blob_id: bytes) -> None:
        """Move a shard to the trash."""
        shards.trash_shard(self.path, blob_id)

    def empty_trash(self, older_than_s: float) -> int:
        """Remove what has been in the trash for long."""
        return shards.empty_trash(self.path, older_than_s)

    def clear_staging(self, alive_pids: Collection[int]) -> int:
        """Remove what dead processes left unpublished."""
        return shards.clear_staging(self.path, alive_pids)

    def space(self) -> Space:
        """Size and free space."""
        return self._gauge.read()

    def probe(self) -> None:
        """Prove that it is still this drive and that it writes and reads. Raises DriveFailed, or DriveFull."""
        try:
            if read_identity(self.path) != self.identity:
                raise DriveFailed(self.path, "another drive is in its place")
        except DriveMismatch as error:
            raise DriveFailed(self.path, f"it has vanished or changed: {error}") from error
        self._index.check_file()
        self._index.seq()
        with self._probe_lock, Reporting(self.path, "test write"):
            self._write_and_read_back()

    def close(self) -> None:
        """Let go of the index; it closes when the last call that is under way ends."""
        if not self._closed:
            self._closed = True
            self._index = Index.closed(self.path)

    def _write_and_read_back(self) -> None:
        file = shards.create_staging_file(self.path, "probe", os.O_RDWR)
        try:
            with self._probe_buffers.acquire() as written, self._probe_buffers.acquire() as read:
                written.view[:] = secrets.token_bytes(ALIGNMENT_BYTES)
                file.pwritev([written.view], 0)
                file.datasync()
                count = file.preadv([read.view], 0)
                if count != ALIGNMENT_BYTES or read.view != written.view:
                    raise DriveFailed(self.path, "test write: what was written is not what is read back")
        finally:
            file.close()
            Path(file.path).unlink()


class _SpaceGauge:
    """Free space of a filesystem, looked at once a second. Threads may race: the worst is a second look."""

    def __init__(self, path: str, reserve_bytes: int | None) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._space = Space(0, 0)
        self._next_look_s = 0.0

    def read(self) -> Space:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            with Reporting(self._path, "look at the free space"):
                status = os.statvfs(self._path)
            total_bytes = status.f_blocks * status.f_frsize
            reserve_bytes = self._reserve_bytes
            if reserve_bytes is None:
                reserve_bytes = max(RESERVE_BYTES_MIN, int(total_bytes * RESERVE_FRACTION))
            self._space = Space(total_bytes, max(0, status.f_bavail * status.f_frsize - reserve_bytes))
            self._next_look_s = now_s + SPACE_AGE_S
        return self._space

    def require(self) -> None:
        """Raise DriveFull when only the reserve is left."""
        if not self.read().free_bytes:
            raise DriveFull(self._path, "only the reserve is free: delete objects or add drives")
