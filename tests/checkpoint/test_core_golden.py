"""Checkpoints of every released format version stay readable: `tests/golden/checkpoint-<version>`.

Written by `python tests/checkpoint/test_core_golden.py`, once a version; never again for a version that was released.
"""

from __future__ import annotations

import collections
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from sharded_ranks import Ranks, Sharded, columns, know_sharded, rows

import forebay
from forebay.checkpoint import manifest as records

GOLDEN = Path(__file__).parent.parent / "golden"
RANKS = 3


class Point(collections.namedtuple("Point", "x y")):
    """A node of a class of the user's."""


def plain() -> dict[str, Any]:
    """What a load without `like` gives back."""
    tied = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    return {
        "model": {"layers": [np.arange(12, dtype=np.float32).reshape(3, 4), jnp.arange(5, dtype=jnp.int8)], "tied": [tied, tied]},
        "a.b": np.array([1, 2], ">i4"), "a": {"b": np.ones((0, 3), np.float16)}, 1: {"1": np.float32(0.5)}, None: (), (1, "x"): {},
        "int4": np.arange(-8, 8).astype(ml_dtypes.int4), "c": np.array([1 + 2j]), "text": "é" * 5000, "bytes": b"\x00\xff",
        "values": [None, True, -(10**30), 0.1, float("inf"), 1 - 2j, "ü"],
        "key": jax.random.key(7), "od": collections.OrderedDict(z=1, a=2),
        "rows": np.arange(60.0).reshape(10, 6), "columns": np.arange(35, dtype=np.int16).reshape(5, 7), "point": {"x": 1, "y": np.uint8(2)},
    }  # fmt: skip


def state() -> dict[str, Any]:
    """What was saved."""
    made = plain()
    made["rows"] = Sharded(made["rows"], rows((10, 6), RANKS))
    made["columns"] = Sharded(made["columns"], columns((5, 7), RANKS))
    made["point"] = Point(1, np.uint8(2))
    return made


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return bool(a.dtype == b.dtype) and np.array_equal(jax.random.key_data(a), jax.random.key_data(b))
    if isinstance(a, np.ndarray | jax.Array):
        array_type = jax.Array if isinstance(a, jax.Array) else np.ndarray
        return (
            isinstance(b, array_type) and a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        )
    return type(a) is type(b) and bool(a == b)


def versions() -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in GOLDEN.glob("checkpoint-*"))


def test_there_is_one_of_each_version() -> None:
    assert versions() == list(range(1, records.VERSION + 1))


@pytest.mark.parametrize("version", versions())
def test_golden_checkpoints_load(version: int) -> None:
    root = GOLDEN / f"checkpoint-{version}"
    loaded = forebay.load(root)
    assert same(loaded, plain())
    assert loaded["model"]["tied"][0] is loaded["model"]["tied"][1]
    opened = forebay.open(root)
    assert (opened.step, opened.metadata, opened.manifest.temporary) == (42, {"loss": 0.25}, False)
    assert np.array_equal(opened["rows"][3:8, 1], np.arange(60.0).reshape(10, 6)[3:8, 1])


@pytest.mark.parametrize("version", versions())
def test_golden_records_have_the_documented_form(version: int) -> None:
    (step,) = (GOLDEN / f"checkpoint-{version}").glob("step-*")
    records.decode((step / "manifest.json").read_bytes(), records.MANIFEST_FORMAT, records.Manifest, "manifest.json")
    indexes = sorted(step.glob("index/*/*"))
    assert len(indexes) == RANKS
    for rank, path in enumerate(indexes):
        assert records.decode(path.read_bytes(), records.INDEX_FORMAT, records.HostIndex, path.name).rank == rank


def main() -> None:
    """Write the golden checkpoint of the present version."""
    patch = pytest.MonkeyPatch()
    know_sharded(patch)
    root = GOLDEN / f"checkpoint-{records.VERSION}"
    shutil.rmtree(root, ignore_errors=True)
    saved = Ranks(RANKS).run(lambda group: forebay.save(state(), root, step=42, metadata={"loss": 0.25}, group=group))
    assert all(isinstance(result, forebay.Saved) for result in saved), saved
    patch.undo()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
