"""Multipart uploads: create, upload a part, list, complete, abort.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html and the API pages of the operations. The checksums
of an upload that names no algorithm are CRC64NVME over the whole object, as S3 has it.
"""

from __future__ import annotations

from functools import partial

from forebay.engine.multipart import PartChoice, parse_upload_id
from forebay.engine.objects import Attributes
from forebay.engine.records import Bucket, Part, Upload
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.checksums import (
    Algorithm,
    Checksum,
    ChecksumType,
    checksum_type,
    combines,
    composite,
    full_object,
    object_checksum,
    parse_checksum,
    request_checksum,
    upload_checksum,
)
from forebay.s3.conditions import write_condition
from forebay.s3.ranges import parse_part_number
from forebay.s3.xml_requests import COMPLETE_BYTES_MAX, parse_complete_multipart
from forebay.server.exchange import Answer
from forebay.server.message import Response
from forebay.server.operations.buckets import bucket_owner
from forebay.server.operations.common import (
    add_written_id,
    checksums_of,
    etag_of,
    multipart_etag,
    object_attributes,
    parse_limit,
    read_document,
    xml,
)
from forebay.server.operations.listing import answer_page, encoding_is_url
from forebay.server.operations.writing import Payload, check_early, judge, open_payload, receive_blob
from forebay.server.services import Call, Services, owner_of
from forebay.server.transfer import Wire

PART_BYTES_MAX = 5 << 30  # S3's limit
# Larger parts get an MD5 only if the client sent one or the configuration asks; clients use larger ones for large objects.
MD5_PART_BYTES_MAX = 5 << 20
PARSED_ON_LOOP_MAX = 64 << 10  # a document of some hundred parts


async def create_multipart_upload(services: Services, call: Call) -> Response:
    """Begin an upload."""
    attributes = object_attributes(services, call)
    wanted = upload_checksum(call.headers)
    algorithm = wanted.algorithm.value if wanted else ""
    kind = wanted.type.value if wanted else ""
    upload = await services.commit(
        lambda done: services.engine.create_upload(call.bucket, call.key, attributes, algorithm, kind, on_done=done)
    )
    headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind} if wanted else {}
    return xml(documents.initiate_multipart(call.bucket, call.request.key or "", upload.upload_id.hex()), headers)


def upload_part(services: Services, call: Call) -> Answer:
    """Receive a part; always by a thread, as parts go into blobs."""
    number = parse_part_number(call.params["partNumber"])
    upload_id = parse_upload_id(call.params["uploadId"])
    upload = services.engine.upload(call.bucket, call.key, upload_id)
    algorithm = _part_algorithm(call, upload)
    payload = open_payload(services, call, PART_BYTES_MAX, MD5_PART_BYTES_MAX, algorithm)
    return _upload_part(services, call, upload_id, number, payload)


def _part_algorithm(call: Call, upload: Upload) -> Algorithm:
    """The checksum that every part of this upload has. Raises StoreError InvalidRequest if the client sent another."""
    if not upload.checksum_algorithm:
        return Algorithm.CRC64NVME
    algorithm = Algorithm(upload.checksum_algorithm)
    sent = request_checksum(call.headers)
    if sent is not None and sent.algorithm is not algorithm:
        raise StoreError(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {algorithm.lower()}, actual checksum Type: {sent.algorithm.lower()}",
        )
    return algorithm


async def _upload_part(services: Services, call: Call, upload_id: bytes, number: int, payload: Payload) -> Response:
    work = partial(_receive_part, services, call, upload_id, number, payload)
    part = await call.exchange.in_transfer(work)
    headers = {"ETag": f'"{part.etag}"'}
    checksum = payload.check.checksum
    if checksum is not None:
        headers[checksum.header] = checksum.text
    return Response(200, headers)


