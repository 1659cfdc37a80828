"""Saving and loading over every kind of location: each leaf comes back as it was, into any layout, and damage is seen."""

from __future__ import annotations

import collections
import glob
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import torch
from fake_s3 import FakeS3
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import forebay
from forebay.checkpoint import dtypes
from forebay.checkpoint.stage import Staging
from forebay.checkpoint.write import SaveOptions, start_save
from forebay.errors import (
    CheckpointCorrupt,
    CheckpointExists,
    CheckpointMismatch,
    CheckpointMissing,
    FormatUnknown,
    LeafRefused,
)
from forebay.locations import Location, open_location
from forebay.locations.s3 import S3

MESH = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))


@pytest.fixture(params=["folder", "memory", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    if request.param == "folder":
        yield open_location(tmp_path / "run")
    elif request.param == "memory":
        yield open_location(f"memory://{uuid.uuid4().hex}/run")
    else:
        with FakeS3() as fake:
            yield S3("bucket", "run", **fake.options)


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if dtype.itemsize == 1 and dtype.name[:3] in ("int", "uin", "boo") and dtype.name != "uint8":
        low = -1 if dtype.name.startswith("int") else 0
        return rng.integers(low, 2, shape).astype(dtype)
    raw = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return raw if dtype.kind not in "mM" else raw.copy()


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return False
        return torch.equal(a.detach().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8)) if a.numel() else True
    if isinstance(a, jax.Array):
        if not isinstance(b, jax.Array) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and bool(a == b)


NUMPY_DTYPES = [*sorted(dtypes._PLAIN), *dtypes._ML, "numpy:>f4", "numpy:<M8[ns]", "numpy:<U3", "numpy:|S5", "numpy:|V3"]


def test_every_numpy_dtype(run: Location) -> None:
    rng = np.random.default_rng(0)
    tree = {name: [random_array(rng, dtypes.numpy_dtype(name), shape) for shape in ((5, 3), (), (0, 2))] for name in NUMPY_DTYPES
            if name != "numpy:<U3"}  # fmt: skip
    tree["numpy:<U3"] = [np.array(["abc", "å", ""])]
    forebay.save(tree, run, step=1)
    assert equal(forebay.load(run), tree)
    assert equal(forebay.load(run, like=tree), tree)


@pytest.mark.filterwarnings("ignore:.*support is experimental:UserWarning")  # torch's own, of its complex32 kinds
def test_every_torch_dtype(run: Location) -> None:
    from forebay.checkpoint.torch_arrays import TORCH_DTYPES

    generator = torch.Generator().manual_seed(0)
    tree: dict[str, Any] = {}
    for name, dtype in TORCH_DTYPES.items():
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if name == "bool" else 256, (6 * size,), dtype=torch.uint8, generator=generator)
        tree[name] = [raw.view(dtype).reshape(2, 3), raw[:size].view(dtype)[0], torch.empty((0, 3), dtype=dtype)]
    tree["grad"] = [
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
    ]
    tree["views"] = [torch.arange(12.0).reshape(3, 4).T, torch.arange(10)[::2], torch.ones(3, dtype=torch.complex64).conj()]
    forebay.save(tree, run)
    assert equal(forebay.load(run), {**tree, "views": [t.contiguous().resolve_conj() for t in tree["views"]]})


def test_every_jax_dtype(run: Location) -> None:
    with jax.enable_x64(True):
        names = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
 "float64",
                 "complex64", "complex128", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz",
                 "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn"]  # fmt: skip
        tree = {name: [jnp.ones((3, 2), name), jnp.zeros((), name), jnp.zeros((0, 4), name)] for name in names}
        tree["keys"] = [jax.random.key(3), jax.random.split(jax.random.key(1, impl="rbg"), 4)]
    forebay.save(tree, run)
    assert equal(forebay.load(run), tree)


