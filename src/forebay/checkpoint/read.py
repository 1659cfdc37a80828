"""Restoring: resolve, plan reads, verify, place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.checkpoint.group import Group
from forebay.checkpoint.manifest import Manifest
from forebay.checkpoint.timeline import Timeline
from forebay.locations import Location


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load. `arrays`: what comes back without `like`: `saved` (each as it was), `numpy`, `jax` or `torch`."""

    memory_bytes: int = 512 * 2**20
    threads: int = 4
    arrays: str = "saved"


def read_manifest(location: Location, etag: str | None = None) -> tuple[Manifest, str]:
    """The manifest of the checkpoint at `location`, and its entity tag. Raises `CheckpointMissing` if there is none
    (or another).
    """
    raise NotImplementedError


def load_tree(
    location: Location,
    manifest: Manifest,
    like: Any = None,
    *,
    subtree: str | None = None,
    allow_missing: bool = False,
    allow_cast: bool = False,
    options: LoadOptions | None = None,
    timeline: Timeline | None = None,
) -> Any:
    """The tree, or the part `subtree` of it, in the structure, types, devices and layout of `like`. Not collective."""
    raise NotImplementedError


def load(
    location: Location,
    like: Any = None,
    *,
    step: int | None = None,
    group: Group | None = None,
    subtree: str | None = None,
    allow_missing: bool = False,
    allow_cast: bool = False,
    options: LoadOptions | None = None,
) -> Any:
    """Collective. Rank 0 resolves the checkpoint (`catalog.resolve`) and broadcasts it; then `load_tree`."""
    raise NotImplementedError
