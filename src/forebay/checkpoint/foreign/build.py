"""From leaves with paths, and arrays in chunks, to a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint import manifest as records
from forebay.checkpoint.layout import Box
from forebay.checkpoint.manifest import ArrayEntry, Fields, FileEntry, Key, Manifest, Mapping, Node, Path, Piece
from forebay.errors import CheckpointCorrupt, ForebayError
from forebay.locations import Location


def nest(leaves: Iterable[tuple[Path, Node]]) -> Node:
    """The tree of leaves at paths: strings make dicts, integers lists (sparse ones: records with integer keys)."""
    children: dict[Key, list[tuple[Path, Node]]] = {}
    for path, leaf in leaves:
        if not path:
            return leaf
        children.setdefault(path[0], []).append((path[1:], leaf))
    keys = tuple(children)
    if keys and all(isinstance(key, int) for key in keys):
        keys = tuple(sorted(cast("tuple[int, ...]", keys)))
        nodes = tuple(nest(children[key]) for key in keys)
        return records.Sequence(nodes) if keys == tuple(range(len(keys))) else Fields("pytree", "", keys, nodes)
    return Mapping(keys, tuple(nest(below) for below in children.values()))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of an array that can only be read whole; `read` gives it, of the box's shape."""

    box: Box
    read: Callable[[], np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """An array in chunks that cover it exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def size_of(self, chunk: Chunk) -> int:
        """Bytes."""
        return chunk.box.size * dtypes.itemsize_of(self.dtype)


class ChunkReader:
    """A place where each array is a file and each chunk a block of it, at multiples of `stride`; `fetch` reads it like any
    other.
    """

    part_bytes = part_bytes_min = 4096
    streams = 4
    direct_io = False
    copies_parts = False

    def __init__(self, url: str, arrays: Sequence[ChunkedArray]) -> None:
        self.url, self._arrays = url, arrays
        largest = max((array.size_of(chunk) for array in arrays for chunk in array.chunks), default=0)
        self.stride = max(4096, -(-largest // 4096) * 4096)

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """Fill `view`, which begins at a chunk, with chunks; what lies between them stays as it is."""
        array = self._arrays[int(key)]
        assert offset % self.stride == 0
        out = np.frombuffer(view, np.uint8)
        for place in range(0, len(out), self.stride):
            chunk = array.chunks[(offset + place) // self.stride]
            room = out[place : place + array.size_of(chunk)]
            data = self._read(array, chunk)
            room[:] = data.reshape(-1).view(np.uint8)[: len(room)]

    def _read(self, array: ChunkedArray, chunk: Chunk) -> np.ndarray[Any, Any]:
        try:
            data = np.asarray(chunk.read(), order="C")
        except ForebayError:
            raise
        except (ValueError, OSError, RuntimeError, KeyError) as error:  # TensorStore's and torch's
            raise CheckpointCorrupt(f"array {array.name!r} of {self.url} cannot be read: {error}") from error
        if data.shape != chunk.box.shape or data.dtype.itemsize != dtypes.itemsize_of(array.dtype):
            found, want = f"{data.dtype}{list(data.shape)}", f"{array.dtype}{list(chunk.box.shape)}"
            raise CheckpointCorrupt(f"array {array.name!r} of {self.url}: found {found}, want {want}")
        return data


def chunked(url: str, writer: str, tree: Node, arrays: Sequence[ChunkedArray], step: int | None) -> tuple[Location, Manifest]:
    """A place and a manifest of arrays in chunks."""
    reader = ChunkReader(url, arrays)
    entries = tuple(
        ArrayEntry(
            array.name, array.dtype, array.shape,
            tuple(Piece(index, number * reader.stride, chunk.box.start, chunk.box.shape, ()) for number, chunk in enumerate(array.chunks)),
        )
        for index, array in enumerate(arrays)
    )  # fmt: skip
    files = tuple(FileEntry(str(index), len(array.chunks) * reader.stride, 0, "") for index, array in enumerate(arrays))
    return cast("Location", reader), Manifest("", step, 0.0, writer, reader.stride, tree, entries, files)
