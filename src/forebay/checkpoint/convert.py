"""A checkpoint as another program's: safetensors (streamed, in bounded memory), Orbax and torch DCP (through their own
writers, which hold it whole), and any of these as ours (streamed).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from forebay.checkpoint import dtypes
from forebay.checkpoint.files import write_plan
from forebay.checkpoint.handle import Checkpoint
from forebay.checkpoint.layout import whole
from forebay.checkpoint.leaves import decode_value
from forebay.checkpoint.manifest import Array, ArrayEntry, Value, path_text
from forebay.checkpoint.plan import ArraySpec, Plan, PlannedFile, make_plan
from forebay.checkpoint.read import LoadOptions, load_tree
from forebay.checkpoint.stored import StoredLeaf, StoredSource
from forebay.checkpoint.tree import rebuild_plain
from forebay.checkpoint.write import Saved, SaveOptions, start_save
from forebay.errors import CheckpointExists, ConfigError, FormatUnknown
from forebay.locations import Location

FORMATS = ("forebay", "safetensors", "orbax", "dcp")
SHARD_BYTES = 5 * 2**30
"""Hugging Face's size of a file."""
INDEX_KEY = "model.safetensors.index.json"
Progress = Callable[[int], None]


def convert(
    source: Checkpoint, target: Location, format_name: str, *, shard_bytes: int = SHARD_BYTES, done: Progress = lambda _: None
) -> list[str]:
    """Write `source` at `target` in a format of `FORMATS`; what of it was left out, by path, because the format has no
    place for it.

    Raises `CheckpointExists` if something is there, `FormatUnknown` if the format cannot hold an array, `ConfigError`.
    """
    if format_name not in FORMATS:
        raise ConfigError(f"{format_name!r} is none of the formats {', '.join(FORMATS)}")
    listing = target.list_folder()
    if listing.objects or listing.folders:
        raise CheckpointExists(f"{target.url} is not empty")
    if format_name == "forebay":
        save_stored(source, target)
        return []
    if format_name == "safetensors":
        return to_safetensors(source, target, shard_bytes=shard_bytes, done=done)
    return _through_library(source, target, format_name)


def save_stored(source: Checkpoint, target: Location, options: SaveOptions | None = None) -> Saved:
    """Save a stored checkpoint again, as ours; mostly one of another program's."""
    leaves = (_standing(source, leaf) for _, leaf in source.manifest.leaves())
    tree = rebuild_plain(source.manifest.tree, leaves)
    metadata = {**source.metadata, "converted_from": source.manifest.writer}
    pending = start_save(target, tree, step=source.step, metadata=metadata, options=options, blocking=True)
    return pending.wait()


def _standing(source: Checkpoint, leaf: Array | Value) -> Any:
    return StoredLeaf(source, leaf.index, leaf.kind, leaf.detail) if isinstance(leaf, Array) else decode_value(leaf)


# --- safetensors


def to_safetensors(source: Checkpoint, target: Location, *, shard_bytes: int, done: Progress) -> list[str]:
    """Full tensors under their dotted names, as Hugging Face lays them out; the index file last."""
    entries = source.manifest.arrays
    unknown = [entry.name for entry in entries if entry.dtype not in dtypes.SAFETENSORS]
    if unknown:
        raise FormatUnknown(f"safetensors has no dtype for {unknown[0]!r} ({len(unknown)} arrays in all)")
    shards = list(_shards(entries, shard_bytes))
    count = len(shards)
    names = ["model.safetensors"] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(source, target, name, shard, done)
    if len(shards) > 1:
        weights = {entries[index].name: name for name, shard in zip(names, shards, strict=True) for index in shard}
        total = sum(_size_of(entry) for entry in entries)
        target.put(INDEX_KEY, json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=2).encode())
    return [path_text(path) for path, leaf in source.manifest.leaves() if isinstance(leaf, Value)]


def _size_of(entry: ArrayEntry) -> int:
    return math.prod(entry.shape) * dtypes.itemsize_of(entry.dtype)


def _shards(entries: tuple[ArrayEntry, ...], shard_bytes: int) -> Iterator[list[int]]:
    shard: list[int] = []
    room = shard_bytes
    for index, entry in enumerate(entries):
        if shard and _size_of(entry) > room:
            yield shard
            shard, room = [], shard_bytes
        shard.append(index)
        room -= _size_of(entry)
    yield shard


def _write_shard(source: Checkpoint, target: Location, key: str, shard: list[int], done: Progress) -> None:
    sources = [StoredSource(source, index) for index in shard]
    entries = [source.manifest.arrays[index] for index in shard]
    specs = [ArraySpec(entry.name, entry.dtype, entry.shape, ((whole(entry.shape),),)) for entry in entries]
    plan = _one_file(make_plan(specs, 1, source.manifest.attempt or "converted"), key)
    write_plan(target, plan, sources, done=done)


def _one_file(plan: Plan, key: str) -> Plan:
    """The plan with its file under another key. An empty checkpoint has a file with only a header."""
    if not plan.files:
        header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
        header = len(header).to_bytes(8, "little") + header
        return dataclasses.replace(plan, files=(PlannedFile(key, 0, header, len(header), ()),))
    assert len(plan.files) == 1, "shards are smaller than the plan's largest file"
    return dataclasses.replace(plan, files=(dataclasses.replace(plan.files[0], key=key),))


# --- through the other programs' own writers


def _through_library(source: Checkpoint, target: Location, format_name: str) -> list[str]:
    if urlsplit(target.url).scheme:
        raise ConfigError(f"{target.url}: {format_name} checkpoints can be written to folders only; copy it from there")
    library = "orbax.checkpoint" if format_name == "orbax" else "torch"
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        raise ConfigError(f"writing {format_name} takes {library}, which is not installed")
    if format_name == "dcp":
        _to_dcp(source, target.url)
    else:
        _to_orbax(source, target.url)
    return []


def _to_dcp(source: Checkpoint, path: str) -> None:
    from torch.distributed.checkpoint import state_dict_saver  # noqa: PLC0415 - only where PyTorch is

    tree = load_tree(source.location, source.manifest, options=LoadOptions(arrays="torch"))
    if not isinstance(tree, dict):
        raise FormatUnknown(f"{source.location.url} holds a {type(tree).__name__}; a DCP checkpoint is a dict")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # that is what no_dist says
        state_dict_saver.save(tree, checkpoint_id=path, no_dist=True)


def _to_orbax(source: Checkpoint, path: str) -> None:
    import orbax.checkpoint  # noqa: PLC0415 - only where Orbax is

    tree = load_tree(source.location, source.manifest, options=LoadOptions(arrays="numpy"))
    try:
        with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path, tree)
    except (ValueError, TypeError) as error:
        raise FormatUnknown(f"Orbax cannot hold {source.location.url}: {error}") from error
