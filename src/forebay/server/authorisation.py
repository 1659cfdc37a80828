"""The one place where a request is allowed or refused.

Root may do everything. The owner of a bucket may do everything with it and with the objects that he wrote there. Others,
anonymous ones too, may do what an access control list grants them; PERMISSIONS says what each operation needs. Nobody else may do anything.
"""

from __future__ import annotations

from forebay.engine.engine import Engine
from forebay.engine.records import Bucket
from forebay.errors import StoreError
from forebay.s3 import acl
from forebay.s3.conditions import check_expected_owner
from forebay.s3.request import Request
from forebay.s3.routing import Operation
from forebay.server.public_access import grants_that_count
from forebay.server.services import Identity, owner_of

_O = Operation

# What a grant must say, and of what: the bucket or the object. What is not here only the owner may do.
PERMISSIONS: dict[Operation, tuple[str, str]] = {
    **dict.fromkeys(
        (_O.HEAD_BUCKET, _O.LIST_OBJECTS, _O.LIST_OBJECTS_V2, _O.LIST_OBJECT_VERSIONS, _O.LIST_MULTIPART_UPLOADS), ("bucket", acl.READ)
    ),
    **dict.fromkeys(
        (
            _O.PUT_OBJECT, _O.COPY_OBJECT, _O.DELETE_OBJECT, _O.DELETE_OBJECTS, _O.CREATE_MULTIPART_UPLOAD, _O.UPLOAD_PART,
            _O.UPLOAD_PART_COPY, _O.COMPLETE_MULTIPART_UPLOAD, _O.ABORT_MULTIPART_UPLOAD, _O.LIST_PARTS,
        ),
        ("bucket", acl.WRITE),
    ),
    **dict.fromkeys((_O.GET_OBJECT, _O.HEAD_OBJECT, _O.GET_OBJECT_ATTRIBUTES), ("object", acl.READ)),
    _O.GET_BUCKET_ACL: ("bucket", acl.READ_ACP),
    _O.PUT_BUCKET_ACL: ("bucket", acl.WRITE_ACP),
    _O.GET_OBJECT_ACL: ("object", acl.READ_ACP),
    _O.PUT_OBJECT_ACL: ("object", acl.WRITE_ACP),
}  # fmt: skip

_OWN_LIST = frozenset((acl.READ_ACP, acl.WRITE_ACP))  # what an owner may always do


def authorise(engine: Engine, identity: Identity, operation: Operation, request: Request) -> None:
    """Raises StoreError AccessDenied (and NoSuchBucket) unless `identity` may do what the request asks."""
    bucket = request.bucket or ""
    if bucket and operation is not Operation.CREATE_BUCKET and "x-amz-expected-bucket-owner" in request.headers:
        check_expected_owner(request.headers, owner_of(engine.bucket(bucket).owner).id)
    authorise_on(engine, identity, operation, bucket, (request.key or "").encode(), request.params.get("versionId"))


def authorise_on(engine: Engine, identity: Identity, operation: Operation, bucket: str, key: bytes, version_id: str | None) -> None:
    """The same for one bucket and object; `bucket` and `key` are empty where an operation has none.

    Operations that read a second object (copies) call this for it.
    """
    if identity.is_root:
        return
    if not bucket or operation is Operation.CREATE_BUCKET:
        if identity.is_anonymous:
            raise _denied(identity)
        return
    found = engine.bucket(bucket)
    needed = PERMISSIONS.get(operation)
    is_bucket_owner = _is(identity, found.owner)
    if needed is None or needed[0] == "bucket":
        if not is_bucket_owner and not (needed and _bucket_grants(found, identity, needed[1])):
            raise _denied(identity)
    elif not _object_grants(engine, found, key, version_id, identity, needed[1]):
        raise _denied(identity)


def _denied(identity: Identity) -> StoreError:
    if identity.is_anonymous:
        return StoreError("AccessDenied", "Anonymous requests are not allowed here; sign the request.")
    return StoreError("AccessDenied")


def _is(identity: Identity, access_key: str) -> bool:
    """Nobody anonymous is anybody, not even the owner of what has none."""
    return not identity.is_anonymous and identity.access_key == access_key


def _account(identity: Identity) -> str | None:
    return None if identity.is_anonymous else owner_of(identity.access_key).id


def _bucket_grants(bucket: Bucket, identity: Identity, permission: str) -> bool:
    grants = grants_that_count(bucket, bucket.config.get("acl", b""), owner_of(bucket.owner).id)
    return acl.allows(grants, _account(identity), permission)


def _object_grants(engine: Engine, bucket: Bucket, key: bytes, version_id: str | None, identity: Identity, permission: str) -> bool:
    """Whether the object's list grants it; of an object that is not there, those who may list the bucket are told so."""
    is_bucket_owner = _is(identity, bucket.owner)
    try:
        version = engine.find(bucket.name, key, version_id).version
    except StoreError:
        return is_bucket_owner or _bucket_grants(bucket, identity, acl.READ)
    owner = version.user or bucket.owner
    if _is(identity, owner) and (permission in _OWN_LIST or not version.acl):
        return True
    return acl.allows(grants_that_count(bucket, version.acl, owner_of(owner).id), _account(identity), permission)
