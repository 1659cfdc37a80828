"""`forebay.save`, `forebay.load` and `forebay.open`: the functions over locations given as URLs."""

from __future__ import annotations

import os
from typing import Any

from forebay.checkpoint import catalog
from forebay.checkpoint.group import Group, SingleProcess
from forebay.checkpoint.groups import current_group
from forebay.checkpoint.handle import Checkpoint
from forebay.checkpoint.manifest import MANIFEST_KEY
from forebay.checkpoint.read import LoadOptions, resolve_together
from forebay.checkpoint.read import load as load_from
from forebay.checkpoint.write import PendingSave, Saved, SaveOptions, start_save
from forebay.locations import Location, open_location

Place = str | os.PathLike[str] | Location


def save(
    tree: Any,
    location: Place,
    *,
    step: int | None = None,
    metadata: dict[str, Any] | None = None,
    overwrite: bool = False,
    base: Place | None = None,
    group: Group | None = None,
    options: SaveOptions | None = None,
) -> Saved:
    """Save `tree` and return when it is durable and complete. Collective over `group` (the default is that of
    `jax.distributed` or `torch.distributed`, else this process alone).

    With `step`, `location` is a run and the checkpoint is its folder `step-<step>`; without, it is the checkpoint
    itself. One that is there already is kept and `CheckpointExists` raised, unless `overwrite`: then it is replaced at
    the moment of the commit. `base` is an earlier checkpoint to share unchanged bytes with; with `step` it is the
    newest of the run by default. `metadata` is JSON to keep with it. Raises `LeafRefused`, `SaveFailed`,
    `LocationError`.
    """
    pending = _start(tree, location, step, metadata, overwrite, base, group, options, blocking=True)
    return pending.wait()


def save_async(
    tree: Any,
    location: Place,
    *,
    step: int | None = None,
    metadata: dict[str, Any] | None = None,
    overwrite: bool = False,
    base: Place | None = None,
    group: Group | None = None,
    options: SaveOptions | None = None,
) -> PendingSave:
    """As `save`, but return as soon as `tree` may be changed again; `PendingSave.wait()` tells how it ended."""
    return _start(tree, location, step, metadata, overwrite, base, group, options, blocking=False)


def load(
    location: Place,
    like: Any = None,
    *,
    step: int | None = None,
    subtree: str | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
    allow_cast: bool = False,
    group: Group | None = None,
    options: LoadOptions | None = None,
) -> Any:
    """Load the checkpoint at `location`, or the newest complete one (or that of `step`) of the run there. Collective.

    `like` gives structure, types, devices and layout: arrays, `jax.ShapeDtypeStruct`s, torch tensors (filled in place
    unless they are on the meta device) and modules. Without it everything comes back as it was saved, with plain dicts
    in place of the user's classes. `subtree` (`model/layers`) loads a part. All differences come in one
    `CheckpointMismatch`, before anything is changed: `allow_missing` keeps leaves of `like` that the checkpoint lacks,
    `allow_extra` leaves out what `like` lacks, `allow_cast` converts dtypes. Every block's checksum is verified
    (`CheckpointCorrupt`).
    """
    return load_from(
        as_location(location), like, step=step, group=group or current_group(), subtree=subtree, allow_missing=allow_missing,
        allow_extra=allow_extra, allow_cast=allow_cast, options=options,
    )  # fmt: skip


def open(location: Place, *, step: int | None = None, options: LoadOptions | None = None) -> Checkpoint:
    """Open a checkpoint to look at: `open(location)["model/layer0/w"][128:256]` reads only the blocks those rows lie
    in.
    """
    checkpoint, manifest = resolve_together(as_location(location), step, SingleProcess())
    return Checkpoint(checkpoint, manifest, options=options)


def as_location(place: Place) -> Location:
    """A location, from its URL if it is not one already."""
    return open_location(place) if isinstance(place, str | os.PathLike) else place


def _start(
    tree: Any, place: Place, step: int | None, metadata: dict[str, Any] | None, overwrite: bool, base: Place | None,
    group: Group | None, options: SaveOptions | None, *, blocking: bool,
) -> PendingSave:  # fmt: skip
    location = as_location(place)
    checkpoint = location if step is None else location.child(catalog.step_name(step))
    earlier = as_location(base) if base is not None else _newest(location, step)
    return start_save(
        checkpoint, tree, step=step, group=group or current_group(), metadata=metadata, base=earlier, overwrite=overwrite, options=options,
        blocking=blocking, latest=None if step is None else location,
    )  # fmt: skip


def _newest(run: Location, step: int | None) -> Location | None:
    """The newest complete checkpoint of a run before this step, if its location can copy parts from it."""
    if step is None or not run.copies_parts:
        return None
    for earlier, name in reversed(catalog.step_folders(run)):
        if earlier != step and run.head(f"{name}/{MANIFEST_KEY}") is not None:
            return run.child(name)
    return None
