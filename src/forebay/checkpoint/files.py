"""Writing the data files of a plan where no attempt of ours runs: a conversion, or another program's own protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from forebay.checkpoint.arrays import ArraySource
from forebay.checkpoint.manifest import FileEntry
from forebay.checkpoint.plan import Plan
from forebay.checkpoint.stage import Part, Stager, Staging, block_count, parts_of
from forebay.checkpoint.write import part_bytes_for
from forebay.codec import combine_crc64nvme, crc64nvme
from forebay.locations import Entry, Location

THREADS = 4


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a plan, durable, and the CRCs of each piece's blocks."""

    files: tuple[FileEntry, ...]
    crcs: tuple[tuple[int, ...], ...]


def write_plan(
    location: Location, plan: Plan, sources: Sequence[ArraySource], *, done: Callable[[int], None] = lambda size_bytes: None
) -> Written:
    """Write all files of the plan, in memory for a few parts. `done` is told of bytes, from some thread.

    Raises `LocationError`; then none of the files is there.
    """
    files: list[FileEntry] = []
    crcs: dict[tuple[int, int], tuple[int, int]] = {}
    try:
        for file in range(len(plan.files)):
            entry = _write_file(location, plan, file, sources, crcs, done)
            files.append(FileEntry(plan.files[file].key, entry.size_bytes, _file_crc(plan, file, crcs), entry.etag))
    except BaseException:
        location.delete([file.key for file in files])
        raise
    return Written(tuple(files), tuple(_piece_crcs(plan, piece, crcs) for piece in range(len(plan.pieces))))


def _write_file(
    location: Location,
    plan: Plan,
    file: int,
    sources: Sequence[ArraySource],
    crcs: dict[tuple[int, int], tuple[int, int]],
    done: Callable[[int], None],
) -> Entry:
    planned, stager, lock = plan.files[file], Stager(plan, sources), threading.Lock()
    part_bytes = part_bytes_for(location.part_bytes, planned.size_bytes, False)
    upload = location.upload(planned.key, planned.size_bytes, part_bytes)
    arena = Staging(part_bytes * THREADS).arena(part_bytes, THREADS)

    def write(part: Part) -> None:
        with arena.acquire() as slot:
            found = stager.fill(part, slot)
            upload.write_part(part.index, [slot.view[: part.size_bytes]])
        with lock:
            crcs.update({(c.piece, c.block): (c.crc, c.size_bytes) for c in found})
        done(part.size_bytes)

    try:
        with ThreadPoolExecutor(THREADS, "forebay-file") as pool:
            list(pool.map(write, parts_of(plan, file, part_bytes)))
        return upload.complete()
    except BaseException:
        upload.abort()
        raise


def _blocks(plan: Plan, piece: int) -> range:
    return range(block_count(plan.pieces[piece].offset, plan.pieces[piece].size_bytes))


def _piece_crcs(plan: Plan, piece: int, crcs: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, ...]:
    return tuple(crcs[piece, block][0] for block in _blocks(plan, piece))


def _file_crc(plan: Plan, file: int, crcs: dict[tuple[int, int], tuple[int, int]]) -> int:
    crc = crc64nvme(plan.files[file].header)
    for piece in plan.files[file].pieces:
        for block in _blocks(plan, piece):
            crc = combine_crc64nvme(crc, *crcs[piece, block])
    return crc
