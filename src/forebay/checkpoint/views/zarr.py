"""The arrays of a checkpoint as zarr v3 arrays whose chunks are byte ranges of the data files.

Every array has two names in the OCDBT database: `a.b` for Orbax and `a/b` for Levanter and people. Numbers that are kept in the
manifest get a chunk in the database itself. An array whose pieces are no regular grid has no such view.
The format: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.leaves import decode_value
from forebay.checkpoint.manifest import Array, ArrayEntry, Fields, Manifest, Node, Path, Piece, TypedKey, Value, children_of
from forebay.checkpoint.views.ocdbt import Extent

CHUNK_BYTES = 64 * 2**20
"""A piece is shown as several chunks of about this size, so that a reader of a part need not read all of it."""
CHUNKS_MAX = 4096
ZARR_DTYPES = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16", "complex64", "complex128", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "int4", "float4_e2m1fn", "int2",
}  # fmt: skip
"""What TensorStore's `zarr3` driver names likewise. Others are shown as `uint8`, as the data files hold them."""


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """A leaf as others see it: its path, dtype and shape there, chunk shape, and by chunk place where the bytes are."""

    path: Path
    node: Array | Value
    dtype: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: dict[tuple[int, ...], bytes | Extent]

    @property
    def dotted(self) -> str:
        """Orbax's name."""
        return ".".join(map(_text, self.path))

    @property
    def slashed(self) -> str:
        """Levanter's name."""
        return "/".join(map(_text, self.path))

    def entries(self, names: Iterable[str]) -> Iterator[tuple[bytes, bytes | Extent]]:
        """The database entries under each of some names."""
        described = metadata(self)
        for name in names:
            yield f"{name}/zarr.json".encode(), described
            for place, chunk in self.chunks.items():
                yield "/".join([name, "c", *map(str, place)]).encode(), chunk


def zarr_arrays(manifest: Manifest) -> list[ZarrArray]:
    """Every leaf that can be shown as a zarr array."""
    leaves = [(path, node) for path, node in _leaves(manifest.tree, ())]
    shown = [_of_array(path, node, manifest) if isinstance(node, Array) else _of_value(path, node) for path, node in leaves]
    return [array for array in shown if array is not None]


def distinct_entries(arrays: list[ZarrArray]) -> dict[bytes, bytes | Extent]:
    """The whole database. A name that two leaves share is left out, so that nobody reads one for the other."""
    names = [tuple(dict.fromkeys((array.dotted, array.slashed))) for array in arrays]
    counts = Counter(name for pair in names for name in pair)
    distinct = ([name for name in pair if counts[name] == 1] for pair in names)
    return dict(entry for array, pair in zip(arrays, distinct, strict=True) for entry in array.entries(pair))


def metadata(array: ZarrArray) -> bytes:
    """The contents of `zarr.json`."""
    fill: Any = False if array.dtype == "bool" else [0.0, 0.0] if array.dtype.startswith("complex") else 0
    if array.dtype.startswith(("float", "bfloat")):
        fill = 0.0
    chunk_shape = [max(1, n) for n in array.chunk_shape]
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": array.shape, "data_type": array.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": fill,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }, separators=(",", ":")).encode()  # fmt: skip


def _leaves(node: Node, path: Path) -> Iterator[tuple[Path, Array | Value]]:
    """As `Manifest.leaves`, but a Haliax named array is a leaf, as it is for Levanter."""
    if isinstance(node, Array | Value):
        yield path, node
        return
    named = isinstance(node, Fields) and node.type == "haliax.core.NamedArray" and len(node.children) == 1
    for key, child in children_of(node).items():
        yield from _leaves(child, path if named else (*path, key))


def _text(key: str | int | TypedKey) -> str:
    return key.text if isinstance(key, TypedKey) else str(key)


def _of_array(path: Path, node: Array, manifest: Manifest) -> ZarrArray | None:
    entry = manifest.arrays[node.index]
    grid = regular_grid(entry)
    if grid is None or node.kind in ("str", "bytes"):
        return None
    dtype, shape = entry.dtype, entry.shape
    extra: tuple[int, ...] = ()
    if dtype not in ZARR_DTYPES:
        dtype, itemsize = "uint8", dtypes.itemsize_of(entry.dtype)
        extra = () if itemsize == 1 else (itemsize,)
    chunk_shape = _split(grid, dtypes.itemsize_of(entry.dtype), len(entry.pieces))
    chunks: dict[tuple[int, ...], bytes | Extent] = {}
    for piece in entry.pieces:
        for start, extent in _chunks(piece, chunk_shape, entry, manifest):
            if all(a < n for a, n in zip(start, entry.shape, strict=True)):
                place = tuple(a // n for a, n in zip(start, chunk_shape, strict=True))
                chunks[place + (0,) * len(extra)] = extent
    return ZarrArray(path, node, dtype, shape + extra, chunk_shape + extra, chunks)


def regular_grid(entry: ArrayEntry) -> tuple[int, ...] | None:
    """The shape that all pieces have, if they stand at multiples of it; None if they do not."""
    shape = entry.pieces[0].shape
    for piece in entry.pieces:
        if piece.shape != shape or any(n and a % n for a, n in zip(piece.start, shape, strict=True)):
            return None
    return shape


def _split(shape: tuple[int, ...], itemsize: int, pieces: int) -> tuple[int, ...]:
    """The shape of chunks: contiguous equal parts of a piece."""
    axis = next((i for i, n in enumerate(shape) if n > 1), None)
    if axis is None or 0 in shape:
        return shape
    wanted = -(-math.prod(shape) * itemsize // CHUNK_BYTES)
    count = next((n for n in range(wanted, shape[axis] + 1) if shape[axis] % n == 0), 1)
    if count * pieces > CHUNKS_MAX:
        return shape
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])


def _chunks(piece: Piece, chunk_shape: tuple[int, ...], entry: ArrayEntry, manifest: Manifest) -> Iterator[tuple[tuple[int, ...], Extent]]:
    """Where the chunks of a piece begin in the array and in the file."""
    if 0 in piece.shape:
        return
    size_bytes = math.prod(chunk_shape) * dtypes.itemsize_of(entry.dtype)
    file = manifest.files[piece.file].key
    steps = (range(0, n, step) for n, step in zip(piece.shape, chunk_shape, strict=True))
    for number, inner in enumerate(itertools.product(*steps)):
        start = tuple(a + b for a, b in zip(piece.start, inner, strict=True))
        yield start, Extent(file, piece.offset + number * size_bytes, size_bytes)


def _of_value(path: Path, node: Value) -> ZarrArray | None:
    """A number as an array without axes, as `numpy.asarray` makes it; None for other values."""
    if node.kind not in ("bool", "int", "float", "complex", "numpy"):
        return None
    array = np.asarray(decode_value(node))
    name = dtypes.dtype_name(array.dtype)
    if name is None or name not in ZARR_DTYPES or array.shape != ():
        return None
    return ZarrArray(path, node, name, (), (), {(): array.tobytes()})
