"""The engine as the rooms above see it: reads, writes and blocking calls over all erasure sets. See the package's docstring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from forebay.directio import Arena
from forebay.drive import Cursor, Drive
from forebay.engine import buckets, inline, keyspace, listing, lookup, multipart, objects, records
from forebay.engine.committer import Committer, Notify, Op, notify_directly
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.lookup import Found
from forebay.engine.objects import Attributes, Condition, Deleted, Written
from forebay.engine.once import Once
from forebay.engine.placement import INLINE_BYTES_MAX, UNIT_BYTES, set_of_key
from forebay.engine.reader import Reader, cut_extents, read_blob
from forebay.engine.records import BadRecord, Blob, Bucket, Part, Upload, Version
from forebay.engine.repair import repair_record
from forebay.engine.transaction import Transaction, claims_of
from forebay.engine.writer import BlobWriter, WrittenBlob
from forebay.errors import DriveFailed, StoreError

T = TypeVar("T")

UNCERTAIN = frozenset({"ServiceUnavailable", "InsufficientCapacity", "InternalError"})  # what a commit that failed half-way ends with
ARENA_BYTES = 256 << 20  # of stripe buffers in one process


class Opened(NamedTuple):
    """A version with its content (a small object) or with what it takes to read it (`Engine.reader`)."""

    found: Found
    content: bytes | None
    blobs: dict[bytes, Blob]


Select = Callable[[Found], tuple[int, int]]
"""Which bytes [start, stop) of a version will be read: the blobs that hold none of them are left alone. May raise StoreError."""


class Engine:
    """One per process. Thread-safe. Close it before the drives' process ends."""

    def __init__(self, sets: Sequence[ErasureSet], *, notify: Notify = notify_directly, arena_bytes: int = ARENA_BYTES) -> None:
        """`sets` in order of their index; `notify(ops)` is called in a committing thread with requests that are done."""
        geometry = sets[0].geometry
        assert all(s.geometry == geometry for s in sets)
        self.sets = list(sets)
        self.geometry = geometry
        slot_bytes = geometry.drives * UNIT_BYTES
        self.arena = Arena(slot_bytes, max(2, arena_bytes // slot_bytes))
        self._reported = Once()
        for erasure_set in self.sets:
            erasure_set.on_bad_record = partial(self._queue_repair, erasure_set.index)
        self._committers = [Committer(s, notify) for s in self.sets]
        self._buckets: dict[str, tuple[bytes, Bucket]] = {}

    def close(self) -> None:
        """Finish what is queued, then close the drives."""
        for committer in self._committers:
            committer.close()
        for erasure_set in self.sets:
            erasure_set.close()

    def ready(self) -> bool:
        """Whether a write would succeed now on every set."""
        return all(s.writable() and s.has_space() for s in self.sets)

    def submit(self, op: Op[T]) -> Op[T]:
        """Queue a request on its set."""
        self._committers[op.set_index].submit(op)
        return op

    # buckets

    def bucket(self, name: str) -> Bucket:
        """Raises NoSuchBucket."""
        key, published = keyspace.bucket_key(name), self.sets[0].published

        def ask(drive: Drive) -> Bucket | None:
            raw = drive.get(key)
            if raw is None:
                return None
            cached = self._buckets.get(name)
            if cached is not None and cached[0] == raw:
                return cached[1]
            record = records.bucket_as_of(key, raw, seen := published())
            if record is not None and record.changed_seq <= seen:
                if len(self._buckets) > 1000:
                    self._buckets.clear()
                self._buckets[name] = (raw, record)
            return record

        found = self.sets[0].read(ask)
        if found is None:
            raise StoreError("NoSuchBucket", BucketName=name)
        return found

    def list_buckets(self) -> list[Bucket]:
        """All buckets, by name."""

        def ask(drive: Drive) -> list[Bucket]:
            with drive.cursor() as cursor:
                seen = self.sets[0].published()
                found = [records.bucket_as_of(k, v, seen) for k, v in _table(cursor, keyspace.TABLE_BUCKET)]
                return [record for record in found if record is not None]

        return self.sets[0].read(ask)

    def create_bucket(self, name: str, owner: str = "", config: dict[str, bytes] | None = None) -> Bucket:
        """Blocking. Raises BucketAlreadyOwnedByYou."""
        record = Bucket(name, os.urandom(16), time.time_ns(), owner=owner, config=config or {})
        last = len(self.sets) - 1
        if last and not self.exists(name):
            # The last set decides who makes the bucket: a record that is there already (of somebody who is making it in this moment,
            # or whom a crash cut short) is taken over, so that all sets know the bucket by the same id.
            found = self.submit(buckets.put_record(record, buckets.Clash.ADOPT, set_index=last)).wait()
            record.bucket_id = found.bucket_id
            self._spread(record, buckets.Clash.REPLACE)
        self.submit(buckets.put_record(record, buckets.Clash.REFUSE, set_index=0)).wait()
        self._spread(record, buckets.Clash.ADOPT)  # where somebody who was deleting it removed it in between
        return record

    def _spread(self, record: Bucket, clash: buckets.Clash) -> None:
        """Put a bucket's record on all sets but the one that decides."""
        for index in reversed(range(1, len(self.sets))):
            self.submit(buckets.put_record(record, clash, set_index=index)).wait()

    def delete_bucket(self, name: str) -> None:
        """Blocking. Raises NoSuchBucket, BucketNotEmpty."""
        record = self.bucket(name)
        for erasure_set in self.sets[1:]:
            if not erasure_set.read(lambda drive: _is_empty(drive, record)):
                raise StoreError("BucketNotEmpty", BucketName=name)
        for index in range(len(self.sets)):
            try:
                self.submit(self.remove_bucket_op(name, index)).wait()
            except StoreError as e:
                if index == 0 or e.code != "BucketNotEmpty":
                    raise
                self._undo_delete(record, index)
                raise

    def remove_bucket_op(self, name: str, set_index: int) -> Op[None]:
        """Remove a bucket's record from one set. Raises NoSuchBucket, BucketNotEmpty when it is waited for."""
        return buckets.remove_record(name, lambda tx, found: _is_empty(tx.drive, found), set_index=set_index)

    def _undo_delete(self, record: Bucket, stopped_at: int) -> None:
        """An object was written to a later set meanwhile: put the record back where it was removed."""
        for index in reversed(range(stopped_at)):
            self.submit(buckets.put_record(record, buckets.Clash.REPLACE, set_index=index)).wait()

    def change_bucket(self, name: str, update: Callable[[Bucket], None]) -> Bucket:
        """Blocking: change a bucket's record on every set. Raises NoSuchBucket."""
        record = self.bucket(name)
        for index in reversed(range(len(self.sets))):
            record = self.submit(buckets.change(name, update, set_index=index)).wait()
        return record

    def set_versioning(self, name: str, status: str) -> Bucket:
        """Blocking. `status` is "Enabled" or "Suspended"."""

        def update(record: Bucket) -> None:
            record.versioning = status

        return self.change_bucket(name, update)

    def exists(self, name: str) -> bool:
        """Whether there is such a bucket."""
        try:
            self.bucket(name)
        except StoreError as e:
            if e.code != "NoSuchBucket":
                raise
            return False
        return True

    # reading objects

    def set_of(self, bucket: Bucket, key: bytes) -> ErasureSet:
        """The set that holds a key."""
        return self.sets[set_of_key(bucket.bucket_id, key, len(self.sets))]

    def find(self, bucket_name: str, key: bytes, version_id: str | None = None) -> Found:
        """A version of an object, the newest by default.

        Raises NoSuchBucket, NoSuchKey, NoSuchVersion, MethodNotAllowed, InvalidArgument.
        """
        bucket = self.bucket(bucket_name)
        prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, bucket.bucket_id, key)
        erasure_set = self.set_of(bucket, key)
        published = erasure_set.published
        if version_id is None:
            entry = objects.require(erasure_set.read(lambda d: lookup.newest(d, prefix, published)), key, None)
            return Found(bucket, key, entry, entry.version(), True)
        return self._find_version(bucket, erasure_set, key, prefix, published, version_id)

    def _find_version(
        self, bucket: Bucket, erasure_set: ErasureSet, key: bytes, prefix: bytes, published: lookup.Published, version_id: str
    ) -> Found:
        if version_id == "null":
            found = erasure_set.read(lambda d: lookup.null_version(d, prefix, published))
        elif parsed := keyspace.parse_version_id(version_id):
            found = erasure_set.read(lambda d: lookup.by_version_id(d, prefix, *parsed, published))
        else:
            raise StoreError("InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=version_id)
        entry = objects.require(found, key, version_id)
        newest = erasure_set.read(lambda d: lookup.newest(d, prefix, published))
        return Found(bucket, key, entry, entry.version(), newest is not None and newest.seq == entry.seq)

    def open(self, bucket_name: str, key: bytes, version_id: str | None = None, select: Select | None = None) -> Opened:
        """Find a version and get hold of its content: the bytes of a small object, the records of a large one's blobs.

        Raises as `find` and `select` do, and InternalError if the content is lost. An object replaced in the meantime is found again.
        """
        found = self.find(bucket_name, key, version_id)
        while (opened := self._content(found, select)) is None:
            before, found = found, self.find(bucket_name, key, version_id)
            if found.entry.key == before.entry.key:
                raise StoreError("InternalError", "Too few drives hold a readable share of this object.")
        return opened

    def _content(self, found: Found, select: Select | None) -> Opened | None:
        start, stop = (0, found.version.size) if select is None else select(found)
        if found.version.inline:
            content = inline.read(self.set_of(found.bucket, found.key), found)
            return Opened(found, content, {}) if content is not None else None
        blobs: dict[bytes, Blob] = {}
        for extent in cut_extents(multipart.extents_of(found.version), start, stop):
            if extent.blob_id not in blobs:
                blob = read_blob(self.sets[extent.set_index], extent.blob_id)
                if blob is None:
                    return None
                blobs[extent.blob_id] = blob
        return Opened(found, b"" if not blobs else None, blobs)

    def reader(self, opened: Opened, start: int = 0, stop: int | None = None) -> Reader:
        """Verified bytes [start, stop) of an object whose content is in blobs; iterate in a thread, then close."""
        extents = cut_extents(multipart.extents_of(opened.found.version), start, opened.found.version.size if stop is None else stop)
        return Reader(self.sets, self.arena, extents, opened.blobs, self.queue_heal)

    def read(self, opened: Opened, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object, all in memory. Blocking."""
        if opened.content is not None:
            return opened.content[start:stop]
        with self.reader(opened, start, stop) as reader:
            return b"".join(bytes(view) for view in reader)

    def queue_heal(self, set_index: int, position: int, blob_id: bytes) -> None:
        """Record that a shard needs healing, without waiting; on failure scrubbing finds it again."""
        if not self._reported.is_new((set_index, position, blob_id)):
            return

        def judge(tx: Transaction) -> None:
            if tx.get_raw(keyspace.TABLE_BLOB + blob_id) is not None:
                tx.put_raw(keyspace.heal_key(position, blob_id), b"")

        self._submit_quietly(Op(judge, set_index=set_index))

    def _queue_repair(self, set_index: int, position: int, key: bytes) -> None:
        """Have a damaged record written again, without waiting."""
        if key[:1] != keyspace.TABLE_SYSTEM and self._reported.is_new((set_index, position, key)):
            self._submit_quietly(repair_record(self.sets[set_index], key))

    def _submit_quietly(self, op: Op[Any]) -> None:
        try:
            self.submit(op)
        except StoreError:
            pass  # the store is closing; scrubbing finds it again

    # listing

    def list_objects(
        self, bucket_name: str, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes = b"", limit: int = 1000
    ) -> listing.ObjectPage:
        """Current objects with keys > `after`, in order of key."""
        bucket = self.bucket(bucket_name)

        def page(walkers: list[listing.Walker], cursors: listing.Cursors) -> listing.ObjectPage:
            take = listing.take_current(bucket, cursors)
            found = listing.walk(walkers, prefix, delimiter, after, False, limit, take)
            last = max([f.key for f in found.items[-1:]] + found.common_prefixes[-1:], default=after)
            return listing.ObjectPage(found.items, found.common_prefixes, last if found.more else None)

        return self._page(bucket, keyspace.TABLE_OBJECT, keyspace.VERSION_SUFFIX_BYTES, page)

    def list_versions(
        self,
        bucket_name: str,
        *,
        prefix: bytes = b"",
        delimiter: bytes = b"",
        key_marker: bytes = b"",
        version_marker: str = "",
        limit: int = 1000,
    ) -> listing.VersionPage:
        """All versions after the marker: keys > `key_marker`, or that key's versions older than `version_marker`."""
        bucket = self.bucket(bucket_name)
        seq_marker = self._seq_of_marker(bucket, key_marker, version_marker)

        def page(walkers: list[listing.Walker], cursors: listing.Cursors) -> listing.VersionPage:
            take = listing.take_versions(bucket, cursors, key_marker, seq_marker)
            found = listing.walk(walkers, prefix, delimiter, key_marker, seq_marker is not None, limit, take)
            last = (key_marker, version_marker)
            if found.items:
                last = (found.items[-1].key, found.items[-1].version_id or "null")
            if found.common_prefixes and found.common_prefixes[-1] > last[0]:
                last = (found.common_prefixes[-1], "")
            return listing.VersionPage(found.items, found.common_prefixes, last if found.more else None)

        return self._page(bucket, keyspace.TABLE_OBJECT, keyspace.VERSION_SUFFIX_BYTES, page)

    def _seq_of_marker(self, bucket: Bucket, key: bytes, version_marker: str) -> int | None:
        if not version_marker:
            return None
        if parsed := keyspace.parse_version_id(version_marker):
            return parsed[0]
        if version_marker != "null":
            raise StoreError(
                "InvalidArgument",
                "Invalid version id specified",
                ArgumentName="version-id-marker",
                ArgumentValue=version_marker,
            )
        prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, bucket.bucket_id, key)
        erasure_set = self.set_of(bucket, key)
        published = erasure_set.published
        entry = erasure_set.read(lambda d: lookup.null_version(d, prefix, published))
        return entry.seq if entry is not None else None

    def list_uploads(
        self,
        bucket_name: str,
        *,
        prefix: bytes = b"",
        delimiter: bytes = b"",
        key_marker: bytes = b"",
        upload_marker: bytes = b"",
        limit: int = 1000,
    ) -> listing.UploadPage:
        """Uploads under way after the marker, by key, then by initiation."""
        bucket = self.bucket(bucket_name)

        def page(walkers: list[listing.Walker], cursors: listing.Cursors) -> listing.UploadPage:
            take = listing.take_uploads(cursors, key_marker, upload_marker)
            found = listing.walk(walkers, prefix, delimiter, key_marker, bool(upload_marker), limit, take)
            last = (key_marker, upload_marker)
            if found.items:
                last = (found.items[-1].key, found.items[-1].upload_id)
            if found.common_prefixes and found.common_prefixes[-1] > last[0]:
                last = (found.common_prefixes[-1], b"")
            return listing.UploadPage(found.items, found.common_prefixes, last if found.more else None)

        return self._page(bucket, keyspace.TABLE_UPLOAD, keyspace.UPLOAD_SUFFIX_BYTES, page)

    def _page(
        self,
        bucket: Bucket,
        table: bytes,
        suffix_bytes: int,
        make: Callable[[list[listing.Walker], listing.Cursors], T],
    ) -> T:
        for attempt in range(self.geometry.drives):
            with ExitStack() as stack:
                walkers: list[listing.Walker] = []
                cursors: listing.Cursors = {}
                try:
                    for erasure_set in self.sets:
                        position, drive = _pick(erasure_set, attempt)
                        walker = listing.Walker(stack.enter_context(drive.cursor()), table, bucket.bucket_id, suffix_bytes)
                        walkers.append(walker)
                        looking = stack.enter_context(drive.cursor())
                        cursors[id(walker)] = (looking, erasure_set.published())
                    return make(walkers, cursors)
                except DriveFailed as e:
                    erasure_set.take_out(position, e)
                except BadRecord as e:
                    erasure_set.report_bad_record(position, e)
        raise StoreError("InternalError", "No drive holds an undamaged copy of the listing.")

    # writing objects

    def put(
        self,
        bucket_name: str,
        key: bytes,
        data: bytes | WrittenBlob,
        attributes: Attributes,
        condition: Condition | None = None,
        on_done: Callable[[Op[Written]], None] | None = None,
    ) -> Op[Written]:
        """Store an object: its bytes if they are at most INLINE_BYTES_MAX, else a finished blob, which is discarded if refused."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        options = {"set_index": set_index, "on_done": on_done}
        if isinstance(data, WrittenBlob):
            assert data.set_index == set_index
            return self.submit(objects.put_blob(bucket_name, key, data, attributes, condition, **options))
        assert len(data) <= INLINE_BYTES_MAX
        self.sets[set_index].require_writable()
        if not self.sets[set_index].has_space():
            raise StoreError("InsufficientCapacity")
        return self.submit(objects.put_bytes(bucket_name, key, data, attributes, condition, **options))

    def delete(
        self,
        bucket_name: str,
        key: bytes,
        version_id: str | None = None,
        condition: Condition | None = None,
        on_done: Callable[[Op[Deleted]], None] | None = None,
    ) -> Op[Deleted]:
        """Delete an object or one version of it."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        return self.submit(objects.delete(bucket_name, key, version_id, condition, set_index=set_index, on_done=on_done))

    def update(
        self,
        bucket_name: str,
        key: bytes,
        version_id: str | None,
        change: Callable[[Version], None],
        on_done: Callable[[Op[str | None]], None] | None = None,
    ) -> Op[str | None]:
        """Change the metadata of a version in place (tags, access control list); the result is its version id."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        return self.submit(objects.update(bucket_name, key, version_id, change, set_index=set_index, on_done=on_done))

    def writer(self, bucket_name: str, key: bytes) -> BlobWriter:
        """For a body that is larger than INLINE_BYTES_MAX or of unknown length. Blocking."""
        return BlobWriter(self.set_of(self.bucket(bucket_name), key), self.arena)

    def copy(self, source: Opened, bucket_name: str, key: bytes, attributes: Attributes, condition: Condition | None = None) -> Written:
        """Blocking: a new version with the bytes of `source`, none of which are moved unless they are inline."""
        target = self.set_of(self.bucket(bucket_name), key).index
        if source.content is not None:
            return self.put(bucket_name, key, source.content, attributes, condition).wait()
        old = source.found.version
        version = objects.new_version(attributes, old.size, extents=old.extents)
        version.parts = [Part(p.number, p.size, p.etag, p.mtime_ns, p.extents, p.checksums, version.owner) for p in old.parts]
        with self._claims_elsewhere(claims_of(version), target) as elsewhere:
            op = objects.put_extents(bucket_name, key, version, elsewhere, condition, set_index=target)
            return self.submit(op).wait()

    @contextmanager
    def _claims_elsewhere(self, claims: list[tuple[int, bytes, bytes]], target: int) -> Iterator[set[int]]:
        """Claim blobs on other sets than `target` first; take the claims back if the request is refused."""
        by_set: dict[tuple[int, bytes], list[bytes]] = {}
        for set_index, blob_id, owner in claims:
            if set_index != target:
                by_set.setdefault((set_index, owner), []).append(blob_id)
        claimed: list[tuple[int, bytes, list[bytes]]] = []
        try:
            for (set_index, owner), blob_ids in by_set.items():
                self.submit(objects.claim_blobs(blob_ids, owner, set_index=set_index)).wait()
                claimed.append((set_index, owner, blob_ids))
            yield {set_index for set_index, _, _ in claimed}
        except StoreError as e:
            if e.code in UNCERTAIN:
                raise  # the version may come to be after all: its claims stay, and are collected if it does not
            for set_index, owner, blob_ids in claimed:
                self.submit(objects.release_blobs(blob_ids, owner, set_index=set_index))
            raise

    # multipart uploads

    def create_upload(
        self,
        bucket_name: str,
        key: bytes,
        attributes: Attributes,
        checksum_algorithm: str = "",
        checksum_type: str = "",
        on_done: Callable[[Op[Upload]], None] | None = None,
    ) -> Op[Upload]:
        """Begin a multipart upload; `attributes` without ETag and checksums."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        return self.submit(
            multipart.create(bucket_name, key, attributes, checksum_algorithm, checksum_type, set_index=set_index, on_done=on_done)
        )

    def upload(self, bucket_name: str, key: bytes, upload_id: bytes) -> Upload:
        """Raises NoSuchUpload."""
        bucket = self.bucket(bucket_name)
        index_key = multipart.upload_key(bucket, key, upload_id)
        found = self.set_of(bucket, key).read(lambda d: (raw := d.get(index_key)) and records.unpack(index_key, raw, Upload))
        if not found:
            raise StoreError("NoSuchUpload", UploadId=upload_id.hex())
        return found

    def put_part(
        self,
        bucket_name: str,
        key: bytes,
        upload_id: bytes,
        number: int,
        data: WrittenBlob | None,
        etag: str,
        checksums: dict[str, str],
        on_done: Callable[[Op[Part]], None] | None = None,
    ) -> Op[Part]:
        """Store a part whose shards are durable (None: an empty part); they are discarded if this is refused."""
        size, extents = (data.size, [data.extent]) if data is not None else (0, [])
        part = Part(number, size, etag, time.time_ns(), extents, checksums, os.urandom(16))
        set_index = self.set_of(self.bucket(bucket_name), key).index
        op = multipart.put_part(bucket_name, key, upload_id, part, data, set(), set_index=set_index, on_done=on_done)
        return self.submit(op)

    def copy_part(
        self,
        source: Opened,
        start: int,
        stop: int,
        bucket_name: str,
        key: bytes,
        upload_id: bytes,
        number: int,
        etag: str,
        checksums: dict[str, str],
    ) -> Part:
        """Blocking: bytes [start, stop) of `source` become a part, without being moved unless they are inline."""
        target = self.set_of(self.bucket(bucket_name), key).index
        if start == stop:
            return self.put_part(bucket_name, key, upload_id, number, None, etag, checksums).wait()
        if source.content is not None:
            writer = self.writer(bucket_name, key)
            writer.write(source.content[start:stop])
            return self.put_part(bucket_name, key, upload_id, number, writer.finish(), etag, checksums).wait()
        extents = cut_extents(multipart.extents_of(source.found.version), start, stop)
        part = Part(number, stop - start, etag, time.time_ns(), extents, checksums, os.urandom(16))
        with self._claims_elsewhere(multipart.part_claims(part), target) as elsewhere:
            op = multipart.put_part(bucket_name, key, upload_id, part, None, elsewhere, set_index=target)
            return self.submit(op).wait()

    def list_parts(
        self, bucket_name: str, key: bytes, upload_id: bytes, after: int = 0, limit: int = 1000
    ) -> tuple[Upload, list[Part], bool]:
        """(upload, parts with a number > `after`, whether more follow). Raises NoSuchUpload."""
        upload = self.upload(bucket_name, key, upload_id)
        start = keyspace.part_key(upload_id, after + 1) if after < 0xFFFF else keyspace.part_key(upload_id, 0xFFFF) + b"\x00"
        stop = keyspace.TABLE_PART + upload_id + b"\xff\xff\xff"

        def ask(drive: Drive) -> list[Part]:
            return [records.unpack(k, v, Part) for k, v in drive.scan(start, stop, limit + 1)]

        found = self.set_of(self.bucket(bucket_name), key).read(ask)
        return upload, found[:limit], len(found) > limit

    def complete(
        self,
        bucket_name: str,
        key: bytes,
        upload_id: bytes,
        choices: Sequence[multipart.PartChoice],
        finish: multipart.Finish,
        condition: Condition | None = None,
        on_done: Callable[[Op[Written]], None] | None = None,
    ) -> Op[Written]:
        """Make parts an object. Idempotent for COMPLETED_KEPT_S."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        return self.submit(
            multipart.complete(bucket_name, key, upload_id, choices, finish, condition, set_index=set_index, on_done=on_done)
        )

    def abort(self, bucket_name: str, key: bytes, upload_id: bytes, on_done: Callable[[Op[None]], None] | None = None) -> Op[None]:
        """Drop an upload. Raises NoSuchUpload."""
        set_index = self.set_of(self.bucket(bucket_name), key).index
        return self.submit(multipart.abort(bucket_name, key, upload_id, set_index=set_index, on_done=on_done))


def _pick(erasure_set: ErasureSet, attempt: int) -> tuple[int, Drive]:
    current = erasure_set.current()
    if len(current) < erasure_set.geometry.read_quorum:
        raise erasure_set.unavailable()
    return current[attempt % len(current)]


def _table(cursor: Cursor, table: bytes) -> Iterator[tuple[bytes, memoryview]]:
    here = cursor.seek(table)
    while here and cursor.key[:1] == table:
        yield cursor.key, cursor.value
        here = cursor.next()


def _is_empty(drive: Drive, bucket: Bucket) -> bool:
    """No version and no delete marker, as far as this drive's set goes. Uploads do not count; what they hold is collected later."""
    published = (1 << 64) - 1  # under the set lock or for a first look: everything that this drive has
    with drive.cursor() as walking, drive.cursor() as looking:
        walker = listing.Walker(walking, keyspace.TABLE_OBJECT, bucket.bucket_id, keyspace.VERSION_SUFFIX_BYTES)
        take = listing.take_versions(bucket, {id(walker): (looking, published)}, b"", None)
        return not listing.walk([walker], b"", b"", b"", False, 1, take).items