def _receive_part(services: Services, call: Call, upload_id: bytes, number: int, payload: Payload, wire: Wire) -> Part:
    blob = receive_blob(services.engine, call, payload, wire)
    checksums = checksums_of(payload.check.checksum)
    if blob is not None:
        crc64 = Checksum(Algorithm.CRC64NVME, blob.crc64.to_bytes(8, "big"))
        checksums.setdefault(Algorithm.CRC64NVME.value, crc64.text)
    return services.engine.put_part(call.bucket, call.key, upload_id, number, blob, etag_of(payload.check, blob), checksums).wait()


async def complete_multipart_upload(services: Services, call: Call) -> Response:
    """Make the parts an object; asked again it answers the same."""
    upload_id = parse_upload_id(call.params["uploadId"])
    services.engine.bucket(call.bucket)
    condition = write_condition(call.headers)
    document = await read_document(call, COMPLETE_BYTES_MAX, about_object=True)
    choices = await services.in_thread(partial(_choices, document)) if len(document) > PARSED_ON_LOOP_MAX else _choices(document)
    check_early(services.engine, call, condition)
    finish = partial(_finish, call)
    written = await services.commit(
        lambda done: services.engine.complete(call.bucket, call.key, upload_id, choices, finish, judge(condition), on_done=done)
    )
    headers: dict[str, str] = {}
    add_written_id(headers, written.version_id)
    version = written.version
    checksum = _stored_checksum(version.checksums)
    location = f"/{call.bucket}/{call.request.key}"
    return xml(documents.complete_multipart(location, call.bucket, call.request.key or "", version.etag, checksum), headers)


def _choices(document: bytes) -> list[PartChoice]:
    return [PartChoice(part.number, part.etag, checksums_of(part.checksum)) for part in parse_complete_multipart(document)]


def _stored_checksum(checksums: dict[str, str]) -> Checksum | None:
    for name, text in checksums.items():
        return parse_checksum(Algorithm(name), text)
    return None


def _finish(call: Call, upload: Upload, parts: list[Part]) -> Attributes:
    """ETag and checksum of the whole. Raises StoreError: InvalidRequest, InvalidPart, BadDigest."""
    size_text = call.headers.get("x-amz-mp-object-size")
    if size_text is not None and size_text != str(sum(part.size for part in parts)):
        raise StoreError(
            "InvalidRequest",
            "The provided 'x-amz-mp-object-size' header does not match what was computed.",
        )
    checksum = _whole_checksum(upload, parts)
    _check_promises(call, upload, checksum)
    return Attributes(
        etag=multipart_etag([part.etag for part in parts]),
        checksums=checksums_of(checksum),
        checksum_type=checksum.type.value if checksum is not None else "",
    )


def _whole_checksum(upload: Upload, parts: list[Part]) -> Checksum | None:
    algorithm = Algorithm(upload.checksum_algorithm or Algorithm.CRC64NVME)
    kind = ChecksumType(upload.checksum_type or ChecksumType.FULL_OBJECT)
    if any(algorithm not in part.checksums for part in parts):
        return None  # a part copied from a range whose checksum nobody knows
    digests = [parse_checksum(algorithm, part.checksums[algorithm]).digest for part in parts]
    if kind is ChecksumType.COMPOSITE or not combines(algorithm):
        return composite(algorithm, digests)
    return full_object(algorithm, list(zip(digests, (part.size for part in parts), strict=True)))


def _check_promises(call: Call, upload: Upload, checksum: Checksum | None) -> None:
    """What the client says of the object's checksum. What it says of its parts' was compared when they were chosen."""
    kind = checksum_type(call.headers)
    if kind is not None and kind != (upload.checksum_type or ChecksumType.FULL_OBJECT):
        raise StoreError(
            "InvalidRequest",
            f"The upload was created using the {upload.checksum_type or ChecksumType.FULL_OBJECT} checksum mode. The "
            "complete request must use the same checksum mode.",
        )
    promised = object_checksum(call.headers)
    if promised is None:
        return
    if checksum is None or promised.algorithm is not checksum.algorithm:
        raise StoreError("InvalidRequest", f"The upload was not created with the {promised.algorithm} checksum.")
    if promised.digest != checksum.digest:
        raise StoreError("BadDigest", f"The {promised.algorithm} you specified did not match the calculated checksum.")


