"""What the index holds: the records, and the frame that makes each one prove itself.

Frame of every value (little-endian; the numbers are pinned by tests/engine/test_records.py)::

    offset  size  field        what it defeats
    0       1     kind         a record read as another kind
    1       1     format       a record of a newer Forebay, which is refused, never guessed at
    2       1     shard        the shard position that this drive holds (255: none)
    3       1     flags        1: changed in place, the struct says when and what it was before
    4       4     meta bytes   a truncated record
    8       8     deleted seq  0, or the commit that deleted this version
    16      m     meta         msgpack of one of the structs below
    16+m    s     shard        this drive's share of an inline object
    end-8   8     checksum     CRC64NVME of the key, then of all before this field: torn, flipped and misplaced records

The structs are arrays in msgpack: a field is only ever added at the end, with a default.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import msgspec

from forebay.codec import crc64nvme

FORMAT_WRITTEN = 1
FORMATS_READ = frozenset({1})

KIND_BUCKET, KIND_VERSION, KIND_POINTER, KIND_UPLOAD, KIND_PART, KIND_COMPLETED, KIND_BLOB, KIND_REAP, KIND_LOG = range(1, 10)

NO_SHARD = 255
_HEAD = struct.Struct("<BBBBIQ")
HEAD_BYTES = _HEAD.size
_SUM = struct.Struct("<Q")

NULL_VERSION, DELETE_MARKER = 1, 2  # flags of a version, also the last byte of its index key


class Extent(msgspec.Struct, array_like=True, frozen=True):
    """`length` bytes of a blob from `offset`; the blob lies on erasure set `set_index`."""

    set_index: int
    blob_id: bytes
    offset: int
    length: int


class Part(msgspec.Struct, array_like=True):
    """One part of a multipart upload, or of the version it became. `checksums` maps algorithm to base64."""

    number: int
    size: int
    etag: str
    mtime_ns: int
    extents: list[Extent]
    checksums: dict[str, str] = {}
    owner: bytes = b""  # the name under which it claims its blobs, in the upload and in the version that it becomes


class Version(msgspec.Struct, array_like=True):
    """One state of a key. `etag` is without quotes. `owner` (16 bytes) is the name under which it claims blobs."""

    random: bytes  # 8 bytes; with the sequence number it makes the version id
    owner: bytes
    mtime_ns: int
    size: int
    etag: str
    headers: dict[str, str] = {}  # Content-Type, Cache-Control, …: lower-case names, as sent
    metadata: dict[str, str] = {}  # x-amz-meta-*, without that prefix
    tags: dict[str, str] = {}
    checksums: dict[str, str] = {}  # algorithm -> base64, "-N" appended for composite ones
    checksum_type: str = ""  # FULL_OBJECT, COMPOSITE or ""
    extents: list[Extent] = []  # of a single-part object in blobs
    parts: list[Part] = []  # of a multipart object
    inline: bool = False
    acl: bytes = b""  # as the room above encodes it; b"": private to its owner
    user: str = ""  # who wrote it; "": the bucket's owner
    changed_seq: int = 0  # the commit that last changed this record in place; until it is published, `before` counts
    before: bytes = b""  # the encoded struct before that


class Bucket(msgspec.Struct, array_like=True):
    """A bucket. `versioning` is "", "Enabled" or "Suspended"; "" means that it was never enabled.

    A deleted bucket leaves its record, `removed`, so that readers know until when it existed.
    """

    name: str
    bucket_id: bytes
    created_ns: int
    versioning: str = ""
    owner: str = ""
    config: dict[str, bytes] = {}  # sub-resources, by name
    changed_seq: int = 0  # the commit that last made, changed or removed it; until it is published, `before` counts
    before: bytes = b""  # the encoded struct before that; empty if there was none
    removed: bool = False


class Upload(msgspec.Struct, array_like=True):
    """A multipart upload under way."""

    upload_id: bytes
    bucket: str
    key: bytes
    created_ns: int
    headers: dict[str, str] = {}
    metadata: dict[str, str] = {}
    tags: dict[str, str] = {}
    checksum_algorithm: str = ""
    checksum_type: str = ""
    acl: bytes = b""
    user: str = ""


class Completed(msgspec.Struct, array_like=True):
    """What an upload became, so that a retried complete finds its answer."""

    bucket: str
    key: bytes
    version_id: str
    etag: str
    part_etags: list[str]
    checksums: dict[str, str]
    checksum_type: str
    completed_ns: int


class Blob(msgspec.Struct, array_like=True):
    """Geometry and checksums of a blob; `crcs` holds 8 bytes (little-endian) for each block, stripe by stripe, position by position."""

    size: int
    data: int
    parity: int
    unit_bytes: int
    crcs: bytes
    created_ns: int


class Reap(msgspec.Struct, array_like=True):
    """Work left by a commit for a later one: keys to remove, and (set, blob, owner) claims to release."""

    keys: list[bytes]
    claims: list[tuple[int, bytes, bytes]] = []


class Pointer(msgspec.Struct, array_like=True):
    """Longer keys that start with this entry's segment live under `node`."""

    node: bytes


class Log(msgspec.Struct, array_like=True):
    """The history of a set: what one commit changed. The newest log record on a drive says how far its index has come."""

    keys: list[bytes]  # everything that was changed since commit `previous`
    random: bytes = b""
    previous: int = 0  # the newest commit that was published when this one was made
    ordinal: int = 0  # counts the published commits: numbers have gaps
    members: list[int] = []  # drive positions: the commit counts once all of these have it


