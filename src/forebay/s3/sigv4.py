"""AWS Signature Version 4, both sides: the server verifies, clients sign.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html and its pages on header,
query and streaming signatures.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from forebay.s3.request import Request


class PayloadMode(enum.Enum):
    """What x-amz-content-sha256 says about the body."""

    LITERAL = "literal"  # the body's SHA-256 is in the head
    UNSIGNED = "UNSIGNED-PAYLOAD"
    SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class ChunkSigner:
    """The chain of chunk signatures of one streamed body, starting from the head's (the seed)."""

    def sign_chunk(self, chunk_sha256_hex: str) -> str:
        """The signature of the next chunk (the last one has the empty string's hash); it becomes the chain's previous one."""
        raise NotImplementedError

    def sign_trailer(self, trailer: bytes) -> str:
        """The signature over `name:value\\n` lines, after the last chunk's."""
        raise NotImplementedError


class Verified(NamedTuple):
    """Who sent the request and how its body is protected. `access_key` is None for an anonymous request."""

    access_key: str | None
    payload: PayloadMode
    payload_sha256: str | None = None  # lower-case hex, LITERAL only
    chunk_signer: ChunkSigner | None = None  # the signed streaming modes only


class Verifier:
    """Verifies requests against a table of credentials. Holds a bounded cache of signing keys; not for use across threads.

    `secret_of(access_key)` returns the secret key or None if there is no such access key (or it is disabled).
    """

    def __init__(self, secret_of: Callable[[str], str | None], region: str) -> None:
        raise NotImplementedError

    def verify(self, request: Request, now_s: float) -> Verified:
        """Verify the head's signature. `now_s` is Unix time.

        Raises StoreError: AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, AuthorizationHeaderMalformed,
        AuthorizationQueryParametersError, RequestTimeTooSkewed, XAmzContentSHA256Mismatch, InvalidArgument, InvalidRequest, InvalidToken.
        """
        raise NotImplementedError


class Credentials(NamedTuple):
    """What a client signs with."""

    access_key: str
    secret_key: str
    region: str = "us-east-1"


def sign_request(
    credentials: Credentials, method: str, target: str, headers: Mapping[str, str], payload_sha256: str, now_s: float
) -> dict[str, str]:
    """Sign with the Authorization header: returns the headers to add (authorization, x-amz-date, x-amz-content-sha256).

    `target` is the percent-encoded path and query as it will be sent; `headers` must hold `host`; all of them are signed.
    `payload_sha256` is the hex digest or one of PayloadMode's wire names.
    """
    raise NotImplementedError


def presign_target(
    credentials: Credentials,
    method: str,
    target: str,
    host: str,
    expires_s: int,
    now_s: float,
    headers: Mapping[str, str] | None = None,
) -> str:
    """The target with a query signature that is valid for `expires_s` from `now_s`."""
    raise NotImplementedError
