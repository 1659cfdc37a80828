"""The Checkpointer, other formats and the command line over S3, on a store of Forebay's that is killed in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.policy import Every, Keep
from forebay.cli import main
from forebay.errors import LocationUnavailable
from forebay.locations import open_location
from forebay.locations.s3 import S3


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    (tmp_path / "store").mkdir()
    server = ServerProcess(tmp_path / "store")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert S3("runs")._bucket.ask("create", "PUT", "").status == 200
    try:
        yield server
    finally:
        server.kill()


def state_of(step: int) -> dict[str, Any]:
    return {"w": np.arange(3_000_000, dtype=np.float32) + step, "same": np.arange(6_000_000, dtype=np.float32), "step": step}


def steps_in(url: str) -> list[int]:
    return [item.step for item in catalog.list_steps(open_location(url))]


def test_a_run_outlives_its_store(server: ServerProcess, tmp_path: Path) -> None:
    url = "s3://runs/one"
    run = open_location(url, retry_s=2.0)
    with pytest.raises(LocationUnavailable) as raised, forebay.Checkpointer(run, Every(steps=1), Keep(last=2)) as ckpt:
        for step in (1, 2, 3):
            pending = ckpt.maybe_save(step, state_of(step))
            assert pending is not None
            ckpt.wait()
        assert pending.wait().copied_bytes > 8 * 2**20, "the array that did not change was copied by the store"
        assert steps_in(url) == [2, 3]
        server.kill()
        ckpt.maybe_save(4, state_of(4))
    assert SECRET_KEY not in str(raised.value)
    again = ServerProcess(server.folder, port=server.port)
    try:
        with forebay.Checkpointer(url, Every(steps=1), Keep(last=2)) as ckpt:
            state = ckpt.restore(state_of(0))
            assert ckpt.restored_step == 3 and np.array_equal(state["w"], state_of(3)["w"])
            ckpt.maybe_save(4, state_of(4))
        assert steps_in(url) == [3, 4]
        for words in (["verify", url], ["diff", url, "@3", "--step", "3"], ["cp", url, f"{tmp_path}/copy"],
                      ["convert", url, "s3://runs/flat", "--to", "safetensors"]):  # fmt: skip
            assert main(["ckpt", *words]) == 0, words
        assert np.array_equal(forebay.load(tmp_path / "copy")["w"], state_of(4)["w"])
        data, _ = open_location("s3://runs/flat").get("model.safetensors")
        assert np.array_equal(safetensors.numpy.load(data)["w"], state_of(4)["w"])
        assert np.array_equal(forebay.load("s3://runs/flat/model.safetensors")["w"], state_of(4)["w"])
    finally:
        again.kill()


@pytest.mark.filterwarnings("ignore")
def test_orbax_over_s3(server: ServerProcess, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", {"w": jnp.arange(12.0).reshape(3, 4), "n": 3})
    target = open_location("s3://runs/orbax")
    for path in (tmp_path / "c").rglob("*"):
        if path.is_file():
            target.put(str(path.relative_to(tmp_path / "c")), path.read_bytes())
    loaded = forebay.load("s3://runs/orbax")
    assert np.array_equal(loaded["w"], np.arange(12.0).reshape(3, 4)) and loaded["n"] == 3
