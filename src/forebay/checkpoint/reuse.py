"""Saving again: parts whose bytes an earlier checkpoint has at the same place are copied by the location itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.checkpoint import manifest as records
from forebay.checkpoint.manifest import MANIFEST_KEY, FileEntry, Manifest, Piece
from forebay.checkpoint.plan import ArraySpec, Plan
from forebay.checkpoint.stage import BlockCrc, Part
from forebay.errors import CheckpointError, LocationError
from forebay.locations import Location, Upload


@dataclass(frozen=True, slots=True)
class Reuse:
    """What an earlier checkpoint, `base`, has of a plan's pieces: for each, the file and the block CRCs."""

    base: Location
    pieces: dict[int, tuple[FileEntry, tuple[int, ...]]]

    def copy(self, upload: Upload, part: Part, crcs: Sequence[BlockCrc]) -> bool:
        """Copy the part if all its blocks are unchanged and lie in one file there; False if it must be written.

        A block counts as unchanged if its CRC64 is: a changed block of 4 MiB passes for unchanged once in 2^64.
        """
        if sum(crc.size_bytes for crc in crcs) != part.size_bytes:
            return False  # it holds some of the header, which names the attempt
        files = set()
        for crc in crcs:
            known = self.pieces.get(crc.piece)
            if known is None or known[1][crc.block] != crc.crc:
                return False
            files.add(known[0])
        if len(files) != 1:
            return False
        (file,) = files
        where = {"offset": part.offset, "size_bytes": part.size_bytes}
        return upload.copy_part(part.index, self.base, file.key, etag=file.etag, **where)


def find_reuse(base: Location, location: Location, specs: Sequence[ArraySpec], plan: Plan) -> Reuse | None:
    """What can be copied from `base`; None if nothing, or if `base` cannot be read: then everything is written."""
    if not location.copies_parts:
        return None
    try:
        data, _ = base.get(MANIFEST_KEY)
        earlier = records.decode(data, records.MANIFEST_FORMAT, Manifest, f"{base.url}/{MANIFEST_KEY}")
    except (LocationError, CheckpointError):
        return None
    if earlier.block_bytes != records.BLOCK_BYTES:
        return None
    known: dict[tuple[object, ...], Piece] = {}
    for entry in earlier.arrays:
        for piece in entry.pieces:
            known[entry.name, entry.dtype, piece.start, piece.shape, piece.offset] = piece
    pieces = {}
    for number, p in enumerate(plan.pieces):
        spec = specs[p.array]
        old = known.get((spec.name, spec.dtype, p.box.start, p.stored_shape, p.offset))
        if old is not None:
            pieces[number] = (earlier.files[old.file], old.crcs)
    return Reuse(base, pieces) if pieces else None
