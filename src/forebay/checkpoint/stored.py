"""An array in a checkpoint as the source of another: read in parts as they are needed, so that nothing is held whole."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from forebay.checkpoint.arrays import Bytes1D, SourceLeaf, replicated
from forebay.checkpoint.compare import read_box
from forebay.checkpoint.handle import Checkpoint
from forebay.checkpoint.layout import Box


class StoredSource:
    """See `arrays.ArraySource`. `settled`: what is stored stays as it is."""

    settled = True

    def __init__(self, checkpoint: Checkpoint, index: int, ranks: int = 1) -> None:
        self._checkpoint, self._index = checkpoint, index
        entry = checkpoint.manifest.arrays[index]
        self.dtype, self.shape, self.sharding = entry.dtype, entry.shape, ""
        self.holders = replicated(entry.shape, ranks)
        self.identity: Hashable = (checkpoint.location.url, index)

    def view(self, box: Box) -> Bytes1D | None:
        """It has to be read."""
        return None

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """Read, verified if there are checksums."""
        np.copyto(out, read_box(self._checkpoint, self._index, box))


class StoredLeaf(SourceLeaf):
    """Stands for a stored array in a tree to be saved: see `SourceLeaf`."""

    def __init__(self, checkpoint: Checkpoint, index: int, kind: str, detail: str) -> None:
        self._checkpoint, self._index, self.kind, self.detail = checkpoint, index, kind, detail
        self.shape = checkpoint.manifest.arrays[index].shape
        self.dtype = checkpoint.manifest.arrays[index].dtype

    def source(self, ranks: int) -> StoredSource:
        """The array for a save of so many ranks."""
        return StoredSource(self._checkpoint, self._index, ranks)
