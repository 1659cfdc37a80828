"""How one array is cut over the processes that hold it. Pure.

Every process holds boxes of the array; together they cover it, and boxes may be held by several (replicas). The cut is
a grid: its planes are where any process's box begins or ends, so each cell is held whole by whoever holds it. A cell
is written by one process. Readers that know only regular grids (zarr) want equal cells, so a grid whose cells are
equal but for shorter ones at the far edges is stored with those padded to full size; another one is refined to equal
cells if that does not make too many.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import NamedTuple

REPLICA_SLICE_BYTES_MIN = 16 * 2**20
"""Replicas share a cell's bytes only in slices at least this large; smaller ones cost more requests than they save."""
CELLS_MAX = 4096
"""A grid is not refined beyond this many cells an array."""


class Box(NamedTuple):
    """A part of an array: the first index and the length along each axis."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last index along each axis."""
        return tuple(a + n for a, n in zip(self.start, self.shape, strict=True))

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def overlap(self, other: Box) -> Box | None:
        """The common part, or None if it is empty. Boxes without axes are one element and the same."""
        start = tuple(map(max, self.start, other.start))
        shape = tuple(min(a, b) - s for a, b, s in zip(self.stop, other.stop, start, strict=True))
        return Box(start, shape) if all(n > 0 for n in shape) else None

    def contains(self, other: Box) -> bool:
        """Whether `other` lies within."""
        inside = zip(self.start, other.start, other.stop, self.stop, strict=True)
        return all(a <= b and c <= d for a, b, c, d in inside)

    def within(self, origin: Sequence[int]) -> tuple[slice | EllipsisType, ...]:
        """The index that selects it in an array whose first element is at `origin`; with `...`, so that one element stays an array."""
        return (*(slice(a - o, a - o + n) for a, n, o in zip(self.start, self.shape, origin, strict=True)), ...)


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole array."""
    return Box((0,) * len(shape), tuple(shape))


def join_boxes(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """The distinct boxes without empty ones; the one box that they fill exactly, if there is one."""
    distinct = sorted({box for box in boxes if box.size})
    if len(distinct) < 2:
        return tuple(distinct)
    start = tuple(map(min, *(box.start for box in distinct)))
    stop = tuple(map(max, *(box.stop for box in distinct)))
    hull = Box(start, tuple(b - a for a, b in zip(start, stop, strict=True)))
    fills = sum(box.size for box in distinct) == hull.size and _are_disjoint(distinct)
    return (hull,) if fills else tuple(distinct)


def _are_disjoint(distinct: Sequence[Box]) -> bool:
    shape = distinct[0].shape
    if all(box.shape == shape and not any(a % n for a, n in zip(box.start, shape, strict=True)) for box in distinct):
        return True  # distinct cells of one grid: the common case, and there may be hundreds
    return all(a.overlap(b) is None for a, b in itertools.combinations(distinct, 2))


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of an array that is written as one piece: the box, its shape as stored, and the ranks that could write
    it.
    """

    box: Box
    stored_shape: tuple[int, ...]
    holders: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def cut(shape: tuple[int, ...], itemsize: int, holders: tuple[tuple[Box, ...], ...]) -> tuple[Cell, ...]:
    """The cells of an array, in C order of their place. `holders[rank]` are the boxes that the rank has.

    Raises ValueError if no rank holds some part.
    """
    if 0 in shape:
        return (Cell(whole(shape), shape, tuple(range(len(holders)))),)
    by_rank = [join_boxes(boxes) for boxes in holders]
    planes = [sorted({0, n} | {p for boxes in by_rank for b in boxes for p in (b.start[i], b.stop[i])})
              for i, n in enumerate(shape)]  # fmt: skip
    planes = _refine(shape, planes)
    cells = _cells(shape, planes, by_rank)
    split = _replica_split(cells, itemsize)
    if split is None:
        return tuple(cells)
    axis, count = split
    step = (planes[axis][1] - planes[axis][0]) // count
    planes[axis] = [*list(range(0, shape[axis], step)), shape[axis]]
    return tuple(_cells(shape, planes, by_rank))


