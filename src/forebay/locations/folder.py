"""A folder on a local or network filesystem.

An object appears by `link` or `rename` of a finished, fsynced file, and the folders up to it are fsynced, so it is
there whole or not at all, after a power cut too. Large objects are written and read past the page cache. Unfinished
files are called `.forebay-tmp-…`; listings do not show them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from forebay.directio import ALIGNMENT_BYTES, DirectFile, open_direct
from forebay.errors import (
    LocationDenied,
    LocationError,
    LocationFull,
    ObjectMissing,
    PreconditionFailed,
)
from forebay.locations.interface import Absent, Buffer, Condition, Entry, Listing, Location, Unchanged
from forebay.locations.keys import check_key, join_prefix

TMP_PREFIX = ".forebay-tmp-"
_FICLONE = 0x40049409
_FICLONERANGE = 0x4020940D
_KINDS: dict[int, type[LocationError]] = {
    errno.ENOENT: ObjectMissing, errno.ENOTDIR: ObjectMissing, errno.ENOSPC: LocationFull, errno.EDQUOT: LocationFull,
    errno.EACCES: LocationDenied, errno.EPERM: LocationDenied, errno.EROFS: LocationDenied,
}  # fmt: skip


@contextmanager
def _errors(operation: str, url: str) -> Iterator[None]:
    """Turn what the kernel reports into a `LocationError` that names the object."""
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, LocationError)
        raise kind(operation, url, error.strerror or str(error)) from error


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_folders(path: Path) -> None:
    """Create the folder and those above it; each new name is made durable."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir()
        _sync_folder(folder.parent)


