"""DTensor layouts against torch's own arithmetic, and JAX arrays on devices that are not the host."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

import forebay
from forebay.checkpoint import jax_arrays
from forebay.checkpoint.torch_arrays import local_box
from forebay.errors import LeafRefused

LAYOUTS = [
    ((10,), (4,), [Shard(0)]), ((3,), (4,), [Shard(0)]), ((7, 5), (2, 3), [Shard(0), Shard(1)]), ((7, 5), (2, 3), [Shard(1), Shard(1)]),
    ((17, 4), (2, 4), [Shard(0), Shard(0)]), ((6, 4), (2, 2), [Replicate(), Shard(-1)]), ((6, 4), (3,), [Replicate()]),
    ((), (2,), [Replicate()]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "mesh", "placements"), LAYOUTS, ids=str)
def test_dtensor_boxes_are_torchs(shape: tuple[int, ...], mesh: tuple[int, ...], placements: list[Any]) -> None:
    for place in itertools.product(*map(range, mesh)):
        box = local_box(shape, mesh, place, placements)
        theirs = [Shard(p.dim % len(shape)) if p.is_shard() else p for p in placements]
        lengths, starts = _compute_local_shape_and_global_offset(torch.Size(shape), torch.Size(mesh), list(place), theirs)
        assert box.shape == tuple(lengths)
        if box.size:
            assert box.start == tuple(starts)


@pytest.fixture
def one_rank() -> Iterator[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of its own defaults
def test_dtensors_come_back_in_place_and_from_meta(one_rank: Any, tmp_path: Path) -> None:
    values = torch.randn(6, 4)
    placed = distribute_tensor(values, one_rank, [Shard(0)])
    forebay.save({"w": placed, "p": torch.nn.Parameter(placed)}, tmp_path / "c")
    like = {"w": distribute_tensor(torch.zeros(6, 4), one_rank, [Shard(1)]), "p": torch.nn.Parameter(torch.zeros(6, 4, device="meta"))}
    loaded = forebay.load(tmp_path / "c", like=like)
    assert loaded["w"] is like["w"] and torch.equal(like["w"].to_local(), values)
    assert isinstance(loaded["p"], torch.nn.Parameter) and torch.equal(loaded["p"].detach(), values)
    plain = forebay.load(tmp_path / "c")
    assert type(plain["w"]) is torch.Tensor and torch.equal(plain["w"], values)
    with pytest.raises(LeafRefused, match="partial placement"):
        forebay.save({"w": DTensor.from_local(values, one_rank, [Partial()])}, tmp_path / "d")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(3).to_sparse(), r"layout torch\.sparse_coo"),
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), r"dtype torch\.qint8"),
    ],
    ids=["sparse", "meta", "quantized"],
)
@pytest.mark.filterwarnings("ignore")  # torch warns that quantized tensors go away
def test_tensors_that_are_not_stored_are_named(make: Callable[[], torch.Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(LeafRefused, match=f"model/w: .*{message}"):
        forebay.save({"model": {"w": make()}}, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def device_memory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Make JAX's CPU devices look like accelerators: nothing may be read but through fetches, whose shapes are noted."""
    real_init, real_fetch, fetched = jax_arrays.JaxSource.__init__, jax_arrays._fetch, []

    def init(self: Any, *args: Any) -> None:
        real_init(self, *args)
        self.settled, self._parts = False, []

    def fetch(data: Any, held: Any, box: Any) -> Any:
        fetched.append(box.shape)
        return real_fetch(data, held, box)

    monkeypatch.setattr(jax_arrays.JaxSource, "__init__", init)
    monkeypatch.setattr(jax_arrays, "_fetch", fetch)
    return fetched


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x"), ("x", "y")], ids=str)
def test_device_arrays_are_fetched_piece_by_piece(device_memory: list[tuple[int, ...]], tmp_path: Path, spec: tuple[Any, ...]) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    array = np.arange(2560 * 4096, dtype=np.float32).reshape(2560, 4096)
    placed = jax.device_put(array, NamedSharding(mesh, P(*spec)))
    pending = forebay.save_async({"w": placed, "n": jnp.int32(3)}, tmp_path / "c", options=forebay.SaveOptions(memory_bytes=48 * 2**20))
    placed.delete()  # as a donating step would
    pending.wait(60)
    assert np.array_equal(forebay.load(tmp_path / "c", options=forebay.LoadOptions(arrays="numpy"))["w"], array)
    assert max(int(np.prod(shape)) * 4 for shape in device_memory) <= 4 * 2**20, "no more than a block at a time"


def test_a_donated_array_is_refused_by_name(tmp_path: Path) -> None:
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(LeafRefused, match="opt/m: this array was deleted"):
        forebay.save({"opt": {"m": gone}}, tmp_path / "c")


def test_64_bits_stay_64_bits(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        wide = {"f": jnp.ones(3, jnp.float64), "i": jnp.array([2**40])}
    forebay.save(wide, tmp_path / "c")
    for loaded in (forebay.load(tmp_path / "c"), forebay.load(tmp_path / "c", like=wide)):
        assert loaded["f"].dtype == jnp.float64 and int(loaded["i"][0]) == 2**40