STRUCT_OF_KIND: dict[int, type[msgspec.Struct]] = {
    KIND_BUCKET: Bucket, KIND_VERSION: Version, KIND_POINTER: Pointer, KIND_UPLOAD: Upload, KIND_PART: Part,
    KIND_COMPLETED: Completed, KIND_BLOB: Blob, KIND_REAP: Reap, KIND_LOG: Log,
}  # fmt: skip
_KIND_OF_STRUCT = {struct_type: kind for kind, struct_type in STRUCT_OF_KIND.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {kind: msgspec.msgpack.Decoder(t) for kind, t in STRUCT_OF_KIND.items()}
encode = msgspec.msgpack.Encoder().encode

S = TypeVar("S", bound=msgspec.Struct)


class BadRecord(Exception):  # noqa: N818 - a state of a record, not of the program
    """A value that is torn, damaged, misplaced or of an unknown format. Its drive is not to be believed about `key`."""

    def __init__(self, key: bytes, message: str) -> None:
        super().__init__(f"{message} (key {key!r})")
        self.key = key


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A value taken apart. `shard` and `meta` are views into the value."""

    kind: int
    shard_position: int
    deleted_seq: int
    meta: memoryview
    shard: memoryview
    changed: bool = False  # in place: the struct has `changed_seq` and `before`


def pack(key: bytes, record: msgspec.Struct) -> bytes:
    """The value to store under `key`, the same on every drive."""
    return frame(key, _KIND_OF_STRUCT[type(record)], encode(record))


def pack_shards(key: bytes, record: msgspec.Struct, shards: list[bytes], deleted_seq: int = 0) -> list[bytes]:
    """One value for each shard position."""
    kind, meta = _KIND_OF_STRUCT[type(record)], encode(record)
    return [frame(key, kind, meta, i, shard, deleted_seq) for i, shard in enumerate(shards)]


def frame(
    key: bytes,
    kind: int,
    meta: bytes | memoryview,
    position: int = NO_SHARD,
    shard: bytes | memoryview = b"",
    deleted_seq: int = 0,
    changed: bool = False,
) -> bytes:
    """Put a value together and seal it."""
    body = b"".join((_HEAD.pack(kind, FORMAT_WRITTEN, position, changed, len(meta), deleted_seq), meta, shard))
    return body + _SUM.pack(crc64nvme(body, crc64nvme(key)))


def unframe(key: bytes, value: bytes | memoryview) -> Frame:
    """Take a value apart after checking it; raises BadRecord."""
    view = memoryview(value)
    end = len(view) - 8
    if end < HEAD_BYTES:
        raise BadRecord(key, f"a value of {len(view)} bytes is too short to be a record")
    kind, form, position, flags, meta_bytes, deleted_seq = _HEAD.unpack_from(view)
    if form not in FORMATS_READ:
        raise BadRecord(key, f"record format {form} is not one that this version of Forebay reads ({sorted(FORMATS_READ)})")
    if crc64nvme(view[:end], crc64nvme(key)) != _SUM.unpack_from(view, end)[0]:
        raise BadRecord(key, "checksum mismatch")
    split = HEAD_BYTES + meta_bytes
    if kind not in STRUCT_OF_KIND or split > end:
        raise BadRecord(key, f"record of kind {kind} with {meta_bytes} bytes of metadata in {end} bytes")
    return Frame(kind, position, deleted_seq, view[HEAD_BYTES:split], view[split:end], bool(flags & 1))


def mark_deleted(key: bytes, value: bytes | memoryview, deleted_seq: int) -> bytes:
    """The same record, deleted by commit `deleted_seq` (0 takes the mark away)."""
    f = unframe(key, value)
    return frame(key, f.kind, f.meta, f.shard_position, f.shard, deleted_seq, f.changed)


def decode(key: bytes, f: Frame, struct_type: type[S]) -> S:
    """The struct in a frame; raises BadRecord if it is another kind or does not decode."""
    if _KIND_OF_STRUCT[struct_type] != f.kind:
        raise BadRecord(key, f"expected a {struct_type.__name__}, found kind {f.kind}")
    try:
        return _DECODERS[f.kind].decode(f.meta)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as e:
        raise BadRecord(key, f"{struct_type.__name__} does not decode: {e}") from e


def as_of(key: bytes, f: Frame, published: int) -> Frame:
    """A version's frame as it was when `published` was the newest commit: without a change in place that came later."""
    if not f.changed:
        return f
    version = decode(key, f, Version)
    return f if version.changed_seq <= published else msgspec.structs.replace(f, meta=memoryview(version.before), changed=False)


def bucket_as_of(key: bytes, value: bytes | memoryview, published: int) -> Bucket | None:
    """The bucket that a record told of when `published` was the newest commit; None if there was none."""
    record: Bucket | None = unpack(key, value, Bucket)
    if record is not None and record.changed_seq > published:
        record = _DECODERS[KIND_BUCKET].decode(record.before) if record.before else None
    return None if record is None or record.removed else record


def before_of(record: Version | Bucket) -> bytes:
    """What to keep as `before` of the record that replaces this one."""
    return encode(msgspec.structs.replace(record, changed_seq=0, before=b""))


def unpack(key: bytes, value: bytes | memoryview, struct_type: type[S]) -> S:
    """`decode(key, unframe(key, value))`."""
    return decode(key, unframe(key, value), struct_type)
