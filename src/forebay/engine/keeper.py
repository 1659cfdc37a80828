"""The background work of a store: admitting drives again, healing, collecting garbage, scrubbing. One per server, in the supervisor.

The public methods answer the admin API. What they return are structs that msgspec encodes as JSON objects with the same field names;
times are seconds since 1970, 0 where something has not happened. They may be called from any thread and may block for a moment.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forebay.engine.engine import Engine
from forebay.engine.opening import Layout


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
    missing_shards: int  # shards known to be missing or damaged on this drive
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
        raise NotImplementedError

    def start(self) -> None:
        """Begin; returns at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what is running and wait for it; idempotent."""
        raise NotImplementedError

    def drives(self) -> list[DriveReport]:
        """Every drive, by set and position."""
        raise NotImplementedError

    def heal_status(self) -> HealStatus:
        """How healing goes."""
        raise NotImplementedError

    def start_heal(self) -> HealStatus:
        """Look at once for something to heal."""
        raise NotImplementedError

    def scrub_status(self) -> ScrubStatus:
        """How scrubbing goes, or went."""
        raise NotImplementedError

    def start_scrub(self) -> ScrubStatus:
        """Begin a scrub, unless one is running."""
        raise NotImplementedError

    def replace(self, set_index: int, position: int) -> DriveReport:
        """Make the folder of a drive that is out a fresh drive and refill it, whatever filesystem it is on.

        Raises StoreError: InvalidArgument (no such position), InvalidRequest (the drive is in service, or the folder holds something).
        """
        raise NotImplementedError
