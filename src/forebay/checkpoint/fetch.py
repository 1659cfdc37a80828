"""Reading: which blocks are needed for the boxes wanted, in how few requests, verified, and put where they belong.

A block is read whole, because its CRC covers it whole, and once, however many targets need some of it. Blocks that lie
close together are read by one request. Where a run of blocks goes to consecutive memory of one target, it is read
straight there; the others pass through a bounded set of slots. Nothing is handed on before its CRC was checked.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.layout import Box, c_order_boxes, whole
from forebay.checkpoint.manifest import Manifest, Piece
from forebay.checkpoint.targets import PAGE_BYTES, Target
from forebay.checkpoint.timeline import Timeline
from forebay.codec import crc64nvme
from forebay.directio import Arena
from forebay.errors import CheckpointCorrupt
from forebay.locations import Location

GAP_BYTES_MAX = 2**18
"""Two blocks are read by one request if no more than this lies between them: dropping it is faster than asking
again.
"""
DIRECT_BYTES_MIN = 2**18
"""Smaller blocks are gathered through a slot: many of them come with one request, which is worth more than a copy saved."""
BUDGET_SLOTS_MIN = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """A target of `manifest.arrays[array]`."""

    array: int
    target: Target


@dataclass(frozen=True, slots=True)
class _Use:
    """The part of a piece that one box of a target takes: `common` is in the array's coordinates."""

    wanted: int
    box: Box
    common: Box


@dataclass(slots=True)
class _Block:
    """A block to be read: its place in the file, its CRC (None if another program wrote it), and who takes of it."""

    array: int
    piece: Piece
    offset: int
    size_bytes: int
    crc: int | None
    uses: list[_Use]


@dataclass(frozen=True, slots=True)
class _Request:
    """One ranged read: consecutive blocks of a file, `offset` to `stop`, gaps included.

    `direct` says that they fill the memory of the single use of each of them, in order and without gaps.
    """

    file: int
    offset: int
    stop: int
    blocks: tuple[_Block, ...]
    direct: bool