class Folder:
    """The location of a path. See `locations.interface.Location` for the methods."""

    part_bytes = 16 * 2**20
    streams = 3  # two keep a disk busy, the third checksums meanwhile
    part_bytes_min = ALIGNMENT_BYTES
    direct_io = True

    def __init__(self, path: str | os.PathLike[str], top: Path | None = None) -> None:
        self._root = Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`
        self._top = top or self._root
        self.url = str(self._root)
        self._clones: bool | None = None

    def __repr__(self) -> str:
        """The path."""
        return f"Folder({self.url!r})"

    @property
    def copies_parts(self) -> bool:
        """Whether the filesystem shares blocks between files (reflink: XFS, btrfs, bcachefs)."""
        if self._clones is None:
            self._clones = self._probe_clone()
        return self._clones

    def child(self, prefix: str) -> Folder:
        """See `Location`."""
        return type(self)(self._root / join_prefix(prefix), self._top) if join_prefix(prefix) else self

    def put(self, key: str, data: Buffer, condition: Condition = None) -> str:
        """See `Location`."""
        target = self._path(key)
        with _errors("put", str(target)):
            tmp = self._write_tmp(target, data)
            try:
                return _publish(tmp, target, condition)
            finally:
                tmp.unlink(missing_ok=True)

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Location`."""
        path = self._path(key)
        with _errors("get", str(path)), path.open("rb") as file:
            return file.read(), _etag(os.fstat(file.fileno()))

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """See `Location`. From an aligned offset into aligned memory it reads directly, and buffered otherwise."""
        path = self._path(key)
        with _errors("read", str(path)):
            done = _read_direct(path, offset, view)
            if done < len(view):
                done += _read_buffered(path, offset + done, view[done:])
        if done < len(view):
            raise LocationError("read", str(path), f"the file ends at {offset + done}, wanted up to {offset + len(view)}")

    def head(self, key: str) -> Entry | None:
        """See `Location`."""
        path = self._path(key)
        with _errors("head", str(path)):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._entry(key, status) if path.is_file() else None

    def list_folder(self, prefix: str = "") -> Listing:
        """See `Location`."""
        below = join_prefix(prefix)
        objects, folders = [], []
        with _errors("list", str(self._root / below)):
            for item in self._scan(self._root / below):
                if item.is_dir():
                    folders += [item.name] if self._scan(Path(item.path)) else []
                elif not item.name.startswith(TMP_PREFIX):
                    with suppress(FileNotFoundError):  # removed since the folder was read
                        objects.append(self._entry(join_prefix(below, item.name), item.stat()))
        return Listing(tuple(sorted(objects, key=lambda entry: entry.key)), tuple(sorted(folders)))

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """See `Location`."""
        listing = self.list_folder(prefix)
        names = [(entry.key, entry) for entry in listing.objects]
        folders = [(join_prefix(prefix, folder) + "/", None) for folder in listing.folders]
        for key, entry in sorted([*names, *folders], key=lambda item: item[0]):
            if entry is not None:
                yield entry
            else:
                yield from self.walk(key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Location`. Folders that become empty go too."""
        parents = set()
        for key in keys:
            path = self._path(key)
            with _errors("delete", str(path)), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                parents.add(path.parent)
        for parent in parents:
            self._prune(parent)

    def upload(self, key: str, size_bytes: int, part_bytes: int) -> FolderUpload:
        """See `Location`."""
        path = self._path(key)
        with _errors("upload", str(path)):
            return FolderUpload(self, key, _tmp_beside(path), size_bytes, part_bytes)

    def sweep_uploads(self, prefix: str, before_s: float) -> int:
        """See `Location`."""
        count = 0
        top = self._root / join_prefix(prefix)
        with _errors("sweep", str(top)):
            for folder, _, names in os.walk(top):
                for name in names:
                    path = Path(folder, name)
                    if name.startswith(TMP_PREFIX) and path.stat().st_mtime < before_s:
                        path.unlink(missing_ok=True)
                        count += 1
        return count

    def close(self) -> None:
        """Nothing is kept open."""

    def _path(self, key: str) -> Path:
        path = self._root / check_key(key)
        if path.name.startswith(TMP_PREFIX):
            raise ValueError(f"{key!r}: names that begin with {TMP_PREFIX!r} are for unfinished files")
        return path

    def _entry(self, key: str, status: os.stat_result) -> Entry:
        return Entry(key, status.st_size, _etag(status), status.st_mtime)

    def _write_tmp(self, target: Path, data: Buffer) -> Path:
        tmp = _tmp_beside(target)
        with tmp.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return tmp

    def _scan(self, path: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as items:
                return list(items)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _prune(self, folder: Path) -> None:
        """Remove empty folders upwards, but never that of the location that this is a child of."""
        while folder != self._top and self._top in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _probe_clone(self) -> bool:
        probe = self._root / f"{TMP_PREFIX}{secrets.token_hex(8)}"
        try:
            _make_folders(self._root)
            with probe.open("xb") as one:
                fcntl.ioctl(one.fileno(), _FICLONE, one.fileno())
            return True
        except OSError as error:
            return error.errno == errno.EINVAL  # it knows the call, and that source and target are one file
        finally:
            probe.unlink(missing_ok=True)


def _tmp_beside(target: Path) -> Path:
    _make_folders(target.parent)
    return target.parent / f"{TMP_PREFIX}{secrets.token_hex(8)}"


def _publish(tmp: Path, target: Path, condition: Condition) -> str:
    """Give the finished file its name, if the condition holds; its entity tag."""
    etag = _etag(tmp.stat())
    if isinstance(condition, Absent):
        try:
            os.link(tmp, target)
        except FileExistsError as error:
            raise PreconditionFailed("put", str(target), "it exists already") from error
    elif isinstance(condition, Unchanged):
        with _folder_lock(target.parent):
            if not target.exists() or _etag(target.stat()) != condition.etag:
                raise PreconditionFailed("put", str(target), f"it is no longer the object with entity tag {condition.etag}")
            tmp.rename(target)
    else:
        tmp.rename(target)
    _sync_folder(target.parent)
    return etag


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """One conditional replacement in a folder at a time, over all processes of the machine; freed if the holder
    dies.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data) if len(view) else 0


def _read_direct(path: Path, offset: int, view: memoryview) -> int:
    """Read the largest aligned part from the front; the bytes read, 0 if memory or offset is not aligned."""
    length = len(view) - len(view) % ALIGNMENT_BYTES
    if length == 0 or offset % ALIGNMENT_BYTES or _address(view) % ALIGNMENT_BYTES:
        return 0
    file = open_direct(str(path), os.O_RDONLY)
    try:
        return file.preadv([view[:length]], offset)
    finally:
        file.close()


def _read_buffered(path: Path, offset: int, view: memoryview) -> int:
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < len(view):
            count = os.preadv(file.fileno(), [view[done:]], offset + done)
            if count == 0:
                break
            done += count
    return done


class FolderUpload:
    """A file being written in parts from any threads; see `locations.interface.Upload`."""

    def __init__(self, folder: Folder, key: str, tmp: Path, size_bytes: int, part_bytes: int) -> None:
        self._folder, self._key, self._path, self._tmp = folder, key, folder._path(key), tmp
        self._size_bytes, self._part_bytes = size_bytes, part_bytes
        self._file: DirectFile | None = open_direct(str(tmp), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._scratch = mmap.mmap(-1, ALIGNMENT_BYTES)
        self._scratch_lock = threading.Lock()

    def write_part(self, index: int, buffers: Sequence[Buffer]) -> None:
        """See `Upload`. Aligned memory is written as it lies, other memory through an aligned copy of it."""
        file = self._open_file()
        offset = index * self._part_bytes
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        with _errors("write", str(self._path)):
            body, tail = _split_aligned(views)
            if body:
                file.pwritev([body], offset)
            if len(tail):
                self._write_tail(file, tail, offset + len(body))

    def copy_part(self, index: int, source: Location, source_key: str, *, offset: int, size_bytes: int, etag: str) -> bool:
        """See `Upload`. The files share the blocks, and either may be removed."""
        file = self._open_file()
        if not isinstance(source, Folder):
            return False
        try:
            with source._path(source_key).open("rb") as opened:
                if _etag(os.fstat(opened.fileno())) != etag:
                    return False
                request = struct.pack("=qQQQ", opened.fileno(), offset, size_bytes, index * self._part_bytes)
                fcntl.ioctl(file.fileno(), _FICLONERANGE, request)
                return True
        except OSError:
            return False  # the caller writes the bytes, and learns of any real trouble then

    def complete(self) -> Entry:
        """See `Upload`."""
        file = self._open_file()
        with _errors("complete", str(self._path)):
            if file.size_bytes() != self._size_bytes:
                raise LocationError("complete", str(self._path), f"{file.size_bytes()} bytes, not {self._size_bytes}")
            file.datasync()
            entry = self._folder._entry(self._key, os.fstat(file.fileno()))
            self._close()
            self._tmp.rename(self._path)
            _sync_folder(self._path.parent)
        return entry

    def abort(self) -> None:
        """See `Upload`."""
        self._close()
        with suppress(OSError):
            self._tmp.unlink(missing_ok=True)
            self._folder._prune(self._path.parent)

    def _open_file(self) -> DirectFile:
        assert self._file is not None, "the upload has ended"
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write_tail(self, file: DirectFile, tail: memoryview, offset: int) -> None:
        """The last bytes of the file, fewer than a page, through an aligned page."""
        with self._scratch_lock:
            self._scratch[: len(tail)] = bytes(tail)
            file.write_tail(memoryview(self._scratch), len(tail), offset)


def _split_aligned(views: list[memoryview]) -> tuple[memoryview, memoryview]:
    """The part's whole pages as one aligned view, and the rest."""
    size_bytes = sum(map(len, views))
    whole = size_bytes - size_bytes % ALIGNMENT_BYTES
    if len(views) == 1 and _address(views[0]) % ALIGNMENT_BYTES == 0:
        return views[0][:whole], views[0][whole:]
    aligned = memoryview(mmap.mmap(-1, size_bytes))
    place = 0
    for view in views:
        aligned[place : place + len(view)] = view
        place += len(view)
    return aligned[:whole], aligned[whole:]
