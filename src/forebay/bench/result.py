"""What every benchmark writes as JSON: the head of the document, and readings of stretches. Times in seconds, sizes
in bytes.

The schema name changes with any change that an older reader would misread.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from forebay._version import __version__
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.machine import Machine, describe

SCHEMA = "forebay-bench/1"

DocumentType = TypeVar("DocumentType", bound=msgspec.Struct)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where, when and how a result came to be."""

    started_at: str  # UTC, ISO 8601
    command: str
    forebay_version: str
    machine: Machine
    seconds: float  # of the whole run, preparation included


class Run:
    """The clock and the notes of one run, from its start."""

    def __init__(self) -> None:
        self._started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._start_s = time.monotonic()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Remember something that a reader of the figures must know; each note once."""
        if text not in self.notes:
            self.notes.append(text)

    def head(self, folders: list[Path], packages: list[str]) -> Head:
        """The head of the document, when the run is over."""
        return Head(
            started_at=self._started_at,
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            forebay_version=__version__,
            machine=describe(folders, packages),
            seconds=time.monotonic() - self._start_s,
        )


def write_json(document: msgspec.Struct, path: Path) -> None:
    """Write a document, indented, ending in a newline."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def read_json(path: Path, kind: type[DocumentType]) -> DocumentType:
    """Read a document that `write_json` wrote. Raises BenchmarkFailed naming the file when it is none of this kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BenchmarkFailed(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BenchmarkFailed(f"{path} is not a result of this benchmark: {error}") from error
