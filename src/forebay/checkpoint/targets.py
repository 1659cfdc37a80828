"""Where the bytes of an array go when it is loaded: one small interface over NumPy, JAX and PyTorch."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.layout import Box, whole

PAGE_BYTES = 4096
MAPPED_BYTES_MIN = 2**22
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

    A large one is mapped in small pages, which several reading threads fault in side by side; NumPy's own are huge pages, which
    cost up to 2 CPU-seconds a GiB, one after another, on virtual machines whose host takes free memory back.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes >= MAPPED_BYTES_MIN:
        mapping = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(mapping, np.uint8).view(dtype).reshape(shape)
    spare = np.empty(size_bytes + PAGE_BYTES, np.uint8)
    skip = -spare.ctypes.data % PAGE_BYTES
    return spare[skip : skip + size_bytes].view(dtype).reshape(shape)


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
