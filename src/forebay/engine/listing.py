"""Listings: a page costs what the page holds, not what the bucket holds.

A `Walker` moves over the keys of one table of one set in S3's order (bytes of the key), following pointers of long keys, and can jump:
past a key, or past a common prefix. The sets of a store are merged by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from forebay.drive import Cursor
from forebay.engine import keyspace
from forebay.engine.lookup import Entry, Found, entries, first_entry
from forebay.engine.records import KIND_POINTER, Bucket, Upload, decode, unframe

E = TypeVar("E")

Cursors = dict[int, tuple[Cursor, int]]
"""For each walker, by its id: a second cursor and the published sequence number."""


class ObjectPage(NamedTuple):
    """`next_after` is what to pass as `after` for the next page; None at the end."""

    objects: list[Found]
    common_prefixes: list[bytes]
    next_after: bytes | None


class VersionPage(NamedTuple):
    """Object versions and delete markers, newest first within a key; `next_marker` is (key, version id) or None at the end."""

    versions: list[Found]
    common_prefixes: list[bytes]
    next_marker: tuple[bytes, str] | None


class UploadPage(NamedTuple):
    """`next_marker` is (key, upload id) or None at the end."""

    uploads: list[Upload]
    common_prefixes: list[bytes]
    next_marker: tuple[bytes, bytes] | None


class Walker:
    """The keys of one table below one bucket, in order. Stands on the first entry of a key, or at the end (`key` is None)."""

    def __init__(self, cursor: Cursor, table: bytes, bucket_id: bytes, suffix_bytes: int) -> None:
        """Call `seek` first."""
        self._cursor = cursor
        self._table = table
        self._suffix_bytes = suffix_bytes
        self._stack: list[tuple[bytes, bytes]] = [(bucket_id, b"")]  # nodes entered, each with the name that leads to it
        self.key: bytes | None = None
        self.entry_prefix = b""
        self._raw = b""  # the index key where the cursor stands

    def seek(self, name: bytes) -> None:
        """Stand on the first key whose escaped form is >= `name`."""
        node, led = self._stack[0]
        self._stack = [(node, led)]
        while len(name) > keyspace.SEGMENT_BYTES:
            segment, rest = name[: keyspace.SEGMENT_BYTES], name[keyspace.SEGMENT_BYTES :]
            pointer = self._table + node + segment + keyspace.POINTER_MARK
            if self._seek(pointer) != pointer:
                name = segment  # nothing longer starts with it; what sorts after the segment's own entries is what we want
                self._settle(self._seek(self._table + node + name + keyspace.POINTER_MARK))
                return
            node, led, name = keyspace.child_node(node, segment), led + segment, rest
            self._stack.append((node, led))
        self._settle(self._seek(self._table + node + name))

    def next_key(self) -> None:
        """Stand on the key after this one."""
        # The suffix is at most 16 bytes, so 17 bytes of 0xff are past every entry of the key; the next one is tried first, being the
        # usual case.
        raw = self._cursor.key if self._cursor.next() else None
        if raw is not None and raw.startswith(self.entry_prefix):
            raw = self._seek(self.entry_prefix + b"\xff" * (self._suffix_bytes + 1))
        self._settle(raw)

    def first_visible(self, published: int) -> Entry | None:
        """The first entry of the key, of the object table, if it is visible. Costs no search, unlike `entries`."""
        return first_entry(self._raw, self._cursor.value, published)

    def _seek(self, start: bytes) -> bytes | None:
        """The first index key >= `start`, on which the cursor stands then."""
        return self._cursor.key if self._cursor.seek(start) else None

    def _settle(self, raw: bytes | None) -> None:
        """The cursor moved to `raw`, or the end: enter pointers, leave nodes that ended, read the key."""
        while True:
            node, led = self._stack[-1]
            start = self._table + node
            if raw is None or not raw.startswith(start):
                if len(self._stack) == 1:
                    self.key = None
                    return
                self._stack.pop()
                parent, _ = self._stack[-1]
                raw = self._seek(self._table + parent + led[-keyspace.SEGMENT_BYTES :] + keyspace.POINTER_MARK + b"\x00")
                continue
            if len(raw) == keyspace.POINTER_KEY_BYTES and self._cursor.value[0] == KIND_POINTER:
                segment = raw[len(start) : -1]
                child = keyspace.child_node(node, segment)
                self._stack.append((child, led + segment))
                raw = self._seek(self._table + child)
                continue
            self._raw = raw
            self.entry_prefix = raw[: -self._suffix_bytes]
            name = raw[len(start) : -self._suffix_bytes - len(keyspace.TERMINATOR)]
            self.key = keyspace.unescape(led + name)
            return


class _Merged:
    """Several walkers as one."""

    def __init__(self, walkers: Sequence[Walker], prefix: bytes) -> None:
        self._walkers = list(walkers)
        self._prefix = prefix
        self.at: Walker | None = None
        """The walker that stands on the smallest key; None at the end of the prefix."""

    def seek(self, name: bytes) -> None:
        for walker in self._walkers:
            walker.seek(name)
        self._pick()

    def next_key(self) -> None:
        at = self.at
        assert at is not None
        at.next_key()
        if len(self._walkers) > 1 or at.key is None or not at.key.startswith(self._prefix):
            self._pick()

    def skip(self, common_prefix: bytes) -> None:
        """To the first key that does not start with `common_prefix`."""
        after = keyspace.successor(keyspace.escape(common_prefix))
        for walker in self._walkers:
            if walker.key is not None and walker.key.startswith(common_prefix):
                if after is None:
                    walker.key = None
                else:
                    walker.seek(after)
        self._pick()

    def _pick(self) -> None:
        standing = [w for w in self._walkers if w.key is not None and w.key.startswith(self._prefix)]
        self.at = min(standing, key=_key_of, default=None)


def _key_of(walker: Walker) -> bytes:
    assert walker.key is not None
    return walker.key


class Page(NamedTuple, Generic[E]):
    """What `walk` gathered; `more` tells that keys follow."""

    items: list[E]
    common_prefixes: list[bytes]
    more: bool


def walk(
    walkers: Sequence[Walker],
    prefix: bytes,
    delimiter: bytes,
    after: bytes,
    inclusive: bool,
    limit: int,
    take: Callable[[Walker, int], tuple[list[E], bool]],
) -> Page[E]:
    """One page of keys under `prefix`, after `after`.

    `take(walker, room)` returns up to `room` items of the key that the walker stands on, and whether it has more. Keys that share the
    part up to `delimiter` after the prefix become one common prefix, which counts as one item if any of them has one.
    """
    merged = _Merged(walkers, prefix)
    items: list[E] = []
    prefixes: list[bytes] = []
    start = max(prefix, after)
    merged.seek(keyspace.escape(start))
    while merged.at is not None and not inclusive and after and (key := merged.at.key) is not None and key <= after:
        merged.next_key()
    if delimiter and after.startswith(prefix):
        cut = after.find(delimiter, len(prefix))
        if cut >= 0 and after == after[: cut + len(delimiter)]:
            merged.skip(after)  # the marker is itself a common prefix that an earlier page returned
    while (at := merged.at) is not None:
        room = limit - len(items) - len(prefixes)
        assert at.key is not None
        cut = at.key.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            common = at.key[: cut + len(delimiter)]
            found, _ = take(at, 1)
            if not found:
                merged.next_key()
                continue
            if room == 0:
                return Page(items, prefixes, True)
            prefixes.append(common)
            merged.skip(common)
            continue
        found, rest = take(at, room if room else 1)
        if found and room == 0:
            return Page(items, prefixes, True)
        items.extend(found)
        if rest:
            return Page(items, prefixes, True)
        merged.next_key()
    return Page(items, prefixes, False)


def take_current(bucket: Bucket, cursors: Cursors) -> Callable[[Walker, int], tuple[list[Found], bool]]:
    """For `walk`: the current version of a key, if it is an object."""

    def take(walker: Walker, room: int) -> tuple[list[Found], bool]:
        cursor, published = cursors[id(walker)]
        entry = walker.first_visible(published) or next(entries(cursor, walker.entry_prefix, published), None)
        if entry is None or entry.is_delete_marker:
            return [], False
        assert walker.key is not None
        return [Found(bucket, walker.key, entry, entry.version(), True)], False

    return take


def take_versions(
    bucket: Bucket, cursors: Cursors, key_marker: bytes, seq_marker: int | None
) -> Callable[[Walker, int], tuple[list[Found], bool]]:
    """For `walk`: the versions of a key, newest first; of the marker's key only those after the marker (its sequence number)."""

    def take(walker: Walker, room: int) -> tuple[list[Found], bool]:
        cursor, published = cursors[id(walker)]
        assert walker.key is not None
        found: list[Found] = []
        for i, entry in enumerate(entries(cursor, walker.entry_prefix, published)):
            if seq_marker is not None and walker.key == key_marker and entry.seq >= seq_marker:
                continue
            if len(found) == room:
                return found, True
            found.append(Found(bucket, walker.key, entry, entry.version(), i == 0))
        return found, False

    return take


def take_uploads(cursors: Cursors, key_marker: bytes, upload_marker: bytes) -> Callable[[Walker, int], tuple[list[Upload], bool]]:
    """For `walk`: the uploads of a key in order of initiation; of the marker's key only those after the marker."""

    def take(walker: Walker, room: int) -> tuple[list[Upload], bool]:
        cursor, _ = cursors[id(walker)]
        found: list[Upload] = []
        for upload in _uploads(cursor, walker.entry_prefix):
            if upload.key == key_marker and upload.upload_id <= upload_marker:
                continue
            if len(found) == room:
                return found, True
            found.append(upload)
        return found, False

    return take


def _uploads(cursor: Cursor, prefix: bytes) -> Iterator[Upload]:
    here = cursor.seek(prefix)
    while here and (key := cursor.key).startswith(prefix):
        yield decode(key, unframe(key, bytes(cursor.value)), Upload)
        here = cursor.next()
