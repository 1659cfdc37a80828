"""Staging: a part of a data file is gathered from arrays into memory, and its blocks are checksummed on the way.

A *part* is what goes to the location in one piece, a *segment* what one piece contributes to it, a *block* what has a
CRC of its own: the intersection of a piece with the windows of `BLOCK_BYTES` of its file. Parts are whole multiples of
blocks' windows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.arrays import ArraySource
from forebay.checkpoint.layout import Box, c_order_boxes
from forebay.checkpoint.manifest import BLOCK_BYTES
from forebay.checkpoint.plan import Plan, PlannedPiece
from forebay.codec import crc64nvme
from forebay.directio import Arena, Slot

CACHED_BYTES = 2**18
"""Bytes are copied and checksummed in steps of this size, so that the checksum finds them in the cache."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The bytes `start` to `stop` of a piece, which stand at `offset` of the part."""

    piece: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """The `index`-th part of `plan.files[file]`: its first byte and length there, and what it is made of."""

    file: int
    index: int
    offset: int
    size_bytes: int
    segments: tuple[Segment, ...]


def parts_of(plan: Plan, file: int, part_bytes: int) -> Iterator[Part]:
    """A file's parts in order."""
    planned = plan.files[file]
    pieces = list(planned.pieces)
    first = 0
    for index, offset in enumerate(range(0, planned.size_bytes, part_bytes)):
        end = min(offset + part_bytes, planned.size_bytes)
        segments = []
        while first < len(pieces) and _end(plan.pieces[pieces[first]]) <= offset:
            first += 1
        for number in range(first, len(pieces)):
            piece = plan.pieces[pieces[number]]
            if piece.offset >= end:
                break
            start, stop = max(piece.offset, offset), min(_end(piece), end)
            if start < stop:
                segments.append(Segment(pieces[number], start - piece.offset, stop - piece.offset, start - offset))
        yield Part(file, index, offset, end - offset, tuple(segments))


def _end(piece: PlannedPiece) -> int:
    return piece.offset + piece.size_bytes


def block_bounds(offset: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The blocks of a piece at file offset `offset` that overlap its bytes `start` to `stop`, cut to that range:
    number, first and last byte (exclusive) within the piece.
    """
    first_window = offset // BLOCK_BYTES
    while start < stop:
        window = (offset + start) // BLOCK_BYTES
        end = min(stop, (window + 1) * BLOCK_BYTES - offset)
        yield window - first_window, start, end
        start = end


def block_count(offset: int, size_bytes: int) -> int:
    """How many blocks a piece has."""
    return (offset + size_bytes - 1) // BLOCK_BYTES - offset // BLOCK_BYTES + 1 if size_bytes else 0


@dataclass(frozen=True, slots=True)
class BlockCrc:
    """The CRC of one block, `size_bytes` long, of a piece."""

    piece: int
    block: int
    size_bytes: int
    crc: int


class Staging:
    """The bounded memory that staged parts pass through, shared by the saves of one owner; made at first use, kept
    after.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._shape = (0, 0)

    def arena(self, part_bytes: int, parts: int) -> Arena:
        """Slots of a part each: as many as `parts` if memory allows, at least two. Replaced if it is too small; who
        still holds slots of the old one gives them back there.
        """
        slots = max(2, min(parts, self.memory_bytes // part_bytes))
        with self._lock:
            if self._arena is None or self._shape[0] != part_bytes or self._shape[1] < slots:
                self._arena, self._shape = None, (part_bytes, slots)
                self._arena = Arena(part_bytes, slots, prefault=False)
            return self._arena


class Stager:
    """Gathers the parts of one plan from its arrays."""

    def __init__(self, plan: Plan, sources: Sequence[ArraySource]) -> None:
        self._plan, self._sources = plan, sources

    def fill(self, part: Part, slot: Slot) -> list[BlockCrc]:
        """Gather the part at the start of the slot."""
        memory = np.frombuffer(slot.view, np.uint8)
        header = self._header(part)
        memory[: len(header)] = np.frombuffer(header, np.uint8)
        crcs = []
        for segment in part.segments:
            piece = self._plan.pieces[segment.piece]
            viewed = self._view(piece)
            for block, start, stop in block_bounds(piece.offset, segment.start, segment.stop):
                place = segment.offset + start - segment.start
                out = memory[place : place + stop - start]
                crc = self._gather(piece, start, stop, out) if viewed is None else copy_crc(viewed[start:stop], out)
                crcs.append(BlockCrc(segment.piece, block, stop - start, crc))
        return crcs

    def borrow(self, part: Part) -> tuple[list[memoryview], list[BlockCrc]] | None:
        """The part as views of the arrays' own memory; None if some of it does not lie there in order."""
        views = [memoryview(header)] if (header := self._header(part)) else []
        crcs = []
        for segment in part.segments:
            piece = self._plan.pieces[segment.piece]
            viewed = self._view(piece)
            if viewed is None:
                return None
            views.append(viewed[segment.start : segment.stop].data)
            for block, start, stop in block_bounds(piece.offset, segment.start, segment.stop):
                crcs.append(BlockCrc(segment.piece, block, stop - start, crc64nvme(viewed[start:stop].data)))
        return views, crcs

    def _header(self, part: Part) -> bytes:
        return self._plan.files[part.file].header[part.offset : part.offset + part.size_bytes]

    def _view(self, piece: PlannedPiece) -> np.ndarray[Any, Any] | None:
        return self._sources[piece.array].view(piece.box) if piece.stored_shape == piece.box.shape else None

    def _gather(self, piece: PlannedPiece, start: int, stop: int, out: np.ndarray[Any, Any]) -> int:
        """Copy bytes of a piece that does not lie in order: box by box, with zeros where the array has ended."""
        source = self._sources[piece.array]
        dtype = dtypes.numpy_dtype(source.dtype)
        # Only NumPy's odd fixed-size dtypes have items that a block may cut through; those go through a copy of the
        # piece.
        if start % dtype.itemsize or stop % dtype.itemsize:
            copy = np.zeros(piece.size_bytes, np.uint8)
            self._gather(piece, 0, piece.size_bytes, copy)
            return copy_crc(copy[start:stop], out)
        items = out.view(dtype)
        done = 0
        for stored in c_order_boxes(piece.stored_shape, start // dtype.itemsize, stop // dtype.itemsize):
            place = items[done : done + stored.size].reshape(stored.shape)
            self._copy_box(source, piece.box, stored, place)
            done += stored.size
        return crc64nvme(out.data)

    def _copy_box(self, source: ArraySource, valid: Box, stored: Box, out: np.ndarray[Any, Any]) -> None:
        """`stored` is relative to the piece's start, and may reach beyond `valid`."""
        box = Box(tuple(a + b for a, b in zip(stored.start, valid.start, strict=True)), stored.shape)
        if valid.contains(box):
            source.copy_into(box, out)
            return
        out.reshape(-1).view(np.uint8)[...] = 0
        common = box.overlap(valid)
        if common is not None:
            part = np.empty(common.shape, out.dtype)
            source.copy_into(common, part)
            out[common.within(box.start)] = part


def copy_crc(source: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> int:
    """Copy bytes and return their CRC64NVME, in one pass through the cache."""
    crc = 0
    for start in range(0, len(source), CACHED_BYTES):
        step = out[start : start + CACHED_BYTES]
        np.copyto(step, source[start : start + CACHED_BYTES])
        crc = crc64nvme(step.data, crc)
    return crc
