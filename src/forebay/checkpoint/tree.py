"""Trees of the user's containers, taken apart and put together again.

`flatten` walks dicts, lists, tuples, namedtuples, dataclasses, nodes registered with JAX (Equinox, Flax, optax), and
objects with `state_dict`/`load_state_dict` (torch modules, optimizers, schedulers). It hands each leaf with its path
to the caller, and returns the structure twice: as a record for the manifest, and as a function that puts the same
objects together around other leaves. Paths keep exact key types, so distinct trees have distinct paths. Frameworks are
looked at only if the program imported them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forebay.checkpoint.manifest import Array, Fields, Key, Mapping, Node, Path, Sequence, TypedKey, Value, path_text
from forebay.errors import CheckpointCorrupt, LeafRefused

Rebuild = Callable[[Iterator[Any]], Any]
"""Takes the leaves in flattening order, returns the object."""
EncodeLeaf = Callable[[Path, Any], Node]

_FACTORIES: dict[str, Any] = {"none": None, "list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str}
_DICTS: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
    **{f"defaultdict {name}": functools.partial(defaultdict, factory) for name, factory in _FACTORIES.items()},
}
"""How to make each kind of dict that comes back as it was, empty."""
_DICT_CLASSES = (dict, OrderedDict, Counter, defaultdict)


def flatten(tree: Any, encode_leaf: EncodeLeaf, *, stateful_leaves: bool = False) -> tuple[Node, Rebuild]:
    """The tree's record, and how to rebuild it. `encode_leaf(path, leaf)` gives each leaf's record, in `rebuild`'s
    order.

    `stateful_leaves`: objects for which `is_stateful` holds are leaves instead of being taken apart. Raises
    `LeafRefused`
    for a key or container that would not come back as it was, or that contains itself.
    """
    return _Flattener(encode_leaf, stateful_leaves).visit((), tree)


class _Flattener:
    def __init__(self, encode_leaf: EncodeLeaf, stateful_leaves: bool) -> None:
        self.encode_leaf, self.stateful_leaves = encode_leaf, stateful_leaves
        self.open_nodes: set[int] = set()

    def visit(self, path: Path, obj: Any) -> tuple[Node, Rebuild]:
        split = None if self.stateful_leaves and is_stateful(obj) else _split(path, obj)
        if split is None:
            return self.encode_leaf(path, obj), next
        if id(obj) in self.open_nodes:
            raise LeafRefused(path_text(path), "this container contains itself")
        self.open_nodes.add(id(obj))
        keys, children, node, rebuild = split
        visited = [self.visit((*path, key), child) for key, child in zip(keys, children, strict=True)]
        self.open_nodes.discard(id(obj))
        rebuilds = [child_rebuild for _, child_rebuild in visited]
        return node(tuple(n for n, _ in visited)), lambda leaves: rebuild([r(leaves) for r in rebuilds])


_Split = tuple[Iterable[Key], Iterable[Any], Callable[[tuple[Node, ...]], Node], Callable[[list[Any]], Any]]


def _split(path: Path, obj: Any) -> _Split | None:
    """A container's keys, children, record and inverse; None for a leaf."""
    cls = type(obj)
    if cls in _DICT_CLASSES:
        return _split_dict(path, obj)
    if cls is list or cls is tuple:
        return range(len(obj)), obj, lambda nodes: Sequence(nodes, cls.__name__), cls
    if obj is None or is_array_like(obj):
        return None
    if isinstance(obj, tuple) and hasattr(cls, "_fields"):
        return _split_fields("namedtuple", obj, cls._fields, list(obj), lambda children: cls(*children))
    return _split_pytree(path, obj) or _split_stateful(obj) or _split_dataclass(obj)


def is_array_like(obj: Any) -> bool:
    """Whether this is an array or stands for one: it has a dtype, and a shape that is a tuple (haliax's named arrays, which are
    nodes around one, have a dict).
    """
    return hasattr(obj, "dtype") and isinstance(getattr(obj, "shape", None), tuple)


def _split_dict(path: Path, obj: dict[Any, Any]) -> _Split:
    user_keys = list(obj)
    keys = tuple(encode_key(path, key) for key in user_keys)
    name = type(obj).__name__
    if isinstance(obj, defaultdict):
        known = [n for n, factory in _FACTORIES.items() if factory is obj.default_factory]
        if not known:
            raise LeafRefused(path_text(path), f"a defaultdict of {obj.default_factory!r} would not come back; convert it to a dict")
        name = f"defaultdict {known[0]}"

    def rebuild(children: list[Any]) -> Any:
        return fill_dict(name, zip(user_keys, children, strict=True))

    return keys, obj.values(), lambda nodes: Mapping(keys, nodes, name), rebuild


def fill_dict(kind: str, items: Iterable[tuple[Any, Any]]) -> Any:
    """A dict of a kind in `Mapping.type`, with its items in order."""
    filled = _DICTS.get(kind, dict)()
    for key, value in items:
        filled[key] = value  # `Counter.update` would add
    return filled


def _split_fields(kind: str, obj: Any, keys: Iterable[Key], children: list[Any], rebuild: Callable[[list[Any]], Any]) -> _Split:
    name, keys = f"{type(obj).__module__}.{type(obj).__qualname__}", tuple(keys)
    return keys, children, lambda nodes: Fields(kind, name, keys, nodes), rebuild


