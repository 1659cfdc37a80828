"""SigV4 against the examples that AWS publishes, against botocore's signers, and against tampering."""

import datetime
import hashlib
from urllib.parse import quote, unquote, urlsplit

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.crt.auth
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3.request import Hosts, Request, parse_request
from forebay.s3.sigv4 import (
    _QUERY_NAMES,
    EMPTY_SHA256,
    ChunkSigner,
    Credentials,
    HmacKey,
    PayloadMode,
    Verifier,
    chunk_signer,
    derive_signing_key,
    presign_target,
    sign_request,
)

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
EXAMPLE_TIME_S = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC).timestamp()
SCOPE = "20130524/us-east-1/s3/aws4_request"
NOW_S = 1_750_000_000.0
HOSTS = Hosts(["s3.amazonaws.com"])


def verifier(credentials=EXAMPLE, region="us-east-1"):
    return Verifier({credentials.access_key: credentials.secret_key}.get, region)


def request_of(method, target, headers) -> Request:
    return parse_request(method, target.encode(), [(n.encode(), v.encode()) for n, v in headers.items()], HOSTS)


def signed(method="GET", target="/bucket/key", headers=None, payload=EMPTY_SHA256, now_s=NOW_S, credentials=EXAMPLE):
    headers = {"host": "127.0.0.1:9000"} | (headers or {})
    return headers | sign_request(credentials, method, target, headers, payload_sha256=payload, now_s=now_s)


def refusal(request, now_s=NOW_S, by=None) -> StoreError:
    with pytest.raises(StoreError) as caught:
        (by or verifier()).verify(request, now_s)
    return caught.value


# --- AWS's examples: sig-v4-header-based-auth.html, sigv4-query-string-auth.html, sigv4-streaming.html

EXAMPLES = [
    pytest.param(
        "GET",
        "/test.txt",
        {"Range": "bytes=0-9", "x-amz-content-sha256": EMPTY_SHA256},
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        id="get-object",
    ),
    pytest.param(
        "PUT",
        "/test%24file.text",
        {
            "Date": "Fri, 24 May 2013 00:00:00 GMT",
            "x-amz-storage-class": "REDUCED_REDUNDANCY",
            "x-amz-content-sha256": hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
        },
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        id="put-object",
    ),
    pytest.param(
        "GET",
        "/?lifecycle",
        {"x-amz-content-sha256": EMPTY_SHA256},
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        id="get-bucket-lifecycle",
    ),
    pytest.param(
        "GET",
        "/?max-keys=2&prefix=J",
        {"x-amz-content-sha256": EMPTY_SHA256},
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        id="list-objects",
    ),
]


@pytest.mark.parametrize(("method", "target", "headers", "signature"), EXAMPLES)
def test_header_examples(method, target, headers, signature):
    headers = {"Host": "examplebucket.s3.amazonaws.com", **headers, "x-amz-date": "20130524T000000Z"}
    names = ";".join(sorted(name.lower() for name in headers))
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={EXAMPLE.access_key}/{SCOPE},SignedHeaders={names},Signature={signature}"
    request = request_of(method, target, headers)
    verified = verifier().verify(request, EXAMPLE_TIME_S)
    assert request.bucket == "examplebucket"
    assert verified.access_key == EXAMPLE.access_key
    assert verified.payload is PayloadMode.LITERAL
    assert verified.payload_sha256 == headers["x-amz-content-sha256"]


@pytest.mark.parametrize(("method", "target", "headers", "signature"), EXAMPLES)
def test_signer_gives_the_examples(method, target, headers, signature):
    headers = {"Host": "examplebucket.s3.amazonaws.com"} | headers
    payload = headers.pop("x-amz-content-sha256")
    added = sign_request(EXAMPLE, method, target, headers, payload_sha256=payload, now_s=EXAMPLE_TIME_S)
    assert added["authorization"].endswith(signature)


