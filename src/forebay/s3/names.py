"""Names, limits and times as S3 writes them.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, object-keys.html,
UsingMetadata.html and object-tagging.html; RFC 9110 section 5.6.7 for dates.
"""

from __future__ import annotations

import datetime
import functools
import time
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from forebay.errors import StoreError

KEY_BYTES_MAX = 1024  # UTF-8; S3's limit
USER_METADATA_BYTES_MAX = 2048  # names and values together; S3's limit
USER_METADATA_PREFIX = "x-amz-meta-"
TAGS_MAX = 10  # of one object; S3's limit
TAG_KEY_CHARS_MAX = 128
TAG_VALUE_CHARS_MAX = 256
PART_NUMBER_MAX = 10_000

_BUCKET_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
# SDKs read these as kinds of addresses of their own (punycode, aliases, directory buckets, tables).
_RESERVED_PREFIXES = ("xn--", "sthree-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def check_bucket_name(name: str) -> None:
    """S3's rules for general-purpose buckets. Raises StoreError InvalidBucketName."""
    if (
        not 3 <= len(name) <= 63
        or not _BUCKET_CHARS.issuperset(name)
        or any(not label or label[0] == "-" or label[-1] == "-" for label in name.split("."))
        or is_ipv4(name)
        or name.startswith(_RESERVED_PREFIXES)
        or name.endswith(_RESERVED_SUFFIXES)
    ):
        raise StoreError(
            "InvalidBucketName",
            "The specified bucket is not valid: a name has 3 to 63 lower-case letters, digits, hyphens and dots, each label begins and "
            "ends with a letter or digit, and it is no IP address and no reserved form.",
            BucketName=name,
        )


def is_ipv4(text: str) -> bool:
    """Whether it is four decimal numbers with dots between."""
    labels = text.split(".")
    return len(labels) == 4 and all(label.isascii() and label.isdigit() for label in labels)


def check_key(key: str) -> None:
    """Raises StoreError KeyTooLongError."""
    if len(key) * 4 > KEY_BYTES_MAX and len(size := key.encode()) > KEY_BYTES_MAX:
        raise StoreError("KeyTooLongError", Size=str(len(size)), MaxSizeAllowed=str(KEY_BYTES_MAX))


def user_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """x-amz-meta-* without the prefix. Raises StoreError MetadataTooLarge."""
    metadata = {name[len(USER_METADATA_PREFIX) :]: value for name, value in headers.items() if name.startswith(USER_METADATA_PREFIX)}
    if metadata:
        size_bytes = sum(len(name) + len(value) for name, value in metadata.items())
        if size_bytes > USER_METADATA_BYTES_MAX:
            raise StoreError("MetadataTooLarge", Size=str(size_bytes), MaxSizeAllowed=str(USER_METADATA_BYTES_MAX))
    return metadata


def parse_tagging_header(value: str) -> list[tuple[str, str]]:
    """x-amz-tagging: `a=1&b=2`, form-encoded. Raises StoreError: InvalidArgument, InvalidTag."""
    tags = []
    for field in value.split("&") if value else ():
        name, _, text = field.partition("=")
        try:
            tags.append((_form_decode(name), _form_decode(text)))
        except UnicodeDecodeError:
            raise StoreError(
                "InvalidArgument",
                "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters.",
                ArgumentName="x-amz-tagging",
                ArgumentValue=value,
            ) from None
    check_tags(tags)
    return tags


def _form_decode(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1")).decode()


def check_tags(tags: Iterable[tuple[str, str]]) -> None:
    """Count, lengths, characters, repeated names. Raises StoreError InvalidTag."""
    seen: set[str] = set()
    for name, value in tags:
        if not 1 <= len(name) <= TAG_KEY_CHARS_MAX or not _tag_chars(name) or name.startswith("aws:"):
            raise StoreError("InvalidTag", "The TagKey you have provided is invalid", TagKey=name)
        if len(value) > TAG_VALUE_CHARS_MAX or not _tag_chars(value):
            raise StoreError("InvalidTag", "The TagValue you have provided is invalid", TagKey=name, TagValue=value)
        if name in seen:
            raise StoreError("InvalidTag", "Cannot provide multiple Tags with the same key", TagKey=name)
        seen.add(name)
        if len(seen) > TAGS_MAX:
            raise StoreError("InvalidTag", f"Object tags cannot be greater than {TAGS_MAX}")


def _tag_chars(text: str) -> bool:
    """Letters, numbers and separators of any script, and a few signs."""
    return all(char in "+-=._:/@" or unicodedata.category(char)[0] in "LNZ" for char in text)


class CopySource(NamedTuple):
    """x-amz-copy-source, decoded."""

    bucket: str
    key: str
    version_id: str | None


def parse_copy_source(value: str) -> CopySource:
    """`/bucket/key?versionId=…`, percent-encoded or not; a literal `+` is a plus. Raises StoreError InvalidArgument."""
    path, question, query = value.rpartition("?")
    if not question or not query.startswith("versionId="):
        path, query = value, ""
    try:
        bucket, slash, key = unquote_to_bytes(path.removeprefix("/").encode("latin-1")).decode().partition("/")
    except UnicodeDecodeError:
        bucket = slash = key = ""
    version_id = query.removeprefix("versionId=")
    if not bucket or not slash or not key or (query and not version_id):
        raise StoreError(
            "InvalidArgument",
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
            ArgumentName="x-amz-copy-source",
            ArgumentValue=value,
        )
    check_key(key)
    return CopySource(bucket, key, version_id or None)


# --- times

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE_FORMATS = (
    "%a, %d %b %Y %H:%M:%S GMT",  # IMF-fixdate, what everyone sends
    "%a, %d %b %Y %H:%M:%S %z",
    "%A, %d-%b-%y %H:%M:%S GMT",  # RFC 850
    "%a %b %d %H:%M:%S %Y",  # asctime
)
DATE_CHARS_MAX = 64
DAY_S = 86_400
SECOND_NS = 1_000_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@functools.lru_cache(maxsize=4096)
def http_date(time_s: int) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT`."""
    t = time.gmtime(time_s)
    return f"{_WEEKDAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04} {t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"


@functools.lru_cache(maxsize=1024)
def parse_http_date(text: str) -> int | None:
    """Unix time of any of HTTP's three date formats, or of ISO 8601; None if it is none of them."""
    if len(text) > DATE_CHARS_MAX:
        return None
    for date_format in _DATE_FORMATS:
        try:
            moment = datetime.datetime.strptime(text, date_format)
        except ValueError:
            continue
        return _unix_ns(moment) // SECOND_NS
    time_ns = parse_iso_time(text)
    return None if time_ns is None else time_ns // SECOND_NS


def iso_time(time_ns: int) -> str:
    """`2009-10-12T17:50:30.000Z`, as documents write times; milliseconds, truncated."""
    time_s, rest_ns = divmod(time_ns, SECOND_NS)
    return f"{_iso_seconds(time_s)}.{rest_ns // 1_000_000:03}Z"


@functools.lru_cache(maxsize=4096)
def _iso_seconds(time_s: int) -> str:
    t = time.gmtime(time_s)
    return f"{t.tm_year:04}-{t.tm_mon:02}-{t.tm_mday:02}T{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}"


def parse_iso_time(text: str) -> int | None:
    """Unix time in ns of an ISO 8601 time (UTC where no zone is given), or None."""
    if len(text) > DATE_CHARS_MAX or "T" not in text:
        return None
    try:
        return _unix_ns(datetime.datetime.fromisoformat(text))
    except ValueError:
        return None


def _unix_ns(moment: datetime.datetime) -> int:
    since = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - _EPOCH
    return (since.days * DAY_S + since.seconds) * SECOND_NS + since.microseconds * 1000
