"""Levanter's interface: the behaviour that its own tests demand, and what Levanter wrote."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
import types
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from test_foreign import levanter_save

import forebay
from forebay.checkpoint import catalog
from forebay.errors import CheckpointMismatch
from forebay.levanter import (
    Checkpointer,
    CheckpointInterval,
    discover_latest_checkpoint,
    is_checkpoint_path,
    load_checkpoint,
    load_checkpoint_or_initialize,
    save_checkpoint,
)
from forebay.locations import open_location


@dataclasses.dataclass
class Info:
    step: int
    state: Any


class TrainerState(eqx.Module):
    step: jax.Array
    model: eqx.nn.MLP
    optimizer: Any = eqx.field(static=True)
    opt_state: Any
    key: jax.Array
    note: str
    count: int

    @property
    def saveable_state(self) -> TrainerState:
        return self


OPTIMIZER = optax.adam(1e-4)


def make_state(step: int, seed: int, note: str = "") -> TrainerState:
    key = jax.random.PRNGKey(seed)
    model = eqx.nn.MLP(2, 1, 2, 3, key=key)
    return TrainerState(jnp.array(step), model, OPTIMIZER, OPTIMIZER.init(eqx.filter(model, eqx.is_array)), key, note, seed)


def arrays(tree: Any) -> list[Any]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(arrays(a), arrays(b), strict=True))


def steps_in(path: Path) -> list[int]:
    return [item.step for item in catalog.list_steps(open_location(path))]


class Clock:
    def __init__(self) -> None:
        self.now = datetime.datetime(2021, 1, 1)

    def __call__(self) -> datetime.datetime:
        return self.now


def dummy(step: int) -> Info:
    return Info(step, {"w": jnp.full(2, step)})


RULES = [CheckpointInterval(2, 10), CheckpointInterval(5, 20), CheckpointInterval(10)]


def test_on_step_by_rules_and_time(tmp_path: Path) -> None:
    clock = Clock()
    ten_s = datetime.timedelta(seconds=10)
    checkpointer = Checkpointer(tmp_path, ten_s, RULES, dt_now_injection=clock)
    checkpointer.on_step(dummy(0))
    clock.now += ten_s
    checkpointer.on_step(dummy(1))
    checkpointer.wait_until_finished()
    assert steps_in(tmp_path) == [1]
    clock.now += datetime.timedelta(seconds=9)
    checkpointer.on_step(dummy(2))
    checkpointer.wait_until_finished()
    assert steps_in(tmp_path) == [2]
    for step in range(3, 50):
        checkpointer.on_step(dummy(step))
        clock.now += ten_s
    checkpointer.wait_until_finished()
    assert steps_in(tmp_path) == [2, 4, 6, 8, 10, 15, 20, 30, 40, 49]
    checkpointer.on_step(dummy(51), force=True)
    checkpointer.request_checkpoint()
    checkpointer.on_step(dummy(52))
    checkpointer.wait_until_finished()
    assert steps_in(tmp_path) == [2, 4, 6, 8, 10, 15, 20, 30, 40, 51, 52]


def test_old_temporary_ones_are_kept_if_asked(tmp_path: Path) -> None:
    for delete in (False, True):
        run = tmp_path / str(delete)
        save_checkpoint({"w": jnp.ones(2)}, 1, run / "step-00000001", is_temporary=True)
        checkpointer = Checkpointer(run, None, [CheckpointInterval(2)], delete_old_temp_checkpoints=delete)
        checkpointer.on_step(dummy(2))
        checkpointer.wait_until_finished()
        assert steps_in(run) == [1, 2], "a save outside of a Checkpointer names no run, so it is nobody's to delete"
    run = tmp_path / "own"
    clock = Clock()
    for step, delete in ((1, True), (2, False), (3, True)):
        checkpointer = Checkpointer(run, datetime.timedelta(seconds=1), [], dt_now_injection=clock, delete_old_temp_checkpoints=delete)
        clock.now += datetime.timedelta(seconds=2)
        checkpointer.on_step(dummy(step))
        checkpointer.wait_until_finished()
        assert steps_in(run) == {1: [1], 2: [1, 2], 3: [3]}[step]


def test_rules_out_of_order_are_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="until"):
        Checkpointer(tmp_path, None, [CheckpointInterval(2), CheckpointInterval(5)])


def test_a_state_comes_back_and_what_is_no_array_stays(tmp_path: Path) -> None:
    saved, other = make_state(10, 0, "saved"), make_state(2, 1, "other")
    called = []
    assert save_checkpoint(saved, 10, tmp_path, commit_callback=lambda: called.append(1)) == str(tmp_path) and called
    loaded = load_checkpoint(other, tmp_path, discover_latest=False)
    assert same(loaded, saved) and (loaded.note, loaded.count) == ("saved", 0)
    assert loaded.model.activation is other.model.activation
    model = load_checkpoint(other.model, tmp_path, subpath="model")
    assert same(model, saved.model)


def test_onto_a_mesh_from_shapes(tmp_path: Path) -> None:
    save_checkpoint({"w": jnp.arange(32.0).reshape(8, 4), "b": jnp.ones(3)}, 1, tmp_path)
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    like = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding), "b": jax.ShapeDtypeStruct((3,), jnp.float32)}
    loaded = load_checkpoint(like, tmp_path, mesh=mesh)
    assert loaded["w"].sharding == sharding and np.array_equal(loaded["w"], np.arange(32.0).reshape(8, 4))
    assert loaded["b"].sharding.is_fully_replicated and len(loaded["b"].sharding.device_set) == 8


def test_discovery(tmp_path: Path) -> None:
    assert discover_latest_checkpoint(tmp_path) is None and not is_checkpoint_path(tmp_path)
    for step in (10, 20, 30):
        save_checkpoint({"model": step, "other": "x"}, step, f"{tmp_path}/step-{step:08d}")
    assert discover_latest_checkpoint(str(tmp_path)) == f"{tmp_path}/step-00000030"
    assert discover_latest_checkpoint(f"{tmp_path}/step-00000010") == f"{tmp_path}/step-00000010"
    assert load_checkpoint({"model": 0}, tmp_path) == {"model": 30}
    (tmp_path / "step-00000030" / "manifest.json").unlink()
    assert discover_latest_checkpoint(tmp_path) == f"{tmp_path}/step-00000020"


def test_missing_arrays_and_other_shapes_are_errors_not_a_new_beginning(tmp_path: Path) -> None:
    save_checkpoint({"a": jnp.ones(3)}, 1, tmp_path)
    like = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    with pytest.raises(CheckpointMismatch, match=r"lacks 1 arrays.*\n    b"):
        load_checkpoint(like, tmp_path)
    partial = load_checkpoint(like, tmp_path, allow_partial=True)
    assert partial["a"].tolist() == [1, 1, 1] and partial["b"].tolist() == [0, 0]
    with pytest.raises(CheckpointMismatch, match="shape"):
        load_checkpoint({"a": jnp.zeros(4)}, tmp_path)
    with pytest.raises(CheckpointMismatch):
        load_checkpoint_or_initialize(lambda: {"a": jnp.zeros(4)}, tmp_path)()
    for discover in (True, False):
        with pytest.raises(FileNotFoundError):
            load_checkpoint(like, tmp_path / "nowhere", discover_latest=discover)


def test_load_or_initialize(tmp_path: Path) -> None:
    calls = []

    def init(seed: int) -> Any:
        calls.append(seed)
        return make_state(0, seed)

    fresh = load_checkpoint_or_initialize(init, tmp_path)(7)
    assert same(fresh, make_state(0, 7))
    with pytest.raises(FileNotFoundError):
        load_checkpoint_or_initialize(init, tmp_path, do_load=True)(7)
    saved = make_state(5, 3)
    save_checkpoint(saved, 5, tmp_path)
    loaded = load_checkpoint_or_initialize(init, tmp_path)(7)
    assert same(loaded, saved) and loaded.model.activation is fresh.model.activation
    assert same(load_checkpoint_or_initialize(init, tmp_path, do_load=False)(7), fresh)
    spec = jax.tree.map(lambda _: False, eqx.filter(fresh, eqx.is_array))
    spec = eqx.tree_at(lambda s: s.model, spec, jax.tree.map(lambda _: True, eqx.filter(fresh.model, eqx.is_array)))
    part = load_checkpoint_or_initialize(init, tmp_path, is_checkpointed=spec)(7)
    assert same(part.model, saved.model) and same(part.opt_state, fresh.opt_state) and int(part.step) == 0


def test_what_levanter_wrote(tmp_path: Path) -> None:
    saved, other = make_state(10, 0), make_state(2, 1)
    as_arrays = eqx.tree_at(lambda s: (s.count, s.note), saved, (jnp.asarray(41), None))
    levanter_save(tmp_path / "step-10", as_arrays, 10, datetime.datetime(2025, 1, 1))
    assert discover_latest_checkpoint(tmp_path) == f"{tmp_path}/step-10"
    loaded = load_checkpoint(other, tmp_path)
    assert same(loaded, saved) and loaded.count == 41 and type(loaded.count) is int
    assert json.loads((tmp_path / "step-10" / "metadata.json").read_text())["step"] == 10


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class NamedArray:
    """As haliax has it: a node around an array, whose `shape` is a dict."""

    array: Any
    axes: tuple[str, ...]

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(self.axes, self.array.shape, strict=True))

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def tree_flatten(self) -> Any:
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, axes: Any, leaves: Any) -> NamedArray:
        return cls(leaves[0], axes)


def test_named_arrays_and_axis_mappings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in, for haliax does not import under every JAX that we support."""
    haliax, partitioning = types.ModuleType("haliax"), types.ModuleType("haliax.partitioning")
    haliax.NamedArray = NamedArray
    partitioning.sharding_for_axis = lambda axes, mapping, mesh: NamedSharding(mesh, PartitionSpec(*map(mapping.get, axes)))
    monkeypatch.setitem(sys.modules, "haliax", haliax)
    monkeypatch.setitem(sys.modules, "haliax.partitioning", partitioning)
    tree = {"w": NamedArray(jnp.arange(32.0).reshape(8, 4), ("a", "b")), "n": 1}
    save_checkpoint(tree, 1, tmp_path)
    assert list(forebay.open(tmp_path)) == ["n", "w"], "the array itself has the name, as in Levanter's layout"
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    like = {"w": NamedArray(jax.ShapeDtypeStruct((8, 4), jnp.float32), ("a", "b")), "n": 0}
    loaded = load_checkpoint(like, tmp_path, axis_mapping={"a": "x", "b": "y"}, mesh=mesh)
    assert loaded["w"].axes == ("a", "b") and loaded["w"].array.sharding == NamedSharding(mesh, PartitionSpec("x", "y"))
    assert np.array_equal(loaded["w"].array, tree["w"].array) and loaded["n"] == 1
    assert np.array_equal(load_checkpoint(tree, tmp_path)["w"].array, tree["w"].array)
