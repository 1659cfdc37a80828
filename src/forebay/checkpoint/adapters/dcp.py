"""`StorageWriter` and `StorageReader` for `torch.distributed.checkpoint`.

DCP plans which rank writes which box of which tensor, and gathers what each wrote; the coordinator makes the manifest of
it. So what is written is an ordinary checkpoint of Forebay's, and any of those can be read back through DCP. Names are
DCP's: the path in the state dict, joined by dots. What goes wrong on a rank DCP raises on all, as its
`CheckpointException` around our error.
"""

from __future__ import annotations

import dataclasses
import io
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from forebay._version import __version__
from forebay.checkpoint import catalog, dtypes, torch_arrays, views
from forebay.checkpoint import manifest as records
from forebay.checkpoint.arrays import ArraySource
from forebay.checkpoint.fetch import Wanted, fetch
from forebay.checkpoint.files import write_plan
from forebay.checkpoint.foreign.build import nest
from forebay.checkpoint.foreign.dcp import with_integer_keys
from forebay.checkpoint.group import SingleProcess
from forebay.checkpoint.groups import current_group
from forebay.checkpoint.layout import Box, box_text, whole
from forebay.checkpoint.leaves import LeafCollector
from forebay.checkpoint.manifest import MANIFEST_KEY, Array, ArrayEntry, FileEntry, Key, Manifest, Node, Path, Piece, TypedKey, Value
from forebay.checkpoint.plan import ArraySpec, make_plan
from forebay.checkpoint.read import LoadOptions, load_tree, resolve_together
from forebay.checkpoint.targets import page_aligned
from forebay.checkpoint.timeline import Timeline
from forebay.checkpoint.tree import flatten
from forebay.errors import CheckpointExists, ConfigError, PreconditionFailed
from forebay.locations import Absent, Location, open_location

BATCH_BYTES = 512 * 2**20
"""Buffers for tensors that cannot be filled in place are held for so much at a time."""


class _Part(msgspec.Struct):
    """A box of an array as one rank wrote it."""

    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    stored_shape: tuple[int, ...]
    key: str
    offset: int
    crcs: tuple[int, ...]


class _Stored(msgspec.Struct):
    """What came of one write item: parts of arrays, and for what is no tensor its record, whose arrays count from 0."""

    parts: list[_Part]
    files: list[FileEntry]
    node: Node | None = None


@dataclasses.dataclass(slots=True)
class _Drawn:
    """A rank's arrays to be written: each with its item, its name and its place in the whole."""

    sources: list[ArraySource] = dataclasses.field(default_factory=list)
    specs: list[ArraySpec] = dataclasses.field(default_factory=list)
    wholes: list[tuple[tuple[int, ...], tuple[int, ...]]] = dataclasses.field(default_factory=list)

    def add(self, name: str, source: ArraySource, shape: tuple[int, ...], start: tuple[int, ...]) -> int:
        self.sources.append(source)
        self.specs.append(ArraySpec(name, source.dtype, source.shape, ((whole(source.shape),),)))
        self.wholes.append((shape, start))
        return len(self.sources) - 1


