"""CopyObject and UploadPartCopy: new references to bytes that are already stored.

The bytes are read only where a checksum is asked for that is not known yet.
Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html, API_UploadPartCopy.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import NamedTuple

import msgspec

from forebay.engine.engine import Engine, Opened
from forebay.engine.lookup import Found
from forebay.engine.multipart import parse_upload_id
from forebay.engine.objects import Attributes
from forebay.engine.records import Part
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.checksums import Algorithm, Checksum, ChecksumType, checksum_algorithm, hasher, parse_checksum
from forebay.s3.conditions import check_copy_source, check_expected_owner, write_condition
from forebay.s3.names import parse_copy_source, parse_tagging_header, user_metadata
from forebay.s3.ranges import ByteRange, copy_range, parse_part_number
from forebay.s3.routing import Operation
from forebay.server.authorisation import authorise_on
from forebay.server.message import Response
from forebay.server.operations.buckets import bucket_owner
from forebay.server.operations.common import acl_of_new_object, add_version_id, checksums_of, current_of, opaque_etag, stored_headers, xml
from forebay.server.operations.writing import check_early, judge
from forebay.server.services import Call, Services


def open_source(services: Services, call: Call) -> Opened:
    """The object that x-amz-copy-source names, authorised and its conditions judged. Raises StoreError."""
    source = parse_copy_source(call.headers["x-amz-copy-source"])
    key = source.key.encode()
    authorise_on(services.engine, call.identity, Operation.GET_OBJECT, source.bucket, key, source.version_id)
    if "x-amz-source-expected-bucket-owner" in call.headers:
        check_expected_owner(call.headers, bucket_owner(services.engine.bucket(source.bucket)).id, of_source=True)
    try:
        opened = services.engine.open(source.bucket, key, source.version_id)
    except StoreError as error:
        if error.code == "MethodNotAllowed":  # a delete marker by its version id
            raise StoreError("InvalidRequest", "The source of a copy request may not be a delete marker.") from error
        raise
    check_copy_source(call.headers, current_of(opened.found.version))
    return opened


async def copy_object(services: Services, call: Call) -> Response:
    """A new version with the source's bytes, and its own or the request's attributes."""
    engine = services.engine
    engine.bucket(call.bucket)
    opened = open_source(services, call)
    source = opened.found
    condition = write_condition(call.headers)
    check_early(engine, call, condition)
    attributes = _attributes(services, call, source)
    algorithm = checksum_algorithm(call.headers)
    if algorithm is not None and algorithm not in source.version.checksums:
        checksum = await services.in_thread(lambda: digest(engine, opened, None, algorithm))
        attributes = msgspec.structs.replace(attributes, checksums=checksums_of(checksum), checksum_type=ChecksumType.FULL_OBJECT.value)
    written = await services.in_thread(lambda: engine.copy(opened, call.bucket, call.key, attributes, judge(condition)))
    headers: dict[str, str] = {}
    add_version_id(headers, written.version_id)
    if source.version_id is not None:
        headers["x-amz-copy-source-version-id"] = source.version_id
    version = written.version
    return xml(documents.copy_object(version.etag, version.mtime_ns, _checksum(attributes.checksums)), headers)


def _attributes(services: Services, call: Call, source: Found) -> Attributes:
    """What the new version says of itself. Raises StoreError."""
    replaces = _directive(call, "x-amz-metadata-directive")
    replaces_tags = _directive(call, "x-amz-tagging-directive")
    to_itself = (source.bucket.name, source.key) == (call.bucket, call.key)
    changes = replaces or replaces_tags or not source.is_latest or checksum_algorithm(call.headers) is not None
    if to_itself and not changes and "x-amz-storage-class" not in call.headers:
        raise StoreError(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without changing the "
            "object's metadata, storage class, website redirect location or encryption attributes.",
        )
    old = source.version
    tags = old.tags
    if replaces_tags:
        tags = dict(parse_tagging_header(call.headers.get("x-amz-tagging", "")))
    acl, user = acl_of_new_object(services, call)
    return Attributes(
        etag=old.etag,
        headers=stored_headers(call.headers) if replaces else old.headers,
        metadata=user_metadata(call.headers) if replaces else old.metadata,
        tags=tags,
        checksums=old.checksums,
        checksum_type=old.checksum_type,
        acl=acl,
        user=user,
    )


def _directive(call: Call, name: str) -> bool:
    """Whether a directive says REPLACE. Raises StoreError InvalidArgument."""
    value = call.headers.get(name, "COPY").upper()
    if value not in ("COPY", "REPLACE"):
        raise StoreError("InvalidArgument", f"Unknown {name}.", ArgumentName=name, ArgumentValue=value)
    return value == "REPLACE"


def digest(engine: Engine, source: Opened, selected: ByteRange | None, algorithm: Algorithm) -> Checksum:
    """Blocking: the checksum of stored bytes."""
    running = hasher(algorithm)
    for view in _read(engine, source, selected):
        running.update(view)
    return Checksum(algorithm, running.digest())


def _read(engine: Engine, source: Opened, selected: ByteRange | None) -> Iterator[bytes | memoryview]:
    start, stop = selected or ByteRange(0, source.found.version.size)
    if source.content is not None:
        yield source.content[start:stop]
        return
    with engine.reader(source, start, stop) as reader:
        yield from reader


def _checksum(checksums: dict[str, str]) -> Checksum | None:
    for name, text in checksums.items():
        return parse_checksum(Algorithm(name), text)
    return None


class _PartCopy(NamedTuple):
    """A part to be made from stored bytes."""

    upload_id: bytes
    number: int
    source: Opened
    selected: ByteRange
    algorithm: Algorithm | None  # of the upload


async def upload_part_copy(services: Services, call: Call) -> Response:
    """A part with a range of the source's bytes."""
    upload_id = parse_upload_id(call.params["uploadId"])
    number = parse_part_number(call.params["partNumber"])
    upload = services.engine.upload(call.bucket, call.key, upload_id)
    opened = open_source(services, call)
    source = opened.found
    text = call.headers.get("x-amz-copy-source-range")
    selected = copy_range(text, source.version.size) if text else ByteRange(0, source.version.size)
    algorithm = Algorithm(upload.checksum_algorithm) if upload.checksum_algorithm else None
    wanted = _PartCopy(upload_id, number, opened, selected, algorithm)
    part = await services.in_thread(lambda: _copy_part(services, call, wanted))
    headers = {} if source.version_id is None else {"x-amz-copy-source-version-id": source.version_id}
    shown = _checksum({algorithm: part.checksums[algorithm]}) if algorithm is not None else None
    return xml(documents.copy_part(part.etag, part.mtime_ns, shown), headers)


