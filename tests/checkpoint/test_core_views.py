"""What we write opens in programs that know nothing of us, bit for bit: safetensors, TensorStore, Orbax, Levanter's way, transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import forebay
from forebay.checkpoint import views
from forebay.checkpoint.layout import Box
from forebay.checkpoint.manifest import Array as ArrayNode
from forebay.checkpoint.manifest import ArrayEntry, FileEntry, Manifest, Mapping, Piece
from forebay.checkpoint.views import ocdbt
from forebay.checkpoint.views.ocdbt import Extent, encode_database
from forebay.checkpoint.views.zarr import zarr_arrays

ts = pytest.importorskip("tensorstore")
# Orbax and JAX warn of their own deprecations and of asyncio's; what they say is not ours to mend.
foreign = pytest.mark.filterwarnings("ignore")


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "model": {"w": jnp.asarray(rng.standard_normal((64, 32)), jnp.float32), "b": jnp.arange(7, dtype=jnp.bfloat16)},
        "opt": [rng.integers(0, 9, 5), (jnp.float32(2), None)], "step": 3, "lr": 0.5, "flag": True, "name": "run",
        "big": rng.standard_normal((4096, 2304)), "c": np.arange(3) * 1j,
        "i4": np.arange(5).astype(ml_dtypes.int4), "e": {}, "none": None,
        "f8": np.ones(3, ml_dtypes.float8_e4m3b11fnuz),
        "u4": np.arange(5).astype(ml_dtypes.uint4), "date": np.array(["2020-01-01"], "M8[D]"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root, state = tmp_path_factory.mktemp("views"), tree()
    forebay.save(state, root, step=7)
    return root / "step-00000007", state


def at(state: Any, path: str) -> Any:
    for key in path.split("/"):
        state = state[int(key)] if isinstance(state, list | tuple) else state[key]
    return state


def open_zarr(root: Path, name: str) -> Any:
    kvstore = {"driver": "ocdbt", "base": f"file://{root}/", "path": name}
    return ts.open({"driver": "zarr3", "kvstore": kvstore}).result()


ARRAYS = ["model/w", "model/b", "opt/0", "opt/1/0", "big", "c", "i4", "f8"]


@pytest.mark.parametrize("path", ARRAYS)
@pytest.mark.parametrize("separator", ["/", "."])
def test_tensorstore_reads_arrays_by_both_names(saved: tuple[Path, dict[str, Any]], path: str, separator: str) -> None:
    root, state = saved
    opened = open_zarr(root, path.replace("/", separator))
    wanted = np.asarray(at(state, path))
    assert opened.dtype.numpy_dtype == wanted.dtype
    assert opened.read().result().tobytes() == wanted.tobytes()


def test_tensorstore_reads_a_part_of_a_large_array_by_chunks(saved: tuple[Path, dict[str, Any]]) -> None:
    root, state = saved
    opened = open_zarr(root, "big")
    assert opened.chunk_layout.read_chunk.shape == (2048, 2304)
    assert np.array_equal(opened[3000:3005, 7:9].read().result(), state["big"][3000:3005, 7:9])


@pytest.mark.parametrize(("path", "dtype"), [("step", np.int64), ("lr", np.float64), ("flag", np.bool_)])
def test_numbers_are_arrays_without_axes(saved: tuple[Path, dict[str, Any]], path: str, dtype: type) -> None:
    root, state = saved
    read = open_zarr(root, path).read().result()
    assert (read.shape, read.dtype, read[()]) == ((), dtype, state[path])


@pytest.mark.parametrize("path", ["u4", "date"])
def test_dtypes_that_zarr_lacks_are_shown_as_bytes(saved: tuple[Path, dict[str, Any]], path: str) -> None:
    root, state = saved
    read = open_zarr(root, path).read().result()
    assert read.dtype == np.uint8 and read.tobytes() == state[path].tobytes()


def test_safetensors_reads_every_array(saved: tuple[Path, dict[str, Any]]) -> None:
    root, state = saved
    (file,) = (root / "data").rglob("*.safetensors")
    with safe_open(file, "np") as opened:
        assert set(opened.keys()) == {p.replace("/", ".") for p in [*ARRAYS, "u4", "date"]}
        assert np.array_equal(opened.get_tensor("big"), state["big"])
    with safe_open(file, "pt") as opened:
        assert torch.equal(opened.get_tensor("model.b"), torch.arange(7, dtype=torch.bfloat16))
        assert opened.get_tensor("c").numpy().tobytes() == state["c"].tobytes()
        assert opened.get_tensor("i4").tolist() == state["i4"].view(np.uint8).tolist()
        assert opened.metadata()["format"] == "pt"


@foreign
def test_orbax_v0_restores(saved: tuple[Path, dict[str, Any]]) -> None:
    import orbax.checkpoint as ocp

    root, state = saved
    with ocp.PyTreeCheckpointer() as checkpointer:
        loaded = checkpointer.restore(root)
    assert (loaded["step"], loaded["lr"], loaded["flag"], loaded["name"], loaded["none"], loaded["e"]) == (3, 0.5, True, "run", None, {})
    for path in ARRAYS:
        assert np.asarray(at(loaded, path)).tobytes() == np.asarray(at(state, path)).tobytes(), path


@foreign
def test_orbax_v0_and_v1_restore_onto_devices(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp
    from orbax.checkpoint.experimental import v1

    # Orbax reads in threads of its own, where JAX has 64-bit types only if they are on for the whole process.
    narrow = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.complex128): np.complex64}
    state = {key: value for key, value in tree().items() if key not in ("name", "date", "u4", "flag")}
    state = jax.tree.map(lambda leaf: leaf.astype(narrow.get(leaf.dtype, leaf.dtype)) if isinstance(leaf, np.ndarray) else leaf, state)
    forebay.save(state, tmp_path / "c")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    def like(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows if leaf.shape[:1] in ((64,), (4096,)) else sharding)

    target = jax.tree.map(like, state)
    with ocp.StandardCheckpointer() as checkpointer:
        old = checkpointer.restore(tmp_path / "c", target)
    new = v1.load_pytree(tmp_path / "c", target)
    plain = v1.load_pytree(tmp_path / "c")
    for loaded in (old, new, plain):
        for path in ARRAYS:
            assert np.asarray(at(loaded, path)).tobytes() == np.asarray(at(state, path)).tobytes(), path
    assert old["model"]["w"].sharding == rows and new["model"]["w"].sharding == rows


def test_levanter_finds_its_marks_and_arrays(saved: tuple[Path, dict[str, Any]]) -> None:
    """As Levanter's loader goes about it: `metadata.json`, `manifest.json` and its fields, then zarr3 over OCDBT by slashed names."""
    root, _ = saved
    mark = json.loads((root / "metadata.json").read_text())
    assert mark["step"] == 7 and mark["is_temporary"] is False and "timestamp" in mark
    manifest = json.loads((root / "manifest.json").read_text())
    assert (manifest["format_version"], manifest["array_driver"], manifest["kvstore_driver"]) == (1, "zarr3", "ocdbt")
    by_path = {entry["path"]: entry for entry in manifest["arrays"]}
    assert by_path["model/w"] == {"path": "model/w", "shape": [64, 32], "dtype": "float32", "chunk_shape": [64, 32]}
    kvstore = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{root}/"}).result()
    keys = {key.decode() for key in kvstore.list().result()}
    assert all(f"{path}/zarr.json" in keys for path in by_path)


