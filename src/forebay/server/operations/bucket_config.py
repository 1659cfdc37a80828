"""Sub-resources that are small documents kept in the bucket's record: tags, and the block of public access."""

from __future__ import annotations

import msgspec

from forebay.engine.records import Bucket
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.xml_requests import SMALL_DOCUMENT_BYTES_MAX, parse_public_access_block, parse_tagging
from forebay.server import public_access
from forebay.server.message import Response
from forebay.server.operations.common import read_document, xml
from forebay.server.services import Call, Services

TAGGING = "tagging"  # in Bucket.config


def get_bucket_tagging(services: Services, call: Call) -> Response:
    """The tags of a bucket. NoSuchTagSet if there are none."""
    raw = services.engine.bucket(call.bucket).config.get(TAGGING)
    if raw is None:
        raise StoreError("NoSuchTagSet", BucketName=call.bucket)
    return xml(documents.tagging(msgspec.msgpack.decode(raw, type=list[tuple[str, str]])))


async def put_bucket_tagging(services: Services, call: Call) -> Response:
    """Replace them."""
    return await _store(services, call, TAGGING, parse_tagging(await read_document(call, SMALL_DOCUMENT_BYTES_MAX)), 204)


async def delete_bucket_tagging(services: Services, call: Call) -> Response:
    """Remove them."""
    return await _store(services, call, TAGGING, None, 204)


def get_public_access_block(services: Services, call: Call) -> Response:
    """The four settings."""
    found = public_access.settings(services.engine.bucket(call.bucket))
    if found is None:
        raise StoreError("NoSuchPublicAccessBlockConfiguration", BucketName=call.bucket)
    return xml(documents.public_access_block(found))


async def put_public_access_block(services: Services, call: Call) -> Response:
    """Replace them."""
    settings = parse_public_access_block(await read_document(call, SMALL_DOCUMENT_BYTES_MAX))
    return await _store(services, call, public_access.CONFIG_NAME, settings, 200)


async def delete_public_access_block(services: Services, call: Call) -> Response:
    """Remove them."""
    return await _store(services, call, public_access.CONFIG_NAME, None, 204)


async def _store(services: Services, call: Call, name: str, value: object, status: int) -> Response:
    def update(record: Bucket) -> None:
        record.config.pop(name, None)
        if value is not None:
            record.config[name] = msgspec.msgpack.encode(value)

    services.engine.bucket(call.bucket)
    await services.in_thread(lambda: services.engine.change_bucket(call.bucket, update))
    return Response(status)
