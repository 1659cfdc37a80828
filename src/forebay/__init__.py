"""Forebay: checkpoints of JAX, PyTorch and NumPy state, and the object store they can live in.

    forebay.save(tree, "s3://bucket/run", step=100)
    tree = forebay.load("s3://bucket/run", like=tree)
    rows = forebay.open("s3://bucket/run")["model/layer0/w"][128:256]

Importing this imports no framework and little else; the names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay._version import __version__

if TYPE_CHECKING:
    from forebay.checkpoint.api import load, open, save, save_async
    from forebay.checkpoint.checkpointer import Checkpointer
    from forebay.checkpoint.group import Group, SingleProcess
    from forebay.checkpoint.handle import Checkpoint
    from forebay.checkpoint.policy import Best, Every, Keep
    from forebay.checkpoint.read import LoadOptions
    from forebay.checkpoint.timeline import Timeline, timelines
    from forebay.checkpoint.write import PendingSave, Saved, SaveOptions

_HOMES = {
    "save": "api", "save_async": "api", "load": "api", "open": "api", "Checkpoint": "handle", "Checkpointer": "checkpointer",
    "Best": "policy", "Every": "policy", "Keep": "policy", "Group": "group", "SingleProcess": "group", "LoadOptions": "read",
    "PendingSave": "write", "SaveOptions": "write", "Saved": "write", "Timeline": "timeline", "timelines": "timeline",
}  # fmt: skip

__all__ = [
    "Best", "Checkpoint", "Checkpointer", "Every", "Group", "Keep", "LoadOptions", "PendingSave", "SaveOptions", "Saved",
    "SingleProcess", "Timeline", "__version__", "load", "open", "save", "save_async", "timelines",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    value = getattr(import_module(f"forebay.checkpoint.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
