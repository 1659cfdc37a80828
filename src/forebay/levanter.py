"""Levanter's checkpoint interface on Forebay: change `from levanter.checkpoint import …` to `from forebay.levanter import …`."""

from forebay.checkpoint.adapters.levanter import (
    Checkpointer,
    CheckpointInterval,
    discover_latest_checkpoint,
    is_checkpoint_path,
    load_checkpoint,
    load_checkpoint_or_initialize,
    save_checkpoint,
)

__all__ = [
    "CheckpointInterval", "Checkpointer", "discover_latest_checkpoint", "is_checkpoint_path", "load_checkpoint",
    "load_checkpoint_or_initialize", "save_checkpoint",
]  # fmt: skip