def test_presigned_example():
    target = presign_target(EXAMPLE, "GET", "/test.txt", "examplebucket.s3.amazonaws.com", expires_s=86_400, now_s=EXAMPLE_TIME_S)
    assert target.endswith("aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    request = request_of("GET", target, {"host": "examplebucket.s3.amazonaws.com"})
    verified = verifier().verify(request, EXAMPLE_TIME_S + 86_399)
    assert (verified.access_key, verified.payload) == (EXAMPLE.access_key, PayloadMode.UNSIGNED)


STREAMING_HEADERS = {
    "host": "s3.amazonaws.com",
    "x-amz-storage-class": "REDUCED_REDUNDANCY",
    "content-encoding": "aws-chunked",
    "x-amz-decoded-content-length": "66560",
}


def test_streaming_example():
    headers = STREAMING_HEADERS | {"content-length": "66824"}
    mode = PayloadMode.SIGNED_CHUNKS
    headers |= sign_request(EXAMPLE, "PUT", "/examplebucket/chunkObject.txt", headers, payload_sha256=mode.value, now_s=EXAMPLE_TIME_S)
    assert headers["authorization"].endswith("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9")
    verified = verifier().verify(request_of("PUT", "/examplebucket/chunkObject.txt", headers), EXAMPLE_TIME_S)
    assert verified.payload is mode
    signer = verified.chunk_signer
    for size, signature in (
        (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ):
        assert signer.sign_chunk(hashlib.sha256(b"a" * size).hexdigest()) == signature


def test_streaming_trailer_example():
    headers = STREAMING_HEADERS | {"x-amz-trailer": "x-amz-checksum-crc32c"}
    mode = PayloadMode.SIGNED_CHUNKS_TRAILER
    headers |= sign_request(EXAMPLE, "PUT", "/examplebucket/chunkObject.txt", headers, payload_sha256=mode.value, now_s=EXAMPLE_TIME_S)
    assert headers["authorization"].endswith("106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e")
    signer = chunk_signer(EXAMPLE, headers)
    for size, signature in (
        (65_536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
        (1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
        (0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
    ):
        assert signer.sign_chunk(hashlib.sha256(b"a" * size).hexdigest()) == signature
    trailer = signer.sign_trailer(b"x-amz-checksum-crc32c:sOO8/Q==\n")
    assert trailer == "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_hmac_key_is_hmac(key, message):
    import hmac

    assert HmacKey(key).digest(message) == hmac.digest(key, message, "sha256")


# --- against botocore

ODD_KEYS = [
    "plain",
    "a b",
    "a+b",
    "a%20b",
    "a%2Fb",
    "a//b",
    "/leading",
    "trailing/",
    "//",
    ".",
    "..",
    "a/../b",
    "./a",
    "é/ü/日本語/😀",
    "!*'();:@&=+$,?#[]{}|\\^`<>\"~-_.",
    "tab\tline\nreturn\r",
    "\x01\x7f",
    "a=b&c=d",
    "%",
    "%zz",
]
ODD_QUERIES = [
    "",
    "list-type=2&prefix=a%20b&delimiter=%2F",
    "uploads",
    "uploads=",
    "prefix=a%2Bb&marker=%25",
    "versionId=null&response-content-disposition=attachment%3B%20filename%3D%22%C3%A9%22",
    "b=2&a=1&A=0&a-b=3&aa=4",
]


def botocore_request(key, query, method="PUT"):
    url = f"http://127.0.0.1:9000/bucket/{quote(key, safe='/~')}" + (f"?{query}" if query else "")
    return botocore.awsrequest.AWSRequest(method, url, data=b"body", headers={"Content-Type": "a  b"})


def sent(aws_request):
    """(target, headers) as they go over the wire."""
    parts = urlsplit(aws_request.url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    headers = {name: value for name, value in aws_request.headers.items() if name.lower() != "host"}
    return target, {"Host": parts.netloc} | headers


def now_of(headers):
    stamp = datetime.datetime.strptime(headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    return stamp.replace(tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize("query", ODD_QUERIES)
@pytest.mark.parametrize("key", ODD_KEYS)
def test_botocore_header_signature_verifies(key, query):
    credentials = botocore.credentials.Credentials("AKEY/with/slash", "secret/+=")
    aws_request = botocore_request(key, query)
    botocore.auth.S3SigV4Auth(credentials, "s3", "eu-west-3").add_auth(aws_request)
    target, headers = sent(aws_request)
    request = request_of("PUT", target, headers)
    ours = verifier(Credentials("AKEY/with/slash", "secret/+="), "eu-west-3")
    assert request.key == key
    assert ours.verify(request, now_of(headers)).access_key == "AKEY/with/slash"


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
@pytest.mark.parametrize("key", ODD_KEYS)
def test_botocore_presigned_verifies(key, method):
    credentials = botocore.credentials.Credentials(EXAMPLE.access_key, EXAMPLE.secret_key)
    aws_request = botocore.awsrequest.AWSRequest(method, f"http://127.0.0.1:9000/bucket/{quote(key, safe='/~')}?versionId=a%20b")
    botocore.auth.S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=60).add_auth(aws_request)
    target, headers = sent(aws_request)
    request = request_of(method, target, headers)
    now_s = now_of(request.params)
    assert verifier().verify(request, now_s).payload is PayloadMode.UNSIGNED


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), st.text(st.characters(codec="utf-8"), max_size=5), max_size=4
    ),
    st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]),
)
def test_signer_to_verifier_round_trip(key, query, method):
    target = f"/b/{quote(key, safe='/')}"
    if query:
        target += "?" + "&".join(f"{quote(n)}={quote(v)}" for n, v in query.items())
    request = request_of(method, target, signed(method, target))
    assert request.key == key
    assert request.params == query
    assert verifier().verify(request, NOW_S).access_key == EXAMPLE.access_key
    presigned = presign_target(EXAMPLE, method, target, "localhost", expires_s=10, now_s=NOW_S)
    assert verifier().verify(request_of(method, presigned, {"host": "localhost"}), NOW_S).access_key


# --- tampering: everything that a signature covers


def test_every_covered_part_is_checked():
    headers = signed("PUT", "/bucket/key?a=1", {"x-amz-meta-a": "1", "content-type": "text/plain"})
    assert verifier().verify(request_of("PUT", "/bucket/key?a=1", headers), NOW_S).access_key
    changed = [
        ("POST", "/bucket/key?a=1", headers),
        ("PUT", "/bucket/Key?a=1", headers),
        ("PUT", "/bucket//key?a=1", headers),
        ("PUT", "/bucket/key?a=2", headers),
        ("PUT", "/bucket/key?a=1&b", headers),
        ("PUT", "/bucket/key?a=+1", headers),
        ("PUT", "/bucket/key", headers),
        ("PUT", "/bucket/key?a=1", headers | {"host": "127.0.0.1:9001"}),
        ("PUT", "/bucket/key?a=1", headers | {"x-amz-meta-a": "2"}),
        ("PUT", "/bucket/key?a=1", headers | {"content-type": "text/html"}),
        ("PUT", "/bucket/key?a=1", headers | {"x-amz-content-sha256": "0" * 64}),
        ("PUT", "/bucket/key?a=1", headers | {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
        ("PUT", "/bucket/key?a=1", headers | {"x-amz-date": headers["x-amz-date"][:-2] + "9Z"}),
    ]
    for method, target, changed_headers in changed:
        assert refusal(request_of(method, target, changed_headers)).code == "SignatureDoesNotMatch", (method, target)


def test_space_of_values_is_collapsed_as_signers_do():
    headers = signed("PUT", headers={"x-amz-meta-a": "a   b"})
    assert verifier().verify(request_of("PUT", "/bucket/key", headers), NOW_S).access_key
    headers["x-amz-meta-a"] = "a b"
    assert verifier().verify(request_of("PUT", "/bucket/key", headers), NOW_S).access_key


@given(st.text(st.characters(max_codepoint=255), max_size=80))
def test_no_signature_but_the_right_one(signature):
    headers = signed()
    right = headers["authorization"]
    headers["authorization"] = right[:-64] + signature
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    request = parse_request("GET", b"/bucket/key", raw, HOSTS)
    assert refusal(request).code in ("SignatureDoesNotMatch", "AuthorizationHeaderMalformed")


def test_cached_head_still_checks_the_signature():
    by = verifier()
    headers = signed()
    by.verify(request_of("GET", "/bucket/key", headers), NOW_S)
    wrong = headers | {"authorization": headers["authorization"][:-1] + ("0" if headers["authorization"][-1] != "0" else "1")}
    assert refusal(request_of("GET", "/bucket/key", wrong), by=by).code == "SignatureDoesNotMatch"
    assert refusal(request_of("GET", "/bucket/other", headers), by=by).code == "SignatureDoesNotMatch"


def test_a_changed_or_removed_secret_counts_at_once():
    secrets = {EXAMPLE.access_key: EXAMPLE.secret_key}
    by = Verifier(secrets.get, "us-east-1")
    request = request_of("GET", "/bucket/key", signed())
    assert by.verify(request, NOW_S).access_key
    secrets[EXAMPLE.access_key] = "another"
    assert refusal(request, by=by).code == "SignatureDoesNotMatch"
    del secrets[EXAMPLE.access_key]
    assert refusal(request, by=by).code == "InvalidAccessKeyId"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"authorization": ""}, "AccessDenied"),
        ({"authorization": "Basic abc"}, "InvalidRequest"),
        ({"authorization": "AWS AKID:sig"}, "InvalidRequest"),
        ({"authorization": "AWS4-HMAC-SHA256"}, "AuthorizationHeaderMalformed"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host"}, "AuthorizationHeaderMalformed"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=0"}, "AuthorizationHeaderMalformed"),
        ({"x-amz-date": ""}, "AccessDenied"),
        ({"x-amz-date": "Mon, 01 Jan 2024 00:00:00 GMT"}, "AccessDenied"),
        ({"x-amz-date": "20251301T000000Z"}, "AccessDenied"),
        ({"x-amz-date": "20250615T246000Z"}, "AccessDenied"),
        ({"x-amz-content-sha256": None}, "InvalidRequest"),
        ({"x-amz-security-token": "abc"}, "InvalidToken"),
        ({"x-amz-extra": "unsigned"}, "AccessDenied"),
    ],
)
def test_header_refusals(change, code):
    headers = signed() | change
    assert refusal(request_of("GET", "/bucket/key", {n: v for n, v in headers.items() if v is not None})).code == code