class StorageWriter(_StorageWriter):
    """Writes `dcp.save(…, storage_writer=StorageWriter("s3://bucket/run", step=100))` as a checkpoint of Forebay's.

    With `step`, `location` is a run; without, the checkpoint's own folder. It appears when all ranks have written.
    """

    def __init__(
        self, location: str | os.PathLike[str] | None = None, *, step: int | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self._url = os.fspath(location) if location is not None else None
        self._step, self._metadata = step, metadata or {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A `checkpoint_id` given to `dcp.save` names the location."""
        self._url = os.fspath(checkpoint_id) if checkpoint_id is not None else self._url

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any location of Forebay's."""
        return _is_location(checkpoint_id)

    def storage_meta(self) -> dcp.StorageMeta | None:
        """For DCP's logs."""
        return dcp.StorageMeta(checkpoint_id=self._url)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raises `CheckpointExists` on the coordinator, which DCP raises on all ranks."""
        if is_coordinator and self._location().head(MANIFEST_KEY) is not None:
            raise CheckpointExists(f"{self._location().url} is a complete checkpoint already")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell every rank the attempt and its number."""
        attempt = secrets.token_hex(6)
        return [dataclasses.replace(plan, storage_data=(attempt, rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items. Raises `LeafRefused`, `LocationError`."""
        attempt, rank = plan.storage_data
        drawn = _Drawn()
        items = [(item, *_draw(item, planner, drawn)) for item in plan.items]
        layout = make_plan(drawn.specs, 1, attempt)
        files = tuple(dataclasses.replace(f, key=f.key.replace("/h00000-", f"/h{rank:05d}-")) for f in layout.files)
        layout = dataclasses.replace(layout, files=files)
        written = write_plan(self._location(), layout, drawn.sources)
        by_array = {piece.array: number for number, piece in enumerate(layout.pieces)}

        def part(array: int) -> _Part:
            number, (shape, start) = by_array[array], drawn.wholes[array]
            piece, dtype = layout.pieces[number], drawn.specs[array].dtype
            return _Part(dtype, shape, start, piece.stored_shape, files[piece.file].key, piece.offset, written.crcs[number])

        results = [
            WriteResult(item.index, 0, _Stored([part(a) for a in arrays], list(written.files), node)) for item, arrays, node in items
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: the commit. Raises `CheckpointExists`, `LocationError`."""
        location = self._location()
        made = _manifest(metadata, [result for rank in results for result in rank], self._step, self._metadata)
        try:
            location.put(MANIFEST_KEY, records.encode(records.MANIFEST_FORMAT, made), Absent())
        except PreconditionFailed as error:
            raise CheckpointExists(f"{location.url}: another checkpoint was committed there meanwhile") from error
        views.write(location, made)

    def _location(self) -> Location:
        return _folder(self._url, self._step)


def _folder(url: str | None, step: int | None) -> Location:
    if url is None:
        raise ConfigError("no location: give it to StorageWriter or StorageReader, or as checkpoint_id")
    location = open_location(url)
    return location if step is None else location.child(catalog.step_name(step))


def _is_location(checkpoint_id: str | os.PathLike[str]) -> bool:
    try:
        open_location(checkpoint_id)
    except ConfigError:
        return False
    return True


def _draw(item: WriteItem, planner: SavePlanner, drawn: _Drawn) -> tuple[list[int], Node | None]:
    """The arrays of an item, and the record of what is no tensor."""
    data = planner.resolve_data(item)
    name = item.index.fqn
    if item.type != WriteItemType.BYTE_IO:
        assert item.tensor_data is not None and isinstance(data, torch.Tensor)
        box, shape = Box(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)), tuple(item.tensor_data.size)
        full = name if box == whole(shape) else name + box_text(box)
        return [drawn.add(full, torch_arrays.TorchSource(name, data, 1, 0), shape, box.start)], None
    assert isinstance(data, io.BytesIO)
    data.seek(0)
    # DCP has pickled it a moment ago in this very process.
    value = torch.load(data, map_location="cpu", weights_only=False)
    collector = LeafCollector(1, 0)
    node, _ = flatten(value, collector.encode)
    inner = zip(collector.names(), collector.sources, strict=True)
    return [drawn.add(f"{name}.{n}", source, source.shape, (0,) * len(source.shape)) for n, source in inner], node


def _manifest(metadata: dcp.Metadata, results: list[WriteResult], step: int | None, user: dict[str, Any]) -> Manifest:
    paths: dict[str, Any] = dict(metadata.planner_data or {})
    files: dict[str, int] = {}
    entries: list[FileEntry] = []
    for file in (file for result in results for file in result.storage_data.files):
        if file.key not in files:
            files[file.key] = len(entries)
            entries.append(file)
    arrays: dict[str, list[_Part]] = {}
    leaves: list[tuple[Path, Node]] = []
    order = {name: place for place, name in enumerate(metadata.state_dict_metadata)}
    for result in sorted(results, key=lambda r: order[r.index.fqn]):
        name, stored = result.index.fqn, result.storage_data
        path = paths.get(name, (name,))
        if stored.node is not None:
            first = len(arrays)
            arrays.update({f"{name}\0{number}": [part] for number, part in enumerate(stored.parts)})
            leaves.append((path, _renumbered(stored.node, first)))
        else:
            if name not in arrays:
                leaves.append((path, Array(len(arrays), "torch")))
            arrays.setdefault(name, []).extend(stored.parts)
    tree = nest(with_integer_keys(leaves))
    attempt = entries[0].key.split("/")[1] if entries else secrets.token_hex(6)
    made = tuple(_entry(name.replace("\0", "."), parts, files) for name, parts in arrays.items())
    writer = f"forebay {__version__}"
    return Manifest(attempt, step, time.time(), writer, records.BLOCK_BYTES, tree, made, tuple(entries), user)


def _entry(name: str, parts: list[_Part], files: dict[str, int]) -> ArrayEntry:
    pieces = tuple(Piece(files[p.key], p.offset, p.start, p.stored_shape, p.crcs) for p in sorted(parts, key=lambda p: p.start))
    return ArrayEntry(name, parts[0].dtype, parts[0].shape, pieces)


def _renumbered(node: Node, first: int) -> Node:
    if isinstance(node, Array):
        return msgspec.structs.replace(node, index=node.index + first)
    if isinstance(node, Value):
        return node
    return msgspec.structs.replace(node, children=tuple(_renumbered(child, first) for child in node.children))


# --- reading


class StorageReader(_StorageReader):
    """Reads a checkpoint through `dcp.load(…, storage_reader=StorageReader(location))`; whoever saved it and however.

    `location` is a checkpoint, or a run with `step`; of a run without it, rank 0 of `torch.distributed` chooses the newest for all.
    """

    def __init__(self, location: str | os.PathLike[str] | None = None, *, step: int | None = None) -> None:
        super().__init__()
        self._url = os.fspath(location) if location is not None else None
        self._step = step
        self._opened: tuple[Location, Manifest] | None = None
        self._nodes: dict[str, tuple[Path, Node]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A `checkpoint_id` given to `dcp.load` names the location."""
        self._url = os.fspath(checkpoint_id) if checkpoint_id is not None else self._url
        self._opened = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any location of Forebay's."""
        return _is_location(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """DCP's view of the manifest. Raises `CheckpointMissing`, `CheckpointCorrupt`."""
        location = _folder(self._url, self._step)
        alone = self._step is not None or location.head(MANIFEST_KEY) is not None
        self._opened = resolve_together(location, None, SingleProcess() if alone else current_group())
        manifest = self._opened[1]
        self._nodes = {".".join(map(_text, path)): (path, node) for path, node in _dcp_leaves(manifest.tree, ())}
        described = {name: _described(manifest, node) for name, (_, node) in self._nodes.items()}
        paths = {name: tuple(key if isinstance(key, int) else _text(key) for key in path) for name, (path, _) in self._nodes.items()}
        return dcp.Metadata(described, planner_data=paths, storage_meta=dcp.StorageMeta(checkpoint_id=self._url))

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """All that is needed is known from `read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As planned."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's items, verified. Raises `CheckpointCorrupt`, `LocationError`."""
        assert self._opened is not None, "read_metadata comes first"
        batch: list[tuple[ReadItem, _TensorPart]] = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._value(item.dest_index.fqn))
                continue
            batch.append((item, self._part(item, planner)))
            if sum(part.buffer_bytes for _, part in batch) > BATCH_BYTES:
                self._fetch(batch, planner)
                batch = []
        self._fetch(batch, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _value(self, name: str) -> io.BytesIO:
        assert self._opened is not None
        location, manifest = self._opened
        tree = msgspec.structs.replace(manifest, tree=self._nodes[name][1])
        out = io.BytesIO()
        torch.save(load_tree(location, tree, options=LoadOptions(arrays="saved")), out)
        out.seek(0)
        return out

    def _part(self, item: ReadItem, planner: LoadPlanner) -> _TensorPart:
        assert self._opened is not None and item.storage_index.offset is not None
        node = self._nodes[item.storage_index.fqn][1]
        assert isinstance(node, Array)
        start = tuple(a + b for a, b in zip(item.storage_index.offset, item.storage_offsets, strict=True))
        tensor = planner.resolve_tensor(item)
        return _TensorPart(node.index, self._opened[1].arrays[node.index], Box(start, tuple(item.lengths)), tensor)

    def _fetch(self, batch: list[tuple[ReadItem, _TensorPart]], planner: LoadPlanner) -> None:
        assert self._opened is not None
        location, manifest = self._opened
        wanted = [Wanted(part.array, part) for _, part in batch]
        options = LoadOptions()
        fetch(
            location, manifest, wanted, lambda index: None, memory_bytes=options.memory_bytes, threads=options.threads, timeline=Timeline()
        )
        for item, part in batch:
            planner.commit_tensor(item, part.finish())


class _TensorPart:
    """A `Target`: a box of an array goes into a tensor of the box's shape, in place where its memory allows it."""

    def __init__(self, array: int, entry: ArrayEntry, box: Box, tensor: torch.Tensor) -> None:
        self.array, self.dtype, self.shape = array, entry.dtype, entry.shape
        self.boxes: tuple[Box, ...] = (box,)
        self._tensor = tensor.detach()
        same = torch_arrays.logical_dtype(tensor.dtype) == entry.dtype
        self._direct = same and self._tensor.device.type == "cpu" and self._tensor.is_contiguous() and tensor.numel() > 0
        self.page_aligned = not self._direct or self._tensor.data_ptr() % 4096 == 0
        self.buffer_bytes = 0 if self._direct else box.size * dtypes.itemsize_of(entry.dtype)
        self._buffer: np.ndarray[Any, Any] | None = None

    def buffer(self, box: Box) -> np.ndarray[Any, Any]:
        """See `Target`."""
        if self._buffer is None:
            numpy_dtype = dtypes.numpy_dtype(self.dtype)
            if self._direct:
                self._buffer = self._tensor.reshape(-1).view(torch.uint8).numpy().view(numpy_dtype).reshape(box.shape)
            else:
                self._buffer = page_aligned(box.shape, numpy_dtype)
        return self._buffer

    def finish(self) -> torch.Tensor:
        """The tensor, filled."""
        if self._buffer is not None and not self._direct:
            flat = torch.from_numpy(self._buffer.reshape(-1).view(np.uint8)).view(torch_arrays.TORCH_DTYPES[self.dtype])
            self._tensor.copy_(flat.reshape(self._tensor.shape))
        return self._tensor


def _dcp_leaves(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    """The leaves as DCP flattens a state dict: through dicts, and through lists that hold tensors or dicts."""
    if _is_terminal(node):
        yield path, node
        return
    for key, child in records.children_of(node).items():
        yield from _dcp_leaves(child, (*path, key))


def _is_terminal(node: Node) -> bool:
    if isinstance(node, Array | Value):
        return True
    if not isinstance(node, records.Sequence):
        return False
    return node.type != "list" or all(isinstance(c, Value) or (isinstance(c, records.Sequence) and _is_terminal(c)) for c in node.children)


def _text(key: Key) -> str:
    return key.text if isinstance(key, TypedKey) else str(key)


def _described(manifest: Manifest, node: Node) -> dcp.TensorStorageMetadata | dcp.BytesStorageMetadata:
    if not isinstance(node, Array) or node.kind in ("str", "bytes"):
        return dcp.BytesStorageMetadata()
    entry = manifest.arrays[node.index]
    if entry.dtype not in torch_arrays.TORCH_DTYPES:
        return dcp.BytesStorageMetadata()
    boxes = [box for p in entry.pieces if (box := Box(p.start, p.shape).overlap(whole(entry.shape))) is not None]
    chunks = [dcp.ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape)) for box in boxes or [whole(entry.shape)]]
    properties = dcp.TensorProperties(dtype=torch_arrays.TORCH_DTYPES[entry.dtype])
    return dcp.TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)
