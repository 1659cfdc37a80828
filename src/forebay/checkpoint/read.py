"""Restoring: resolve, match, fetch, place.

Without `like`, everything comes back as it was saved: NumPy arrays, torch tensors on the CPU, JAX arrays on the
default device; nodes of the user's classes become dicts of their fields. With `like`, its structure, types, devices
and layout are filled, and every difference is reported before a byte is read. A read that fails midway leaves tensors
that are filled in place half filled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from forebay.checkpoint import catalog, dtypes
from forebay.checkpoint import manifest as records
from forebay.checkpoint.fetch import Wanted, fetch
from forebay.checkpoint.foreign.find import Found, find, open_found
from forebay.checkpoint.group import Group, SingleProcess
from forebay.checkpoint.leaves import decode_value, imported, is_jax, is_jax_key, is_torch
from forebay.checkpoint.manifest import MANIFEST_KEY, Array, ArrayEntry, Manifest, Node, Path, Value, path_text
from forebay.checkpoint.match import Report
from forebay.checkpoint.targets import Buffers, NumpyTarget, Target
from forebay.checkpoint.timeline import Timeline
from forebay.checkpoint.tree import flatten, is_array_like, is_stateful, rebuild_plain
from forebay.errors import CheckpointMissing, ForebayError, ObjectMissing
from forebay.locations import Location


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load.

    `memory_bytes` bounds the host memory of reads in flight, `threads` their number (None: as many as suit the location). `arrays`: what
    arrays come back as without `like`: `saved` (each as it was; NumPy if its framework is not installed), `numpy`, `jax` or `torch`.
    """

    memory_bytes: int = 512 * 2**20
    threads: int | None = None
    arrays: str = "saved"
    timeout_s: float = 600.0


class _Resolved(msgspec.Struct):
    """Which checkpoint rank 0 found, relative to the location; or why none."""

    folder: str = ""
    etag: str = ""
    error: str = ""
    foreign: Found | None = None


def read_manifest(location: Location, etag: str | None = None) -> tuple[Manifest, str]:
    """The manifest of the checkpoint at `location`, and its entity tag.

    Raises `CheckpointMissing` if there is none, or not the one with `etag`; `CheckpointCorrupt`, `FormatUnknown`.
    """
    try:
        data, found = location.get(MANIFEST_KEY)
    except ObjectMissing as error:
        raise CheckpointMissing(f"{location.url} is not a complete checkpoint: it has no {MANIFEST_KEY}") from error
    if etag is not None and found != etag:
        raise CheckpointMissing(f"{location.url}: its manifest was replaced while the processes were about to load it")
    return records.decode(data, records.MANIFEST_FORMAT, Manifest, f"{location.url}/{MANIFEST_KEY}"), found


def load(
    location: Location,
    like: Any = None,
    *,
    step: int | None = None,
    group: Group | None = None,
    subtree: str | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
    allow_cast: bool = False,
    options: LoadOptions | None = None,
    timeline: Timeline | None = None,
) -> Any:
    """Collective. Rank 0 resolves the checkpoint (`catalog.resolve`) and broadcasts it; then `load_tree`."""
    group, options = group or SingleProcess(), options or LoadOptions()
    checkpoint, manifest = resolve_together(location, step, group, options.timeout_s)
    return load_tree(
        checkpoint, manifest, like, subtree=subtree, allow_missing=allow_missing, allow_extra=allow_extra,
        allow_cast=allow_cast, options=options, timeline=timeline,
    )  # fmt: skip


def resolve_together(location: Location, step: int | None, group: Group, timeout_s: float = 600.0) -> tuple[Location, Manifest]:
    """Collective. The same checkpoint on every rank, by its folder and entity tag; what kept rank 0 from it is raised
    on all.
    """
    payload, failure = None, None
    if group.rank == 0:
        try:
            found = _resolve(location, step)
        except ForebayError as error:
            found, failure = _Resolved(error=str(error)), error
        payload = msgspec.json.encode(found)
    agreed = msgspec.json.decode(group.broadcast(payload, timeout_s), type=_Resolved)
    if failure is not None:
        raise failure
    if agreed.error:
        raise CheckpointMissing(f"rank 0: {agreed.error}")
    if agreed.foreign is not None:
        return open_found(location, agreed.foreign)
    checkpoint = location.child(agreed.folder)
    return checkpoint, read_manifest(checkpoint, agreed.etag)[0]


