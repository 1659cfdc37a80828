"""Bringing the index of a stale drive up to date, while the set goes on.

First the drive is marked as syncing, under the set lock: from then on every commit reaches it too. What it missed before is then put
right in chunks, each under the set lock: the keys that the log names since the drive's own newest commit, or, if the log no longer
reaches back so far or the drive's history is another, all keys, range by range. A crash at any moment leaves a drive that is marked as
syncing, and this begins again.

Where the drive stands                                        so
============================================================  ===================================================================
at the newest commit                                          current at once
behind, and a commit of the log is its newest                 replay of the log
has a commit that nobody else has and none acknowledged       undone by `recovery.settle`, then as above
lacks a commit of which it was a member                       that commit was never acknowledged: undone on the others if it has
                                                              not been seen, else kept, but for what nobody can read
anything else                                                 comparison of the whole index
============================================================  ===================================================================
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar, cast

from forebay.drive import Drive, crash_point
from forebay.engine import keyspace, records, recovery
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.opening import FILL_KEY, SYNCING_KEY, Layout, is_complete, known_records
from forebay.engine.records import BadRecord, Log
from forebay.engine.recovery import Lost, Newest, Source
from forebay.engine.shared import DriveState
from forebay.errors import DriveError, DriveFull, StoreError

log = logging.getLogger("forebay.engine")

CHUNK_RECORDS = 256  # with CHUNK_BYTES, bounds how long the set lock is held
CHUNK_BYTES = 4 << 20
CHUNK_LOGS = 64
CALL_TIMEOUT_S = 10.0
PAUSE_S = 0.001  # between chunks, so that requests get the set lock; longer if a chunk took longer
_RANGES = ((b"", keyspace.TABLE_SYSTEM), (keyspace.successor(keyspace.TABLE_SYSTEM) or b"", b""))

T = TypeVar("T")
Pairs = list[tuple[bytes, bytes]]


class Stopped(Exception):  # noqa: N818 - not an error of the program
    """The drive cannot be brought up to date now; the message says why."""


class Resync:
    """One attempt for one drive."""

    def __init__(self, erasure_set: ErasureSet, layout: Layout, position: int, is_stopping: Callable[[], bool]) -> None:
        """`is_stopping` is asked between chunks."""
        self._set = erasure_set
        self._layout = layout
        self._position = position
        self._is_stopping = is_stopping
        drive = erasure_set.drive(position)
        if drive is None:
            raise Stopped("the drive cannot be opened")
        self._drive: Drive = drive
        self.records_changed = 0

    def run(self) -> None:
        """Returns when the drive is current. Raises Stopped, and StoreError if the set cannot commit."""
        with self._set.shared.lock(self._set.index):
            self._leaders()
            start = self._begin()
        if start is None:
            return
        log.info("set %d, drive %d: its index is brought up to date", self._set.index, self._position)
        if not (start and self._replay(int.from_bytes(start, "big"))):
            self._compare_all()
        with self._set.shared.lock(self._set.index):
            crash_point("engine.resync.end")
            self._finish([SYNCING_KEY], DriveState.SYNCING)
        log.info("set %d, drive %d: its index is up to date, %d records changed", self._set.index, self._position, self.records_changed)

    # under the set lock

    def _leaders(self) -> list[Source]:
        leaders = self._set.current()
        if not leaders:
            raise Stopped("no drive of the set has a complete index")
        return leaders

    def _begin(self) -> bytes | None:
        """Compare histories and mark the drive as syncing; returns where to replay from, empty for a comparison, None if it is current."""
        if self._set.writable():
            self._set.next_seq()  # settles what is unsettled
        newest, own, complete = self._ask(self._compare_histories)
        if complete and own is not None and own.raw == newest.raw:
            self._fence([])
            self._finish([], DriveState.STALE)
            return None
        start = self._ask(partial(self._replay_start, own, newest))
        if not start and len(self._set.current()) < self._set.geometry.read_quorum:
            raise Stopped("too few drives have a complete index to compare with")
        self._fence([(SYNCING_KEY, start), *([(FILL_KEY, b"1")] if own is None else [])])
        reason = "its index is being brought up to date"
        if not self._set.shared.raise_state(self._set.index, self._position, DriveState.STALE, DriveState.SYNCING, reason):
            raise Stopped("it was taken out")
        crash_point("engine.resync.begin")
        return start

    def _compare_histories(self) -> tuple[Newest, Newest | None, bool]:
        """(newest commit of the current drives, of this one, whether this one is complete), after undoing what was never acknowledged."""
        geometry, leaders, us = self._set.geometry, self._leaders(), (self._position, self._drive)
        newest, _ = recovery.settle(geometry, leaders)
        own = recovery.newest_log(self._drive)
        if own is None or not is_complete(self._drive):
            return newest, own, False
        if newest.seq > self._set.published() or own.seq > newest.seq:
            newest, holders = recovery.settle(geometry, [*leaders, us])
            if not set(leaders) <= set(holders):
                raise Stopped(f"it has commit {newest.seq}, which the drives in service do not know")
        elif own.seq < newest.seq and self._position in newest.log.members:
            recovery.drop_unreadable(newest, geometry, leaders)
        return newest, recovery.newest_log(self._drive), True

    def _replay_start(self, own: Newest | None, newest: Newest) -> bytes:
        """The sequence number (8 bytes) from which the log can be replayed; empty if it cannot."""
        if own is None:
            return b""
        mark = self._drive.get(SYNCING_KEY)
        start = own.seq if mark is None else int.from_bytes(mark, "big")
        key = keyspace.log_key(start)
        _, leader = self._leaders()[0]
        raw = leader.get(key)
        if not start or raw is None or raw != self._drive.get(key) or not self._reaches(leader, start, newest.seq):
            return b""
        return start.to_bytes(8, "big")

    def _reaches(self, leader: Drive, start: int, seq: int) -> bool:
        """Whether the log holds every commit after `start` up to `seq`: each names the one before it."""
        while seq > start:
            key = keyspace.log_key(seq)
            raw = leader.get(key)
            if raw is None:
                return False
            seq = records.unpack(key, raw, Log).previous
        return True

    def _fence(self, puts: Pairs) -> None:
        """A commit on this drive alone, under a number so high that one which was given to it long ago is refused if it comes now."""
        shared, index = self._set.shared, self._set.index
        fence = max(shared.tried(index), self._ask(self._drive.seq)) + 1
        shared.set_tried(index, fence)
        self._ask(partial(self._drive.commit, fence, puts, []))

    def _finish(self, deletes: list[bytes], before: DriveState) -> None:
        """The index is complete: the drive is current."""
        known = self._ask(partial(known_records, self._layout, self._set.index, [self._position]))
        self._ask(partial(_commit_alone, self._drive, known, deletes))
        self._set.call_each([(p, partial(_commit_if_new, drive, known)) for p, drive in self._set.current()], CALL_TIMEOUT_S)
        if not self._set.shared.raise_state(self._set.index, self._position, before, DriveState.CURRENT):
            raise Stopped("it was taken out")

    def _put_right(self, wanted: list[bytes], more: Pairs | None = None) -> None:
        """Give the drive what the current ones have under the keys `wanted`, and `more`."""
        self._ask(partial(self._put_right_now, wanted, more or []))
        crash_point("engine.resync.chunk")

    def _put_right_now(self, wanted: list[bytes], more: Pairs) -> None:
        puts: Pairs = list(more)
        deletes: list[bytes] = []
        for key in wanted:
            value = self._value(key)
            if value is None:
                deletes.append(key)
            else:
                puts.append((key, value.record if isinstance(value, Lost) else value))
        if puts or deletes:
            self.records_changed += len(wanted)
            _commit_alone(self._drive, puts, deletes)

    def _value(self, key: bytes) -> bytes | Lost | None:
        """What the drive should hold under `key`, by what at least half of the current drives hold."""
        leaders = self._leaders()
        having = [(p, d) for p, d in leaders if d.get(key) is not None]
        if 2 * len(having) < len(leaders):
            self._report(key, having)
            return None
        self._report(key, [source for source in leaders if source not in having])
        return recovery.value_for(key, self._position, self._set.geometry, having, [(self._position, self._drive)])

    def _report(self, key: bytes, different: list[Source]) -> None:
        """Some current drives have lost a record, or kept one that the others have not."""
        for position, _ in different:
            self._set.report_bad_record(position, BadRecord(key, "most drives of the set say otherwise"))

    def _ask(self, call: Callable[[], T]) -> T:
        """Have a thread of the drive make a call, so that this one does not hang with it; blames the drive whose error comes back."""
        outcome = self._set.call_each([(self._position, partial(_caught, call))], CALL_TIMEOUT_S)[self._position]
        if isinstance(outcome, DriveError):
            for position, drive in [*self._set.current(), (self._position, self._drive)]:
                if drive.path == outcome.drive:
                    self._set.take_out(position, outcome, DriveState.STALE if isinstance(outcome, DriveFull) else DriveState.OFFLINE)
            raise Stopped(str(outcome)) from outcome
        found, error = cast("tuple[T, Exception | None]", outcome)
        if error is not None:
            raise error
        return found

    # chunk by chunk

    def _chunks(self, steps: Iterator[None]) -> None:
        """Take steps, each under the set lock."""
        while True:
            if self._is_stopping():
                raise Stopped("the store is stopping")
            began_s = time.monotonic()
            with self._set.shared.lock(self._set.index):
                if self._set.state(self._position) is not DriveState.SYNCING:
                    raise Stopped("it was taken out")
                if next(steps, _END) is _END:
                    return
            time.sleep(max(PAUSE_S, time.monotonic() - began_s))

    def _replay(self, start: int) -> bool:
        """Put right what the log names; False if log records vanished meanwhile."""
        complete: list[bool] = []
        self._chunks(self._replay_steps(start, complete))
        return bool(complete)

    def _replay_steps(self, start: int, complete: list[bool]) -> Iterator[None]:
        logs = self._ask(partial(self._logs_after, start))
        while logs:
            keys = list(dict.fromkeys(key for log_key, raw in logs for key in records.unpack(log_key, raw, Log).keys))
            for i in range(0, len(keys), CHUNK_RECORDS):
                self._put_right(keys[i : i + CHUNK_RECORDS])
                yield
            start = keyspace.log_seq(logs[-1][0])
            self._put_right([], [*logs, (SYNCING_KEY, start.to_bytes(8, "big"))])
            yield
            logs = self._ask(partial(self._logs_after, start))
        complete.append(logs is not None)

    def _logs_after(self, start: int) -> Pairs | None:
        """The next log records, oldest first; None if they are not all there any more."""
        _, leader = self._leaders()[0]
        newest = recovery.newest_log(leader)
        if newest is None or not self._reaches(leader, start, newest.seq):
            return None
        return leader.scan(keyspace.log_key(start + 1), keyspace.log_key(newest.seq + 1), CHUNK_LOGS)

    def _compare_all(self) -> None:
        for start, stop in _RANGES:
            self._chunks(self._compare_steps(start, stop))

    def _compare_steps(self, start: bytes, stop: bytes) -> Iterator[None]:
        here: bytes | None = start
        while here is not None:
            here = self._compare_chunk(here, stop)
            yield

    def _compare_chunk(self, start: bytes, stop: bytes) -> bytes | None:
        """Compare some records from `start` on; returns where to go on, None at `stop`."""
        end: bytes | None = None
        theirs: dict[bytes, list[bytes]] = {}
        scans = [self._ask(partial(_some, leader, start, stop)) for _, leader in self._leaders()]
        own, after = self._ask(partial(_some, self._drive, start, stop))
        end = min((at for at in (after, *(at for _, at in scans)) if at is not None), default=None)
        for found, _ in scans:
            for key, raw in found:
                if end is None or key < end:
                    theirs.setdefault(key, []).append(raw)
        values = {key: raw for key, raw in own if end is None or key < end}
        wrong = [k for k, found in theirs.items() if len(found) < len(scans) or not self._is_right(k, found[0], values.get(k))]
        self._put_right([*wrong, *(key for key in values if key not in theirs)])
        return end

    def _is_right(self, key: bytes, theirs: bytes, own: bytes | None) -> bool:
        """Whether this drive's record is whole, and the same as a current drive's but for the shard."""
        if own is None or not own or not theirs:
            return own == theirs
        try:
            a, b = records.unframe(key, theirs), records.unframe(key, own)
        except BadRecord:
            return False
        if (a.kind, a.deleted_seq, a.meta) != (b.kind, b.deleted_seq, b.meta):
            return False
        if a.shard_position == b.shard_position == records.NO_SHARD:
            return a.kind != records.KIND_VERSION or bool(a.deleted_seq) or not records.decode(key, a, records.Version).inline
        return b.shard_position == recovery.shard_position(key, self._position, self._set.geometry)


_END = object()


def _caught(call: Callable[[], T]) -> tuple[T | None, Exception | None] | DriveError:
    """A drive's error is a result here: the drive whose thread makes the call need not be the one that failed."""
    try:
        return call(), None
    except DriveError as e:
        return e
    except BadRecord as e:
        return None, Stopped(f"a record is damaged on every drive in service: {e}")
    except (Stopped, StoreError) as e:
        return None, e


def _some(drive: Drive, start: bytes, stop: bytes) -> tuple[Pairs, bytes | None]:
    """Records from `start` on, below `stop`, at most a chunk; and where to go on, None if that is all."""
    found = drive.scan(start, stop, CHUNK_RECORDS)
    total = 0
    for i, (key, value) in enumerate(found):
        total += len(key) + len(value)
        if total > CHUNK_BYTES or i + 1 == CHUNK_RECORDS:
            return found[: i + 1], key + b"\x00"
    return found, None


def _commit_alone(drive: Drive, puts: Pairs, deletes: list[bytes]) -> None:
    drive.commit(drive.seq(), puts, deletes)


def _commit_if_new(drive: Drive, known: Pairs) -> None:
    if any(drive.get(key) != value for key, value in known):
        drive.commit(drive.seq(), known, [])
