"""Conditional requests: pure functions of the object's current state.

Sources: RFC 9110 section 13, https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Current(NamedTuple):
    """The state that conditions are judged against: `etag` without quotes, `mtime_ns` (Unix), `size_bytes`."""

    etag: str
    mtime_ns: int
    size_bytes: int


class WriteCondition(NamedTuple):
    """Conditions of PutObject, CopyObject's target, CompleteMultipartUpload and DeleteObject, ready to be judged in the engine's critical section."""

    if_match: tuple[str, ...] | None = None  # ETags without quotes; ("*",) for any
    if_none_match: tuple[str, ...] | None = None
    if_match_size_bytes: int | None = None  # deletes only
    if_match_mtime_s: int | None = None  # deletes only
    delete: bool = False

    def check(self, current: Current | None) -> None:
        """`current` is None if the key has no object (or a delete marker). Raises StoreError: PreconditionFailed, NoSuchKey."""
        raise NotImplementedError


def write_condition(headers: Mapping[str, str]) -> WriteCondition | None:
    """If-Match and If-None-Match of a write; None if unconditional. Raises StoreError."""
    raise NotImplementedError


def delete_condition(headers: Mapping[str, str]) -> WriteCondition | None:
    """If-Match, x-amz-if-match-size and x-amz-if-match-last-modified-time of DeleteObject; None if unconditional. Raises StoreError."""
    raise NotImplementedError


def check_read(headers: Mapping[str, str], current: Current) -> None:
    """The conditional headers of GET and HEAD. Raises StoreError: NotModified (304; carries ETag and Last-Modified), PreconditionFailed."""
    raise NotImplementedError


def check_copy_source(headers: Mapping[str, str], current: Current) -> None:
    """x-amz-copy-source-if-*. Raises StoreError PreconditionFailed."""
    raise NotImplementedError