def _resolve(location: Location, step: int | None) -> _Resolved:
    """What is there, of ours; else what another program wrote. Raises `CheckpointMissing`."""
    try:
        folder = catalog.resolve_name(location, step)
    except CheckpointMissing:
        foreign = find(location, step)
        if foreign is None:
            raise
        return _Resolved(foreign=foreign)
    return _Resolved(folder, read_manifest(location.child(folder))[1])


def load_tree(
    location: Location,
    manifest: Manifest,
    like: Any = None,
    *,
    subtree: str | None = None,
    allow_missing: bool = False,
    allow_extra: bool = False,
    allow_cast: bool = False,
    options: LoadOptions | None = None,
    timeline: Timeline | None = None,
) -> Any:
    """The tree, or the part of it at the path `subtree` (`model/layers`), as `like`. Not collective.

    Raises `CheckpointMismatch` before anything is read or changed, `CheckpointCorrupt`, `LocationError`.
    """
    options, timeline = options or LoadOptions(), timeline or Timeline(what=f"load {location.url}")
    node = find_node(manifest, subtree or "", location.url)
    loading = _Loading(manifest, options, allow_cast)
    with timeline.span("match"):
        if like is None:
            finish = loading.plain(node)
        else:
            report = Report(location.url + (f", subtree {subtree}" if subtree else ""))
            finish = loading.like(node, like, report, allow_missing)
            report.check(allow_missing=allow_missing, allow_extra=allow_extra)
    loading.fetch(location, timeline)
    return finish()


def find_node(manifest: Manifest, path: str, where: str) -> Node:
    """The node at a path as people write it (`model/layers/0`). Raises `CheckpointMissing`."""
    node: Node = manifest.tree
    walked: Path = ()
    rest = path.strip("/")
    while rest:
        children = records.children_of(node)
        step = next((k for k in sorted(children, key=lambda k: -len(path_text((k,)))) if _begins(rest, path_text((k,)))), None)
        if step is None:
            held = ", ".join(path_text((key,)) for key in list(children)[:10]) or "nothing: it is a leaf"
            raise CheckpointMissing(f"{where}: no {rest!r} under {path_text(walked) or 'the root'!r}, which holds {held}")
        node, walked = children[step], (*walked, step)
        rest = rest[len(path_text((step,))) :].lstrip("/")
    return node


def _begins(rest: str, step: str) -> bool:
    return rest == step or rest.startswith(step + "/")


class _Place(Protocol):
    """A leaf of the result: called after all arrays are there."""

    def __call__(self) -> Any: ...


