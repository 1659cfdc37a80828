"""Requests on objects: put, delete, change of metadata. Each function builds the `Op` that is judged under the set lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, NamedTuple

import msgspec

from forebay.engine import keyspace, lookup
from forebay.engine.committer import Op
from forebay.engine.records import DELETE_MARKER, NULL_VERSION, Bucket, Extent, Part, Version
from forebay.engine.transaction import Transaction, claims_of
from forebay.engine.writer import WrittenBlob
from forebay.errors import StoreError


class Attributes(msgspec.Struct, frozen=True):
    """What a client says of an object besides its bytes; see `records.Version` for the fields."""

    etag: str = ""
    headers: dict[str, str] = {}
    metadata: dict[str, str] = {}
    tags: dict[str, str] = {}
    checksums: dict[str, str] = {}
    checksum_type: str = ""
    acl: bytes = b""
    user: str = ""


class Current(NamedTuple):
    """The object that a condition is judged against."""

    etag: str
    mtime_ns: int
    size: int


Condition = Callable[[Current | None], None]
"""Raises StoreError (PreconditionFailed, NoSuchKey, …) if the state of the key forbids the request."""


class Written(NamedTuple):
    """An acknowledged version. `version_id` is None in a bucket without versioning."""

    version_id: str | None
    version: Version


class Deleted(NamedTuple):
    """What a delete did: which version is gone, or which delete marker was made."""

    version_id: str | None
    is_delete_marker: bool


def name_of(bucket: str, key: bytes) -> bytes:
    """The name under which requests on a key clash."""
    return b"O" + bucket.encode() + b"/" + key


def reads_of(bucket: str) -> tuple[bytes, ...]:
    """Every request on an object reads its bucket's record."""
    return (b"B" + bucket.encode(),)


def current_of(entry: lookup.Entry | None) -> Current | None:
    """For a condition; a delete marker is no object."""
    if entry is None or entry.is_delete_marker:
        return None
    version = entry.version()
    return Current(version.etag, version.mtime_ns, version.size)


def check(condition: Condition | None, tx: Transaction, prefix: bytes) -> None:
    """Judge a condition against the current version."""
    if condition is not None:
        condition(current_of(tx.newest(prefix)))


def publish(tx: Transaction, bucket: Bucket, key: bytes, version: Version, inline: bytes = b"", flags: int = 0) -> Written:
    """Add `version` as the newest of its key, superseding the null version where S3 says so."""
    prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, bucket.bucket_id, key)
    version_id: str | None = keyspace.version_id(tx.seq, version.random)
    if bucket.versioning != "Enabled":
        flags |= NULL_VERSION
        version_id = "null" if bucket.versioning else None
        old = tx.null_version(prefix) if bucket.versioning else tx.newest(prefix)
        if old is not None:
            tx.reap_later([old.key], claims_of(old.version()))
    tx.add_version(bucket, key, version, flags, inline)
    return Written(version_id, version)


def put_bytes(bucket: str, key: bytes, content: bytes, attributes: Attributes, condition: Condition | None, **op: Any) -> Op[Written]:
    """A small object, kept in the index records."""
    version = new_version(attributes, len(content), inline=True)

    def judge(tx: Transaction) -> Written:
        found = tx.bucket(bucket)
        check(condition, tx, keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key))
        return publish(tx, found, key, version, content)

    return Op(judge, writes=(name_of(bucket, key),), reads=reads_of(bucket), **op)


def put_blob(bucket: str, key: bytes, blob: WrittenBlob, attributes: Attributes, condition: Condition | None, **op: Any) -> Op[Written]:
    """An object whose shards are durable; they are discarded if the request is refused."""
    version = new_version(attributes, blob.size, extents=[blob.extent])

    def judge(tx: Transaction) -> Written:
        found = tx.bucket(bucket)
        check(condition, tx, keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key))
        tx.add_blob(blob.blob_id, blob.record, blob.missing, version.owner)
        return publish(tx, found, key, version)

    return Op(judge, writes=(name_of(bucket, key),), reads=reads_of(bucket), discard=blob.discard, **op)


def put_extents(
    bucket: str, key: bytes, version: Version, claimed_elsewhere: set[int], condition: Condition | None, **op: Any
) -> Op[Written]:
    """A version made of blobs that others hold too (a copy). Claims on the sets in `claimed_elsewhere` were made before."""

    def judge(tx: Transaction) -> Written:
        found = tx.bucket(bucket)
        check(condition, tx, keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key))
        for set_index, blob_id, owner in claims_of(version):
            if set_index not in claimed_elsewhere:
                tx.claim(blob_id, owner)
        return publish(tx, found, key, version)

    return Op(judge, writes=(name_of(bucket, key),), reads=reads_of(bucket), **op)


