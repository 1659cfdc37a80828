"""What TensorStore wrote: Orbax checkpoints (zarr 2 and 3, with and without OCDBT) and Levanter's layout.

TensorStore reads the arrays. Neither format keeps checksums; where a chunk is missing, that is an error, not zeros.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import tensorstore

from forebay.checkpoint import dtypes
from forebay.checkpoint.foreign.build import Chunk, ChunkedArray, chunked, nest
from forebay.checkpoint.layout import Box
from forebay.checkpoint.leaves import encode_value
from forebay.checkpoint.manifest import Array, Manifest, Mapping, Node, Path, Sequence, Value
from forebay.errors import CheckpointCorrupt, FormatUnknown, ObjectMissing
from forebay.locations import Location

READ_BYTES = 16 * 2**20
"""Neighbouring chunks are read together up to this size."""
_SEQUENCE_KEY = 1
_EMPTY_TUPLE = Sequence((), "tuple")
_EMPTY: dict[str, Node] = {
    "Dict": Mapping((), ()), "List": Sequence(()), "Tuple": _EMPTY_TUPLE, "NamedTuple": _EMPTY_TUPLE, "None": Value("none"),
}  # fmt: skip
_ZARR_MARKS = {".zarray": "zarr", "zarr.json": "zarr3"}


class _KeyStep(msgspec.Struct):
    key: str
    key_type: int = 2


class _ValueMetadata(msgspec.Struct):
    value_type: str = "jax.Array"
    skip_deserialize: bool = False


class _Entry(msgspec.Struct):
    key_metadata: list[_KeyStep]
    value_metadata: _ValueMetadata = msgspec.field(default_factory=_ValueMetadata)


class _OrbaxMetadata(msgspec.Struct):
    """Orbax's `_METADATA`, as far as it is needed."""

    tree_metadata: dict[str, _Entry]
    use_ocdbt: bool = True
    use_zarr3: bool = False


class _ArrayMetadata(msgspec.Struct):
    param_name: str
    ext_metadata: dict[str, Any] | None = None


class _Wrapped(msgspec.Struct):
    array_metadata: _ArrayMetadata


class _ArrayMetadatas(msgspec.Struct):
    array_metadatas: list[_Wrapped]


def open_orbax(location: Location, items: list[str], step: int | None) -> tuple[Location, Manifest]:
    """The tree of an Orbax checkpoint: of the item `""` or the only one itself, else a dict of all items."""
    store = _Store(location)
    leaves: list[tuple[Path, Node]] = []
    for item in items:
        prefix: Path = () if len(items) == 1 else (item,)
        leaves += [((*prefix, *path), leaf) for path, leaf in _orbax_item(location.child(item), item, store)]
    return chunked(location.url, "orbax", nest(leaves), store.arrays, step)


def open_levanter(location: Location, step: int | None) -> tuple[Location, Manifest]:
    """Levanter's layout has no tree but the arrays' paths: `model/layers/0/w`. Numbers are places in lists."""
    store = _Store(location)
    leaves: list[tuple[Path, Node]] = []
    for path, driver, ocdbt in sorted(_find_arrays(location)):
        steps = tuple(int(part) if part.isdecimal() else part for part in path.split("/"))
        leaves.append((steps, Array(store.add(path, path, driver, ocdbt), "jax")))
    if not leaves:
        raise FormatUnknown(f"{location.url} has Levanter's metadata.json but no arrays")
    return chunked(location.url, "levanter", nest(leaves), store.arrays, step)


def _find_arrays(location: Location) -> Iterator[tuple[str, str, str | None]]:
    """Path, driver, and the folder of the OCDBT database that holds it (None: plain files)."""
    for entry in location.walk():
        folder, _, name = entry.key.rpartition("/")
        if name in _ZARR_MARKS and folder:
            yield folder, _ZARR_MARKS[name], None
        if name == "manifest.ocdbt" and "ocdbt.process_" not in folder:
            database = tensorstore.KvStore.open({"driver": "ocdbt", "base": kvstore_of(location, folder)}).result()
            for key in database.list().result():
                path, _, mark = key.decode().rpartition("/")
                if mark in _ZARR_MARKS:
                    yield f"{folder}/{path}".strip("/"), _ZARR_MARKS[mark], folder


def _orbax_item(item: Location, name: str, store: _Store) -> Iterator[tuple[Path, Node]]:
    metadata = _read_json(item, "_METADATA", _OrbaxMetadata)
    assert metadata is not None
    strings = _read_json(item, "_strings.json", dict[str, str]) or {}
    key_impls = dict(_key_impls(item))
    for entry in metadata.tree_metadata.values():
        path = tuple(int(step.key) if step.key_type == _SEQUENCE_KEY else step.key for step in entry.key_metadata)
        kind, param = entry.value_metadata.value_type, ".".join(step.key for step in entry.key_metadata)
        if kind in _EMPTY:
            yield path, _EMPTY[kind]
        elif kind == "string":
            yield path, _value(strings.get(param, ""), f"{item.url}: {param}")
        elif entry.value_metadata.skip_deserialize:
            raise FormatUnknown(f"{item.url}: {param!r} is a {kind}, which this version does not know")
        else:
            index = store.add(f"{name}.{param}".strip("."), f"{name}/{param}".strip("/"), "zarr3" if metadata.use_zarr3 else "zarr",
                              name if metadata.use_ocdbt else None)  # fmt: skip
            yield path, store.leaf(index, kind, key_impls.get(param, ""))


