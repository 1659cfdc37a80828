"""The Checkpointer of several processes, with the real torch.distributed and jax.distributed."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from ranks import Ranks

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.read import read_manifest
from forebay.locations import open_location


def test_a_rank_that_fails_or_dies_stops_the_others_by_name_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    results = Ranks("ranks_work", "fail_and_die", 3, "torch", str(tmp_path)).wait()
    assert results[2] is None, "rank 2 was killed"
    for rank in (0, 1):
        full, dead = results[rank]["2"], results[rank]["3"]
        assert full["rank"] == 1 and "no space left on device (writing 'w'" in full["message"]
        assert dead["rank"] == 2 and "ended or was killed" in dead["message"]
        assert full["seconds"] < 10 and dead["seconds"] < 10, "promised: within 10 s"
        assert "1" not in results[rank]
    assert [item.step for item in catalog.list_steps(open_location(tmp_path))] == [1]

    weights = np.arange(24.0).reshape(6, 4) + 1
    for result in Ranks("ranks_work", "resume_torch", 2, "torch", str(tmp_path)).wait():
        assert result == {"step": 1, "restored": 1, "w": weights.tolist(), "b": [1.0] * 5}


def test_requests_and_signals_of_any_rank_are_met_by_all(tmp_path: Path) -> None:
    results = Ranks("ranks_work", "jax_sharded", 2, "jax", str(tmp_path), devices=2).wait()
    assert results[0] == results[1], "one decides for all"
    (requested,), preempted, code = results[0]["saved"], results[0]["step"], results[0]["code"]
    assert 3 <= requested < 12 <= preempted < 39 and code == 128 + 15, "rank 0 may be some steps ahead when it hears of it"
    assert [item.step for item in catalog.list_steps(open_location(tmp_path))] == [requested, preempted]
    manifest, _ = read_manifest(open_location(tmp_path / catalog.step_name(preempted)))
    assert manifest.temporary and len(manifest.files) == 2

    sharding = NamedSharding(jax.make_mesh((2, 4), ("a", "b")), PartitionSpec("b", "a"))
    like = {"w": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding), "step": 0}
    loaded = forebay.load(tmp_path, like)
    assert np.array_equal(loaded["w"], np.arange(64, dtype=np.float32).reshape(8, 8) + preempted)
    assert loaded["w"].sharding == sharding