@dataclass(slots=True)
class _Loading:
    """The arrays that one load needs, and how each leaf is made of them."""

    manifest: Manifest
    options: LoadOptions
    allow_cast: bool
    wanted: list[Wanted] = field(default_factory=list)
    results: dict[int, Any] = field(default_factory=dict)
    _plain: dict[tuple[int, str, str], _Place] = field(default_factory=dict)

    # --- without like

    def plain(self, node: Node) -> Callable[[], Any]:
        """Everything under a node, as saved."""
        places = [self._plain_leaf(leaf) for _, leaf in self.manifest.leaves(node)]
        return lambda: rebuild_plain(node, (place() for place in places))

    def _plain_leaf(self, leaf: Array | Value) -> _Place:
        if isinstance(leaf, Value):
            return lambda: decode_value(leaf)
        key = (leaf.index, leaf.kind, leaf.detail)
        if key not in self._plain:
            self._plain[key] = self._once(self._plain_array(leaf))
        return self._plain[key]

    def _once(self, place: _Place) -> _Place:
        """The same object each time: tied weights stay tied."""
        made: list[Any] = []

        def once() -> Any:
            if not made:
                made.append(place())
            return made[0]

        return once

    def _plain_array(self, leaf: Array) -> _Place:
        entry = self.manifest.arrays[leaf.index]
        if leaf.kind in ("str", "bytes"):
            raw = self._want(leaf.index, NumpyTarget(entry.shape, entry.dtype))
            decode = (lambda b: b.decode("utf-8", "surrogatepass")) if leaf.kind == "str" else bytes
            return lambda: decode(raw().tobytes())
        framework = self._framework(leaf.kind)
        if framework == "torch":
            return self._plain_torch(leaf, entry)
        if framework == "jax":
            return self._plain_jax(leaf, entry)
        return self._want(leaf.index, NumpyTarget(entry.shape, entry.dtype))

    def _framework(self, kind: str) -> str:
        wanted = self.options.arrays
        if wanted == "saved":
            wanted = "jax" if kind == "jax_key" else kind
            return wanted if importlib.util.find_spec(wanted) else "numpy"
        if wanted not in ("numpy", "jax", "torch"):
            raise ValueError(f"arrays={wanted!r}: one of 'saved', 'numpy', 'jax' and 'torch'")
        return wanted

    def _plain_torch(self, leaf: Array, entry: ArrayEntry) -> _Place:
        from forebay.checkpoint import torch_arrays  # noqa: PLC0415 - only where PyTorch is wanted

        if entry.dtype not in torch_arrays.TORCH_DTYPES:
            return self._want(leaf.index, NumpyTarget(entry.shape, entry.dtype))
        tensor = self._want(leaf.index, torch_arrays.TorchTarget(None, entry.shape, entry.dtype))
        return lambda: torch_arrays.with_detail(tensor(), leaf.detail)

    def _plain_jax(self, leaf: Array, entry: ArrayEntry) -> _Place:
        from forebay.checkpoint import jax_arrays  # noqa: PLC0415 - only where JAX is wanted

        if not jax_arrays.has_dtype(entry.dtype):
            return self._want(leaf.index, NumpyTarget(entry.shape, entry.dtype))
        array = self._want(leaf.index, jax_arrays.JaxTarget(entry.shape, None, entry.dtype))
        return (lambda: jax_arrays.wrap_keys(array(), leaf.detail)) if leaf.kind == "jax_key" else array

    # --- with like

    def like(self, node: Node, like: Any, report: Report, allow_missing: bool) -> Callable[[], Any]:
        """The structure of `like` with the leaves under a node."""
        saved = dict(self.manifest.leaves(node))
        places: list[_Place] = []

        def encode(path: Path, leaf: Any) -> Node:
            if is_stateful(leaf):
                places.append(self._stateful(path, leaf, node, saved, report))
            else:
                places.append(self._like_leaf(path, leaf, saved, report))
            return Value("none")

        _, rebuild = flatten(like, encode, stateful_leaves=True)
        report.extra.extend(path for path in saved)
        return lambda: rebuild(iter([place() for place in places]))

    def _like_leaf(self, path: Path, leaf: Any, saved: dict[Path, Array | Value], report: Report) -> _Place:
        """Takes the entry from `saved`, so that what stays there is extra."""
        if path not in saved:
            report.missing.append(path)
            return lambda: leaf
        entry = saved.pop(path)
        try:
            return self._matched(leaf, entry)
        except _Different as difference:
            report.different.append((path, str(difference)))
            return lambda: leaf

    def _stateful(self, path: Path, obj: Any, node: Node, saved: dict[Path, Array | Value], report: Report) -> _Place:
        """An optimizer or the like: its own `load_state_dict` judges the state, which need not look like its present
        one.
        """
        for key in path:
            children = records.children_of(node)
            if key not in children:
                report.missing.append(path)
                return lambda: obj
            node = children[key]
        for below in [p for p in saved if p[: len(path)] == path]:
            del saved[below]
        state = self.plain(node)

        def load_state() -> Any:
            obj.load_state_dict(state())
            return obj

        return load_state

    def _matched(self, leaf: Any, saved: Array | Value) -> _Place:
        """Raises `_Different`."""
        if isinstance(saved, Value):
            return self._matched_value(leaf, saved)
        entry = self.manifest.arrays[saved.index]
        if saved.kind in ("str", "bytes") and type(leaf).__name__ == saved.kind:
            return self._plain_array(saved)
        if not is_array_like(leaf):
            raise _Different(f"`like` has {_kind(leaf)}, the checkpoint an array of {entry.dtype}{list(entry.shape)}")
        if is_jax_key(leaf):
            return self._matched_key(leaf, saved, entry)
        if saved.kind == "jax_key":
            raise _Different(f"the checkpoint has PRNG keys ({saved.detail}), `like` an array of {leaf.dtype}")
        return self._want(saved.index, self._target(leaf, entry))

    def _matched_value(self, leaf: Any, saved: Value) -> _Place:
        value = decode_value(saved)
        if value is None and callable(leaf):
            return lambda: leaf  # saved through a filter that put None in place of code
        if type(value) is type(leaf):
            return lambda: value
        numbers = isinstance(value, int | float | complex | np.generic)
        if numbers and self.allow_cast and isinstance(leaf, bool | int | float | complex):
            return lambda: type(leaf)(value)
        raise _Different(f"`like` has {_kind(leaf)}, the checkpoint {_kind(value)}")

    def _matched_key(self, leaf: Any, saved: Array, entry: ArrayEntry) -> _Place:
        from forebay.checkpoint import jax_arrays  # noqa: PLC0415 - only where JAX is wanted

        if saved.kind != "jax_key" or jax_arrays.key_dtype(saved.detail) != leaf.dtype:
            raise _Different(f"`like` has PRNG keys ({leaf.dtype}), the checkpoint {saved.kind} {saved.detail}")
        if entry.shape[: len(leaf.shape)] != tuple(leaf.shape):
            raise _Different(f"`like` has keys of shape {tuple(leaf.shape)}, the checkpoint {entry.shape[:-1]}")
        sharding = jax_arrays.key_sharding(leaf, entry.shape)
        data = self._want(saved.index, jax_arrays.JaxTarget(entry.shape, sharding, entry.dtype))
        return lambda: jax_arrays.wrap_keys(data(), saved.detail)

    def _target(self, leaf: Any, entry: ArrayEntry) -> Target:
        """Where an array goes that `like` wants as `leaf`. Raises `_Different`."""
        if tuple(leaf.shape) != entry.shape:
            raise _Different(f"shape {tuple(leaf.shape)} in `like`, {entry.shape} in the checkpoint")
        wanted = logical_dtype(leaf)
        if wanted is None or (wanted != entry.dtype and not (self.allow_cast and _castable(wanted, entry.dtype))):
            raise _Different(f"dtype {wanted or leaf.dtype} in `like`, {entry.dtype} in the checkpoint (allow_cast=True converts)")
        target = make_target(leaf, wanted)
        return target if wanted == entry.dtype else CastTarget(target, entry.dtype)

    # --- both

    def _want(self, array: int, target: Target) -> _Place:
        index = len(self.wanted)
        self.wanted.append(Wanted(array, target))
        return lambda: self.results[index]

    def fetch(self, location: Location, timeline: Timeline) -> None:
        """Read everything wanted; each target is finished as soon as it is full."""

        def finished(index: int) -> None:
            self.results[index] = self.wanted[index].target.finish()

        fetch(
            location, self.manifest, self.wanted, finished,
            memory_bytes=self.options.memory_bytes, threads=self.options.threads, timeline=timeline,
        )  # fmt: skip


