"""Rebuilding shards that drives lack, from the other drives.

What is missing is known from heal records (`H`), written by the commit of a blob that a drive missed and by whoever meets a bad block;
on a drive that came empty (FILL_KEY), from comparing all blob records with the shards that it has. A shard is rebuilt stripe by stripe
in buffers of the arena, each block checked against the blob's record, written beside and put in place by a rename: a damaged shard is
replaced, a good one is never touched. The heal record goes when the shard is durable, so a crash repeats work and loses none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from forebay.codec import ReedSolomon, crc64nvme
from forebay.directio import Slot
from forebay.drive import Drive, ShardWriter, crash_point
from forebay.engine import keyspace, records
from forebay.engine.committer import Op
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.lanes import Gather
from forebay.engine.opening import FILL_KEY
from forebay.engine.pace import Pace
from forebay.engine.reader import READ_TIMEOUT_S, Shards, Stripe, read_blob, release_after, stripes
from forebay.engine.records import Blob
from forebay.engine.shared import DriveState
from forebay.engine.transaction import Transaction
from forebay.errors import DriveError, StoreError

log = logging.getLogger("forebay.engine")

PAGE_RECORDS = 256
WRITE_TIMEOUT_S = 30.0
BUFFER_TIMEOUT_S = 60.0


class Unhealable(Exception):  # noqa: N818 - a state of a blob
    """Too few good shards are left or reachable."""


class Progress(msgspec.Struct):
    """Counters of one pass; changed by one thread, read by others."""

    blobs_done: int = 0
    blobs_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    failed: int = 0
    drives_waiting: int = 0


class Healer:
    """One pass over all sets."""

    def __init__(self, engine: Engine, bytes_per_s: float, stop: threading.Event) -> None:
        """`stop` ends it early."""
        self._engine = engine
        self._pace = Pace(bytes_per_s, stop)
        self.progress = Progress()
        self._drives: list[tuple[ErasureSet, int, bool]] = []

    def look(self) -> None:
        """Find out where there is something to heal."""
        self._drives = list(self._drives_to_heal())

    @property
    def has_work(self) -> bool:
        """Whether `look` found something."""
        return bool(self._drives)

    def run(self) -> None:
        """Heal what can be healed now. Raises Stopping."""
        for erasure_set, position, fill in self._drives:
            with _going_on(erasure_set, position):
                self._count(erasure_set, position, fill)
        for erasure_set, position, fill in self._drives:
            with _going_on(erasure_set, position):
                if fill:
                    self._fill(erasure_set, position)
                self._heal_recorded(erasure_set, position)

    def _drives_to_heal(self) -> Iterator[tuple[ErasureSet, int, bool]]:
        for erasure_set in self._engine.sets:
            for position in range(erasure_set.geometry.drives):
                with _going_on(erasure_set, position):
                    drive = erasure_set.drive(position)
                    recorded = bool(page_of(erasure_set, keyspace.heal_key(position, b""), b"", 1))
                    if erasure_set.state(position) is not DriveState.CURRENT or drive is None:
                        self.progress.drives_waiting += recorded
                        continue
                    fill = ask(erasure_set, position, partial(drive.get, FILL_KEY), WRITE_TIMEOUT_S) is not None
                    if fill or recorded:
                        yield erasure_set, position, fill

    def _count(self, erasure_set: ErasureSet, position: int, fill: bool) -> None:
        prefix = keyspace.TABLE_BLOB if fill else keyspace.heal_key(position, b"")
        for key, raw in walk(erasure_set, prefix):
            self._pace.check()
            self.progress.blobs_total += 1
            blob = records.unpack(key, raw, Blob) if fill else read_blob(erasure_set, key[2:])
            if blob is not None:
                self.progress.bytes_total += erasure_set.geometry.shard_bytes(blob.size)

    # a drive that came empty

    def _fill(self, erasure_set: ErasureSet, position: int) -> None:
        drive = erasure_set.drive(position)
        if drive is None:
            return
        log.info("set %d, drive %d is being filled", erasure_set.index, position)
        for prefix_byte in range(256):
            there = dict(ask(erasure_set, position, partial(drive.list_shards, prefix_byte), WRITE_TIMEOUT_S))
            for key, raw in walk(erasure_set, keyspace.TABLE_BLOB + bytes([prefix_byte])):
                blob_id, blob = key[1:], records.unpack(key, raw, Blob)
                if there.get(blob_id) == erasure_set.geometry.shard_bytes(blob.size):
                    self._done(blob)
                elif not self._heal(erasure_set, position, blob_id, blob):
                    self._engine.queue_heal(erasure_set.index, position, blob_id)
        with erasure_set.shared.lock(erasure_set.index):
            ask(erasure_set, position, lambda: drive.commit(drive.seq(), [], [FILL_KEY]), WRITE_TIMEOUT_S)
        log.info("set %d, drive %d is filled", erasure_set.index, position)

    # what is recorded

    def _heal_recorded(self, erasure_set: ErasureSet, position: int) -> None:
        after, prefix = b"", keyspace.heal_key(position, b"")
        while page := page_of(erasure_set, prefix, after, PAGE_RECORDS):
            ops: list[tuple[bytes, Op[bool]]] = []
            for key, _ in page:
                blob_id = key[len(prefix) :]
                blob = read_blob(erasure_set, blob_id)
                if blob is None or self._heal(erasure_set, position, blob_id, blob):
                    ops.append((blob_id, self._engine.submit(Op(partial(_healed, position, blob_id), set_index=erasure_set.index))))
            for blob_id, op in ops:
                if not op.wait():
                    self._forget(erasure_set, position, blob_id)
            after = page[-1][0]

    def _forget(self, erasure_set: ErasureSet, position: int, blob_id: bytes) -> None:
        """The blob was deleted while its shard was rebuilt."""
        drive = erasure_set.drive(position)
        if drive is not None:
            ask(erasure_set, position, partial(drive.trash_shard, blob_id), WRITE_TIMEOUT_S)

    # one shard

    def _heal(self, erasure_set: ErasureSet, position: int, blob_id: bytes, blob: Blob) -> bool:
        """Whether the drive has a good shard now."""
        self._pace.check()
        shards = Shards(erasure_set, blob_id, blob, self._engine.arena, lambda *_: None)
        try:
            if not is_good(self._engine, shards, position, self._pace):
                self._rebuild(erasure_set, position, shards)
        except (Unhealable, StoreError) as e:
            self.progress.failed += 1
            log.error("blob %s cannot be healed on drive %d of set %d: %s", blob_id.hex(), position, erasure_set.index, e)
            return False
        finally:
            shards.close()
        self._done(blob)
        return True

    def _done(self, blob: Blob) -> None:
        self.progress.blobs_done += 1
        self.progress.bytes_done += self._engine.geometry.shard_bytes(blob.size)

    def _rebuild(self, erasure_set: ErasureSet, position: int, shards: Shards) -> None:
        drive = erasure_set.drive(position)
        if drive is None:
            raise Unhealable("the drive is out")
        writer: ShardWriter = ask(erasure_set, position, partial(drive.create_shard, shards.blob_id), WRITE_TIMEOUT_S)
        try:
            for stripe in stripes(shards.geometry, shards.blob.size, 0, shards.blob.size, shards.blob.unit_bytes):
                self._rebuild_block(erasure_set, position, shards, stripe, writer)
            crash_point("engine.heal.written")
            ask(erasure_set, position, partial(_sync_and_publish, writer), WRITE_TIMEOUT_S)
            crash_point("engine.heal.published")
        except BaseException:
            threading.Thread(target=writer.abort, name="shard-abort", daemon=True).start()  # the drive may hang
            raise

    def _rebuild_block(self, erasure_set: ErasureSet, position: int, shards: Shards, stripe: Stripe, writer: ShardWriter) -> None:
        wanted = shards.geometry.shard_of(shards.blob_id, position)
        slot = self._engine.arena.acquire(BUFFER_TIMEOUT_S)
        if slot is None:
            raise Unhealable("no buffer was free for a minute")
        gathers: list[Gather] = []
        try:
            rebuild_block(shards, stripe, slot, wanted, gathers)
            view = slot.view[wanted * stripe.block : (wanted + 1) * stripe.block]
            gathers.append(Gather(1))
            erasure_set.submit(gathers[-1], position, partial(writer.write, [view], stripe.shard_offset))
            outcomes = erasure_set.settle([position], gathers[-1].wait(WRITE_TIMEOUT_S), WRITE_TIMEOUT_S)
            if isinstance(outcomes[position], BaseException):
                raise Unhealable(str(outcomes[position]))
        finally:
            release_after(gathers, [slot])
        self._pace.spend(stripe.block)


@contextmanager
def _going_on(erasure_set: ErasureSet, position: int) -> Iterator[None]:
    """A drive that fails, or a set that is not available, keeps no other from being healed."""
    try:
        yield
    except (Unhealable, StoreError) as e:
        log.warning("set %d, drive %d is not healed now: %s", erasure_set.index, position, e)


def rebuild_block(shards: Shards, stripe: Stripe, slot: Slot, wanted: int, gathers: list[Gather]) -> None:
    """Compute block `wanted` of a stripe in its place in `slot`, from k others that pass their checks; `gathers` write into the slot."""
    geometry, erasure_set = shards.geometry, shards.erasure_set
    good: set[int] = set()
    candidates = [p for p in range(geometry.drives) if p != wanted and erasure_set.state(shards.drive_of(p)) is not DriveState.OFFLINE]
    while len(good) < geometry.data and candidates:
        asked, candidates = candidates[: geometry.data - len(good)], candidates[geometry.data - len(good) :]
        gathers.append(Gather(len(asked)))
        for p in asked:
            view = slot.view[p * stripe.block : (p + 1) * stripe.block]
            erasure_set.submit(gathers[-1], shards.drive_of(p), partial(shards.read, p, [view], stripe.shard_offset))
        drives = [shards.drive_of(p) for p in asked]
        outcomes = erasure_set.settle(drives, gathers[-1].wait(READ_TIMEOUT_S), READ_TIMEOUT_S)
        for p in asked:
            view = slot.view[p * stripe.block : (p + 1) * stripe.block]
            if outcomes[shards.drive_of(p)] == stripe.block and crc64nvme(view) == shards.crc(stripe.number, p):
                good.add(p)
            elif not isinstance(outcomes[shards.drive_of(p)], DriveError):
                shards.report(p, f"block {stripe.number} is missing or damaged")
    if len(good) < geometry.data:
        raise Unhealable(f"stripe {stripe.number}: {len(good)} good blocks, {geometry.data} are needed")
    addresses = [slot.address + p * stripe.block for p in range(geometry.drives)]
    codec = ReedSolomon.of(geometry.data, geometry.parity)
    codec.rebuild(addresses, [p in good for p in range(geometry.drives)], stripe.block, [wanted])
    if crc64nvme(slot.view[wanted * stripe.block : (wanted + 1) * stripe.block]) != shards.crc(stripe.number, wanted):
        raise Unhealable(f"stripe {stripe.number} does not match its checksum after rebuilding")


def is_good(engine: Engine, shards: Shards, position: int, pace: Pace) -> bool:
    """Whether the shard on drive `position` is there and every block of it passes its check. Raises Unhealable if it cannot be read."""
    drive = shards.erasure_set.drive(position)
    if drive is None:
        raise Unhealable("the drive is out")
    # Asked first, as a shard in the trash can be opened too.
    size = ask(shards.erasure_set, position, partial(drive.shard_size, shards.blob_id), WRITE_TIMEOUT_S)
    return size == shards.geometry.shard_bytes(shards.blob.size) and all(good for good in check_blocks(engine, shards, position, pace))


def check_blocks(engine: Engine, shards: Shards, position: int, pace: Pace) -> Iterator[bool]:
    """For each block of the shard on drive `position`, whether it passes its check. Raises Unhealable if the drive fails."""
    geometry, blob = shards.geometry, shards.blob
    wanted = geometry.shard_of(shards.blob_id, position)
    batch: list[Stripe] = []
    for stripe in stripes(geometry, blob.size, 0, blob.size, blob.unit_bytes):
        batch.append(stripe)
        if len(batch) == geometry.drives or stripe.start + stripe.content == blob.size:  # a slot has room for n blocks
            yield from _check_batch(engine, shards, position, wanted, batch)
            pace.spend(sum(s.block for s in batch))
            batch = []


def _check_batch(engine: Engine, shards: Shards, position: int, wanted: int, batch: list[Stripe]) -> list[bool]:
    slot = engine.arena.acquire(BUFFER_TIMEOUT_S)
    if slot is None:
        raise Unhealable("no buffer was free for a minute")
    gather = Gather(1)
    try:
        whole = slot.view[: sum(s.block for s in batch)]
        shards.erasure_set.submit(gather, position, partial(shards.read, wanted, [whole], batch[0].shard_offset))
        outcome = shards.erasure_set.settle([position], gather.wait(READ_TIMEOUT_S), READ_TIMEOUT_S)[position]
        if isinstance(outcome, BaseException):
            raise Unhealable(str(outcome))
        found: list[bool] = []
        for s in batch:
            at = s.shard_offset - batch[0].shard_offset
            there = isinstance(outcome, int) and outcome >= at + s.block
            found.append(there and crc64nvme(whole[at : at + s.block]) == shards.crc(s.number, wanted))
        return found
    finally:
        release_after([gather], [slot])


def _healed(position: int, blob_id: bytes, tx: Transaction) -> bool:
    tx.remove(keyspace.heal_key(position, blob_id))
    return tx.get_raw(keyspace.TABLE_BLOB + blob_id) is not None


def _sync_and_publish(writer: ShardWriter) -> None:
    writer.sync()
    writer.publish()


def ask(erasure_set: ErasureSet, position: int, call: Any, timeout_s: float) -> Any:
    """Have a thread of the drive make a call. Raises Unhealable if it fails."""
    outcome = erasure_set.call_each([(position, call)], timeout_s)[position]
    if isinstance(outcome, BaseException):
        raise Unhealable(str(outcome)) from outcome
    return outcome


def walk(erasure_set: ErasureSet, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All records whose keys start with `prefix`, page by page, so that no snapshot stays open for long."""
    after = b""
    while page := page_of(erasure_set, prefix, after, PAGE_RECORDS):
        yield from page
        after = page[-1][0]


def page_of(erasure_set: ErasureSet, prefix: bytes, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """At most `limit` undamaged records after the key `after` (empty: from the first) whose keys start with `prefix`."""
    stop = keyspace.successor(prefix) or b""

    def scan(drive: Drive) -> list[tuple[bytes, bytes]]:
        found = drive.scan(after + b"\x00" if after else prefix, stop, limit)
        for key, value in found:
            if value:
                records.unframe(key, value)  # a damaged one makes the next drive be asked
        return found

    return erasure_set.read(scan)
