"""safetensors files: one, or a folder of them as Hugging Face writes it. The format is
https://github.com/huggingface/safetensors#format: an 8-byte length, a JSON header, the data.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from forebay.checkpoint import dtypes
from forebay.checkpoint.foreign.build import nest
from forebay.checkpoint.manifest import BLOCK_BYTES, Array, ArrayEntry, FileEntry, Manifest, Node, Path, Piece
from forebay.errors import CheckpointCorrupt, FormatUnknown
from forebay.locations import Location

HEADER_BYTES_MAX = 100_000_000
"""What safetensors itself allows."""
_LOGICAL = {stored: logical for logical, stored in dtypes.SAFETENSORS.items()}


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


def open_files(location: Location, keys: list[str]) -> tuple[Location, Manifest]:
    """All tensors of the files, as a dict of their names. Raises `CheckpointCorrupt`, `FormatUnknown`."""
    leaves: list[tuple[Path, Node]] = []
    entries: list[ArrayEntry] = []
    files: list[FileEntry] = []
    for key in keys:
        url = f"{location.url}/{key}"
        size_bytes, header = _read_header(location, key, url)
        files.append(FileEntry(key, size_bytes, 0, ""))
        metadata = header.pop("__metadata__", None)
        kind = "torch" if isinstance(metadata, dict) and metadata.get("format") == "pt" else "numpy"
        start = size_bytes - max((t["data_offsets"][1] for t in header.values()), default=0)
        for name, raw in header.items():
            entry = _entry(name, raw, start, len(files) - 1, url)
            leaves.append(((name,), Array(len(entries), kind)))
            entries.append(entry)
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointCorrupt(f"{location.url}: tensor {twice!r} is in two of its files")
    tree = nest(sorted(leaves))
    return location, Manifest("", None, 0.0, "safetensors", BLOCK_BYTES, tree, tuple(entries), tuple(files))


def _entry(name: str, raw: Any, start: int, file: int, url: str) -> ArrayEntry:
    try:
        tensor = msgspec.convert(raw, _Tensor)
    except msgspec.ValidationError as error:
        raise CheckpointCorrupt(f"{url}: tensor {name!r}: {error}") from error
    if tensor.dtype not in _LOGICAL:
        raise FormatUnknown(f"{url}: tensor {name!r} has dtype {tensor.dtype}, which this version does not know")
    dtype = _LOGICAL[tensor.dtype]
    first, last = tensor.data_offsets
    if last - first != math.prod(tensor.shape) * dtypes.itemsize_of(dtype):
        raise CheckpointCorrupt(f"{url}: tensor {name!r}: bytes {first} to {last} do not fit {tensor.dtype}{list(tensor.shape)}")
    rank = len(tensor.shape)
    pieces = (Piece(file, start + first, (0,) * rank, tensor.shape, ()),) if last > first else ()
    return ArrayEntry(name, dtype, tensor.shape, pieces)


def _read_header(location: Location, key: str, url: str) -> tuple[int, dict[str, Any]]:
    """The file's size and header, checked so that every tensor lies within the file."""
    found = location.head(key)
    if found is None or found.size_bytes < 8:
        raise CheckpointCorrupt(f"{url} is not a safetensors file: it is too short")
    length = bytearray(8)
    location.read_into(key, 0, memoryview(length))
    size_bytes = int.from_bytes(length, "little")
    if size_bytes > min(HEADER_BYTES_MAX, found.size_bytes - 8):
        raise CheckpointCorrupt(f"{url} is not a safetensors file: its header would have {size_bytes} bytes")
    text = bytearray(size_bytes)
    location.read_into(key, 8, memoryview(text))
    try:
        header = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        ends = [int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointCorrupt(f"{url}: its header cannot be read: {error}") from error
    if 8 + size_bytes + max(ends, default=0) != found.size_bytes:
        raise CheckpointCorrupt(f"{url}: it has {found.size_bytes} bytes, its header speaks of {8 + size_bytes + max(ends, default=0)}")
    return found.size_bytes, header