def _copy_part(services: Services, call: Call, wanted: _PartCopy) -> Part:
    engine, source, selected = services.engine, wanted.source, wanted.selected
    checksums = {}
    known = _known_checksums(source.found, selected)
    if wanted.algorithm is not None:
        if wanted.algorithm not in known:
            known = checksums_of(digest(engine, source, selected, wanted.algorithm))
        checksums = {wanted.algorithm.value: known[wanted.algorithm]}
    elif Algorithm.CRC64NVME in known:
        checksums = {Algorithm.CRC64NVME.value: known[Algorithm.CRC64NVME]}
    etag = opaque_etag(f"{source.found.version.etag} {selected.start}".encode(), selected.stop - selected.start)
    if services.config.etag == "md5":
        running = md5(usedforsecurity=False)
        for view in _read(engine, source, selected):
            running.update(view)
        etag = running.hexdigest()
    return engine.copy_part(source, selected.start, selected.stop, call.bucket, call.key, wanted.upload_id, wanted.number, etag, checksums)


def _known_checksums(source: Found, selected: ByteRange) -> dict[str, str]:
    """The source's checksums if they are the range's: it is the whole, and they cover bytes, not parts."""
    version = source.version
    whole = selected == ByteRange(0, version.size)
    return version.checksums if whole and version.checksum_type == ChecksumType.FULL_OBJECT else {}