@foreign
def test_transformers_loads_a_saved_model(tmp_path: Path) -> None:
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=31, n_positions=8)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    forebay.save(model.state_dict(), tmp_path / "c")
    config.save_pretrained(tmp_path / "c")
    loaded, report = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    tokens = torch.arange(6)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


def test_names_that_meet_are_left_out_rather_than_mixed_up(tmp_path: Path) -> None:
    state = {"a.b": np.ones(2), "a": {"b": np.zeros(2)}, "x/y": np.ones(3), "x": {"y": np.zeros(3)}, "w": np.ones(4)}
    forebay.save(state, tmp_path / "c")
    assert not (tmp_path / "c/_METADATA").exists(), "Orbax would restore one value in both places"
    kvstore = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path}/c/"}).result()
    names = {key.decode().removesuffix("/zarr.json") for key in kvstore.list().result() if key.endswith(b"zarr.json")}
    assert names == {"a/b", "x.y", "w"}
    assert np.array_equal(open_zarr(tmp_path / "c", "a/b").read().result(), np.zeros(2))


def manifest_of(shape: tuple[int, ...], pieces: list[Box], stored: tuple[int, ...], root: Path) -> tuple[Manifest, np.ndarray[Any, Any]]:
    """A manifest whose array's pieces are written one after another into a file."""
    array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    data, entries = b"", []
    for box in pieces:
        padded = np.zeros(stored, np.float32)
        part = array[box.within((0,) * len(shape))]
        padded[tuple(slice(0, n) for n in part.shape)] = part
        entries.append(Piece(0, len(data), box.start, stored, (0,)))
        data += padded.tobytes()
    (root / "data").mkdir()
    (root / "data/x").write_bytes(data)
    entry = ArrayEntry("w", "float32", shape, tuple(entries))
    made = Manifest(
        "a" * 12, 1, 0.0, "test", 2**22, Mapping(("w",), (ArrayNode(0, "numpy"),)), (entry,), (FileEntry("data/x", len(data), 0, ""),)
    )
    return made, array


