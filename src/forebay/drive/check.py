"""Reads the whole index of a drive in a process of its own, because a bad one can kill its reader.

LMDB reads through a memory map: an unreadable sector, or pages that a truncated file lacks, end in SIGBUS, and pages
overwritten with something else may end in SIGSEGV. No worker can catch that; whoever sees a worker die of it calls
`check_index` on each drive and takes out the one that fails. `check_opening` reads no more than what opening a drive does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

from forebay.drive.identity import read_identity
from forebay.drive.index import Index
from forebay.errors import DriveError, DriveFailed

DEADLY_SIGNALS = frozenset({signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT})  # what a worker with a bad index dies of


def check_index(path: str, timeout_s: float | None = None) -> int:
    """Read every record of the drive in `path`, at the disk's pace; returns how many there are.

    Raises DriveFailed if one cannot be read, or if it takes longer than `timeout_s`. The drive may be in use.
    """
    command = [sys.executable, "-c", "from forebay.drive.check import main; main()", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise DriveFailed(path, f"reading the whole index takes longer than {timeout_s} s") from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise DriveFailed(path, f"reading the index ends in {name}: it has unreadable sectors, is truncated, or damaged")
    if done.returncode:
        raise DriveFailed(path, f"the index cannot be read: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return int(done.stdout)


def check_opening(paths: Sequence[str]) -> dict[str, DriveFailed]:
    """Open each drive and read its system records and its newest commit; returns what those cannot stand. One process if all can."""
    failures: dict[str, DriveFailed] = {}
    left = list(paths)
    while left:
        command = [sys.executable, "-c", "from forebay.drive.check import peek; peek()", *left]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        passed = done.stdout.splitlines()
        if done.returncode == 0:
            break
        path, left = left[len(passed)], left[len(passed) + 1 :]
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            failures[path] = DriveFailed(path, f"reading the index ends in {name}: it has unreadable sectors, is truncated, or damaged")
        else:
            failures[path] = DriveFailed(path, f"the index cannot be read: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return failures


def main() -> None:
    """The process that reads everything."""
    try:
        print(_read_all(sys.argv[1]))
    except DriveError as failure:
        sys.exit(str(failure))


def peek() -> None:
    """The process that reads little; a line for each drive that stands it."""
    for path in sys.argv[1:]:
        try:
            read_identity(path)
            index = Index.open(path)
            index.seq()
            index.scan(b"S", b"T", 1000, False)
            index.scan(b"L", b"M", 1, True)
        except DriveError as failure:
            sys.exit(str(failure))
        print(path, flush=True)


def _read_all(path: str) -> int:
    read_identity(path)
    index = Index.open(path)
    records = 0
    with index.cursor() as cursor:
        more = cursor.seek(b"")
        while more:
            records += len(cursor.key) + len(bytes(cursor.value)) > 0
            more = cursor.next()
    return records