def test_leaves_and_containers_of_all_kinds(run: Location) -> None:
    tree = {
        "values": [None, True, 1, 10**30, 0.1, 1j, "å", b"\0", np.float32(2), np.bool_(False)],
        "long": ["x" * 10_000 + "\ud800", b"\xff" * 10_000],
        "empty": [{}, [], (), collections.OrderedDict()],
        1: {"1": np.arange(3)}, "a.b": np.ones(2), "a": {"b": np.zeros(2)},
        "od": collections.OrderedDict(z=np.ones(1), a=jnp.ones(1)), None: 1, (1, "x"): 2, 2.5: 3, b"k": 4,
    }  # fmt: skip
    forebay.save(tree, run, step=0, metadata={"loss": 0.5})
    assert equal(forebay.load(run), tree)
    assert equal(forebay.load(run, like=tree), tree)
    assert forebay.open(run).metadata == {"loss": 0.5}


def test_a_single_leaf_is_a_tree(run: Location) -> None:
    forebay.save(np.arange(4), run)
    assert np.array_equal(forebay.load(run), np.arange(4))
    forebay.save({}, run.child("empty"))
    assert forebay.load(run.child("empty")) == {}


def test_blocks_and_parts_larger_than_one(run: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    tree = {"w": rng.standard_normal((3000, 1500)), "odd": rng.bytes(5_000_003), "t": rng.standard_normal((2100, 1111)).T,
            "s": np.frombuffer(rng.bytes(3 * 3_000_001), "S3")}  # fmt: skip
    forebay.save(tree, run)
    assert equal(forebay.load(run, options=forebay.LoadOptions(memory_bytes=9 * 2**20)), {**tree, "t": np.ascontiguousarray(tree["t"])})


def sharded(array: np.ndarray[Any, Any], *spec: Any) -> jax.Array:
    return jax.device_put(array, NamedSharding(MESH, P(*spec)))


@pytest.mark.parametrize("saved", [(), ("x",), ("x", "y"), (None, "x"), (("x", "y"),), ("y", "x")], ids=str)
def test_any_sharding_loads_into_any_other(tmp_path: Path, saved: tuple[Any, ...]) -> None:
    array = np.random.default_rng(2).standard_normal((64, 24)).astype(np.float32)
    forebay.save({"w": sharded(array, *saved)}, tmp_path / "c")
    for spec in [(), ("x",), ("x", "y"), (None, "y"), (None, ("x", "y"))]:
        for like in (
            sharded(np.zeros_like(array), *spec),
            jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(MESH, P(*spec))),
        ):
            loaded = forebay.load(tmp_path / "c", like={"w": like})["w"]
            assert loaded.sharding.is_equivalent_to(NamedSharding(MESH, P(*spec)), 2)
            assert np.array_equal(np.asarray(loaded), array)
    plain = forebay.load(tmp_path / "c", like={"w": jax.ShapeDtypeStruct(array.shape, array.dtype)})["w"]
    assert np.array_equal(np.asarray(plain), array)
    header = next(iter(Path(tmp_path / "c/data").rglob("*.safetensors"))).read_bytes()[8:4096]
    assert b'"w":' in header, "one process holds all of it, so it is stored as one tensor"


def test_sharded_keys(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(5), 8)
    placed = jax.device_put(keys, NamedSharding(MESH, P("x")))
    forebay.save({"k": placed}, tmp_path / "c")
    loaded = forebay.load(tmp_path / "c", like={"k": placed})["k"]
    assert loaded.sharding.is_equivalent_to(placed.sharding, 1) and equal(loaded, keys)
    assert equal(forebay.load(tmp_path / "c", like={"k": jax.eval_shape(lambda: keys)})["k"], keys)
    with pytest.raises(CheckpointMismatch, match="PRNG keys"):
        forebay.load(tmp_path / "c", like={"k": jax.random.split(jax.random.key(5, impl="rbg"), 8)})
    with pytest.raises(CheckpointMismatch, match="PRNG keys"):
        forebay.load(tmp_path / "c", like={"k": jnp.zeros((8, 2), jnp.uint32)})


