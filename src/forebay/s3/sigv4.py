"""AWS Signature Version 4, both sides: the server verifies, clients sign.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html and its pages on header,
query and streaming signatures. A signature covers a canonical form of the head:

    method \\n path \\n query \\n header:value\\n... \\n signed names \\n payload hash

For S3 the path is percent-encoded exactly once and never normalised. Signing keys depend on day, region and service only
and are kept, so that verifying costs two hashes.
"""

from __future__ import annotations

import enum
import functools
import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from forebay.errors import StoreError
from forebay.s3.names import SECOND_NS, parse_http_date, parse_iso_time
from forebay.s3.request import Request

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "s3"
SKEW_S_MAX = 15 * 60
EXPIRES_S_MAX = 7 * 86_400
KEYS_CACHED_MAX = 1024  # one a credential and day
AUTHORIZATION_CACHED_CHARS_MAX = 1024
EMPTY_SHA256 = sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"

_UNRESERVED_PATH = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/"
_HEX = frozenset("0123456789abcdef")
_QUERY_NAMES = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)


class PayloadMode(enum.Enum):
    """What x-amz-content-sha256 says about the body."""

    LITERAL = "literal"  # the body's SHA-256 is in the head
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


_MODES = {mode.value: mode for mode in PayloadMode if mode is not PayloadMode.LITERAL}


class HmacKey:
    """HMAC-SHA256 (RFC 2104) with the key's two hash states kept: less than half the cost of hashing the key each time."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= 64 else sha256(key).digest()).ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, message: bytes) -> bytes:
        """The MAC of a message."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


class ChunkSigner:
    """The chain of chunk signatures of one streamed body, starting from the head's (the seed)."""

    __slots__ = ("_key", "_previous", "_scope")

    def __init__(self, signing_key: HmacKey, amz_date: str, scope: str, seed_signature: str) -> None:
        self._key = signing_key
        self._scope = f"{amz_date}\n{scope}"
        self._previous = seed_signature

    def sign_chunk(self, chunk_sha256_hex: str) -> str:
        """The signature of the next chunk (the last is empty); it becomes the chain's previous one."""
        return self._sign(f"AWS4-HMAC-SHA256-PAYLOAD\n{self._scope}\n{self._previous}\n{EMPTY_SHA256}\n{chunk_sha256_hex}")

    def sign_trailer(self, trailer: bytes) -> str:
        """The signature over the trailer's `name:value\\n` lines, after the last chunk's."""
        return self._sign(f"AWS4-HMAC-SHA256-TRAILER\n{self._scope}\n{self._previous}\n{sha256(trailer).hexdigest()}")

    def _sign(self, string_to_sign: str) -> str:
        self._previous = self._key.digest(string_to_sign.encode()).hex()
        return self._previous


class Verified(NamedTuple):
    """Who sent the request and how its body is protected. `access_key` is None for an anonymous request."""

    access_key: str | None
    payload: PayloadMode
    payload_sha256: str | None = None  # lower-case hex, LITERAL only
    chunk_signer: ChunkSigner | None = None  # the signed streaming modes only


class _Scope(NamedTuple):
    """A credential `access key/day/region/service/aws4_request`, with the signing key it stands for."""

    access_key: str
    secret_key: str
    day: str
    text: str  # without the access key
    signing_key: HmacKey


class _Authorization(NamedTuple):
    """The fields of an Authorization header; `names` are those of `signed_headers`."""

    credential: str
    signed_headers: str
    names: tuple[str, ...]
    signature: str