def _split_pytree(path: Path, obj: Any) -> _Split | None:
    """A node of a class registered with JAX, one level deep."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return None
    flat, treedef = jax.tree_util.tree_flatten_with_path(obj, is_leaf=lambda node: node is not obj)
    if len(flat) == 1 and not flat[0][0]:
        return None
    keys = [_pytree_key(path, steps[0]) for steps, _ in flat]
    return _split_fields("pytree", obj, keys, [child for _, child in flat], treedef.unflatten)


def _pytree_key(path: Path, step: Any) -> Key:
    """A JAX key path entry: `GetAttrKey.name`, `SequenceKey.idx`, or the `key` of `DictKey` and `FlattenedIndexKey`."""
    if hasattr(step, "name"):
        return str(step.name)
    if hasattr(step, "idx"):
        return int(step.idx)
    return int(step.key) if type(step).__name__ == "FlattenedIndexKey" else encode_key(path, getattr(step, "key", step))


def is_stateful(obj: Any) -> bool:
    """Whether this is an object with torch's `state_dict` and `load_state_dict` that is no module: an optimizer, a
    scheduler.

    The keys of a module's state are known from the module; those of an optimizer's appear with its first step.
    """
    return _has_state(obj) and not hasattr(obj, "named_parameters")


def _has_state(obj: Any) -> bool:
    return not isinstance(obj, type) and hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")


def _split_stateful(obj: Any) -> _Split | None:
    """An object with torch's `state_dict()` and `load_state_dict()`; its state's entries are its children."""
    if not _has_state(obj):
        return None
    state = obj.state_dict()
    if type(state) not in _DICT_CLASSES:
        state = dict(state)

    def rebuild(children: list[Any]) -> Any:
        loaded = dict(zip(state, children, strict=True))
        if any(loaded[key] is not state[key] for key in state):
            _load_state(obj, loaded)
        return obj

    return _split_fields("state_dict", obj, _state_keys(state), list(state.values()), rebuild)


def _state_keys(state: dict[Any, Any]) -> list[Key]:
    return [encode_key((), key) for key in state]


def _load_state(obj: Any, state: dict[Any, Any]) -> None:
    """A module whose parameters are on torch's meta device takes the loaded tensors themselves; others copy from
    them.
    """
    parameters = getattr(obj, "parameters", None)
    if parameters is not None and any(getattr(p, "is_meta", False) for p in (*parameters(), *obj.buffers())):
        obj.load_state_dict(state, assign=True)
    else:
        obj.load_state_dict(state)


def _split_dataclass(obj: Any) -> _Split | None:
    if not dataclasses.is_dataclass(obj) or isinstance(obj, type):
        return None
    names = [field.name for field in dataclasses.fields(obj)]

    def rebuild(children: list[Any]) -> Any:
        # Neither __init__ nor __post_init__ runs: they may compute, validate or refuse, and the fields are complete
        # already.
        rebuilt = object.__new__(type(obj))
        for name, child in zip(names, children, strict=True):
            object.__setattr__(rebuilt, name, child)
        return rebuilt

    return _split_fields("dataclass", obj, names, [getattr(obj, name) for name in names], rebuild)


def encode_key(path: Path, key: Any) -> Key:
    """A dict key as a step of a path. Raises `LeafRefused` for a type that would not come back."""
    if type(key) is str:
        if not key.isprintable() and any(0xD800 <= ord(c) < 0xE000 for c in key):
            raise LeafRefused(path_text(path), f"the dict key {key!r} holds a lone surrogate, which is not text")
        return key
    if key is None:
        return TypedKey("none", "")
    if type(key) in (int, bool, float, bytes):
        text = key.hex() if isinstance(key, float | bytes) else str(key) if abs(key) < 2**64 else hex(key)
        return TypedKey(type(key).__name__, text)
    if type(key) is tuple:
        parts = [encode_key(path, part) for part in key]
        return TypedKey("tuple", _tuple_text(parts))
    raise LeafRefused(
        path_text(path),
        f"dict key {key!r} is a {type(key).__name__}; str, int, bool, float, bytes, None and tuples of them come back",
    )


def _tuple_text(parts: list[Key]) -> str:
    return json.dumps([[part.kind, part.text] if isinstance(part, TypedKey) else part for part in parts], ensure_ascii=False)


def decode_key(key: Key) -> Any:
    """The dict key that a step stands for."""
    if not isinstance(key, TypedKey):
        return key
    match key.kind:
        case "none":
            return None
        case "int":
            return int(key.text, 0)
        case "bool":
            return key.text == "True"
        case "float":
            return float.fromhex(key.text)
        case "bytes":
            return bytes.fromhex(key.text)
        case "tuple":
            return tuple(decode_key(TypedKey(*p) if isinstance(p, list) else p) for p in json.loads(key.text))
    raise CheckpointCorrupt(f"a dict key of unknown kind {key.kind!r}")


def rebuild_plain(node: Node, leaves: Iterator[Any]) -> Any:
    """The tree of a record without the user's classes: those nodes become dicts of their fields."""
    if isinstance(node, Array | Value):
        return next(leaves)
    children = [rebuild_plain(child, leaves) for child in node.children]
    if isinstance(node, Sequence):
        return tuple(children) if node.type == "tuple" else children
    if isinstance(node, Fields) and node.kind == "pytree" and node.keys == tuple(range(len(children))):
        return children
    keys = [decode_key(key) for key in node.keys]
    return fill_dict(node.type if isinstance(node, Mapping) else "dict", zip(keys, children, strict=True))
