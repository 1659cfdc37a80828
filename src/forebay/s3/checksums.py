"""Payload checksums of S3: CRC32, CRC32C, CRC64NVME, SHA1, SHA256, and Content-MD5.

A CRC's digest is its big-endian bytes; documents and headers hold the base64 of a digest. The checksum of a multipart object is either
COMPOSITE, the checksum of its parts' digests written `base64-N`, or FULL_OBJECT, for which the CRCs of the parts combine
without the bytes.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from awscrt import checksums as crt

from forebay.errors import StoreError

Buffer = bytes | bytearray | memoryview

HEADER_PREFIX = "x-amz-checksum-"
MD5_BYTES = 16


class Algorithm(enum.StrEnum):
    """The checksum algorithms, by their wire names."""

    CRC32 = "CRC32"
    CRC32C = "CRC32C"
    CRC64NVME = "CRC64NVME"
    SHA1 = "SHA1"
    SHA256 = "SHA256"


class ChecksumType(enum.StrEnum):
    """What a multipart object's checksum covers: the parts' checksums, or the object's bytes."""

    COMPOSITE = "COMPOSITE"
    FULL_OBJECT = "FULL_OBJECT"


class _Kind(NamedTuple):
    """How an algorithm is computed. `crc` continues from a previous value; `combine` takes (crc1, crc2, bytes of 2)."""

    digest_bytes: int
    crc: Callable[[Buffer, int], int] | None = None
    combine: Callable[[int, int, int], int] | None = None


_KINDS = {
    Algorithm.CRC32: _Kind(4, crt.crc32, crt.combine_crc32),
    Algorithm.CRC32C: _Kind(4, crt.crc32c, crt.combine_crc32c),
    Algorithm.CRC64NVME: _Kind(8, crt.crc64nvme, crt.combine_crc64nvme),
    Algorithm.SHA1: _Kind(20),
    Algorithm.SHA256: _Kind(32),
}
_HEADERS = {HEADER_PREFIX + algorithm.lower(): algorithm for algorithm in Algorithm}
# Headers that begin like a checksum's and are none.
_OTHER_HEADERS = frozenset(("x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-checksum-type"))
_NOT_BUILT = frozenset(("md5", "sha512", "xxhash128", "xxhash3", "xxhash64"))  # S3 has these besides
# What CreateMultipartUpload may ask for; the first type is the default.
_UPLOAD_TYPES: dict[Algorithm, tuple[ChecksumType, ...]] = {
    Algorithm.CRC32: (ChecksumType.COMPOSITE, ChecksumType.FULL_OBJECT),
    Algorithm.CRC32C: (ChecksumType.COMPOSITE, ChecksumType.FULL_OBJECT),
    Algorithm.CRC64NVME: (ChecksumType.FULL_OBJECT,),
    Algorithm.SHA1: (ChecksumType.COMPOSITE,),
    Algorithm.SHA256: (ChecksumType.COMPOSITE,),
}


class Checksum(NamedTuple):
    """A checksum value: raw digest (big-endian for CRCs); `part_count` > 0 for a composite one, written `base64-N`."""

    algorithm: Algorithm
    digest: bytes
    part_count: int = 0

    @property
    def text(self) -> str:
        """Base64, with `-N` if composite: as S3 writes it in headers and documents."""
        text = base64.b64encode(self.digest).decode()
        return f"{text}-{self.part_count}" if self.part_count else text

    @property
    def header(self) -> str:
        """`x-amz-checksum-…`."""
        return header_of(self.algorithm)

    @property
    def element(self) -> str:
        """`Checksum…`, the element's name in documents."""
        return f"Checksum{self.algorithm}"

    @property
    def type(self) -> ChecksumType:
        """COMPOSITE if it covers checksums of parts."""
        return ChecksumType.COMPOSITE if self.part_count else ChecksumType.FULL_OBJECT


class Hasher(Protocol):
    """A running checksum. `update` takes any contiguous buffer and keeps no reference."""

    def update(self, data: Buffer, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """The digest so far (big-endian for CRCs)."""


class _Crc:
    """A running CRC."""

    __slots__ = ("_crc", "_digest_bytes", "_value")

    def __init__(self, crc: Callable[[Buffer, int], int], digest_bytes: int) -> None:
        self._crc = crc
        self._digest_bytes = digest_bytes
        self._value = 0

    def update(self, data: Buffer, /) -> None:
        self._value = self._crc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._digest_bytes, "big")


def hasher(algorithm: Algorithm) -> Hasher:
    """A new running checksum."""
    kind = _KINDS[algorithm]
    if kind.crc:
        return _Crc(kind.crc, kind.digest_bytes)
    return hashlib.sha1(usedforsecurity=False) if algorithm is Algorithm.SHA1 else hashlib.sha256()


def header_of(algorithm: Algorithm) -> str:
    """`x-amz-checksum-…` in lower case: the header and the trailer have one name."""
    return HEADER_PREFIX + algorithm.lower()


