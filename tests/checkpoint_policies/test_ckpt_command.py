"""`forebay ckpt …` as people and scripts run it, and the modules behind it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import Failing, Place

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.checkpointer import Checkpointer
from forebay.checkpoint.compare import compare
from forebay.checkpoint.convert import convert
from forebay.checkpoint.read import read_manifest
from forebay.checkpoint.transfer import copy_checkpoint
from forebay.checkpoint.verify import verify
from forebay.cli import main
from forebay.errors import CheckpointCorrupt, CheckpointExists, FormatUnknown, LocationError
from forebay.locations import open_location


def tree(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "model": {"w": rng.normal(size=(300, 700)).astype(np.float32), "b": rng.normal(size=65).astype(ml_dtypes.bfloat16)},
        "tokens": np.arange(2_100_000, dtype=np.int32), "empty": np.zeros((0, 3)), "step": 3, "name": "run", "odd": np.ones(5, np.int8),
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    first = tree()
    forebay.save(first, path, step=3)
    first["model"]["w"][7, :3] += 0.5
    first["step"] = 4
    del first["odd"]
    forebay.save({**first, "new": np.ones(2)}, path, step=4)
    return path


def ask(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, Any]:
    code = main(["ckpt", *map(str, words), "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else out.err


def test_ls_and_show(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, rows = ask(capsys, "ls", run)
    assert code == 0 and [(r["step"], r["state"], r["arrays"]) for r in rows] == [(3, "complete", 5), (4, "complete", 5)]
    code, shown = ask(capsys, "show", run, "--step", 3, "--under", "model")
    assert (shown["step"], shown["writer"][:7]) == (3, "forebay")
    leaves = [(leaf["path"], leaf["type"], leaf["shape"]) for leaf in shown["leaves"]]
    assert leaves == [("w", "float32", [300, 700]), ("b", "bfloat16", [65])]
    for words in (["ls", run], ["show", run]):
        assert main(["ckpt", *map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert "model/w" in printed and "bfloat16" in printed and "complete" in printed
    assert main(["ckpt", "ls", str(tmp_path)]) == 1
    assert main(["ckpt", "show", str(tmp_path)]) == 1
    assert main(["ckpt", "show", str(run), "--step", "9"]) == 1
    assert "those of steps 3, 4" in capsys.readouterr().err


def test_ls_tells_temporary_and_unfinished_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, tree(), temporary=True)
    (tmp_path / "step-00000002" / "data").mkdir(parents=True)
    code, rows = ask(capsys, "ls", tmp_path)
    assert code == 0 and [(r["step"], r["state"], r.get("why")) for r in rows] == [(1, "temporary", "forced"), (2, "unfinished", None)]


def test_verify_says_yes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = ask(capsys, "verify", run)
    assert code == 0 and verdict["good"] and verdict["blocks"] >= 6 and not verdict["damages"]


@pytest.mark.parametrize("where", ["header", "array", "cut", "longer", "gone"])
def test_verify_names_the_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str) -> None:
    saved = tree()
    forebay.save(saved, tmp_path / "c")
    (path,) = (tmp_path / "c" / "data").rglob("*.safetensors")
    raw = bytearray(path.read_bytes())
    if where == "gone":
        path.unlink()
    elif where in ("cut", "longer"):
        path.write_bytes(raw[:-1] if where == "cut" else raw + b"\0")
    else:
        place = 40 if where == "header" else raw.index(saved["tokens"][1_500_000:1_500_010].tobytes()) + 2
        raw[place] ^= 4
        path.write_bytes(raw)
    code, verdict = ask(capsys, "verify", tmp_path / "c")
    (damage,) = verdict["damages"]
    assert code == 1 and not verdict["good"]
    if where == "array":
        assert damage["array"] == "tokens" and damage["first"] <= place < damage["last"] <= damage["first"] + 4 * 2**20
    else:
        assert {"header": "header", "cut": "want", "longer": "want", "gone": "missing"}[where] in damage["what"]
    assert main(["ckpt", "verify", str(tmp_path / "c")]) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.data())
def test_verify_finds_any_changed_byte(tmp_path: Path, data: st.DataObject) -> None:
    location = open_location(tmp_path / "c")
    if location.head("manifest.json") is None:
        forebay.save({"a": np.arange(1000, dtype=np.int16), "b": {"c": np.ones(3), "d": np.ones(5, np.int8)}}, location)
    (path,) = (tmp_path / "c" / "data").rglob("*.safetensors")
    raw = path.read_bytes()
    changed = bytearray(raw)
    changed[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    try:
        assert verify(location, read_manifest(location)[0]).damages
    finally:
        path.write_bytes(raw)
    assert not verify(location, read_manifest(location)[0]).damages


def test_diff_says_what_and_how_much(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = ask(capsys, "diff", run, "@4", "--step", 3)
    found = {d["path"]: d for d in report["differences"]}
    assert code == 1 and report["equal"] == 4
    assert {path: d["status"] for path, d in found.items()} == {"model/w": "changed", "step": "changed", "odd": "first", "new": "second"}
    assert (found["model/w"]["changed_count"], found["model/w"]["count"]) == (3, 210_000)
    assert found["model/w"]["max_difference"] == pytest.approx(0.5)
    assert found["step"]["detail"] == "3 → 4"
    assert main(["ckpt", "diff", str(run), "@4", "--step", "3"]) == 1
    assert "only in the second" in capsys.readouterr().out
    assert main(["ckpt", "diff", str(run), str(run / "step-00000004")]) == 0


def test_diff_reads_nothing_where_checksums_prove_equality(tmp_path: Path) -> None:
    saved = tree()
    forebay.save(saved, tmp_path / "a")
    forebay.save({"before": np.ones(1234), **saved}, tmp_path / "b")  # other offsets, so other blocks
    first, second = forebay.open(tmp_path / "a"), forebay.open(tmp_path / "b")
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(b"")
    assert {d.path: d.status for d in compare(first, second)} == {**dict.fromkeys(first, "equal"), "before": "second"}


def test_diff_of_other_shapes_kinds_and_odd_numbers(tmp_path: Path) -> None:
    nan = np.array([np.nan, 1.0, np.inf, -0.0])
    forebay.save({"x": np.ones(3), "y": 1, "z": nan, "d": np.array(["2025-01-01"], "M8[D]"), "c": np.ones(2, np.complex64)}, tmp_path / "a")
    forebay.save({"x": np.ones(4), "y": np.ones(1), "z": np.add(nan, [0, 1, 0, 0]), "d": np.array(["2025-01-02"], "M8[D]"),
                  "c": np.array([1, 1 + 2j], np.complex64)}, tmp_path / "b")  # fmt: skip
    found = {d.path: d for d in compare(forebay.open(tmp_path / "a"), forebay.open(tmp_path / "b"))}
    assert found["x"].status == found["y"].status == "other" and found["x"].detail == "float64[3] → float64[4]"
    assert (found["z"].changed_count, found["z"].max_difference) == (2, 1.0), "-0.0 + 0 is 0.0, which has other bits"
    assert (found["d"].changed_count, found["d"].max_difference) == (1, None)
    assert found["c"].max_difference == 2.0


def test_cp_checks_every_byte_and_makes_it_permanent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path / "a") as ckpt:
        ckpt.save(7, tree(), temporary=True)
    code, _ = ask(capsys, "cp", tmp_path / "a", tmp_path / "b")
    assert code == 0
    copied = open_location(tmp_path / "b" / "step-00000007")
    manifest, _ = read_manifest(copied)
    assert not manifest.temporary and not verify(copied, manifest).damages
    assert np.array_equal(forebay.load(tmp_path / "b")["tokens"], tree()["tokens"])
    assert main(["ckpt", "cp", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "is a complete checkpoint already" in capsys.readouterr().err
    code, _ = ask(capsys, "cp", tmp_path / "a", tmp_path / "c", "--exact", "--keep-temporary")
    assert code == 0 and read_manifest(open_location(tmp_path / "c"))[0].temporary


@pytest.mark.parametrize("operation", ["part", "put"])
def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, operation: str) -> None:
    forebay.save(tree(), tmp_path / "a")
    source = open_location(tmp_path / "a")
    target = Place(tmp_path / "b", Failing(operation))
    with pytest.raises(LocationError, match="503"):
        copy_checkpoint(source, read_manifest(source)[0], target)
    assert not [path for path in (tmp_path / "b").rglob("*") if path.is_file()]


def test_a_damaged_checkpoint_is_not_copied(tmp_path: Path) -> None:
    forebay.save(tree(), tmp_path / "a")
    (path,) = (tmp_path / "a" / "data").rglob("*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    source = open_location(tmp_path / "a")
    with pytest.raises(CheckpointCorrupt, match="verify"):
        copy_checkpoint(source, read_manifest(source)[0], open_location(tmp_path / "b"))
    assert not [path for path in (tmp_path / "b").rglob("*") if path.is_file()]


def test_two_copies_to_one_place_leave_one_whole(tmp_path: Path) -> None:
    forebay.save(tree(), tmp_path / "a")
    source = open_location(tmp_path / "a")
    manifest, _ = read_manifest(source)

    def meanwhile(operation: str, key: str) -> None:
        if operation == "put" and key == "manifest.json":
            copy_checkpoint(source, manifest, open_location(tmp_path / "b"))

    with pytest.raises(CheckpointExists, match="meanwhile"):
        copy_checkpoint(source, manifest, Place(tmp_path / "b", meanwhile))
    copied = open_location(tmp_path / "b")
    assert not verify(copied, read_manifest(copied)[0]).damages


def test_convert_to_safetensors_and_back(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = ask(capsys, "convert", run, tmp_path / "s", "--to", "safetensors", "--step", 3, "--shard-bytes", 2**20)
    assert code == 0 and report["left_out"] == ["step", "name"]
    want = tree()
    index = json.loads((tmp_path / "s" / "model.safetensors.index.json").read_text())
    flat = {}
    for name in sorted(set(index["weight_map"].values())):
        flat |= safetensors.numpy.load_file(tmp_path / "s" / name)
    assert len(set(index["weight_map"].values())) == 3 and set(flat) == set(index["weight_map"])
    assert flat["model.w"].tobytes() == want["model"]["w"].tobytes() and flat["tokens"].tobytes() == want["tokens"].tobytes()
    assert flat["model.b"].tobytes() == want["model"]["b"].tobytes() and flat["empty"].shape == (0, 3)
    assert ask(capsys, "convert", tmp_path / "s", tmp_path / "f", "--to", "forebay")[0] == 0
    back = forebay.open(tmp_path / "f")
    assert back.metadata["converted_from"] == "safetensors" and not verify(back.location, back.manifest).damages
    assert all(d.status == "equal" for d in compare(back, forebay.open(tmp_path / "s")))


@pytest.mark.filterwarnings("ignore")
def test_convert_to_orbax_and_dcp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tree()
    del saved["empty"]  # Orbax refuses it
    forebay.save(saved, tmp_path / "c")
    assert ask(capsys, "convert", tmp_path / "c", tmp_path / "orbax", "--to", "orbax")[0] == 0
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "orbax")
    assert np.asarray(restored["model"]["w"]).tobytes() == saved["model"]["w"].tobytes() and restored["name"] == "run"
    assert ask(capsys, "convert", tmp_path / "c", tmp_path / "dcp", "--to", "dcp")[0] == 0
    state = {"tokens": torch.zeros(2_100_000, dtype=torch.int32), "model": {"b": torch.zeros(65, dtype=torch.bfloat16)}, "step": 0}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert state["step"] == 3 and torch.equal(state["tokens"], torch.arange(2_100_000, dtype=torch.int32))
    assert state["model"]["b"].view(torch.int16).numpy().tobytes() == saved["model"]["b"].tobytes()
    assert all(d.status == "equal" for d in compare(forebay.open(tmp_path / "c"), forebay.open(tmp_path / "dcp")))


def test_convert_refuses_what_would_be_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forebay.save({"q": np.ones(4, ml_dtypes.int4)}, tmp_path / "c")
    with pytest.raises(FormatUnknown, match="no dtype for 'q'"):
        convert(forebay.open(tmp_path / "c"), open_location(tmp_path / "s"), "safetensors")
    forebay.save({"w": np.ones(4)}, tmp_path / "w")
    assert main(["ckpt", "convert", str(tmp_path / "w"), str(tmp_path / "c"), "--to", "dcp"]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main(["ckpt", "convert", str(tmp_path / "w"), str(tmp_path / "x"), "--to", "npz"]) == 2


def test_convert_streams_a_jax_key_and_tied_arrays(tmp_path: Path) -> None:
    shared = np.arange(6.0)
    forebay.save({"a": shared, "b": shared, "key": jax.random.key(5)}, tmp_path / "c")
    convert(forebay.open(tmp_path / "c"), open_location(tmp_path / "d"), "forebay")
    loaded = forebay.load(tmp_path / "d")
    assert len(forebay.open(tmp_path / "d").manifest.arrays) == 2 and loaded["a"] is loaded["b"]
    assert jax.random.key_data(loaded["key"]).tolist() == jax.random.key_data(jax.random.key(5)).tolist()


def test_rm_asks_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        forebay.save({"w": np.ones(2)}, tmp_path, step=step)
    assert main(["ckpt", "rm", str(tmp_path)]) == 2
    assert main(["ckpt", "rm", str(tmp_path), "--step", "9", "-y"]) == 1
    code, report = ask(capsys, "rm", tmp_path, "--step", 1, "--step", 3, "--yes")
    assert code == 0 and report["removed"] == ["step-00000001", "step-00000003"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["step-00000002"]
    assert main(["ckpt", "rm", str(tmp_path / "step-00000002"), "-y"]) == 0
    assert catalog.list_steps(open_location(tmp_path)) == []


def test_gc_removes_the_dead_and_spares_the_living(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"w": np.ones(2)}, temporary=True)
    forebay.save({"w": np.ones(2)}, tmp_path, step=5)
    dead, live = (tmp_path / f"step-{n:08d}" / "data" / "abc" for n in (2, 6))
    for folder in (dead, live):
        folder.mkdir(parents=True)
        (folder / "h00000-0.safetensors").write_bytes(b"x")
    long_ago_s = time.time() - 3 * 86_400
    for path in [*dead.rglob("*"), *(tmp_path / "step-00000001").rglob("*")]:
        os.utime(path, (long_ago_s, long_ago_s))
    assert ask(capsys, "gc", tmp_path, "--dry-run")[1]["temporary"] == ["step-00000001"]
    assert len(catalog.list_steps(open_location(tmp_path))) == 2
    code, report = ask(capsys, "gc", tmp_path)
    assert code == 0 and report["temporary"] == ["step-00000001"] and report["swept"] == ["step-00000002"]
    assert (live / "h00000-0.safetensors").exists() and not dead.exists()
    assert [item.step for item in catalog.list_steps(open_location(tmp_path))] == [5]