def test_date_header_alone():
    headers = signed(headers={"date": "Sun, 15 Jun 2025 15:06:40 GMT"})
    assert headers["x-amz-date"] == "20250615T150640Z"
    named = ";".join(sorted(headers.keys() - {"authorization", "x-amz-date"}))
    unsigned = {name: value for name, value in headers.items() if name not in ("authorization", "x-amz-date")}
    canonical_block = "".join(f"{name}:{unsigned[name]}\n" for name in named.split(";"))
    canonical = f"GET\n/bucket/key\n\n{canonical_block}\n{named}\n{EMPTY_SHA256}"
    scope = "20250615/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n20250615T150640Z\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = derive_signing_key(EXAMPLE.secret_key, "20250615", "us-east-1").digest(text.encode()).hex()
    unsigned["authorization"] = f"AWS4-HMAC-SHA256 Credential={EXAMPLE.access_key}/{scope}, SignedHeaders={named}, Signature={signature}"
    assert verifier().verify(request_of("GET", "/bucket/key", unsigned), NOW_S).access_key
    assert refusal(request_of("GET", "/bucket/key", unsigned | {"date": "Sun, 15 Jun 2025 15:06:41 GMT"})).code == ("SignatureDoesNotMatch")


@pytest.mark.parametrize("key", ODD_KEYS)
def test_crt_signatures_verify(key):
    """A third signer, in C."""
    credentials = botocore.credentials.Credentials(EXAMPLE.access_key, EXAMPLE.secret_key)
    for auth in (
        botocore.crt.auth.CrtS3SigV4Auth(credentials, "s3", "us-east-1"),
        botocore.crt.auth.CrtS3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=60),
    ):
        aws_request = botocore_request(key, "partNumber=1&uploadId=a%2Fb%20c")
        aws_request.data = None  # the query signer would read it as a form
        auth.add_auth(aws_request)
        target, headers = sent(aws_request)
        request = request_of("PUT", target, headers)
        now_s = now_of(request.params if "X-Amz-Date" in request.params else headers)
        assert verifier().verify(request, now_s).access_key


