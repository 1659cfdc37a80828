"""Reading blobs: only data shards, every block checked, bad, missing or slow ones rebuilt.

A `Reader` yields the bytes of a range in order, as views of arena slots; each view is verified before it is yielded and valid until the
next. While one gather of stripes is being sent the next is being read. A stripe that cannot be rebuilt ends the iteration with
StoreError, so that a client never receives a byte that failed its check.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from forebay.codec import ReedSolomon, crc64nvme
from forebay.directio import Arena, Slot
from forebay.drive import Drive, ShardReader
from forebay.engine import keyspace, records
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.lanes import Gather
from forebay.engine.placement import Geometry
from forebay.engine.records import Blob, Extent
from forebay.engine.shared import DriveState
from forebay.errors import DriveFailed, StoreError

log = logging.getLogger("forebay.engine")

READ_STRIPES = 4  # blocks in one preadv
SLOW_READ_S = 2.0  # a block that takes longer is rebuilt from the others
READ_TIMEOUT_S = 30.0  # a drive that takes longer is taken out
CREDIT_TIMEOUT_S = 60.0

OnBadShard = Callable[[int, int, bytes], None]  # set index, drive position, blob id


class Stripe(NamedTuple):
    """Where a stripe lies: in the blob, in the shard files, and how long its blocks are."""

    number: int
    start: int  # first content byte
    content: int  # bytes
    shard_offset: int
    block: int


def stripes(geometry: Geometry, size: int, start: int, stop: int, unit_bytes: int) -> Iterator[Stripe]:
    """The stripes of a blob of `size` bytes that hold content [start, stop)."""
    full = geometry.data * unit_bytes
    for index in range(start // full, -(-stop // full)):
        content = min(full, size - index * full)
        yield Stripe(index, index * full, content, index * unit_bytes, geometry.block_bytes(content))


class Shards:
    """The open shards of one blob; a drive is asked to open its shard only when that is needed."""

    def __init__(self, erasure_set: ErasureSet, blob_id: bytes, blob: Blob, arena: Arena, on_bad: OnBadShard) -> None:
        """`on_bad` is told once of each drive whose shard is missing, short or damaged."""
        self.erasure_set = erasure_set
        self.geometry = Geometry(blob.data, blob.parity)
        self.blob_id = blob_id
        self.blob = blob
        self.arena = arena
        self._on_bad = on_bad
        self._open: dict[int, ShardReader | None] = {}
        self._mutexes = [threading.Lock() for _ in range(self.geometry.drives)]  # one a drive: opening may hang
        self._reported: set[int] = set()

    def close(self) -> None:
        """Let go of what was opened; the files close with their last reference, as calls may be under way on them."""
        self._open = {}

    def crc(self, stripe: int, shard_position: int) -> int:
        """The recorded checksum of a block."""
        at = (stripe * self.geometry.drives + shard_position) * 8
        return int.from_bytes(self.blob.crcs[at : at + 8], "little")

    def drive_of(self, shard_position: int) -> int:
        """The drive that should hold it."""
        return self.geometry.drive_of(self.blob_id, shard_position)

    def read(self, shard_position: int, views: Sequence[memoryview], offset: int) -> int:
        """On a lane of the drive: fill the views; returns the bytes read, 0 if the shard is not there."""
        shard = self._shard(self.drive_of(shard_position))
        return shard.read(views, offset) if shard is not None else 0

    def report(self, shard_position: int, what: str) -> None:
        """A block of this shard had to be done without."""
        position = self.drive_of(shard_position)
        if position not in self._reported:
            self._reported.add(position)
            log.warning("blob %s: shard %d on drive %d: %s", self.blob_id.hex(), shard_position, position, what)
            self._on_bad(self.erasure_set.index, position, self.blob_id)

    def _shard(self, position: int) -> ShardReader | None:
        with self._mutexes[position]:
            if position not in self._open:
                drive = self.erasure_set.drive(position)
                self._open[position] = drive.open_shard(self.blob_id) if drive is not None else None
            return self._open[position]


class _Load:
    """A gather of stripes on its way into slots, one slot a stripe. Owns the slots until `release`."""

    def __init__(self, shards: Shards, stripes: list[Stripe], slots: list[Slot], wanted: list[tuple[int, int]]) -> None:
        """`wanted[i]` is the content range of stripe i (relative to it) that the caller will be given."""
        self.stripes = stripes
        self.slots = slots
        self.wanted = wanted
        self._shards = shards
        self._good: list[set[int]] = [set() for _ in stripes]
        self._gathers: list[Gather] = []  # whose calls write into the slots
        self._asked = self._positions_wanted()
        self._start(self._asked)

    def views(self) -> Iterator[memoryview]:
        """Wait, verify, rebuild where needed, then the wanted bytes, in order. Raises StoreError if a stripe is lost."""
        asked = self._asked
        tried = set(asked)
        late = self._collect(asked, self._patience_s(tried))
        while (short := self._blocks_short()) and (asked := self._next_to_ask(tried, late, short)):
            tried.update(asked)
            self._start(asked)
            late |= self._collect(asked, self._patience_s(tried))
        for i in range(len(self.stripes)):
            self._rebuild(i)
        for slot, (start, stop) in zip(self.slots, self.wanted, strict=True):
            yield slot.view[start:stop]

    def _blocks_short(self) -> int:
        """How many more blocks the worst stripe needs before what is wanted of it can be rebuilt."""
        short = [self._shards.geometry.data - len(good) for i, good in enumerate(self._good) if not self._blocks_wanted(i) <= good]
        return max(short, default=0)

    def _next_to_ask(self, tried: set[int], late: set[int], short: int) -> list[int]:
        """Shards not asked yet; when there are no more, those that were late, once more."""
        fresh = [p for p in self._reachable() if p not in tried]
        if fresh:
            return fresh[:short]
        again = sorted(late)
        late.clear()
        return again

    def _patience_s(self, tried: set[int]) -> float:
        """Waiting for a slow drive makes sense only if no other one can stand in for it."""
        spare = any(p not in tried for p in self._reachable())
        return SLOW_READ_S if spare else READ_TIMEOUT_S

    def release(self) -> None:
        """Give the slots back, once no drive writes into them any more."""
        slots, self.slots = self.slots, []
        release_after(self._gathers, slots)

    def _blocks_wanted(self, i: int) -> set[int]:
        start, stop = self.wanted[i]
        return set(range(start // self.stripes[i].block, -(-stop // self.stripes[i].block)))

    def _reachable(self) -> list[int]:
        """Shard positions whose drives may be asked: data before parity, slow drives last."""
        states, drive_of = self._shards.erasure_set, self._shards.drive_of
        there = [p for p in range(self._shards.geometry.drives) if states.state(drive_of(p)) is not DriveState.OFFLINE]
        return sorted(there, key=lambda p: states.is_slow(drive_of(p)))

    def _positions_wanted(self) -> list[int]:
        """The data shards that hold wanted bytes; if one is known to be away or slow, as many as it takes to rebuild."""
        wanted = set().union(*(self._blocks_wanted(i) for i in range(len(self.stripes))))
        reachable = self._reachable()
        states, drive_of = self._shards.erasure_set, self._shards.drive_of
        if wanted <= set(reachable) and not any(states.is_slow(drive_of(p)) for p in wanted):
            return sorted(wanted)
        return reachable[: self._shards.geometry.data]

    def _block(self, i: int, position: int) -> memoryview:
        block = self.stripes[i].block
        return self.slots[i].view[position * block : (position + 1) * block]

    def _start(self, positions: list[int]) -> None:
        gather = Gather(len(positions))
        self._gathers.append(gather)
        for position in positions:
            views = [self._block(i, position) for i in range(len(self.stripes))]
            call = partial(self._shards.read, position, views, self.stripes[0].shard_offset)
            self._shards.erasure_set.submit(gather, self._shards.drive_of(position), call)

    def _collect(self, positions: list[int], timeout_s: float) -> set[int]:
        """Wait for the calls started last, and verify what they read; returns the shards whose drives are late."""
        outcomes = self._gathers[-1].wait(timeout_s)
        for position in positions:
            drive = self._shards.drive_of(position)
            outcome = outcomes.get(drive)
            if isinstance(outcome, DriveFailed):
                self._shards.erasure_set.take_out(drive, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None:
                self._verify(position, int(outcome))  # type: ignore[call-overload]
        late = {p for p in positions if self._shards.drive_of(p) not in outcomes}
        if late:
            slow = [self._shards.drive_of(p) for p in late]
            log.warning("blob %s: drives %s are slow, reading around them", self._shards.blob_id.hex(), slow)
            self._move_to_fresh_slots()
        return late

    def _verify(self, position: int, count: int) -> None:
        for i, stripe in enumerate(self.stripes):
            if count < stripe.shard_offset + stripe.block - self.stripes[0].shard_offset:
                self._shards.report(position, "missing or short")
            elif crc64nvme(self._block(i, position)) != self._shards.crc(stripe.number, position):
                self._shards.report(position, f"checksum mismatch in block {stripe.number}")
            else:
                self._good[i].add(position)

    def _move_to_fresh_slots(self) -> None:
        """A late call may still write into the slots: take the good blocks elsewhere, and free the slots when it returns."""
        old, self.slots = self.slots, []
        gathers, self._gathers = self._gathers, []
        try:
            for i, source in enumerate(old):
                slot = _acquire(self._shards.arena)
                self.slots.append(slot)
                block = self.stripes[i].block
                for p in self._good[i]:
                    slot.view[p * block : (p + 1) * block] = source.view[p * block : (p + 1) * block]
        finally:
            release_after(gathers, old)

    def _rebuild(self, i: int) -> None:
        geometry, stripe, good = self._shards.geometry, self.stripes[i], self._good[i]
        lost = sorted(self._blocks_wanted(i) - good)
        if not lost:
            return
        blob = self._shards.blob_id.hex()
        if len(good) < geometry.data:
            message = (
                f"Blob {blob}, stripe {stripe.number}: {len(good)} of {geometry.drives} blocks are readable, {geometry.data} are needed."
            )
            log.error(message)
            raise StoreError("InternalError", message)
        addresses = [self.slots[i].address + p * stripe.block for p in range(geometry.drives)]
        codec = ReedSolomon.of(geometry.data, geometry.parity)
        codec.rebuild(addresses, [p in good for p in range(geometry.drives)], stripe.block, lost)
        for position in lost:
            if crc64nvme(self._block(i, position)) != self._shards.crc(stripe.number, position):
                raise StoreError("InternalError", f"Blob {blob} does not match its checksums after rebuilding.")


def _acquire(arena: Arena) -> Slot:
    slot = arena.acquire(CREDIT_TIMEOUT_S)
    if slot is None:
        raise StoreError("SlowDown", headers={"retry-after": "1"})
    return slot


class Reader:
    """Iterate over the bytes of `extents`, [start, stop) of their concatenation; `close` when done, at the end or before."""

    def __init__(
        self, sets: Sequence[ErasureSet], arena: Arena, extents: Sequence[Extent], blobs: Mapping[bytes, Blob], on_bad: OnBadShard
    ) -> None:
        """Nothing is read yet; `blobs` has the records of the blobs in `extents`."""
        self._sets = sets
        self._arena = arena
        self._blobs = blobs
        self._on_bad = on_bad
        self._extents = extents
        self._loads: list[_Load] = []
        self._open: list[Shards] = []

    def __enter__(self) -> Reader:
        """For `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give slots and files back."""
        for load in self._loads:
            load.release()
        for shards in self._open:
            shards.close()
        self._loads, self._open = [], []

    def __iter__(self) -> Iterator[memoryview]:
        """Verified bytes, in order; each view is valid until the next one is asked for."""
        plans = self._plans()
        plan = next(plans, None)
        while plan is not None or self._loads:
            # One gather is sent while the next is read; a second one is begun only with slots that nobody else waits for.
            while plan is not None and len(self._loads) < 2:
                slots = self._slots(len(plan[1]), wait=not self._loads)
                if not slots:
                    break
                shards, found, wanted = plan
                count = len(slots)
                self._loads.append(_Load(shards, found[:count], slots, wanted[:count]))
                plan = (shards, found[count:], wanted[count:]) if count < len(found) else next(plans, None)
            load = self._loads[0]
            yield from load.views()
            self._loads.pop(0).release()
        self.close()

    def _slots(self, count: int, *, wait: bool) -> list[Slot]:
        slots = [_acquire(self._arena)] if wait else []
        while len(slots) < count and (slot := self._arena.try_acquire()) is not None:
            slots.append(slot)
        return slots

    def _plans(self) -> Iterator[tuple[Shards, list[Stripe], list[tuple[int, int]]]]:
        """Gathers of up to READ_STRIPES stripes of one blob, with the range wanted of each."""
        for extent in self._extents:
            shards = self._shards(extent)
            start, stop = extent.offset, extent.offset + extent.length
            found = list(stripes(shards.geometry, shards.blob.size, start, stop, shards.blob.unit_bytes))
            for i in range(0, len(found), READ_STRIPES):
                batch = found[i : i + READ_STRIPES]
                yield shards, batch, [(max(start - s.start, 0), min(stop - s.start, s.content)) for s in batch]

    def _shards(self, extent: Extent) -> Shards:
        erasure_set = self._sets[extent.set_index]
        blob = self._blobs[extent.blob_id]
        for old in self._open[:-2]:  # at most two gathers are under way, so older blobs are done with
            old.close()
        self._open = [*self._open[-2:], Shards(erasure_set, extent.blob_id, blob, self._arena, self._on_bad)]
        return self._open[-1]


def read_blob(erasure_set: ErasureSet, blob_id: bytes) -> Blob | None:
    """The blob's record; None if it is gone."""
    key = keyspace.TABLE_BLOB + blob_id

    def ask(drive: Drive) -> Blob | None:
        raw = drive.get(key)
        return None if raw is None else records.unpack(key, raw, Blob)

    return erasure_set.read(ask)


def cut_extents(extents: Sequence[Extent], start: int, stop: int) -> list[Extent]:
    """The extents that make up [start, stop) of the concatenation."""
    found = []
    at = 0
    for e in extents:
        low, high = max(start - at, 0), min(stop - at, e.length)
        if low < high:
            found.append(Extent(e.set_index, e.blob_id, e.offset + low, high - low))
        at += e.length
    return found


def release_after(gathers: list[Gather], slots: list[Slot]) -> None:
    """Release the slots when the last call of the last gather has returned."""
    if not gathers:
        for slot in slots:
            slot.release()
        return
    gathers[0].when_finished(partial(release_after, gathers[1:], slots))
