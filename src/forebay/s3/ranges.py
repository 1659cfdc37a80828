"""Byte ranges of reads and copies. Sources: RFC 9110 section 14, S3's GetObject and UploadPartCopy pages."""

from __future__ import annotations

from typing import NamedTuple

from forebay.errors import StoreError
from forebay.s3.names import PART_NUMBER_MAX

DIGITS_MAX = 19  # positions beyond 10**19 cannot lie in an object; longer numbers are not converted


class ByteRange(NamedTuple):
    """`start` (inclusive) to `stop` (exclusive), in bytes of the object."""

    start: int
    stop: int


def resolve_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """The range that a Range header selects of an object of `size_bytes`.

    None for the whole object: no header, a malformed one, several ranges or another unit, all of which S3 ignores.
    Raises StoreError InvalidRange (416, with Content-Range and the size) if nothing of it lies in the object.
    """
    first, last = _parse(header) if header else (None, None)
    if first is None and last is None:
        return None
    if first is None:
        assert last is not None
        start, stop = max(0, size_bytes - last), size_bytes
    else:
        start, stop = first, size_bytes if last is None else min(last + 1, size_bytes)
    if start >= stop:
        raise _unsatisfiable(header or "", size_bytes)
    return ByteRange(start, stop)


def content_range(selected: ByteRange, size_bytes: int) -> str:
    """The Content-Range header of a 206 answer."""
    return f"bytes {selected.start}-{selected.stop - 1}/{size_bytes}"


def copy_range(header: str, size_bytes: int) -> ByteRange:
    """x-amz-copy-source-range: `bytes=first-last`, wholly inside the source. Raises StoreError: InvalidArgument, InvalidRange."""
    first, last = _parse(header)
    if first is None or last is None:
        raise StoreError(
            "InvalidArgument",
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the "
            "zero-based offsets of the first and last bytes to copy",
            ArgumentName="x-amz-copy-source-range",
            ArgumentValue=header,
        )
    if last >= size_bytes:
        raise StoreError(
            "InvalidRange",
            f"Range specified is not valid for source object of size: {size_bytes}",
            RangeRequested=header,
            ActualObjectSize=str(size_bytes),
        )
    return ByteRange(first, last + 1)


def parse_part_number(text: str) -> int:
    """1 … 10,000. Raises StoreError InvalidArgument."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else 0
    if not 1 <= number <= PART_NUMBER_MAX:
        raise StoreError(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive",
            ArgumentName="partNumber",
            ArgumentValue=text,
        )
    return number


def _parse(header: str) -> tuple[int | None, int | None]:
    """(first, last) of `bytes=first-last`, each None if left out; (None, None) if it is no single range of bytes."""
    unit, _, spec = header.partition("=")
    first_text, dash, last_text = spec.strip().partition("-")
    if unit.strip().lower() != "bytes" or not dash or not (_is_number(first_text) and _is_number(last_text)):
        return None, None
    first = int(first_text) if first_text else None
    last = int(last_text) if last_text else None
    if first is not None and last is not None and last < first:
        return None, None  # RFC 9110 section 14.1.1: invalid, so ignored
    return first, last


def _is_number(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX)


def _unsatisfiable(header: str, size_bytes: int) -> StoreError:
    return StoreError(
        "InvalidRange",
        headers={"Content-Range": f"bytes */{size_bytes}"},
        RangeRequested=header,
        ActualObjectSize=str(size_bytes),
    )
