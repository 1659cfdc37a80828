"""One translation of what the system and LMDB report into what the engine understands: full, or failed."""

from __future__ import annotations

import errno
import os
from types import TracebackType

import lmdb

from forebay.errors import DriveError, DriveFailed, DriveFull

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


def drive_error(drive: str, operation: str, error: OSError | lmdb.Error) -> DriveError:
    """The DriveFull or DriveFailed that says what `operation` met."""
    if isinstance(error, lmdb.MapFullError):
        return DriveFull(drive, f"{operation}: the index has reached the size of its map")
    number = error.errno if isinstance(error, OSError) else getattr(error, "code", None)  # some of LMDB's have none
    reason = os.strerror(number) if number and number > 0 else str(error)
    if number in FULL_ERRNOS or isinstance(error, lmdb.DiskError):
        return DriveFull(drive, f"{operation}: {reason}; free some space or add drives")
    return DriveFailed(drive, f"{operation}: {reason}")


class Reporting:
    """`with Reporting(drive, operation):` raises DriveFull or DriveFailed instead of an OSError or LMDB's error."""

    __slots__ = ("_drive", "_operation")

    def __init__(self, drive: str, operation: str) -> None:
        self._drive = drive
        self._operation = operation

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Translate."""
        if isinstance(error, lmdb.BadValsizeError):
            raise ValueError(f"{self._operation}: keys have 1 to 511 bytes") from error
        if isinstance(error, (OSError, lmdb.Error)):
            raise drive_error(self._drive, self._operation, error) from error
