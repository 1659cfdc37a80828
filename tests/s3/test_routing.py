"""Routing: every operation by its request, and nothing that falls through to another."""

import botocore.session
import pytest

from forebay.errors import StoreError
from forebay.s3.request import Hosts, parse_request
from forebay.s3.routing import (
    _SELECTORS,
    _TABLE,
    IMPLEMENTED,
    PARAMETERS,
    Operation,
    check_headers,
    not_implemented,
    preflight_error,
    route,
)

HOSTS = Hosts()
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")


def request_of(method, target, **headers):
    raw = [(b"host", b"localhost"), *((n.replace("_", "-").encode(), v.encode()) for n, v in headers.items())]
    return parse_request(method, target.encode(), raw, HOSTS)


def operation_of(method, target, **headers):
    return route(request_of(method, target, **headers))


def refusal(method, target, **headers):
    with pytest.raises(StoreError) as caught:
        operation_of(method, target, **headers)
    return caught.value.code


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("GET", "/", "ListBuckets"),
        ("GET", "/?max-buckets=10&prefix=a", "ListBuckets"),
        ("PUT", "/b", "CreateBucket"),
        ("HEAD", "/b", "HeadBucket"),
        ("DELETE", "/b", "DeleteBucket"),
        ("GET", "/b", "ListObjects"),
        ("GET", "/b?prefix=a&delimiter=/&marker=x&max-keys=1&encoding-type=url", "ListObjects"),
        ("GET", "/b?list-type=2", "ListObjectsV2"),
        ("GET", "/b?list-type=2&prefix=&continuation-token=x&start-after=y&fetch-owner=true", "ListObjectsV2"),
        ("GET", "/b?versions", "ListObjectVersions"),
        ("GET", "/b?versions&key-marker=a&version-id-marker=b", "ListObjectVersions"),
        ("GET", "/b?uploads", "ListMultipartUploads"),
        ("GET", "/b?location", "GetBucketLocation"),
        ("GET", "/b?versioning", "GetBucketVersioning"),
        ("PUT", "/b?versioning", "PutBucketVersioning"),
        ("POST", "/b?delete", "DeleteObjects"),
        ("PUT", "/b/k", "PutObject"),
        ("PUT", "/b/k?x-id=PutObject", "PutObject"),
        ("GET", "/b/k", "GetObject"),
        ("GET", "/b/k?versionId=1&partNumber=2&response-content-type=a", "GetObject"),
        ("GET", "/b/k?X-Amz-Signature=1&X-Amz-Date=2&x-custom=3", "GetObject"),
        ("HEAD", "/b/k?partNumber=1", "HeadObject"),
        ("DELETE", "/b/k?versionId=null", "DeleteObject"),
        ("GET", "/b/k?attributes", "GetObjectAttributes"),
        ("GET", "/b/k?tagging&versionId=1", "GetObjectTagging"),
        ("PUT", "/b/k?tagging", "PutObjectTagging"),
        ("DELETE", "/b/k?tagging", "DeleteObjectTagging"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("GET", "/b/k?uploadId=u&max-parts=1&part-number-marker=2", "ListParts"),
        ("POST", "/b/k?uploadId=u", "CompleteMultipartUpload"),
        ("DELETE", "/b/k?uploadId=u", "AbortMultipartUpload"),
        # faults that other routers had
        ("PUT", "/b/k?acl", "PutObjectAcl"),
        ("PUT", "/b/k?retention", "PutObjectRetention"),
        ("PUT", "/b?policy", "PutBucketPolicy"),
        ("DELETE", "/b?policy", "DeleteBucketPolicy"),
        ("DELETE", "/b?lifecycle", "DeleteBucketLifecycle"),
        ("POST", "/b", "PostObject"),
        ("OPTIONS", "/b/k", "PreflightRequest"),
    ],
)
def test_routes(method, target, operation):
    assert operation_of(method, target) == operation


def test_copies():
    source = {"x_amz_copy_source": "/b/k"}
    assert operation_of("PUT", "/b/k", **source) is Operation.COPY_OBJECT
    assert operation_of("PUT", "/b/k?partNumber=1&uploadId=u", **source) is Operation.UPLOAD_PART_COPY
    assert operation_of("PUT", "/b/k?acl", **source) is Operation.PUT_OBJECT_ACL


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["/b?unknown", "/b/k?unknown", "/b?unknown=1", "/b/k?uploadid=u", "/b/k?Tagging", "/?unknown"])
def test_unknown_parameters_never_fall_through(method, target):
    try:
        operation = operation_of(method, target)
    except StoreError as error:
        assert error.code in ("MethodNotAllowed", "InvalidArgument")
    else:
        assert operation not in IMPLEMENTED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", ["/b", "/b/k", "/"])
