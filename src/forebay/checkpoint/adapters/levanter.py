"""The checkpoint functions that Levanter's users know, with the same names, arguments and behaviour, on Forebay.

The behaviour is that of `levanter.checkpoint` (https://github.com/marin-community/marin). What differs, on purpose: strings
and bytes are kept; a shape or dtype that differs, and an array that is missing without `allow_partial`, is an error that
names it, and never a reason to begin anew; `manager` has nothing to do and is ignored. Checkpoints that Levanter wrote are
loaded as well.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import jax
import msgspec
import numpy as np

from forebay.checkpoint import api, catalog, dtypes
from forebay.checkpoint import checkpointer as forebay_checkpointer
from forebay.checkpoint.foreign.find import find
from forebay.checkpoint.groups import current_group
from forebay.checkpoint.leaves import decode_value
from forebay.checkpoint.manifest import MANIFEST_KEY, Array, Manifest, Node, Path, Value, children_of, path_text
from forebay.checkpoint.policy import Every
from forebay.checkpoint.read import find_node, load_tree, resolve_together
from forebay.checkpoint.tree import flatten
from forebay.checkpoint.write import SaveOptions, start_save
from forebay.errors import CheckpointMismatch, CheckpointMissing, ConfigError
from forebay.locations import Location

PathLike = str | os.PathLike[str]
_SCALARS = (bool, int, float, complex)
_MINUTE = datetime.timedelta(minutes=1)


@dataclasses.dataclass(frozen=True)
class CheckpointInterval:
    """Save permanently at multiples of `every`, up to step `until`."""

    every: int
    until: int | None = None


def save_checkpoint(
    tree: Any,
    step: int,
    checkpoint_path: PathLike,
    manager: Any = None,
    *,
    commit_callback: Callable[[], None] | None = None,
    is_temporary: bool = True,
) -> str:
    """Collective. Save arrays, numbers, strings and bytes of `tree` at `checkpoint_path`, its own folder, and wait.

    `commit_callback` is called when it is durable. A complete checkpoint there is replaced at the commit.
    """
    pending = start_save(
        api.as_location(checkpoint_path), savable(tree), step=int(step), group=current_group(), temporary=is_temporary,
        overwrite=True, blocking=True,
    )  # fmt: skip
    pending.wait()
    if commit_callback is not None:
        commit_callback()
    return os.fspath(checkpoint_path)


def savable(tree: Any) -> Any:
    """`tree` with None in the place of what is not state (functions and other objects), and haliax's named arrays as plain
    ones, which is how Levanter names them.
    """

    def keep(leaf: Any) -> Any:
        plain = isinstance(leaf, (*_SCALARS, str, bytes)) or _is_array(leaf)
        return leaf.array if is_named(leaf) else leaf if plain else None

    return jax.tree.map(keep, tree, is_leaf=is_named)


def is_named(node: Any) -> bool:
    """Whether this is a `haliax.NamedArray`."""
    haliax: Any = sys.modules.get("haliax")
    return haliax is not None and isinstance(node, haliax.NamedArray)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def discover_latest_checkpoint(checkpoint_path: PathLike) -> str | None:
    """The newest complete checkpoint: at `checkpoint_path` itself, or a step below it; None if there is none. Not collective."""
    location = api.as_location(checkpoint_path)
    try:
        folder = catalog.resolve_name(location)
    except CheckpointMissing:
        found = find(location)
        if found is None:
            return None
        folder = found.folder
    return os.path.join(os.fspath(checkpoint_path), folder) if folder else os.fspath(checkpoint_path)  # noqa: PTH118 - URLs too


def is_checkpoint_path(path: PathLike) -> bool:
    """Whether there is a complete checkpoint at `path` or below it."""
    return discover_latest_checkpoint(path) is not None


def load_checkpoint(
    tree: Any,
    checkpoint_path: PathLike,
    *,
    subpath: str | None = None,
    discover_latest: bool = True,
    axis_mapping: Any = None,
    mesh: jax.sharding.Mesh | None = None,
    allow_partial: bool = False,
) -> Any:
    """Collective. The arrays of `tree` (which may be `ShapeDtypeStruct`s) from a checkpoint, onto their shardings; other leaves
    are taken from the checkpoint if it has them of the same type, and kept if not.

    Without a sharding of its own an array is replicated over `mesh`; of a `NamedArray`, `axis_mapping` says the sharding.
    Extra entries of the checkpoint are ignored. With `allow_partial`, what it lacks is kept as it is in `tree`. Raises
    `FileNotFoundError` if there is no checkpoint, `CheckpointMismatch`, `CheckpointCorrupt`.
    """
    location = api.as_location(checkpoint_path)
    if not discover_latest and location.head(MANIFEST_KEY) is None:
        found = find(location)
        if found is None or found.folder:
            raise FileNotFoundError(f"there is no checkpoint at {location.url}")
    try:
        place, manifest = resolve_together(location, None, current_group())
    except CheckpointMissing as error:
        raise FileNotFoundError(str(error)) from error
    like = with_shardings(tree, axis_mapping, mesh)
    loaded = _load_onto(like, place, manifest, (subpath or "").replace(".", "/"), allow_partial)
    return jax.tree.map(lambda old, new: dataclasses.replace(old, array=new) if is_named(old) else new, tree, loaded, is_leaf=is_named)


def _load_onto(tree: Any, place: Location, manifest: Manifest, subtree: str, allow_partial: bool) -> Any:
    """Ask only for what both have: other leaves are None on both sides, and come from `tree` in the end."""
    node = find_node(manifest, subtree, place.url)
    saved = {tuple(map(_text, path)): leaf for path, leaf in manifest.leaves(node)}
    leaves: list[Any] = []
    wanted: list[Any] = []
    missing: list[str] = []
    left: set[Path] = set()

    def encode(path: Path, leaf: Any) -> Value:
        entry = saved.get(tuple(map(_text, path)))
        if entry is None and _is_array(leaf):
            missing.append(path_text(path))
        asked = _asked(leaf, entry, manifest)
        if asked is _LEFT:
            left.add(tuple(map(_text, path)))
        leaves.append(leaf)
        wanted.append(None if asked is _LEFT else asked)
        return Value("none")

    _, rebuild = flatten(tree, encode)
    if missing and not allow_partial:
        listed = "\n    ".join(missing[:50])
        raise CheckpointMismatch(f"{place.url} lacks {len(missing)} arrays (allow_partial=True keeps those of `tree`):\n    {listed}")
    pruned = msgspec.structs.replace(manifest, tree=_without(node, left))
    loaded = load_tree(place, pruned, rebuild(iter(wanted)), allow_missing=True, allow_extra=True)
    results: list[Any] = []

    def collect(path: Path, leaf: Any) -> Value:
        results.append(leaf)
        return Value("none")

    flatten(loaded, collect)
    return rebuild(_restored(old, asked, new) for old, asked, new in zip(leaves, wanted, results, strict=True))


_LEFT = object()


def _text(key: Any) -> str:
    return path_text((key,))


def _asked(leaf: Any, entry: Array | Value | None, manifest: Manifest) -> Any:
    """What to ask for in the place of a leaf; `_LEFT` if the checkpoint has nothing that fits one that is no array."""
    if _is_array(leaf):
        return leaf
    if isinstance(entry, Array):
        array = manifest.arrays[entry.index]
        if isinstance(leaf, _SCALARS) and array.shape == ():  # as Levanter saves numbers
            return np.zeros((), dtypes.numpy_dtype(array.dtype))
        return leaf if type(leaf).__name__ == entry.kind else _LEFT
    return leaf if entry is not None and type(leaf) is type(decode_value(entry)) else _LEFT


def _without(node: Node, left: set[Path], path: Path = ()) -> Node:
    """The record with None in some places."""
    if path in left:
        return Value("none")
    if isinstance(node, Array | Value):
        return node
    children = tuple(_without(child, left, (*path, _text(key))) for key, child in children_of(node).items())
    return msgspec.structs.replace(node, children=children)


def _restored(old: Any, asked: Any, new: Any) -> Any:
    if asked is None:
        return old
    return type(old)(new.item()) if isinstance(old, _SCALARS) and isinstance(new, np.ndarray) else new


def with_shardings(tree: Any, axis_mapping: Any, mesh: jax.sharding.Mesh | None) -> Any:
    """`tree` with plain arrays or shapes in place of named ones, and shardings where there are none yet: see `load_checkpoint`."""

    def sharded(node: Any) -> Any:
        if is_named(node) and axis_mapping is not None:
            partitioning: Any = import_module("haliax.partitioning")
            return _shape(node.array, partitioning.sharding_for_axis(node.axes, axis_mapping, mesh))
        leaf = node.array if is_named(node) else node
        if mesh is not None and _is_shape(leaf) and leaf.sharding is None:
            return _shape(leaf, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))  # type: ignore[no-untyped-call]
        return leaf

    return jax.tree.map(sharded, tree, is_leaf=is_named)


def _shape(leaf: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def load_checkpoint_or_initialize(
    init_fn: Callable[..., Any],
    checkpoint_path: PathLike,
    *,
    subpath: str | None = None,
    discover_latest: bool = True,
    axis_mapping: Any = None,
    mesh: jax.sharding.Mesh | None = None,
    is_checkpointed: Any = True,
    donate_args: Any = True,
    donate_kwargs: Any = None,
    do_load: bool | None = None,
    allow_partial: bool = False,
) -> Callable[..., Any]:
    """A function with `init_fn`'s arguments that loads the checkpoint if there is one, and calls `init_fn` for what it does not load.

    `is_checkpointed` (a bool, or a tree of bools or predicates that is a prefix of the state) says what is loaded. `do_load`: True
    demands a checkpoint, False ignores it. `donate_args` and `donate_kwargs` are accepted and not needed.
    """

    def load_or_init(*args: Any, **kwargs: Any) -> Any:
        shapes = jax.eval_shape(lambda: _arrays_only(init_fn(*args, **kwargs)))
        wanted = _filtered(shapes, is_checkpointed)
        loaded = None
        if do_load is not False:
            try:
                loaded = load_checkpoint(
                    wanted, checkpoint_path, subpath=subpath, discover_latest=discover_latest, axis_mapping=axis_mapping,
                    mesh=mesh, allow_partial=allow_partial,
                )  # fmt: skip
            except FileNotFoundError:
                if do_load is True:
                    raise
        made = jax.tree.leaves(loaded)
        if loaded is not None and len(made) == len(jax.tree.leaves(shapes)) and not any(map(_is_shape, made)):
            return _combined(init_fn, args, kwargs, loaded)
        state = init_fn(*args, **kwargs)
        return state if loaded is None else _merged(loaded, state)

    return load_or_init


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _arrays_only(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else None, tree)


def _filtered(tree: Any, spec: Any) -> Any:
    def choose(keep: Any, below: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf if (keep(leaf) if callable(keep) else keep) else None, below)

    return jax.tree.map(choose, spec, tree)


def _merged(loaded: Any, state: Any) -> Any:
    """Loaded arrays where there are some, else the leaves of `state`. Leaf by leaf, for two calls of `init_fn` may differ in
    what is static.
    """

    def is_none(leaf: Any) -> bool:
        return leaf is None

    new = jax.tree.leaves(loaded, is_leaf=is_none)
    old, structure = jax.tree.flatten(state, is_leaf=is_none)
    return jax.tree.unflatten(structure, [o if n is None or _is_shape(n) else n for n, o in zip(new, old, strict=True)])


def _combined(init_fn: Callable[..., Any], args: Any, kwargs: Any, loaded: Any) -> Any:
    """All arrays are loaded; what else `init_fn` makes is found by tracing it, so that nothing is computed."""
    rest: list[Any] = []

    def trace() -> None:
        state = init_fn(*args, **kwargs)
        rest.append(jax.tree.map(lambda leaf: None if _is_array(leaf) else leaf, state))

    jax.eval_shape(trace)
    return _merged(loaded, rest[0])


class Checkpointer:
    """Levanter's `Checkpointer`: `save_interval` (None: never) for temporary checkpoints, `step_policies` for permanent ones.

    `on_step(info)` takes what has `step` and `state` (its `saveable_state` is saved if it has one). `keep_params` is accepted and
    everything kept. `dt_now_injection` is the clock, for tests.
    """

    def __init__(
        self,
        base_path: PathLike,
        save_interval: datetime.timedelta | None,
        step_policies: Sequence[CheckpointInterval],
        *,
        keep_params: Any = True,
        dt_now_injection: Callable[[], datetime.datetime] | None = None,
        delete_old_temp_checkpoints: bool = True,
    ) -> None:
        self.base_path = os.fspath(base_path)
        minutes = save_interval / _MINUTE if save_interval else None
        try:
            rules = [Every(policy.every, minutes, policy.until) for policy in step_policies] or [Every(None, minutes)]
            now = dt_now_injection or datetime.datetime.now
            self._checkpointer = forebay_checkpointer.Checkpointer(
                base_path, rules, overwrite=True, save_options=SaveOptions(), clock=lambda: now().timestamp(),
                adopt_temporary=delete_old_temp_checkpoints,
            )  # fmt: skip
        except ConfigError as error:
            raise ValueError(str(error)) from error

    def load_checkpoint(self, state: Any, path: PathLike | None = None, **how: Any) -> Any:
        """`load_checkpoint`, of this run by default."""
        return load_checkpoint(state, path or self.base_path, **how)

    def load_model(self, model: Any, path: PathLike | None = None, **how: Any) -> Any:
        """The part `model` of a checkpoint."""
        return self.load_checkpoint({"model": model}, path, **how)["model"]

    def on_step(self, info: Any, force: bool = False) -> None:
        """Collective. Save if it is time, or permanently if forced."""

        def state() -> Any:
            return savable(getattr(info.state, "saveable_state", info.state))

        if force:
            self._checkpointer.save(int(info.step), state())
        else:
            self._checkpointer.maybe_save(int(info.step), make_state=state)

    def request_checkpoint(self) -> None:
        """Make the next `on_step` save. From any thread."""
        self._checkpointer.request_save()

    def wait_until_finished(self) -> None:
        """Until everything is durable and the old is deleted. Raises what went wrong."""
        self._checkpointer.wait()
