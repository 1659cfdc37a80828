"""Collecting garbage: what crashes, aborted requests and clients that never came back have left.

Everything here is removed by an ordinary request, judged under the set lock, but for shard files that no blob record knows: those are
moved to the trash only if every drive of the set is in service, all agree, and the same file was seen twice, long apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from forebay.drive import Drive
from forebay.engine import buckets, keyspace, multipart, objects, records
from forebay.engine.claims import Claim, unheld_claims
from forebay.engine.committer import Op
from forebay.engine.engine import Engine
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.heal import Unhealable, ask, walk
from forebay.engine.pace import Pace
from forebay.engine.records import KIND_POINTER, Bucket, Completed, Part, Pointer, Reap, Upload
from forebay.engine.shared import DriveState
from forebay.engine.transaction import Transaction
from forebay.errors import StoreError

log = logging.getLogger("forebay.engine")

CALL_TIMEOUT_S = 30.0
LEFTOVER_KEPT_S = 3600.0  # a request that makes a bucket or an upload takes less
LOW_SPACE_FRACTION = 0.05  # with less free, the trash is emptied at once
ORPHANS_MAX = 100_000  # remembered between two looks


class Collector:
    """Keeps what it saw between its passes."""

    def __init__(self, engine: Engine, stop: threading.Event, upload_kept_s: float, orphan_kept_s: float) -> None:
        """`stop` ends a pass early."""
        self._engine = engine
        self._pace = Pace(0, stop)
        self._upload_kept_s = upload_kept_s
        self._orphan_kept_s = orphan_kept_s
        self._orphans_seen_s: dict[tuple[int, int, bytes], float] = {}
        self._claims_seen_s: dict[Claim, float] = {}
        self.collected = 0

    def run(self) -> None:
        """One pass over what is cheap to find. Raises Stopping, and StoreError if a set is not available."""
        known = self._agree_on_buckets()
        for erasure_set in self._engine.sets:
            self._uploads(erasure_set, known)
            self._completed(erasure_set)
            self._foreign_claims(erasure_set)
            self._engine.submit(Op(lambda _: None, set_index=erasure_set.index)).wait()  # takes up what waits to be reaped

    # buckets

    def _agree_on_buckets(self) -> set[bytes]:
        """Have all sets know the same buckets; returns the ids of all that are known anywhere."""
        deciding = {record.name: record for record in self._engine.list_buckets()}
        known = {record.bucket_id for record in deciding.values()}
        for erasure_set in self._engine.sets:
            here: dict[str, Bucket] = {}
            for key, raw in walk(erasure_set, keyspace.TABLE_BUCKET):
                record = records.bucket_as_of(key, raw, erasure_set.published())
                if record is not None:
                    here[record.name] = record
                elif records.unpack(key, raw, Bucket).changed_seq <= erasure_set.published():
                    self._submit(buckets.forget(key[1:].decode(), set_index=erasure_set.index))
            if erasure_set.index == 0:
                continue
            known.update(record.bucket_id for record in here.values())
            for name, record in here.items():
                if name not in deciding and _is_old(record.created_ns, LEFTOVER_KEPT_S):
                    self._leftover_bucket(erasure_set, record)
            for name in deciding.keys() - here.keys():
                if _is_old(deciding[name].created_ns, LEFTOVER_KEPT_S) and self._engine.exists(name):
                    self._submit(buckets.put_record(deciding[name], buckets.Clash.ADOPT, set_index=erasure_set.index))
        return known

    def _leftover_bucket(self, erasure_set: ErasureSet, record: Bucket) -> None:
        """A bucket was being deleted, or made, when the server died: it goes if it is empty; if it is not, it is put back."""
        try:
            self._engine.submit(self._engine.remove_bucket_op(record.name, erasure_set.index)).wait()
            self.collected += 1
        except StoreError as e:
            if e.code == "BucketNotEmpty":
                log.warning("bucket %s was half deleted but holds objects: it is put back", record.name)
                self._submit(buckets.put_record(record, buckets.Clash.ADOPT, set_index=0))

    # uploads

    def _uploads(self, erasure_set: ErasureSet, known: set[bytes]) -> None:
        newest_part_ns: dict[bytes, int] = {}  # an upload is as old as the last sign of life
        for key, raw in walk(erasure_set, keyspace.TABLE_PART):
            self._pace.check()
            upload_id, mtime_ns = key[1:17], records.unpack(key, raw, Part).mtime_ns
            newest_part_ns[upload_id] = max(mtime_ns, newest_part_ns.get(upload_id, 0))
        for key, raw in walk(erasure_set, keyspace.TABLE_UPLOAD):
            self._pace.check()
            if records.unframe(key, raw).kind == KIND_POINTER:
                continue
            upload = records.unpack(key, raw, Upload)
            active_ns = max(upload.created_ns, newest_part_ns.pop(upload.upload_id, 0))
            # The entries of long keys do not tell their bucket; they wait for their time like the others.
            has_bucket = key[1 : 1 + keyspace.NODE_BYTES] in known or len(upload.key) > keyspace.SEGMENT_BYTES // 2
            if _is_old(active_ns, self._upload_kept_s if has_bucket else min(LEFTOVER_KEPT_S, self._upload_kept_s)):
                self._submit(multipart.drop(key, upload, set_index=erasure_set.index))
        for upload_id, mtime_ns in newest_part_ns.items():
            if _is_old(mtime_ns, max(LEFTOVER_KEPT_S, self._upload_kept_s)):
                self._submit(multipart.drop_parts(upload_id, set_index=erasure_set.index))

    def _completed(self, erasure_set: ErasureSet) -> None:
        gone: list[bytes] = []
        for key, raw in walk(erasure_set, keyspace.TABLE_COMPLETED):
            self._pace.check()
            if _is_old(records.unpack(key, raw, Completed).completed_ns, multipart.COMPLETED_KEPT_S):
                gone.append(key)
            if len(gone) == 256:
                self._submit(Op(partial(_remove, gone), set_index=erasure_set.index))
                gone = []
        if gone:
            self._submit(Op(partial(_remove, gone), set_index=erasure_set.index))

    # claims on other sets

    def _foreign_claims(self, erasure_set: ErasureSet) -> None:
        for key, raw in walk(erasure_set, keyspace.TABLE_FOREIGN):
            self._pace.check()
            claims = records.unpack(key, raw, Reap).claims
            if all(self._submit(objects.release_blobs([blob_id], owner, set_index=s)) for s, blob_id, owner in claims):
                self._submit(Op(partial(_remove, [key]), set_index=erasure_set.index))

    # what takes a walk over everything

    def pointers(self) -> None:
        """Remove the pointers of long keys below which there is nothing any more. Raises as `run` does."""
        for erasure_set in self._engine.sets:
            for table in (keyspace.TABLE_OBJECT, keyspace.TABLE_UPLOAD):
                for key, raw in walk(erasure_set, table):
                    self._pace.check()
                    if len(key) == keyspace.POINTER_KEY_BYTES and records.unframe(key, raw).kind == KIND_POINTER:
                        self._drop_if_empty(erasure_set, table, key, records.unpack(key, raw, Pointer).node)

    def _drop_if_empty(self, erasure_set: ErasureSet, table: bytes, pointer: bytes, node: bytes) -> None:
        if erasure_set.read(lambda drive: drive.scan(table + node, keyspace.successor(table + node) or b"", 1)):
            return

        def judge(tx: Transaction) -> None:
            if not tx.is_changed(pointer) and not tx.scan(table + node, 1):
                tx.remove(pointer)

        self._submit(Op(judge, set_index=erasure_set.index))

    def orphans(self) -> None:
        """Trash shard files that no blob record knows, the second time that they are seen. Raises as `run` does."""
        seen: dict[tuple[int, int, bytes], float] = {}
        for erasure_set in self._engine.sets:
            for position, drive in erasure_set.current():
                for prefix_byte in range(256):
                    self._pace.check()
                    self._look_for_orphans(erasure_set, position, drive, prefix_byte, seen)
        self._orphans_seen_s = seen

    def _look_for_orphans(
        self, erasure_set: ErasureSet, position: int, drive: Drive, prefix_byte: int, seen: dict[tuple[int, int, bytes], float]
    ) -> None:
        try:
            there = [blob_id for blob_id, _ in ask(erasure_set, position, partial(drive.list_shards, prefix_byte), CALL_TIMEOUT_S)]
        except Unhealable:
            return
        now_s = time.time()
        keys = [keyspace.TABLE_BLOB + blob_id for blob_id in there]
        known = erasure_set.read(lambda current: current.get_many(keys))
        for blob_id, record in zip(there, known, strict=True):
            at = (erasure_set.index, position, blob_id)
            if record is not None or len(seen) >= ORPHANS_MAX:
                continue
            first_s = self._orphans_seen_s.get(at, now_s)
            if now_s - first_s >= self._orphan_kept_s and at in self._orphans_seen_s and nobody_knows(erasure_set, blob_id):
                log.warning("set %d, drive %d: shard %s belongs to no blob: to the trash", erasure_set.index, position, blob_id.hex())
                self._on_drive(erasure_set, position, partial(_trash, drive, blob_id))
            else:
                seen[at] = first_s

    def claims(self) -> None:
        """Release claims that nobody holds, the second time that they are seen. Raises as `run` does.

        Only copies from one set to another can leave any: within a set, a claim is part of the commit of what holds it.
        """
        if len(self._engine.sets) == 1:
            return
        now_s = time.time()
        seen = {claim: self._claims_seen_s.get(claim, now_s) for claim in unheld_claims(self._engine, self._pace)}
        for claim, first_s in list(seen.items()):
            if claim in self._claims_seen_s and now_s - first_s >= self._orphan_kept_s:
                set_index, blob_id, owner = claim
                log.warning("set %d: blob %s is claimed by nobody: released", set_index, blob_id.hex())
                self._submit(objects.release_blobs([blob_id], owner, set_index=set_index))
                del seen[claim]
        self._claims_seen_s = seen

    # files

    def trash(self, kept_s: float) -> None:
        """Remove what has been in the trash for long; at once on drives with little space left."""
        for erasure_set in self._engine.sets:
            for position, drive in erasure_set.in_states(DriveState.STALE, DriveState.SYNCING, DriveState.CURRENT):
                self._on_drive(erasure_set, position, partial(_empty_trash, drive, kept_s))

    def staging(self, alive_pids: set[int]) -> None:
        """Remove what processes that are gone left half written."""
        for erasure_set in self._engine.sets:
            for position, drive in erasure_set.in_states(DriveState.STALE, DriveState.SYNCING, DriveState.CURRENT):
                self._on_drive(erasure_set, position, partial(drive.clear_staging, alive_pids))

    def _on_drive(self, erasure_set: ErasureSet, position: int, call: Callable[[], int]) -> None:
        self._pace.check()
        try:
            self.collected += ask(erasure_set, position, call, CALL_TIMEOUT_S)
        except Unhealable:
            pass  # it was taken out

    def _submit(self, op: Op[Any]) -> bool:
        """Whether it was done; if not, the next pass tries again."""
        try:
            self._engine.submit(op).wait()
        except StoreError as e:
            log.warning("garbage is left for the next pass: %s", e)
            return False
        self.collected += 1
        return True


def nobody_knows(erasure_set: ErasureSet, blob_id: bytes) -> bool:
    """Whether all drives of the set are in service and none of them has a record of the blob."""
    key = keyspace.TABLE_BLOB + blob_id
    current = erasure_set.current()
    if len(current) < erasure_set.geometry.drives:
        return False
    with erasure_set.shared.lock(erasure_set.index):
        return all(drive.get(key) is None for _, drive in current)


def _trash(drive: Drive, blob_id: bytes) -> int:
    drive.trash_shard(blob_id)
    return 1


def _empty_trash(drive: Drive, kept_s: float) -> int:
    space = drive.space()
    return drive.empty_trash(0 if space.free_bytes < space.total_bytes * LOW_SPACE_FRACTION else kept_s)


def _remove(keys: list[bytes], tx: Transaction) -> None:
    for key in keys:
        tx.remove(key)


def _is_old(time_ns: int, kept_s: float) -> bool:
    return time.time_ns() - time_ns > kept_s * 1e9
