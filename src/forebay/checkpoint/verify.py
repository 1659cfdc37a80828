"""Reading a checkpoint whole and checking every checksum, without any framework and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from forebay.checkpoint import dtypes
from forebay.checkpoint.manifest import Manifest
from forebay.checkpoint.stage import block_bounds
from forebay.codec import combine_crc64nvme, crc64nvme
from forebay.directio import Arena
from forebay.errors import FormatUnknown, LocationError, ObjectMissing
from forebay.locations import Location

WINDOW_BYTES = 16 * 2**20
THREADS = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `first` to `last` (exclusive) of a file that are not what was written; `array` names what lies there."""

    file: str
    array: str
    first: int
    last: int
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was read, and what of it is damaged."""

    files: int
    blocks: int
    size_bytes: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    """A run of a file with a checksum of its own, or (None) with none: the header."""

    first: int
    last: int
    array: str
    crc: int | None


def verify(location: Location, manifest: Manifest, read: Callable[[int], None] = lambda size_bytes: None) -> Verdict:
    """Check sizes, every block and every file. `read` is told of bytes as they are done, from some thread.

    Raises `LocationError` if the location cannot be reached, `FormatUnknown` for another program's checkpoint.
    """
    if manifest.is_foreign:
        raise FormatUnknown(f"{location.url} was written by {manifest.writer}: it holds no checksums to verify")
    window_bytes = max(WINDOW_BYTES // manifest.block_bytes, 1) * manifest.block_bytes
    arena = Arena(window_bytes, THREADS)
    damages: list[Damage] = []
    blocks = 0
    with ThreadPoolExecutor(THREADS, "forebay-verify") as pool:
        for index, file in enumerate(manifest.files):
            segments = list(_segments(manifest, index))
            blocks += sum(segment.crc is not None for segment in segments)
            fault = _size_fault(location, file.key, file.size_bytes)
            if fault:
                damages.append(Damage(file.key, "", 0, file.size_bytes, fault))
                continue

            def check(start: int, key: str = file.key, segments: list[_Segment] = segments, end: int = file.size_bytes) -> _Window:
                window = _check_window(location, key, start, min(start + window_bytes, end), segments, arena)
                read(min(window_bytes, end - start))
                return window

            windows = list(pool.map(check, range(0, file.size_bytes, window_bytes)))
            damages += _file_damages(file.key, file.size_bytes, file.crc, windows)
    return Verdict(len(manifest.files), blocks, manifest.size_bytes, tuple(damages))


@dataclass(frozen=True, slots=True)
class _Window:
    crc: int
    size_bytes: int
    damages: tuple[Damage, ...]


def _file_damages(key: str, size_bytes: int, want: int, windows: list[_Window]) -> list[Damage]:
    found = [damage for window in windows for damage in window.damages]
    crc = 0
    for window in windows:
        crc = combine_crc64nvme(crc, window.crc, window.size_bytes)
    if crc != want and not found:
        found = [Damage(key, "", 0, size_bytes, f"the file's checksum is {crc:016x}, want {want:016x}: its header is damaged")]
    return found


def _size_fault(location: Location, key: str, size_bytes: int) -> str:
    entry = location.head(key)
    if entry is None:
        return "the file is missing"
    return "" if entry.size_bytes == size_bytes else f"it has {entry.size_bytes} bytes, want {size_bytes}"


def _segments(manifest: Manifest, file: int) -> Iterator[_Segment]:
    """The file's runs in order, without gaps."""
    blocks = []
    for entry in manifest.arrays:
        for piece in entry.pieces:
            if piece.file == file:
                size_bytes = math.prod(piece.shape) * dtypes.itemsize_of(entry.dtype)
                for number, first, last in block_bounds(piece.offset, 0, size_bytes):
                    blocks.append(_Segment(piece.offset + first, piece.offset + last, entry.name, piece.crcs[number]))
    done = 0
    for block in sorted(blocks, key=lambda b: b.first):
        if block.first > done:
            yield _Segment(done, block.first, "", None)
        yield block
        done = block.last
    if done < manifest.files[file].size_bytes:
        yield _Segment(done, manifest.files[file].size_bytes, "", None)


def _check_window(location: Location, key: str, start: int, stop: int, segments: list[_Segment], arena: Arena) -> _Window:
    """One read, and the checksums of what it holds. A header may be longer than the window; blocks never cross it."""
    with arena.acquire() as slot:
        view = slot.view[: stop - start]
        try:
            location.read_into(key, start, view)
        except ObjectMissing:
            return _Window(0, stop - start, (Damage(key, "", start, stop, "the file is missing"),))
        except LocationError as error:
            if not str(error.message).startswith("the file ends"):
                raise
            return _Window(0, stop - start, (Damage(key, "", start, stop, error.message),))
        whole, damages = 0, []
        for segment in segments:
            first, last = max(segment.first, start), min(segment.last, stop)
            if first >= last:
                continue
            crc = crc64nvme(view[first - start : last - start])
            whole = combine_crc64nvme(whole, crc, last - first)
            if segment.crc is not None and crc != segment.crc:
                what = f"the checksum is {crc:016x}, want {segment.crc:016x}"
                damages.append(Damage(key, segment.array, segment.first, segment.last, what))
    return _Window(whole, stop - start, tuple(damages))
