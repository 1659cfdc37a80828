"""What a checkpoint needs from the place where it lives.

A location is a flat set of objects under one root: keys are relative, separated by `/`, never empty, and hold no `.`
or `..` part. All methods block, may be called from many threads at once, and carry their own time-outs and retries.
Errors are the kinds of `forebay.errors.LocationError`; anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """An object: its key relative to the location, its size, its entity tag, and when it was last written (Unix
    time).
    """

    key: str
    size_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class Listing:
    """One level of a location: the objects there, and the names of the folders below (no slash), both sorted."""

    objects: tuple[Entry, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """Condition of a put: there must be no such object (`If-None-Match: *`)."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Condition of a put: the object must still be the one with this entity tag (`If-Match`)."""

    etag: str


Condition = Absent | Unchanged | None


class Upload(Protocol):
    """One object being written in parts; it appears whole at `complete`, or not at all.

    Part `index` covers the bytes from `index * part_bytes`; all parts but the last have exactly `part_bytes`. Parts
    may come from any thread in any order, each once. A part that was started must not wait for a part of a higher
    index.
    """

    def write_part(self, index: int, buffers: Sequence[Buffer]) -> None:
        """Write one part from `buffers`, one after another. They are read until this returns, and not after it."""

    def copy_part(self, index: int, source: Location, source_key: str, *, offset: int, size_bytes: int, etag: str) -> bool:
        """Let the store copy the part from `offset` of an object of `source`, if that still has the entity tag `etag`.

        False: not possible here, and nothing was done; the caller writes the part itself.
        """

    def complete(self) -> Entry:
        """Make the object appear, durable. Every part must have returned."""

    def abort(self) -> None:
        """Give up and free what was stored. Harmless after `complete` or twice. Never raises `LocationError`."""


@runtime_checkable
class Location(Protocol):
    """A root under which objects are read and written."""

    url: str
    """Where it is, for people; without credentials."""
    part_bytes: int
    """The part size at which uploads and reads go well here."""
    streams: int
    """How many requests in flight at a time go well here."""
    part_bytes_min: int
    """The smallest part that is not the last, and a divisor of every part size."""
    direct_io: bool
    """Whether bytes go past the page cache here, so that page-aligned buffers and offsets pay."""

    @property
    def copies_parts(self) -> bool:
        """Whether `Upload.copy_part` can work here."""

    def child(self, prefix: str) -> Location:
        """The location `prefix` deeper. It shares connections with this one and needs no closing of its own."""

    def put(self, key: str, data: Buffer, condition: Condition = None) -> str:
        """Write a small object atomically and durably; its new entity tag.

        Raises `PreconditionFailed` if the condition does not hold. A put whose answer was lost is resolved by reading
        back: a conditional put of these very bytes that did arrive counts as done.
        """

    def get(self, key: str) -> tuple[bytes, str]:
        """A small object whole, and its entity tag. Raises `ObjectMissing`."""

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `offset`. Raises `ObjectMissing`, or `LocationError` if the object ends
        before.
        """

    def head(self, key: str) -> Entry | None:
        """The object, or None if there is none."""

    def list_folder(self, prefix: str = "") -> Listing:
        """What is directly under the folder `prefix` (no slash at its end). Empty if there is nothing."""

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """Every object under the folder `prefix`, at any depth, sorted by key."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. One that is missing already is no error."""

    def upload(self, key: str, size_bytes: int, part_bytes: int) -> Upload:
        """Start writing an object of known size in parts. `part_bytes` is a multiple of `part_bytes_min`."""

    def sweep_uploads(self, prefix: str, before_s: float) -> int:
        """Abort uploads under the folder `prefix` that were started before this Unix time; how many there were."""

    def close(self) -> None:
        """Close connections. Harmless twice."""
