"""AWS Signature Version 4 for S3, in the headers: a pure function.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. Large bodies go as `UNSIGNED-PAYLOAD` with a CRC64NVME beside
them: hashing them with SHA-256 would cost more than all the rest of sending.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import quote

from forebay.locations.credentials import Credentials

UNSIGNED = "UNSIGNED-PAYLOAD"


def uri_encode(text: str, *, keep_slash: bool) -> str:
    """Percent-encoding as S3 signs it: all but `A-Z a-z 0-9 - . _ ~`."""
    return quote(text, safe="/-._~" if keep_slash else "-._~")


def canonical_query(query: Mapping[str, str]) -> str:
    """The query string, sorted and encoded; also what is sent."""
    encoded = ((uri_encode(k, keep_slash=False), uri_encode(v, keep_slash=False)) for k, v in query.items())
    return "&".join(f"{k}={v}" for k, v in sorted(encoded))


def signed_headers(
    credentials: Credentials | None,
    region: str,
    now_s: float,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    payload_hash: str,
) -> dict[str, str]:
    """`headers` (which name `host`) with those of the signature added. `path` and `query` are encoded already."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    full = {name.lower(): value.strip() for name, value in headers.items()}
    full["x-amz-content-sha256"] = payload_hash
    if credentials is None:
        return full
    full["x-amz-date"] = stamp
    if credentials.session_token:
        full["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(full))
    listed = "".join(f"{name}:{full[name]}\n" for name in sorted(full))
    request = "\n".join([method, path, query, listed, names, payload_hash])
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    full["authorization"] = f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    return full
