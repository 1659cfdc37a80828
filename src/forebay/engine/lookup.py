"""Reading versions from one drive's index, as of the published sequence number.

The number is asked for after the snapshot was taken. Then whatever a snapshot lacks because it was reaped is superseded by a version
that the snapshot has and that is published: a reader always finds the one or the other.

A version is *visible* if its commit is published and it is not deleted by a published commit. Of the null versions of a key only the
newest counts, deleted or not: older ones are superseded and wait to be reaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from forebay.drive import Cursor, Drive
from forebay.engine import keyspace
from forebay.engine.records import DELETE_MARKER, NULL_VERSION, Bucket, Frame, Version, as_of, decode, unframe

Published = Callable[[], int]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A version as an index holds it. `frame` owns its memory."""

    key: bytes  # of the index
    seq: int
    flags: int
    frame: Frame

    @property
    def is_null(self) -> bool:
        """Written while versioning was off or suspended."""
        return bool(self.flags & NULL_VERSION)

    @property
    def is_delete_marker(self) -> bool:
        """No object, only the fact that there is none."""
        return bool(self.flags & DELETE_MARKER)

    def version(self) -> Version:
        """The decoded record."""
        return decode(self.key, self.frame, Version)


class Found(msgspec.Struct, frozen=True):
    """A visible version with what it takes to read it."""

    bucket: Bucket
    key: bytes  # of S3
    entry: Entry
    version: Version
    is_latest: bool

    @property
    def version_id(self) -> str | None:
        """As shown to clients: None in a bucket that never had versioning, "null" for null versions elsewhere."""
        if self.entry.is_null:
            return "null" if self.bucket.versioning else None
        return keyspace.version_id(self.entry.seq, self.version.random)


class Visibility:
    """Decides, entry by entry in index order within one key, which are visible."""

    def __init__(self, published: int) -> None:
        """`published` is the newest commit to be seen."""
        self._published = published
        self._null_seen = False

    def admits(self, seq: int, flags: int, deleted_seq: int) -> bool:
        """Whether this entry is visible; call once for each, newest first."""
        if seq > self._published:
            return False
        if flags & NULL_VERSION:
            if self._null_seen:
                return False
            self._null_seen = True
        return not deleted_seq or deleted_seq > self._published


def entries(cursor: Cursor, prefix: bytes, published: int) -> Iterator[Entry]:
    """The visible versions of one key, newest first; `prefix` is its `keyspace.entry_prefix`."""
    visibility = Visibility(published)
    here = cursor.seek(prefix)
    while here and (key := cursor.key).startswith(prefix):
        seq, flags = keyspace.version_suffix(key)
        if seq <= published:
            frame = unframe(key, bytes(cursor.value))
            if visibility.admits(seq, flags, frame.deleted_seq):
                yield Entry(key, seq, flags, as_of(key, frame, published))
        here = cursor.next()


def first_entry(key: bytes, value: memoryview, published: int) -> Entry | None:
    """What `entries` gives first, if that is the first record of its S3 key, which stands at `key`; None if it is not."""
    seq, flags = keyspace.version_suffix(key)
    if seq > published:
        return None
    frame = unframe(key, bytes(value))
    if frame.deleted_seq and frame.deleted_seq <= published:
        return None
    return Entry(key, seq, flags, as_of(key, frame, published))


def newest(drive: Drive, prefix: bytes, published: Published) -> Entry | None:
    """The current version of a key, a delete marker included."""
    with drive.cursor() as cursor:
        return next(entries(cursor, prefix, published()), None)


def null_version(drive: Drive, prefix: bytes, published: Published) -> Entry | None:
    """The null version of a key, a delete marker included."""
    with drive.cursor() as cursor:
        return next((e for e in entries(cursor, prefix, published()) if e.is_null), None)


def by_version_id(drive: Drive, prefix: bytes, seq: int, random: bytes, published: Published) -> Entry | None:
    """The version with this id, a delete marker included."""
    start = prefix + keyspace.version_key(b"", seq, 0)[:8]
    with drive.cursor() as cursor:
        newest_seen = published()
        if seq > newest_seen or not cursor.seek(start) or not cursor.key.startswith(start):
            return None
        key = cursor.key
        frame = unframe(key, bytes(cursor.value))
    _, flags = keyspace.version_suffix(key)
    entry = Entry(key, seq, flags, as_of(key, frame, newest_seen))
    if entry.is_null or not Visibility(newest_seen).admits(seq, flags, frame.deleted_seq) or entry.version().random != random:
        return None
    return entry
