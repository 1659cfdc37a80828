"""What several operations share: reading attributes from requests and writing them into answers."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5

from forebay.engine.lookup import Found
from forebay.engine.objects import Attributes
from forebay.engine.records import Version
from forebay.engine.writer import WrittenBlob
from forebay.errors import StoreError
from forebay.s3 import acl
from forebay.s3.checksums import Algorithm, Checksum, PayloadCheck, header_of
from forebay.s3.chunked import open_body, stored_content_encoding
from forebay.s3.conditions import Current
from forebay.s3.names import http_date, parse_tagging_header, user_metadata
from forebay.server.message import Response
from forebay.server.public_access import check_new_grants
from forebay.server.services import Call, Services, owner_of

XML = {"Content-Type": "application/xml"}
OPAQUE_SUFFIX = "-1"  # the form of a multipart ETag, which no client takes for an MD5
DEFAULT_CONTENT_TYPE = "binary/octet-stream"
_STORED_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
)
_SHOWN = {name: name.title() for name in _STORED_HEADERS}


def object_attributes(services: Services, call: Call) -> Attributes:
    """System and user metadata, tags and access control list of a request that creates an object. Raises StoreError."""
    headers = call.headers
    tags = parse_tagging_header(headers["x-amz-tagging"]) if "x-amz-tagging" in headers else []
    grants, user = acl_of_new_object(services, call)
    return Attributes(headers=stored_headers(headers), metadata=user_metadata(headers), tags=dict(tags), acl=grants, user=user)


def acl_of_new_object(services: Services, call: Call) -> tuple[bytes, str]:
    """(access control list, user) of an object that the request creates, as records hold them. Raises StoreError."""
    bucket = services.engine.bucket(call.bucket)
    user = "" if call.identity.access_key == bucket.owner else call.identity.access_key
    if acl.HEADERS.isdisjoint(call.headers):
        return b"", user
    owner = owner_of(user or bucket.owner).id
    grants = acl.from_headers(call.headers, owner, owner_of(bucket.owner).id, services.accounts)
    assert grants is not None
    check_new_grants(bucket, grants)
    return acl.encode(grants), user


def stored_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The system metadata that an object keeps: lower-case names, values as sent."""
    kept = {name: headers[name] for name in _STORED_HEADERS if name in headers}
    if "content-encoding" in kept:
        encoding = stored_content_encoding(headers)
        if encoding:
            kept["content-encoding"] = encoding
        else:
            del kept["content-encoding"]
    return kept


def object_headers(found: Found) -> dict[str, str]:
    """The headers that describe an object in answers to GET and HEAD, without length and checksums."""
    version = found.version
    headers = {
        "ETag": f'"{version.etag}"',
        "Last-Modified": http_date(version.mtime_ns // 10**9),
        "Accept-Ranges": "bytes",
    }
    for name, value in version.headers.items():
        headers[_SHOWN[name]] = value
    headers.setdefault("Content-Type", DEFAULT_CONTENT_TYPE)
    for name, value in version.metadata.items():
        headers[f"x-amz-meta-{name}"] = value
    if version.tags:
        headers["x-amz-tagging-count"] = str(len(version.tags))
    add_version_id(headers, found.version_id)
    return headers


def add_version_id(headers: dict[str, str], version_id: str | None) -> None:
    """x-amz-version-id, where the bucket has versions."""
    if version_id is not None:
        headers["x-amz-version-id"] = version_id


def add_written_id(headers: dict[str, str], version_id: str | None) -> None:
    """The same in answers to writes, which name no version where versioning is suspended."""
    if version_id != "null":
        add_version_id(headers, version_id)


def checksum_headers(version: Version) -> dict[str, str]:
    """The checksum of a whole object, as headers."""
    headers = {header_of(Algorithm(name)): text for name, text in version.checksums.items()}
    if headers and version.checksum_type:
        headers["x-amz-checksum-type"] = version.checksum_type
    return headers


def current_of(version: Version) -> Current:
    """The state that read conditions are judged against."""
    return Current(version.etag, version.mtime_ns, version.size)


def wants_md5(policy: str, headers: Mapping[str, str], length: int | None, length_max: int) -> bool:
    """Whether an ETag is the payload's MD5: asked for by the configuration or the client, or cheap because it is short."""
    return policy == "md5" or "content-md5" in headers or (length is not None and length <= length_max)


def etag_of(check: PayloadCheck, blob: WrittenBlob | None = None) -> str:
    """The MD5 if it was computed, else an opaque tag: the same for the same bytes, so that a part sent twice is one part."""
    digest = check.md5
    if digest is not None:
        return digest.hex()
    return opaque_etag(blob.record.crcs, blob.size) if blob is not None else opaque_etag(b"", 0)


def opaque_etag(fingerprint: bytes, size: int) -> str:
    """An ETag that no client takes for an MD5 of the content. `fingerprint`: the checksums of all blocks, or of what else
    determines the bytes.
    """
    return md5(fingerprint + size.to_bytes(8, "little"), usedforsecurity=False).hexdigest() + OPAQUE_SUFFIX


def multipart_etag(part_etags: list[str]) -> str:
    """The ETag of a multipart object: MD5 of its parts' 16-byte tags, and their number."""
    joined = b"".join(bytes.fromhex(etag[:32]) for etag in part_etags)
    return f"{md5(joined, usedforsecurity=False).hexdigest()}-{len(part_etags)}"


def checksums_of(checksum: Checksum | None) -> dict[str, str]:
    """As records hold them."""
    return {} if checksum is None else {checksum.algorithm.value: checksum.text}


async def read_document(call: Call, bytes_max: int, *, about_object: bool = False) -> bytes:
    """A request's document, verified. Raises StoreError and PeerGone."""
    check = PayloadCheck(call.headers, call.verified.payload_sha256, about_object=about_object)
    body = open_body(call.request, call.verified)
    data = await call.exchange.read_body(body, bytes_max)
    check.update(data)
    check.finish(body.trailers)
    return data


def xml(document: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """A 200 answer with a document."""
    return Response(200, {**XML, **(headers or {})}, document)


def parse_limit(params: Mapping[str, str], name: str, limit_max: int = 1000) -> int:
    """A limit such as max-keys: 0 … `limit_max`, more is cut. Raises StoreError InvalidArgument."""
    text = params.get(name)
    if text is None or text == "":
        return limit_max
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << 31):
        raise StoreError(
            "InvalidArgument",
            f"Argument {name} must be an integer between 0 and 2147483647",
            ArgumentName=name,
            ArgumentValue=text,
        )
    return min(int(text), limit_max)
