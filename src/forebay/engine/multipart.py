"""Requests on multipart uploads.

Each part claims its blobs under an owner name of its own; the version that the upload becomes keeps the parts with those names, so
completing moves neither bytes nor claims. Parts are metadata only, so a commit torn by a crash can always be rolled forward.

States of an upload: (none) → create → open → complete → completed, or → abort → (none). A completed upload leaves a record for
COMPLETED_KEPT_S, so that a complete whose answer was lost can be asked again.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from forebay.engine import keyspace, records
from forebay.engine.committer import Op
from forebay.engine.objects import Attributes, Condition, Written, check, name_of, new_version, publish, reads_of
from forebay.engine.records import Bucket, Completed, Extent, Part, Upload, Version
from forebay.engine.transaction import Transaction
from forebay.engine.writer import WrittenBlob
from forebay.errors import StoreError

PARTS_MAX = 10_000  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
PART_BYTES_MIN = 5 << 20  # every part but the last
COMPLETED_KEPT_S = 24 * 3600

_U64 = struct.Struct(">Q")


class PartChoice(NamedTuple):
    """A part as the client lists it in CompleteMultipartUpload; `etag` without quotes."""

    number: int
    etag: str
    checksums: dict[str, str] = {}  # noqa: RUF012 - never changed


Finish = Callable[[Upload, list[Part]], Attributes]
"""Computes ETag and checksums of the whole from the chosen parts; raises StoreError (BadDigest, InvalidRequest)."""


def upload_name(upload_id: bytes) -> bytes:
    """The name under which requests on an upload clash."""
    return b"U" + upload_id


def upload_key(bucket: Bucket, key: bytes, upload_id: bytes) -> bytes:
    """Index key of an upload."""
    return keyspace.entry_prefix(keyspace.TABLE_UPLOAD, bucket.bucket_id, key) + upload_id


def parse_upload_id(text: str) -> bytes:
    """The 16 bytes of an upload id. Raises NoSuchUpload if it cannot be one."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 16 or raw.hex() != text:
        raise StoreError("NoSuchUpload", UploadId=text)
    return raw


def create(bucket: str, key: bytes, attributes: Attributes, algorithm: str, checksum_type: str, **op: Any) -> Op[Upload]:
    """Begin an upload. Its id starts with the time, so that uploads of a key list in order of initiation."""
    now = time.time_ns()
    upload_id = _U64.pack(now) + os.urandom(8)
    record = Upload(
        upload_id,
        bucket,
        key,
        now,
        attributes.headers,
        attributes.metadata,
        attributes.tags,
        algorithm,
        checksum_type,
        attributes.acl,
        attributes.user,
    )

    def judge(tx: Transaction) -> Upload:
        found = tx.bucket(bucket)
        tx.put(upload_key(found, key, upload_id), record)
        tx.add_pointers(keyspace.TABLE_UPLOAD, found, key)
        return record

    return Op(judge, writes=(upload_name(upload_id),), reads=reads_of(bucket), **op)


def _require_upload(tx: Transaction, bucket: str, key: bytes, upload_id: bytes) -> tuple[Bucket, Upload]:
    found = tx.bucket(bucket)
    upload = tx.get(upload_key(found, key, upload_id), Upload)
    if upload is None:
        raise StoreError("NoSuchUpload", UploadId=upload_id.hex())
    return found, upload


def put_part(
    bucket: str,
    key: bytes,
    upload_id: bytes,
    part: Part,
    blob: WrittenBlob | None,
    claimed_elsewhere: set[int],
    **op: Any,
) -> Op[Part]:
    """Store a part, replacing one of the same number. `blob` is its new blob; without one its extents are claimed (a copied part)."""

    def judge(tx: Transaction) -> Part:
        _require_upload(tx, bucket, key, upload_id)
        part_key = keyspace.part_key(upload_id, part.number)
        old = tx.get(part_key, Part)
        if old is not None:
            tx.reap_later([], part_claims(old))
        if blob is not None:
            tx.add_blob(blob.blob_id, blob.record, blob.missing, part.owner)
        else:
            for set_index, blob_id, owner in part_claims(part):
                if set_index not in claimed_elsewhere:
                    tx.claim(blob_id, owner)
        tx.put(part_key, part)
        return part

    discard = blob.discard if blob is not None else None
    writes = (upload_name(upload_id) + part.number.to_bytes(2, "big"),)
    return Op(judge, writes=writes, reads=(upload_name(upload_id), *reads_of(bucket)), discard=discard, **op)


def part_claims(part: Part) -> list[tuple[int, bytes, bytes]]:
    """Every (set, blob, owner) that a part holds."""
    return [(s, b, part.owner) for s, b in dict.fromkeys((e.set_index, e.blob_id) for e in part.extents)]


def all_parts(tx: Transaction, upload_id: bytes) -> dict[int, Part]:
    """Every part uploaded so far, by number."""
    found = tx.scan(keyspace.TABLE_PART + upload_id, PARTS_MAX)
    return {part.number: part for part in (records.unpack(k, v, Part) for k, v in found)}