def _key_impls(item: Location) -> Iterator[tuple[str, str]]:
    """The generators of typed PRNG keys, by parameter."""
    for file in item.list_folder("array_metadatas").objects:
        found = _read_json(item, file.key, _ArrayMetadatas)
        for each in found.array_metadatas if found else ():
            implementation = (each.array_metadata.ext_metadata or {}).get("random_key_impl")
            if implementation:
                yield each.array_metadata.param_name, str(implementation)


class _Store:
    """Opens arrays below a location."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.arrays: list[ChunkedArray] = []

    def add(self, name: str, path: str, driver: str, ocdbt: str | None) -> int:
        """The index of the array at `path`."""
        if ocdbt is None:
            kvstore: Any = kvstore_of(self.location, path)
        else:
            inner = path.removeprefix(ocdbt).strip("/")
            kvstore = {"driver": "ocdbt", "base": kvstore_of(self.location, ocdbt), "path": f"{inner}/"}
        try:
            spec = {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False}
            array = tensorstore.open(spec, open=True, read=True).result()
        except (ValueError, OSError) as error:
            raise CheckpointCorrupt(f"array {name!r} of {self.location.url} cannot be opened: {error}") from error
        dtype = dtypes.dtype_name(np.dtype(array.dtype.numpy_dtype))
        if dtype is None:
            raise FormatUnknown(f"array {name!r} of {self.location.url} has dtype {array.dtype}")
        shape = tuple(map(int, array.shape))
        boxes = chunk_boxes(
            shape,
            tuple(c or n for c, n in zip(array.chunk_layout.read_chunk.shape or shape, shape, strict=True)),
            dtypes.itemsize_of(dtype),
        )
        self.arrays.append(ChunkedArray(name, dtype, shape, tuple(Chunk(box, _reading(array, box)) for box in boxes)))
        return len(self.arrays) - 1

    def leaf(self, index: int, kind: str, key_impl: str) -> Node:
        """What Orbax calls a scalar is read at once, so that it comes back as a number."""
        array = self.arrays[index]
        if kind == "scalar" and array.shape == ():
            try:
                return _value(array.chunks[0].read().item(), array.name)
            except ValueError as error:
                raise CheckpointCorrupt(f"{array.name!r} of {self.location.url} cannot be read: {error}") from error
        if key_impl:
            return Array(index, "jax_key", key_impl)
        return Array(index, "numpy" if kind == "np.ndarray" else "jax")


def _reading(array: Any, box: Box) -> Any:
    return lambda: array[box.within((0,) * len(box.start))].read().result()


def chunk_boxes(shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int) -> list[Box]:
    """Boxes on the grid of the chunks, in C order; grown along the last axes while that is within `READ_BYTES`."""
    if 0 in shape:
        return []
    box = [min(max(1, c), n) for c, n in zip(chunk, shape, strict=True)]
    size_bytes = int(np.prod(box, dtype=np.int64)) * itemsize
    for axis in reversed(range(len(box))):
        while box[axis] < shape[axis] and size_bytes * 2 <= READ_BYTES:
            box[axis], size_bytes = box[axis] * 2, size_bytes * 2
    starts = itertools.product(*(range(0, n, step) for n, step in zip(shape, box, strict=True)))
    return [Box(start, tuple(min(step, n - a) for a, step, n in zip(start, box, shape, strict=True))) for start in starts]


def kvstore_of(location: Location, folder: str = "") -> dict[str, Any]:
    """TensorStore's name for a folder of a location. For S3 it takes endpoint and credentials from the environment.

    Raises `FormatUnknown` for a place that TensorStore does not reach.
    """
    parts = urlsplit(location.url)
    path = "/".join(filter(None, [parts.path.strip("/"), folder])) + "/"
    if parts.scheme == "":
        return {"driver": "file", "path": f"/{path}"}
    if parts.scheme == "gs":
        return {"driver": "gcs", "bucket": parts.netloc, "path": path}
    if parts.scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        given = {"endpoint": endpoint, "aws_region": region if endpoint is None else region or "us-east-1"}
        return {"driver": "s3", "bucket": parts.netloc, "path": path, **{k: v for k, v in given.items() if v}}
    raise FormatUnknown(f"{location.url}: TensorStore, which reads this format, reaches folders, s3:// and gs:// only; copy it there")


def _value(value: Any, where: str) -> Node:
    record = encode_value(value)
    if record is None:
        raise FormatUnknown(f"{where} is a {type(value).__name__}, which this version does not know")
    return record


def _read_json(location: Location, key: str, kind: Any) -> Any:
    try:
        data, _ = location.get(key)
        return msgspec.json.decode(data, type=kind)
    except ObjectMissing:
        return None
    except msgspec.DecodeError as error:
        raise CheckpointCorrupt(f"{location.url}/{key}: {error}") from error
