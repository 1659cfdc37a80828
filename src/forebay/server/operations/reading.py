"""GetObject, HeadObject, GetObjectAttributes.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html, API_HeadObject.html, API_GetObjectAttributes.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forebay.engine.engine import Engine, Opened
from forebay.engine.lookup import Found
from forebay.engine.records import Part, Version
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.checksums import Algorithm, Checksum, header_of, parse_checksum
from forebay.s3.conditions import check_read, range_applies
from forebay.s3.names import http_date
from forebay.s3.ranges import ByteRange, content_range, parse_part_number, resolve_range
from forebay.server.message import Response, Stream
from forebay.server.operations.common import (
    add_version_id,
    checksum_headers,
    current_of,
    object_headers,
    parse_limit,
    xml,
)
from forebay.server.services import Call, Services

_OVERRIDES = {
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
    "response-content-language": "Content-Language",
    "response-content-type": "Content-Type",
    "response-expires": "Expires",
}
_ATTRIBUTES = frozenset(("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"))


def get_object(services: Services, call: Call) -> Response:
    """Answered on the loop for small objects; large ones are streamed by a thread."""
    described: list[tuple[Response, ByteRange]] = []

    def select(found: Found) -> ByteRange:
        described.append(describe(call, found))
        return described[-1][1]

    opened = services.engine.open(call.bucket, call.key, call.version_id, select)
    response, selected = described[-1]
    if opened.content is not None:
        whole = selected.stop - selected.start == len(opened.content)
        response.body = opened.content if whole else opened.content[selected.start : selected.stop]
    elif selected.stop > selected.start:
        response.body = Stream(
            selected.stop - selected.start, lambda: _chunks(services.engine, opened, selected.start, selected.stop)
        )
    return response


def head_object(services: Services, call: Call) -> Response:
    """The head that GetObject would send."""
    found = services.engine.find(call.bucket, call.key, call.version_id)
    response, selected = describe(call, found)
    response.length = selected.stop - selected.start
    return response


def _chunks(engine: Engine, opened: Opened, start: int, stop: int) -> Iterator[memoryview]:
    with engine.reader(opened, start, stop) as reader:
        yield from reader


def describe(call: Call, found: Found) -> tuple[Response, ByteRange]:
    """An answer without its body, and which bytes that is. Raises StoreError for conditions and ranges."""
    version = found.version
    asked = call.headers
    current = current_of(version)
    check_read(asked, current)
    headers = object_headers(found)
    wants_checksum = "x-amz-checksum-mode" in asked and asked["x-amz-checksum-mode"].upper() == "ENABLED"
    if call.params:
        _override(headers, call.params)
        if "partNumber" in call.params:
            return _describe_part(call, version, headers, wants_checksum)
    selected = None
    if "range" in asked and range_applies(asked, current):
        selected = resolve_range(asked["range"], version.size)
    if selected is None:
        if wants_checksum:
            headers.update(checksum_headers(version))
        return Response(200, headers), ByteRange(0, version.size)
    headers["Content-Range"] = content_range(selected, version.size)
    return Response(206, headers), selected


def _override(headers: dict[str, str], params: Mapping[str, str]) -> None:
    """The response-* parameters."""
    for name, shown in _OVERRIDES.items():
        if name in params:
            headers[shown] = _header_value(name, params[name])


def _describe_part(
    call: Call, version: Version, headers: dict[str, str], wants_checksum: bool
) -> tuple[Response, ByteRange]:
    part, selected = select_part(version, call.params["partNumber"], call.headers)
    if version.parts:
        headers["x-amz-mp-parts-count"] = str(len(version.parts))
    if wants_checksum:
        headers.update(_part_checksum_headers(version, part))
    if selected.stop > selected.start:
        headers["Content-Range"] = content_range(selected, version.size)
    return Response(206, headers), selected


def select_part(version: Version, text: str, headers: Mapping[str, str]) -> tuple[Part | None, ByteRange]:
    """The bytes of one part; an object that was not uploaded in parts is its own part 1. Raises StoreError."""
    number = parse_part_number(text)
    if "range" in headers:
        raise StoreError("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    if not version.parts and number == 1:
        return None, ByteRange(0, version.size)
    start = 0
    for part in version.parts:
        if part.number == number:
            return part, ByteRange(start, start + part.size)
        start += part.size
    raise StoreError("InvalidPart", f"The object has {len(version.parts) or 1} parts.", PartNumber=text)


def _part_checksum_headers(version: Version, part: Part | None) -> dict[str, str]:
    """The checksum of one part under the object's algorithm."""
    if part is None:
        return checksum_headers(version)
    shown = {name: part.checksums[name] for name in version.checksums if name in part.checksums}
    headers = {header_of(Algorithm(name)): text for name, text in shown.items()}
    if headers and version.checksum_type:
        headers["x-amz-checksum-type"] = version.checksum_type
    return headers