@pytest.mark.parametrize("offset_s", [-901, 901])
def test_skew(offset_s):
    request = request_of("GET", "/bucket/key", signed())
    assert refusal(request, NOW_S + offset_s).code == "RequestTimeTooSkewed"
    assert verifier().verify(request, NOW_S + offset_s * 899 / 901).access_key


def test_scope_is_checked():
    wrong_region = signed(credentials=EXAMPLE._replace(region="mars-1"))
    error = refusal(request_of("GET", "/bucket/key", wrong_region))
    assert (error.code, error.fields["Region"]) == ("AuthorizationHeaderMalformed", "us-east-1")
    headers = signed()
    other_service = headers | {"authorization": headers["authorization"].replace("/s3/", "/ec2/")}
    assert refusal(request_of("GET", "/bucket/key", other_service)).code == "AuthorizationHeaderMalformed"
    other_day = headers | {"authorization": headers["authorization"].replace("/20250615/", "/20250614/")}
    assert refusal(request_of("GET", "/bucket/key", other_day)).code == "AuthorizationHeaderMalformed"
    unknown = signed(credentials=EXAMPLE._replace(access_key="nobody"))
    assert refusal(request_of("GET", "/bucket/key", unknown)).code == "InvalidAccessKeyId"


def test_host_must_be_signed():
    added = sign_request(EXAMPLE, "GET", "/bucket/key", {}, payload_sha256=EMPTY_SHA256, now_s=NOW_S)
    assert refusal(request_of("GET", "/bucket/key", {"host": "anything"} | added)).code == "AccessDenied"


