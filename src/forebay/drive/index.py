"""The index of a drive: one LMDB environment (http://www.lmdb.tech/doc/), one database, shared by all workers.

LMDB writes a transaction's pages to unused places, syncs, then writes one of two meta pages: a reader sees the state
before or the state after, and a killed writer leaves the state before and a free lock. A transaction has its thread's
snapshot; reads take no lock. Two things it does not do for us:

- it goes on writing into a file that was unlinked, so `commit` checks that the file is still in its place;
- pages are read through a memory map, so an unreadable sector is a SIGBUS for the process, not an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import lmdb

from forebay.codec import crc64nvme
from forebay.drive.crash import crash_point
from forebay.drive.failures import Reporting
from forebay.drive.interface import SEQ_KEY
from forebay.drive.layout import INDEX_FILE, INDEX_FOLDER, sync_folder
from forebay.errors import DriveFailed, RecordCorrupt

MAP_BYTES = 1 << 40  # address space only; the file grows as it fills
MAP_BYTES_MIN = 1 << 30
READERS_MAX = 1024  # snapshots open at a time, of all processes together
SPARE_SNAPSHOTS = 16  # kept for reuse: with one at hand, opening a snapshot costs 0.3 microseconds

_opened: WeakValueDictionary[tuple[int, int, int], Index] = WeakValueDictionary()
_opened_lock = Lock()


class Index:
    """The records of one drive. Use `Index.open`; all methods raise DriveFailed, writes DriveFull as well.

    There is no `close`: LMDB's memory must not go while another thread reads in it, so the environment closes when the last reference
    to the index does, those of calls under way included.
    """

    def __init__(self, drive: str, begin: Callable[..., Any], file_id: tuple[int, int]) -> None:
        self._drive = drive
        self._begin = begin  # of the environment, which lives as long as this reference
        self._file_id = file_id

    @classmethod
    def closed(cls, drive: str) -> Index:
        """What a closed drive has instead: every call raises DriveFailed."""

        def begin(**_: object) -> Any:
            raise DriveFailed(drive, "it was closed")

        return cls(drive, begin, (0, 0))

    @classmethod
    def open(cls, drive: str) -> Index:
        """Open the index in a drive's folder; those who open the same one in a process share it, as LMDB demands.

        An index does not survive a fork: open it in the child.
        """
        with _opened_lock, Reporting(drive, "open the index"):
            file_id = _file_id(drive)
            index = _opened.get((os.getpid(), *file_id)) if file_id else None
            if index is None:
                environment = _open_environment(f"{drive}/{INDEX_FOLDER}")
                sync_folder(f"{drive}/{INDEX_FOLDER}")
                environment.reader_check()
                file_id = _file_id(drive)
                if file_id is None:
                    raise DriveFailed(drive, f"{INDEX_FILE} vanished while it was opened")
                index = _opened[os.getpid(), *file_id] = cls(drive, environment.begin, file_id)
            return index

    def get(self, key: bytes) -> bytes | None:
        """The record at `key`."""
        try:
            with self._begin() as snapshot:
                value: bytes | None = snapshot.get(key)
                return value
        except lmdb.Error:
            with Reporting(self._drive, "read the index"):
                raise

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The records at `keys`, from one snapshot."""
        with Reporting(self._drive, "read the index"), self._begin() as snapshot:
            return [snapshot.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        """At most `limit` records of the range, see `Drive.scan`."""
        found: list[tuple[bytes, bytes]] = []
        if limit <= 0:
            return found
        with Reporting(self._drive, "read the index"), self._begin() as snapshot, snapshot.cursor() as cursor:
            if reverse:
                cursor.last() if not (stop and cursor.set_range(stop)) else cursor.prev()
            else:
                cursor.set_range(start)
            for key, value in cursor.iterprev() if reverse else cursor.iternext():
                if key < start or (stop and key >= stop):
                    break
                found.append((key, value))
                if len(found) == limit:
                    break
        return found

    @contextmanager
    def cursor(self) -> Iterator[IndexCursor]:
        """A walk over one snapshot."""
        with (
            Reporting(self._drive, "walk the index"),
            self._begin(buffers=True) as snapshot,
            snapshot.cursor() as cursor,
        ):
            yield IndexCursor(cursor)

    def seq(self) -> int:
        """Sequence number of the newest commit, 0 if there is none. RecordCorrupt if it fails its check."""
        return _decode_seq(self._drive, self.get(SEQ_KEY))

    def commit(self, seq: int, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """One durable transaction, see `Drive.commit`."""
        crash_point("commit.begin")
        self.check_file()
        with Reporting(self._drive, "commit to the index"), self._begin(write=True) as transaction:
            stored = _decode_seq(self._drive, transaction.get(SEQ_KEY))
            if seq < stored:
                raise ValueError(f"{self._drive}: commit {seq} comes after commit {stored}")
            for key in deletes:
                transaction.delete(key)
            for key, value in puts:
                transaction.put(key, value)
            transaction.put(SEQ_KEY, _encode_seq(seq))
            crash_point("commit.write")
        crash_point("commit.end")

    def check_file(self) -> None:
        """DriveFailed if the index is not the file at its path any more: a commit would go to nowhere."""
        if _file_id(self._drive) != self._file_id:
            raise DriveFailed(self._drive, f"{INDEX_FILE} is gone, or another one than was opened")


class IndexCursor:
    """See `forebay.drive.interface.Cursor`."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: lmdb.Cursor) -> None:
        self._cursor = cursor

    @property
    def key(self) -> bytes:
        """The key that the cursor stands on."""
        return bytes(self._cursor.key())

    @property
    def value(self) -> memoryview:
        """The value that the cursor stands on, until it moves."""
        return memoryview(self._cursor.value())

    def seek(self, key: bytes) -> bool:
        """Stand on the first key >= `key`."""
        return bool(self._cursor.set_range(key))

    def next(self) -> bool:
        """Stand on the next key."""
        return bool(self._cursor.next())

    def previous(self) -> bool:
        """Stand on the key before."""
        return bool(self._cursor.prev())

    def last_before(self, key: bytes) -> bool:
        """Stand on the greatest key < `key`."""
        return bool(self._cursor.prev() if self._cursor.set_range(key) else self._cursor.last())


def _open_environment(folder: str) -> lmdb.Environment:
    """Durable, locked, with the largest map that the process may have."""
    map_bytes = MAP_BYTES
    while True:
        try:
            return lmdb.open(
                folder,
                map_size=map_bytes,
                max_readers=READERS_MAX,
                max_spare_txns=SPARE_SNAPSHOTS,
                readahead=False,  # lookups are random; a cold one would read 128 KiB for one page
                mode=0o600,
            )
        except (lmdb.MemoryError, OverflowError):
            if map_bytes == MAP_BYTES_MIN:
                raise
            map_bytes //= 2


def _file_id(drive: str) -> tuple[int, int] | None:
    try:
        status = Path(drive, INDEX_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with Reporting(drive, f"find {INDEX_FILE}"):
            raise
    return status.st_dev, status.st_ino


def _encode_seq(seq: int) -> bytes:
    number = seq.to_bytes(8, "big")
    return number + crc64nvme(SEQ_KEY + number).to_bytes(8, "big")


def _decode_seq(drive: str, record: bytes | None) -> int:
    if record is None:
        return 0
    seq = int.from_bytes(record[:8], "big")
    if record != _encode_seq(seq):
        raise RecordCorrupt(drive, f"the record of its sequence number is damaged: {record.hex()}")
    return seq