def complete(
    bucket: str,
    key: bytes,
    upload_id: bytes,
    choices: Sequence[PartChoice],
    finish: Finish,
    condition: Condition | None,
    **op: Any,
) -> Op[Written]:
    """Make the chosen parts the newest version of the key. Asked again after it succeeded, it answers the same."""

    def judge(tx: Transaction) -> Written:
        found = tx.bucket(bucket)
        upload = tx.get(upload_key(found, key, upload_id), Upload)
        if upload is None:
            return _completed_before(tx, bucket, key, upload_id, choices)
        check(condition, tx, keyspace.entry_prefix(keyspace.TABLE_OBJECT, found.bucket_id, key))
        present = all_parts(tx, upload_id)
        chosen = choose(present, choices)
        attributes = finish(upload, chosen)
        version = _assemble(upload, attributes, chosen)
        written = publish(tx, found, key, version)
        _close(tx, found, upload, present, {part.number for part in chosen})
        etags = [f"{c.number}:{c.etag}" for c in choices]
        record = Completed(
            bucket,
            key,
            written.version_id or "",
            version.etag,
            etags,
            version.checksums,
            version.checksum_type,
            time.time_ns(),
        )
        tx.put(keyspace.TABLE_COMPLETED + upload_id, record)
        return written

    return Op(judge, writes=(upload_name(upload_id), name_of(bucket, key)), reads=reads_of(bucket), **op)


def _completed_before(tx: Transaction, bucket: str, key: bytes, upload_id: bytes, choices: Sequence[PartChoice]) -> Written:
    done = tx.get(keyspace.TABLE_COMPLETED + upload_id, Completed)
    if done is None or (done.bucket, done.key) != (bucket, key) or done.part_etags != [f"{c.number}:{c.etag}" for c in choices]:
        raise StoreError("NoSuchUpload", UploadId=upload_id.hex())
    attributes = Attributes(etag=done.etag, checksums=done.checksums, checksum_type=done.checksum_type)
    return Written(done.version_id or None, new_version(attributes, 0))


def _assemble(upload: Upload, attributes: Attributes, chosen: list[Part]) -> Version:
    """The version: the parts keep the owners under which their blobs are claimed."""
    whole = Attributes(
        attributes.etag,
        upload.headers,
        upload.metadata,
        upload.tags,
        attributes.checksums,
        attributes.checksum_type,
        upload.acl,
        upload.user,
    )
    return new_version(whole, sum(part.size for part in chosen), parts=chosen)


def choose(present: dict[int, Part], choices: Sequence[PartChoice]) -> list[Part]:
    """The parts that a complete asks for. Raises InvalidPartOrder, InvalidPart, EntityTooSmall, InvalidRequest."""
    if not choices:
        raise StoreError("MalformedXML", "A multipart upload is completed with at least one part.")
    if any(a.number >= b.number for a, b in pairwise(choices)):
        raise StoreError("InvalidPartOrder")
    chosen = []
    for i, choice in enumerate(choices):
        part = present.get(choice.number)
        if part is None or part.etag != choice.etag:
            raise StoreError("InvalidPart", PartNumber=str(choice.number), ETag=f'"{choice.etag}"')
        for algorithm, value in choice.checksums.items():
            if part.checksums.get(algorithm, value) != value:
                raise StoreError(
                    "InvalidPart",
                    f"Part {choice.number} has another {algorithm} checksum.",
                    PartNumber=str(choice.number),
                )
        if part.size < PART_BYTES_MIN and i < len(choices) - 1:
            raise StoreError(
                "EntityTooSmall",
                ProposedSize=str(part.size),
                MinSizeAllowed=str(PART_BYTES_MIN),
                PartNumber=str(choice.number),
            )
        chosen.append(part)
    return chosen


def _close(tx: Transaction, bucket: Bucket, upload: Upload, present: dict[int, Part], used: set[int]) -> None:
    """The upload is over: its records go, and the claims of the parts that were not used."""
    tx.remove(upload_key(bucket, upload.key, upload.upload_id))
    for number in present:
        tx.remove(keyspace.part_key(upload.upload_id, number))
    unused = [claim for number, part in present.items() if number not in used for claim in part_claims(part)]
    if unused:
        tx.reap_later([], unused)


def abort(bucket: str, key: bytes, upload_id: bytes, **op: Any) -> Op[None]:
    """Drop an upload and its parts. Raises NoSuchUpload."""

    def judge(tx: Transaction) -> None:
        found, upload = _require_upload(tx, bucket, key, upload_id)
        _close(tx, found, upload, all_parts(tx, upload_id), set())

    return Op(judge, writes=(upload_name(upload_id),), reads=reads_of(bucket), **op)


def drop(index_key: bytes, upload: Upload, **op: Any) -> Op[None]:
    """Drop an upload that nobody will complete, whether its bucket still exists or not; nothing if it is gone."""

    def judge(tx: Transaction) -> None:
        if tx.get_raw(index_key) is not None:
            tx.remove(index_key)
            _drop_parts(tx, all_parts(tx, upload.upload_id), upload.upload_id)

    return Op(judge, writes=(upload_name(upload.upload_id),), **op)


def drop_parts(upload_id: bytes, **op: Any) -> Op[None]:
    """Drop parts whose upload is gone."""

    def judge(tx: Transaction) -> None:
        _drop_parts(tx, all_parts(tx, upload_id), upload_id)

    return Op(judge, writes=(upload_name(upload_id),), **op)


def _drop_parts(tx: Transaction, present: dict[int, Part], upload_id: bytes) -> None:
    for number in present:
        tx.remove(keyspace.part_key(upload_id, number))
    if present:
        tx.reap_later([], [claim for part in present.values() for claim in part_claims(part)])


def extents_of(version: Version) -> list[Extent]:
    """Where the bytes of a version lie, in order."""
    return [*version.extents, *(e for part in version.parts for e in part.extents)]