class Verifier:
    """Verifies requests against a table of credentials. Holds bounded caches; not for use by several threads at once.

    `secret_of(access_key)` returns the secret key or None if there is no such access key (or it is disabled).
    """

    def __init__(self, secret_of: Callable[[str], str | None], region: str) -> None:
        self._secret_of = secret_of
        self._region = region
        self._scopes: dict[str, _Scope] = {}  # credential -> scope
        self._heads: dict[str, _Authorization] = {}  # Authorization up to the signature -> its fields

    def verify(self, request: Request, now_s: float) -> Verified:
        """Verify the head's signature. `now_s` is Unix time.

        Raises StoreError: AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, AuthorizationHeaderMalformed,
        AuthorizationQueryParametersError, RequestTimeTooSkewed, InvalidArgument, InvalidRequest, InvalidToken.
        """
        authorization = request.headers.get("authorization")
        params = request.params
        in_query = bool(params) and ("X-Amz-Signature" in params or "X-Amz-Credential" in params)
        if authorization is not None:
            if in_query:
                raise StoreError("InvalidArgument", "Only one auth mechanism allowed", ArgumentName="Authorization")
            return self._verify_header(request, authorization, now_s)
        if in_query:
            return self._verify_query(request, now_s)
        if "Signature" in params and "AWSAccessKeyId" in params:
            raise _unsupported()
        return _anonymous(request)

    def _verify_header(self, request: Request, authorization: str, now_s: float) -> Verified:
        credential, signed_headers, names, signature = self._authorization(authorization)
        headers = request.headers
        scope = self._scope(credential, "AuthorizationHeaderMalformed")
        amz_date, time_s = _request_time(headers)
        if abs(now_s - time_s) > SKEW_S_MAX:
            raise _skewed(amz_date, now_s)
        if not amz_date.startswith(scope.day):
            raise StoreError("AuthorizationHeaderMalformed", f"Invalid credential date {scope.day}. It is not of the request's day.")
        payload = headers.get("x-amz-content-sha256")
        if payload is None:
            raise StoreError("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        _check_token(headers.get("x-amz-security-token"))
        _check_signed(names, headers)
        canonical = _canonical_request(
            request.method, request.path, _canonical_query(request.query), headers, names, signed_headers, payload
        )
        self._compare(canonical, amz_date, scope, signature)
        return _verified(scope, payload, amz_date, signature)

    def _verify_query(self, request: Request, now_s: float) -> Verified:
        params, headers = request.params, request.headers
        missing = [name for name in _QUERY_NAMES if name not in params]
        if missing:
            raise _bad_query(f"The query has no {', '.join(missing)}.")
        if not all(params[name].isascii() for name in _QUERY_NAMES):
            raise _bad_query("The parameters of a signature are ASCII.")
        if params["X-Amz-Algorithm"] != ALGORITHM:
            raise _bad_query(f"X-Amz-Algorithm only supports {ALGORITHM}.")
        scope = self._scope(params["X-Amz-Credential"], "AuthorizationQueryParametersError")
        amz_date = params["X-Amz-Date"]
        _check_expiry(amz_date, params["X-Amz-Expires"], now_s)
        if not amz_date.startswith(scope.day):
            raise _bad_query(f"Invalid credential date {scope.day}. It is not the day of X-Amz-Date.")
        _check_token(params.get("X-Amz-Security-Token") or headers.get("x-amz-security-token"))
        signed_headers, signature = params["X-Amz-SignedHeaders"], params["X-Amz-Signature"]
        names = tuple(signed_headers.split(";"))
        _check_signed(names, headers)
        # What the body is, is what the head says; it counts for the signature only where the client signed it.
        in_query = params.get("X-Amz-Content-Sha256")
        payload = in_query or headers.get("x-amz-content-sha256", UNSIGNED)
        _payload_mode(payload)
        signed_payload = payload if in_query or "x-amz-content-sha256" in names else UNSIGNED
        query = _canonical_query([pair for pair in request.query if pair[0] != "X-Amz-Signature"])
        canonical = _canonical_request(request.method, request.path, query, headers, names, signed_headers, signed_payload)
        self._compare(canonical, amz_date, scope, signature)
        return _verified(scope, payload, amz_date, signature)

    def _scope(self, credential: str, malformed: str) -> _Scope:
        """The credential's scope, checked; from the cache unless its secret changed."""
        scope = self._scopes.get(credential)
        if scope is not None and self._secret_of(scope.access_key) == scope.secret_key:
            return scope
        access_key, *rest = credential.rsplit("/", 4)
        if not access_key or len(rest) != 4:
            raise StoreError(malformed, "The credential is not access-key/yyyymmdd/region/s3/aws4_request.")
        day, region, service, terminal = rest
        if region != self._region:
            raise StoreError(malformed, f"The region '{region}' is wrong; expecting '{self._region}'", Region=self._region)
        if service != SERVICE or terminal != "aws4_request" or len(day) != 8:
            raise StoreError(malformed, f"Wrong credential scope '{'/'.join(rest)}'; it must end in /s3/aws4_request.")
        secret_key = self._secret_of(access_key)
        if secret_key is None:
            raise StoreError("InvalidAccessKeyId", AWSAccessKeyId=access_key)
        if len(self._scopes) >= KEYS_CACHED_MAX:
            self._scopes.clear()
        signing_key = derive_signing_key(secret_key, day, region)
        scope = _Scope(access_key, secret_key, day, "/".join(rest), signing_key)
        self._scopes[credential] = scope
        return scope

    def _authorization(self, authorization: str) -> _Authorization:
        """The header's fields. All but the signature is the same from request to request of a client, so it is kept."""
        head, signature = authorization[:-64], authorization[-64:]
        parsed = self._heads.get(head)
        if parsed is not None:
            return parsed._replace(signature=signature)
        parsed = _parse_authorization(authorization)
        if parsed.signature == signature and len(head) <= AUTHORIZATION_CACHED_CHARS_MAX:
            if len(self._heads) >= KEYS_CACHED_MAX:
                self._heads.clear()
            self._heads[head] = parsed
        return parsed

    @staticmethod
    def _compare(canonical: bytes, amz_date: str, scope: _Scope, signature: str) -> None:
        string_to_sign = f"{ALGORITHM}\n{amz_date}\n{scope.text}\n{sha256(canonical).hexdigest()}"
        expected = scope.signing_key.digest(string_to_sign.encode("latin-1")).hex()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise StoreError(
                "SignatureDoesNotMatch",
                AWSAccessKeyId=scope.access_key,
                StringToSign=string_to_sign,
                SignatureProvided=signature,
                CanonicalRequest=canonical.decode("latin-1"),
            )


def derive_signing_key(secret_key: str, day: str, region: str, service: str = SERVICE) -> HmacKey:
    """The key for one day (`yyyymmdd`), region and service."""
    key = ("AWS4" + secret_key).encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return HmacKey(key)


# --- the canonical request


def _canonical_request(
    method: str,
    path: bytes,
    canonical_query: str,
    headers: Mapping[str, str],
    names: tuple[str, ...],
    signed_headers: str,
    payload: str,
) -> bytes:
    """`names` are SignedHeaders' names in its order; a name that the request lacks counts as empty."""
    block = "".join([f"{name}:{headers.get(name, '')}\n" for name in names])
    if "  " in block:
        block = "".join([f"{name}:{_collapsed(headers.get(name, ''))}\n" for name in names])
    uri = path.decode() if not path.translate(None, _UNRESERVED_PATH) else quote(unquote_to_bytes(path), safe="/~")
    return f"{method}\n{uri}\n{canonical_query}\n{block}\n{signed_headers}\n{payload}".encode("latin-1")


def _collapsed(value: str) -> str:
    """The value with each run of spaces as one."""
    return " ".join([word for word in value.split(" ") if word])


def _canonical_query(query: Iterable[tuple[str, str]]) -> str:
    """Name-value pairs, percent-encoded, then sorted by their encoded bytes."""
    if not query:
        return ""
    pairs = sorted([(quote(name, safe="~"), quote(value, safe="~")) for name, value in query])
    return "&".join([f"{name}={value}" for name, value in pairs])


# --- reading the head


def _parse_authorization(authorization: str) -> _Authorization:
    """`AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`."""
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        if not authorization:
            raise StoreError("AccessDenied")
        raise _unsupported()
    fields = {}
    for field in rest.split(","):
        name, _, value = field.strip().partition("=")
        fields[name] = value
    try:
        signed_headers = fields["SignedHeaders"]
        return _Authorization(fields["Credential"], signed_headers, tuple(signed_headers.split(";")), fields["Signature"])
    except KeyError as missing:
        raise StoreError("AuthorizationHeaderMalformed", f"The authorization header has no {missing.args[0]}.") from None


def _check_signed(names: tuple[str, ...], headers: Mapping[str, str]) -> None:
    """`host` and every x-amz-* header must be signed.

    x-amz-content-sha256 need not be: the canonical request holds its value in any case.
    """
    unsigned = [n for n in headers if n[:6] == "x-amz-" and n not in names and n != "x-amz-content-sha256"]
    if unsigned or "host" not in names:
        raise StoreError(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            HeadersNotSigned=", ".join(unsigned or ["host"]),
        )


@functools.lru_cache(maxsize=64)
def _amz_time(text: str) -> int | None:
    """Unix time of `yyyymmddThhmmssZ`, or None."""
    if len(text) != 16 or text[8] != "T" or text[15] != "Z" or not (text[:8] + text[9:15]).isdigit():
        return None
    time_ns = parse_iso_time(text)
    return None if time_ns is None else time_ns // SECOND_NS


def _request_time(headers: Mapping[str, str]) -> tuple[str, int]:
    """x-amz-date, or Date where there is none, as SigV4 writes it and as Unix time."""
    amz_date = headers.get("x-amz-date")
    if amz_date is None:
        date_s = parse_http_date(headers.get("date", ""))
        amz_date = "" if date_s is None else _amz_date(date_s)
    time_s = _amz_time(amz_date)
    if time_s is None:
        raise StoreError("AccessDenied", "AWS authentication requires a valid x-amz-date header (yyyymmddThhmmssZ).")
    return amz_date, time_s


def _check_expiry(amz_date: str, expires: str, now_s: float) -> None:
    """A presigned request lives from its date for as long as it says; clocks may differ only at its beginning."""
    time_s = _amz_time(amz_date)
    if time_s is None:
        raise _bad_query("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    expires_s = int(expires) if expires.isascii() and expires.isdigit() and len(expires) <= 9 else 0
    if not 1 <= expires_s <= EXPIRES_S_MAX:
        raise StoreError("AccessDenied", f"X-Amz-Expires must be between 1 and {EXPIRES_S_MAX} seconds.")
    if time_s > now_s + SKEW_S_MAX:
        raise StoreError("AccessDenied", "Request is not valid yet", ServerTime=_amz_date(now_s))
    if now_s > time_s + expires_s:
        raise StoreError("AccessDenied", "Request has expired", Expires=_amz_date(time_s + expires_s), ServerTime=_amz_date(now_s))


def _verified(scope: _Scope, payload: str, amz_date: str, signature: str) -> Verified:
    mode = _payload_mode(payload)
    if mode is PayloadMode.LITERAL:
        return Verified(scope.access_key, mode, payload)
    if mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        return Verified(scope.access_key, mode, None, ChunkSigner(scope.signing_key, amz_date, scope.text, signature))
    return Verified(scope.access_key, mode)


def _anonymous(request: Request) -> Verified:
    payload = request.headers.get("x-amz-content-sha256", UNSIGNED)
    mode = _payload_mode(payload)
    if mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        raise StoreError("AccessDenied", "A body of signed chunks needs a signed request.")
    return Verified(None, mode, payload if mode is PayloadMode.LITERAL else None)


def _payload_mode(payload: str) -> PayloadMode:
    if len(payload) == 64 and _HEX.issuperset(payload):
        return PayloadMode.LITERAL
    mode = _MODES.get(payload)
    if mode is None:
        raise StoreError(
            "InvalidArgument",
            f"x-amz-content-sha256 must be {', '.join(_MODES)} or a valid sha256 value.",
            ArgumentName="x-amz-content-sha256",
            ArgumentValue=payload,
        )
    return mode


def _check_token(token: str | None) -> None:
    if token:
        raise StoreError("InvalidToken", "This store knows no session tokens; use an access key and its secret alone.")


def _unsupported() -> StoreError:
    return StoreError(
        "InvalidRequest",
        f"The authorization mechanism you have provided is not supported. Please use {ALGORITHM} "
        "(boto3: Config(signature_version='s3v4')).",
    )


def _bad_query(message: str) -> StoreError:
    return StoreError("AuthorizationQueryParametersError", message)


def _skewed(amz_date: str, now_s: float) -> StoreError:
    return StoreError(
        "RequestTimeTooSkewed",
        RequestTime=amz_date,
        ServerTime=_amz_date(now_s),
        MaxAllowedSkewMilliseconds=str(SKEW_S_MAX * 1000),
    )


# --- signing


class Credentials(NamedTuple):
    """What a client signs with."""

    access_key: str
    secret_key: str
    region: str = "us-east-1"


def sign_request(
    credentials: Credentials,
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    payload_sha256: str,
    now_s: float,
) -> dict[str, str]:
    """Sign with the Authorization header: the headers to add (authorization, x-amz-date, x-amz-content-sha256).

    `target` is the percent-encoded path and query as it will be sent; `headers` must hold `host`, and all of them are
    signed (names in any case). `payload_sha256` is the hex digest or one of PayloadMode's wire names.
    """
    amz_date = _amz_date(now_s)
    added = {"x-amz-date": amz_date, "x-amz-content-sha256": payload_sha256}
    signed = {name.lower(): value.strip() for name, value in headers.items()} | added
    names, signature = _sign(credentials, method, target, signed, payload_sha256=payload_sha256, amz_date=amz_date)
    credential = f"{credentials.access_key}/{_scope_text(credentials, amz_date)}"
    added["authorization"] = f"{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return added


def presign_target(
    credentials: Credentials,
    method: str,
    target: str,
    host: str,
    *,
    expires_s: int,
    now_s: float,
    headers: Mapping[str, str] | None = None,
) -> str:
    """The target with a query signature that is valid for `expires_s` from `now_s`; `headers` must then be sent too."""
    amz_date = _amz_date(now_s)
    signed = {name.lower(): value.strip() for name, value in (headers or {}).items()} | {"host": host}
    fields = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{_scope_text(credentials, amz_date)}",
        "X-Amz-Date": amz_date,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": ";".join(sorted(signed)),
    }
    query = "&".join(f"{name}={quote(value, safe='~')}" for name, value in fields.items())
    target += ("&" if "?" in target else "?") + query
    payload = signed.get("x-amz-content-sha256", UNSIGNED)
    _, signature = _sign(credentials, method, target, signed, payload_sha256=payload, amz_date=amz_date)
    return f"{target}&X-Amz-Signature={signature}"


def chunk_signer(credentials: Credentials, signed: Mapping[str, str]) -> ChunkSigner:
    """The signer of the chunks of a request that `sign_request` signed with a streaming payload; `signed` is its result."""
    amz_date = signed["x-amz-date"]
    key = derive_signing_key(credentials.secret_key, amz_date[:8], credentials.region)
    seed = signed["authorization"].rpartition("Signature=")[2]
    return ChunkSigner(key, amz_date, _scope_text(credentials, amz_date), seed)


def _sign(
    credentials: Credentials,
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    payload_sha256: str,
    amz_date: str,
) -> tuple[str, str]:
    """(SignedHeaders, signature)."""
    path, _, raw_query = target.partition("?")
    query = [field.partition("=") for field in raw_query.split("&") if field]
    pairs = [(_unquote(name), _unquote(value)) for name, _, value in query]
    names = tuple(sorted(headers))
    signed_headers = ";".join(names)
    canonical = _canonical_request(method, path.encode(), _canonical_query(pairs), headers, names, signed_headers, payload_sha256)
    scope = _scope_text(credentials, amz_date)
    string_to_sign = f"{ALGORITHM}\n{amz_date}\n{scope}\n{sha256(canonical).hexdigest()}"
    key = derive_signing_key(credentials.secret_key, amz_date[:8], credentials.region)
    return signed_headers, key.digest(string_to_sign.encode()).hex()


def _unquote(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode()


def _scope_text(credentials: Credentials, amz_date: str) -> str:
    return f"{amz_date[:8]}/{credentials.region}/{SERVICE}/aws4_request"


def _amz_date(time_s: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time_s))
