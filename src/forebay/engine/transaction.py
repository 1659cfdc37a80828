"""What a request sees and changes while it is judged, under the set lock.

A `Batch` is the commit being put together; each request works in a `Transaction` of its own that joins the batch only if the request
is accepted. A request sees what earlier requests of the batch changed when it reads single keys. Requests that would have to see each
other's changes through a scan are kept out of the same batch by the names they declare (`Op.writes`, `Op.reads`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from forebay.codec import ReedSolomon
from forebay.drive import Drive
from forebay.engine import keyspace, lookup, records
from forebay.engine.erasure_set import ErasureSet, OwnCopy, Value
from forebay.engine.placement import inline_rotation
from forebay.engine.records import BadRecord, Blob, Bucket, Pointer, Reap, Version
from forebay.errors import StoreError

T = TypeVar("T", bound=msgspec.Struct)


class Batch:
    """The mutations of one commit so far, and shard files that may go once it is published."""

    def __init__(self, erasure_set: ErasureSet, seq: int) -> None:
        """`seq` is the number that the commit will have."""
        self.erasure_set = erasure_set
        self.seq = seq
        self.values: dict[bytes, Value] = {}
        self.trash: list[bytes] = []
        self.reap_index = 0


class Transaction:
    """One request's view of its erasure set."""

    def __init__(self, batch: Batch, drive: Drive) -> None:
        """`drive` is a current one; it is asked for everything that the batch has not changed."""
        self._batch = batch
        self._drive = drive
        self._values: dict[bytes, Value] = {}
        self._trash: list[bytes] = []
        self._reaps: list[Reap] = []
        self.seq = batch.seq
        self.set_index = batch.erasure_set.index
        self.published = batch.erasure_set.shared.published(self.set_index)

    def join(self) -> None:
        """The request was accepted: its changes become part of the commit."""
        for reap in self._reaps:
            key = keyspace.reap_key(self.seq, self._batch.reap_index)
            self._batch.reap_index += 1
            self._values[key] = records.pack(key, reap)
        self._batch.values.update(self._values)
        self._batch.trash.extend(self._trash)

    # reading

    @property
    def drive(self) -> Drive:
        """For scans; it does not show what this batch changed."""
        return self._drive

    def get_raw(self, key: bytes) -> bytes | None:
        """A value that is the same on every drive."""
        for values in (self._values, self._batch.values):
            if key in values:
                value = values[key]
                assert value is None or isinstance(value, bytes)
                return value
        return self._drive.get(key)

    def get(self, key: bytes, struct_type: type[T]) -> T | None:
        """A record, decoded."""
        raw = self.get_raw(key)
        return None if raw is None else records.unpack(key, raw, struct_type)

    def scan(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Records as they were before this batch."""
        return self._drive.scan(prefix, keyspace.successor(prefix) or b"", limit)

    def bucket(self, name: str) -> Bucket:
        """Raises NoSuchBucket."""
        found = self.find_bucket(name)
        if found is None:
            raise StoreError("NoSuchBucket", BucketName=name)
        return found

    def find_bucket(self, name: str) -> Bucket | None:
        """None if there is none. No other request of the batch changes a bucket that this one reads."""
        key = keyspace.bucket_key(name)
        raw = self.get_raw(key)
        return None if raw is None else records.bucket_as_of(key, raw, self.published)

    def put_bucket(self, record: Bucket, old: Bucket | None) -> None:
        """Make or change a bucket (or remove it, `record.removed`); readers go by `old` until this commit is published."""
        before = b"" if old is None else records.before_of(old)
        self.put(keyspace.bucket_key(record.name), msgspec.structs.replace(record, changed_seq=self.seq, before=before))

    def newest(self, prefix: bytes) -> lookup.Entry | None:
        """See `lookup.newest`."""
        return lookup.newest(self._drive, prefix, lambda: self.published)

    def null_version(self, prefix: bytes) -> lookup.Entry | None:
        """See `lookup.null_version`."""
        return lookup.null_version(self._drive, prefix, lambda: self.published)

    def by_version_id(self, prefix: bytes, version_id: str) -> lookup.Entry | None:
        """The version with this id or "null"; None if there is none or the id is not one of ours."""
        if version_id == "null":
            return self.null_version(prefix)
        parsed = keyspace.parse_version_id(version_id)
        return lookup.by_version_id(self._drive, prefix, *parsed, lambda: self.published) if parsed else None

    # changing

    def put(self, key: bytes, record: msgspec.Struct) -> None:
        """Store a record, the same on every drive."""
        self._values[key] = records.pack(key, record)

    def put_raw(self, key: bytes, value: bytes) -> None:
        """Store bytes, the same on every drive."""
        self._values[key] = value

    def put_each(self, key: bytes, values: list[bytes]) -> None:
        """Store bytes, one value for each drive position."""
        self._values[key] = values

    def is_changed(self, key: bytes) -> bool:
        """Whether this batch writes or removes `key` already."""
        return key in self._values or key in self._batch.values

    def remove(self, key: bytes) -> None:
        """Remove a record; only for what nobody needs any more, or what can always be rolled forward."""
        self._values[key] = None

    def reap_later(self, keys: Iterable[bytes], claims: Iterable[tuple[int, bytes, bytes]] = ()) -> None:
        """Leave work for a commit after this one was published."""
        self._reaps.append(Reap(list(keys), list(claims)))

    def add_version(self, bucket: Bucket, key: bytes, version: Version, flags: int, inline: bytes = b"") -> bytes:
        """Add a version of an S3 key; returns its index key."""
        prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, bucket.bucket_id, key)
        entry_key = keyspace.version_key(prefix, self.seq, flags)
        if version.inline:
            self._values[entry_key] = self._shards(entry_key, prefix, version, inline)
        else:
            self._values[entry_key] = records.pack(entry_key, version)
        self.add_pointers(keyspace.TABLE_OBJECT, bucket, key)
        return entry_key

    def add_pointers(self, table: bytes, bucket: Bucket, key: bytes) -> None:
        """Make a long key findable by listings."""
        for pointer_key, child in keyspace.pointers(table, bucket.bucket_id, key):
            self.put(pointer_key, Pointer(child))

    def mark_deleted(self, entry: lookup.Entry) -> None:
        """Delete a version that is on the drives, by this commit."""
        frame, seq = entry.frame, self.seq
        without_shard = records.frame(entry.key, frame.kind, frame.meta, deleted_seq=seq)

        def marked(own: bytes | None) -> bytes:
            # A drive whose copy is damaged or missing needs no shard of something deleted.
            try:
                return records.mark_deleted(entry.key, own or b"", seq)
            except BadRecord:
                return without_shard

        self._values[entry.key] = OwnCopy(marked)

    def rewrite(self, entry: lookup.Entry, version: Version) -> None:
        """Change the metadata of a version in place; each drive keeps its own shard."""
        version.changed_seq, version.before = self.seq, records.before_of(entry.version())
        kind, meta = entry.frame.kind, records.encode(version)

        def rewritten(own: bytes | None) -> bytes:
            try:
                frame = records.unframe(entry.key, own or b"")
            except BadRecord:
                return records.frame(entry.key, kind, meta, changed=True)  # without its shard: read around, then repaired
            return records.frame(entry.key, kind, meta, frame.shard_position, frame.shard, frame.deleted_seq, changed=True)

        self._values[entry.key] = OwnCopy(rewritten)

    def claim(self, blob_id: bytes, owner: bytes) -> None:
        """`owner` refers to a blob of this set. Raises NoSuchKey if the blob is gone (its last owner was deleted meanwhile)."""
        if self.get_raw(keyspace.TABLE_BLOB + blob_id) is None:
            raise StoreError("NoSuchKey", "The source was deleted while it was being copied.")
        self.put_raw(keyspace.claim_key(blob_id, owner), b"")

    def add_blob(self, blob_id: bytes, blob: Blob, missing: Iterable[int], owner: bytes) -> None:
        """Record a blob whose shards are durable, except those on the drives in `missing`."""
        self.put(keyspace.TABLE_BLOB + blob_id, blob)
        self.put_raw(keyspace.claim_key(blob_id, owner), b"")
        for position in missing:
            self.put_raw(keyspace.heal_key(position, blob_id), b"")

    def release(self, blob_id: bytes, owner: bytes) -> None:
        """Take a claim away; the last one takes the blob with it."""
        released = keyspace.claim_key(blob_id, owner)
        self._values[released] = None
        if self._claimed(keyspace.TABLE_CLAIM + blob_id):
            return
        if self.get_raw(keyspace.TABLE_BLOB + blob_id) is not None:
            self._values[keyspace.TABLE_BLOB + blob_id] = None
            self._trash.append(blob_id)
            for position in range(self._batch.erasure_set.geometry.drives):
                self._values[keyspace.heal_key(position, blob_id)] = None

    def _claimed(self, prefix: bytes) -> bool:
        changed = {**self._batch.values, **self._values}
        if any(v is not None for k, v in changed.items() if k.startswith(prefix)):
            return True
        gone = sum(1 for k, v in changed.items() if v is None and k.startswith(prefix))
        return any(k not in changed for k, _ in self.scan(prefix, gone + 1))

    def _shards(self, entry_key: bytes, prefix: bytes, version: Version, content: bytes) -> list[bytes]:
        geometry = self._batch.erasure_set.geometry
        shards = ReedSolomon.of(geometry.data, geometry.parity).encode_small(content)
        values = records.pack_shards(entry_key, version, shards)
        rotation = inline_rotation(prefix, geometry.drives)
        return [values[(p - rotation) % geometry.drives] for p in range(geometry.drives)]


def claims_of(version: Version) -> list[tuple[int, bytes, bytes]]:
    """Every (set, blob, owner) that a version holds; parts hold theirs under their own owner names."""
    held = [(e.set_index, e.blob_id, version.owner) for e in version.extents]
    held += [(e.set_index, e.blob_id, part.owner) for part in version.parts for e in part.extents]
    return list(dict.fromkeys(held))
