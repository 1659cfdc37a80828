"""The shard files of a drive: written in `staging/`, published by a rename, removed by way of `trash/`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock

from forebay.directio import DirectFile, open_direct
from forebay.drive.crash import crash_point
from forebay.drive.failures import Reporting
from forebay.drive.interface import BLOB_ID_BYTES
from forebay.drive.layout import (
    FILE_MODE,
    STAGING_FOLDER,
    TRASH_FOLDER,
    blob_folder,
    shard_path,
    staging_path,
    staging_pid,
    sync_folder,
    trash_path,
)
from forebay.errors import DriveFailed

_numbers = count()


class LocalShardWriter:
    """See `forebay.drive.interface.ShardWriter`. `require_space` raises DriveFull when the reserve is reached.

    A lock keeps `abort` from closing the file under a write: the descriptor might be another file's by then.
    """

    def __init__(self, drive: str, blob_id: bytes, require_space: Callable[[], None]) -> None:
        check_blob_id(blob_id)
        self._drive = drive
        self._blob_id = blob_id
        self._require_space = require_space
        self._lock = Lock()
        require_space()
        with Reporting(drive, f"create shard {blob_id.hex()}"):
            self._file: DirectFile | None = create_staging_file(drive, blob_id.hex(), os.O_WRONLY)
        crash_point("shard.create")

    def write(self, views: Sequence[memoryview], offset: int) -> None:
        """Write all `views` from byte `offset` on."""
        self._require_space()
        with self._lock, Reporting(self._drive, f"write shard {self._blob_id.hex()}"):
            self._open_file().pwritev(views, offset)
        crash_point("shard.write")

    def sync(self) -> None:
        """Make it durable."""
        with self._lock, Reporting(self._drive, f"sync shard {self._blob_id.hex()}"):
            self._open_file().datasync()
        crash_point("shard.sync")

    def publish(self) -> None:
        """Rename it to its final name, durably."""
        with self._lock, Reporting(self._drive, f"publish shard {self._blob_id.hex()}"):
            file = self._open_file()
            Path(file.path).rename(shard_path(self._drive, self._blob_id))
            self._file = None
            file.close()
            crash_point("shard.rename")
            sync_folder(blob_folder(self._drive, self._blob_id[0]))
        crash_point("shard.publish")

    def abort(self) -> None:
        """Remove it unless it is published; never raises: what cannot be removed now, `clear_staging` finds."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    Path(file.path).unlink()

    def _open_file(self) -> DirectFile:
        if self._file is None:
            raise ValueError(f"the writer of shard {self._blob_id.hex()} is closed")
        return self._file


class LocalShardReader:
    """See `forebay.drive.interface.ShardReader`."""

    def __init__(self, drive: str, blob_id: bytes, file: DirectFile) -> None:
        self._drive = drive
        self._blob_id = blob_id
        self._file = file

    @property
    def size_bytes(self) -> int:
        """Length of the shard."""
        with Reporting(self._drive, f"look at shard {self._blob_id.hex()}"):
            return self._file.size_bytes()

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` from byte `offset` on."""
        with Reporting(self._drive, f"read shard {self._blob_id.hex()}"):
            return self._file.preadv(views, offset)

    def close(self) -> None:
        """Close it."""
        self._file.close()


def open_shard(drive: str, blob_id: bytes) -> LocalShardReader | None:
    """Open a published shard, or one in the trash; None if it is in neither."""
    check_blob_id(blob_id)
    with Reporting(drive, f"open shard {blob_id.hex()}"):
        for path in (shard_path(drive, blob_id), trash_path(drive, blob_id)):
            with suppress(FileNotFoundError):
                return LocalShardReader(drive, blob_id, open_direct(path, os.O_RDONLY))
    require_folder(drive, blob_id[0])
    return None


def shard_size(drive: str, blob_id: bytes) -> int | None:
    """Length of a published shard; None if there is none."""
    check_blob_id(blob_id)
    with Reporting(drive, f"look at shard {blob_id.hex()}"), suppress(FileNotFoundError):
        return Path(shard_path(drive, blob_id)).stat().st_size
    require_folder(drive, blob_id[0])
    return None


def list_shards(drive: str, prefix_byte: int) -> list[tuple[bytes, int]]:
    """Blob ids and lengths of the published shards that start with `prefix_byte`, by id."""
    found = []
    with Reporting(drive, f"list shards {prefix_byte:02x}"), os.scandir(blob_folder(drive, prefix_byte)) as entries:
        for entry in entries:
            blob_id = _blob_id_of(entry.name)
            if blob_id is not None and blob_id[0] == prefix_byte:
                with suppress(FileNotFoundError):  # removed in the meantime
                    found.append((blob_id, entry.stat().st_size))
    return sorted(found)


def trash_shard(drive: str, blob_id: bytes) -> None:
    """Move a published shard to the trash. A crash may undo it: whoever collects garbage comes by again."""
    check_blob_id(blob_id)
    with Reporting(drive, f"remove shard {blob_id.hex()}"), suppress(FileNotFoundError):
        Path(shard_path(drive, blob_id)).rename(trash_path(drive, blob_id))
        crash_point("shard.trash")
        return
    require_folder(drive, blob_id[0])


def empty_trash(drive: str, older_than_s: float) -> int:
    """Unlink what was renamed into the trash (its ctime) longer ago than `older_than_s`."""
    before = time.time() - older_than_s
    return _unlink_where(drive, TRASH_FOLDER, lambda entry: entry.stat(follow_symlinks=False).st_ctime <= before)


def clear_staging(drive: str, alive_pids: Collection[int]) -> int:
    """Unlink the unpublished files of processes that are gone. Names that are not ours stay."""
    return _unlink_where(
        drive,
        STAGING_FOLDER,
        lambda entry: (pid := staging_pid(entry.name)) is not None and pid not in alive_pids,
    )


def create_staging_file(drive: str, name: str, flags: int) -> DirectFile:
    """A new file in `staging/`. Raises OSError.

    A process before us may have had our pid and died, so a name that is taken is passed over.
    """
    while True:
        with suppress(FileExistsError):
            path = staging_path(drive, name, os.getpid(), next(_numbers))
            return open_direct(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)


def check_blob_id(blob_id: bytes) -> None:
    """ValueError unless it is one."""
    if len(blob_id) != BLOB_ID_BYTES:
        raise ValueError(f"a blob id has {BLOB_ID_BYTES} bytes, not {len(blob_id)}")


def require_folder(drive: str, prefix_byte: int) -> None:
    """DriveFailed if a shard is missing because the whole folder is: unmounted, or emptied by hand."""
    if not Path(blob_folder(drive, prefix_byte)).is_dir():
        raise DriveFailed(drive, f"the folder of its shards has vanished ({blob_folder(drive, prefix_byte)})")


def _unlink_where(drive: str, folder: str, condition: Callable[[os.DirEntry[str]], bool]) -> int:
    gone = 0
    with Reporting(drive, f"clear {folder}"), os.scandir(f"{drive}/{folder}") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another worker was faster
                if condition(entry):
                    Path(entry.path).unlink()
                    gone += 1
    return gone


def _blob_id_of(name: str) -> bytes | None:
    try:
        blob_id = bytes.fromhex(name)
    except ValueError:
        return None
    return blob_id if len(blob_id) == BLOB_ID_BYTES and blob_id.hex() == name else None
