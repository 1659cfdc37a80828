"""One erasure set: its drives, what state they are in, and the two things done to all of them: a commit and a read."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from forebay.drive import Drive, crash_point
from forebay.engine import keyspace, recovery
from forebay.engine.lanes import Abandoned, Gather, Lanes
from forebay.engine.once import Once
from forebay.engine.placement import Geometry
from forebay.engine.records import BadRecord, Log, pack, unpack
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import DriveError, DriveFailed, DriveFull, StoreError

log = logging.getLogger("forebay.engine")
T = TypeVar("T")

COMMIT_TIMEOUT_S = 10.0  # a drive that takes longer is taken out; the store must answer before clients give up (60 s)
LOG_COMMITS_KEPT = 4096  # how far behind a drive may be and still catch up without a full comparison
LOG_TRIM_COMMITS = 64  # older log records are removed so many at a time
SLOW_S = 1.0  # a drive with a call under way for longer is read around
STUCK_S = 30.0  # a drive with a call under way for longer is taken out
IO_LANES = 4  # calls at a drive at once for shards: enough to keep a fast drive's queue filled

Opener = Callable[[int], Drive]


class OwnCopy(NamedTuple):
    """A value that each drive derives from its own copy (None if it has none)."""

    derive: Callable[[bytes | None], bytes]


# One value for all drives, one for each drive position, one that each derives, or None: remove the key.
Value = bytes | list[bytes] | OwnCopy | None


class Changes(NamedTuple):
    """What a commit does."""

    seq: int
    values: dict[bytes, Value]


class ErasureSet:
    """See the module. `drives[p]` is None while drive p was never opened by this process."""

    def __init__(self, index: int, geometry: Geometry, drives: Sequence[Drive | None], shared: SharedState, reopen: Opener) -> None:
        """`reopen(p)` opens drive p afresh, after it came back; raises DriveError."""
        assert len(drives) == geometry.drives
        self.index = index
        self.geometry = geometry
        self.shared = shared
        self.commit_timeout_s = COMMIT_TIMEOUT_S
        self._drives: list[Drive | None] = list(drives)
        self._epochs = [shared.epoch(index, p) for p in range(geometry.drives)]
        self._reopen = reopen
        self._commit_lanes = [self._new_lanes(p, "commit", 1) for p in range(geometry.drives)]
        self._io_lanes = [self._new_lanes(p, "io", IO_LANES) for p in range(geometry.drives)]
        self._changes_seen = -1
        self._current: list[tuple[int, Drive]] = []
        self._current_at: list[Drive | None] = [None] * geometry.drives
        self._mutex = threading.Lock()
        self._published_ordinal = (-1, 0)  # (sequence number, ordinal) of the commit that this process published last
        self._closed = False
        self.bad_records = 0
        self._reported = Once()
        self.on_bad_record: Callable[[int, bytes], None] = lambda position, key: None

    # drives and their states

    def drive(self, position: int) -> Drive | None:
        """Drive `position` if it may be asked anything."""
        if self.state(position) is DriveState.OFFLINE:
            return None
        if self._epochs[position] != self.shared.epoch(self.index, position) or self._drives[position] is None:
            self._open_again(position)
        return self._drives[position]

    def open_fresh(self, position: int) -> Drive:
        """A handle of its own on the drive, whatever its state; close it after use. Raises DriveError."""
        return self._reopen(position)

    def state(self, position: int) -> DriveState:
        """Of one drive."""
        return self.shared.state(self.index, position)

    def current(self) -> list[tuple[int, Drive]]:
        """(position, drive) of every drive whose index is complete."""
        changes = self.shared.changes(self.index)
        if changes != self._changes_seen:
            found = []
            for p in range(self.geometry.drives):
                if self.state(p) is DriveState.CURRENT and (drive := self.drive(p)) is not None:
                    found.append((p, drive))
            by_position: list[Drive | None] = [None] * self.geometry.drives
            for p, drive in found:
                by_position[p] = drive
            self._current, self._current_at, self._changes_seen = found, by_position, changes
        return self._current

    def current_at(self, position: int) -> Drive | None:
        """Drive `position` if its index is complete."""
        self.current()
        return self._current_at[position]

    def in_states(self, *states: DriveState) -> list[tuple[int, Drive]]:
        """(position, drive) of the drives in any of `states`."""
        found = []
        for p in range(self.geometry.drives):
            if self.state(p) in states and (drive := self.drive(p)) is not None:
                found.append((p, drive))
        return found

    def take_out(self, position: int, error: BaseException | str, state: DriveState = DriveState.OFFLINE) -> None:
        """A drive failed: no process uses it until it is admitted again."""
        if self._closed or (isinstance(error, Abandoned) and state is DriveState.OFFLINE):
            return  # says nothing about the drive: it was out already, and may be back by now
        if self.shared.lower_state(self.index, position, state, str(error)):
            log.error("set %d, drive %d is taken out: %s", self.index, position, error)
        if state is DriveState.OFFLINE:
            self._abandon(position, f"it was taken out: {error}")

    def published(self) -> int:
        """The newest commit that may be seen."""
        return self.shared.published(self.index)

    def writable(self) -> bool:
        """Whether a commit would find its quorum now."""
        return len(self.current()) >= self.geometry.write_quorum

    def has_space(self) -> bool:
        """Whether a write quorum of drives has room for new data."""
        with_room = 0
        for position, drive in self.current():
            try:
                with_room += drive.space().free_bytes > 0
            except DriveFailed as e:
                self.take_out(position, e)
        return with_room >= self.geometry.write_quorum

    def require_writable(self) -> None:
        """Raises ServiceUnavailable when too few drives are current."""
        if not self.writable():
            raise self.unavailable()

    def unavailable(self) -> StoreError:
        """What a client is told when too many drives are away."""
        return StoreError(
            "ServiceUnavailable",
            f"Erasure set {self.index} has {len(self.current())} of {self.geometry.drives} drives in service and needs "
            f"{self.geometry.write_quorum}. See `forebay drive list`.",
            headers={"retry-after": "5"},
        )

    def close(self) -> None:
        """Close the drives. What is asked after this fails, and takes no drive out."""
        self._closed = True
        for lanes in (*self._commit_lanes, *self._io_lanes):
            lanes.close(Abandoned("the drives", "the store is closed"))
        for drive in self._drives:
            if drive is not None:
                drive.close()

    def _new_lanes(self, position: int, kind: str, threads: int) -> Lanes:
        return Lanes(f"set{self.index}-drive{position}-{kind}", threads)

    def _abandon(self, position: int, why: str) -> None:
        """Calls that hang keep their threads; those that wait behind them fail now, and the drive gets new threads when it is back."""
        self._commit_lanes[position].abandon(Abandoned(f"drive {position}", why))
        self._io_lanes[position].abandon(Abandoned(f"drive {position}", why))

    def _open_again(self, position: int) -> None:
        with self._mutex:
            epoch = self.shared.epoch(self.index, position)
            if self._epochs[position] == epoch and self._drives[position] is not None:
                return
            try:
                # The handle before is let go, not closed: calls may be under way on it in other threads.
                self._drives[position] = self._reopen(position)
            except DriveError as e:
                self._drives[position] = None
                self.take_out(position, e)
                return
            self._epochs[position] = epoch
            self._abandon(position, "it was opened again")
            self._commit_lanes[position] = self._new_lanes(position, "commit", 1)
            self._io_lanes[position] = self._new_lanes(position, "io", IO_LANES)

    # calls to many drives

    def call_each(self, calls: Iterable[tuple[int, Callable[[], object]]], timeout_s: float) -> dict[int, object]:
        """Make calls on the I/O lanes, one a position; a drive that fails or is late is taken out and its outcome is the error."""
        calls = list(calls)
        gather = Gather(len(calls))
        for position, call in calls:
            self.submit(gather, position, call)
        return self.settle([p for p, _ in calls], gather.wait(timeout_s), timeout_s)

    def submit(self, gather: Gather, position: int, call: Callable[[], object]) -> None:
        """Make one call on a drive's I/O lanes."""
        self.is_slow(position)
        self._io_lanes[position].submit(gather, position, call)

    def is_slow(self, position: int) -> bool:
        """Whether a call on the drive's I/O lanes takes so long that others should not wait for it; if it hangs, the drive is taken out."""
        busy_s = self._io_lanes[position].busy_s()
        if busy_s > STUCK_S and self.state(position) is not DriveState.OFFLINE:
            self.take_out(position, f"a call has not returned for {busy_s:.0f} s")
        return busy_s > SLOW_S

    def settle(self, positions: Iterable[int], outcomes: dict[int, object], timeout_s: float) -> dict[int, object]:
        """Complete `outcomes` with the late ones, and take out the drives that failed or are late."""
        for position in positions:
            outcome = outcomes.get(position, _LATE)
            if outcome is _LATE:
                outcome = outcomes[position] = DriveFailed(f"drive {position}", f"no answer within {timeout_s:g} s")
            if isinstance(outcome, DriveFailed):
                self.take_out(position, outcome)
            elif isinstance(outcome, BaseException) and not isinstance(outcome, DriveError):
                raise outcome
        return outcomes

    # the index

    def read(self, ask: Callable[[Drive], T]) -> T:
        """`ask` a current drive, and the next one where that fails or finds a damaged record."""
        for position, drive in self.current():
            try:
                return ask(drive)
            except DriveFailed as e:
                self.take_out(position, e)
            except BadRecord as e:
                self.report_bad_record(position, e)
        if len(self.current()) < self.geometry.read_quorum:
            raise self.unavailable()
        raise StoreError("InternalError", "No drive holds an undamaged copy of the record asked for.")

    def report_bad_record(self, position: int, error: BadRecord) -> None:
        """A drive holds a damaged record: count it and have it repaired."""
        self.bad_records += 1
        if self._reported.is_new((position, error.key)):
            log.error("set %d, drive %d: damaged record: %s", self.index, position, error)
        self.on_bad_record(position, error.key)

    def next_seq(self) -> int:
        """Under the set lock: the number of the next commit. Settles the last one first if it failed or its process died."""
        while self.shared.tried(self.index) != self.published():
            try:
                newest, _ = recovery.settle(self.geometry, self.current())
                keys: list[bytes] = []
                if newest.seq > self.published():  # every member that is in service has it
                    recovery.drop_unreadable(newest, self.geometry, self.current())
                    keys = newest.log.keys
            except DriveError as e:
                self._take_out_named(e)
                self.require_writable()
                continue
            self.commit(Changes(self.shared.tried(self.index) + 1, {}), keys)
        return self.published() + 1

    def _take_out_named(self, error: DriveError) -> None:
        for position, drive in self.current():
            if drive.path == error.drive:
                self.take_out(position, error, DriveState.STALE if isinstance(error, DriveFull) else DriveState.OFFLINE)
                return
        raise error

    def commit(self, changes: Changes, keys: Sequence[bytes] = ()) -> None:
        """Under the set lock: make `changes` durable on every current drive and publish them. Raises StoreError if too few have them.

        `keys` were changed since the published commit by one that was never published, and become part of this one.
        """
        seq, values = changes
        keys = [*keys, *values]
        members = [p for p, _ in self.in_states(DriveState.CURRENT)]
        ordinal = self._ordinal_of_published() + 1
        values |= self._outdated_logs(ordinal)
        crash_point("engine.commit.before")
        while True:
            log_key = keyspace.log_key(seq)
            values[log_key] = pack(log_key, Log(keys, os.urandom(8), self.published(), ordinal, members))
            done, errors = self._give(Changes(seq, values))
            if len(members) < self.geometry.write_quorum or len(done.intersection(members)) < self.geometry.write_quorum:
                self._fail(seq, done, errors)
            if done.issuperset(members):
                break
            # A member failed. Only a commit that does without it may count: see recovery.py.
            members, seq, values = [p for p in members if p in done], seq + 1, {}
        crash_point("engine.commit.publish")
        self.shared.publish(self.index, seq)
        self._published_ordinal = (seq, ordinal)
        crash_point("engine.commit.published")

    def _give(self, changes: Changes) -> tuple[set[int], dict[int, BaseException]]:
        """Have every current and syncing drive make a commit; those that fail are taken out. Returns who has it, and the errors."""
        drives = self.in_states(DriveState.CURRENT, DriveState.SYNCING)
        tried = self.shared.tried(self.index)
        self.shared.set_tried(self.index, changes.seq)
        gather = Gather(len(drives))
        for p, drive in drives:
            self._commit_lanes[p].submit(gather, p, partial(_apply, drive, p, changes))
        outcomes = gather.wait(self.commit_timeout_s)
        done: set[int] = set()
        errors: dict[int, BaseException] = {}
        for p, drive in drives:
            outcome = outcomes.get(p, _LATE)
            if outcome is _LATE:
                errors[p] = DriveFailed(drive.path, f"a commit took longer than {self.commit_timeout_s:g} s")
            elif isinstance(outcome, BaseException):
                errors[p] = outcome
            else:
                done.add(p)
        if not done and errors and all(isinstance(e, DriveFull) for e in errors.values()):
            self.shared.set_tried(self.index, tried)  # full drives did nothing: all are where they were
            return done, errors
        for p, error in errors.items():
            self.take_out(p, error, DriveState.STALE if isinstance(error, (DriveFull, Abandoned)) else DriveState.OFFLINE)
        return done, errors

    def _fail(self, seq: int, done: set[int], errors: dict[int, BaseException]) -> NoReturn:
        log.error("commit %d of set %d failed: drives %s have it", seq, self.index, sorted(done))
        for position, error in errors.items():
            log.error("commit %d of set %d failed on drive %d: %s", seq, self.index, position, error)
        if any(isinstance(e, DriveFull) for e in errors.values()):
            raise StoreError("InsufficientCapacity")
        raise self.unavailable()

    def _ordinal_of_published(self) -> int:
        seq, ordinal = self._published_ordinal
        if seq == (published := self.published()):
            return ordinal
        key = keyspace.log_key(published)
        return self.read(lambda drive: unpack(key, raw, Log).ordinal if (raw := drive.get(key)) is not None else 0)

    def _outdated_logs(self, ordinal: int) -> dict[bytes, Value]:
        """Every LOG_TRIM_COMMITS commits: log records to remove."""
        if ordinal % LOG_TRIM_COMMITS:
            return {}
        stop = keyspace.log_key(self.published())

        def outdated(drive: Drive) -> dict[bytes, Value]:
            oldest = drive.scan(keyspace.TABLE_LOG, stop, 2 * LOG_TRIM_COMMITS)
            return {key: None for key, raw in oldest if unpack(key, raw, Log).ordinal <= ordinal - LOG_COMMITS_KEPT}

        return self.read(outdated)


_LATE = object()


def _apply(drive: Drive, position: int, changes: Changes) -> None:
    puts: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    for key, value in changes.values.items():
        if value is None:
            deletes.append(key)
        elif isinstance(value, bytes):
            puts.append((key, value))
        elif isinstance(value, list):
            puts.append((key, value[position]))
        else:
            puts.append((key, value.derive(drive.get(key))))
    drive.commit(changes.seq, puts, deletes)
