"""Which checkpoints a run has: names, listing, choosing, promoting, deleting, sweeping what lost."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from forebay.checkpoint import manifest as records
from forebay.checkpoint import views
from forebay.checkpoint.manifest import MANIFEST_KEY, Manifest
from forebay.errors import CheckpointMissing, ObjectMissing
from forebay.locations import Entry, Location, Unchanged

LATEST_KEY = "LATEST"
"""Below a run: the name of the step that was committed last. A hint for people and scripts; nothing here reads it."""
_STEP_NAME = re.compile(r"step-(\d{8,})")


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
    if step < 0:
        raise ValueError(f"step {step} is negative")
    return f"step-{step:08d}"


def step_folders(run: Location) -> list[tuple[int, str]]:
    """Step and folder of everything that looks like a checkpoint, complete or not, oldest first."""
    matches = ((_STEP_NAME.fullmatch(name), name) for name in run.list_folder().folders)
    return sorted((int(match[1]), name) for match, name in matches if match)


def list_steps(run: Location) -> list[Step]:
    """The complete checkpoints, oldest step first: a delimited listing, then one HEAD each."""
    folders = step_folders(run)
    with ThreadPoolExecutor(8, "forebay-list") as pool:
        heads = pool.map(lambda item: run.head(f"{item[1]}/{MANIFEST_KEY}"), folders)
        return [_step(step, name, head) for (step, name), head in zip(folders, heads, strict=True) if head is not None]


def _step(step: int, name: str, head: Entry) -> Step:
    return Step(step, name, head.etag, head.modified_s)


def resolve_name(location: Location, step: int | None = None) -> str:
    """The folder, below `location`, of the checkpoint meant: empty if `location` itself is one (and no step is asked
    for), else the newest complete one, or that of the given step. Raises `CheckpointMissing`, saying what is there.
    """
    if step is None and location.head(MANIFEST_KEY) is not None:
        return ""
    if step is not None and location.head(f"{step_name(step)}/{MANIFEST_KEY}") is not None:
        return step_name(step)
    folders = step_folders(location)
    if step is None:
        for _, name in reversed(folders):
            if location.head(f"{name}/{MANIFEST_KEY}") is not None:
                return name
    wanted = "a complete checkpoint" if step is None else f"a complete checkpoint of step {step}"
    held = f"only unfinished ones: {', '.join(name for _, name in folders[:10])}" if folders else "none at all"
    if step is not None and (complete := list_steps(location)):
        held = "those of steps " + ", ".join(str(item.step) for item in complete[-10:])
    raise CheckpointMissing(f"{location.url}: {wanted} was looked for, found {held}")


def resolve(location: Location, step: int | None = None) -> Location:
    """The checkpoint meant by a location; see `resolve_name`."""
    return location.child(resolve_name(location, step))


def set_temporary(checkpoint: Location, temporary: bool) -> Manifest:
    """Promote a temporary checkpoint, or the reverse, by a conditional rewrite of its manifest.

    Raises `CheckpointMissing`, or `PreconditionFailed` if it was changed meanwhile.
    """
    try:
        data, etag = checkpoint.get(MANIFEST_KEY)
    except ObjectMissing as error:
        raise CheckpointMissing(f"{checkpoint.url} is not a complete checkpoint") from error
    found = records.decode(data, records.MANIFEST_FORMAT, Manifest, f"{checkpoint.url}/{MANIFEST_KEY}")
    if found.temporary == temporary:
        return found
    changed = msgspec.structs.replace(found, temporary=temporary)
    checkpoint.put(MANIFEST_KEY, views.encode_manifest(changed), Unchanged(etag))
    views.write(checkpoint, changed)
    return changed


def delete(checkpoint: Location) -> None:
    """Remove a checkpoint: the manifest first, then the views, so that a half-deleted one is never loaded, by nobody; the
    data last. Harmless if there is none.
    """
    checkpoint.delete([MANIFEST_KEY])
    keys = [entry.key for entry in checkpoint.walk()]
    checkpoint.delete(sorted(keys, key=lambda key: key.startswith("data/")))
    checkpoint.sweep_uploads("", time.time())


def sweep(run: Location, older_than_s: float = 86_400.0) -> list[str]:
    """Remove what lost or died, and return the folders it was in: attempts beside a committed manifest, uncommitted
    steps, and unfinished uploads, none of them written to for `older_than_s`.
    """
    before_s = time.time() - older_than_s
    swept = []
    for _, name in step_folders(run):
        checkpoint = run.child(name)
        garbage = _garbage(checkpoint, before_s)
        checkpoint.delete(garbage)
        if garbage or checkpoint.sweep_uploads("", before_s):
            swept.append(name)
    return swept


def _garbage(checkpoint: Location, before_s: float) -> list[str]:
    entries = list(checkpoint.walk())
    try:
        data, _ = checkpoint.get(MANIFEST_KEY)
    except ObjectMissing:
        idle = all(entry.modified_s < before_s for entry in entries)
        return [entry.key for entry in entries] if idle else []
    kept = records.decode(data, records.MANIFEST_FORMAT, Manifest, f"{checkpoint.url}/{MANIFEST_KEY}").attempt
    attempts: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = entry.key.split("/")
        if parts[0] in ("data", "index") and len(parts) > 2 and parts[1] != kept:
            attempts.setdefault(parts[1], []).append(entry)
    old = [found for found in attempts.values() if all(entry.modified_s < before_s for entry in found)]
    return [entry.key for found in old for entry in found]
