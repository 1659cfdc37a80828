"""Which S3 operation a request asks for.

One table: (scope, selector, method) -> operation, where the scope is service, bucket or object and the selector is the
query parameter that names a sub-resource (`?tagging`, `?uploadId=…`), or none. A sub-resource that is unknown, or known
but not built, gets an operation outside IMPLEMENTED, which the server answers with NotImplemented: it never falls
through to the plain operation. Parameters that S3 does not have are treated as unknown sub-resources, except those that
begin with `x-`, which S3 leaves to clients.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html.
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
    # Known to S3, not built here.
    CREATE_METADATA_CONFIGURATION = "CreateBucketMetadataConfiguration"
    CREATE_METADATA_TABLE = "CreateBucketMetadataTableConfiguration"
    CREATE_SESSION = "CreateSession"
    DELETE_ANALYTICS = "DeleteBucketAnalyticsConfiguration"
    DELETE_BUCKET_TAGGING = "DeleteBucketTagging"
    DELETE_CORS = "DeleteBucketCors"
    DELETE_ENCRYPTION = "DeleteBucketEncryption"
    DELETE_INTELLIGENT_TIERING = "DeleteBucketIntelligentTieringConfiguration"
    DELETE_INVENTORY = "DeleteBucketInventoryConfiguration"
    DELETE_LIFECYCLE = "DeleteBucketLifecycle"
    DELETE_METADATA_CONFIGURATION = "DeleteBucketMetadataConfiguration"
    DELETE_METADATA_TABLE = "DeleteBucketMetadataTableConfiguration"
    DELETE_METRICS = "DeleteBucketMetricsConfiguration"
    DELETE_OWNERSHIP_CONTROLS = "DeleteBucketOwnershipControls"
    DELETE_POLICY = "DeleteBucketPolicy"
    DELETE_PUBLIC_ACCESS_BLOCK = "DeletePublicAccessBlock"
    DELETE_REPLICATION = "DeleteBucketReplication"
    DELETE_WEBSITE = "DeleteBucketWebsite"
    GET_ABAC = "GetBucketAbac"
    GET_ACCELERATE = "GetBucketAccelerateConfiguration"
    GET_ANALYTICS = "GetBucketAnalyticsConfiguration"
    GET_BUCKET_ACL = "GetBucketAcl"
    GET_BUCKET_TAGGING = "GetBucketTagging"
    GET_CORS = "GetBucketCors"
    GET_ENCRYPTION = "GetBucketEncryption"
    GET_INTELLIGENT_TIERING = "GetBucketIntelligentTieringConfiguration"
    GET_INVENTORY = "GetBucketInventoryConfiguration"
    GET_LIFECYCLE = "GetBucketLifecycleConfiguration"
    GET_LOGGING = "GetBucketLogging"
    GET_METADATA_CONFIGURATION = "GetBucketMetadataConfiguration"
    GET_METADATA_TABLE = "GetBucketMetadataTableConfiguration"
    GET_METRICS = "GetBucketMetricsConfiguration"
    GET_NOTIFICATION = "GetBucketNotificationConfiguration"
    GET_OBJECT_ACL = "GetObjectAcl"
    GET_OBJECT_LEGAL_HOLD = "GetObjectLegalHold"
    GET_OBJECT_LOCK = "GetObjectLockConfiguration"
    GET_OBJECT_RETENTION = "GetObjectRetention"
    GET_OBJECT_TORRENT = "GetObjectTorrent"
    GET_OWNERSHIP_CONTROLS = "GetBucketOwnershipControls"
    GET_POLICY = "GetBucketPolicy"
    GET_POLICY_STATUS = "GetBucketPolicyStatus"
    GET_PUBLIC_ACCESS_BLOCK = "GetPublicAccessBlock"
    GET_REPLICATION = "GetBucketReplication"
    GET_REQUEST_PAYMENT = "GetBucketRequestPayment"
    GET_WEBSITE = "GetBucketWebsite"
    POST_OBJECT = "PostObject"
    PREFLIGHT = "PreflightRequest"
    PUT_ABAC = "PutBucketAbac"
    PUT_ACCELERATE = "PutBucketAccelerateConfiguration"
    PUT_ANALYTICS = "PutBucketAnalyticsConfiguration"
    PUT_BUCKET_ACL = "PutBucketAcl"
    PUT_BUCKET_TAGGING = "PutBucketTagging"
    PUT_CORS = "PutBucketCors"
    PUT_ENCRYPTION = "PutBucketEncryption"
    PUT_INTELLIGENT_TIERING = "PutBucketIntelligentTieringConfiguration"
    PUT_INVENTORY = "PutBucketInventoryConfiguration"
    PUT_LIFECYCLE = "PutBucketLifecycleConfiguration"
    PUT_LOGGING = "PutBucketLogging"
    PUT_METADATA_INVENTORY_TABLE = "UpdateBucketMetadataInventoryTableConfiguration"
    PUT_METADATA_JOURNAL_TABLE = "UpdateBucketMetadataJournalTableConfiguration"
    PUT_METRICS = "PutBucketMetricsConfiguration"
    PUT_NOTIFICATION = "PutBucketNotificationConfiguration"
    PUT_OBJECT_ACL = "PutObjectAcl"
    PUT_OBJECT_ENCRYPTION = "UpdateObjectEncryption"
    PUT_OBJECT_LEGAL_HOLD = "PutObjectLegalHold"
    PUT_OBJECT_LOCK = "PutObjectLockConfiguration"
    PUT_OBJECT_RETENTION = "PutObjectRetention"
    PUT_OWNERSHIP_CONTROLS = "PutBucketOwnershipControls"
    PUT_POLICY = "PutBucketPolicy"
    PUT_PUBLIC_ACCESS_BLOCK = "PutPublicAccessBlock"
    PUT_REPLICATION = "PutBucketReplication"
    PUT_REQUEST_PAYMENT = "PutBucketRequestPayment"
    PUT_WEBSITE = "PutBucketWebsite"
    RENAME_OBJECT = "RenameObject"
    RESTORE_OBJECT = "RestoreObject"
    SELECT_OBJECT_CONTENT = "SelectObjectContent"
    UNKNOWN = "UnknownSubresource"


_LISTING = ("prefix", "delimiter", "encoding-type")
_RESPONSE = (
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
)

# What is built, and the query parameters of each (beside its selector).
PARAMETERS: dict[Operation, frozenset[str]] = {
    operation: frozenset(names)
    for operation, names in (
        (Operation.LIST_BUCKETS, ("prefix", "max-buckets", "continuation-token", "bucket-region")),
        (Operation.CREATE_BUCKET, ()),
        (Operation.HEAD_BUCKET, ()),
        (Operation.DELETE_BUCKET, ()),
        (Operation.GET_BUCKET_LOCATION, ()),
        (Operation.GET_BUCKET_VERSIONING, ()),
        (Operation.PUT_BUCKET_VERSIONING, ()),
        (Operation.LIST_OBJECTS, (*_LISTING, "marker", "max-keys")),
        (Operation.LIST_OBJECTS_V2, (*_LISTING, "continuation-token", "start-after", "max-keys", "fetch-owner")),
        (Operation.LIST_OBJECT_VERSIONS, (*_LISTING, "key-marker", "version-id-marker", "max-keys")),
        (Operation.LIST_MULTIPART_UPLOADS, (*_LISTING, "key-marker", "upload-id-marker", "max-uploads")),
        (Operation.DELETE_OBJECTS, ()),
        (Operation.PUT_OBJECT, ()),
        (Operation.COPY_OBJECT, ()),
        (Operation.GET_OBJECT, ("versionId", "partNumber", *_RESPONSE)),
        (Operation.HEAD_OBJECT, ("versionId", "partNumber", *_RESPONSE)),
        (Operation.DELETE_OBJECT, ("versionId",)),
        (Operation.GET_OBJECT_ATTRIBUTES, ("versionId",)),
        (Operation.GET_OBJECT_TAGGING, ("versionId",)),
        (Operation.PUT_OBJECT_TAGGING, ("versionId",)),
        (Operation.DELETE_OBJECT_TAGGING, ("versionId",)),
        (Operation.CREATE_MULTIPART_UPLOAD, ("encoding-type",)),
        (Operation.UPLOAD_PART, ("partNumber",)),
        (Operation.UPLOAD_PART_COPY, ("partNumber",)),
        (Operation.LIST_PARTS, ("max-parts", "part-number-marker", "encoding-type")),
        (Operation.COMPLETE_MULTIPART_UPLOAD, ()),
        (Operation.ABORT_MULTIPART_UPLOAD, ()),
        (Operation.GET_BUCKET_TAGGING, ()),
        (Operation.PUT_BUCKET_TAGGING, ()),
        (Operation.DELETE_BUCKET_TAGGING, ()),
        (Operation.GET_PUBLIC_ACCESS_BLOCK, ()),
        (Operation.PUT_PUBLIC_ACCESS_BLOCK, ()),
        (Operation.DELETE_PUBLIC_ACCESS_BLOCK, ()),
        (Operation.GET_BUCKET_ACL, ()),
        (Operation.PUT_BUCKET_ACL, ()),
        (Operation.GET_OBJECT_ACL, ("versionId",)),
        (Operation.PUT_OBJECT_ACL, ("versionId",)),
    )
}
IMPLEMENTED: frozenset[Operation] = frozenset(PARAMETERS)

_SERVICE, _BUCKET, _OBJECT = "service", "bucket", "object"
_O = Operation

# scope -> selector ("" for none) -> method -> operation. HEAD is not GET: it is listed where S3 has it.
_TABLE: dict[str, dict[str, dict[str, Operation]]] = {
    _SERVICE: {"": {"GET": _O.LIST_BUCKETS, "OPTIONS": _O.PREFLIGHT}},
    _BUCKET: {
        "": {
            "GET": _O.LIST_OBJECTS,
            "HEAD": _O.HEAD_BUCKET,
            "PUT": _O.CREATE_BUCKET,
            "DELETE": _O.DELETE_BUCKET,
            "POST": _O.POST_OBJECT,
            "OPTIONS": _O.PREFLIGHT,
        },
        "abac": {"GET": _O.GET_ABAC, "PUT": _O.PUT_ABAC},
        "accelerate": {"GET": _O.GET_ACCELERATE, "PUT": _O.PUT_ACCELERATE},
        "acl": {"GET": _O.GET_BUCKET_ACL, "PUT": _O.PUT_BUCKET_ACL},
        "analytics": {"GET": _O.GET_ANALYTICS, "PUT": _O.PUT_ANALYTICS, "DELETE": _O.DELETE_ANALYTICS},
        "cors": {"GET": _O.GET_CORS, "PUT": _O.PUT_CORS, "DELETE": _O.DELETE_CORS},
        "delete": {"POST": _O.DELETE_OBJECTS},
        "encryption": {"GET": _O.GET_ENCRYPTION, "PUT": _O.PUT_ENCRYPTION, "DELETE": _O.DELETE_ENCRYPTION},
        "intelligent-tiering": {
            "GET": _O.GET_INTELLIGENT_TIERING,
            "PUT": _O.PUT_INTELLIGENT_TIERING,
            "DELETE": _O.DELETE_INTELLIGENT_TIERING,
        },
        "inventory": {"GET": _O.GET_INVENTORY, "PUT": _O.PUT_INVENTORY, "DELETE": _O.DELETE_INVENTORY},
        "lifecycle": {"GET": _O.GET_LIFECYCLE, "PUT": _O.PUT_LIFECYCLE, "DELETE": _O.DELETE_LIFECYCLE},
        "list-type": {"GET": _O.LIST_OBJECTS_V2},
        "location": {"GET": _O.GET_BUCKET_LOCATION},
        "logging": {"GET": _O.GET_LOGGING, "PUT": _O.PUT_LOGGING},
        "metadataConfiguration": {
            "GET": _O.GET_METADATA_CONFIGURATION,
            "POST": _O.CREATE_METADATA_CONFIGURATION,
            "DELETE": _O.DELETE_METADATA_CONFIGURATION,
        },
        "metadataInventoryTable": {"PUT": _O.PUT_METADATA_INVENTORY_TABLE},
        "metadataJournalTable": {"PUT": _O.PUT_METADATA_JOURNAL_TABLE},
        "metadataTable": {
            "GET": _O.GET_METADATA_TABLE,
            "POST": _O.CREATE_METADATA_TABLE,
            "DELETE": _O.DELETE_METADATA_TABLE,
        },
        "metrics": {"GET": _O.GET_METRICS, "PUT": _O.PUT_METRICS, "DELETE": _O.DELETE_METRICS},
        "notification": {"GET": _O.GET_NOTIFICATION, "PUT": _O.PUT_NOTIFICATION},
        "object-lock": {"GET": _O.GET_OBJECT_LOCK, "PUT": _O.PUT_OBJECT_LOCK},
        "ownershipControls": {
            "GET": _O.GET_OWNERSHIP_CONTROLS,
            "PUT": _O.PUT_OWNERSHIP_CONTROLS,
            "DELETE": _O.DELETE_OWNERSHIP_CONTROLS,
        },
        "policy": {"GET": _O.GET_POLICY, "PUT": _O.PUT_POLICY, "DELETE": _O.DELETE_POLICY},
        "policyStatus": {"GET": _O.GET_POLICY_STATUS},
        "publicAccessBlock": {
            "GET": _O.GET_PUBLIC_ACCESS_BLOCK,
            "PUT": _O.PUT_PUBLIC_ACCESS_BLOCK,
            "DELETE": _O.DELETE_PUBLIC_ACCESS_BLOCK,
        },
        "replication": {"GET": _O.GET_REPLICATION, "PUT": _O.PUT_REPLICATION, "DELETE": _O.DELETE_REPLICATION},
        "requestPayment": {"GET": _O.GET_REQUEST_PAYMENT, "PUT": _O.PUT_REQUEST_PAYMENT},
        "session": {"GET": _O.CREATE_SESSION},
        "tagging": {"GET": _O.GET_BUCKET_TAGGING, "PUT": _O.PUT_BUCKET_TAGGING, "DELETE": _O.DELETE_BUCKET_TAGGING},
        "uploads": {"GET": _O.LIST_MULTIPART_UPLOADS},
        "versioning": {"GET": _O.GET_BUCKET_VERSIONING, "PUT": _O.PUT_BUCKET_VERSIONING},
        "versions": {"GET": _O.LIST_OBJECT_VERSIONS},
        "website": {"GET": _O.GET_WEBSITE, "PUT": _O.PUT_WEBSITE, "DELETE": _O.DELETE_WEBSITE},
    },
    _OBJECT: {
        "": {
            "GET": _O.GET_OBJECT,
            "HEAD": _O.HEAD_OBJECT,
            "PUT": _O.PUT_OBJECT,
            "DELETE": _O.DELETE_OBJECT,
            "OPTIONS": _O.PREFLIGHT,
        },
        "acl": {"GET": _O.GET_OBJECT_ACL, "PUT": _O.PUT_OBJECT_ACL},
        "attributes": {"GET": _O.GET_OBJECT_ATTRIBUTES},
        "encryption": {"PUT": _O.PUT_OBJECT_ENCRYPTION},
        "legal-hold": {"GET": _O.GET_OBJECT_LEGAL_HOLD, "PUT": _O.PUT_OBJECT_LEGAL_HOLD},
        "renameObject": {"PUT": _O.RENAME_OBJECT},
        "restore": {"POST": _O.RESTORE_OBJECT},
        "retention": {"GET": _O.GET_OBJECT_RETENTION, "PUT": _O.PUT_OBJECT_RETENTION},
        "select": {"POST": _O.SELECT_OBJECT_CONTENT},
        "tagging": {"GET": _O.GET_OBJECT_TAGGING, "PUT": _O.PUT_OBJECT_TAGGING, "DELETE": _O.DELETE_OBJECT_TAGGING},
        "torrent": {"GET": _O.GET_OBJECT_TORRENT},
        "uploadId": {
            "GET": _O.LIST_PARTS,
            "PUT": _O.UPLOAD_PART,
            "POST": _O.COMPLETE_MULTIPART_UPLOAD,
            "DELETE": _O.ABORT_MULTIPART_UPLOAD,
        },
        "uploads": {"POST": _O.CREATE_MULTIPART_UPLOAD},
    },
}
_SELECTORS = frozenset(name for selectors in _TABLE.values() for name in selectors) - {""}
_KNOWN = _SELECTORS.union(*PARAMETERS.values())
_WITH_COPY_SOURCE = {Operation.PUT_OBJECT: Operation.COPY_OBJECT, Operation.UPLOAD_PART: Operation.UPLOAD_PART_COPY}


def route(request: Request) -> Operation:
    """The operation asked for.

    Raises StoreError: InvalidArgument (sub-resources that contradict each other, a parameter that the operation does
    not take, half of a pair), MethodNotAllowed.
    """
    scope = _SERVICE if request.bucket is None else _BUCKET if request.key is None else _OBJECT
    params = request.params
    selector = _selector(params) if params else ""
    methods = _TABLE[scope].get(selector)
    if methods is None:
        return Operation.UNKNOWN
    operation = methods.get(request.method)
    if operation is None:
        raise StoreError(
            "MethodNotAllowed",
            headers={"Allow": ", ".join(methods)},
            Method=request.method,
            ResourceType=f"{scope}{'?' if selector else ''}{selector}".upper(),
        )
    if "x-amz-copy-source" in request.headers:
        operation = _WITH_COPY_SOURCE.get(operation, operation)
    if params and operation in IMPLEMENTED:
        return _check_parameters(operation, selector, params)
    return operation


def not_implemented(operation: Operation, request: Request) -> StoreError:
    """The NotImplemented error that answers an operation outside IMPLEMENTED; it names what was asked for."""
    if operation is Operation.UNKNOWN:
        unknown = ", ".join(name for name in request.params if _is_unknown(name)) or ", ".join(request.params)
        return StoreError("NotImplemented", f"The query parameter {unknown} is not known to this store.", Header=unknown)
    return StoreError("NotImplemented", f"{operation} is not implemented.", Header=operation.value)


def preflight_error(request: Request) -> StoreError:
    """What answers OPTIONS, which browsers send unsigned: no bucket has a CORS configuration, so every origin is refused."""
    if not {"origin", "access-control-request-method"} <= request.headers.keys():
        return StoreError("BadRequest", "Insufficient information. Origin request header needed.")
    return StoreError("AccessForbidden", "CORSResponse: CORS is not enabled for this bucket.")


def _selector(params: dict[str, str]) -> str:
    """The one parameter that names a sub-resource, "" if there is none."""
    selectors = [name for name in params if name in _SELECTORS]
    if len(selectors) > 1:
        raise StoreError(
            "InvalidArgument",
            f"Conflicting query string parameters: {', '.join(selectors)}",
            ArgumentName="ResourceType",
            ArgumentValue=selectors[1],
        )
    return selectors[0] if selectors else ""


def _check_parameters(operation: Operation, selector: str, params: dict[str, str]) -> Operation:
    allowed = PARAMETERS[operation]
    for name, value in params.items():
        if name == selector or name in allowed:
            continue
        if _is_unknown(name):
            return Operation.UNKNOWN
        if name in _KNOWN:
            raise _invalid(f"{operation} does not take the query parameter {name}.", name, value)
    if selector == "list-type" and params[selector] != "2":
        raise _invalid("Invalid List Type specified in Query", selector, params[selector])
    if operation in (Operation.UPLOAD_PART, Operation.UPLOAD_PART_COPY) and "partNumber" not in params:
        raise _invalid("This operation needs partNumber beside uploadId.", "partNumber", "")
    return operation


def _is_unknown(name: str) -> bool:
    return name not in _KNOWN and name[:2].lower() != "x-"


def _invalid(message: str, name: str, value: str) -> StoreError:
    return StoreError("InvalidArgument", message, ArgumentName=name, ArgumentValue=value)


# --- headers that ask for what is not built

# Headers whose meaning would be lost if they were ignored.
_REFUSED_HEADERS = frozenset(
    (
        "x-amz-bucket-object-lock-token",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "x-amz-copy-source-server-side-encryption-customer-key",
        "x-amz-copy-source-server-side-encryption-customer-key-md5",
        "x-amz-object-lock-legal-hold",
        "x-amz-object-lock-mode",
        "x-amz-object-lock-retain-until-date",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-server-side-encryption-bucket-key-enabled",
        "x-amz-server-side-encryption-context",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption-customer-key-md5",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
    )
)
# Headers of which some values ask for nothing more than what is built: (harmless values, all values of S3, error code).
_VALUE_HEADERS: dict[str, tuple[frozenset[str], frozenset[str], str]] = {
    "x-amz-bucket-object-lock-enabled": (frozenset(("false", "False")), frozenset(("true", "True")), "InvalidArgument"),
    "x-amz-object-ownership": (
        frozenset(("BucketOwnerEnforced",)),
        frozenset(("BucketOwnerPreferred", "ObjectWriter")),
        "InvalidArgument",
    ),
    "x-amz-storage-class": (frozenset(("STANDARD",)), frozenset(), "InvalidStorageClass"),
}
_CHECKED_HEADERS = _REFUSED_HEADERS.union(_VALUE_HEADERS)


def check_headers(request: Request) -> None:
    """Refuse request headers whose meaning would be lost: encryption, object lock, append offsets, classes.

    Raises StoreError: NotImplemented, InvalidArgument, InvalidStorageClass.
    """
    if _CHECKED_HEADERS.isdisjoint(request.headers):
        return
    for name, value in request.headers.items():
        if name in _REFUSED_HEADERS:
            raise StoreError("NotImplemented", f"The header {name} asks for what is not implemented.", Header=name)
        if name in _VALUE_HEADERS:
            harmless, known, code = _VALUE_HEADERS[name]
            if value in known:
                message = f"The value {value} of the header {name} asks for what is not implemented."
                raise StoreError("NotImplemented", message, Header=name)
            if value not in harmless:
                raise StoreError(code, ArgumentName=name, ArgumentValue=value)