def composite(algorithm: Algorithm, digests: Sequence[bytes]) -> Checksum:
    """The checksum of checksums of a multipart object."""
    running = hasher(algorithm)
    running.update(b"".join(digests))
    return Checksum(algorithm, running.digest(), len(digests))


def full_object(algorithm: Algorithm, parts: Sequence[tuple[bytes, int]]) -> Checksum:
    """The whole object's CRC from its parts' (digest, size in bytes). CRCs only."""
    kind = _KINDS[algorithm]
    assert kind.combine is not None, f"{algorithm} of parts does not combine"
    value = 0
    for digest, size_bytes in parts:
        value = kind.combine(value, int.from_bytes(digest, "big"), size_bytes)
    return Checksum(algorithm, value.to_bytes(kind.digest_bytes, "big"))


def combines(algorithm: Algorithm) -> bool:
    """Whether `full_object` can be had from parts."""
    return _KINDS[algorithm].combine is not None


# --- reading headers and documents


def parse_checksum(algorithm: Algorithm, text: str) -> Checksum:
    """`base64` or `base64-N` as in x-amz-checksum-* headers and documents. Raises StoreError: InvalidRequest, BadDigest."""
    encoded, dash, count = text.partition("-")
    part_count = int(count) if count.isascii() and count.isdigit() and len(count) <= 5 else 0
    if dash and not part_count:
        raise _bad_value(header_of(algorithm))
    return Checksum(algorithm, _decode(algorithm, encoded), part_count)


def _decode(algorithm: Algorithm, text: str) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != _KINDS[algorithm].digest_bytes:
        raise StoreError("BadDigest", f"Value for {header_of(algorithm)} header is invalid: no content has this checksum.")
    return digest


class RequestChecksum(NamedTuple):
    """What a request says about its payload's checksum. `expected` is None if it comes in the trailer `trailer`."""

    algorithm: Algorithm
    expected: bytes | None
    trailer: str | None


