"""Which checkpoints a run has: names, listing, choosing, promoting, deleting, sweeping what lost."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.checkpoint.manifest import Manifest
from forebay.locations import Location


@dataclass(frozen=True, slots=True)
class Step:
    """A complete checkpoint of a run: its step, folder name below the run, and the manifest's entity tag and time
    (Unix).
    """

    step: int
    name: str
    etag: str
    modified_s: float


def step_name(step: int) -> str:
    """The folder of a step: `step-00001234`."""
    raise NotImplementedError


def list_steps(run: Location) -> list[Step]:
    """The complete checkpoints, oldest step first: a delimited listing, then one HEAD each."""
    raise NotImplementedError


def resolve(location: Location, step: int | None = None) -> Location:
    """The checkpoint meant: `location` itself if it is one, else the newest (or the given) step below. Raises
    `CheckpointMissing`.
    """
    raise NotImplementedError


def set_temporary(checkpoint: Location, temporary: bool) -> Manifest:
    """Promote a temporary checkpoint, or the reverse, by a conditional rewrite of its manifest."""
    raise NotImplementedError


def delete(checkpoint: Location) -> None:
    """Remove a checkpoint: the manifest first, so that a half-deleted one is never loaded."""
    raise NotImplementedError


def sweep(run: Location, older_than_s: float = 86_400.0) -> list[str]:
    """Remove what lost or died: attempts beside a committed manifest, and uncommitted steps not written to for
    `older_than_s`.
    """
    raise NotImplementedError
