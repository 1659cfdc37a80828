"""What Orbax, Levanter, torch DCP and safetensors wrote, with those libraries as the writers."""

from __future__ import annotations

import collections
import datetime
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp1
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager
from jax.sharding import NamedSharding, PartitionSpec
from ranks import Ranks

import forebay
from forebay.checkpoint.foreign.zarr import chunk_boxes
from forebay.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, CheckpointMissing, FormatUnknown

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that are only the writers here


def same(a: Any, b: Any) -> bool:
    return np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --- safetensors


def test_a_safetensors_file_and_a_folder_of_them(tmp_path: Path) -> None:
    w = np.arange(24, dtype=np.float32).reshape(4, 6)
    b = np.arange(4).astype(ml_dtypes.bfloat16)
    empty = np.zeros((0, 3), np.int8)
    safetensors.numpy.save_file({"layer.w": w, "empty": empty}, tmp_path / "one.safetensors")
    in_torch = torch.from_numpy(b.view(np.int16)).view(torch.bfloat16)
    safetensors.torch.save_file({"layer.b": in_torch}, tmp_path / "two.safetensors", {"format": "pt"})
    loaded = forebay.load(tmp_path / "one.safetensors")
    assert list(loaded) == ["empty", "layer.w"] and same(loaded["layer.w"], w) and loaded["empty"].shape == (0, 3)
    both = forebay.load(tmp_path)
    assert isinstance(both["layer.b"], torch.Tensor) and same(both["layer.b"].view(torch.int16), b.view(np.int16))
    assert same(forebay.open(tmp_path)["layer.w"][1:3, ::2], w[1:3, ::2])
    sharding = NamedSharding(jax.make_mesh((2, 2), ("x", "y")), PartitionSpec("x", "y"))
    like = {"layer.w": jax.ShapeDtypeStruct((4, 6), np.float32, sharding=sharding)}
    onto = forebay.load(tmp_path, like, allow_extra=True)
    assert same(onto["layer.w"], w) and onto["layer.w"].sharding == sharding
    with pytest.raises(CheckpointMismatch, match=r"layer\.w"):
        forebay.load(tmp_path, {"layer.v": w, "layer.b": b, "empty": empty})


