"""What the workers of one machine share besides the drives: a page a set, and a lock a set.

A page (4,096 bytes of a file mapped by every process, all fields aligned 8-byte words)::

    word 0         the published sequence number: commits up to it have their quorum
    word 1         the change counter of the drive states: a cached view is stale when it moved
    word 2         the highest sequence number ever given to a commit; above the published one if its process died, or if it failed
    word 8 + p     state of drive p
    word 32 + p    how often drive p was admitted again: a handle opened before must be opened afresh
    byte 512       16 x 200 bytes: why drive p is out, UTF-8, zero-padded

Sequence numbers are written only under the set lock, states only under the state lock, each by one aligned store, so a reader needs no
lock. Both are open-file-description locks on a byte of the file (`set_index`, and SETS_MAX + `set_index`): the kernel frees them when
their holder dies. Nothing here outlives the server: after a start everything is derived again from the drives.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from pathlib import Path

PAGE_BYTES = 4096
SETS_MAX = 64
_F_OFD_SETLKW = 38
_FLOCK = struct.Struct("hhqqi4x")
_PUBLISHED, _CHANGES, _TRIED, _STATES, _EPOCHS = 0, 1, 2, 8, 32
_WORDS = PAGE_BYTES // 8
DRIVES_MAX = 16
_REASONS, _REASON_BYTES = 512, 200
assert _REASONS + DRIVES_MAX * _REASON_BYTES <= PAGE_BYTES
assert _STATES + DRIVES_MAX <= _EPOCHS
assert _EPOCHS + DRIVES_MAX <= _REASONS // 8


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
        self._thread_locks = [threading.Lock() for _ in range(2 * SETS_MAX)]

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

    def reset(self, set_index: int, published: int, tried: int) -> None:
        """At a start, while nobody else uses the set."""
        self._words[set_index * _WORDS + _PUBLISHED] = published
        self._words[set_index * _WORDS + _TRIED] = tried

    def tried(self, set_index: int) -> int:
        """The highest number given to a commit. Equal to the published one unless a commit is under way, failed, or was cut short."""
        return self._words[set_index * _WORDS + _TRIED]

    def set_tried(self, set_index: int, seq: int) -> None:
        """Under the set lock, before any drive sees commit `seq`: the number is never used for another."""
        assert seq >= self.published(set_index)
        self._words[set_index * _WORDS + _TRIED] = seq

    def changes(self, set_index: int) -> int:
        """Moves whenever a drive's state does."""
        return self._words[set_index * _WORDS + _CHANGES]

    def state(self, set_index: int, position: int) -> DriveState:
        """Of one drive."""
        return DriveState(self._words[set_index * _WORDS + _STATES + position])

    def set_state(self, set_index: int, position: int, state: DriveState, reason: str = "") -> None:
        """Tell every process; `reason` says why the drive is not current."""
        with self._locked(SETS_MAX + set_index):
            self._store_state(set_index, position, state, reason)

    def lower_state(self, set_index: int, position: int, state: DriveState, reason: str) -> bool:
        """Take a drive out, unless it is out that far already; returns whether that changed anything."""
        with self._locked(SETS_MAX + set_index):
            if self.state(set_index, position) <= state:
                return False
            self._store_state(set_index, position, state, reason)
            return True

    def raise_state(self, set_index: int, position: int, before: DriveState, state: DriveState, reason: str = "") -> bool:
        """Move a drive on, unless it was taken out in the meantime; returns whether it still was as `before`."""
        with self._locked(SETS_MAX + set_index):
            if self.state(set_index, position) is not before:
                return False
            self._store_state(set_index, position, state, reason)
            return True

    def reason(self, set_index: int, position: int) -> str:
        """Why a drive is not current; empty if it is."""
        at = set_index * PAGE_BYTES + _REASONS + position * _REASON_BYTES
        return self._map[at : at + _REASON_BYTES].rstrip(b"\0").decode(errors="replace")

    def _store_state(self, set_index: int, position: int, state: DriveState, reason: str) -> None:
        at = set_index * PAGE_BYTES + _REASONS + position * _REASON_BYTES
        text = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character
        self._map[at : at + _REASON_BYTES] = text.ljust(_REASON_BYTES, b"\0")
        self._words[set_index * _WORDS + _STATES + position] = state
        self._words[set_index * _WORDS + _CHANGES] += 1

    def epoch(self, set_index: int, position: int) -> int:
        """How often the drive was admitted again."""
        return self._words[set_index * _WORDS + _EPOCHS + position]

    def admit_again(self, set_index: int, position: int, state: DriveState, reason: str = "") -> None:
        """The folder behind the drive may be another one now: every process opens it afresh."""
        with self._locked(SETS_MAX + set_index):
            self._words[set_index * _WORDS + _EPOCHS + position] += 1
            self._store_state(set_index, position, state, reason)

    def lock(self, set_index: int) -> AbstractContextManager[None]:
        """The set lock, against threads of this process and against other processes."""
        return self._locked(set_index)

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        with self._thread_locks[byte]:
            self._flock(fcntl.F_WRLCK, byte)
            try:
                yield
            finally:
                self._flock(fcntl.F_UNLCK, byte)

    def _flock(self, kind: int, byte: int) -> None:
        fcntl.fcntl(self._fd, _F_OFD_SETLKW, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