class _Different(Exception):  # noqa: N818 - caught here and put into the report
    """An entry is not what `like` asks for."""


def _kind(leaf: Any) -> str:
    if is_array_like(leaf):
        return f"an array of {leaf.dtype}{list(leaf.shape)}"
    return "None" if leaf is None else f"{leaf!r:.40} ({type(leaf).__name__})"


def logical_dtype(leaf: Any) -> str | None:
    """The logical dtype of an array or of what stands for one."""
    torch = imported("torch")
    if torch is not None and isinstance(leaf.dtype, torch.dtype):
        from forebay.checkpoint import torch_arrays  # noqa: PLC0415 - only where the program uses PyTorch

        return torch_arrays.logical_dtype(leaf.dtype)
    return dtypes.dtype_name(np.dtype(leaf.dtype))


def _castable(wanted: str, saved: str) -> bool:
    """Whether numbers convert: not from or to bytes of other meaning."""
    return all(not name.startswith("numpy:") and name not in dtypes.TORCH_ONLY for name in (wanted, saved))


def make_target(leaf: Any, dtype: str) -> Target:
    """A target for an array of `like`: of JAX, PyTorch or NumPy, or with a shape and a dtype."""
    if is_torch(leaf):
        from forebay.checkpoint import torch_arrays  # noqa: PLC0415 - only where the program uses PyTorch

        return torch_arrays.TorchTarget(leaf, tuple(leaf.shape), dtype)
    jax = imported("jax")
    if is_jax(leaf) or (jax is not None and isinstance(leaf, jax.ShapeDtypeStruct)):
        from forebay.checkpoint import jax_arrays  # noqa: PLC0415 - only where the program uses JAX

        return jax_arrays.JaxTarget(tuple(leaf.shape), getattr(leaf, "sharding", None), dtype)
    return NumpyTarget(tuple(leaf.shape), dtype)


class CastTarget(Buffers):
    """Takes an array in its saved dtype and hands it on converted."""

    def __init__(self, target: Target, dtype: str) -> None:
        super().__init__(target.shape, dtype, target.boxes)
        self._target = target

    def finish(self) -> Any:
        """See `Target`."""
        for box in self.boxes:
            out = self._target.buffer(box)
            with np.errstate(over="ignore", invalid="ignore"):
                out[...] = self.buffer(box).astype(out.dtype)
        return self._target.finish()
