"""What `torch.distributed.checkpoint` wrote: `.metadata` and `*.distcp`.

Both hold pickles. `.metadata` is unpickled with only the classes that it is made of; values are loaded by torch's
`weights_only` unpickler. So a checkpoint cannot run code here; one that holds other objects is refused by name.
"""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from forebay.checkpoint import torch_arrays
from forebay.checkpoint.foreign.build import Chunk, ChunkedArray, chunked, nest
from forebay.checkpoint.layout import Box
from forebay.checkpoint.leaves import encode_value
from forebay.checkpoint.manifest import Array, Key, Manifest, Node, Path, TypedKey
from forebay.checkpoint.tree import flatten
from forebay.errors import CheckpointCorrupt, FormatUnknown, LeafRefused
from forebay.locations import Location

METADATA_KEY = ".metadata"
_METADATA_CLASSES = {
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
    "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
}  # fmt: skip
_OTHER_CLASSES = {
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("collections", "OrderedDict"), ("builtins", "set"),
}  # fmt: skip


class _MetadataUnpickler(pickle.Unpickler):
    """Only what DCP's metadata consists of."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises `UnpicklingError` for anything else."""
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"):
            return pathlib.PurePosixPath
        if (module == "torch.distributed.checkpoint.metadata" and name in _METADATA_CLASSES) or (module, name) in _OTHER_CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype | torch.layout | torch.memory_format):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def open_dcp(location: Location, step: int | None) -> tuple[Location, Manifest]:
    """The nested state dict. Raises `FormatUnknown`, `CheckpointCorrupt`."""
    data, _ = location.get(METADATA_KEY)
    try:
        metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        state, stored = dict(metadata.state_dict_metadata), dict(metadata.storage_data)
        paths = dict(metadata.planner_data or {})
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"{location.url}/{METADATA_KEY} cannot be read: {error}") from error
    reader = _Reader(location, stored)
    leaves: list[tuple[Path, Node]] = []
    arrays: list[ChunkedArray] = []
    for name, described in state.items():
        path = paths.get(name, (name,))
        path = path if isinstance(path, tuple) else (path,)
        if type(described).__name__ == "TensorStorageMetadata":
            leaves.append((path, Array(len(arrays), "torch")))
            arrays.append(reader.array(name, described))
        else:
            leaves.append((path, reader.value(name)))
    return chunked(location.url, "torch.distributed.checkpoint", nest(with_integer_keys(leaves)), arrays, step)


def with_integer_keys(leaves: list[tuple[Path, Node]]) -> Iterator[tuple[Path, Node]]:
    """DCP turns the integer keys of an optimizer's `state` into text; beside `param_groups` they are turned back."""
    optimizers = {path[: path.index("param_groups")] for path, _ in leaves if "param_groups" in path}

    def key(path: Path, place: int) -> Key:
        step = path[place]
        parent = place > 0 and path[place - 1] == "state" and path[: place - 1] in optimizers
        return TypedKey("int", step) if parent and isinstance(step, str) and step.isdecimal() else step

    for path, leaf in leaves:
        yield tuple(key(path, place) for place in range(len(path))), leaf


class _Reader:
    """Reads items: each is what `torch.save` wrote, at a range of a file."""

    def __init__(self, location: Location, stored: dict[Any, Any]) -> None:
        self._location = location
        self._stored = {(index.fqn, None if index.offset is None else tuple(index.offset)): info for index, info in stored.items()}

    def array(self, name: str, described: Any) -> ChunkedArray:
        """A tensor in the chunks that the ranks wrote."""
        dtype = torch_arrays.logical_dtype(described.properties.dtype)
        if dtype is None:
            raise FormatUnknown(f"{self._location.url}: tensor {name!r} has dtype {described.properties.dtype}")
        boxes = [Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in described.chunks]
        chunks = tuple(Chunk(box, self._reading(name, box)) for box in boxes if box.size)
        return ChunkedArray(name, dtype, tuple(described.size), chunks)

    def value(self, name: str) -> Node:
        """Something that is no tensor."""
        value = self._load(name, None)
        where = f"{self._location.url}: {name!r}"

        def encode(path: Path, leaf: Any) -> Node:
            record = encode_value(leaf)
            if record is None:
                raise FormatUnknown(f"{where} holds a {type(leaf).__name__}, which is no plain value")
            return record

        try:
            return flatten(value, encode)[0]
        except LeafRefused as error:
            raise FormatUnknown(f"{where}: {error}") from error

    def _reading(self, name: str, box: Box) -> Callable[[], np.ndarray[Any, Any]]:
        def read() -> np.ndarray[Any, Any]:
            tensor = self._load(name, box.start).detach().contiguous()
            flat: np.ndarray[Any, Any] = tensor.reshape(-1).view(torch.uint8).numpy()
            return flat.view(f"V{tensor.element_size()}").reshape(tuple(tensor.shape))

        return read

    def _load(self, name: str, start: tuple[int, ...] | None) -> Any:
        info = self._stored.get((name, start))
        if info is None:
            raise CheckpointCorrupt(f"{self._location.url}: {METADATA_KEY} says nothing of where {name!r} at {start} is stored")
        if getattr(info, "transform_descriptors", None):
            how = info.transform_descriptors
            raise FormatUnknown(f"{self._location.url}: {name!r} is stored with {how}, which this version does not undo")
        raw = bytearray(info.length)
        self._location.read_into(info.relative_path, info.offset, memoryview(raw))
        try:
            return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise CheckpointCorrupt(f"{self._location.url}: {name!r} cannot be read without running code from it: {error}") from error
