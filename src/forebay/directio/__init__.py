"""Aligned buffer arenas and direct file I/O, for the store's drives and for the library's local checkpoints alike."""

from forebay.directio.arena import Arena, Slot
from forebay.directio.files import ALIGNMENT_BYTES, DirectFile, aligned_length, open_direct

__all__ = ["ALIGNMENT_BYTES", "Arena", "DirectFile", "Slot", "aligned_length", "open_direct"]