def test_a_selector_never_reaches_the_plain_operation(method, scope):
    plain = set(_TABLE["bucket"][""].values()) | set(_TABLE["object"][""].values()) | set(_TABLE["service"][""].values())
    for selector in _SELECTORS:
        try:
            operation = operation_of(method, f"{scope}?{selector}")
        except StoreError as error:
            assert error.code in ("MethodNotAllowed", "InvalidArgument")
        else:
            assert operation not in plain


def test_contradictions():
    assert refusal("GET", "/b?acl&policy") == "InvalidArgument"
    assert refusal("DELETE", "/b/k?uploadId=u&tagging") == "InvalidArgument"
    assert refusal("PUT", "/b/k?partNumber=1") == "InvalidArgument"
    assert refusal("PUT", "/b/k?uploadId=u") == "InvalidArgument"
    assert refusal("PUT", "/b/k?versionId=1") == "InvalidArgument"
    assert refusal("GET", "/b?list-type=3") == "InvalidArgument"
    assert refusal("DELETE", "/b/k?uploadId=u&versionId=1") == "InvalidArgument"
    assert refusal("DELETE", "/b?prefix=a") == "InvalidArgument"


def test_methods_that_a_resource_lacks():
    assert refusal("HEAD", "/") == "MethodNotAllowed"
    assert refusal("POST", "/b/k") == "MethodNotAllowed"
    assert refusal("HEAD", "/b/k?uploadId=u") == "MethodNotAllowed"
    with pytest.raises(StoreError) as caught:
        operation_of("PATCH", "/b/k?tagging")
    assert caught.value.headers == {"Allow": "GET, PUT, DELETE"}


def test_not_implemented_names_what_was_asked():
    request = request_of("GET", "/b?policy")
    assert not_implemented(route(request), request).message == "GetBucketPolicy is not implemented."
    request = request_of("GET", "/b?unknown&prefix=a")
    error = not_implemented(route(request), request)
    assert (error.code, error.fields["Header"]) == ("NotImplemented", "unknown")


def test_every_operation_is_in_the_table_or_made_from_it():
    in_table = {operation for selectors in _TABLE.values() for methods in selectors.values() for operation in methods.values()}
    made = set(Operation) - in_table
    assert made == {Operation.UNKNOWN, Operation.COPY_OBJECT, Operation.UPLOAD_PART_COPY}
    assert set(PARAMETERS) == IMPLEMENTED


# Operations of botocore's model that share a request with another (old names, lists beside single configurations, other
# hosts), and those newer than the table, which it therefore does not know.
OTHER_NAMES = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
    "ListBucketAnalyticsConfigurations": "GetBucketAnalyticsConfiguration",
    "ListBucketIntelligentTieringConfigurations": "GetBucketIntelligentTieringConfiguration",
    "ListBucketInventoryConfigurations": "GetBucketInventoryConfiguration",
    "ListBucketMetricsConfigurations": "GetBucketMetricsConfiguration",
    "ListDirectoryBuckets": "ListBuckets",
    "WriteGetObjectResponse": "PostObject",
}


def wire_of(operation_model):
    """(method, target) of an operation with its required query parameters, by botocore's own description of it."""
    shape = operation_model.input_shape
    members = shape.members.items() if shape else ()
    query = [
        f"{member.serialization['name']}=1"
        for name, member in members
        if member.serialization.get("location") == "querystring" and name in shape.required_members
    ]
    target = operation_model.http["requestUri"].replace("{Bucket}", "b").replace("{Key+}", "k")
    if query:
        target += ("&" if "?" in target else "?") + "&".join(query)
    return operation_model.http["method"], target


def test_botocore_operations_route_to_their_names():
    model = botocore.session.get_session().get_service_model("s3")
    for name in model.operation_names:
        method, target = wire_of(model.operation_model(name))
        headers = {"x_amz_copy_source": "a/b"} if name in ("CopyObject", "UploadPartCopy") else {}
        operation = operation_of(method, target, **headers)
        assert operation in (name, OTHER_NAMES.get(name), Operation.UNKNOWN), (name, target)
        if name in IMPLEMENTED:
            assert operation == name


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
        ("x-amz-server-side-encryption-customer-key", "a", "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented"),
        ("x-amz-write-offset-bytes", "10", "NotImplemented"),
        ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
        ("x-amz-bucket-object-lock-enabled", "true", "NotImplemented"),
        ("x-amz-storage-class", "STANDARD", None),
        ("x-amz-object-ownership", "BucketOwnerEnforced", None),
        ("x-amz-meta-x-amz-object-lock-mode", "GOVERNANCE", None),
    ],
)
def test_headers_whose_meaning_would_be_lost(name, value, code):
    request = request_of("PUT", "/b/k", **{name: value})
    if code is None:
        check_headers(request)
    else:
        with pytest.raises(StoreError) as caught:
            check_headers(request)
        assert caught.value.code == code


def test_preflight():
    assert preflight_error(request_of("OPTIONS", "/b/k")).code == "BadRequest"
    asked = request_of("OPTIONS", "/b/k", origin="http://a", access_control_request_method="GET")
    assert preflight_error(asked).code == "AccessForbidden"
