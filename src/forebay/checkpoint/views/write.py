"""The objects that make up the views of one checkpoint, and the writing of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from forebay.checkpoint.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_KEY,
    Array,
    Fields,
    Manifest,
    Mapping,
    Node,
    Path,
    Sequence,
    TypedKey,
    Value,
    children_of,
    encode,
)
from forebay.checkpoint.views.ocdbt import encode_database
from forebay.checkpoint.views.zarr import ZarrArray, distinct_entries, zarr_arrays
from forebay.errors import ObjectMissing
from forebay.locations import Location

COMMIT_MARKS = frozenset({"manifest.ocdbt", "metadata.json", "_CHECKPOINT_METADATA"})
"""What other programs take as the sign that the rest is there; written after it."""
_SEQUENCE_KEY, _DICT_KEY = 1, 2


def write(checkpoint: Location, manifest: Manifest) -> None:
    """Write all views of a committed checkpoint; again if they were half written, or are those of an attempt replaced.

    A temporary checkpoint may be removed by the save after it while this runs: then there is nothing left to write.
    """
    objects = view_objects(manifest)
    last = [key for key in objects if key in COMMIT_MARKS]
    try:
        with ThreadPoolExecutor(8, "forebay-view") as pool:
            list(pool.map(lambda key: checkpoint.put(key, objects[key]), [key for key in objects if key not in COMMIT_MARKS]))
            list(pool.map(lambda key: checkpoint.put(key, objects[key]), last))
    except ObjectMissing:
        if checkpoint.head(MANIFEST_KEY) is not None:
            raise


def view_objects(manifest: Manifest) -> dict[str, bytes]:
    """Key and contents of each object."""
    arrays = zarr_arrays(manifest)
    return {**_database(manifest, arrays), **_orbax(manifest, arrays), **_huggingface(manifest), **_levanter(manifest)}


def _database(manifest: Manifest, arrays: list[ZarrArray]) -> dict[str, bytes]:
    entries = distinct_entries(arrays)
    if not entries:
        return {}
    node_file = f"d/{manifest.attempt}"
    uuid = hashlib.sha256(manifest.attempt.encode()).digest()[:16]
    root, nodes = encode_database(entries, node_file, uuid, int(manifest.created_s * 1000))
    return {node_file: nodes, "manifest.ocdbt": root}


def _orbax(manifest: Manifest, arrays: list[ZarrArray]) -> dict[str, bytes]:
    """`_METADATA` and `_strings.json`. Orbax knows leaves by their dotted names only, so if two share one there is no such view:
    Orbax would restore one value in both places.
    """
    dotted = Counter(".".join(_step(key) for key in path) for path, _ in manifest.leaves())
    shown = {array.path for array in arrays}
    leaves = list(_orbax_leaves(manifest.tree, (), shown))
    if not shown or max(dotted.values()) > 1:
        return {}
    tree = {str(tuple(_step(key) for key in path)): entry for path, entry in leaves}
    strings = {".".join(map(_step, path)): v.text for path, v in manifest.leaves() if isinstance(v, Value) and v.kind == "str"}
    record = {
        "tree_metadata": tree, "use_ocdbt": True, "use_zarr3": True, "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }  # fmt: skip
    nanoseconds = int(manifest.created_s * 1e9)
    checkpoint = {
        "item_handlers": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
        "metrics": {}, "performance_metrics": {}, "init_timestamp_nsecs": nanoseconds,
        "commit_timestamp_nsecs": nanoseconds, "custom_metadata": {},
    }  # fmt: skip
    objects = {"_strings.json": _json(strings)} if strings else {}
    return {**objects, "_METADATA": _json(record), "_CHECKPOINT_METADATA": _json(checkpoint)}


def _step(key: str | int | TypedKey) -> str:
    return key.text if isinstance(key, TypedKey) else str(key)


def _orbax_leaves(node: Node, path: Path, shown: set[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """What Orbax lists: leaves that it can restore, None, and empty containers."""
    children = children_of(node)
    if children:
        for key, child in children.items():
            yield from _orbax_leaves(child, (*path, key), shown)
        return
    value_type = _orbax_type(node)
    skip = value_type in ("None", "Dict", "List", "Tuple")
    if not (skip or value_type == "string" or path in shown):
        return
    keys = [{"key": _step(k), "key_type": _SEQUENCE_KEY if isinstance(k, int) else _DICT_KEY} for k in path]
    yield path, {"key_metadata": keys, "value_metadata": {"value_type": value_type, "skip_deserialize": skip}}


def _orbax_type(node: Node) -> str:
    if isinstance(node, Array):
        return "np.ndarray"  # of a `jax.Array` Orbax would want the devices it was on; with a target it restores either as asked
    if isinstance(node, Value):
        return {"none": "None", "str": "string"}.get(node.kind, "scalar")
    if isinstance(node, Mapping | Fields):
        return "Dict"
    assert isinstance(node, Sequence)
    return "Tuple" if node.type == "tuple" else "List"


def _huggingface(manifest: Manifest) -> dict[str, bytes]:
    """`model.safetensors.index.json`, if every array lies whole in one file."""
    if not manifest.arrays or any(len(entry.pieces) != 1 for entry in manifest.arrays):
        return {}
    weights = {entry.name: manifest.files[entry.pieces[0].file].key for entry in manifest.arrays}
    total = sum(file.size_bytes for file in manifest.files)
    return {"model.safetensors.index.json": _json({"metadata": {"total_size": total}, "weight_map": weights})}


def encode_manifest(manifest: Manifest) -> bytes:
    """The contents of `manifest.json`. Levanter has a file of this name too, so what it looks for in it stands in the envelope."""
    arrays = [
        {"path": array.slashed, "shape": array.shape, "dtype": array.dtype, "chunk_shape": array.chunk_shape}
        for array in zarr_arrays(manifest)
    ]
    fields = {"format_version": 1, "array_driver": "zarr3", "kvstore_driver": "ocdbt", "arrays": arrays}
    return encode(MANIFEST_FORMAT, manifest, fields)


def _levanter(manifest: Manifest) -> dict[str, bytes]:
    """`metadata.json`, which Levanter takes for the commit mark. It counts in steps, so without a step there is none."""
    if manifest.step is None:
        return {}
    timestamp = datetime.fromtimestamp(manifest.created_s, UTC).replace(tzinfo=None).isoformat()
    return {"metadata.json": _json({"step": manifest.step, "timestamp": timestamp, "is_temporary": manifest.temporary})}


def _json(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