async def abort_multipart_upload(services: Services, call: Call) -> Response:
    """Drop an upload and its parts."""
    upload_id = parse_upload_id(call.params["uploadId"])
    await services.commit(lambda done: services.engine.abort(call.bucket, call.key, upload_id, on_done=done))
    return Response(204)


def list_parts(services: Services, call: Call) -> Response:
    """The parts uploaded so far."""
    params = call.params
    upload_id = parse_upload_id(params["uploadId"])
    limit = parse_limit(params, "max-parts")
    marker = parse_limit(params, "part-number-marker", 10_000) if params.get("part-number-marker") else 0
    upload, parts, more = services.engine.list_parts(call.bucket, call.key, upload_id, marker, limit)
    algorithm = Algorithm(upload.checksum_algorithm) if upload.checksum_algorithm else None
    page = documents.PartsPage(
        [_entry(part, algorithm) for part in parts],
        part_number_marker=marker,
        next_part_number_marker=parts[-1].number if parts else 0,
        max_parts=limit,
        is_truncated=more and limit > 0,
    )
    owner = bucket_owner(services.engine.bucket(call.bucket))
    return xml(documents.list_parts(call.bucket, _upload_entry(upload), owner, page))


def _entry(part: Part, algorithm: Algorithm | None) -> documents.PartEntry:
    text = part.checksums.get(algorithm) if algorithm is not None else None
    checksum = parse_checksum(algorithm, text) if algorithm is not None and text is not None else None
    return documents.PartEntry(part.number, part.mtime_ns, part.etag, part.size, checksum)


def list_multipart_uploads(services: Services, call: Call) -> Answer:
    """Uploads under way, by key and then by initiation."""
    return answer_page(services, call, "max-uploads", _list_multipart_uploads)


def _list_multipart_uploads(services: Services, call: Call, bucket: Bucket, limit: int) -> Response:
    params = call.params
    key_marker, upload_marker = params.get("key-marker", ""), params.get("upload-id-marker", "")
    page = services.engine.list_uploads(
        bucket.name,
        prefix=params.get("prefix", "").encode(),
        delimiter=params.get("delimiter", "").encode(),
        key_marker=key_marker.encode(),
        upload_marker=_upload_marker(upload_marker) if key_marker and upload_marker else b"",
        limit=limit,
    )
    next_marker = page.next_marker if limit > 0 else None
    uploads = documents.UploadsPage(
        [_upload_entry(upload) for upload in page.uploads],
        prefix=params.get("prefix", ""),
        delimiter=params.get("delimiter") or None,
        prefixes=[prefix.decode() for prefix in page.common_prefixes],
        key_marker=key_marker,
        upload_id_marker=upload_marker,
        next_key_marker=next_marker[0].decode() if next_marker else None,
        next_upload_id_marker=next_marker[1].hex() if next_marker else None,
        max_uploads=limit,
        is_truncated=next_marker is not None,
        encoding_url=encoding_is_url(params),
    )
    return xml(documents.list_multipart_uploads(bucket.name, bucket_owner(bucket), uploads))


def _upload_marker(text: str) -> bytes:
    try:
        return parse_upload_id(text)
    except StoreError as error:
        raise StoreError("InvalidArgument", "Invalid uploadId marker", ArgumentName="upload-id-marker", ArgumentValue=text) from error


def _upload_entry(upload: Upload) -> documents.UploadEntry:
    return documents.UploadEntry(
        upload.key.decode(),
        upload.upload_id.hex(),
        upload.created_ns,
        checksum_algorithm=Algorithm(upload.checksum_algorithm) if upload.checksum_algorithm else None,
        checksum_type=ChecksumType(upload.checksum_type) if upload.checksum_type else None,
        owner=owner_of(upload.user) if upload.user else None,
    )
