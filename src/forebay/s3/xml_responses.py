"""The XML documents that the server answers with: one writer each, of the tuples defined here.

Times are Unix ns; ETags come without quotes. What XML 1.0 cannot hold (control characters in keys) is written as
character references, as S3 does; clients that ask for `encoding-type=url` get keys percent-encoded instead.
Listings of a thousand keys are frequent, so their entries are formatted in one go and not field by field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from forebay.s3.checksums import Algorithm, Checksum, ChecksumType
from forebay.s3.names import iso_time

_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
# XML 1.0 section 2.2: none of these may stand in a document, and a parser would change CR, LF and TAB.
_NO_CHARS = {code: f"&#x{code:X};" for code in (*range(0x20), 0xFFFE, 0xFFFF)}


def _escape(text: str) -> str:
    """Text between tags."""
    if "&" in text:
        text = text.replace("&", "&amp;")
    if "<" in text:
        text = text.replace("<", "&lt;")
    if ">" in text:
        text = text.replace(">", "&gt;")
    return text if text.isprintable() else text.translate(_NO_CHARS)


def _document(name: str, *content: str, namespace: str = _NAMESPACE) -> bytes:
    return f"{_DECLARATION}<{name}{namespace}>{''.join(content)}</{name}>".encode()


def _field(name: str, value: str | int | bool | None) -> str:
    """An element with text; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"<{name}>{_escape(value)}</{name}>"
    return f"<{name}>{str(value).lower()}</{name}>"


def _owner(owner: Owner | None, name: str = "Owner") -> str:
    if owner is None:
        return ""
    return f"<{name}>{_field('ID', owner.id)}{_field('DisplayName', owner.display_name)}</{name}>"


def _checksum(checksum: Checksum | None, with_type: bool = True) -> str:
    if checksum is None:
        return ""
    kind = _field("ChecksumType", checksum.type) if with_type else ""
    return _field(checksum.element, checksum.text) + kind


def _url(text: str) -> str:
    return quote(text, safe="/~")


class Owner(NamedTuple):
    """Who owns buckets, objects and uploads."""

    id: str
    display_name: str


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
    """ListAllMyBucketsResult. `region` is written with each bucket if given."""
    entries = "".join(
        f"<Bucket>{_field('Name', bucket.name)}{_field('CreationDate', iso_time(bucket.created_ns))}"
        f"{_field('BucketRegion', region)}</Bucket>"
        for bucket in buckets
    )
    return _document(
        "ListAllMyBucketsResult",
        _owner(owner),
        f"<Buckets>{entries}</Buckets>",
        _field("Prefix", prefix),
        _field("ContinuationToken", next_token),
    )


class ObjectEntry(msgspec.Struct, frozen=True, gc=False):
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
    owner: Owner | None  # written with each object if given


def _listing(name: str, listing: Listing, *fields: str, entries: str) -> bytes:
    """`fields` are those of the kind of listing; they stand between the common ones and the entries."""
    coded = _url if listing.encoding_url else str
    prefixes = "".join(f"<CommonPrefixes>{_field('Prefix', coded(prefix))}</CommonPrefixes>" for prefix in listing.prefixes)
    return _document(
        name,
        _field("Name", listing.bucket),
        _field("Prefix", coded(listing.prefix)),
        *fields,
        _field("MaxKeys", listing.max_keys),
        _field("Delimiter", coded(listing.delimiter) if listing.delimiter else None),
        _field("EncodingType", "url" if listing.encoding_url else None),
        _field("IsTruncated", listing.is_truncated),
        entries,
        prefixes,
    )


def _coded(text: str | None, listing: Listing) -> str | None:
    return _url(text) if text is not None and listing.encoding_url else text


def _contents(listing: Listing, objects: Sequence[ObjectEntry]) -> str:
    coded = _url if listing.encoding_url else _escape
    owner = _owner(listing.owner)
    return "".join(
        [
            f"<Contents><Key>{coded(entry.key)}</Key><LastModified>{iso_time(entry.mtime_ns)}</LastModified>"
            f"<ETag>&quot;{entry.etag}&quot;</ETag>{_checksum_kind(entry)}<Size>{entry.size_bytes}</Size>{owner}"
            f"<StorageClass>{entry.storage_class}</StorageClass></Contents>"
            for entry in objects
        ]
    )


