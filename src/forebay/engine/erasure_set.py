"""One erasure set: its drives, what state they are in, and the two things done to all of them: a commit and a read."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from forebay.drive import Drive, crash_point
from forebay.engine import keyspace, recovery
from forebay.engine.lanes import Gather, Lanes
from forebay.engine.placement import Geometry
from forebay.engine.records import BadRecord, Log, pack
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import DriveError, DriveFailed, DriveFull, StoreError

log = logging.getLogger("forebay.engine")
T = TypeVar("T")

COMMIT_TIMEOUT_S = 10.0  # a drive that takes longer is taken out; the store must answer before clients give up (60 s)
LOG_COMMITS_KEPT = 4096  # how far behind a drive may be and still catch up without a full comparison
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
        self.bad_records = 0
        self.on_bad_record: Callable[[int, bytes], None] = lambda position, key: None

    # drives and their states

    def drive(self, position: int) -> Drive | None:
        """Drive `position` if it may be asked anything."""
        if self.state(position) is DriveState.OFFLINE:
            return None
        if self._epochs[position] != self.shared.epoch(self.index, position) or self._drives[position] is None:
            self._open_again(position)
        return self._drives[position]

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
        if self.state(position) > state:
            drive = self._drives[position]
            log.error(
                "drive %s (set %d, position %d) is taken out: %s",
                drive.path if drive else "?",
                self.index,
                position,
                error,
            )
            self.shared.set_state(self.index, position, state)

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
        """Close the drives."""
        for lanes in (*self._commit_lanes, *self._io_lanes):
            lanes.close()
        for drive in self._drives:
            if drive is not None:
                drive.close()

    def _new_lanes(self, position: int, kind: str, threads: int) -> Lanes:
        return Lanes(f"set{self.index}-drive{position}-{kind}", threads)

    def _open_again(self, position: int) -> None:
        with self._mutex:
            epoch = self.shared.epoch(self.index, position)
            if self._epochs[position] == epoch and self._drives[position] is not None:
                return
            old = self._drives[position]
            self._drives[position] = None
            if old is not None:
                old.close()
            try:
                self._drives[position] = self._reopen(position)
            except DriveError as e:
                self.take_out(position, e)
                return
            self._epochs[position] = epoch
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
        self._io_lanes[position].submit(gather, position, call)

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
        log.error("set %d, drive %d: damaged record: %s", self.index, position, error)
        self.on_bad_record(position, error.key)

    def next_seq(self) -> int:
        """Under the set lock: the number of the next commit. Settles the last one first if its process died in the middle of it."""
        published = self.shared.published(self.index)
        while True:
            try:
                current = self.current()
                if all(drive.seq() == published for _, drive in current):
                    return published + 1
                seq, leaders, laggards = recovery.newest(current)
                recovery.settle(self.geometry, leaders, laggards, seq, maybe_acknowledged=False)
            except DriveError as e:
                self._take_out_named(e)
                self.require_writable()
                continue
            self.shared.publish(self.index, seq)
            return seq + 1

    def _take_out_named(self, error: DriveError) -> None:
        for position, drive in self.current():
            if drive.path == error.drive:
                self.take_out(position, error, DriveState.STALE if isinstance(error, DriveFull) else DriveState.OFFLINE)
                return
        raise error

    def commit(self, changes: Changes) -> None:
        """Under the set lock: make `changes` durable on a quorum and publish them. Raises StoreError when there is none."""
        positions = [(p, d) for p, d in self.in_states(DriveState.CURRENT, DriveState.SYNCING)]
        self._write_log(changes)
        crash_point("engine.commit.before")
        gather = Gather(len(positions))
        for p, drive in positions:
            self._commit_lanes[p].submit(gather, p, partial(_apply, drive, p, changes))
        outcomes = gather.wait(self.commit_timeout_s)
        done = [p for p, _ in positions if outcomes.get(p, _LATE) is None]
        if sum(self.state(p) is DriveState.CURRENT for p in done) >= self.geometry.write_quorum:
            self._mark_failures(positions, outcomes)
            crash_point("engine.commit.publish")
            self.shared.publish(self.index, changes.seq)
            crash_point("engine.commit.published")
            return
        self._fail(changes, positions, outcomes, done)

    def _write_log(self, changes: Changes) -> None:
        key = keyspace.log_key(changes.seq)
        changes.values[key] = pack(key, Log([k for k in changes.values if k[:1] != keyspace.TABLE_LOG], os.urandom(8)))
        if changes.seq > LOG_COMMITS_KEPT:
            changes.values[keyspace.log_key(changes.seq - LOG_COMMITS_KEPT)] = None

    def _mark_failures(self, positions: list[tuple[int, Drive]], outcomes: dict[int, object]) -> None:
        for p, _ in positions:
            outcome = outcomes.get(p, _LATE)
            if outcome is _LATE:
                self.take_out(p, f"a commit took longer than {self.commit_timeout_s:g} s")
            elif isinstance(outcome, DriveFull):
                self.take_out(p, outcome, DriveState.STALE)
            elif isinstance(outcome, BaseException):
                self.take_out(p, outcome)

    def _fail(self, changes: Changes, positions: list[tuple[int, Drive]], outcomes: dict[int, object], done: list[int]) -> None:
        """Too few drives have the commit: take back what would hide readable data, then say why."""
        if done:
            self._mark_failures(positions, outcomes)
            undo = [key for key, value in changes.values.items() if isinstance(value, list)]
            if undo:
                gather = Gather(len(done))
                for p, drive in positions:
                    if p in done:
                        self._commit_lanes[p].submit(gather, p, partial(drive.commit, changes.seq, [], undo))
                self._mark_failures([(p, d) for p, d in positions if p in done], gather.wait(self.commit_timeout_s))
        errors = [o for o in outcomes.values() if isinstance(o, BaseException)]
        full = any(isinstance(e, DriveFull) for e in errors)
        if not done and full and all(isinstance(e, DriveError) for e in errors):
            # No drive applied anything, so those that are merely full are still where they were.
            self._mark_failures([(p, d) for p, d in positions if not isinstance(outcomes.get(p), DriveFull)], outcomes)
        elif not done:
            self._mark_failures(positions, outcomes)
        for e in errors:
            log.error("commit %d of set %d failed: %s", changes.seq, self.index, e)
        if full:
            raise StoreError("InsufficientCapacity")
        raise self.unavailable()


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
