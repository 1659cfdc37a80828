"""The adapters, with the real programs on the other side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from torch.distributed.checkpoint.api import CheckpointException

import forebay
from forebay.checkpoint import catalog
from forebay.checkpoint.read import read_manifest
from forebay.checkpoint.verify import verify
from forebay.locations import open_location
from forebay.torch import StorageReader, StorageWriter

# --- torch.distributed.checkpoint


def dcp_state() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7, "text": "x", "list": [torch.ones(2), 3], "none": None,
        "turned": torch.arange(6.0).reshape(2, 3).t(), "bf16": torch.ones(3, dtype=torch.bfloat16), "pair": (1, 2.5), "flag": True,
        "plain": [1, [2, 3]], "tensors": (torch.arange(3), "t"), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4),
    }  # fmt: skip


def blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {k: blank(v) for k, v in value.items()}
    return [blank(v) for v in value] if isinstance(value, list) else type(value)() if value is not None else None


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(map(str, a)) == list(map(str, b)) and all(alike(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dcp_writes_a_checkpoint_of_ours_and_reads_it_back(tmp_path: Path) -> None:
    state = dcp_state()
    dcp.save(state, storage_writer=StorageWriter(tmp_path, step=7), no_dist=True)
    place = open_location(tmp_path / "step-00000007")
    assert not verify(place, read_manifest(place)[0]).damages
    again = blank(state)
    again["pair"], again["tensors"] = (0, 0.0), (torch.zeros(3, dtype=torch.int64), "")
    dcp.load(again, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert alike(state, again)
    loaded = forebay.load(tmp_path)
    assert alike({k: v for k, v in state.items() if k != "optim"}, {k: v for k, v in loaded.items() if k != "optim"})
    assert list(loaded["optim"]["state"]) == [0, 1], "the keys are numbers again"
    with pytest.raises(CheckpointException, match="is a complete checkpoint already"):
        dcp.save(state, storage_writer=StorageWriter(tmp_path / "step-00000007"), no_dist=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dcp_reads_what_forebay_saved_by_checkpoint_id(tmp_path: Path) -> None:
    state = {"model": torch.nn.Linear(3, 2).state_dict(), "step": 3}
    forebay.save(state, tmp_path / "c")
    again = blank(state)
    dcp.load(again, checkpoint_id=tmp_path / "c", storage_reader=StorageReader(), no_dist=True)
    assert alike(state, again)
    with pytest.raises(CheckpointException, match="none at all"):
        dcp.load(again, storage_reader=StorageReader(tmp_path / "nowhere"), no_dist=True)


def test_fsdp_through_dcp_and_without(tmp_path: Path) -> None:
    paths = (str(tmp_path / "dcp"), str(tmp_path / "own"))
    saved = Ranks("adapters_work", "fsdp_save", 2, "torch", *paths).wait()
    assert saved[0] == saved[1]
    for path in paths:
        place = open_location(Path(path) / "step-00000005")
        manifest, _ = read_manifest(place)
        assert len(manifest.files) == 2 and not verify(place, manifest).damages
    for rank in Ranks("adapters_work", "fsdp_load", 3, "torch", *paths).wait():
        assert rank == [saved[0]] * 4
    (one, two) = (forebay.load(path) for path in paths)
    assert alike(one["model"], two["model"]) and one["pair"] == (1, 2.5)
    assert np.array_equal(one["model"]["0.weight"].numpy(), np.float32(saved[0]["model"]["0.weight"]))
    assert [item.step for item in catalog.list_steps(open_location(paths[0]))] == [5]
