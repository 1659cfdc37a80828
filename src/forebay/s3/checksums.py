"""Payload checksums of S3: CRC32, CRC32C, CRC64NVME, SHA1, SHA256, and Content-MD5.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview


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


class Checksum(NamedTuple):
    """A checksum value: raw digest (big-endian for CRCs), and `part_count` > 0 for a composite one, written `base64-N`."""

    algorithm: Algorithm
    digest: bytes
    part_count: int = 0

    @property
    def text(self) -> str:
        """Base64, with `-N` if composite: as S3 writes it in headers and documents."""
        raise NotImplementedError

    @property
    def header(self) -> str:
        """`x-amz-checksum-…`."""
        raise NotImplementedError

    @property
    def element(self) -> str:
        """`Checksum…`, the element's name in documents."""
        raise NotImplementedError

    @property
    def type(self) -> ChecksumType:
        """COMPOSITE if it covers checksums of parts."""
        raise NotImplementedError


class Hasher:
    """A running checksum. `update` takes any contiguous buffer and keeps no reference."""

    def update(self, data: Buffer) -> None:
        """Add bytes."""
        raise NotImplementedError

    def digest(self) -> bytes:
        """The digest so far (big-endian for CRCs)."""
        raise NotImplementedError


def hasher(algorithm: Algorithm) -> Hasher:
    """A new running checksum."""
    raise NotImplementedError


class RequestChecksum(NamedTuple):
    """What a request says about its payload's checksum. `expected` is None if it comes in the trailer `trailer`."""

    algorithm: Algorithm
    expected: bytes | None
    trailer: str | None


def request_checksum(headers: Mapping[str, str]) -> RequestChecksum | None:
    """The x-amz-checksum-*, x-amz-trailer and x-amz-sdk-checksum-algorithm headers of PutObject, UploadPart and requests with documents.

    Raises StoreError InvalidRequest: bad base64 or length, more than one checksum, an algorithm without a value, unknown names.
    """
    raise NotImplementedError


def content_md5(headers: Mapping[str, str]) -> bytes | None:
    """Content-MD5, decoded. Raises StoreError InvalidDigest."""
    raise NotImplementedError


class UploadChecksum(NamedTuple):
    """What CreateMultipartUpload asks for."""

    algorithm: Algorithm
    type: ChecksumType


def upload_checksum(headers: Mapping[str, str]) -> UploadChecksum | None:
    """x-amz-checksum-algorithm and x-amz-checksum-type. Raises StoreError InvalidRequest for pairs that S3 does not have."""
    raise NotImplementedError


class PayloadCheck:
    """Everything that a request promised about its payload, checked in one pass.

    Feed it the payload with `update` (from any thread, one at a time), then call `finish` once the body is finished.
    `also`: an algorithm to compute besides, for the store's own use. `md5`: compute MD5 (for an ETag) even if the client sent no Content-MD5.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        payload_sha256: str | None,
        *,
        also: Algorithm | None = None,
        md5: bool = False,
    ) -> None:
        raise NotImplementedError

    def update(self, data: Buffer) -> None:
        """Add payload bytes; keeps no reference."""
        raise NotImplementedError

    def finish(self, trailers: Mapping[str, str]) -> None:
        """Compare all. Raises StoreError: XAmzContentSHA256Mismatch, BadDigest, InvalidRequest, MalformedTrailerError."""
        raise NotImplementedError

    @property
    def checksum(self) -> Checksum | None:
        """The client's checksum, verified, else the one of `also`; after `finish`."""
        raise NotImplementedError

    @property
    def md5(self) -> bytes | None:
        """The payload's MD5 if it was computed; after `finish`."""
        raise NotImplementedError


def composite(algorithm: Algorithm, digests: Sequence[bytes]) -> Checksum:
    """The checksum of checksums of a multipart object."""
    raise NotImplementedError


def full_object(algorithm: Algorithm, parts: Sequence[tuple[bytes, int]]) -> Checksum:
    """The whole object's CRC from its parts' (digest, size in bytes). CRCs only."""
    raise NotImplementedError


def parse_checksum(algorithm: Algorithm, text: str) -> Checksum:
    """`base64` or `base64-N` as in x-amz-checksum-* headers and documents. Raises StoreError InvalidRequest."""
    raise NotImplementedError


def header_of(algorithm: Algorithm) -> str:
    """`x-amz-checksum-…` in lower case: the header and the trailer have one name."""
    raise NotImplementedError
