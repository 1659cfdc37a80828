"""Buckets: create, head, delete, list, location, versioning."""

from __future__ import annotations

from forebay.engine.records import Bucket
from forebay.errors import StoreError
from forebay.s3 import xml_responses as documents
from forebay.s3.acl import encode, from_headers
from forebay.s3.names import check_bucket_name
from forebay.s3.tokens import decode_token, encode_token
from forebay.s3.xml_requests import SMALL_DOCUMENT_BYTES_MAX, parse_create_bucket, parse_versioning
from forebay.server.message import Response
from forebay.server.operations.common import parse_limit, read_document, xml
from forebay.server.services import Call, Services, owner_of

RESERVED_NAME = "forebay"  # /forebay/… is the admin API
BUCKETS_PAGE_MAX = 10_000
LEGACY_REGION = "us-east-1"  # where creating one's own bucket again succeeds


def list_buckets(services: Services, call: Call) -> Response:
    """The buckets that the caller may use, by name."""
    params = call.params
    prefix = params.get("prefix", "")
    token = params.get("continuation-token")
    after = decode_token(token) if token else ""
    limit = parse_limit(params, "max-buckets", BUCKETS_PAGE_MAX)
    region = params.get("bucket-region")
    mine = [
        bucket
        for bucket in services.engine.list_buckets()
        if (call.identity.is_root or bucket.owner == call.identity.access_key)
        and bucket.name.startswith(prefix)
        and bucket.name > after
        and region in (None, "", services.config.region)
    ]
    page = mine[:limit]
    document = documents.list_buckets(
        owner_of(call.identity.access_key),
        [documents.BucketEntry(bucket.name, bucket.created_ns) for bucket in page],
        prefix=params.get("prefix"),
        next_token=encode_token(page[-1].name) if page and len(mine) > len(page) else None,
        region=services.config.region if "max-buckets" in params or token or region else None,
    )
    return xml(document)


async def create_bucket(services: Services, call: Call) -> Response:
    """Create a bucket; again by its owner it succeeds in us-east-1 and conflicts elsewhere, as in S3."""
    name = call.bucket
    check_bucket_name(name)
    if name == RESERVED_NAME:
        raise StoreError("InvalidBucketName", f"The name {name} is reserved by this store.", BucketName=name)
    wanted = parse_create_bucket(await read_document(call, SMALL_DOCUMENT_BYTES_MAX))
    region = services.config.region
    if wanted not in (None, "", region):
        raise StoreError(
            "InvalidLocationConstraint",
            f"The specified location-constraint is not valid: this store is in region {region}.",
            LocationConstraint=wanted or "",
        )
    owner = call.identity.access_key
    try:
        grants = from_headers(call.headers, owner_of(owner).id, owner_of(owner).id, services.accounts)
        config = {} if grants is None else {"acl": encode(grants)}
        await services.in_thread(lambda: services.engine.create_bucket(name, owner, config))
    except StoreError as error:
        if error.code != "BucketAlreadyOwnedByYou":
            raise
        if services.engine.bucket(name).owner != owner:
            raise StoreError("BucketAlreadyExists", BucketName=name) from error
        if region != LEGACY_REGION:
            raise
    return Response(200, {"Location": f"/{name}"})


def head_bucket(services: Services, call: Call) -> Response:
    """Whether the bucket exists and may be used."""
    services.engine.bucket(call.bucket)
    return Response(200, {"x-amz-bucket-region": services.config.region})


async def delete_bucket(services: Services, call: Call) -> Response:
    """Delete an empty bucket."""
    await services.in_thread(lambda: services.engine.delete_bucket(call.bucket))
    return Response(204)


def get_bucket_location(services: Services, call: Call) -> Response:
    """The region."""
    services.engine.bucket(call.bucket)
    return xml(documents.location(services.config.region))


def get_bucket_versioning(services: Services, call: Call) -> Response:
    """Enabled, Suspended, or nothing if it was never set."""
    return xml(documents.versioning(services.engine.bucket(call.bucket).versioning or None))


async def put_bucket_versioning(services: Services, call: Call) -> Response:
    """Enable or suspend."""
    services.engine.bucket(call.bucket)
    status = parse_versioning(await read_document(call, SMALL_DOCUMENT_BYTES_MAX))
    await services.in_thread(lambda: services.engine.set_versioning(call.bucket, status))
    return Response(200)


def bucket_owner(bucket: Bucket) -> documents.Owner:
    """The owner of a bucket and of all that is in it."""
    return owner_of(bucket.owner)
