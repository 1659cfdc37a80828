"""The background work of a store: admitting drives again, healing, collecting garbage, scrubbing. One per server, in the supervisor.

The public methods answer the admin API. What they return are structs that msgspec encodes as JSON objects with the same field names;
times are seconds since 1970, 0 where something has not happened. They may be called from any thread and may block for a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from forebay.drive import Drive, FolderKind, check_index, classify_folder
from forebay.engine import admission, keyspace
from forebay.engine.collect import Collector
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.heal import Healer, Progress, Unhealable, ask
from forebay.engine.opening import FILL_KEY, Layout
from forebay.engine.pace import Stopping
from forebay.engine.scrub import Counts, Scrubber
from forebay.engine.shared import DriveState
from forebay.errors import DriveError, DriveFailed, StoreError

log = logging.getLogger("forebay.engine")

SCRUB_KEY = keyspace.TABLE_SYSTEM + b"scrub"  # on every drive: the last ScrubStatus, JSON
PROBE_CURRENT_EVERY = 10  # ticks: drives in service are tested too, as an idle store would not notice that one is gone
PROBE_TIMEOUT_S = 10.0
REPORT_TIMEOUT_S = 2.0
HEAL_EVERY_S = 10.0
HEAL_EVERY_MAX_S = 600.0  # after passes that achieved nothing
TRASH_EVERY_S = 30.0
POINTERS_EVERY_S = 86_400.0
MISSING_COUNT_MAX = 10_000


Status = TypeVar("Status", "HealStatus", "ScrubStatus")


class Options(msgspec.Struct, frozen=True):
    """How often and how fast; 0 turns a schedule or a limit off."""

    probe_every_s: float = 3.0
    collect_every_s: float = 600.0
    scrub_every_s: float = 14 * 86_400.0
    scrub_bytes_per_s: int = 32 << 20
    heal_bytes_per_s: int = 0
    upload_kept_s: float = 7 * 86_400.0
    orphan_kept_s: float = 3_600.0
    trash_kept_s: float = 60.0


class DriveReport(msgspec.Struct, frozen=True):
    """One drive as an operator sees it. `state` is offline, stale, syncing or current; `reason` says why it is not current."""

    set: int
    position: int
    path: str
    state: str
    reason: str
    drive_id: str
    sequence: int
    total_bytes: int
    free_bytes: int
    missing_shards: int  # shards known to be missing or damaged on this drive, counted up to 10,000
    is_filling: bool  # it came empty: which shards it lacks is being found out


class HealStatus(msgspec.Struct, frozen=True):
    """Progress of healing. The totals are estimates while a drive is being filled."""

    running: bool
    drives_waiting: int  # drives with missing shards that cannot be healed now, being offline or stale
    blobs_done: int
    blobs_total: int
    bytes_done: int
    bytes_total: int
    failed: int  # blobs that could not be rebuilt: too few good shards
    started_s: float
    finished_s: float


class ScrubStatus(msgspec.Struct, frozen=True):
    """Progress of the running scrub, or the result of the last one."""

    running: bool
    started_s: float
    finished_s: float
    records_checked: int
    records_bad: int
    blocks_checked: int
    blocks_bad: int  # damaged blocks and blocks of missing shards
    bytes_checked: int
    bytes_total: int
    next_s: float  # when the next one starts by itself


class Keeper:
    """See the module."""

    def __init__(self, engine: Engine, layout: Layout, options: Options | None = None, alive_pids: Callable[[], set[int]] = set) -> None:
        """`engine` is the supervisor's own and stays the caller's to close; `alive_pids` are the processes that may write to drives."""
        self._engine = engine
        self._layout = layout
        self._options = options or Options()
        self._alive_pids = alive_pids
        self._stop = threading.Event()
        self._heal_now = threading.Event()
        self._scrub_now = threading.Event()
        self._threads: list[threading.Thread] = []
        self._admissions: dict[tuple[int, int], threading.Thread] = {}
        self._reasons: dict[tuple[int, int], str] = {}
        self._suspects: set[tuple[int, int]] = set()  # their whole index must be readable before they come back
        self._heal = HealStatus(False, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
        self._progress: Progress | None = None  # of the pass under way
        self._scrub = ScrubStatus(False, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0)
        self._counts: Counts | None = None
        self._collector = Collector(engine, self._stop, self._options.upload_kept_s, self._options.orphan_kept_s)

    def start(self) -> None:
        """Begin; returns at once."""
        for name, loop in (("admit", self._admit_loop), ("heal", self._heal_loop), ("scrub", self._scrub_loop), ("tidy", self._tidy_loop)):
            self._threads.append(threading.Thread(target=loop, name=f"keeper-{name}", daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        """Stop what is running and wait for it; idempotent."""
        self._stop.set()
        self._heal_now.set()
        self._scrub_now.set()
        for thread in (*self._threads, *self._admissions.values()):
            thread.join(2 * PROBE_TIMEOUT_S)  # a drive that hangs keeps its thread, which is a daemon

    def check_indexes(self) -> None:
        """A worker died of a signal that a damaged index causes: find the drive and take it out. Returns at once."""
        for erasure_set in self._engine.sets:
            for position, drive in erasure_set.current():
                self._begin(erasure_set, position, partial(self._check_index, erasure_set, position, drive.path))

    # questions

    def drives(self) -> list[DriveReport]:
        """Every drive, by set and position."""
        return [self._report(each, position) for each in self._engine.sets for position in range(each.geometry.drives)]

    def heal_status(self) -> HealStatus:
        """How healing goes."""
        progress = self._progress
        return self._heal if progress is None else _with(self._heal, progress)

    def start_heal(self) -> HealStatus:
        """Look at once for something to heal."""
        self._heal_now.set()
        return self.heal_status()

    def scrub_status(self) -> ScrubStatus:
        """How scrubbing goes, or went."""
        counts = self._counts
        return self._scrub if counts is None else _with(self._scrub, counts)

    def start_scrub(self) -> ScrubStatus:
        """Begin a scrub, unless one is running."""
        if not self._scrub.running:
            self._scrub = ScrubStatus(True, time.time(), 0.0, 0, 0, 0, 0, 0, 0, 0.0)
            self._scrub_now.set()
        return self.scrub_status()

    def replace(self, set_index: int, position: int) -> DriveReport:
        """Make the folder of a drive that is out a fresh drive and refill it, whatever filesystem it is on.

        Raises StoreError: InvalidArgument (no such position), InvalidRequest (the drive is in service, or the folder holds something).
        """
        if not (0 <= set_index < len(self._engine.sets) and 0 <= position < self._engine.geometry.drives):
            last = f"set {len(self._engine.sets) - 1}, position {self._engine.geometry.drives - 1}"
            raise StoreError("InvalidArgument", f"There is no drive at set {set_index}, position {position}; the last one is {last}.")
        erasure_set = self._engine.sets[set_index]
        admission.replace(erasure_set, self._layout, position)
        self._begin_admission(erasure_set, position)
        return self._report(erasure_set, position)

    def _report(self, erasure_set: ErasureSet, position: int) -> DriveReport:
        state = erasure_set.state(position)
        reason = erasure_set.shared.reason(erasure_set.index, position)
        if state is DriveState.CURRENT:
            reason = ""
        elif why := self._reasons.get((erasure_set.index, position), ""):
            reason = f"{reason}; {why}" if reason and why != reason else why
        drive = erasure_set.drive(position)
        found = ("", 0, 0, 0, False)
        if drive is not None:
            try:
                found = ask(erasure_set, position, partial(_look_at, drive), REPORT_TIMEOUT_S)
            except Unhealable as e:
                reason = str(e)
        return DriveReport(
            erasure_set.index,
            position,
            self._layout.paths[erasure_set.index][position],
            state.name.lower(),
            reason,
            *found[:4],
            _count_missing(erasure_set, position),
            found[4],
        )

    # drives that are out, and those that only seem to be in

    def _admit_loop(self) -> None:
        tick = 0
        while not self._stop.wait(self._options.probe_every_s):
            tick += 1
            for erasure_set in self._engine.sets:
                for position in range(erasure_set.geometry.drives):
                    if erasure_set.state(position) is not DriveState.CURRENT:
                        self._begin_admission(erasure_set, position)
                    elif tick % PROBE_CURRENT_EVERY == 0:
                        self._begin(erasure_set, position, partial(self._probe, erasure_set, position))

    def _begin_admission(self, erasure_set: ErasureSet, position: int) -> None:
        self._begin(erasure_set, position, partial(self._admit, erasure_set, position))

    def _begin(self, erasure_set: ErasureSet, position: int, work: Callable[[], None]) -> None:
        """One thread a drive, so that one that hangs keeps no other from coming back."""
        at = (erasure_set.index, position)
        if at not in self._admissions or not self._admissions[at].is_alive():
            self._admissions[at] = threading.Thread(target=work, name=f"keeper-drive-{at[0]}-{at[1]}", daemon=True)
            self._admissions[at].start()

    def _admit(self, erasure_set: ErasureSet, position: int) -> None:
        at = (erasure_set.index, position)
        try:
            path = self._layout.paths[at[0]][position]
            if at in self._suspects and classify_folder(path) is FolderKind.OURS:
                check_index(path)
            self._suspects.discard(at)
            reason = admission.admit(erasure_set, self._layout, position, self._stop.is_set)
        except DriveError as e:
            reason = str(e)
        except Exception as e:
            log.exception("set %d, drive %d: admitting it failed in an unforeseen way", *at)
            reason = repr(e)
        if reason and reason != self._reasons.get(at):
            log.warning("set %d, drive %d stays out: %s", *at, reason)
        self._reasons[at] = reason
        if not reason:
            self._heal_now.set()

    def _check_index(self, erasure_set: ErasureSet, position: int, path: str) -> None:
        try:
            check_index(path)
        except DriveFailed as e:
            self._suspects.add((erasure_set.index, position))
            erasure_set.take_out(position, e)

    def _probe(self, erasure_set: ErasureSet, position: int) -> None:
        drive = erasure_set.drive(position)
        if drive is None:
            return
        try:
            erasure_set.call_each([(position, drive.probe)], PROBE_TIMEOUT_S)
        except Exception:
            log.exception("set %d, drive %d: its test failed in an unforeseen way", erasure_set.index, position)

    # healing

    def _heal_loop(self) -> None:
        wait_s = HEAL_EVERY_S
        while not self._stop.is_set():
            self._heal_now.clear()
            progress = self._heal_once()
            idle = progress is None or (progress.failed > 0 and not progress.blobs_done)
            wait_s = min(2 * wait_s, HEAL_EVERY_MAX_S) if idle else HEAL_EVERY_S
            self._heal_now.wait(wait_s)

    def _heal_once(self) -> Progress | None:
        """One pass; None if it could not be made."""
        healer = Healer(self._engine, self._options.heal_bytes_per_s, self._stop)
        try:
            healer.look()
            if healer.has_work:
                self._heal, self._progress = HealStatus(True, 0, 0, 0, 0, 0, 0, time.time(), 0.0), healer.progress
                healer.run()
        except Stopping:
            return None
        except (StoreError, Unhealable) as e:
            log.warning("healing stopped: %s", e)
            return None
        except Exception:
            log.exception("healing stopped in an unforeseen way")
            return None
        finally:
            if self._progress is not None:
                ended = _with(self._heal, healer.progress)
                self._heal, self._progress = msgspec.structs.replace(ended, running=False, finished_s=time.time()), None
        self._heal = msgspec.structs.replace(self._heal, drives_waiting=healer.progress.drives_waiting)
        return healer.progress

    # scrubbing

    def _scrub_loop(self) -> None:
        every_s = self._options.scrub_every_s
        self._scrub = self._last_scrub()
        while not self._stop.is_set():
            next_s = self._scrub.finished_s + every_s if every_s else 0.0
            if not self._scrub.running:
                self._scrub = msgspec.structs.replace(self._scrub, next_s=next_s)
            wait_s = min(max(next_s - time.time(), 0.0), 3600.0) if every_s else 3600.0
            asked = self._scrub_now.wait(wait_s)
            self._scrub_now.clear()
            if not self._stop.is_set() and (asked or (every_s and time.time() >= next_s)):
                self._scrub_once()

    def _last_scrub(self) -> ScrubStatus:
        """The last result that the drives know; in a new store, as if a scrub had ended now."""
        raw: bytes | None = None
        try:
            raw = self._engine.sets[0].read(lambda drive: drive.get(SCRUB_KEY))
            if raw is not None:
                return msgspec.json.decode(raw, type=ScrubStatus)
        except (StoreError, msgspec.DecodeError) as e:
            log.warning("when the last scrub was is not known: %s", e)
        new = ScrubStatus(False, 0.0, time.time(), 0, 0, 0, 0, 0, 0, 0.0)
        self._remember_scrub(new)
        return new

    def _scrub_once(self) -> None:
        scrubber = Scrubber(self._engine, self._options.scrub_bytes_per_s, self._stop)
        self._scrub, self._counts = ScrubStatus(True, time.time(), 0.0, 0, 0, 0, 0, 0, 0, 0.0), scrubber.counts
        try:
            scrubber.run()
        except Stopping:
            return
        except (StoreError, Unhealable) as e:
            log.warning("the scrub stopped: %s", e)
        except Exception:
            log.exception("the scrub stopped in an unforeseen way")
        finally:
            ended = _with(self._scrub, scrubber.counts)
            self._scrub, self._counts = msgspec.structs.replace(ended, running=False, finished_s=time.time()), None
        log.info("scrub: %s", msgspec.json.encode(self._scrub).decode())
        self._remember_scrub(self._scrub)
        self._heal_now.set()

    def _remember_scrub(self, status: ScrubStatus) -> None:
        content = msgspec.json.encode(status)
        erasure_set = self._engine.sets[0]
        with erasure_set.shared.lock(erasure_set.index):
            calls = [(p, partial(_remember, drive, content)) for p, drive in erasure_set.current()]
            erasure_set.call_each(calls, PROBE_TIMEOUT_S)

    # garbage

    def _tidy_loop(self) -> None:
        due_s = dict.fromkeys(("trash", "collect", "orphans", "claims", "pointers"), 0.0)
        every_s = {
            "trash": min(TRASH_EVERY_S, max(self._options.trash_kept_s, 1.0)),
            "collect": self._options.collect_every_s,
            "orphans": max(self._options.orphan_kept_s, 1.0),
            "claims": max(self._options.orphan_kept_s, 1.0) * 6,
            "pointers": POINTERS_EVERY_S,
        }
        while not self._stop.wait(1.0):
            for name, when_s in due_s.items():
                if time.monotonic() >= when_s and every_s[name]:
                    self._tidy(name)
                    due_s[name] = time.monotonic() + every_s[name]

    def _tidy(self, name: str) -> None:
        try:
            if name == "trash":
                self._collector.trash(self._options.trash_kept_s)
            elif name == "orphans":
                self._collector.orphans()
            elif name == "claims":
                self._collector.claims()
            elif name == "pointers":
                self._collector.pointers()
            else:
                self._collector.staging(self._alive_pids())
                self._collector.run()
        except Stopping:
            pass
        except (StoreError, Unhealable) as e:
            log.warning("collecting garbage (%s) stopped: %s", name, e)
        except Exception:
            log.exception("collecting garbage (%s) stopped in an unforeseen way", name)


def _with(status: Status, counters: Progress | Counts) -> Status:
    return msgspec.structs.replace(status, **msgspec.structs.asdict(counters))


def _look_at(drive: Drive) -> tuple[str, int, int, int, bool]:
    space = drive.space()
    return drive.identity.drive_id, drive.seq(), space.total_bytes, space.free_bytes, drive.get(FILL_KEY) is not None


def _count_missing(erasure_set: ErasureSet, position: int) -> int:
    prefix = keyspace.heal_key(position, b"")
    stop = keyspace.successor(prefix) or b""
    try:
        return erasure_set.read(lambda drive: len(drive.scan(prefix, stop, MISSING_COUNT_MAX)))
    except StoreError:
        return 0  # no drive is in service that would know


def _remember(drive: Drive, content: bytes) -> None:
    drive.commit(drive.seq(), [(SCRUB_KEY, content)], [])
