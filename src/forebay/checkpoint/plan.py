"""Who writes which bytes where. A pure function of names, shapes, dtypes, holders and the attempt's name: no rank asks
another.

Every rank computes the whole plan and carries out its own part; the digest in its report proves that all planned alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from forebay.checkpoint import dtypes
from forebay.checkpoint.layout import Box, box_text, cut
from forebay.checkpoint.names import unique_name

ALIGNMENT_BYTES = 4096
FILE_BYTES_MAX = 64 * 2**30
"""A rank begins another data file when one would grow beyond this (a larger piece gets a file of its own)."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array to be saved: distinct name, logical dtype, global shape, and by rank the boxes that it holds."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    holders: tuple[tuple[Box, ...], ...]


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A box of `specs[array]`, stored with `stored_shape` as the `size_bytes` from `offset` of `files[file]`, by
    `rank`.
    """

    array: int
    rank: int
    name: str
    box: Box
    stored_shape: tuple[int, ...]
    file: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A safetensors file: its key, who writes it, its header (length field included), its size, and its pieces in
    order.
    """

    key: str
    rank: int
    header: bytes
    size_bytes: int
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one attempt writes as data. Pieces are sorted by array, then by place."""

    files: tuple[PlannedFile, ...]
    pieces: tuple[PlannedPiece, ...]
    digest: str

    def files_of(self, rank: int) -> list[int]:
        """The files that a rank writes."""
        return [index for index, file in enumerate(self.files) if file.rank == rank]


@dataclass(slots=True)
class _Draft:
    """A piece before its file and offset are known."""

    array: int
    rank: int
    name: str
    box: Box
    stored_shape: tuple[int, ...]
    size_bytes: int


def make_plan(specs: Sequence[ArraySpec], ranks: int, attempt: str) -> Plan:
    """The plan of `ranks` processes. Raises ValueError if no rank holds some part of an array."""
    drafts = _drafts(specs)
    _assign(drafts, [draft[1] for draft in drafts], ranks)
    pieces: list[PlannedPiece | None] = [None] * len(drafts)
    files: list[PlannedFile] = []
    for rank in range(ranks):
        mine = [index for index, (draft, _) in enumerate(drafts) if draft.rank == rank]
        for number, group in enumerate(_group_into_files(mine, drafts, specs)):
            key = f"data/{attempt}/h{rank:05d}-{number}.safetensors"
            header, offsets = _header([drafts[i][0] for i in group], specs, attempt)
            for index, offset in zip(group, offsets, strict=True):
                d = drafts[index][0]
                pieces[index] = PlannedPiece(d.array, rank, d.name, d.box, d.stored_shape, len(files), offset, d.size_bytes)
            size_bytes = len(header) + sum(drafts[i][0].size_bytes for i in group)
            files.append(PlannedFile(key, rank, header, size_bytes, tuple(group)))
    planned = tuple(piece for piece in pieces if piece is not None)
    assert len(planned) == len(drafts)
    return Plan(tuple(files), planned, _digest(files, planned))


def _drafts(specs: Sequence[ArraySpec]) -> list[tuple[_Draft, tuple[int, ...]]]:
    """Every piece with the ranks that could write it."""
    taken = {spec.name for spec in specs} | {"__metadata__"}
    drafts = []
    for array, spec in enumerate(specs):
        itemsize = dtypes.itemsize_of(spec.dtype)
        cells = cut(spec.shape, itemsize, spec.holders)
        for cell in cells:
            alone = len(cells) == 1
            name = spec.name if alone else unique_name(spec.name + box_text(cell.box), taken)
            size_bytes = math.prod(cell.stored_shape) * itemsize
            drafts.append((_Draft(array, -1, name, cell.box, cell.stored_shape, size_bytes), cell.holders))
    return drafts


def _assign(drafts: list[tuple[_Draft, tuple[int, ...]]], holders: list[tuple[int, ...]], ranks: int) -> None:
    """Give each piece to one of its holders: those without a choice first, then the largest to the least loaded."""
    load = [0] * ranks
    order = sorted(range(len(drafts)), key=lambda i: (len(holders[i]) > 1, -drafts[i][0].size_bytes, i))
    for index in order:
        rank = min(holders[index], key=lambda r: (load[r], r))
        drafts[index][0].rank = rank
        load[rank] += drafts[index][0].size_bytes


def _group_into_files(mine: list[int], drafts: list[tuple[_Draft, tuple[int, ...]]], specs: Sequence[ArraySpec]) -> list[list[int]]:
    """A rank's pieces in file order, cut into files.

    safetensors allows no gaps. So pieces whose size is a multiple of 4 KiB come first and are all aligned to it; the
    others follow by falling alignment of their dtype, and are aligned to that.
    """

    def order(index: int) -> tuple[bool, int, int]:
        draft = drafts[index][0]
        if draft.size_bytes % ALIGNMENT_BYTES == 0:
            return False, 0, index
        return True, -dtypes.alignment_of(specs[draft.array].dtype), index

    files: list[list[int]] = []
    room = 0
    for index in sorted(mine, key=order):
        size_bytes = drafts[index][0].size_bytes
        if not files or size_bytes > room:
            files.append([])
            room = FILE_BYTES_MAX
        files[-1].append(index)
        room -= size_bytes
    return files


def _header(group: list[_Draft], specs: Sequence[ArraySpec], attempt: str) -> tuple[bytes, list[int]]:
    """A safetensors header, padded with spaces so that data begins at a multiple of 4 KiB; and each piece's file
    offset.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "forebay.attempt": attempt}}
    relative, offsets = 0, []
    for draft in group:
        dtype, shape = dtypes.stored_form(specs[draft.array].dtype, draft.stored_shape)
        end = relative + draft.size_bytes
        entries[draft.name] = {"dtype": dtype, "shape": shape, "data_offsets": (relative, end)}
        offsets.append(relative)
        relative = end
    text = msgspec.json.encode(entries)
    start = -(-(8 + len(text)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    text = text.ljust(start - 8)
    return (start - 8).to_bytes(8, "little") + text, [start + offset for offset in offsets]


def _digest(files: Sequence[PlannedFile], pieces: Sequence[PlannedPiece]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.header)
        digest.update(repr((file.key, file.rank, file.size_bytes, file.pieces)).encode())
    for piece in pieces:
        digest.update(repr((piece.array, piece.box, piece.stored_shape, piece.file, piece.offset)).encode())
    return digest.hexdigest()[:32]
