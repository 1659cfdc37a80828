"""What the workers of one machine share besides the drives: a page a set, and a lock a set.

A page (4,096 bytes of a file mapped by every process, all fields aligned 8-byte words)::

    word 0         the published sequence number: commits up to it have their quorum
    word 1         the change counter of the drive states: a cached view is stale when it moved
    word 8 + p     state of drive p
    word 32 + p    how often drive p was admitted again: a handle opened before must be opened afresh

Words are written only under the set lock (or, for states, by an atomic aligned store), so a reader needs none. The lock is an
open-file-description lock on byte `set_index` of the file: the kernel frees it when its holder dies. Nothing here outlives the server:
after a start everything is derived again from the drives.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

PAGE_BYTES = 4096
SETS_MAX = 64
_F_OFD_SETLKW = 38
_FLOCK = struct.Struct("hhqqi4x")
_PUBLISHED, _CHANGES, _STATES, _EPOCHS = 0, 1, 8, 32
_WORDS = PAGE_BYTES // 8


class DriveState(IntEnum):
    """See the table in docs/engine.md."""

    OFFLINE = 0
    STALE = 1
    SYNCING = 2
    CURRENT = 3


class SharedState:
    """One per process; `path` is the same file for all processes of a server."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, creating it empty if it is not there."""
        self.path = str(path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = PAGE_BYTES * SETS_MAX
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self._words = memoryview(self._map).cast("Q")
        self._thread_locks = [threading.Lock() for _ in range(SETS_MAX)]

    @classmethod
    def private(cls) -> SharedState:
        """For a process that has the drives to itself."""
        fd, path = tempfile.mkstemp(prefix="forebay-shared-")
        os.close(fd)
        state = cls(path)
        Path(path).unlink()
        return state

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._map.close()
        os.close(self._fd)

    def published(self, set_index: int) -> int:
        """The newest sequence number that has its quorum."""
        return self._words[set_index * _WORDS + _PUBLISHED]

    def publish(self, set_index: int, seq: int) -> None:
        """Under the set lock: commits up to `seq` may be read and acknowledged."""
        assert seq >= self.published(set_index)
        self._words[set_index * _WORDS + _PUBLISHED] = seq

    def changes(self, set_index: int) -> int:
        """Moves whenever a drive's state does."""
        return self._words[set_index * _WORDS + _CHANGES]

    def state(self, set_index: int, position: int) -> DriveState:
        """Of one drive."""
        return DriveState(self._words[set_index * _WORDS + _STATES + position])

    def set_state(self, set_index: int, position: int, state: DriveState) -> None:
        """Tell every process."""
        self._words[set_index * _WORDS + _STATES + position] = state
        self._words[set_index * _WORDS + _CHANGES] += 1

    def epoch(self, set_index: int, position: int) -> int:
        """How often the drive was admitted again."""
        return self._words[set_index * _WORDS + _EPOCHS + position]

    def admit_again(self, set_index: int, position: int, state: DriveState) -> None:
        """The folder behind the drive may be another one now: every process opens it afresh."""
        self._words[set_index * _WORDS + _EPOCHS + position] += 1
        self.set_state(set_index, position, state)

    @contextmanager
    def lock(self, set_index: int) -> Iterator[None]:
        """The set lock, against threads of this process and against other processes."""
        with self._thread_locks[set_index]:
            self._flock(fcntl.F_WRLCK, set_index)
            try:
                yield
            finally:
                self._flock(fcntl.F_UNLCK, set_index)

    def _flock(self, kind: int, set_index: int) -> None:
        fcntl.fcntl(self._fd, _F_OFD_SETLKW, _FLOCK.pack(kind, os.SEEK_SET, set_index, 1, 0))