# --- presigned


def presigned(method="GET", target="/bucket/key", expires_s=3600, headers=None):
    return presign_target(EXAMPLE, method, target, "localhost", expires_s=expires_s, now_s=NOW_S, headers=headers)


def test_presigned_lives_by_its_expiry_and_not_by_skew():
    request = request_of("GET", presigned(), {"host": "localhost"})
    assert verifier().verify(request, NOW_S + 3600).access_key
    assert refusal(request, NOW_S + 3601).message == "Request has expired"
    assert verifier().verify(request, NOW_S - 899).access_key
    assert refusal(request, NOW_S - 901).message == "Request is not valid yet"


@pytest.mark.parametrize("expires_s", [0, -7, 604_801])
def test_presigned_expiry_range(expires_s):
    assert refusal(request_of("GET", presigned(expires_s=expires_s), {"host": "localhost"})).code == "AccessDenied"


def test_presigned_refusals():
    target = presigned()
    host = {"host": "localhost"}
    assert refusal(request_of("PUT", target, host)).code == "SignatureDoesNotMatch"
    assert refusal(request_of("GET", target.replace("/key", "/kex"), host)).code == "SignatureDoesNotMatch"
    assert refusal(request_of("GET", target.replace("=3600", "=3601"), host)).code == "SignatureDoesNotMatch"
    assert refusal(request_of("GET", target + "&versionId=1", host)).code == "SignatureDoesNotMatch"
    without = target.replace("X-Amz-Date", "x-amz-date")
    assert refusal(request_of("GET", without, host)).code == "AuthorizationQueryParametersError"
    assert refusal(request_of("GET", target.partition("&X-Amz-Signature")[0], host)).code == "AuthorizationQueryParametersError"
    assert refusal(request_of("GET", target, host | {"x-amz-meta-a": "1"})).code == "AccessDenied"
    assert refusal(request_of("GET", target, host | {"authorization": "x"})).code == "InvalidArgument"
    v2 = "/bucket/key?AWSAccessKeyId=a&Signature=b&Expires=1"
    assert refusal(request_of("GET", v2, host)).code == "InvalidRequest"


