"""Trees and leaves: what comes apart goes together again, and distinct trees stay distinct."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.checkpoint.leaves import LeafCollector, decode_value, encode_value
from forebay.checkpoint.manifest import Key, Node, Path, Value, path_text
from forebay.checkpoint.names import array_names
from forebay.checkpoint.tree import decode_key, encode_key, flatten, rebuild_plain
from forebay.errors import CheckpointCorrupt, LeafRefused


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Config:
    w: Any
    n: int = 3


def collect(tree: Any) -> tuple[Node, list[tuple[Path, Any]], Any]:
    leaves: list[tuple[Path, Any]] = []

    def encode(path: Path, leaf: Any) -> Node:
        leaves.append((path, leaf))
        return Value("none")

    node, rebuild = flatten(tree, encode)
    return node, leaves, rebuild


keys = st.one_of(
    st.text(max_size=4), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.binary(max_size=3),
    st.tuples(st.integers(), st.text(max_size=2)),
)  # fmt: skip
trees = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3),
        st.builds(Point, inner, inner), st.builds(Config, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(collections.OrderedDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(lambda d: collections.defaultdict(list, d)),
        st.dictionaries(st.text(max_size=2), st.integers(), max_size=2).map(collections.Counter),
    ),
    max_leaves=12,
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(type(k) is type(m) and k == m and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Config):
        return same(a.w, b.w)
    return bool(a == b)


@given(trees)
def test_rebuild_gives_the_tree_back(tree: Any) -> None:
    _, leaves, rebuild = collect(tree)
    assert same(rebuild(iter([leaf for _, leaf in leaves])), tree)


@given(trees)
def test_paths_are_distinct_and_the_record_survives_json(tree: Any) -> None:
    node, leaves, _ = collect(tree)
    paths = [path for path, _ in leaves]
    assert len(set(paths)) == len(paths)
    assert msgspec.json.decode(msgspec.json.encode(node), type=Node) == node
    names = array_names(paths)
    assert len(set(names)) == len(names)


@given(trees, trees)
def test_distinct_trees_have_distinct_records(a: Any, b: Any) -> None:
    def record(tree: Any) -> bytes:
        collector = LeafCollector(1, 0)
        return msgspec.json.encode(flatten(tree, collector.encode)[0])

    assert (record(a) == record(b)) == same(a, b)


@given(keys)
def test_keys_come_back_exactly(key: Any) -> None:
    back = decode_key(msgspec.json.decode(msgspec.json.encode(encode_key((), key)), type=Key))
    assert type(back) is type(key) and back == key


def test_without_the_classes_nodes_are_dicts_of_their_fields() -> None:
    tree = {"p": Point(1, [2, (3,)]), "c": Config(4), 5: collections.OrderedDict(a=6)}
    node, leaves, _ = collect(tree)
    plain = rebuild_plain(node, iter([leaf for _, leaf in leaves]))
    assert plain == {"p": {"x": 1, "y": [2, (3,)]}, "c": {"w": 4, "n": 3}, 5: {"a": 6}}
    assert type(plain[5]) is collections.OrderedDict


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**63, 2**64, -(2**200), 10**6000, True, False, None, 0.1, -0.0, 1e-320, math.inf, 1 + 2j, complex(-0.0, math.inf), "", "å\0\n",
     b"", b"\x00\xff", np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.str_("abc"), np.datetime64("2020-01-01")],
    ids=lambda v: f"{type(v).__name__} {v!r:.20}" if not isinstance(v, int) or abs(v) < 10**10 else "large int",
)  # fmt: skip
def test_values_come_back_exactly(value: Any) -> None:
    record = encode_value(value)
    assert record is not None
    back = decode_value(msgspec.json.decode(msgspec.json.encode(record), type=Value))
    assert type(back) is type(value) and (back == value) and str(back if abs_small(back) else 0) == str(value if abs_small(value) else 0)


def abs_small(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) < 10**10


def test_nan_comes_back() -> None:
    record = encode_value(math.nan)
    assert record is not None and math.isnan(decode_value(record))


class Weekday(int):
    pass


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (object(), "would not come back"),
        (len, "is code, not state"),
        ({1, 2}, "a set would not"),
        (Weekday(1), "Weekday would not"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "dtype"),
        (np.ma.masked_array([1, 2]), "subclass of numpy.ndarray"),
        (range(3), "range would not"),
    ],
    ids=["object", "function", "set", "int-subclass", "object-array", "structured-array", "array-subclass", "range"],
)
def test_leaves_that_would_change_are_refused_by_name(leaf: Any, message: str) -> None:
    with pytest.raises(LeafRefused, match=message) as caught:
        flatten({"model": [0, {"w": leaf}]}, LeafCollector(1, 0).encode)
    assert caught.value.path == "model/1/w"


def test_keys_and_containers_that_would_change_are_refused_by_name() -> None:
    with pytest.raises(LeafRefused, match="model: dict key"):
        flatten({"model": {Point(1, 2): 0}}, LeafCollector(1, 0).encode)
    with pytest.raises(LeafRefused, match="lone surrogate"):
        flatten({"model": {"\ud800": 0}}, LeafCollector(1, 0).encode)
    with pytest.raises(LeafRefused, match="model: a defaultdict of"):
        flatten({"model": collections.defaultdict(lambda: 0)}, LeafCollector(1, 0).encode)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(LeafRefused, match="contains itself"):
        flatten({"model": loop}, LeafCollector(1, 0).encode)


def test_an_array_met_twice_is_stored_once() -> None:
    array = np.arange(3)
    collector = LeafCollector(1, 0)
    flatten({"a": array, "b": [array], "c": array.copy()}, collector.encode)
    assert collector.names() == ["a", "c"]


def test_names_are_the_dotted_paths_and_ordinary_ones_stay() -> None:
    paths: list[Path] = [("model", "layers", 0, "w"), ("model.layers.0.w",), ("model.layers.0.w~2",), (), ("__metadata__",)]
    names = array_names(paths)
    assert names[0] == "model.layers.0.w" and len(set(names)) == len(names)
    assert names[3:] == ["~", "__metadata__~2"]


def test_corrupt_values_are_reported() -> None:
    for value in (Value("int", "x"), Value("bool", "yes"), Value("bytes", "*"), Value("numpy", "float32 AAA"), Value("new", "1")):
        with pytest.raises(CheckpointCorrupt):
            decode_value(value)


def test_path_text() -> None:
    assert path_text(("a", 0, encode_key((), 1), encode_key((), ("x", 2)))) == 'a/0/[int 1]/[tuple ["x", ["int", "2"]]]'
