"""Byte ranges of reads and copies. Sources: RFC 9110 section 14, S3's GetObject and UploadPartCopy pages."""

from __future__ import annotations

from typing import NamedTuple


class ByteRange(NamedTuple):
    """`start` (inclusive) to `stop` (exclusive), in bytes of the object."""

    start: int
    stop: int


def resolve_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """The range that a Range header selects of an object of `size_bytes`, or None for the whole (absent, malformed, several ranges, other units).

    Raises StoreError InvalidRange (416, with Content-Range and the size) if nothing of it lies in the object.
    """
    raise NotImplementedError


def content_range(selected: ByteRange, size_bytes: int) -> str:
    """The Content-Range header of a 206 answer."""
    raise NotImplementedError


def copy_range(header: str, size_bytes: int) -> ByteRange:
    """x-amz-copy-source-range: `bytes=first-last`, wholly inside the source. Raises StoreError: InvalidArgument, InvalidRange."""
    raise NotImplementedError


def parse_part_number(text: str) -> int:
    """1 … 10,000. Raises StoreError InvalidArgument."""
    raise NotImplementedError