def test_a_module_takes_a_safetensors_file(tmp_path: Path) -> None:
    saved, fresh = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    safetensors.torch.save_file(saved.state_dict(), tmp_path / "model.safetensors")
    forebay.load(tmp_path, fresh)
    assert torch.equal(saved.weight, fresh.weight)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.numpy.save_file({"w": np.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointCorrupt, match="'w' is in two"):
        forebay.load(tmp_path)


def header(entry: Any) -> bytes:
    text = json.dumps({"w": entry}).encode() if not isinstance(entry, bytes) else entry
    return struct.pack("<Q", len(text)) + text


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 7, b"\xff" * 64, header(b"{"), header(b"[]"), header(GOOD), header(GOOD) + b"\0" * 9,
        header({**GOOD, "shape": [3]}) + b"\0" * 8, header({**GOOD, "dtype": "F33"}) + b"\0" * 8,
        header({**GOOD, "data_offsets": [0]}) + b"\0" * 8, header({"dtype": "F32"}) + b"\0" * 8,
        header({**GOOD, "shape": [-2], "data_offsets": [8, 0]}), header({**GOOD, "data_offsets": [-8, 0]}),
    ],
)  # fmt: skip
def test_malformed_safetensors_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises((CheckpointCorrupt, FormatUnknown), match=r"bad\.safetensors"):
        forebay.load(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_never_escapes_as_another_exception(tmp_path: Path, place: int, flip: int) -> None:
    raw = bytearray(safetensors.numpy.save({"w": np.arange(12, dtype=np.float32).reshape(3, 4), "v": np.ones(2, np.int8)}))
    raw[place % len(raw)] ^= flip
    (tmp_path / "m.safetensors").write_bytes(raw)
    try:
        forebay.load(tmp_path)
    except CheckpointError:
        pass


# --- Orbax

Point = collections.namedtuple("Point", "x y")


def orbax_tree() -> dict[str, Any]:
    mesh = jax.make_mesh((8,), ("x",))
    return {
        "sharded": jax.device_put(jnp.arange(128.0).reshape(16, 8), NamedSharding(mesh, PartitionSpec("x"))),
        "list": [jnp.ones((2, 3), jnp.bfloat16), jnp.arange(3)], "point": Point(jnp.ones(2), (jnp.zeros(3),)),
        "none": None, "empty": {}, "nothing": [], "tuple": (), "number": 7, "real": 2.5, "text": "hello", "key": jax.random.key(3),
    }  # fmt: skip


def check_orbax(loaded: Any, tree: dict[str, Any]) -> None:
    assert same(loaded["sharded"], tree["sharded"])
    assert same(loaded["list"][0], tree["list"][0]) and same(loaded["list"][1], tree["list"][1])
    assert same(loaded["point"]["x"], tree["point"].x) and same(loaded["point"]["y"][0], tree["point"].y[0])
    plain = {k: loaded[k] for k in ("none", "empty", "nothing", "tuple", "number", "real", "text")}
    assert plain == {k: tree[k] for k in plain}
    assert type(loaded["number"]) is int and type(loaded["real"]) is float
    assert jax.random.key_data(loaded["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()


@pytest.mark.parametrize("how", [{"use_ocdbt": True}, {"use_ocdbt": True, "use_zarr3": True}])
def test_orbax_v0(tmp_path: Path, how: dict[str, bool]) -> None:
    tree = orbax_tree()
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**how)).save(tmp_path / "c", tree)
    check_orbax(forebay.load(tmp_path / "c"), tree)
    sharding = NamedSharding(jax.make_mesh((2, 4), ("a", "b")), PartitionSpec("b", "a"))
    like = {"sharded": jax.ShapeDtypeStruct((16, 8), np.float32, sharding=sharding)}
    onto = forebay.load(tmp_path / "c", like, allow_extra=True)["sharded"]
    assert same(onto, tree["sharded"]) and onto.sharding == sharding
    assert same(forebay.open(tmp_path / "c")["sharded"][3:7, 1], np.asarray(tree["sharded"])[3:7, 1])
    assert same(forebay.load(tmp_path / "c", subtree="list")[1], tree["list"][1])


def test_orbax_v0_in_plain_files_and_a_lost_chunk(tmp_path: Path) -> None:
    tree = {"w": orbax_tree()["sharded"], "n": 3}
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(tmp_path / "c", tree)
    loaded = forebay.load(tmp_path / "c")
    assert same(loaded["w"], tree["w"]) and loaded["n"] == 3
    (tmp_path / "c" / "w" / "5.0").unlink()
    with pytest.raises(CheckpointCorrupt, match="'w'"):
        forebay.load(tmp_path / "c")


def test_orbax_manager_newest_and_by_step(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (2, 10):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(3, step)}))
        manager.wait_until_finished()
    assert forebay.load(tmp_path)["w"].tolist() == [10, 10, 10]
    assert forebay.load(tmp_path, step=2)["w"].tolist() == [2, 2, 2]
    assert forebay.open(tmp_path).step == 10
    with pytest.raises(CheckpointMissing, match="step 3"):
        forebay.load(tmp_path, step=3)


