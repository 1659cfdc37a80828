"""The one place where a request is allowed or refused.

Rules: root may do everything; any other access key may create buckets and do everything with those that it created; nobody else
may do anything.
"""

from __future__ import annotations

from forebay.engine.engine import Engine
from forebay.errors import StoreError
from forebay.s3.routing import Operation
from forebay.server.services import Identity


def authorise(engine: Engine, identity: Identity | None, operation: Operation, bucket: str, key: bytes) -> None:
    """Raises StoreError AccessDenied (and NoSuchBucket) unless `identity` may do `operation` on `bucket` and `key`.

    `identity` is None for an anonymous request; `bucket` is empty and so is `key` where an operation has none. Operations
    that read a second object (copies) call this once more for it.
    """
    if identity is None:
        raise StoreError("AccessDenied", "Anonymous requests are not allowed; sign the request.")
    if identity.is_root or not bucket or operation is Operation.CREATE_BUCKET:
        return
    if engine.bucket(bucket).owner != identity.access_key:
        raise StoreError("AccessDenied")