def test_equinox_and_optax(tmp_path: Path) -> None:
    model = eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    optimizer = optax.adamw(1e-3)
    state = {"model": arrays, "opt": optimizer.init(arrays), "step": jnp.int32(7)}
    forebay.save(state, tmp_path / "c")
    blank = jax.tree.map(jnp.zeros_like, state)
    loaded = forebay.load(tmp_path / "c", like=blank)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert all(map(equal, jax.tree.leaves(loaded), jax.tree.leaves(state)))
    whole_model = forebay.load(tmp_path / "c", like=eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(1)), subtree="model")
    assert np.array_equal(whole_model(jnp.ones(4)), model(jnp.ones(4)))
    plain = forebay.load(tmp_path / "c")
    assert set(plain["model"]) >= {"layers"} and plain["step"] == 7
    with pytest.raises(LeafRefused, match=r"activation.*eqx.filter"):
        forebay.save(model, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_torch_modules_and_optimizers(run: Location) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    forebay.save({"model": model, "opt": optimizer, "sched": scheduler}, run)
    assert sum(entry.name.startswith("model") for entry in forebay.open(run).manifest.arrays) == 7, "the tied weight is stored once"

    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
    other[2].weight = other[0].weight
    weight = other[0].weight
    fresh = torch.optim.AdamW(other.parameters())
    loaded = forebay.load(run, like={"model": other, "opt": fresh, "sched": torch.optim.lr_scheduler.StepLR(fresh, 9)})
    assert loaded["model"] is other and other[0].weight is weight and other[2].weight is weight
    assert all(equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert loaded["sched"].step_size == 3
    assert equal(fresh.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])

    with torch.device("meta"):
        meta = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
    forebay.load(run, like=meta, subtree="model")
    assert all(equal(a.detach(), b.detach()) for a, b in zip(model.state_dict().values(), meta.state_dict().values(), strict=True))
    state = forebay.load(run, subtree="model")
    assert state["0.weight"] is state["2.weight"]


def test_tensors_are_filled_in_place_whatever_their_layout(tmp_path: Path) -> None:
    values = torch.randn(6, 5)
    forebay.save({"a": values, "b": values.clone(), "c": values.clone()}, tmp_path / "c")
    like = {"a": torch.zeros(6, 5), "b": torch.zeros(5, 6).T, "c": torch.zeros(12, 5)[::2]}
    loaded = forebay.load(tmp_path / "c", like=like)
    assert all(loaded[k] is like[k] and torch.equal(like[k], values) for k in like)


def test_frameworks_convert_into_each_other(tmp_path: Path) -> None:
    forebay.save({"j": jnp.ones(3, jnp.bfloat16), "t": torch.ones(3), "n": np.ones(3, np.int16)}, tmp_path / "c")
    assert all(type(v) is np.ndarray for v in forebay.load(tmp_path / "c", options=forebay.LoadOptions(arrays="numpy")).values())
    assert all(isinstance(v, torch.Tensor) for v in forebay.load(tmp_path / "c", options=forebay.LoadOptions(arrays="torch")).values())
    assert all(isinstance(v, jax.Array) for v in forebay.load(tmp_path / "c", options=forebay.LoadOptions(arrays="jax")).values())
    like = {"j": torch.zeros(3, dtype=torch.bfloat16), "t": np.zeros(3, np.float32), "n": jnp.zeros(3, jnp.int16)}
    loaded = forebay.load(tmp_path / "c", like=like)
    assert isinstance(loaded["j"], torch.Tensor) and type(loaded["t"]) is np.ndarray and isinstance(loaded["n"], jax.Array)


def test_one_report_of_all_differences(tmp_path: Path) -> None:
    tree = {"model": {"layer0": {"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3)}, "step": 1}, "opt": np.ones(2)}
    forebay.save(tree, tmp_path / "c")
    like = {"model": {"layer0": {"kernel": np.ones((3, 2), np.float32), "biass": np.ones(3)}, "step": 1.5}, "opt": np.ones(2, np.float32)}
    with pytest.raises(CheckpointMismatch) as caught:
        forebay.load(tmp_path / "c", like=like)
    text = str(caught.value)
    assert "model/layer0/biass  (nearest: model/layer0/bias)" in text
    assert "model/layer0/bias  (nearest: model/layer0/biass)" in text
    assert "model/layer0/kernel: shape (3, 2) in `like`, (2, 3) in the checkpoint" in text
    assert "model/step: `like` has 1.5 (float), the checkpoint 1 (int)" in text
    assert "opt: dtype float32 in `like`, float64 in the checkpoint (allow_cast=True converts)" in text


def test_a_mismatch_changes_nothing(tmp_path: Path) -> None:
    forebay.save({"a": torch.ones(3), "b": torch.ones(4)}, tmp_path / "c")
    like = {"a": torch.zeros(3), "b": torch.zeros(5)}
    with pytest.raises(CheckpointMismatch):
        forebay.load(tmp_path / "c", like=like)
    assert torch.equal(like["a"], torch.zeros(3))


def test_allowances(tmp_path: Path) -> None:
    forebay.save({"a": np.array([1.7, 300.0]), "n": 3, "extra": 1}, tmp_path / "c")
    default = np.zeros(2)
    with pytest.raises(CheckpointMismatch):
        forebay.load(tmp_path / "c", like={"a": default, "new": default}, allow_missing=True)
    loaded = forebay.load(tmp_path / "c", like={"a": default, "new": default, "n": 0}, allow_missing=True, allow_extra=True)
    assert loaded["new"] is default and loaded["n"] == 3
    cast = forebay.load(tmp_path / "c", like={"a": jnp.zeros(2, jnp.bfloat16), "n": 0.0, "extra": 0}, allow_cast=True)
    assert cast["a"].dtype == jnp.bfloat16 and cast["a"][1] == 300 and cast["n"] == 3.0 and type(cast["n"]) is float
    forebay.load(tmp_path / "c", like={"a": torch.zeros(2, dtype=torch.float16), "n": 0, "extra": 0}, allow_cast=True)


def test_subtrees(tmp_path: Path) -> None:
    forebay.save({"model": {"a": np.ones(2), "b/c": 4, "l": [1, {"x": np.zeros(1)}]}, "a.b": 5}, tmp_path / "c")
    assert equal(forebay.load(tmp_path / "c", subtree="model/l/1"), {"x": np.zeros(1)})
    assert forebay.load(tmp_path / "c", subtree="model/b/c") == 4
    assert equal(forebay.load(tmp_path / "c", subtree="model/a", like=np.zeros(2)), np.ones(2))
    with pytest.raises(CheckpointMissing, match=r"no 'l/7' under 'model'|no '7' under 'model/l'"):
        forebay.load(tmp_path / "c", subtree="model/l/7")


def test_open_reads_only_the_blocks_needed() -> None:
    array = np.arange(3000 * 1024, dtype=np.float32).reshape(3000, 1024)
    with FakeS3() as fake:
        location = S3("bucket", "run", **fake.options)
        forebay.save({"model": {"w": array}, "n": 4}, location)
        opened = forebay.open(location)
        stored = opened["model/w"]
        assert (stored.shape, stored.dtype, opened["n"], opened["model"]["w"].nbytes) == ((3000, 1024), np.float32, 4, array.nbytes)
        fake.reset_requests()
        assert np.array_equal(stored[128:256], array[128:256])
        assert len(fake.requests) == 1, fake.requests
        for index in (
            0,
            -1,
            (5, 6),
            (slice(None), 3),
            (..., slice(4, 900, 7)),
            slice(10, 2, -3),
            slice(5, 5),
            (slice(2999, None), ...),
            ...,
        ):
            assert np.array_equal(stored[index], array[index]), index
        for bad in ((0, 0, 0), 3000, (..., ...), [1, 2], None, slice(0, 1.5)):
            with pytest.raises((IndexError, TypeError)):
                stored[bad]
        assert np.array_equal(np.asarray(stored), array)
        assert list(opened) == ["model/w", "n"] and "n" in opened and len(opened) == 2
        with pytest.raises(CheckpointMissing):
            opened["model/x"]


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_a_flipped_bit_is_named_on_full_and_partial_reads(tmp_path: Path) -> None:
    array = np.zeros((4096, 1024), np.float32)
    forebay.save({"ok": np.ones(10), "w": array}, tmp_path / "c")
    (path,) = glob.glob(f"{tmp_path}/c/data/*/*")
    flip(path, os.path.getsize(path) // 2)
    for read in (lambda: forebay.load(tmp_path / "c"), lambda: forebay.load(tmp_path / "c", like={"ok": np.ones(10), "w": array}),
                 lambda: forebay.open(tmp_path / "c")["w"][2000:2100], lambda: forebay.open(tmp_path / "c")["w"][:, 5]):  # fmt: skip
        with pytest.raises(CheckpointCorrupt, match=r"array 'w': bytes \d+ to \d+ of .*h00000-0.safetensors fail their checksum"):
            read()
    assert np.array_equal(forebay.open(tmp_path / "c")["w"][:500], array[:500])
    assert np.array_equal(forebay.open(tmp_path / "c")["ok"][...], np.ones(10))


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    forebay.save({"w": np.ones(3), "n": 1}, tmp_path / "c")
    path = tmp_path / "c/manifest.json"
    good = path.read_text()
    for text, error in [(good[:-40], CheckpointCorrupt), (good.replace('"text":"1"', '"text":"2"'), CheckpointCorrupt),
                        ("{}", CheckpointCorrupt),
                        (good.replace('"version":1', '"version":2'), FormatUnknown),
                        (good.replace('"forebay.checkpoint"', '"other"'), FormatUnknown)]:  # fmt: skip
        assert text != good
        path.write_text(text)
        with pytest.raises(error, match=r"manifest\.json"):
            forebay.load(tmp_path / "c")


def test_a_truncated_data_file_is_an_error(tmp_path: Path) -> None:
    forebay.save({"w": np.ones(3_000_000)}, tmp_path / "c")
    (path,) = glob.glob(f"{tmp_path}/c/data/*/*")
    os.truncate(path, os.path.getsize(path) - 5)
    with pytest.raises(forebay.errors.LocationError, match="ends"):
        forebay.load(tmp_path / "c")


def test_saving_over_a_checkpoint(run: Location) -> None:
    forebay.save({"a": np.ones(3)}, run, step=5)
    with pytest.raises(CheckpointExists, match="overwrite=True"):
        forebay.save({"a": np.zeros(3)}, run, step=5)
    assert equal(forebay.load(run), {"a": np.ones(3)})
    forebay.save({"a": np.zeros(4)}, run, step=5, overwrite=True)
    assert equal(forebay.load(run, step=5), {"a": np.zeros(4)})
    assert len([e for e in run.walk() if e.key.endswith(".safetensors")]) == 1


def test_steps(run: Location) -> None:
    with pytest.raises(CheckpointMissing, match="none at all"):
        forebay.load(run)
    for step in (1, 20, 3):
        forebay.save({"step": step}, run, step=step)
    assert forebay.load(run) == {"step": 20}
    assert forebay.load(run, step=3) == {"step": 3}
    assert run.get("LATEST")[0] == b"step-00000003"
    with pytest.raises(CheckpointMissing, match=r"step 4 was looked for, found those of steps 1, 3, 20"):
        forebay.load(run, step=4)
    run.delete(["step-00000020/manifest.json"])
    assert forebay.load(run) == {"step": 3}


def test_numpy_and_torch_state_may_be_changed_when_save_async_returns(run: Location) -> None:
    rng = np.random.default_rng(3)
    arrays = {"n": rng.standard_normal((1000, 9000)), "t": torch.randn(3000, 1000), "small": np.ones(3)}
    wanted = {"n": arrays["n"].copy(), "t": arrays["t"].clone(), "small": np.ones(3)}
    pending = forebay.save_async(arrays, run, options=SaveOptions(memory_bytes=64 * 2**20))
    arrays["n"][:] = 0
    arrays["t"].zero_()
    arrays["small"][:] = 0
    assert pending.wait(60).step is None
    assert equal(forebay.load(run), wanted)


def test_donated_jax_arrays_are_saved_as_they_were(tmp_path: Path) -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(4_000_000, dtype=jnp.float32)
    pending = forebay.save_async({"x": x}, tmp_path / "c")
    y = step(step(x))
    pending.wait(60)
    assert np.array_equal(forebay.load(tmp_path / "c")["x"], np.arange(4_000_000, dtype=np.float32))
    assert y[0] == 2


def test_saves_share_their_staging_memory(tmp_path: Path) -> None:
    staging = Staging(64 * 2**20)
    pending = [
        start_save(open_location(tmp_path / f"{i}"), {"w": torch.full((5_000_000,), float(i))}, step=i, staging=staging) for i in range(4)
    ]
    for i, save in enumerate(pending):
        save.wait(60)
        assert forebay.load(tmp_path / f"{i}")["w"][-1] == i
    assert staging._arena.free_slots == staging._shape[1]


def test_the_timeline_tells_what_was_done(tmp_path: Path) -> None:
    import json

    pending = forebay.save_async({"w": np.ones(1_000_000)}, tmp_path / "c")
    pending.wait(60)
    totals = pending.timeline.totals()
    assert totals["upload"].size_bytes > 8_000_000 and {"plan", "stage", "commit"} <= set(totals)
    assert "upload" in pending.timeline.text()
    events = json.loads(pending.timeline.perfetto())["traceEvents"]
    assert any(event["name"].startswith("upload") and event["args"]["bytes"] > 0 for event in events)


def test_importing_forebay_is_light() -> None:
    import subprocess
    import sys

    code = "import sys, forebay; assert not {'numpy', 'jax', 'torch', 'obstore', 'msgspec'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = ("import sys, tempfile, numpy, forebay; d = tempfile.mkdtemp(); forebay.save({'a': numpy.ones(2)}, d); forebay.load(d); "
            "assert not {'jax', 'torch', 'tensorstore'} & set(sys.modules)")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ml_dtypes_table_is_complete() -> None:
    known = {name for name in dir(ml_dtypes) if name[0].islower() and isinstance(getattr(ml_dtypes, name), type)}
    assert known - {"finfo", "iinfo"} == set(dtypes._ML)


EXIT = """
import sys, numpy as np, forebay
from forebay.locations.folder import Folder
class Slow(Folder):
    def upload(self, *args):
        import time
        time.sleep(0.3)
        if sys.argv[2] == "fail":
            raise forebay.errors.LocationFull("upload", "x", "no space")
        return super().upload(*args)
forebay.save_async({"w": np.ones(9_000_000)}, Slow(sys.argv[1]))
print("main ends", flush=True)
"""


@pytest.mark.parametrize("outcome", ["succeed", "fail"])
def test_a_program_that_ends_finishes_its_saves(tmp_path: Path, outcome: str) -> None:
    import subprocess
    import sys

    code = EXIT if outcome == "succeed" else EXIT.replace("np.ones(9_000_000)", "np.ones(9)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c"), outcome], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "main ends\n"), done.stderr
    if outcome == "succeed":
        assert done.stderr == "" and forebay.load(tmp_path / "c")["w"].sum() == 9_000_000
    else:
        assert "a save failed and nobody asked how it ended: upload x: no space" in done.stderr