def list_objects_v1(listing: Listing, objects: Sequence[ObjectEntry], marker: str, next_marker: str | None) -> bytes:
    """ListBucketResult of ListObjects."""
    return _listing(
        "ListBucketResult",
        listing,
        _field("Marker", _coded(marker, listing)),
        _field("NextMarker", _coded(next_marker, listing)),
        entries=_contents(listing, objects),
    )


def list_objects_v2(
    listing: Listing,
    objects: Sequence[ObjectEntry],
    *,
    continuation_token: str | None,
    next_token: str | None,
    start_after: str | None,
) -> bytes:
    """ListBucketResult of ListObjectsV2."""
    return _listing(
        "ListBucketResult",
        listing,
        _field("ContinuationToken", continuation_token),
        _field("NextContinuationToken", next_token),
        _field("StartAfter", _coded(start_after, listing)),
        _field("KeyCount", len(objects) + len(listing.prefixes)),
        entries=_contents(listing, objects),
    )


class VersionEntry(msgspec.Struct, frozen=True, gc=False):
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


def _checksum_kind(entry: ObjectEntry | VersionEntry | UploadEntry) -> str:
    return "" if entry.checksum_algorithm is None else _kind_fields(entry.checksum_algorithm, entry.checksum_type)


@lru_cache(maxsize=64)
def _kind_fields(algorithm: Algorithm, kind: ChecksumType | None) -> str:
    return _field("ChecksumAlgorithm", algorithm) + _field("ChecksumType", kind)


def list_versions(
    listing: Listing,
    versions: Sequence[VersionEntry],
    *,
    key_marker: str,
    version_id_marker: str,
    next_key_marker: str | None,
    next_version_id_marker: str | None,
) -> bytes:
    """ListVersionsResult; versions and delete markers stand in the order given."""
    return _listing(
        "ListVersionsResult",
        listing,
        _field("KeyMarker", _coded(key_marker, listing)),
        _field("VersionIdMarker", version_id_marker),
        _field("NextKeyMarker", _coded(next_key_marker, listing)),
        _field("NextVersionIdMarker", next_version_id_marker),
        entries="".join([_version(entry, listing) for entry in versions]),
    )


def _version(entry: VersionEntry, listing: Listing) -> str:
    coded = _url if listing.encoding_url else _escape
    common = (
        f"<Key>{coded(entry.key)}</Key><VersionId>{entry.version_id}</VersionId>{_field('IsLatest', entry.is_latest)}"
        f"<LastModified>{iso_time(entry.mtime_ns)}</LastModified>{_owner(listing.owner)}"
    )
    if entry.is_delete_marker:
        return f"<DeleteMarker>{common}</DeleteMarker>"
    return (
        f"<Version>{common}<ETag>&quot;{entry.etag}&quot;</ETag>{_checksum_kind(entry)}<Size>{entry.size_bytes}</Size>"
        f"<StorageClass>{entry.storage_class}</StorageClass></Version>"
    )


class PartEntry(NamedTuple):
    """A part of ListParts and GetObjectAttributes."""

    number: int
    mtime_ns: int
    etag: str
    size_bytes: int
    checksum: Checksum | None = None


class PartsPage(NamedTuple):
    """A page of parts: which it is, and what it says about the next."""

    parts: Sequence[PartEntry]
    part_number_marker: int
    next_part_number_marker: int
    max_parts: int
    is_truncated: bool


def _parts_page(page: PartsPage) -> str:
    return (
        _field("PartNumberMarker", page.part_number_marker)
        + _field("NextPartNumberMarker", page.next_part_number_marker)
        + _field("MaxParts", page.max_parts)
        + _field("IsTruncated", page.is_truncated)
    )


