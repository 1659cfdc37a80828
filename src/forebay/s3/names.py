"""Names, limits and times as S3 writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

KEY_BYTES_MAX = 1024  # UTF-8; S3's limit
USER_METADATA_BYTES_MAX = 2048  # names and values together; S3's limit
TAGS_MAX = 10  # of one object; S3's limit
TAG_KEY_CHARS_MAX = 128
TAG_VALUE_CHARS_MAX = 256
PART_NUMBER_MAX = 10_000


def check_bucket_name(name: str) -> None:
    """S3's rules for general-purpose buckets. Raises StoreError InvalidBucketName."""
    raise NotImplementedError


def check_key(key: str) -> None:
    """Raises StoreError KeyTooLongError."""
    raise NotImplementedError


def user_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """x-amz-meta-* without the prefix. Raises StoreError MetadataTooLarge."""
    raise NotImplementedError


def parse_tagging_header(value: str) -> list[tuple[str, str]]:
    """x-amz-tagging: `a=1&b=2`, form-encoded. Raises StoreError: InvalidArgument, InvalidTag, BadRequest."""
    raise NotImplementedError


def check_tags(tags: list[tuple[str, str]]) -> None:
    """Count, lengths, characters, repeated names. Raises StoreError: InvalidTag, BadRequest."""
    raise NotImplementedError


class CopySource(NamedTuple):
    """x-amz-copy-source, decoded."""

    bucket: str
    key: str
    version_id: str | None


def parse_copy_source(value: str) -> CopySource:
    """`/bucket/key?versionId=…`, percent-encoded or not. Raises StoreError InvalidArgument."""
    raise NotImplementedError


def http_date(time_s: int) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT`."""
    raise NotImplementedError


def parse_http_date(text: str) -> int | None:
    """Unix time of any of HTTP's three date formats, or of ISO 8601; None if it is none of them."""
    raise NotImplementedError


def iso_time(time_ns: int) -> str:
    """`2009-10-12T17:50:30.000Z`, as documents write times; milliseconds, truncated."""
    raise NotImplementedError


def parse_iso_time(text: str) -> int | None:
    """Unix time in ns, or None."""
    raise NotImplementedError
