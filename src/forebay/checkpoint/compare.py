"""What differs between two checkpoints, by array. Where checksums prove equality nothing is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.fetch import Wanted
from forebay.checkpoint.handle import Checkpoint
from forebay.checkpoint.layout import Box, c_order_boxes
from forebay.checkpoint.manifest import Array, ArrayEntry, Piece, Value, path_text
from forebay.checkpoint.stage import block_bounds
from forebay.checkpoint.targets import NumpyTarget
from forebay.codec import combine_crc64nvme

WINDOW_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Difference:
    """How one leaf compares.

    `status`: `equal`, `changed` (then `changed_count` of `count` elements, and the largest difference of numbers, None
    if there is none to name), `other` (another shape, dtype or kind: `detail` says), `first` or `second` (only there).
    """

    path: str
    status: str
    detail: str = ""
    count: int = 0
    changed_count: int = 0
    max_difference: float | None = None


def compare(first: Checkpoint, second: Checkpoint, compared: Callable[[str], None] = lambda path: None) -> Iterator[Difference]:
    """Each leaf of both, in the first's order. Raises `CheckpointCorrupt`, `LocationError`."""
    ours = {path_text(path): leaf for path, leaf in first.manifest.leaves()}
    theirs = {path_text(path): leaf for path, leaf in second.manifest.leaves()}
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        if path not in theirs or path not in ours:
            yield Difference(path, "first" if path in ours else "second")
        else:
            yield _leaf(path, first, ours[path], second, theirs[path])
        compared(path)


def _leaf(path: str, first: Checkpoint, a: Array | Value, second: Checkpoint, b: Array | Value) -> Difference:
    if isinstance(a, Value) and isinstance(b, Value):
        return Difference(path, "equal") if a == b else Difference(path, "changed", f"{_shown(a)} → {_shown(b)}", 1, 1)
    if isinstance(a, Value) or isinstance(b, Value):
        return Difference(path, "other", f"{_kind(first, a)} → {_kind(second, b)}")
    x, y = first.manifest.arrays[a.index], second.manifest.arrays[b.index]
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return Difference(path, "other", f"{_kind(first, a)} → {_kind(second, b)}")
    boxes = None if first.manifest.is_foreign or second.manifest.is_foreign else _suspects(x, y, first, second)
    return _read_both(path, first, a.index, second, b.index, [Box((0,) * len(x.shape), x.shape)] if boxes is None else boxes)


def _shown(value: Value) -> str:
    return "None" if value.kind == "none" else f"{value.text:.60}"


def _kind(checkpoint: Checkpoint, leaf: Array | Value) -> str:
    if isinstance(leaf, Value):
        return leaf.kind
    entry = checkpoint.manifest.arrays[leaf.index]
    return f"{entry.dtype}{list(entry.shape)}"


def _suspects(x: ArrayEntry, y: ArrayEntry, first: Checkpoint, second: Checkpoint) -> list[Box] | None:
    """The pieces whose checksums differ; None if the two are cut differently."""
    ours = {(p.start, p.shape): _piece_crc(p, x.dtype) for p in x.pieces}
    theirs = {(p.start, p.shape): _piece_crc(p, y.dtype) for p in y.pieces}
    if set(ours) != set(theirs) or first.manifest.block_bytes != second.manifest.block_bytes:
        return None
    boxes = [Box(*key) for key, crc in ours.items() if theirs[key] != crc]
    whole = Box((0,) * len(x.shape), x.shape)
    return [common for box in boxes if (common := box.overlap(whole)) is not None]


def _piece_crc(piece: Piece, dtype: str) -> int:
    """Of all its bytes, wherever in the file they lie."""
    crc = 0
    for number, start, stop in block_bounds(piece.offset, 0, math.prod(piece.shape) * dtypes.itemsize_of(dtype)):
        crc = combine_crc64nvme(crc, piece.crcs[number], stop - start)
    return crc


def _read_both(path: str, first: Checkpoint, a: int, second: Checkpoint, b: int, boxes: list[Box]) -> Difference:
    entry = first.manifest.arrays[a]
    count = math.prod(entry.shape)
    changed, largest = 0, None
    for box in boxes:
        for window in windows(box, dtypes.itemsize_of(entry.dtype)):
            x, y = read_box(first, a, window), read_box(second, b, window)
            different = _bits(x) != _bits(y)
            changed += int(np.count_nonzero(different))
            largest = _larger(largest, x[different], y[different])
    if not changed:
        return Difference(path, "equal", count=count)
    return Difference(path, "changed", f"{entry.dtype}{list(entry.shape)}", count, changed, largest)


def windows(box: Box, itemsize: int) -> Iterator[Box]:
    """A box in parts of about `WINDOW_BYTES`, in C order."""
    step = max(1, WINDOW_BYTES // max(1, itemsize))
    for start in range(0, box.size, step):
        for part in c_order_boxes(box.shape, start, min(start + step, box.size)):
            yield Box(tuple(p + b for p, b in zip(part.start, box.start, strict=True)), part.shape)


def read_box(checkpoint: Checkpoint, index: int, box: Box) -> np.ndarray[Any, Any]:
    """A part of an array, verified."""
    entry = checkpoint.manifest.arrays[index]
    target = NumpyTarget(entry.shape, entry.dtype, box)
    checkpoint.fetch(Wanted(index, target))
    return target.finish()


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same elements as something whose equality is that of their bits."""
    size = array.dtype.itemsize
    return array.view(np.dtype(f"u{size}") if size in (1, 2, 4, 8) else np.dtype(f"V{size}"))


def _larger(largest: float | None, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float | None:
    if x.dtype.kind in "mMSU" or x.dtype.type is np.void:  # dates, text, bytes
        return largest
    with np.errstate(all="ignore"):
        kind = np.complex128 if x.dtype.kind == "c" else np.float64
        difference = np.abs(x.astype(kind) - y.astype(kind))
    numbers = difference[~np.isnan(difference)]
    return largest if not numbers.size else max(largest or 0.0, float(numbers.max()))
