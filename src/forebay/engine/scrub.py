"""Reading everything, slowly, to find what has decayed before too much of it has.

Every record of the index is checked and compared between the drives of its set; every block of every shard is checked against the
blob's record. What is damaged or missing is repaired: records at once (`repair.py`), shards by healing (`heal.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial

import msgspec

from forebay.drive import Drive, check_index
from forebay.engine import keyspace, records
from forebay.engine.committer import Op
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.heal import Unhealable, ask, check_blocks, walk
from forebay.engine.pace import Pace
from forebay.engine.reader import Shards
from forebay.engine.records import Blob
from forebay.engine.recovery import Source
from forebay.engine.repair import Copy, look, repair_record
from forebay.errors import DriveFailed, StoreError

log = logging.getLogger("forebay.engine")

CHUNK_RECORDS = 256
CALL_TIMEOUT_S = 30.0
_RANGES = ((b"", keyspace.TABLE_SYSTEM), (keyspace.successor(keyspace.TABLE_SYSTEM) or b"", b""))  # system records are each drive's own


class Counts(msgspec.Struct):
    """What a scrub has looked at and found; changed by one thread, read by others."""

    records_checked: int = 0
    records_bad: int = 0
    blocks_checked: int = 0
    blocks_bad: int = 0
    bytes_checked: int = 0
    bytes_total: int = 0


class Scrubber:
    """One pass over all sets."""

    def __init__(self, engine: Engine, bytes_per_s: float, stop: threading.Event) -> None:
        """`stop` ends it early."""
        self._engine = engine
        self._pace = Pace(bytes_per_s, stop)
        self.counts = Counts()

    def run(self) -> None:
        """Check everything once. Raises Stopping, and StoreError if a set is not available."""
        for erasure_set in self._engine.sets:
            self._add_to_total(erasure_set)
        for erasure_set in self._engine.sets:
            self._check_files(erasure_set)
            for start, stop in _RANGES:
                self._check_index(erasure_set, start, stop)
            for key, raw in walk(erasure_set, keyspace.TABLE_BLOB):
                self._check_blob(erasure_set, key[1:], records.unpack(key, raw, Blob))
            self._engine.submit(Op(lambda _: None, set_index=erasure_set.index)).wait()  # what is to be healed is on record now

    def _add_to_total(self, erasure_set: ErasureSet) -> None:
        for key, raw in walk(erasure_set, keyspace.TABLE_BLOB):
            self._pace.check()
            blob = records.unpack(key, raw, Blob)
            self.counts.bytes_total += erasure_set.geometry.shard_bytes(blob.size) * erasure_set.geometry.drives

    # the index

    def _check_files(self, erasure_set: ErasureSet) -> None:
        """Have every page read by a process that may die of it, before this one reads them."""
        for position, drive in erasure_set.current():
            self._pace.check()
            try:
                check_index(drive.path)
            except DriveFailed as e:
                erasure_set.take_out(position, e)

    def _check_index(self, erasure_set: ErasureSet, start: bytes, stop: bytes) -> None:
        here: bytes | None = start
        while here is not None:
            here = self._check_chunk(erasure_set, here, stop)

    def _check_chunk(self, erasure_set: ErasureSet, start: bytes, stop: bytes) -> bytes | None:
        """Check some records from `start` on; returns where to go on, None at `stop`."""
        scans: list[tuple[Source, list[tuple[bytes, bytes]]]] = []
        for source in erasure_set.current():
            try:
                scans.append((source, ask(erasure_set, source[0], partial(_scan, source[1], start, stop), CALL_TIMEOUT_S)))
            except Unhealable:
                continue  # taken out: what it lacks is found when it comes back
        ends = [found[-1][0] + b"\x00" for _, found in scans if len(found) == CHUNK_RECORDS]
        end = min(ends, default=None)
        copies: dict[bytes, list[Copy]] = {}
        for source, found in scans:
            for key, raw in found:
                if end is None or key < end:
                    copies.setdefault(key, []).append(look(key, raw, source, erasure_set))
                    self.counts.records_checked += 1
                    self._pace.spend(len(key) + len(raw))
        for key, those in copies.items():
            if not _agree(those, len(scans)):
                self._repair(erasure_set, key)
        return end

    def _repair(self, erasure_set: ErasureSet, key: bytes) -> None:
        """The copies differ, be it because a commit came in between: the request looks again, under the set lock."""
        try:
            self.counts.records_bad += self._engine.submit(repair_record(erasure_set, key)).wait()
        except StoreError as e:
            self.counts.records_bad += 1
            log.error("set %d: record %r cannot be repaired: %s", erasure_set.index, key, e)

    # the shards

    def _check_blob(self, erasure_set: ErasureSet, blob_id: bytes, blob: Blob) -> None:
        for position, _ in erasure_set.current():
            bad = sum(not good for good in self._blocks(erasure_set, position, blob_id, blob))
            if bad and erasure_set.read(lambda drive: drive.get(keyspace.TABLE_BLOB + blob_id)) is not None:
                self.counts.blocks_bad += bad
                log.warning("blob %s: %d bad blocks on drive %d of set %d", blob_id.hex(), bad, position, erasure_set.index)
                self._engine.queue_heal(erasure_set.index, position, blob_id)

    def _blocks(self, erasure_set: ErasureSet, position: int, blob_id: bytes, blob: Blob) -> Iterator[bool]:
        """For each block of a shard, whether it is good. A drive that fails meanwhile has nothing said about it."""
        drive = erasure_set.drive(position)
        shards = Shards(erasure_set, blob_id, blob, self._engine.arena, lambda *_: None)
        try:
            if drive is None:
                return
            if ask(erasure_set, position, partial(drive.shard_size, blob_id), CALL_TIMEOUT_S) is None:
                count = erasure_set.geometry.stripes(blob.size)
                self.counts.blocks_checked += count
                yield from [False] * count
                return
            for good in check_blocks(self._engine, shards, position, self._pace):
                self.counts.blocks_checked += 1
                yield good
            self.counts.bytes_checked += erasure_set.geometry.shard_bytes(blob.size)
        except Unhealable as e:
            log.warning("blob %s on drive %d of set %d was not checked: %s", blob_id.hex(), position, erasure_set.index, e)
        finally:
            shards.close()


def _scan(drive: Drive, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
    return drive.scan(start, stop, CHUNK_RECORDS)


def _agree(copies: list[Copy], drives: int) -> bool:
    sameness = {copy.sameness for copy in copies}
    return len(copies) == drives and len(sameness) == 1 and None not in sameness and all(copy.shard_is_right for copy in copies)
