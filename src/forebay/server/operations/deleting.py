"""DeleteObject and DeleteObjects.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html.
"""

from __future__ import annotations

import asyncio

from forebay.engine.objects import Deleted
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.conditions import WriteCondition, delete_condition
from forebay.s3.errors import message_of
from forebay.s3.names import check_key
from forebay.s3.xml_requests import DELETE_BYTES_MAX, ObjectToDelete, parse_delete
from forebay.server.message import Response
from forebay.server.operations.common import add_version_id, read_document, xml
from forebay.server.operations.writing import judge
from forebay.server.services import Call, Services


async def delete_object(services: Services, call: Call) -> Response:
    """Delete an object or a version of it; in a versioned bucket, put a delete marker."""
    done = await _delete(services, call.bucket, call.key, call.version_id, delete_condition(call.headers))
    headers: dict[str, str] = {}
    add_version_id(headers, done.version_id)
    if done.is_delete_marker:
        headers["x-amz-delete-marker"] = "true"
    return Response(204, headers)


async def _delete(services: Services, bucket: str, key: bytes, version_id: str | None, condition: WriteCondition | None) -> Deleted:
    return await services.commit(lambda done: services.engine.delete(bucket, key, version_id, judge(condition), on_done=done))


async def delete_objects(services: Services, call: Call) -> Response:
    """Up to 1,000 deletes, committed together; each succeeds or fails on its own."""
    services.engine.bucket(call.bucket)
    asked = parse_delete(await read_document(call, DELETE_BYTES_MAX))
    results = await asyncio.gather(*(_delete_one(services, call.bucket, entry) for entry in asked.objects))
    return xml(documents.delete_result(results, asked.quiet))


async def _delete_one(services: Services, bucket: str, entry: ObjectToDelete) -> documents.Deleted | documents.DeleteFailed:
    try:
        check_key(entry.key)
        done = await _delete(services, bucket, entry.key.encode(), entry.version_id, entry.condition)
    except StoreError as error:
        return documents.DeleteFailed(entry.key, entry.version_id, error.code, message_of(error))
    marker = done.version_id if done.is_delete_marker else None
    return documents.Deleted(entry.key, entry.version_id, marker)
