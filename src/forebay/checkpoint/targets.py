"""Where the bytes of an array go when it is loaded: one small interface over NumPy, JAX and PyTorch."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.layout import Box, whole

PAGE_BYTES = 4096
HUGE_BYTES_MIN = 2**22
"""Smaller arrays come from the heap."""


class Target(Protocol):
    """An array being loaded: this process fills `buffer(box)` for each of `boxes`, then calls `finish` once."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    page_aligned: bool
    """Whether the buffers begin at a page."""

    def buffer(self, box: Box) -> np.ndarray[Any, Any]:
        """C-contiguous writable memory of the box's shape and `dtypes.numpy_dtype(dtype)`; the same at each call."""

    def finish(self) -> Any:
        """The loaded object."""


def page_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of arbitrary content that begins at a page, so that direct I/O and XLA's CPU backend can use it as it is.

    Large ones are mapped in huge pages: faulting in 1 GiB of fresh 4 KiB pages costs up to half a second of CPU, of huge
    ones a fifth of that.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes >= HUGE_BYTES_MIN:
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(mapping, np.uint8)
    else:
        spare = np.empty(size_bytes + PAGE_BYTES, np.uint8)
        skip = -spare.ctypes.data % PAGE_BYTES
        raw = spare[skip : skip + size_bytes]
    return raw.view(dtype).reshape(shape)


class Buffers:
    """The buffers of a target that allocates its own."""

    page_aligned = True

    def __init__(self, shape: tuple[int, ...], dtype: str, boxes: Iterable[Box]) -> None:
        self.shape, self.dtype, self.boxes = shape, dtype, tuple(boxes)
        self._buffers: dict[Box, np.ndarray[Any, Any]] = {}

    def buffer(self, box: Box) -> np.ndarray[Any, Any]:
        """See `Target`."""
        if box not in self._buffers:
            self._buffers[box] = page_aligned(box.shape, dtypes.numpy_dtype(self.dtype))
        return self._buffers[box]


class NumpyTarget(Buffers):
    """A new NumPy array."""

    def __init__(self, shape: tuple[int, ...], dtype: str, box: Box | None = None) -> None:
        super().__init__(shape, dtype, (box or whole(shape),))

    def finish(self) -> np.ndarray[Any, Any]:
        """The array, or the part of it that was asked for."""
        return self.buffer(self.boxes[0])
