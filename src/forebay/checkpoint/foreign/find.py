"""Which program wrote what lies at a location, told by the files that it leaves."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import msgspec

from forebay.checkpoint.foreign import safetensors
from forebay.checkpoint.manifest import Manifest
from forebay.errors import FormatUnknown, LocationError
from forebay.locations import Listing, Location, open_location

_STEP = re.compile(r"(?:[A-Za-z][A-Za-z_]*[-_]?)?(\d+)")
_OUR_DATA = re.compile(r"data/[^/]+/h\d{5}-\d+\.safetensors")


class Found(msgspec.Struct, omit_defaults=True):
    """A checkpoint of another program: its kind, its folder below the location, and what the reader needs to know."""

    kind: str
    folder: str = ""
    names: list[str] = []
    step: int | None = None


def find(location: Location, step: int | None = None) -> Found | None:
    """What is there: itself a checkpoint, or the newest (or that of `step`) of a run. None if nothing is known."""
    if location.url.endswith(".safetensors"):
        return Found("file") if step is None else None
    listing = location.list_folder()
    found = _here(location, listing) if step is None else None
    return found or _newest(location, listing, step)


def open_found(location: Location, found: Found) -> tuple[Location, Manifest]:
    """The place to read from, and the manifest. Raises `FormatUnknown` if the library that reads it is not installed."""
    place = location.child(found.folder) if found.folder else location
    if found.kind == "file":
        folder, _, name = location.url.rpartition("/")
        return safetensors.open_files(open_location(folder or "/"), [name])
    if found.kind == "safetensors":
        return safetensors.open_files(place, found.names)
    if found.kind == "dcp":
        _require("torch", place.url)
        from forebay.checkpoint.foreign import dcp  # noqa: PLC0415 - only where PyTorch is

        return dcp.open_dcp(place, found.step)
    _require("tensorstore", place.url)
    from forebay.checkpoint.foreign import zarr  # noqa: PLC0415 - only where TensorStore is

    return zarr.open_levanter(place, found.step) if found.kind == "levanter" else zarr.open_orbax(place, found.names, found.step)


def _require(library: str, url: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise FormatUnknown(f"{url} was written by another program; reading it takes {library}: pip install 'forebay[{library}]'")


def _here(location: Location, listing: Listing) -> Found | None:
    names = [entry.key.rpartition("/")[2] for entry in listing.objects]
    if "data" in listing.folders and any(_OUR_DATA.fullmatch(entry.key) for entry in location.walk("data")):
        return None  # ours, unfinished or being deleted
    if ".metadata" in names:
        return Found("dcp")
    if "_METADATA" in names:
        return Found("orbax", names=[""])
    if "_CHECKPOINT_METADATA" in names or "commit_success.txt" in names:
        items = [folder for folder in listing.folders if location.head(f"{folder}/_METADATA") is not None]
        return Found("orbax", names=items) if items else None
    if "metadata.json" in names and _levanter_metadata(location) is not None:
        return Found("levanter", step=_levanter_step(location))
    tensors = sorted(name for name in names if name.endswith(".safetensors"))
    return Found("safetensors", names=tensors) if tensors else None


def _newest(location: Location, listing: Listing, step: int | None) -> Found | None:
    """A run's folders end in their step; Levanter's newest is the last by time."""
    steps = [(int(match[1]), name) for name in listing.folders if (match := _STEP.fullmatch(name))]
    candidates: list[tuple[Any, int, Found]] = []
    for number, name in sorted(steps, reverse=True):
        if step not in (None, number):
            continue
        child = location.child(name)
        found = _here(child, child.list_folder())
        if found is None:
            continue
        found.folder, found.step = name, number
        if found.kind != "levanter":
            return found
        metadata = _levanter_metadata(child) or {}
        candidates.append((str(metadata.get("timestamp", "")), number, found))
    return max(candidates, key=lambda c: c[:2])[2] if candidates else None


def _levanter_metadata(location: Location) -> dict[str, Any] | None:
    try:
        metadata = msgspec.json.decode(location.get("metadata.json")[0])
    except (LocationError, msgspec.DecodeError):
        return None
    return metadata if isinstance(metadata, dict) and {"step", "timestamp"} <= set(metadata) else None


def _levanter_step(location: Location) -> int | None:
    step = (_levanter_metadata(location) or {}).get("step")
    return step if isinstance(step, int) else None
