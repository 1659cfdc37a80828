"""S3's documents: a safe parser for those that clients send, writers for those that the server answers.

Parsing refuses DTDs, entities, deep nesting, and long documents, with MalformedXML. Writers take the tuples defined here.
Times are Unix ns; ETags come without quotes. Text that XML 1.0 cannot hold (control characters in keys) is written as character references, as AWS does;
clients that ask for `encoding-type=url` get it percent-encoded instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forebay.s3.checksums import Algorithm, Checksum, ChecksumType

DELETE_BYTES_MAX = 2 * 1024 * 1024
COMPLETE_BYTES_MAX = 2 * 1024 * 1024
SMALL_DOCUMENT_BYTES_MAX = 64 * 1024


class Owner(NamedTuple):
    """Who owns buckets, objects and uploads."""

    id: str
    display_name: str


# --- what clients send


class CompletedPart(NamedTuple):
    """One part of CompleteMultipartUpload."""

    number: int
    etag: str
    checksum: Checksum | None


def parse_complete_multipart(body: bytes) -> list[CompletedPart]:
    """Parts in the document's order. Raises StoreError: MalformedXML, InvalidRequest, InvalidPartOrder, InvalidArgument."""
    raise NotImplementedError


class ObjectToDelete(NamedTuple):
    """One entry of DeleteObjects, with its conditions."""

    key: str
    version_id: str | None
    if_match: str | None = None
    if_match_size_bytes: int | None = None
    if_match_mtime_s: int | None = None


class DeleteRequest(NamedTuple):
    """DeleteObjects' document."""

    objects: list[ObjectToDelete]
    quiet: bool


def parse_delete(body: bytes) -> DeleteRequest:
    """1 … 1,000 objects. Raises StoreError MalformedXML. Keys over the limit are not refused here: they fail one by one."""
    raise NotImplementedError


def parse_create_bucket(body: bytes) -> str | None:
    """LocationConstraint, or None (an empty body too). Raises StoreError MalformedXML."""
    raise NotImplementedError


def parse_versioning(body: bytes) -> str:
    """`Enabled` or `Suspended`. Raises StoreError: MalformedXML, NotImplemented (MFA delete)."""
    raise NotImplementedError


def parse_tagging(body: bytes) -> list[tuple[str, str]]:
    """Tags in order, checked. Raises StoreError: MalformedXML, InvalidTag, BadRequest."""
    raise NotImplementedError


# --- what the server answers


class BucketEntry(NamedTuple):
    """A bucket of ListBuckets."""

    name: str
    created_ns: int


def list_buckets(
    owner: Owner,
    buckets: Sequence[BucketEntry],
    *,
    prefix: str | None = None,
    next_token: str | None = None,
    region: str | None = None,
) -> bytes:
    """ListAllMyBucketsResult."""
    raise NotImplementedError


class ObjectEntry(NamedTuple):
    """An object of a listing."""

    key: str
    mtime_ns: int
    etag: str
    size_bytes: int
    storage_class: str = "STANDARD"
    checksum_algorithm: Algorithm | None = None
    checksum_type: ChecksumType | None = None


class Listing(NamedTuple):
    """What V1, V2 and version listings have in common. `prefixes` are sorted, decoded common prefixes."""

    bucket: str
    prefix: str
    delimiter: str | None
    max_keys: int
    prefixes: Sequence[str]
    is_truncated: bool
    encoding_url: bool
    owner: Owner | None  # written if given


def list_objects_v1(listing: Listing, objects: Sequence[ObjectEntry], marker: str, next_marker: str | None) -> bytes:
    """ListBucketResult of ListObjects."""
    raise NotImplementedError


def list_objects_v2(
    listing: Listing,
    objects: Sequence[ObjectEntry],
    *,
    continuation_token: str | None,
    next_token: str | None,
    start_after: str | None,
) -> bytes:
    """ListBucketResult of ListObjectsV2."""
    raise NotImplementedError


class VersionEntry(NamedTuple):
    """A version or delete marker of ListObjectVersions; `etag` and `size_bytes` are unused for markers."""

    key: str
    version_id: str
    is_latest: bool
    is_delete_marker: bool
    mtime_ns: int
    etag: str = ""
    size_bytes: int = 0
    storage_class: str = "STANDARD"
    checksum_algorithm: Algorithm | None = None
    checksum_type: ChecksumType | None = None


