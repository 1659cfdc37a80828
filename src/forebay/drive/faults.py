"""The seam where faults are injected: a drive that does wrong on purpose, by a plan that a seed replays.

`FaultyDrive(drive, FaultPlan([Rule("shard.write", Fault.TORN, skip=2, times=1)]))` behaves as `drive` does, but for the
third shard write. Which call meets which fault depends on the seed, the rule and how many calls the rule has seen, not on
how threads interleave elsewhere. Operations are named as in `FAULTS_OF`; a rule takes a pattern of them (`shard.*`).
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from threading import Event, Lock

from forebay.directio import ALIGNMENT_BYTES
from forebay.drive.interface import Cursor, Drive, Identity, ShardReader, ShardWriter, Space
from forebay.drive.layout import shard_path, trash_path
from forebay.errors import DriveFailed, DriveFull


class Fault(Enum):
    """What goes wrong."""

    ERROR = "error"  # nothing is done; DriveFailed, as for EIO
    FULL = "full"  # nothing is done; DriveFull, as for ENOSPC
    ERROR_AFTER = "error after"  # it is done, and reported as DriveFailed
    TORN = "torn"  # the beginning is written; DriveFailed
    SHORT = "short"  # the beginning is written, or read; reported as success
    FLIP = "flip"  # one bit is wrong, in what is read or at rest in what is written
    SLOW = "slow"  # done, `plan.latency_s` later
    STUCK = "stuck"  # done, but not before `plan.release()`
    VANISH = "vanish"  # this and everything after it fails, until `drive.reappear()`
    LOSE_SYNC = "lose sync"  # reported as durable, but `drive.crash()` undoes it


_ALWAYS = frozenset({Fault.ERROR, Fault.SLOW, Fault.STUCK, Fault.VANISH})
_READ = _ALWAYS | {Fault.FLIP}
_WRITE = _ALWAYS | {Fault.FULL, Fault.ERROR_AFTER}

FAULTS_OF: dict[str, frozenset[Fault]] = {
    "get": _READ,
    "get_many": _READ,
    "scan": _READ,
    "cursor": _READ,
    "seq": _ALWAYS,
    "commit": _WRITE,
    "shard.create": _WRITE,
    "shard.write": _WRITE | {Fault.TORN, Fault.SHORT, Fault.FLIP},
    "shard.sync": _WRITE | {Fault.LOSE_SYNC},
    "shard.publish": _WRITE | {Fault.LOSE_SYNC},
    "shard.open": _ALWAYS,
    "shard.read": _READ | {Fault.SHORT},
    "shard.size": _ALWAYS,
    "list_shards": _ALWAYS,
    "trash_shard": _ALWAYS | {Fault.ERROR_AFTER},
    "empty_trash": _ALWAYS,
    "clear_staging": _ALWAYS,
    "space": _ALWAYS,
    "probe": _ALWAYS | {Fault.FULL},
}


@dataclass(frozen=True)
class Rule:
    """Calls of the operations that match `operation` meet `fault`: after the first `skip`, at most `times`, by chance."""

    operation: str
    fault: Fault
    probability: float = 1.0
    skip: int = 0
    times: int | None = None

    def __post_init__(self) -> None:
        """A rule that could never do anything is a mistake."""
        if not any(self.applies_to(operation) for operation in FAULTS_OF):
            raise ValueError(f"no operation like {self.operation!r} can meet {self.fault.value!r}")

    def applies_to(self, operation: str) -> bool:
        """Whether this operation can meet this fault by this rule."""
        return fnmatchcase(operation, self.operation) and self.fault in FAULTS_OF[operation]


class FaultPlan:
    """Rules, a seed, and the record of what they did. Shared by the threads that use the drive."""

    def __init__(self, rules: Iterable[Rule] = (), seed: int = 0, latency_s: float = 0.05) -> None:
        self.rules = list(rules)
        self.seed = seed
        self.latency_s = latency_s
        self.happened: list[tuple[str, Fault]] = []
        self._seen = [0] * len(self.rules)
        self._done = [0] * len(self.rules)
        self._calls: Counter[str] = Counter()
        self._lock = Lock()
        self._released = Event()

    def draw(self, operation: str) -> tuple[set[Fault], Random]:
        """What this call meets, and the dice that say where in it."""
        met: set[Fault] = set()
        with self._lock:
            for index, rule in enumerate(self.rules):
                if rule.applies_to(operation):
                    self._seen[index] += 1
                    if self._strikes(index, rule):
                        self._done[index] += 1
                        self.happened.append((operation, rule.fault))
                        met.add(rule.fault)
            self._calls[operation] += 1
            return met, _dice(self.seed, operation, self._calls[operation])

    def release(self) -> None:
        """Let the stuck calls go on, and no later one get stuck."""
        self._released.set()

    def wait_if_stuck(self) -> None:
        """Block until `release`."""
        self._released.wait()

    def clear(self) -> None:
        """No more faults; what happened stays on record."""
        with self._lock:
            self.rules, self._seen, self._done = [], [], []
        self.release()

    def _strikes(self, index: int, rule: Rule) -> bool:
        if self._seen[index] <= rule.skip or (rule.times is not None and self._done[index] >= rule.times):
            return False
        return _dice(self.seed, index, self._seen[index]).random() < rule.probability


class FaultyDrive:
    """A `Drive` around another one. `reappear` and `crash` are for the test."""

    def __init__(self, drive: Drive, plan: FaultPlan) -> None:
        self.inner = drive
        self.plan = plan
        self._vanished = False
        self._unsynced: dict[bytes, list[tuple[int, int]]] = {}  # published blob -> (offset, length) not durable
        self._unsynced_names: set[bytes] = set()

    @property
    def path(self) -> str:
        """The path of the drive inside."""
        return self.inner.path

    @property
    def identity(self) -> Identity:
        """The identity of the drive inside."""
        return self.inner.identity

    def reappear(self) -> None:
        """Undo VANISH."""
        self._vanished = False

    def crash(self) -> None:
        """Lose, as a power cut would, the shard bytes and names that were not durable. The drive inside is a local one.

        Call it when nothing uses the drive any more. What was only in `staging/` is not touched: nothing refers to it.
        """
        for blob_id, ranges in self._unsynced.items():
            for path in (shard_path(self.path, blob_id), trash_path(self.path, blob_id)):
                if Path(path).exists():
                    _wipe(path, ranges)
        for blob_id in self._unsynced_names:
            Path(shard_path(self.path, blob_id)).unlink(missing_ok=True)
        self._unsynced.clear()
        self._unsynced_names.clear()

    def get(self, key: bytes) -> bytes | None:
        """See `Drive`."""
        met, dice = self.before("get")
        return _flip_one([self.inner.get(key)], met, dice)[0]

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """See `Drive`."""
        met, dice = self.before("get_many")
        return _flip_one(self.inner.get_many(keys), met, dice)

    def scan(self, start: bytes, stop: bytes, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """See `Drive`."""
        met, dice = self.before("scan")
        found = self.inner.scan(start, stop, limit, reverse)
        values = _flip_one([value for _, value in found], met, dice)
        return [(key, value) for (key, _), value in zip(found, values, strict=True) if value is not None]

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """See `Drive`. With FLIP, one bit of every value of this walk is wrong."""
        met, dice = self.before("cursor")
        with self.inner.cursor() as cursor:
            yield _FlippingCursor(cursor, dice) if Fault.FLIP in met else cursor

    def seq(self) -> int:
        """See `Drive`."""
        self.before("seq")
        return self.inner.seq()

    def commit(self, seq: int, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """See `Drive`."""
        met, _ = self.before("commit")
        self.inner.commit(seq, puts, deletes)
        self.after("commit", met)

    def create_shard(self, blob_id: bytes) -> ShardWriter:
        """See `Drive`."""
        met, _ = self.before("shard.create")
        writer = self.inner.create_shard(blob_id)
        if Fault.ERROR_AFTER in met:
            writer.abort()
        self.after("shard.create", met)
        return _FaultyWriter(self, writer, blob_id)

    def open_shard(self, blob_id: bytes) -> ShardReader | None:
        """See `Drive`."""
        self.before("shard.open")
        reader = self.inner.open_shard(blob_id)
        return reader and _FaultyReader(self, reader)

    def shard_size(self, blob_id: bytes) -> int | None:
        """See `Drive`."""
        self.before("shard.size")
        return self.inner.shard_size(blob_id)

    def list_shards(self, prefix_byte: int) -> list[tuple[bytes, int]]:
        """See `Drive`."""
        self.before("list_shards")
        return self.inner.list_shards(prefix_byte)

    def trash_shard(self, blob_id: bytes) -> None:
        """See `Drive`."""
        met, _ = self.before("trash_shard")
        self.inner.trash_shard(blob_id)
        self.after("trash_shard", met)

    def empty_trash(self, older_than_s: float) -> int:
        """See `Drive`."""
        self.before("empty_trash")
        return self.inner.empty_trash(older_than_s)

    def clear_staging(self, alive_pids: Collection[int]) -> int:
        """See `Drive`."""
        self.before("clear_staging")
        return self.inner.clear_staging(alive_pids)

    def space(self) -> Space:
        """See `Drive`."""
        self.before("space")
        return self.inner.space()

    def probe(self) -> None:
        """See `Drive`."""
        self.before("probe")
        self.inner.probe()

    def close(self) -> None:
        """See `Drive`."""
        self.inner.close()

    def before(self, operation: str) -> tuple[set[Fault], Random]:
        """Meet the faults that come before the deed; returns those that are part of it or come after."""
        met, dice = self.plan.draw(operation)
        self._vanished |= Fault.VANISH in met
        if Fault.SLOW in met:
            time.sleep(self.plan.latency_s)
        if Fault.STUCK in met:
            self.plan.wait_if_stuck()
        if self._vanished:
            raise DriveFailed(self.path, f"{operation}: the drive has vanished (injected)")
        if Fault.ERROR in met:
            raise DriveFailed(self.path, f"{operation}: Input/output error (injected)")
        if Fault.FULL in met:
            raise DriveFull(self.path, f"{operation}: No space left on device (injected)")
        return met, dice

    def after(self, operation: str, met: set[Fault]) -> None:
        """Meet the fault that comes after the deed."""
        if met & {Fault.ERROR_AFTER, Fault.TORN}:
            raise DriveFailed(self.path, f"{operation}: Input/output error (injected)")

    def published(self, blob_id: bytes, unsynced: list[tuple[int, int]], name_is_durable: bool) -> None:
        """Remember what a crash would take from a shard that has just been published."""
        self._unsynced[blob_id] = unsynced
        (self._unsynced_names.discard if name_is_durable else self._unsynced_names.add)(blob_id)


class _FaultyWriter:
    def __init__(self, drive: FaultyDrive, inner: ShardWriter, blob_id: bytes) -> None:
        self._drive = drive
        self._inner = inner
        self._blob_id = blob_id
        self._unsynced: list[tuple[int, int]] = []

    def write(self, views: Sequence[memoryview], offset: int) -> None:
        met, dice = self._drive.before("shard.write")
        views = _damaged(views, met, dice)
        self._inner.write(views, offset)
        self._unsynced.append((offset, sum(map(len, views))))
        self._drive.after("shard.write", met)

    def sync(self) -> None:
        met, _ = self._drive.before("shard.sync")
        self._inner.sync()
        if Fault.LOSE_SYNC not in met:
            self._unsynced.clear()
        self._drive.after("shard.sync", met)

    def publish(self) -> None:
        met, _ = self._drive.before("shard.publish")
        self._inner.publish()
        self._drive.published(self._blob_id, self._unsynced, Fault.LOSE_SYNC not in met)
        self._drive.after("shard.publish", met)

    def abort(self) -> None:
        self._inner.abort()


class _FaultyReader:
    def __init__(self, drive: FaultyDrive, inner: ShardReader) -> None:
        self._drive = drive
        self._inner = inner

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def read(self, views: Sequence[memoryview], offset: int) -> int:
        met, dice = self._drive.before("shard.read")
        count = self._inner.read(views, offset)
        if Fault.FLIP in met and count:
            _flip_in_place(views, dice.randrange(count), 1 << dice.randrange(8))
        return dice.randrange(0, count, ALIGNMENT_BYTES) if Fault.SHORT in met and count else count

    def close(self) -> None:
        self._inner.close()


class _FlippingCursor:
    def __init__(self, inner: Cursor, dice: Random) -> None:
        self._inner = inner
        self._dice = dice
        self.seek = inner.seek
        self.next = inner.next
        self.previous = inner.previous
        self.last_before = inner.last_before

    @property
    def key(self) -> bytes:
        return self._inner.key

    @property
    def value(self) -> memoryview:
        return memoryview(flipped(self._inner.value, self._dice))


def flipped(content: bytes | memoryview, dice: Random) -> bytes:
    """`content` with one bit changed; nothing can be changed in nothing."""
    changed = bytearray(content)
    if changed:
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def flip_bit_in_file(path: str, dice: Random) -> int:
    """Change one bit of a file where it lies, as a decaying disk does; returns the offset of its byte."""
    with Path(path).open("r+b") as file:
        offset = dice.randrange(os.fstat(file.fileno()).st_size)
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << dice.randrange(8)]), offset)
        os.fsync(file.fileno())
    return offset


def _dice(*what: object) -> Random:
    return Random(" ".join(map(str, what)))  # noqa: S311 - to be replayed, not to be secret


def _flip_one(values: Sequence[bytes | None], met: set[Fault], dice: Random) -> list[bytes | None]:
    result = list(values)
    there = [index for index, value in enumerate(values) if value]
    if Fault.FLIP in met and there:
        index = dice.choice(there)
        result[index] = flipped(result[index] or b"", dice)
    return result


def _damaged(views: Sequence[memoryview], met: set[Fault], dice: Random) -> Sequence[memoryview]:
    """What reaches the disk of a write that meets TORN, SHORT or FLIP: aligned memory of its own."""
    if not met & {Fault.TORN, Fault.SHORT, Fault.FLIP}:
        return views
    content = b"".join(views)
    if Fault.FLIP in met:
        content = flipped(content, dice)
    if met & {Fault.TORN, Fault.SHORT}:
        content = content[: dice.randrange(0, max(len(content), 1), ALIGNMENT_BYTES)]
    buffer = memoryview(mmap.mmap(-1, max(len(content), 1)))[: len(content)]
    buffer[:] = content
    return [buffer] if content else []


def _flip_in_place(views: Sequence[memoryview], position: int, mask: int) -> None:
    for view in views:
        if position < len(view):
            view[position] ^= mask
            return
        position -= len(view)


def _wipe(path: str, ranges: Sequence[tuple[int, int]]) -> None:
    """Zero what never reached the disk; where that is the end of the file, the file is shorter."""
    with Path(path).open("r+b") as file:
        end = os.fstat(file.fileno()).st_size
        for offset, length in sorted(ranges, reverse=True):
            if offset + length >= end:
                end = offset
            else:
                os.pwrite(file.fileno(), bytes(length), offset)
        file.truncate(end)
        os.fsync(file.fileno())