def _steps(n: int, planes: list[int]) -> tuple[int, bool]:
    """The distance of the first two planes, and whether all others but the last keep it (and the last is no
    further).
    """
    step = planes[1] - planes[0]
    return step, planes[:-1] == list(range(0, n, step))


def _refine(shape: tuple[int, ...], planes: list[list[int]]) -> list[list[int]]:
    """Planes at equal distances, if that makes no more than `CELLS_MAX` cells; else as they are."""
    equal = []
    for n, axis_planes in zip(shape, planes, strict=True):
        step, regular = _steps(n, axis_planes)
        if not regular:
            inner = axis_planes[1:-1]
            step = math.gcd(*inner)
        equal.append([*range(0, n, step), n])
    return equal if math.prod(len(p) - 1 for p in equal) <= CELLS_MAX else planes


def _cells(shape: tuple[int, ...], planes: list[list[int]], by_rank: list[tuple[Box, ...]]) -> list[Cell]:
    steps = [_steps(n, p) for n, p in zip(shape, planes, strict=True)]
    regular = all(is_regular for _, is_regular in steps)
    full = tuple(step for step, _ in steps)
    holders = _holders(planes, by_rank)
    cells = []
    for place in itertools.product(*(range(len(p) - 1) for p in planes)):
        start = tuple(p[i] for p, i in zip(planes, place, strict=True))
        box = Box(start, tuple(p[i + 1] - p[i] for p, i in zip(planes, place, strict=True)))
        if place not in holders:
            raise ValueError(f"no process holds the part {box_text(box)} of an array of shape {shape}")
        cells.append(Cell(box, full if regular else box.shape, tuple(holders[place])))
    return cells


def _holders(planes: list[list[int]], by_rank: list[tuple[Box, ...]]) -> dict[tuple[int, ...], list[int]]:
    """The ranks that hold each cell, by the cell's place in the grid."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank, boxes in enumerate(by_rank):
        places: set[tuple[int, ...]] = set()
        for box in boxes:
            bounds = zip(planes, box.start, box.stop, strict=True)
            places.update(itertools.product(*(range(bisect_left(p, a), bisect_left(p, b)) for p, a, b in bounds)))
        for place in places:
            holders.setdefault(place, []).append(rank)
    return holders


def _replica_split(cells: list[Cell], itemsize: int) -> tuple[int, int] | None:
    """The axis and the count into which every cell can be cut so that its replicas share it; None if it does not
    pay.
    """
    first = cells[0].stored_shape
    if any(cell.stored_shape != first for cell in cells):
        return None
    replicas = min(len(cell.holders) for cell in cells)
    count_max = min(replicas, math.prod(first) * itemsize // REPLICA_SLICE_BYTES_MIN, CELLS_MAX // len(cells))
    for count in range(count_max, 1, -1):
        for axis, n in enumerate(first):
            if n % count == 0:
                return axis, count
    return None


def box_text(box: Box) -> str:
    """A box for people and names: `[0:4,8:16]`."""
    return "[" + ",".join(f"{a}:{b}" for a, b in zip(box.start, box.stop, strict=True)) + "]"


def c_order_boxes(shape: tuple[int, ...], first: int, last: int) -> list[Box]:
    """The boxes that hold the elements `first` to `last` (exclusive, counted in C order), in that order: few and
    disjoint.
    """
    if first >= last:
        return []
    if not shape:
        return [Box((), ())]
    inner = math.prod(shape[1:])
    row, row_last = first // inner, (last - 1) // inner
    if row == row_last:
        return [_under(row, box) for box in c_order_boxes(shape[1:], first - row * inner, last - row * inner)]
    head = [] if first % inner == 0 else c_order_boxes(shape, first, (row + 1) * inner)
    tail = [] if last % inner == 0 else c_order_boxes(shape, row_last * inner, last)
    start, stop = row + bool(head), row_last + (not tail)
    rest = (0,) * (len(shape) - 1)
    middle = [Box((start, *rest), (stop - start, *shape[1:]))] if stop > start else []
    return head + middle + tail


def _under(row: int, box: Box) -> Box:
    return Box((row, *box.start), (1, *box.shape))
