"""Access control lists of buckets and objects. Who may use these operations is decided in `forebay.server.authorisation`."""

from __future__ import annotations

from forebay.engine.records import Bucket, Version
from forebay.errors import StoreError
from forebay.s3 import acl
from forebay.s3.xml_requests import SMALL_DOCUMENT_BYTES_MAX
from forebay.server.message import Response
from forebay.server.operations.common import add_version_id, read_document, xml
from forebay.server.public_access import check_new_grants
from forebay.server.services import Call, Services, owner_of


def get_bucket_acl(services: Services, call: Call) -> Response:
    """The list of a bucket."""
    bucket = services.engine.bucket(call.bucket)
    owner = owner_of(bucket.owner)
    return xml(acl.document(owner, acl.decode(bucket.config.get("acl", b""), owner.id), services.accounts))


def get_object_acl(services: Services, call: Call) -> Response:
    """The list of a version."""
    found = services.engine.find(call.bucket, call.key, call.version_id)
    owner = owner_of(found.version.user or found.bucket.owner)
    headers: dict[str, str] = {}
    add_version_id(headers, found.version_id)
    return xml(acl.document(owner, acl.decode(found.version.acl, owner.id), services.accounts), headers)


async def put_bucket_acl(services: Services, call: Call) -> Response:
    """Replace the list of a bucket."""
    bucket = services.engine.bucket(call.bucket)
    owner = owner_of(bucket.owner).id
    stored = acl.encode(await _wanted(services, call, bucket, owner))

    def update(record: Bucket) -> None:
        record.config["acl"] = stored

    await services.in_thread(lambda: services.engine.change_bucket(call.bucket, update))
    return Response(200)


async def put_object_acl(services: Services, call: Call) -> Response:
    """Replace the list of a version."""
    found = services.engine.find(call.bucket, call.key, call.version_id)
    owner = owner_of(found.version.user or found.bucket.owner).id
    stored = acl.encode(await _wanted(services, call, found.bucket, owner))

    def change(version: Version) -> None:
        version.acl = stored

    version_id = await services.commit(lambda done: services.engine.update(call.bucket, call.key, call.version_id, change, on_done=done))
    headers: dict[str, str] = {}
    add_version_id(headers, version_id)
    return Response(200, headers)


async def _wanted(services: Services, call: Call, bucket: Bucket, owner: str) -> acl.Grants:
    """The list that the request brings, in headers or as a document, never both."""
    body = await read_document(call, SMALL_DOCUMENT_BYTES_MAX)
    grants = acl.from_headers(call.headers, owner, owner_of(bucket.owner).id, services.accounts)
    if grants is None:
        grants = acl.parse(body, owner, services.accounts)
    elif body:
        raise StoreError("UnexpectedContent")
    check_new_grants(bucket, grants)
    return grants
