"""Saving: stage, checksum, stream out, report, commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.checkpoint.group import Group
from forebay.checkpoint.timeline import Timeline
from forebay.locations import Location


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How to save. Memory is host memory of one process beyond the state itself."""

    memory_bytes: int = 2**30
    threads: int = 4
    views: bool = True
    timeout_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint: where, which attempt, the manifest's entity tag, bytes of data, and how many were copied
    there.
    """

    url: str
    step: int | None
    attempt: str
    etag: str
    size_bytes: int
    copied_bytes: int


class PendingSave:
    """A save that goes on behind. Every rank has one; all of them end alike."""

    timeline: Timeline

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None while it goes on, and if it did not."""
        raise NotImplementedError

    def wait(self, timeout_s: float | None = None) -> Saved:
        """Wait for the end. Raises what it failed with, or `TimeoutError` (it goes on then)."""
        raise NotImplementedError

    def cancel(self, reason: str) -> None:
        """Make it fail soon, here and on every rank, unless it is committed already."""
        raise NotImplementedError


def start_save(
    location: Location,
    tree: Any,
    *,
    step: int | None = None,
    group: Group | None = None,
    metadata: dict[str, Any] | None = None,
    temporary: bool = False,
    base: Location | None = None,
    overwrite: bool = False,
    options: SaveOptions | None = None,
) -> PendingSave:
    """Collective. Start saving `tree` as the checkpoint at `location` (its own folder, `<run>/step-00001234`).

    Returns when the state may be changed again; the rest goes on in threads. `base` is an earlier checkpoint whose
    unchanged parts may be copied by the location. Raises `LeafRefused`, `CheckpointExists` or `LocationError` before
    anything is written.
    """
    raise NotImplementedError