def fetch(
    location: Location,
    manifest: Manifest,
    wanted: Sequence[Wanted],
    finished: Callable[[int], None],
    *,
    memory_bytes: int,
    threads: int | None,
    timeline: Timeline,
) -> None:
    """Fill every target. `finished(i)` is called from some thread as soon as `wanted[i]` is complete, once.

    Raises `CheckpointCorrupt` at the first block that fails its CRC, or `LocationError`; some targets are half filled
    then.
    """
    read_bytes = max(manifest.block_bytes, min(location.part_bytes, memory_bytes // BUDGET_SLOTS_MIN))
    threads = threads or location.streams
    plan = _Plan(manifest, wanted, location.direct_io)
    requests = list(plan.requests(read_bytes))
    reader = _Reader(location, manifest, wanted, finished, timeline)
    reader.count_uses(requests)
    slots = max(BUDGET_SLOTS_MIN, min(threads, memory_bytes // read_bytes))
    if any(not request.direct for request in requests):
        slot_bytes = max(r.stop - r.offset for r in requests if not r.direct)
        reader.arena = Arena(-(-slot_bytes // PAGE_BYTES) * PAGE_BYTES + 2 * PAGE_BYTES, slots, prefault=False)
    with ThreadPoolExecutor(threads, "forebay-read") as pool:
        futures = [pool.submit(reader.read, request) for request in requests]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()


class _Plan:
    """The blocks that targets need, and the requests that bring them."""

    def __init__(self, manifest: Manifest, wanted: Sequence[Wanted], direct_io: bool) -> None:
        self._manifest, self._direct_io = manifest, direct_io
        self._wanted = wanted
        self._blocks: dict[int, dict[int, _Block]] = {}
        for index, want in enumerate(wanted):
            for box in want.target.boxes:
                self._add(index, want.array, box)

    def requests(self, read_bytes: int) -> Iterator[_Request]:
        """Requests in order of file and offset, each no longer than `read_bytes` unless one block is."""
        for file, by_offset in sorted(self._blocks.items()):
            run: list[_Block] = []
            for block in (by_offset[offset] for offset in sorted(by_offset)):
                if run and not self._continues(run, block, read_bytes):
                    yield self._request(file, run)
                    run = []
                run.append(block)
            if run:
                yield self._request(file, run)

    def _add(self, wanted: int, array: int, box: Box) -> None:
        entry = self._manifest.arrays[array]
        itemsize = dtypes.itemsize_of(entry.dtype)
        found = 0
        for piece in entry.pieces:
            common = Box(piece.start, piece.shape).overlap(box)
            common = common and common.overlap(whole(entry.shape))
            if common is None:
                continue
            found += common.size
            use = _Use(wanted, box, common)
            for number in _blocks_touched(piece, common, itemsize, self._manifest.block_bytes):
                self._block(array, piece, number, itemsize).uses.append(use)
        if found != box.size:
            raise CheckpointCorrupt(f"array {entry.name!r}: the manifest's pieces do not cover it")

    def _block(self, array: int, piece: Piece, number: int, itemsize: int) -> _Block:
        window = self._manifest.block_bytes
        first = piece.offset // window
        start = max(piece.offset, (first + number) * window)
        stop = min(piece.offset + math.prod(piece.shape) * itemsize, (first + number + 1) * window)
        blocks = self._blocks.setdefault(piece.file, {})
        if start not in blocks:
            crc = None if self._manifest.is_foreign else piece.crcs[number]
            blocks[start] = _Block(array, piece, start, stop - start, crc, [])
        return blocks[start]

    def _continues(self, run: list[_Block], block: _Block, read_bytes: int) -> bool:
        last = run[-1]
        if block.offset + block.size_bytes - run[0].offset > read_bytes:
            return False
        direct = self._direct_place(last)
        if direct is None:
            gap = block.offset - last.offset - last.size_bytes
            return gap <= GAP_BYTES_MAX and self._direct_place(block) is None
        place = self._direct_place(block)
        follows = block.offset == last.offset + last.size_bytes
        return follows and place == (direct[0], direct[1], direct[2] + last.size_bytes)

    def _request(self, file: int, run: list[_Block]) -> _Request:
        direct = self._direct_place(run[0]) is not None
        return _Request(file, run[0].offset, run[-1].offset + run[-1].size_bytes, tuple(run), direct)

    def _direct_place(self, block: _Block) -> tuple[int, Box, int] | None:
        """The target, box and byte offset in its memory where a block goes whole and in order; None if it does not."""
        if len(block.uses) != 1 or block.size_bytes < DIRECT_BYTES_MIN:
            return None
        use = block.uses[0]
        if self._direct_io and (block.offset % PAGE_BYTES or not self._wanted[use.wanted].target.page_aligned):
            return None
        itemsize = dtypes.itemsize_of(self._manifest.arrays[block.array].dtype)
        span = contiguous_span(Box(block.piece.start, block.piece.shape), use.box, use.common)
        if span is None:
            return None
        in_piece, in_box = span[0] * itemsize, span[1] * itemsize
        start = block.offset - block.piece.offset
        if start < in_piece or start + block.size_bytes > in_piece + use.common.size * itemsize:
            return None
        place = in_box + start - in_piece
        return None if self._direct_io and place % PAGE_BYTES else (use.wanted, use.box, place)


def contiguous_span(piece: Box, box: Box, common: Box) -> tuple[int, int] | None:
    """If `common` is a contiguous run of elements both in `piece` and in `box`: where it begins in each; else None."""
    starts = []
    for outer in (piece, box):
        if not _is_run(outer.shape, common.shape):
            return None
        relative = [a - o for a, o in zip(common.start, outer.start, strict=True)]
        starts.append(_flat_index(outer.shape, relative))
    return starts[0], starts[1]


def _is_run(outer: Sequence[int], inner: Sequence[int]) -> bool:
    """Whether a box of shape `inner` is contiguous in C order within one of shape `outer`: 1s, one free axis, then
    all.
    """
    axis = next((i for i, n in enumerate(inner) if n != 1), len(inner))
    return all(a == b for a, b in zip(inner[axis + 1 :], outer[axis + 1 :], strict=True))


def _flat_index(shape: Sequence[int], index: Iterable[int]) -> int:
    flat = 0
    for n, i in zip(shape, index, strict=True):
        flat = flat * n + i
    return flat


def _blocks_touched(piece: Piece, common: Box, itemsize: int, window: int) -> list[int]:
    """The numbers of the piece's blocks that hold some of `common`."""
    if len(piece.crcs) == 1:
        return [0]
    axis = next((i for i in reversed(range(len(common.shape))) if common.shape[i] != piece.shape[i]), 0)
    while axis > 0 and math.prod(piece.shape[axis:]) * itemsize <= window:
        axis -= 1  # the gaps between runs are shorter than a block, so all blocks between are touched
    run_bytes = (_flat_index(piece.shape[axis:], (n - 1 for n in common.shape[axis:])) + 1) * itemsize
    starts = np.zeros(1, np.int64)
    for i, n in enumerate(piece.shape):
        steps = np.arange(common.shape[i]) if i < axis else np.zeros(1, np.int64)
        starts = (starts[:, None] * n + (common.start[i] - piece.start[i] + steps)[None, :]).reshape(-1)
    first = (piece.offset + starts * itemsize) // window
    count = (piece.offset + starts * itemsize + run_bytes - 1) // window - first
    steps_max = int(count.max()) + 1
    touched = np.unique(np.concatenate([first + np.minimum(step, count) for step in range(steps_max)]))
    return [int(number) - piece.offset // window for number in touched]


class _Reader:
    """Carries out requests, from several threads."""

    def __init__(
        self,
        location: Location,
        manifest: Manifest,
        wanted: Sequence[Wanted],
        finished: Callable[[int], None],
        timeline: Timeline,
    ) -> None:
        self._location, self._manifest, self._wanted = location, manifest, wanted
        self._finished, self._timeline = finished, timeline
        self._lock = threading.Lock()
        self._left = [0] * len(wanted)
        self.arena: Arena | None = None

    def count_uses(self, requests: Sequence[_Request]) -> None:
        """Note how many uses each target waits for; those that need nothing are finished."""
        for request in requests:
            for block in request.blocks:
                for use in block.uses:
                    self._left[use.wanted] += 1
        for index, left in enumerate(self._left):
            if left == 0:
                self._finished(index)

    def read(self, request: _Request) -> None:
        """Read, check, place."""
        if request.direct:
            self._read_direct(request)
        else:
            self._read_slot(request)
        done: dict[int, int] = {}
        for block in request.blocks:
            for use in block.uses:
                done[use.wanted] = done.get(use.wanted, 0) + 1
        for index, count in done.items():
            with self._lock:
                self._left[index] -= count
                last = self._left[index] == 0
            if last:
                with self._timeline.span("place", self._manifest.arrays[self._wanted[index].array].name):
                    self._finished(index)

    def _buffer(self, use: _Use) -> np.ndarray[Any, Any]:
        with self._lock:
            return self._wanted[use.wanted].target.buffer(use.box)

    def _read_direct(self, request: _Request) -> None:
        use, first = request.blocks[0].uses[0], request.blocks[0]
        memory = self._buffer(use).reshape(-1).view(np.uint8)
        itemsize = dtypes.itemsize_of(self._manifest.arrays[first.array].dtype)
        span = contiguous_span(Box(first.piece.start, first.piece.shape), use.box, use.common)
        assert span is not None
        place = span[1] * itemsize + first.offset - first.piece.offset - span[0] * itemsize
        view = memory[place : place + request.stop - request.offset]
        self._read_into(request.file, request.offset, view.data)
        for block in request.blocks:
            self._check(request.file, block, view[block.offset - request.offset :][: block.size_bytes])

    def _read_slot(self, request: _Request) -> None:
        file = self._manifest.files[request.file]
        start, stop = request.offset, request.stop
        if self._location.direct_io:
            start -= start % PAGE_BYTES
            stop = min(-(-stop // PAGE_BYTES) * PAGE_BYTES, file.size_bytes)
        assert self.arena is not None
        slot = self.arena.acquire()
        assert slot is not None
        with slot:
            self._read_into(request.file, start, slot.view[: stop - start])
            memory = np.frombuffer(slot.view, np.uint8)
            for block in request.blocks:
                data = memory[block.offset - start :][: block.size_bytes]
                self._check(request.file, block, data)
                for use in block.uses:
                    self._scatter(block, data, use)

    def _read_into(self, file: int, offset: int, view: memoryview) -> None:
        key = self._manifest.files[file].key
        with self._timeline.span("read", key, len(view)):
            self._location.read_into(key, offset, view)

    def _check(self, file: int, block: _Block, data: np.ndarray[Any, Any]) -> None:
        if block.crc is None:
            return
        with self._timeline.span("checksum", "", len(data)):
            crc = crc64nvme(data.data)
        if crc != block.crc:
            url = f"{self._location.url}/{self._manifest.files[file].key}"
            name = self._manifest.arrays[block.array].name
            where = f"bytes {block.offset} to {block.offset + block.size_bytes} of {url}"
            raise CheckpointCorrupt(f"array {name!r}: {where} fail their checksum (found {crc:016x}, want {block.crc:016x})")

    def _scatter(self, block: _Block, data: np.ndarray[Any, Any], use: _Use) -> None:
        """Copy what one target takes of a block."""
        name = self._manifest.arrays[block.array].dtype
        itemsize = dtypes.itemsize_of(name)
        buffer = self._buffer(use)
        piece, common, box = Box(block.piece.start, block.piece.shape), use.common, use.box
        items = data
        if itemsize & (itemsize - 1):  # an item that a block may cut through: its bytes become an axis
            buffer = buffer.reshape(-1).view(np.uint8).reshape(*box.shape, itemsize)
            piece, common, box = (Box((*b.start, 0), (*b.shape, itemsize)) for b in (piece, common, box))
            itemsize = 1
        else:
            items = data.view(dtypes.numpy_dtype(name))
        first = (block.offset - block.piece.offset) // itemsize
        done = 0
        for relative in c_order_boxes(piece.shape, first, first + len(items)):
            start = tuple(a + b for a, b in zip(relative.start, piece.start, strict=True))
            held = Box(start, relative.shape)
            taken = held.overlap(common)
            if taken is not None:
                source = items[done : done + held.size].reshape(held.shape)
                np.copyto(buffer[taken.within(box.start)], source[taken.within(held.start)])
            done += held.size
