"""S3's error codes, their HTTP statuses and default sentences, and the error document.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. Codes of our own are marked in the table.
"""

from __future__ import annotations

from typing import NamedTuple

from forebay.errors import StoreError
from forebay.s3 import xml_responses


class ErrorAnswer(NamedTuple):
    """An HTTP answer: status, headers (Content-Type included, Content-Length not) and body (empty for 304)."""

    status: int
    headers: dict[str, str]
    body: bytes


class ErrorKind(NamedTuple):
    """What an S3 error code means to HTTP and to a reader."""

    status: int
    message: str


# code -> (status, default message). Sentences that clients or test suites compare are S3's; the others are ours.
ERRORS: dict[str, ErrorKind] = {
    code: ErrorKind(status, message)
    for code, status, message in (
        ("AccessControlListNotSupported", 400, "The bucket does not allow ACLs."),
        ("AccessDenied", 403, "Access Denied"),
        ("AccessForbidden", 403, "CORSResponse: This request is not allowed."),
        ("AccountProblem", 403, "There is a problem with the account that prevents the operation."),
        ("AllAccessDisabled", 403, "All access to this resource has been disabled."),
        ("AmbiguousGrantByEmailAddress", 400, "The email address that you provided is associated with more than one account."),
        (
            "AuthorizationHeaderMalformed",
            400,
            "The authorization header is malformed; it must be an AWS4-HMAC-SHA256 header with Credential, SignedHeaders and Signature.",
        ),
        (
            "AuthorizationQueryParametersError",
            400,
            "The signature in the query is malformed; it needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, "
            "X-Amz-Expires, X-Amz-SignedHeaders and X-Amz-Signature.",
        ),
        (
            "BadDigest",
            400,
            "The Content-MD5 or checksum value that you specified did not match what the server received.",
        ),
        ("BadRequest", 400, "The request is not valid."),
        ("BucketAlreadyExists", 409, "The requested bucket name is not available. Select another name and try again."),
        ("BucketAlreadyOwnedByYou", 409, "The bucket that you tried to create already exists, and you own it."),
        ("BucketNotEmpty", 409, "The bucket that you tried to delete is not empty."),
        (
            "ConditionalRequestConflict",
            409,
            "A conflicting change was made while this conditional request ran. Try again.",
        ),
        ("CrossLocationLoggingProhibited", 403, "Cross-location logging is not allowed."),
        ("EntityTooLarge", 400, "The proposed upload exceeds the maximum allowed size."),
        ("EntityTooSmall", 400, "The proposed upload is smaller than the minimum allowed size."),
        ("ExpiredToken", 400, "The provided token has expired."),
        (
            "IllegalLocationConstraintException",
            400,
            "The location constraint is not the region of this server.",
        ),
        ("IllegalVersioningConfigurationException", 400, "The versioning configuration in the request is not valid."),
        ("IncompleteBody", 400, "The body is shorter or longer than the length that the request announced."),
        ("IncorrectNumberOfFilesInPostRequest", 400, "POST requires exactly one file upload per request."),
        ("InlineDataTooLarge", 400, "The inline data exceeds the maximum allowed size."),
        # Ours in status: a store on premises can be full. 507 is not retried by clients, as 503 would be.
        ("InsufficientCapacity", 507, "The drives of the store are full. Delete objects or add drives, then try again."),
        ("InternalError", 500, "We encountered an internal error. Please try again."),
        ("InvalidAccessKeyId", 403, "The access key ID that you provided does not exist in our records."),
        ("InvalidArgument", 400, "A specified argument was not valid."),
        ("InvalidBucketAclWithObjectOwnership", 400, "The bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting."),
        ("InvalidBucketName", 400, "The specified bucket is not valid."),
        ("InvalidBucketState", 409, "The request is not valid for the current state of the bucket."),
        ("InvalidChunkSizeError", 403, "Only the last chunk is allowed to have a size less than 8192 bytes"),
        ("InvalidDigest", 400, "The Content-MD5 or checksum value that you specified is not valid."),
        ("InvalidEncryptionAlgorithmError", 400, "The encryption request that you specified is not valid."),
        ("InvalidLocationConstraint", 400, "The specified location (region) constraint is not valid."),
        ("InvalidObjectState", 403, "The operation is not valid for the current state of the object."),
        (
            "InvalidPart",
            400,
            "One or more of the specified parts could not be found. The part may not have been uploaded, or the "
            "specified entity tag may not match the part's entity tag.",
        ),
        ("InvalidPartNumber", 416, "The requested partnumber is not satisfiable"),
        (
            "InvalidPartOrder",
            400,
            "The list of parts was not in ascending order. Parts must be ordered by part number.",
        ),
        ("InvalidPolicyDocument", 400, "The content of the form does not meet the conditions specified in the policy document."),
        ("InvalidRange", 416, "The requested range is not satisfiable"),
        ("InvalidRequest", 400, "The request is not valid."),
        ("InvalidRetentionPeriod", 400, "The retention period is not valid."),
        ("InvalidStorageClass", 400, "The storage class that you specified is not valid."),
        ("InvalidTag", 400, "The tag provided was not a valid tag."),
        ("InvalidToken", 400, "The provided token is malformed or otherwise not valid."),
        ("InvalidURI", 400, "The specified URI couldn't be parsed."),
        ("KeyTooLongError", 400, "Your key is too long"),
        ("MalformedACLError", 400, "The ACL that you provided was not well formed or did not validate against our published schema."),
        ("MalformedPolicy", 400, "Your policy contains a principal, action, resource or condition that is not valid."),
        ("MalformedPOSTRequest", 400, "The body of your POST request is not well-formed multipart/form-data."),
        ("MalformedTrailerError", 400, "The request contained trailing data that was not well-formed."),
        (
            "MalformedXML",
            400,
            "The XML that you provided was not well formed or did not validate against our published schema.",
        ),
        ("MaxMessageLengthExceeded", 400, "Your request was too large."),
        ("MaxPostPreDataLengthExceededError", 400, "Your POST request fields preceding the upload file were too large."),
        ("MetadataTooLarge", 400, "Your metadata headers exceed the maximum allowed metadata size."),
        ("MethodNotAllowed", 405, "The specified method is not allowed against this resource."),
        ("MissingContentLength", 411, "You must provide the Content-Length HTTP header."),
        ("MissingRequestBodyError", 400, "Request body is empty."),
        ("MissingSecurityHeader", 400, "Your request is missing a required header."),
        ("NoSuchBucket", 404, "The specified bucket does not exist"),
        ("NoSuchBucketPolicy", 404, "The bucket policy does not exist"),
        ("NoSuchCORSConfiguration", 404, "The CORS configuration does not exist"),
        ("NoSuchKey", 404, "The specified key does not exist."),
        ("NoSuchLifecycleConfiguration", 404, "The lifecycle configuration does not exist"),
        ("NoSuchObjectLockConfiguration", 404, "The specified object does not have an ObjectLock configuration."),
        ("NoSuchPublicAccessBlockConfiguration", 404, "The public access block configuration was not found."),
        ("NoSuchTagSet", 404, "The TagSet does not exist"),
        (
            "NoSuchUpload",
            404,
            "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.",
        ),
        ("NoSuchVersion", 404, "The specified version does not exist."),
        ("NoSuchWebsiteConfiguration", 404, "The specified bucket does not have a website configuration."),
        (
            "NotImplemented",
            501,
            "A header or parameter that you provided implies functionality that is not implemented.",
        ),
        ("NotModified", 304, "Not Modified"),
        ("ObjectAlreadyInActiveTierError", 403, "This object is not in an archive tier."),
        ("ObjectLockConfigurationNotFoundError", 404, "Object Lock configuration does not exist for this bucket"),
        ("OperationAborted", 409, "A conflicting operation is in progress against this resource. Try again."),
        ("OwnershipControlsNotFoundError", 404, "The bucket ownership controls were not found"),
        ("PermanentRedirect", 301, "The bucket must be addressed with another endpoint."),
        ("PreconditionFailed", 412, "At least one of the preconditions that you specified did not hold."),
        ("ReplicationConfigurationNotFoundError", 404, "The replication configuration was not found."),
        ("RequestHeaderSectionTooLarge", 400, "Your request header section exceeds the maximum allowed size."),
        ("RequestIsNotMultiPartContent", 400, "A bucket POST must be of the enclosure-type multipart/form-data."),
        (
            "RequestTimeout",
            400,
            "Your socket connection to the server was not read from or written to within the timeout period.",
        ),
        ("RequestTimeTooSkewed", 403, "The difference between the request time and the server's time is too large."),
        ("RestoreAlreadyInProgress", 409, "Object restore is already in progress."),
        (
            "ServerSideEncryptionConfigurationNotFoundError",
            404,
            "The server side encryption configuration was not found",
        ),
        ("ServiceUnavailable", 503, "The service cannot serve the request now. Try again."),
        (
            "SignatureDoesNotMatch",
            403,
            "The request signature that we calculated does not match the signature that you provided. "
            "Check your secret access key and signing method.",
        ),
        ("SlowDown", 503, "Please reduce your request rate."),
        ("TemporaryRedirect", 307, "You are being redirected to another endpoint."),
        ("TooManyBuckets", 400, "You have attempted to create more buckets than are allowed."),
        ("UnexpectedContent", 400, "This request contains unsupported content."),
        ("UnresolvableGrantByEmailAddress", 400, "The email address that you provided does not match any account on record."),
        ("URITooLong", 414, "The request target is longer than the server reads."),  # ours: HTTP's status, no S3 code
        (
            "UserKeyMustBeSpecified",
            400,
            "The bucket POST must contain the specified field name. If it is specified, check the order of the fields.",
        ),
        (
            "XAmzContentSHA256Mismatch",
            400,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ),
    )
}
UNKNOWN_CODE_STATUS = 500


def status_of(code: str) -> int:
    """The HTTP status of an S3 error code; 500 for a code that the table does not know."""
    kind = ERRORS.get(code)
    return kind.status if kind else UNKNOWN_CODE_STATUS


def message_of(error: StoreError) -> str:
    """The error's own message, else the code's default sentence."""
    kind = ERRORS.get(error.code)
    return error.message or (kind.message if kind else error.code)


def error_document(error: StoreError, resource: str, request_id: str, host_id: str) -> ErrorAnswer:
    """The answer to a refused request. For HEAD the server sends the status and headers without the body."""
    status = status_of(error.code)
    if status == 304:
        return ErrorAnswer(status, dict(error.headers), b"")
    fields = [
        ("Code", error.code),
        ("Message", message_of(error)),
        *error.fields.items(),
        ("Resource", resource),
        ("RequestId", request_id),
        ("HostId", host_id),
    ]
    return ErrorAnswer(status, {"Content-Type": "application/xml", **error.headers}, xml_responses.error(fields))