def claim_blobs(blob_ids: list[bytes], owner: bytes, **op: Any) -> Op[None]:
    """Claim blobs of another set before the version that refers to them is published."""

    def judge(tx: Transaction) -> None:
        for blob_id in blob_ids:
            tx.claim(blob_id, owner)

    return Op(judge, **op)


def release_blobs(blob_ids: list[bytes], owner: bytes, **op: Any) -> Op[None]:
    """Take claims back."""

    def judge(tx: Transaction) -> None:
        for blob_id in blob_ids:
            tx.release(blob_id, owner)

    return Op(judge, **op)


def delete(bucket: str, key: bytes, version_id: str | None, condition: Condition | None, **op: Any) -> Op[Deleted]:
    """Delete an object, or one version of it. Deleting what is not there succeeds, as in S3."""

    def judge(tx: Transaction) -> Deleted:
        found = tx.bucket(bucket)
        prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key)
        if version_id is not None:
            return _delete_version(tx, prefix, version_id, condition)
        if found.versioning:
            check(condition, tx, prefix)
            marker = new_version(Attributes(), 0)
            written = publish(tx, found, key, marker, flags=DELETE_MARKER)
            return Deleted(written.version_id, True)
        entry = tx.newest(prefix)
        if condition is not None:
            condition(current_of(entry))
        if entry is not None:
            _remove(tx, entry)
        return Deleted(None, False)

    return Op(judge, writes=(name_of(bucket, key),), reads=reads_of(bucket), **op)


def _delete_version(tx: Transaction, prefix: bytes, version_id: str, condition: Condition | None) -> Deleted:
    if version_id != "null" and keyspace.parse_version_id(version_id) is None:
        raise StoreError("InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=version_id)
    entry = tx.by_version_id(prefix, version_id)
    if condition is not None:
        condition(current_of(entry))
    if entry is None:
        return Deleted(version_id, False)
    _remove(tx, entry)
    return Deleted(version_id, entry.is_delete_marker)


def _remove(tx: Transaction, entry: lookup.Entry) -> None:
    tx.mark_deleted(entry)
    tx.reap_later([entry.key], claims_of(entry.version()))


def update(bucket: str, key: bytes, version_id: str | None, change: Callable[[Version], None], **op: Any) -> Op[str | None]:
    """Change the metadata of a version in place; the result is its version id."""

    def judge(tx: Transaction) -> str | None:
        found = tx.bucket(bucket)
        prefix = keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key)
        entry = require(tx.newest(prefix) if version_id is None else tx.by_version_id(prefix, version_id), key, version_id)
        version = entry.version()
        change(version)
        tx.rewrite(entry, version)
        return lookup.Found(found, key, entry, version, version_id is None).version_id

    return Op(judge, writes=(name_of(bucket, key),), reads=reads_of(bucket), **op)


def require(entry: lookup.Entry | None, key: bytes, version_id: str | None) -> lookup.Entry:
    """The entry if it is an object. Raises NoSuchKey, NoSuchVersion or MethodNotAllowed as S3 does for delete markers."""
    if entry is None:
        text = key.decode("utf-8", "replace")
        if version_id is None:
            raise StoreError("NoSuchKey", Key=text)
        raise StoreError("NoSuchVersion", Key=text, VersionId=version_id)
    if entry.is_delete_marker:
        shown = "null" if entry.is_null else keyspace.version_id(entry.seq, entry.version().random)
        headers = {"x-amz-delete-marker": "true", "x-amz-version-id": shown}
        if version_id is None:
            raise StoreError("NoSuchKey", headers=headers, Key=key.decode("utf-8", "replace"))
        headers["last-modified"] = formatdate(entry.version().mtime_ns // 10**9, usegmt=True)
        raise StoreError("MethodNotAllowed", headers={**headers, "allow": "DELETE"}, Method="GET", ResourceType="DeleteMarker")
    return entry


def new_version(
    attributes: Attributes,
    size: int,
    *,
    extents: list[Extent] | None = None,
    parts: list[Part] | None = None,
    inline: bool = False,
    owner: bytes | None = None,
) -> Version:
    """A version that is about to be published."""
    return Version(
        os.urandom(8), owner or os.urandom(16), time.time_ns(), size, attributes.etag, attributes.headers, attributes.metadata,
        attributes.tags, attributes.checksums, attributes.checksum_type, extents or [], parts or [], inline,
        attributes.acl, attributes.user,
    )  # fmt: skip
