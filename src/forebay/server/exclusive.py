"""One server a drive: advisory locks on the drives' folders, and the folder of what the processes of a server share.

The locks (flock) are on the folders themselves, so an empty drive stays empty. The workers inherit them: after the
supervisor was killed, no other server gets the drives before the last worker is gone too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from forebay.errors import ConfigError

LOCK_WAIT_S = 3.0  # how long the processes of a server that was killed may take to go
_RETRY_S = 0.1
RUN_FILE_PREFIXES = ("shared", "metrics-")


class FolderLocks:
    """Locks held on folders until `close`, or until every process that inherited them is gone."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    @property
    def fds(self) -> list[int]:
        """The descriptors that hold the locks, to be inherited."""
        return list(self._held.values())

    def lock(self, paths: Sequence[str], wait_s: float = LOCK_WAIT_S) -> None:
        """Lock those of `paths` that exist and are not locked yet. Raises ConfigError if another server has one."""
        give_up = time.monotonic() + wait_s
        for path in paths:
            if not Path(path).is_dir() or self._holds(path):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            while not _try_lock(fd):
                if time.monotonic() > give_up:
                    os.close(fd)
                    raise ConfigError(f"{path} is in use by another Forebay server; stop it first, or name another folder")
                time.sleep(_RETRY_S)
            former = self._held.get(path)
            self._held[path] = fd
            if former is not None:
                os.close(former)  # of the folder that was there before

    def _holds(self, path: str) -> bool:
        fd = self._held.get(path)
        return fd is not None and os.path.samestat(os.fstat(fd), Path(path).stat())

    def close(self) -> None:
        """Let go, unless another process still holds the inherited descriptors."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def prepare_run_dir(given: str | None, data_dirs: Sequence[str], locks: FolderLocks) -> str:
    """An empty folder in memory for shared state and counters, locked; the same one at each start of this server.

    What a killed server left in it is removed: nothing in it outlives a server. Raises ConfigError.
    """
    path = given or _default_run_dir(data_dirs)
    try:
        Path(path).mkdir(mode=0o700, parents=given is not None, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"run_dir: cannot create {path}: {error.strerror}") from error
    if not Path(path).is_dir() or Path(path).is_symlink() or status.st_uid != os.getuid():
        raise ConfigError(f"run_dir: {path} is not a folder of this user; name another one as run_dir")
    locks.lock([path])
    clear_run_dir(path)
    return path


def clear_run_dir(path: str) -> None:
    """Remove what servers leave in it. Raises ConfigError if it holds anything else."""
    for entry in sorted(Path(path).iterdir()):
        if not entry.name.startswith(RUN_FILE_PREFIXES):
            raise ConfigError(f"run_dir: {path} holds {entry.name!r}, which is not ours; name an empty folder")
        entry.unlink()


def remove_run_dir(path: str, *, is_ours: bool) -> None:
    """At the end of a server: empty it, and remove it if we chose it."""
    clear_run_dir(path)
    if is_ours:
        Path(path).rmdir()


def _default_run_dir(data_dirs: Sequence[str]) -> str:
    parent = "/dev/shm"  # noqa: S108 - memory; the folder in it is private and checked
    if not os.access(parent, os.W_OK):
        parent = tempfile.gettempdir()
    name = hashlib.blake2b("\0".join(sorted(map(os.path.realpath, data_dirs))).encode(), digest_size=8).hexdigest()
    return f"{parent}/forebay-{os.getuid()}-{name}"