def test_padded_edges_are_read_right(tmp_path: Path) -> None:
    boxes = [Box((a, b), (min(3, 10 - a), min(4, 6 - b))) for a in (0, 3, 6, 9) for b in (0, 4)]
    manifest, array = manifest_of((10, 6), boxes, (3, 4), tmp_path)
    for key, data in views.view_objects(manifest).items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(data)
    assert np.array_equal(open_zarr(tmp_path, "w").read().result(), array)


def test_an_irregular_array_has_no_zarr_view(tmp_path: Path) -> None:
    manifest, _ = manifest_of((4,), [Box((0,), (1,)), Box((1,), (3,))], (4,), tmp_path)
    assert zarr_arrays(manifest) == []
    assert "manifest.ocdbt" not in views.view_objects(manifest)


def open_database(root: Path, entries: dict[bytes, bytes | Extent]) -> Any:
    manifest, nodes = encode_database(entries, "d/nodes", bytes(range(16)), 1_700_000_000_000)
    (root / "d").mkdir(exist_ok=True)
    (root / "d/nodes").write_bytes(nodes)
    (root / "manifest.ocdbt").write_bytes(manifest)
    return ts.KvStore.open({"driver": "ocdbt", "base": f"file://{root}/"}).result()


def test_a_database_of_several_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorStore lists and reads every key of a tree that is four levels high."""
    monkeypatch.setattr(ocdbt, "NODE_BYTES", 2000)
    (tmp_path / "x").write_bytes(bytes(range(256)) * 40)
    entries: dict[bytes, bytes | Extent] = {}
    for number in range(6000):
        key = f"model/layer{number // 100:03d}/w{number % 100}/c/0/{number}".encode()
        entries[key] = Extent("x", number, number % 700) if number % 2 else str(number).encode()
    kvstore = open_database(tmp_path, entries)
    assert sorted(kvstore.list().result()) == sorted(entries)
    for key in list(entries)[::61]:
        value = entries[key]
        wanted = (bytes(range(256)) * 40)[value.offset :][: value.size_bytes] if isinstance(value, Extent) else value
        assert kvstore.read(key).result().value == wanted
    assert kvstore.read(b"model/layer").result().state == "missing"


@settings(max_examples=25, deadline=None)
@given(entries=st.dictionaries(st.binary(min_size=0, max_size=12), st.binary(max_size=30), min_size=1, max_size=60))
def test_any_keys_and_values(tmp_path_factory: pytest.TempPathFactory, entries: dict[bytes, bytes]) -> None:
    kvstore = open_database(tmp_path_factory.mktemp("db"), entries)
    assert sorted(kvstore.list().result()) == sorted(entries)
    assert {key: kvstore.read(key).result().value for key in entries} == entries


def test_views_may_be_written_again(tmp_path: Path) -> None:
    forebay.save({"w": np.ones(3)}, tmp_path / "c")
    before = {p.name: p.read_bytes() for p in (tmp_path / "c").rglob("*") if p.is_file()}
    opened = forebay.open(tmp_path / "c")
    (tmp_path / "c/manifest.ocdbt").unlink()
    views.write(opened.location, opened.manifest)
    assert {p.name: p.read_bytes() for p in (tmp_path / "c").rglob("*") if p.is_file()} == before


def test_without_views_there_are_two_objects(tmp_path: Path) -> None:
    forebay.save({"w": np.ones(3)}, tmp_path / "c", options=forebay.SaveOptions(views=False))
    assert sorted(p.name for p in (tmp_path / "c").rglob("*") if p.is_file()) == ["h00000-0.safetensors", "manifest.json"]