def _header_value(name: str, value: str) -> str:
    """A header from the query: UTF-8 bytes as they will be sent. Raises StoreError InvalidArgument for control characters."""
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise StoreError("InvalidArgument", f"{name} holds a control character.", ArgumentName=name, ArgumentValue=repr(value))
    return value.encode().decode("latin-1")


def get_object_attributes(services: Services, call: Call) -> Response:
    """The attributes that x-amz-object-attributes names."""
    wanted = {name.strip() for name in call.headers.get("x-amz-object-attributes", "").split(",")} - {""}
    if not wanted or not wanted <= _ATTRIBUTES:
        raise StoreError(
            "InvalidArgument",
            "Invalid attribute name specified.",
            ArgumentName="x-amz-object-attributes",
            ArgumentValue=call.headers.get("x-amz-object-attributes", ""),
        )
    found = services.engine.find(call.bucket, call.key, call.version_id)
    version = found.version
    check_read(call.headers, current_of(version))
    limit = parse_limit(call.headers, "x-amz-max-parts")
    marker = parse_limit(call.headers, "x-amz-part-number-marker", 10_000) if _has_marker(call) else 0
    after = [part for part in version.parts if part.number > marker]
    page = after[:limit]
    checksum = _checksum_of(version)
    parts_wanted = "ObjectParts" in wanted and bool(version.parts)
    shown = documents.PartsPage(
        [part_entry(part, checksum) for part in page],
        part_number_marker=marker,
        next_part_number_marker=page[-1].number if page else 0,
        max_parts=limit,
        is_truncated=len(after) > len(page),
    )
    document = documents.object_attributes(
        etag=version.etag if "ETag" in wanted else None,
        checksum=checksum if "Checksum" in wanted else None,
        size_bytes=version.size if "ObjectSize" in wanted else None,
        storage_class="STANDARD" if "StorageClass" in wanted else None,
        part_count=len(version.parts) if parts_wanted else None,
        page=shown if parts_wanted and _parts_have(page, checksum) else None,
    )
    headers = {"Last-Modified": http_date(version.mtime_ns // 10**9)}
    add_version_id(headers, found.version_id)
    return xml(document, headers)


def _has_marker(call: Call) -> bool:
    return bool(call.headers.get("x-amz-part-number-marker"))


def _checksum_of(version: Version) -> Checksum | None:
    for name, text in version.checksums.items():
        return parse_checksum(Algorithm(name), text)
    return None


def _parts_have(parts: list[Part], checksum: Checksum | None) -> bool:
    return checksum is not None and all(checksum.algorithm in part.checksums for part in parts)


def part_entry(part: Part, checksum: Checksum | None) -> documents.PartEntry:
    """A part as documents show it, with its checksum under the algorithm of `checksum`."""
    text = part.checksums.get(checksum.algorithm) if checksum is not None else None
    shown = parse_checksum(checksum.algorithm, text) if checksum is not None and text is not None else None
    return documents.PartEntry(part.number, part.mtime_ns, part.etag, part.size, shown)
