"""Which S3 operation a request asks for.

One table: (scope, method, sub-resource) -> operation. A sub-resource that is unknown, or known but not built, gets an
operation outside IMPLEMENTED, which the server answers with NotImplemented; it never falls through to the plain operation.
"""

from __future__ import annotations

import enum

from forebay.errors import StoreError
from forebay.s3.request import Request


class Operation(enum.StrEnum):
    """S3's operations by their API names, and UNKNOWN for a sub-resource that no table knows."""

    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    HEAD_BUCKET = "HeadBucket"
    DELETE_BUCKET = "DeleteBucket"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    GET_BUCKET_VERSIONING = "GetBucketVersioning"
    PUT_BUCKET_VERSIONING = "PutBucketVersioning"
    LIST_OBJECTS = "ListObjects"
    LIST_OBJECTS_V2 = "ListObjectsV2"
    LIST_OBJECT_VERSIONS = "ListObjectVersions"
    LIST_MULTIPART_UPLOADS = "ListMultipartUploads"
    DELETE_OBJECTS = "DeleteObjects"
    PUT_OBJECT = "PutObject"
    COPY_OBJECT = "CopyObject"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    DELETE_OBJECT = "DeleteObject"
    GET_OBJECT_ATTRIBUTES = "GetObjectAttributes"
    GET_OBJECT_TAGGING = "GetObjectTagging"
    PUT_OBJECT_TAGGING = "PutObjectTagging"
    DELETE_OBJECT_TAGGING = "DeleteObjectTagging"
    CREATE_MULTIPART_UPLOAD = "CreateMultipartUpload"
    UPLOAD_PART = "UploadPart"
    UPLOAD_PART_COPY = "UploadPartCopy"
    LIST_PARTS = "ListParts"
    COMPLETE_MULTIPART_UPLOAD = "CompleteMultipartUpload"
    ABORT_MULTIPART_UPLOAD = "AbortMultipartUpload"
    UNKNOWN = "UnknownSubresource"


IMPLEMENTED: frozenset[Operation] = frozenset()


def route(request: Request) -> Operation:
    """The operation asked for.

    Raises StoreError: InvalidArgument (sub-resources that contradict each other, half of a pair), MethodNotAllowed.
    """
    raise NotImplementedError


def not_implemented(operation: Operation, request: Request) -> StoreError:
    """The NotImplemented error that answers an operation outside IMPLEMENTED; it names the sub-resource."""
    raise NotImplementedError


def check_headers(request: Request) -> None:
    """Refuse (NotImplemented) request headers whose meaning would be lost: encryption, object lock, grants, append offsets."""
    raise NotImplementedError