class UploadEntry(NamedTuple):
    """A multipart upload: of ListMultipartUploads, and the one that ListParts lists."""

    key: str
    upload_id: str
    initiated_ns: int
    storage_class: str = "STANDARD"
    checksum_algorithm: Algorithm | None = None
    checksum_type: ChecksumType | None = None
    owner: Owner | None = None  # if it is another than the bucket's


def list_parts(bucket: str, upload: UploadEntry, owner: Owner, page: PartsPage) -> bytes:
    """ListPartsResult."""
    parts = "".join(
        [
            f"<Part><PartNumber>{part.number}</PartNumber><LastModified>{iso_time(part.mtime_ns)}</LastModified>"
            f"<ETag>&quot;{part.etag}&quot;</ETag><Size>{part.size_bytes}</Size>"
            f"{_checksum(part.checksum, with_type=False)}</Part>"
            for part in page.parts
        ]
    )
    return _document(
        "ListPartsResult",
        _field("Bucket", bucket),
        _field("Key", upload.key),
        _field("UploadId", upload.upload_id),
        _owner(owner, "Initiator"),
        _owner(owner),
        _field("StorageClass", upload.storage_class),
        _parts_page(page),
        _checksum_kind(upload),
        parts,
    )


class UploadsPage(NamedTuple):
    """A page of multipart uploads: what was asked for, what was found, where the next begins."""

    uploads: Sequence[UploadEntry]
    prefix: str
    delimiter: str | None
    prefixes: Sequence[str]
    key_marker: str
    upload_id_marker: str
    next_key_marker: str | None
    next_upload_id_marker: str | None
    max_uploads: int
    is_truncated: bool
    encoding_url: bool


def list_multipart_uploads(bucket: str, owner: Owner, page: UploadsPage) -> bytes:
    """ListMultipartUploadsResult."""
    coded = _url if page.encoding_url else str
    uploads = "".join(
        f"<Upload>{_field('Key', coded(upload.key))}{_field('UploadId', upload.upload_id)}"
        f"{_owner(upload.owner or owner, 'Initiator')}{_owner(upload.owner or owner)}"
        f"{_field('StorageClass', upload.storage_class)}{_field('Initiated', iso_time(upload.initiated_ns))}"
        f"{_checksum_kind(upload)}</Upload>"
        for upload in page.uploads
    )
    prefixes = "".join(f"<CommonPrefixes>{_field('Prefix', coded(prefix))}</CommonPrefixes>" for prefix in page.prefixes)
    return _document(
        "ListMultipartUploadsResult",
        _field("Bucket", bucket),
        _field("KeyMarker", coded(page.key_marker)),
        _field("UploadIdMarker", page.upload_id_marker),
        _field("NextKeyMarker", None if page.next_key_marker is None else coded(page.next_key_marker)),
        _field("NextUploadIdMarker", page.next_upload_id_marker),
        _field("Prefix", coded(page.prefix)),
        _field("Delimiter", coded(page.delimiter) if page.delimiter else None),
        _field("EncodingType", "url" if page.encoding_url else None),
        _field("MaxUploads", page.max_uploads),
        _field("IsTruncated", page.is_truncated),
        uploads,
        prefixes,
    )


def initiate_multipart(bucket: str, key: str, upload_id: str) -> bytes:
    """InitiateMultipartUploadResult."""
    return _document("InitiateMultipartUploadResult", _field("Bucket", bucket), _field("Key", key), _field("UploadId", upload_id))


def complete_multipart(location: str, bucket: str, key: str, etag: str, checksum: Checksum | None) -> bytes:
    """CompleteMultipartUploadResult."""
    return _document(
        "CompleteMultipartUploadResult",
        _field("Location", location),
        _field("Bucket", bucket),
        _field("Key", key),
        _field("ETag", f'"{etag}"'),
        _checksum(checksum),
    )


def copy_object(etag: str, mtime_ns: int, checksum: Checksum | None) -> bytes:
    """CopyObjectResult."""
    return _copy("CopyObjectResult", etag, mtime_ns, _checksum(checksum))


