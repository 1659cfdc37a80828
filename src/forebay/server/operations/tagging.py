"""The tags of objects."""

from __future__ import annotations

from forebay.engine.records import Version
from forebay.s3 import xml_responses as documents
from forebay.s3.xml_requests import SMALL_DOCUMENT_BYTES_MAX, parse_tagging
from forebay.server.message import Response
from forebay.server.operations.common import add_version_id, read_document, xml
from forebay.server.services import Call, Services


def get_object_tagging(services: Services, call: Call) -> Response:
    """All tags of a version."""
    found = services.engine.find(call.bucket, call.key, call.version_id)
    headers: dict[str, str] = {}
    add_version_id(headers, found.version_id)
    return xml(documents.tagging(sorted(found.version.tags.items())), headers)


async def put_object_tagging(services: Services, call: Call) -> Response:
    """Replace them."""
    services.engine.find(call.bucket, call.key, call.version_id)
    document = await read_document(call, SMALL_DOCUMENT_BYTES_MAX)
    return await _set(services, call, dict(parse_tagging(document)), 200)


async def delete_object_tagging(services: Services, call: Call) -> Response:
    """Remove them."""
    return await _set(services, call, {}, 204)


async def _set(services: Services, call: Call, tags: dict[str, str], status: int) -> Response:
    def change(version: Version) -> None:
        version.tags = tags

    version_id = await services.commit(lambda done: services.engine.update(call.bucket, call.key, call.version_id, change, on_done=done))
    headers: dict[str, str] = {}
    add_version_id(headers, version_id)
    return Response(status, headers)
