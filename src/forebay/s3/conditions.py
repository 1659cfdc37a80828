"""Conditional requests: pure functions of the object's current state.

Sources: RFC 9110 section 13, https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html.
As S3 does, dates are compared in whole seconds and a date that cannot be read is ignored on reads, but refused on deletes,
where ignoring it would lose data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from forebay.errors import StoreError
from forebay.s3.names import http_date, parse_http_date

ANY = ("*",)
SECOND_NS = 1_000_000_000
SIZE_DIGITS_MAX = 19


class Current(NamedTuple):
    """The state that conditions are judged against: `etag` without quotes, `mtime_ns` (Unix), `size_bytes`."""

    etag: str
    mtime_ns: int
    size_bytes: int


class WriteCondition(NamedTuple):
    """Conditions of PutObject, CopyObject's target, CompleteMultipartUpload and DeleteObject.

    Ready to be judged in the engine's critical section: `check` is pure and takes about a microsecond.
    """

    if_match: tuple[str, ...] | None = None  # ETags without quotes; ("*",) for any
    if_none_match: tuple[str, ...] | None = None
    if_match_size_bytes: int | None = None  # deletes only
    if_match_mtime_s: int | None = None  # deletes only
    delete: bool = False

    def check(self, current: Current | None) -> None:
        """`current` is None if the key has no object, or a delete marker. Raises StoreError: PreconditionFailed, NoSuchKey.

        A write with If-Match to a key without an object is NoSuchKey, a delete PreconditionFailed. Size and time of an
        object that is not there do not stop a delete.
        """
        if self.if_match is not None:
            if current is None and not self.delete:
                raise StoreError("NoSuchKey")
            if current is None or not _selects(self.if_match, current.etag):
                raise _failed("If-Match")
        if current is None:
            return
        if self.if_none_match is not None and _selects(self.if_none_match, current.etag):
            raise _failed("If-None-Match")
        if self.if_match_size_bytes is not None and self.if_match_size_bytes != current.size_bytes:
            raise _failed("x-amz-if-match-size")
        if self.if_match_mtime_s is not None and self.if_match_mtime_s != current.mtime_ns // SECOND_NS:
            raise _failed("x-amz-if-match-last-modified-time")


def write_condition(headers: Mapping[str, str]) -> WriteCondition | None:
    """If-Match and If-None-Match of a write; None if unconditional. Raises StoreError InvalidArgument for an empty one."""
    if_match = headers.get("if-match")
    if_none_match = headers.get("if-none-match")
    if if_match is None and if_none_match is None:
        return None
    return WriteCondition(_required_etags("If-Match", if_match), _required_etags("If-None-Match", if_none_match))


def delete_condition(headers: Mapping[str, str]) -> WriteCondition | None:
    """If-Match, x-amz-if-match-size and x-amz-if-match-last-modified-time of DeleteObject; None if unconditional.

    Raises StoreError InvalidArgument.
    """
    return make_delete_condition(
        headers.get("if-match"), headers.get("x-amz-if-match-size"), headers.get("x-amz-if-match-last-modified-time")
    )


def make_delete_condition(if_match: str | None, size: str | None, last_modified: str | None) -> WriteCondition | None:
    """The same from the three values as text, wherever they stood (headers, or an entry of DeleteObjects)."""
    if if_match is None and size is None and last_modified is None:
        return None
    size_bytes = mtime_s = None
    if size is not None:
        if not (size.isascii() and size.isdigit() and len(size) <= SIZE_DIGITS_MAX):
            raise _invalid("x-amz-if-match-size", size)
        size_bytes = int(size)
    if last_modified is not None:
        mtime_s = parse_http_date(last_modified)
        if mtime_s is None:
            raise _invalid("x-amz-if-match-last-modified-time", last_modified)
    return WriteCondition(_required_etags("If-Match", if_match), if_match_size_bytes=size_bytes, if_match_mtime_s=mtime_s, delete=True)


def check_read(headers: Mapping[str, str], current: Current) -> None:
    """The conditional headers of GET and HEAD.

    Raises StoreError: NotModified (304; carries ETag and Last-Modified), PreconditionFailed.
    """
    if_match = headers.get("if-match")
    if_none_match = headers.get("if-none-match")
    if_modified_since = headers.get("if-modified-since")
    if_unmodified_since = headers.get("if-unmodified-since")
    if if_match is None and if_none_match is None and if_modified_since is None and if_unmodified_since is None:
        return
    mtime_s = current.mtime_ns // SECOND_NS
    if if_match is not None:
        if not _selects(parse_etags(if_match), current.etag):
            raise _failed("If-Match")
    elif if_unmodified_since is not None and _later(mtime_s, if_unmodified_since):
        raise _failed("If-Unmodified-Since")
    if if_none_match is not None:
        unmodified = _selects(parse_etags(if_none_match), current.etag)
    else:
        unmodified = if_modified_since is not None and _later(mtime_s, if_modified_since) is False
    if unmodified:
        raise StoreError("NotModified", headers={"ETag": f'"{current.etag}"', "Last-Modified": http_date(mtime_s)})


def range_applies(headers: Mapping[str, str], current: Current) -> bool:
    """Whether If-Range lets a Range header count; if not, the whole object is the answer (RFC 9110 section 13.1.5).

    An ETag must be strong and equal, a date exactly the object's: a download goes on only in the very same bytes.
    """
    validator = headers.get("if-range")
    if validator is None:
        return True
    if validator.startswith('"'):
        return validator == f'"{current.etag}"'
    return parse_http_date(validator) == current.mtime_ns // SECOND_NS


def check_expected_owner(headers: Mapping[str, str], owner_id: str, *, of_source: bool = False) -> None:
    """x-amz-expected-bucket-owner, or that of the source of a copy. Raises StoreError AccessDenied."""
    name = "x-amz-source-expected-bucket-owner" if of_source else "x-amz-expected-bucket-owner"
    expected = headers.get(name)
    if expected is not None and expected != owner_id:
        raise StoreError("AccessDenied", f"The bucket is not owned by the account in {name}.")


def check_copy_source(headers: Mapping[str, str], current: Current) -> None:
    """x-amz-copy-source-if-*. Raises StoreError PreconditionFailed."""
    if_match = headers.get("x-amz-copy-source-if-match")
    if_none_match = headers.get("x-amz-copy-source-if-none-match")
    if_modified_since = headers.get("x-amz-copy-source-if-modified-since")
    if_unmodified_since = headers.get("x-amz-copy-source-if-unmodified-since")
    mtime_s = current.mtime_ns // SECOND_NS
    if if_match is not None:
        if not _selects(parse_etags(if_match), current.etag):
            raise _failed("x-amz-copy-source-if-match")
    elif if_unmodified_since is not None and _later(mtime_s, if_unmodified_since):
        raise _failed("x-amz-copy-source-if-unmodified-since")
    if if_none_match is not None:
        if _selects(parse_etags(if_none_match), current.etag):
            raise _failed("x-amz-copy-source-if-none-match")
    elif if_modified_since is not None and _later(mtime_s, if_modified_since) is False:
        raise _failed("x-amz-copy-source-if-modified-since")


def parse_etags(value: str) -> tuple[str, ...]:
    """A list of entity tags, with or without quotes, weak or not, or `*`. ETags of S3 hold no commas or quotes."""
    if value.strip() == "*":
        return ANY
    tags = (tag.strip().removeprefix("W/").strip('"') for tag in value.split(","))
    return tuple(tag for tag in tags if tag)


def _required_etags(name: str, value: str | None) -> tuple[str, ...] | None:
    """A condition that names nothing must not pass for no condition."""
    if value is None:
        return None
    tags = parse_etags(value)
    if not tags:
        raise _invalid(name, value)
    return tags


def _selects(tags: tuple[str, ...], etag: str) -> bool:
    return tags == ANY or etag in tags


def _later(mtime_s: int, date: str) -> bool | None:
    """Whether the object was modified after the date; None if that is no date."""
    since_s = parse_http_date(date)
    return None if since_s is None else mtime_s > since_s


def _failed(condition: str) -> StoreError:
    return StoreError("PreconditionFailed", Condition=condition)


def _invalid(name: str, value: str) -> StoreError:
    return StoreError("InvalidArgument", f"The value of {name} is not valid.", ArgumentName=name, ArgumentValue=value)
