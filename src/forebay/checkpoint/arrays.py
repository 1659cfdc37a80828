"""Where the bytes of an array come from when it is saved: one small interface over NumPy, JAX and PyTorch.

The frameworks' own sources are in `jax_arrays` and `torch_arrays`; they are imported only if the program imported the
framework.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.layout import Box, whole
from forebay.errors import LeafRefused

Bytes1D = np.ndarray[tuple[int], np.dtype[np.uint8]]


class ArraySource(Protocol):
    """An array of the user's. `box` arguments lie within one of this rank's boxes in `holders`, or are filled by
    several.
    """

    dtype: str
    """Logical dtype."""
    shape: tuple[int, ...]
    """Global shape."""
    sharding: str
    """How it lay over devices, for people."""
    holders: tuple[tuple[Box, ...], ...]
    """By rank, the boxes at hand there."""
    settled: bool
    """Whether its bytes stay as they are after the user goes on; if not, they must be copied before."""
    identity: Hashable
    """Equal for two sources that are the same array (tied weights)."""

    def view(self, box: Box) -> Bytes1D | None:
        """The box's bytes in C order as they lie in host memory, without a copy; None if they do not lie so."""

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """Copy the box into `out`, C-contiguous, of the box's shape and `dtypes.numpy_dtype(dtype)`."""


class SourceLeaf:
    """A leaf of a tree to be saved that stands for an array and brings its source, such as one in another checkpoint."""

    kind: str
    detail: str

    def source(self, ranks: int) -> ArraySource:
        """The source for a save of so many ranks."""
        raise NotImplementedError


def replicated(shape: tuple[int, ...], ranks: int) -> tuple[tuple[Box, ...], ...]:
    """The holders of an array that every rank has whole."""
    return ((whole(shape),),) * ranks


def flat_bytes(array: np.ndarray[Any, Any]) -> Bytes1D | None:
    """The bytes of a C-contiguous array, without a copy; None if it is not contiguous."""
    if not array.flags.c_contiguous:
        return None
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


class NumpySource:
    """A NumPy array, taken to be the same on every rank. The user may change it, so it is not settled unless we own
    it.
    """

    sharding = ""

    def __init__(self, path: str, array: np.ndarray[Any, Any], ranks: int, *, settled: bool = False) -> None:
        if type(array) not in (np.ndarray, np.memmap):
            raise LeafRefused(path, f"{type(array).__name__} is a subclass of numpy.ndarray that would come back as a plain one")
        name = dtypes.dtype_name(array.dtype)
        if name is None:
            raise LeafRefused(path, f"arrays of dtype {array.dtype} cannot be stored as plain bytes")
        self.dtype = name
        self.shape = array.shape
        self.holders = replicated(array.shape, ranks)
        self.settled = settled
        self.identity: Hashable = ("numpy", id(array))
        self._array = np.asarray(array)

    def view(self, box: Box) -> Bytes1D | None:
        """See `ArraySource`."""
        return flat_bytes(self._array[box.within((0,) * len(box.start))])

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """See `ArraySource`."""
        np.copyto(out, self._array[box.within((0,) * len(box.start))])


class SnapshotSource:
    """A private copy of this rank's part of another source, taken when this was made: settled."""

    settled = True

    def __init__(self, source: ArraySource, rank: int) -> None:
        self.dtype, self.shape, self.sharding = source.dtype, source.shape, source.sharding
        self.holders, self.identity = source.holders, source.identity
        dtype = dtypes.numpy_dtype(source.dtype)
        self._parts: list[tuple[Box, np.ndarray[Any, Any]]] = []
        for box in source.holders[rank]:
            part = np.empty(box.shape, dtype)
            source.copy_into(box, part)
            self._parts.append((box, part))

    def view(self, box: Box) -> Bytes1D | None:
        """See `ArraySource`."""
        return view_of_parts(self._parts, box)

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """See `ArraySource`."""
        copy_from_parts(self._parts, box, out)


def view_of_parts(parts: list[tuple[Box, np.ndarray[Any, Any]]], box: Box) -> Bytes1D | None:
    """The bytes of `box` if one part holds it contiguously."""
    for held, part in parts:
        if held.contains(box):
            return flat_bytes(part[box.within(held.start)])
    return None


def copy_from_parts(parts: list[tuple[Box, np.ndarray[Any, Any]]], box: Box, out: np.ndarray[Any, Any]) -> None:
    """Assemble `box` from the parts that overlap it; they must cover it, and may overlap each other."""
    copied = 0
    for held, part in parts:
        common = held.overlap(box)
        if common is not None:
            np.copyto(out[common.within(box.start)], part[common.within(held.start)])
            copied += common.size
            if held.contains(box):
                return
    assert copied >= box.size, "a box that this rank does not hold"