def request_checksum(headers: Mapping[str, str]) -> RequestChecksum | None:
    """The x-amz-checksum-*, x-amz-trailer and x-amz-sdk-checksum-algorithm headers of a request with a payload.

    Raises StoreError InvalidRequest: bad base64 or length, more than one checksum, an algorithm without a value, unknown
    names.
    """
    found = [n for n in headers if n[:15] == HEADER_PREFIX and n not in _OTHER_HEADERS]
    trailer = headers.get("x-amz-trailer")
    sdk_algorithm = headers.get("x-amz-sdk-checksum-algorithm")
    if not found and trailer is None:
        if sdk_algorithm is not None:
            raise StoreError(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found.",
            )
        return None
    if len(found) + (trailer is not None) > 1:
        raise _several()
    name = trailer.strip().lower() if trailer is not None else found[0]
    algorithm = _HEADERS.get(name)
    if algorithm is None:
        if trailer is not None:
            raise StoreError("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
        if name.removeprefix(HEADER_PREFIX) in _NOT_BUILT:
            raise StoreError("NotImplemented", f"The checksum header {name} is not implemented.", Header=name)
        raise _bad_value(name)
    if sdk_algorithm is not None and sdk_algorithm.upper() != algorithm:
        raise StoreError("InvalidRequest", "Value for x-amz-sdk-checksum-algorithm header is invalid.")
    if trailer is not None:
        return RequestChecksum(algorithm, None, name)
    return RequestChecksum(algorithm, _decode(algorithm, headers[name]), None)


def content_md5(headers: Mapping[str, str]) -> bytes | None:
    """Content-MD5, decoded. Raises StoreError InvalidDigest."""
    text = headers.get("content-md5")
    if text is None:
        return None
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != MD5_BYTES:
        raise StoreError("InvalidDigest", f"The Content-MD5 you specified was invalid: {text}")
    return digest


class UploadChecksum(NamedTuple):
    """What CreateMultipartUpload asks for."""

    algorithm: Algorithm
    type: ChecksumType


def upload_checksum(headers: Mapping[str, str]) -> UploadChecksum | None:
    """x-amz-checksum-algorithm and x-amz-checksum-type of CreateMultipartUpload.

    Raises StoreError InvalidRequest for algorithms, types and pairs that S3 does not have.
    """
    algorithm = checksum_algorithm(headers)
    type_text = headers.get("x-amz-checksum-type")
    if algorithm is None:
        if type_text is not None:
            raise StoreError(
                "InvalidRequest",
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )
        return None
    if type_text is None:
        return UploadChecksum(algorithm, _UPLOAD_TYPES[algorithm][0])
    kind = checksum_type(headers)
    if kind not in _UPLOAD_TYPES[algorithm]:
        raise StoreError(
            "InvalidRequest",
            f"The {kind} checksum type cannot be used with the {algorithm.lower()} checksum algorithm.",
        )
    return UploadChecksum(algorithm, kind)


def checksum_algorithm(headers: Mapping[str, str]) -> Algorithm | None:
    """x-amz-checksum-algorithm (of CreateMultipartUpload and CopyObject). Raises StoreError: InvalidRequest, BadDigest."""
    text = headers.get("x-amz-checksum-algorithm")
    if text is None:
        return None
    if text.upper() not in Algorithm.__members__:
        raise StoreError(
            "InvalidRequest",
            f"Checksum algorithm provided is unsupported. Please try again with any of the valid types: [{', '.join(Algorithm)}]",
        )
    return Algorithm(text.upper())


def checksum_type(headers: Mapping[str, str]) -> ChecksumType | None:
    """x-amz-checksum-type (of CreateMultipartUpload and CompleteMultipartUpload). Raises StoreError: InvalidRequest, BadDigest."""
    text = headers.get("x-amz-checksum-type")
    if text is None:
        return None
    if text.upper() not in ChecksumType.__members__:
        raise _bad_value("x-amz-checksum-type")
    return ChecksumType(text.upper())


def _several() -> StoreError:
    return StoreError("InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")


def _bad_value(name: str) -> StoreError:
    return StoreError("InvalidRequest", f"Value for {name} header is invalid.")


# --- one pass over a payload


def object_checksum(headers: Mapping[str, str]) -> Checksum | None:
    """x-amz-checksum-* of CompleteMultipartUpload, which is the object's, not the document's, and may be composite.

    Raises StoreError: InvalidRequest (more than one), BadDigest (a value that no object can have).
    """
    found = [(algorithm, headers[name]) for name, algorithm in _HEADERS.items() if name in headers]
    if len(found) > 1:
        raise _several()
    if not found:
        return None
    try:
        return parse_checksum(*found[0])
    except StoreError as error:
        raise StoreError("BadDigest", error.message) from None


class PayloadCheck:
    """Everything that a request promised about its payload, checked in one pass.

    Feed it the payload with `update` (from any thread, one at a time), then call `finish` once the body is finished.
    `also`: an algorithm to compute besides, for the store's own use. `md5`: compute MD5 (for an ETag) even if the client
    sent no Content-MD5. `about_object`: the x-amz-checksum-* header is not about this body (CompleteMultipartUpload, see
    `object_checksum`). Raises StoreError InvalidRequest or InvalidDigest for promises that cannot be read.
    """

    __slots__ = ("_also", "_check", "_hashers", "_md5_expected", "_payload_sha256")

    def __init__(
        self,
        headers: Mapping[str, str],
        payload_sha256: str | None,
        *,
        also: Algorithm | None = None,
        md5: bool = False,
        about_object: bool = False,
    ) -> None:
        self._check = None if about_object else request_checksum(headers)
        self._md5_expected = content_md5(headers)
        self._payload_sha256 = payload_sha256
        self._also = also
        self._hashers: dict[str, Hasher] = {}
        for algorithm in (self._check and self._check.algorithm, also, payload_sha256 and Algorithm.SHA256):
            if algorithm and algorithm not in self._hashers:
                self._hashers[algorithm] = hasher(Algorithm(algorithm))
        if md5 or self._md5_expected is not None:
            self._hashers["MD5"] = hashlib.md5(usedforsecurity=False)

    def update(self, data: Buffer) -> None:
        """Add payload bytes; keeps no reference."""
        for running in self._hashers.values():
            running.update(data)

    def finish(self, trailers: Mapping[str, str]) -> None:
        """Compare all. Raises StoreError: XAmzContentSHA256Mismatch, BadDigest, InvalidRequest, MalformedTrailerError."""
        if self._payload_sha256 is not None:
            computed = self._hashers[Algorithm.SHA256].digest().hex()
            if computed != self._payload_sha256:
                raise StoreError(
                    "XAmzContentSHA256Mismatch",
                    ClientComputedContentSHA256=self._payload_sha256,
                    S3ComputedContentSHA256=computed,
                )
        if self._md5_expected is not None and self._hashers["MD5"].digest() != self._md5_expected:
            raise StoreError(
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
                ExpectedDigest=self._md5_expected.hex(),
                CalculatedDigest=self._hashers["MD5"].digest().hex(),
            )
        if self._check is not None:
            self._compare(self._check, trailers)

    def _compare(self, check: RequestChecksum, trailers: Mapping[str, str]) -> None:
        expected = check.expected
        if expected is None:
            assert check.trailer is not None
            text = trailers.get(check.trailer)
            if text is None:
                raise StoreError("MalformedTrailerError", f"The trailer {check.trailer} was announced and not sent.")
            expected = _decode(check.algorithm, text)
        if self._hashers[check.algorithm].digest() != expected:
            raise StoreError("BadDigest", f"The {check.algorithm} you specified did not match the calculated checksum.")

    @property
    def checksum(self) -> Checksum | None:
        """The client's checksum, verified, else the one of `also`; after `finish`."""
        algorithm = self._check.algorithm if self._check else self._also
        return None if algorithm is None else Checksum(algorithm, self._hashers[algorithm].digest())

    @property
    def also(self) -> bytes | None:
        """The digest of `also`; after `finish`."""
        return None if self._also is None else self._hashers[self._also].digest()

    @property
    def md5(self) -> bytes | None:
        """The payload's MD5 if it was computed; after `finish`."""
        running = self._hashers.get("MD5")
        return None if running is None else running.digest()