def copy_part(etag: str, mtime_ns: int, checksum: Checksum | None) -> bytes:
    """CopyPartResult."""
    return _copy("CopyPartResult", etag, mtime_ns, _checksum(checksum, with_type=False))


def _copy(name: str, etag: str, mtime_ns: int, checksum: str) -> bytes:
    return _document(name, _field("LastModified", iso_time(mtime_ns)), _field("ETag", f'"{etag}"'), checksum)


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
    return _document("DeleteResult", *(_deletion(result, quiet) for result in results))


def _deletion(result: Deleted | DeleteFailed, quiet: bool) -> str:
    what = _field("Key", result.key) + _field("VersionId", result.version_id)
    if isinstance(result, DeleteFailed):
        return f"<Error>{what}{_field('Code', result.code)}{_field('Message', result.message)}</Error>"
    if quiet:
        return ""
    marker = ""
    if result.delete_marker_version_id is not None:
        marker = _field("DeleteMarker", True) + _field("DeleteMarkerVersionId", result.delete_marker_version_id)
    return f"<Deleted>{what}{marker}</Deleted>"


def object_attributes(
    *,
    etag: str | None = None,
    checksum: Checksum | None = None,
    size_bytes: int | None = None,
    storage_class: str | None = None,
    part_count: int | None = None,
    page: PartsPage | None = None,
) -> bytes:
    """GetObjectAttributesResponse: only what was asked for (not None).

    `part_count` for multipart objects; `page`, the parts asked for, beside it.
    """
    parts = ""
    if part_count is not None:
        entries = ""
        if page is not None:
            entries = _parts_page(page) + "".join(
                f"<Part>{_field('PartNumber', part.number)}{_field('Size', part.size_bytes)}"
                f"{_checksum(part.checksum, with_type=False)}</Part>"
                for part in page.parts
            )
        parts = f"<ObjectParts>{_field('PartsCount', part_count)}{entries}</ObjectParts>"
    return _document(
        "GetObjectAttributesResponse",
        _field("ETag", etag),
        f"<Checksum>{_checksum(checksum)}</Checksum>" if checksum else "",
        parts,
        _field("StorageClass", storage_class),
        _field("ObjectSize", size_bytes),
    )


def location(region: str) -> bytes:
    """LocationConstraint; empty for us-east-1, as S3 has it."""
    return _document("LocationConstraint", "" if region == "us-east-1" else _escape(region))


def versioning(status: str | None) -> bytes:
    """VersioningConfiguration; empty if versioning was never set."""
    return _document("VersioningConfiguration", _field("Status", status))


def tagging(tags: Sequence[tuple[str, str]]) -> bytes:
    """Tagging."""
    entries = "".join(f"<Tag>{_field('Key', name)}{_field('Value', value)}</Tag>" for name, value in tags)
    return _document("Tagging", f"<TagSet>{entries}</TagSet>")


def public_access_block(settings: Mapping[str, bool]) -> bytes:
    """PublicAccessBlockConfiguration."""
    return _document("PublicAccessBlockConfiguration", *(_field(name, value) for name, value in settings.items()))


def access_control_policy(owner: Owner, grants: Sequence[tuple[str, str | None, str]]) -> bytes:
    """AccessControlPolicy; each grant is (id, display name, permission), or (URI, None, permission) for a group."""
    entries = "".join(f"<Grant>{_grantee(who, name)}{_field('Permission', permission)}</Grant>" for who, name, permission in grants)
    return _document("AccessControlPolicy", _owner(owner), f"<AccessControlList>{entries}</AccessControlList>")


def _grantee(who: str, name: str | None) -> str:
    kind = "Group" if name is None else "CanonicalUser"
    fields = _field("URI", who) if name is None else _field("ID", who) + _field("DisplayName", name)
    return f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="{kind}">{fields}</Grantee>'


def error(fields: Sequence[tuple[str, str]]) -> bytes:
    """Error, with the elements given in order. Names that are no XML names are left out."""
    return _document("Error", *(_field(name, value) for name, value in fields if name.isidentifier()), namespace="")