def test_presigned_payload_hash():
    literal = hashlib.sha256(b"x").hexdigest()
    # Signed with the URL: it holds.
    target = presigned("PUT", headers={"x-amz-content-sha256": literal})
    headers = {"host": "localhost", "x-amz-content-sha256": literal}
    verified = verifier().verify(request_of("PUT", target, headers), NOW_S)
    assert (verified.payload, verified.payload_sha256) == (PayloadMode.LITERAL, literal)
    assert refusal(request_of("PUT", target, headers | {"x-amz-content-sha256": "0" * 64})).code == "SignatureDoesNotMatch"
    # Only sent: what it says about the body still counts, so that framing is never taken for payload.
    for mode in (PayloadMode.UNSIGNED, PayloadMode.UNSIGNED_TRAILER):
        verified = verifier().verify(request_of("PUT", presigned("PUT"), {"host": "localhost", "x-amz-content-sha256": mode.value}), NOW_S)
        assert verified.payload is mode
    # In the query, as one SDK writes it.
    target = presigned("PUT", "/bucket/key?X-Amz-Content-Sha256=UNSIGNED-PAYLOAD")
    assert verifier().verify(request_of("PUT", target, {"host": "localhost"}), NOW_S).payload is PayloadMode.UNSIGNED


# --- anonymous


def test_anonymous():
    verified = verifier().verify(request_of("GET", "/bucket/key", {"host": "localhost"}), NOW_S)
    assert (verified.access_key, verified.payload) == (None, PayloadMode.UNSIGNED)
    signed_chunks = {"host": "localhost", "x-amz-content-sha256": PayloadMode.SIGNED_CHUNKS.value}
    assert refusal(request_of("PUT", "/bucket/key", signed_chunks)).code == "AccessDenied"


@pytest.mark.parametrize("value", ["", "abc", "g" * 64, "A" * 64, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"])
def test_payload_modes_that_s3_does_not_have(value):
    assert refusal(request_of("PUT", "/bucket/key", signed("PUT", payload=value))).code == "InvalidArgument"


HEADER_TEXT = st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=30)
PIECES = st.sampled_from(
    [
        "AWS4-HMAC-SHA256 ",
        f"Credential={EXAMPLE.access_key}/20250615/us-east-1/s3/aws4_request",
        "SignedHeaders=host;x-amz-date",
        "Signature=" + "0" * 64,
        ", ",
        "=",
        "/",
    ]
)


@given(st.lists(st.one_of(PIECES, HEADER_TEXT), max_size=8), HEADER_TEXT, HEADER_TEXT)
def test_no_authorization_header_but_a_right_one(pieces, amz_date, payload):
    headers = {"host": "localhost", "authorization": "".join(pieces), "x-amz-date": amz_date, "x-amz-content-sha256": payload}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    assert refusal(parse_request("GET", b"/b/k", raw, HOSTS)).code


@given(
    st.dictionaries(
        st.sampled_from([*_QUERY_NAMES, "X-Amz-Security-Token", "X-Amz-Content-Sha256"]),
        st.text(st.characters(codec="utf-8"), max_size=20),
        max_size=8,
    )
)
def test_no_presigned_query_but_a_right_one(changes):
    fields = dict(pair.split("=") for pair in presigned().partition("?")[2].split("&"))
    original = {name: unquote(value) for name, value in fields.items()}
    query = original | changes
    target = "/bucket/key?" + "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in query.items())
    request = request_of("GET", target, {"host": "localhost"})
    if query == original:
        assert verifier().verify(request, NOW_S).access_key
    else:
        assert refusal(request).code


def test_caches_are_bounded():
    by = verifier()
    for day in range(1100):
        headers = signed(now_s=NOW_S + day * 86_400)
        by.verify(request_of("GET", "/bucket/key", headers), NOW_S + day * 86_400)
    assert len(by._scopes) <= 1024
    assert len(by._heads) <= 1024


def test_chunk_signer_chains():
    key = derive_signing_key("secret", "20250615", "us-east-1")
    signer = ChunkSigner(key, "20250615T000000Z", "20250615/us-east-1/s3/aws4_request", "0" * 64)
    assert signer.sign_chunk(EMPTY_SHA256) != signer.sign_chunk(EMPTY_SHA256)