def list_versions(
    listing: Listing,
    versions: Sequence[VersionEntry],
    *,
    key_marker: str,
    version_id_marker: str,
    next_key_marker: str | None,
    next_version_id_marker: str | None,
) -> bytes:
    """ListVersionsResult."""
    raise NotImplementedError


class PartEntry(NamedTuple):
    """A part of ListParts and GetObjectAttributes."""

    number: int
    mtime_ns: int
    etag: str
    size_bytes: int
    checksum: Checksum | None = None


def list_parts(
    bucket: str,
    key: str,
    upload_id: str,
    owner: Owner,
    parts: Sequence[PartEntry],
    *,
    part_number_marker: int,
    next_part_number_marker: int,
    max_parts: int,
    is_truncated: bool,
    encoding_url: bool = False,
    storage_class: str = "STANDARD",
    checksum_algorithm: Algorithm | None = None,
    checksum_type: ChecksumType | None = None,
) -> bytes:
    """ListPartsResult."""
    raise NotImplementedError


class UploadEntry(NamedTuple):
    """An upload of ListMultipartUploads."""

    key: str
    upload_id: str
    initiated_ns: int
    storage_class: str = "STANDARD"
    checksum_algorithm: Algorithm | None = None
    checksum_type: ChecksumType | None = None


def list_multipart_uploads(
    bucket: str,
    owner: Owner,
    uploads: Sequence[UploadEntry],
    *,
    prefix: str,
    delimiter: str | None,
    prefixes: Sequence[str],
    key_marker: str,
    upload_id_marker: str,
    next_key_marker: str | None,
    next_upload_id_marker: str | None,
    max_uploads: int,
    is_truncated: bool,
    encoding_url: bool,
) -> bytes:
    """ListMultipartUploadsResult."""
    raise NotImplementedError


def initiate_multipart(bucket: str, key: str, upload_id: str) -> bytes:
    """InitiateMultipartUploadResult."""
    raise NotImplementedError


def complete_multipart(location: str, bucket: str, key: str, etag: str, checksum: Checksum | None) -> bytes:
    """CompleteMultipartUploadResult."""
    raise NotImplementedError


def copy_object(etag: str, mtime_ns: int, checksum: Checksum | None) -> bytes:
    """CopyObjectResult."""
    raise NotImplementedError


def copy_part(etag: str, mtime_ns: int, checksum: Checksum | None) -> bytes:
    """CopyPartResult."""
    raise NotImplementedError


class Deleted(NamedTuple):
    """One success of DeleteObjects."""

    key: str
    version_id: str | None = None
    delete_marker_version_id: str | None = None  # set if a marker was created or removed


class DeleteFailed(NamedTuple):
    """One failure of DeleteObjects."""

    key: str
    version_id: str | None
    code: str
    message: str


def delete_result(results: Sequence[Deleted | DeleteFailed], quiet: bool) -> bytes:
    """DeleteResult; `quiet` leaves the successes out."""
    raise NotImplementedError


def object_attributes(
    *,
    etag: str | None = None,
    checksum: Checksum | None = None,
    size_bytes: int | None = None,
    storage_class: str | None = None,
    part_count: int | None = None,
    parts: Sequence[PartEntry] | None = None,
    part_number_marker: int = 0,
    next_part_number_marker: int = 0,
    max_parts: int = 1000,
    is_truncated: bool = False,
) -> bytes:
    """GetObjectAttributesResponse: only what was asked for (not None). `part_count` for multipart objects; `parts` where parts have checksums."""
    raise NotImplementedError


def location(region: str) -> bytes:
    """LocationConstraint; empty for us-east-1, as S3 has it."""
    raise NotImplementedError


def versioning(status: str | None) -> bytes:
    """VersioningConfiguration; empty if versioning was never set."""
    raise NotImplementedError


def tagging(tags: Sequence[tuple[str, str]]) -> bytes:
    """Tagging."""
    raise NotImplementedError


def error(fields: Sequence[tuple[str, str]]) -> bytes:
    """Error, with the elements given in order."""
    raise NotImplementedError
