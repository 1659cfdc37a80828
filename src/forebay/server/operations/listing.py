"""ListObjects, ListObjectsV2, ListObjectVersions: one page each.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjects.html, API_ListObjectsV2.html,
API_ListObjectVersions.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from forebay.engine.listing import ObjectPage
from forebay.engine.lookup import Found
from forebay.engine.records import Bucket, Version
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.checksums import Algorithm, ChecksumType
from forebay.s3.tokens import decode_token, encode_token
from forebay.server.exchange import Answer
from forebay.server.message import Response
from forebay.server.operations.buckets import bucket_owner
from forebay.server.operations.common import parse_limit, xml
from forebay.server.services import Call, Services

PAGE_ON_LOOP_MAX = 100  # entries; about a millisecond


def list_objects(services: Services, call: Call) -> Answer:
    """Version 1: pages go on after a key or common prefix, the marker."""
    return answer_page(services, call, "max-keys", _list_objects)


def list_objects_v2(services: Services, call: Call) -> Answer:
    """Version 2: pages go on from an opaque token."""
    return answer_page(services, call, "max-keys", _list_objects_v2)


def list_object_versions(services: Services, call: Call) -> Answer:
    """All versions and delete markers, newest first within a key."""
    return answer_page(services, call, "max-keys", _list_object_versions)


def answer_page(services: Services, call: Call, limit_name: str, make: Callable[[Services, Call, Bucket, int], Response]) -> Answer:
    """Have a page made on the loop if it is short, else by a thread. Raises StoreError.

    With versioning, delete markers may make even a short page a long walk.
    """
    bucket = services.engine.bucket(call.bucket)
    limit = parse_limit(call.params, limit_name)
    if limit <= PAGE_ON_LOOP_MAX and not bucket.versioning:
        return make(services, call, bucket, limit)
    return services.in_thread(partial(make, services, call, bucket, limit))


def _list_objects(services: Services, call: Call, bucket: Bucket, limit: int) -> Response:
    params = call.params
    marker = params.get("marker", "")
    page = _object_page(services, bucket, params, marker.encode(), limit)
    is_truncated = page.next_after is not None and limit > 0
    listing = _listing(bucket, params, limit, page.common_prefixes, is_truncated, with_owner=True)
    next_marker = _text(page.next_after) if is_truncated and page.next_after is not None else None
    if not params.get("delimiter"):
        next_marker = None  # S3 gives it with a delimiter only: without one it is the last key
    return xml(documents.list_objects_v1(listing, [_entry(found) for found in page.objects], marker, next_marker))


def _object_page(services: Services, bucket: Bucket, params: Mapping[str, str], after: bytes, limit: int) -> ObjectPage:
    prefix, delimiter = _bytes(params, "prefix"), _bytes(params, "delimiter")
    return services.engine.list_objects(bucket.name, prefix=prefix, delimiter=delimiter, after=after, limit=limit)


def _list_objects_v2(services: Services, call: Call, bucket: Bucket, limit: int) -> Response:
    params = call.params
    token, start_after = params.get("continuation-token"), params.get("start-after")
    after = decode_token(token) if token else start_after or ""
    page = _object_page(services, bucket, params, after.encode(), limit)
    is_truncated = page.next_after is not None and limit > 0
    with_owner = params.get("fetch-owner", "").lower() == "true"
    listing = _listing(bucket, params, limit, page.common_prefixes, is_truncated, with_owner=with_owner)
    next_token = encode_token(_text(page.next_after)) if is_truncated and page.next_after is not None else None
    document = documents.list_objects_v2(
        listing,
        [_entry(found) for found in page.objects],
        continuation_token=token,
        next_token=next_token,
        start_after=start_after,
    )
    return xml(document)


def _list_object_versions(services: Services, call: Call, bucket: Bucket, limit: int) -> Response:
    params = call.params
    key_marker, version_marker = params.get("key-marker", ""), params.get("version-id-marker", "")
    if version_marker and not key_marker:
        raise StoreError(
            "InvalidArgument",
            "A version-id marker cannot be specified without a key marker.",
            ArgumentName="version-id-marker",
            ArgumentValue=version_marker,
        )
    page = services.engine.list_versions(
        bucket.name,
        prefix=_bytes(params, "prefix"),
        delimiter=_bytes(params, "delimiter"),
        key_marker=key_marker.encode(),
        version_marker=version_marker,
        limit=limit,
    )
    next_marker = page.next_marker if limit > 0 else None
    listing = _listing(bucket, params, limit, page.common_prefixes, next_marker is not None, with_owner=True)
    document = documents.list_versions(
        listing,
        [_version_entry(found) for found in page.versions],
        key_marker=key_marker,
        version_id_marker=version_marker,
        next_key_marker=_text(next_marker[0]) if next_marker else None,
        next_version_id_marker=(next_marker[1] or None) if next_marker else None,
    )
    return xml(document)


def encoding_is_url(params: Mapping[str, str]) -> bool:
    """encoding-type. Raises StoreError InvalidArgument for any other value than `url`."""
    value = params.get("encoding-type")
    if value not in (None, "", "url"):
        raise StoreError(
            "InvalidArgument",
            "Invalid Encoding Method specified in Request",
            ArgumentName="encoding-type",
            ArgumentValue=value or "",
        )
    return value == "url"


def _listing(
    bucket: Bucket,
    params: Mapping[str, str],
    limit: int,
    prefixes: list[bytes],
    is_truncated: bool,
    *,
    with_owner: bool,
) -> documents.Listing:
    return documents.Listing(
        bucket=bucket.name,
        prefix=params.get("prefix", ""),
        delimiter=params.get("delimiter") or None,
        max_keys=limit,
        prefixes=[_text(prefix) for prefix in prefixes],
        is_truncated=is_truncated,
        encoding_url=encoding_is_url(params),
        owner=bucket_owner(bucket) if with_owner else None,
    )


def _bytes(params: Mapping[str, str], name: str) -> bytes:
    return params.get(name, "").encode()


def _text(key: bytes) -> str:
    return key.decode()


def _entry(found: Found) -> documents.ObjectEntry:
    version = found.version
    algorithm, kind = shown_checksum_kind(version)
    return documents.ObjectEntry(
        found.key.decode(),
        version.mtime_ns,
        version.etag,
        version.size,
        checksum_algorithm=algorithm,
        checksum_type=kind,
    )


def _version_entry(found: Found) -> documents.VersionEntry:
    version = found.version
    algorithm, kind = shown_checksum_kind(version)
    return documents.VersionEntry(
        found.key.decode(),
        found.version_id or "null",
        found.is_latest,
        found.entry.is_delete_marker,
        version.mtime_ns,
        version.etag,
        version.size,
        checksum_algorithm=algorithm,
        checksum_type=kind,
    )


def shown_checksum_kind(version: Version) -> tuple[Algorithm | None, ChecksumType | None]:
    """Which checksum an object has, as listings show it."""
    for name in version.checksums:
        return _checksum_kind(name, version.checksum_type)
    return None, None


@lru_cache(maxsize=64)
def _checksum_kind(name: str, kind: str) -> tuple[Algorithm, ChecksumType | None]:
    return Algorithm(name), ChecksumType(kind) if kind else None
