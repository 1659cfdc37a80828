"""Taking drives back into service: look at the folder, prove that the drive works, bring its index up to date.

What the folder of a drive that is out turns out to be:

================  ====================================================================  ==================================
folder            and                                                                   so
================  ====================================================================  ==================================
this drive        writes and reads back                                                 stale, then synchronised
this drive        fails its test                                                        stays out
empty or missing  the peers agree that the filesystem is the one that was always there  formatted, then filled
empty or missing  on another filesystem: perhaps the bare mount point of a lost disk    out, until `forebay drive replace`
something else                                                                          stays out
================  ====================================================================  ==================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from forebay.drive import FolderKind, check_opening, classify_folder
from forebay.engine.erasure_set import ErasureSet
from forebay.engine.opening import Layout, format_drive, refill_if_safe
from forebay.engine.resync import Resync, Stopped
from forebay.engine.shared import DriveState
from forebay.errors import DriveError, DriveMismatch, StoreError

log = logging.getLogger("forebay.engine")


def admit(erasure_set: ErasureSet, layout: Layout, position: int, is_stopping: Callable[[], bool]) -> str:
    """Take a drive as far as it can be taken now; returns why it is not current, empty if it is. Blocks as long as that takes."""
    state = erasure_set.state(position)
    try:
        if state is DriveState.OFFLINE:
            reason = _let_in(erasure_set, layout, position)
            if reason:
                return reason
        elif state is DriveState.SYNCING:  # an attempt that was given up
            erasure_set.take_out(position, "its index is incomplete", DriveState.STALE)
        if erasure_set.state(position) is DriveState.STALE:
            Resync(erasure_set, layout, position, is_stopping).run()
    except (Stopped, DriveError, StoreError) as e:
        return str(e)
    return ""


def _let_in(erasure_set: ErasureSet, layout: Layout, position: int) -> str:
    path = layout.paths[erasure_set.index][position]
    kind = classify_folder(path)
    if kind in (FolderKind.EMPTY, FolderKind.MISSING):
        peers = [drive for _, drive in erasure_set.current()]
        if not refill_if_safe(layout, erasure_set.index, position, peers):
            return "the folder is empty or missing, perhaps because its disk is not mounted; if not: forebay drive replace"
    elif kind is not FolderKind.OURS:
        return "the folder holds something that is not a Forebay drive"
    prove(erasure_set, path, position)
    erasure_set.shared.admit_again(erasure_set.index, position, DriveState.STALE, "it is back, its index is not up to date")
    log.warning("set %d, drive %d (%s) is back", erasure_set.index, position, path)
    return ""


def prove(erasure_set: ErasureSet, path: str, position: int) -> None:
    """Open the drive afresh and have it write, read back, and tell its sequence number. Raises DriveError.

    First in a process of its own, as a damaged index kills whoever reads it.
    """
    for failure in check_opening([path]).values():
        raise failure
    drive = erasure_set.open_fresh(position)
    try:
        drive.probe()
        drive.seq()
    finally:
        drive.close()


def replace(erasure_set: ErasureSet, layout: Layout, position: int) -> None:
    """Format the folder of a drive that is out, whatever filesystem it is on. Raises StoreError InvalidRequest."""
    path = layout.paths[erasure_set.index][position]
    if erasure_set.state(position) is not DriveState.OFFLINE:
        raise StoreError("InvalidRequest", f"{path} is in service. Only a drive that is out can be replaced.")
    try:
        kind = classify_folder(path)
        if kind is FolderKind.OURS:
            raise StoreError("InvalidRequest", f"{path} holds a drive already. To give up what it holds, empty the folder first.")
        if kind is FolderKind.FOREIGN:
            raise StoreError("InvalidRequest", f"{path} is no folder, or holds something else. Empty it, or mount an empty disk there.")
        format_drive(layout, erasure_set.index, position)
        prove(erasure_set, path, position)
    except DriveMismatch as e:
        raise StoreError("InvalidRequest", f"{e}. Empty the folder, or mount an empty disk there.") from e
    except DriveError as e:
        raise StoreError("InvalidRequest", f"{e}. The drive cannot be used.") from e
    erasure_set.shared.admit_again(erasure_set.index, position, DriveState.STALE, "it was replaced, its index is empty")
