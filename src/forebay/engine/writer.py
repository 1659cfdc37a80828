"""Writing a blob: receive, encode, checksum and write, stripe by stripe.

The caller receives body bytes straight into a stripe buffer. A full stripe is encoded and checksummed at once, while it is in cache; up
to GATHER_STRIPES of them go to each drive in one write. The next stripes are received meanwhile. `finish` returns when a write quorum
of drives has the shard under its final name, durable. Nothing refers to the blob yet: that is for the commit that follows.

A writer is used by one thread at a time. It always holds one slot of the arena, so it never holds one while it waits for its first; a
further slot is taken only if one is free, else it waits for its own writes to end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from forebay.codec import ReedSolomon, combine_crc64nvme, crc64nvme
from forebay.directio import Arena, Slot
from forebay.drive import Drive, ShardWriter, crash_point
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.lanes import Gather
from forebay.engine.placement import UNIT_BYTES
from forebay.engine.records import Blob, Extent
from forebay.engine.shared import DriveState
from forebay.errors import DriveError, DriveFull, StoreError

GATHER_STRIPES = 4  # blocks in one pwritev: larger gathers gained nothing in the measurements of docs/performance.md
FLUSHES_MAX = 2  # gathers in flight
SHARD_TIMEOUT_S = 30.0  # a drive that takes longer for one gather is taken out
CREDIT_TIMEOUT_S = 60.0


class WrittenBlob(NamedTuple):
    """A durable blob that nothing refers to yet. `crc64` is the CRC64NVME of the content; `missing` are drives without their shard."""

    set_index: int
    blob_id: bytes
    size: int
    crc64: int
    record: Blob
    missing: tuple[int, ...]
    discard: Callable[[], None]

    @property
    def extent(self) -> Extent:
        """The whole of it."""
        return Extent(self.set_index, self.blob_id, 0, self.size)


class _Flush(NamedTuple):
    gather: Gather
    positions: tuple[int, ...]
    slots: list[Slot]
    started_s: float


class BlobWriter:
    """See the module."""

    def __init__(self, erasure_set: ErasureSet, arena: Arena) -> None:
        """Raises StoreError: ServiceUnavailable, InsufficientCapacity, SlowDown (no buffer for CREDIT_TIMEOUT_S)."""
        erasure_set.require_writable()
        self._set = erasure_set
        self._geometry = erasure_set.geometry
        self._codec = ReedSolomon.of(self._geometry.data, self._geometry.parity)
        self._arena = arena
        self.blob_id = os.urandom(16)
        self.size = 0
        self._crcs = bytearray()
        self._crc64 = 0
        self._shards: dict[int, ShardWriter] = {}
        self._errors: list[BaseException] = []
        self._ready: list[tuple[Slot, int]] = []  # encoded stripes not yet handed to the drives, with their block length
        self._flushes: list[_Flush] = []
        self._offset = 0  # in the shard file, of the first stripe in _ready
        self._filled = 0
        self._slot: Slot | None = self._first_slot()
        try:
            self._create_shards()
        except BaseException:
            self.abort()
            raise

    def buffer(self) -> memoryview:
        """Where the next body bytes go: the free rest of the current stripe, never empty. Valid until `filled`."""
        if self._slot is None:
            self._slot = self._next_slot()
        return self._slot.view[self._filled : self._geometry.stripe_bytes]

    def filled(self, count: int) -> None:
        """`count` bytes were put at the start of `buffer()`."""
        self._filled += count
        assert self._filled <= self._geometry.stripe_bytes
        if self._filled == self._geometry.stripe_bytes:
            self._seal()

    def write(self, data: bytes | memoryview) -> None:
        """Copy `data` in."""
        view = memoryview(data)
        while view:
            room = self.buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.filled(count)
            view = view[count:]

    def finish(self) -> WrittenBlob:
        """Make it durable. Raises StoreError if too few drives have it; then it is aborted."""
        try:
            if self._filled:
                self._seal()
            if not self.size:
                raise StoreError("InternalError", "an empty blob was finished")
            self._flush()
            while self._flushes:
                self._reclaim()
            crash_point("engine.blob.written")
            self._publish_shards()
            crash_point("engine.blob.published")
        except BaseException:
            self.abort()
            raise
        self._release_slots()
        shards = tuple(self._shards)
        record = Blob(self.size, self._geometry.data, self._geometry.parity, UNIT_BYTES, bytes(self._crcs), time.time_ns())
        missing = tuple(p for p in range(self._geometry.drives) if p not in shards)
        return WrittenBlob(
            self._set.index,
            self.blob_id,
            self.size,
            self._crc64,
            record,
            missing,
            partial(discard, self._set, self.blob_id, shards),
        )

    def abort(self) -> None:
        """Remove what was written; does nothing after `finish` returned."""
        for position, shard in self._shards.items():
            self._set.submit(Gather(1), position, shard.abort)
        self._shards = {}
        self._release_slots()

    # buffers

    def _first_slot(self) -> Slot:
        slot = self._arena.acquire(CREDIT_TIMEOUT_S)
        if slot is None:
            raise StoreError("SlowDown", headers={"retry-after": "1"})
        return slot

    def _next_slot(self) -> Slot:
        slot = self._arena.try_acquire()
        if slot is not None:
            return slot
        self._flush()
        while self._flushes:
            self._reclaim()
            if (slot := self._arena.try_acquire()) is not None:
                return slot
        return self._first_slot()

    def _release_slots(self) -> None:
        for slot, _ in self._ready:
            slot.release()
        for flush in self._flushes:
            _release_when_finished(flush)
        if self._slot is not None:
            self._slot.release()
        self._ready, self._flushes, self._slot = [], [], None

    # stripes

    def _seal(self) -> None:
        """The current stripe is complete: pad, encode, checksum, queue."""
        slot, content = self._slot, self._filled
        assert slot is not None
        block = self._geometry.block_bytes(content)
        data_bytes = block * self._geometry.data
        if data_bytes > content:
            slot.view[content:data_bytes] = bytes(data_bytes - content)
        self._codec.encode(slot.address, block)
        crcs = [crc64nvme(slot.view[i * block : (i + 1) * block]) for i in range(self._geometry.drives)]
        self._crcs += b"".join(crc.to_bytes(8, "little") for crc in crcs)
        self._add_to_content_crc(slot, content, block, crcs)
        self.size += content
        self._ready.append((slot, block))
        self._slot, self._filled = None, 0
        if len(self._ready) >= GATHER_STRIPES:
            self._flush()

    def _add_to_content_crc(self, slot: Slot, content: int, block: int, crcs: list[int]) -> None:
        whole = content // block
        for crc in crcs[:whole]:
            self._crc64 = combine_crc64nvme(self._crc64, crc, block)
        if rest := content - whole * block:
            crc = crc64nvme(slot.view[whole * block : content])
            self._crc64 = combine_crc64nvme(self._crc64, crc, rest)

    def _flush(self) -> None:
        """Hand the queued stripes to the drives."""
        if not self._ready:
            return
        while len(self._flushes) >= FLUSHES_MAX:
            self._reclaim()
        stripes, self._ready = self._ready, []
        gather = Gather(len(self._shards))
        for position, shard in self._shards.items():
            s = self._geometry.shard_of(self.blob_id, position)
            views = [slot.view[s * block : (s + 1) * block] for slot, block in stripes]
            self._set.submit(gather, position, partial(shard.write, views, self._offset))
        self._offset += sum(block for _, block in stripes)
        self._flushes.append(_Flush(gather, tuple(self._shards), [slot for slot, _ in stripes], time.monotonic()))

    def _reclaim(self) -> None:
        """Wait for the oldest flush and take its slots back."""
        flush = self._flushes.pop(0)
        outcomes = flush.gather.wait(SHARD_TIMEOUT_S)
        _release_when_finished(flush)
        self._keep_good(self._set.settle(flush.positions, outcomes, SHARD_TIMEOUT_S))

    # drives

    def _create_shards(self) -> None:
        drives = self._set.in_states(DriveState.CURRENT, DriveState.SYNCING)
        outcomes = self._set.call_each([(p, partial(d.create_shard, self.blob_id)) for p, d in drives], SHARD_TIMEOUT_S)
        for position, outcome in outcomes.items():
            if isinstance(outcome, BaseException):
                self._errors.append(outcome)
            else:
                self._shards[position] = outcome  # type: ignore[assignment]
        self._require_quorum()

    def _publish_shards(self) -> None:
        calls = [(p, partial(_sync_and_publish, shard)) for p, shard in self._shards.items()]
        self._keep_good(self._set.call_each(calls, SHARD_TIMEOUT_S))

    def _keep_good(self, outcomes: dict[int, object]) -> None:
        for position, outcome in outcomes.items():
            if isinstance(outcome, DriveError):
                self._errors.append(outcome)
                shard = self._shards.pop(position, None)
                if shard is not None:  # on a thread of its own: the drive may hang
                    threading.Thread(target=shard.abort, name="shard-abort", daemon=True).start()
        self._require_quorum()

    def _require_quorum(self) -> None:
        if len(self._shards) < self._geometry.write_quorum:
            if any(isinstance(e, DriveFull) for e in self._errors):
                raise StoreError("InsufficientCapacity")
            raise self._set.unavailable()


def _release_when_finished(flush: _Flush) -> None:
    """A drive that is late still reads from the slots."""
    flush.gather.when_finished(partial(_release, flush.slots))


def _sync_and_publish(shard: ShardWriter) -> None:
    shard.sync()
    shard.publish()


def discard(erasure_set: ErasureSet, blob_id: bytes, positions: tuple[int, ...]) -> None:
    """Remove the shards of a blob that no commit refers to, without waiting."""
    drives: dict[int, Drive | None] = {p: erasure_set.drive(p) for p in positions}
    gather = Gather(len(drives))
    for position, drive in drives.items():
        if drive is not None:
            erasure_set.submit(gather, position, partial(drive.trash_shard, blob_id))


def _release(slots: list[Slot]) -> None:
    for slot in slots:
        slot.release()