def test_orbax_composite_and_v1(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        items = {"params": ocp.args.StandardSave({"w": jnp.ones(3)}), "opt": ocp.args.StandardSave({"m": jnp.zeros(2)})}
        manager.save(1, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    loaded = forebay.load(tmp_path / "m")
    assert loaded["params"]["w"].tolist() == [1, 1, 1] and loaded["opt"]["m"].tolist() == [0, 0]
    tree = orbax_tree()
    ocp1.save(tmp_path / "v1", tree)
    check_orbax(forebay.load(tmp_path / "v1"), tree)


def test_an_orbax_save_that_did_not_finish_is_not_found(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(2, args=ocp.args.StandardSave({"w": jnp.ones(3)}))
        manager.wait_until_finished()
    shutil.copytree(tmp_path / "2", tmp_path / "9.orbax-checkpoint-tmp-123")
    assert forebay.open(tmp_path).step == 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=3).map(tuple), st.data())
def test_chunk_boxes_cover_exactly_once_on_the_grid(shape: tuple[int, ...], data: st.DataObject) -> None:
    chunk = tuple(data.draw(st.integers(1, 50)) for _ in shape)
    seen = np.zeros(shape, np.int32)
    for box in chunk_boxes(shape, chunk, 2**18):
        seen[box.within((0,) * len(shape))] += 1
        assert all(a % min(c, n) == 0 for a, c, n in zip(box.start, chunk, shape, strict=True))
    assert (seen == 1).all()


# --- Levanter


class Block(eqx.Module):
    w: jax.Array
    layers: list[jax.Array]
    activation: Any = eqx.field(static=True, default=jax.nn.relu)


def levanter_save(path: Path, tree: Any, step: int, when: datetime.datetime) -> None:
    """As `levanter.checkpoint.save_checkpoint` does: jax's manager, a path an array, then metadata.json."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    paths = [str(path.joinpath(*(str(getattr(k, "name", getattr(k, "idx", getattr(k, "key", k)))) for k in keys))) for keys, _ in leaves]
    manager = GlobalAsyncCheckpointManager()
    manager.serialize_with_paths([leaf for _, leaf in leaves], paths, on_commit_callback=lambda: None)
    manager.wait_until_finished()
    (path / "metadata.json").write_text(json.dumps({"step": step, "timestamp": when.isoformat(), "is_temporary": True}))


def levanter_state(seed: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    model = Block(jax.random.normal(keys[0], (4, 4)), [jax.random.normal(keys[1], (3,)), jax.random.normal(keys[2], (2, 2))])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return {"model": model, "opt": optimizer.init(eqx.filter(model, eqx.is_array)), "key": keys[0]}


def test_levanters_layout_onto_its_own_tree(tmp_path: Path) -> None:
    old, new, fresh = levanter_state(0), levanter_state(1), levanter_state(2)
    noon = datetime.datetime(2025, 6, 1, 12)
    levanter_save(tmp_path / "step-20", new, 20, noon)
    levanter_save(tmp_path / "step-100", old, 100, noon - datetime.timedelta(hours=1))
    loaded = forebay.load(tmp_path, fresh)
    assert jax.tree.all(jax.tree.map(same, loaded, new)), "the newest by time, as Levanter has it"
    assert loaded["model"].activation is jax.nn.relu
    plain = forebay.load(tmp_path / "step-100")
    assert same(plain["model"]["layers"][1], old["model"].layers[1])


# --- torch DCP


def test_dcp_of_one_process(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7, "name": "x", "list": [torch.ones(2), 3], "none": None,
        "turned": torch.arange(6.0).reshape(2, 3).t(), "bf16": torch.ones(3, dtype=torch.bfloat16), "betas": (0.9, 0.99),
    }  # fmt: skip
    dcp.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    loaded = forebay.load(tmp_path / "c")
    assert (loaded["step"], loaded["name"], loaded["none"], loaded["betas"], loaded["list"][1]) == (7, "x", None, (0.9, 0.99), 3)
    assert torch.equal(loaded["turned"], state["turned"]) and torch.equal(loaded["bf16"], state["bf16"])
    fresh = torch.nn.Linear(3, 2)
    again = torch.optim.AdamW(fresh.parameters())
    forebay.load(tmp_path / "c", {"model": fresh, "optim": again}, allow_extra=True)
    assert torch.equal(fresh.weight, model.weight)
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_dcp_of_several_ranks(tmp_path: Path) -> None:
    Ranks("foreign_work", "save_dcp", 2, "torch", str(tmp_path / "c")).wait()
    loaded = forebay.load(tmp_path / "c")
    assert torch.equal(loaded["w"], torch.arange(35.0).reshape(5, 7)) and torch.equal(loaded["b"], torch.ones(3))
    assert same(forebay.open(tmp_path / "c")["w"][2:4, 3], np.arange(35, dtype=np.float32).reshape(5, 7)[2:4, 3])


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/forebay-test-evil"),))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    marker = Path("/tmp/forebay-test-evil")
    marker.unlink(missing_ok=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointCorrupt, match="does not belong there"):
        forebay.load(tmp_path / "a")
    dcp.save({"evil": Evil(), "w": torch.ones(2)}, checkpoint_id=tmp_path / "b", no_dist=True)
    with pytest.raises(CheckpointCorrupt, match="'evil' cannot be read without running code"):
        forebay.load(tmp_path / "b")
    assert not marker.exists()


# --- a run that another program began


@pytest.mark.parametrize("own_step", [True, False])
def test_a_run_goes_on_from_another_programs_checkpoint(tmp_path: Path, own_step: bool) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(7, args=ocp.args.StandardSave({"w": jnp.full(3, 7.0)}))
        manager.wait_until_finished()
    place = tmp_path if own_step else tmp_path / "7"
    with forebay.Checkpointer(place, forebay.Every(steps=1)) as ckpt:
        state = ckpt.restore({"w": jnp.zeros(3)})
        assert state["w"].tolist() == [7, 7, 7] and ckpt.restored_step == (7 if own_step else None)
        assert ckpt.load_or_initialize(lambda: {"w": jnp.zeros(3)})["w"].tolist() == [7, 7, 7]
        ckpt.maybe_save(8, {"w": jnp.full(3, 8.0)})
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.restore({"w": jnp.zeros(3)})["w"].tolist() == [8, 8, 8] and ckpt.restored_step == 8


# --- what is not a checkpoint


def test_nothing_known_is_said_to_be_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "metadata.json").write_text('{"my": 1}')
    with pytest.raises(CheckpointMissing, match="none at all"):
        forebay.load(tmp_path)


def test_our_own_unfinished_checkpoint_is_not_taken_for_another_programs(tmp_path: Path) -> None:
    forebay.save({"w": np.ones(3)}, tmp_path, step=1)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(CheckpointMissing, match="only unfinished ones"):
        forebay.load(tmp_path)
