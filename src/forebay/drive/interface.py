"""What the engine may ask of a drive: the narrow interface that a local folder implements and a remote drive can.

Every method may raise `DriveFailed` (an I/O error, a vanished folder) and every method that writes may raise `DriveFull`;
nothing else escapes but `ValueError` and `TypeError` for our own mistakes. All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

FORMAT_VERSION = 1  # the version this code writes; see docs/formats/drive.md
FORMAT_VERSIONS_READ = frozenset({1})

BLOB_ID_BYTES = 16
KEY_BYTES_MAX = 511  # LMDB's compiled-in limit
SEQ_KEY = b"Sseq"  # system record: the sequence number of the newest commit, 8 bytes big-endian
PEER_KEY_PREFIX = b"Sfs/"  # system records: filesystem identity of each position, `Sfs/` + position (1 byte) -> UTF-8

Buffer = bytes | bytearray | memoryview


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a drive is: the content of `forebay.json`, written once when the folder is formatted.

    `deployment` is a uuid in hex; the drive is at `position` (0 … data + parity - 1) of erasure set `set_index`
    (0 … sets - 1). `drive_id` is drawn at random when the folder is formatted, so a refilled drive is told from the one
    it replaces. `device` is `filesystem_identity` of the folder at that time.
    """

    deployment: str
    set_index: int
    position: int
    data: int
    parity: int
    sets: int
    drive_id: str
    device: str
    format_version: int = FORMAT_VERSION


class Space(NamedTuple):
    """Size of a drive's filesystem; `free_bytes` is what new data may still take (the reserve is already subtracted)."""

    total_bytes: int
    free_bytes: int


class Cursor(Protocol):
    """A walk over one read snapshot of the index. Belongs to the thread that opened it.

    `key` and `value` are valid after `seek` or `next` returned True; `value` is memory of the index itself and must not be
    used after the cursor moved or closed.
    """

    @property
    def key(self) -> bytes:
        """The key that the cursor stands on."""

    @property
    def value(self) -> memoryview:
        """The value that the cursor stands on, read-only, valid until the cursor moves."""

    def seek(self, key: bytes) -> bool:
        """Stand on the first key >= `key`; False if there is none."""

    def next(self) -> bool:
        """Stand on the next key; False at the end."""

    def previous(self) -> bool:
        """Stand on the key before; False at the beginning."""

    def last_before(self, key: bytes) -> bool:
        """Stand on the greatest key < `key`; False if there is none."""


class ShardWriter(Protocol):
    """A shard being written under `staging/`. Writes may come from several threads, and `abort` during another call."""

    def write(self, views: Sequence[memoryview], offset: int) -> None:
        """Write all `views` one after the other from byte `offset`.

        Addresses, lengths and `offset` are multiples of 4,096. The buffers are free again when it returns.
        """

    def sync(self) -> None:
        """Make everything written so far durable (fdatasync)."""

    def publish(self) -> None:
        """Rename to the blob's final name and make that durable. `sync` comes first. The writer is closed."""

    def abort(self) -> None:
        """Close and remove the unpublished file; does nothing after `publish` or a second time. Never raises."""


class ShardReader(Protocol):
    """An open shard; stays readable after the shard was deleted. May be shared by threads."""

    @property
    def size_bytes(self) -> int:
        """Length of the shard."""

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` from byte `offset` on; returns the number of bytes read, less than asked only at the end.

        Addresses, lengths and `offset` are multiples of 4,096.
        """

    def close(self) -> None:
        """Close it; idempotent."""


@runtime_checkable
class Drive(Protocol):
    """One drive: an index of small records and a set of immutable shard files."""

    @property
    def path(self) -> str:
        """Names the drive in errors and reports."""

    @property
    def identity(self) -> Identity:
        """Who it is; read when it was opened."""

    # index, reads

    def get(self, key: bytes) -> bytes | None:
        """The record at `key`, a copy; None if there is none."""

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The records at `keys`, in their order, from one snapshot."""

    def scan(self, start: bytes, stop: bytes, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """At most `limit` records with `start` <= key < `stop`, copies; ascending, or from the end if `reverse`.

        An empty `stop` means the end of the index.
        """

    def cursor(self) -> AbstractContextManager[Cursor]:
        """A walk over one snapshot, in the calling thread."""

    def seq(self) -> int:
        """Sequence number of the newest commit; 0 on a fresh drive."""

    # index, writes

    def commit(self, seq: int, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Apply `deletes`, then `puts`, as one durable transaction that also stores `seq`.

        Returns when it is on stable storage. After DriveFull nothing of it has happened; after DriveFailed it may turn out
        either way when the drive is opened again, and `seq` says which. A `seq` below the stored one is refused with
        ValueError; the same one is accepted again. Deleting what is not there is no error.
        """

    # shards

    def create_shard(self, blob_id: bytes) -> ShardWriter:
        """Start writing the shard of a blob."""

    def open_shard(self, blob_id: bytes) -> ShardReader | None:
        """Open the shard, even one already in the trash; None if it is not there."""

    def shard_size(self, blob_id: bytes) -> int | None:
        """Length of a published shard in bytes; None if it is not there (the trash does not count)."""

    def list_shards(self, prefix_byte: int) -> list[tuple[bytes, int]]:
        """Blob ids and lengths of the published shards whose id starts with `prefix_byte`, in order of id."""

    def trash_shard(self, blob_id: bytes) -> None:
        """Move a published shard to the trash; no error if it is not there."""

    def empty_trash(self, older_than_s: float) -> int:
        """Remove what has been in the trash longer than `older_than_s`; returns how many shards went."""

    def clear_staging(self, alive_pids: Collection[int]) -> int:
        """Remove unpublished files whose writing process is not in `alive_pids`; returns how many went."""

    # health

    def space(self) -> Space:
        """Size and free space, at most a second old."""

    def probe(self) -> None:
        """Check identity, then write, sync, read back and remove a small file; raises unless all of it works."""

    def close(self) -> None:
        """Release everything; idempotent. No other method may be called after."""
