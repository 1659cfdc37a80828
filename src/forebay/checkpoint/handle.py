"""Looking into a checkpoint: names, shapes, and parts of arrays, by ranged reads of only the blocks they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.fetch import Wanted, fetch
from forebay.checkpoint.layout import Box
from forebay.checkpoint.leaves import decode_value
from forebay.checkpoint.manifest import Array, ArrayEntry, Manifest, Node, Value, path_text
from forebay.checkpoint.read import LoadOptions, find_node, load_tree
from forebay.checkpoint.targets import NumpyTarget
from forebay.checkpoint.timeline import Timeline
from forebay.locations import Location

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


class StoredArray:
    """An array in a checkpoint. Indexing reads a part, verified, as a NumPy array: integers, slices and `...`."""

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        self._checkpoint, self._index = checkpoint, index
        self.entry: ArrayEntry = checkpoint.manifest.arrays[index]
        self.shape = self.entry.shape
        self.dtype = dtypes.numpy_dtype(self.entry.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, index: Index) -> np.ndarray[Any, Any]:
        """Read a part."""
        box, steps = box_of_index(index, self.shape)
        target = NumpyTarget(self.shape, self.entry.dtype, box)
        self._checkpoint.fetch(Wanted(self._index, target))
        part: np.ndarray[Any, Any] = target.finish()[steps]
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The whole array."""
        if copy is False:
            raise ValueError("an array in a checkpoint has to be read, which makes a copy")
        return self[...].astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        """Name, dtype and shape."""
        return f"StoredArray({self.entry.name!r}, {self.entry.dtype}, {self.shape})"


class Checkpoint:
    """An open checkpoint, or a subtree of it: a mapping from paths such as `model/layer0/w` to arrays, values and
    subtrees.
    """

    def __init__(self, location: Location, manifest: Manifest, path: str = "", options: LoadOptions | None = None) -> None:
        self.location, self.manifest, self.path = location, manifest, path
        self._options = options or LoadOptions()
        self._node: Node = find_node(manifest, path, location.url)

    def __getitem__(self, path: str) -> Any:
        """A `StoredArray`, the value of another leaf, or a `Checkpoint` of the subtree. Raises `CheckpointMissing`."""
        node = find_node(self.manifest, f"{self.path}/{path}", self.location.url)
        if isinstance(node, Array):
            return StoredArray(self, node.index)
        if isinstance(node, Value):
            return decode_value(node)
        return Checkpoint(self.location, self.manifest, f"{self.path}/{path}".strip("/"), self._options)

    def __iter__(self) -> Iterator[str]:
        """The paths of all leaves."""
        return (path_text(path) for path, _ in self.manifest.leaves(self._node))

    def __len__(self) -> int:
        """How many leaves there are."""
        return sum(1 for _ in self)

    def __contains__(self, path: object) -> bool:
        """Whether a leaf has this path."""
        return any(path == found for found in self)

    def load(self, like: Any = None, **how: Any) -> Any:
        """The tree, as `forebay.load` gives it."""
        return load_tree(self.location, self.manifest, like, subtree=self.path, options=self._options, **how)

    @property
    def step(self) -> int | None:
        """The step it was saved as."""
        return self.manifest.step

    @property
    def metadata(self) -> dict[str, Any]:
        """What the user saved with it."""
        return self.manifest.metadata

    def fetch(self, *wanted: Wanted) -> None:
        """Fill targets."""
        fetch(
            self.location, self.manifest, wanted, lambda index: None,
            memory_bytes=self._options.memory_bytes, threads=self._options.threads, timeline=Timeline(),
        )  # fmt: skip

    def __repr__(self) -> str:
        """Where it is and how much."""
        return f"Checkpoint({self.location.url!r}, step={self.step}, {len(self)} leaves)"


def box_of_index(index: Index, shape: tuple[int, ...]) -> tuple[Box, tuple[int | slice, ...]]:
    """The box that an index touches, and the index of what was asked for within that box. Raises IndexError."""
    parts = list(index) if isinstance(index, tuple) else [index]
    given = [part for part in parts if part is not Ellipsis]
    if len(parts) - len(given) > 1 or len(given) > len(shape):
        raise IndexError(f"index {index!r} does not fit an array of shape {shape}")
    fill = [slice(None)] * (len(shape) - len(given))
    at = parts.index(Ellipsis) if len(parts) > len(given) else len(given)
    full = [*parts[:at], *fill, *parts[at + (len(parts) > len(given)) :]]
    spans = [_span(part, n) for part, n in zip(full, shape, strict=True)]
    box = Box(tuple(start for start, _, _ in spans), tuple(length for _, length, _ in spans))
    return box, tuple(within for _, _, within in spans)


def _span(part: Any, n: int) -> tuple[int, int, int | slice]:
    """First index, length, and the index within."""
    if isinstance(part, slice):
        indices = range(n)[part]
        if not indices:
            return 0, 0, slice(None)
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        return low, high - low + 1, slice(None, None, indices.step)
    try:
        position = range(n)[part]
    except TypeError:
        raise IndexError(f"{part!r}: arrays in a checkpoint are indexed by integers, slices and ...") from None
    return position, 1, 0
