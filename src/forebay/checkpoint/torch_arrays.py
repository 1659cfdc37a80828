"""PyTorch tensors and DTensors as sources and targets. Imported only by programs that use PyTorch."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from forebay.checkpoint import dtypes
from forebay.checkpoint.arrays import Bytes1D, replicated
from forebay.checkpoint.layout import Box, whole
from forebay.checkpoint.targets import PAGE_BYTES, page_aligned
from forebay.errors import LeafRefused

_NAMES = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex32", "bcomplex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
TORCH_DTYPES: dict[str, Any] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
"""torch's dtype for each logical one that it has."""
_LOGICAL = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def logical_dtype(dtype: Any) -> str | None:
    """The logical name of a torch dtype; None for one that cannot be stored."""
    return _LOGICAL.get(dtype)


def is_dtensor(tensor: Any) -> bool:
    """Whether this is a `torch.distributed.tensor.DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


class TorchSource:
    """A tensor: the same on every rank, or this rank's part of a DTensor. It may be changed in place, so it is not
    settled.
    """

    settled = False

    def __init__(self, path: str, tensor: Any, ranks: int, rank: int) -> None:
        self.dtype = _storable(path, tensor)
        self.shape = tuple(tensor.shape)
        self.sharding = ""
        self.holders = replicated(self.shape, ranks)
        self._box = whole(self.shape)
        local = tensor.detach()
        if is_dtensor(tensor):
            local = tensor.to_local().detach()
            self.sharding = f"{tuple(tensor.device_mesh.shape)} {tensor.placements}"
            self.holders = _dtensor_holders(path, tensor, ranks)
            self._box = self.holders[rank][0] if self.holders[rank] else Box(self._box.start, tuple(local.shape))
        self._local = local.resolve_conj().resolve_neg()
        if self._local.device.type == "cuda":
            # Other threads copy it, on streams of their own: what the caller's stream has yet to compute must be there.
            torch.cuda.current_stream(self._local.device).synchronize()
        self.identity: Hashable = _identity(self._local) if not is_dtensor(tensor) else ("torch", id(tensor))
        self._keep = tensor

    def view(self, box: Box) -> Bytes1D | None:
        """See `ArraySource`."""
        part = self._local[box.within(self._box.start)]
        if part.device.type != "cpu" or not part.is_contiguous():
            return None
        return _bytes_of(part)

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """See `ArraySource`. From a device the bytes go straight into `out`."""
        if not box.size:
            return
        part = self._local[box.within(self._box.start)]
        flat = torch.from_numpy(out.reshape(-1).view(np.uint8)).view(part.dtype)
        flat.reshape(part.shape).copy_(part)


def _storable(path: str, tensor: Any) -> str:
    if tensor.layout != torch.strided:
        raise LeafRefused(path, f"tensors of layout {tensor.layout} are not stored; convert it with .to_dense()")
    if tensor.is_meta:
        raise LeafRefused(path, "this tensor is on the meta device: it has no data to save")
    name = logical_dtype(tensor.dtype)
    if name is None:
        raise LeafRefused(path, f"tensors of dtype {tensor.dtype} are not stored")
    return name


def _identity(tensor: Any) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements of the same storage."""
    if tensor.numel() == 0:
        return ("torch", id(tensor))
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return ("torch", str(tensor.device), str(tensor.dtype), *place)


def _bytes_of(contiguous: Any) -> Bytes1D:
    if contiguous.numel() == 0:
        return np.empty(0, np.uint8)
    return contiguous.reshape(-1).view(torch.uint8).numpy()  # type: ignore[no-any-return]


def _dtensor_holders(path: str, tensor: Any, ranks: int) -> tuple[tuple[Box, ...], ...]:
    mesh = tensor.device_mesh.mesh
    if any(placement.is_partial() for placement in tensor.placements):
        raise LeafRefused(path, f"a DTensor with a partial placement has no settled value: {tensor.placements}")
    if int(mesh.max()) >= ranks:
        raise LeafRefused(path, f"its device mesh has rank {int(mesh.max())}, but the save has {ranks}: pass their group")
    mesh_shape, order = tuple(mesh.shape), tuple(int(rank) for rank in mesh.flatten())
    return _mesh_holders(tuple(tensor.shape), mesh_shape, order, tuple(tensor.placements), ranks)


@functools.lru_cache(maxsize=4096)
def _mesh_holders(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], order: tuple[int, ...], placements: tuple[Any, ...], ranks: int
) -> tuple[tuple[Box, ...], ...]:
    """By rank its box. `order` are the ranks of the mesh in C order."""
    boxes: list[tuple[Box, ...]] = [()] * ranks
    for rank, place in zip(order, itertools.product(*map(range, mesh_shape)), strict=True):
        box = local_box(shape, mesh_shape, place, placements)
        boxes[rank] = (box,) if box.size else ()
    return tuple(boxes)


def local_box(shape: Sequence[int], mesh_shape: Sequence[int], place: Sequence[int], placements: Sequence[Any]) -> Box:
    """The box of a DTensor that the device at `place` of the mesh holds.

    `Shard(dim)` gives each device a run of ceil(n / devices), the last ones less; several on one dim nest. Other kinds
    of sharding are asked of torch, which keeps them private.
    """
    if any(type(p).__name__ not in ("Shard", "Replicate") for p in placements):
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # noqa: PLC0415

        lengths, starts = _compute_local_shape_and_global_offset(torch.Size(shape), torch.Size(mesh_shape), list(place), placements)
        return Box(tuple(starts), tuple(lengths))
    start, length = [0] * len(shape), list(shape)
    for devices, index, placement in zip(mesh_shape, place, placements, strict=True):
        if placement.is_shard():
            dim = placement.dim % len(shape)
            run = -(-length[dim] // devices)
            skip = min(index * run, length[dim])
            start[dim], length[dim] = start[dim] + skip, min(run, length[dim] - skip)
    return Box(tuple(start), tuple(length))


def with_detail(tensor: Any, detail: str) -> Any:
    """A loaded tensor as a parameter, or with gradients, if the saved one was so."""
    flags = detail.split()
    if "parameter" in flags:
        return torch.nn.Parameter(tensor, requires_grad="requires_grad" in flags)
    return tensor.requires_grad_() if flags else tensor


class TorchTarget:
    """Loads into a tensor or DTensor in place, or into a new CPU tensor if `like` is on the meta device or None.

    Memory that is not plain CPU memory is filled through a buffer as large as this process's part of the tensor.
    """

    def __init__(self, like: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self._like = like
        local = like.to_local() if is_dtensor(like) else like
        if local is None or local.is_meta:
            self._local = _new_tensor(shape if local is None else tuple(local.shape), dtype)
        else:
            self._local = local.detach()
        self.boxes: tuple[Box, ...] = (whole(shape),)
        if is_dtensor(like):
            mesh = like.device_mesh
            place = mesh.get_coordinate()
            box = local_box(shape, tuple(mesh.mesh.shape), place, like.placements) if place is not None else None
            self.boxes = (box,) if box is not None and box.size else ()
        direct = self._local.device.type == "cpu" and self._local.is_contiguous() and not self._local.is_conj()
        self._buffer: np.ndarray[Any, Any] | None = None
        self._direct = direct and not self._local.is_neg()
        self.page_aligned = not self._direct or self._local.data_ptr() % PAGE_BYTES == 0

    def buffer(self, box: Box) -> np.ndarray[Any, Any]:
        """See `Target`."""
        if self._buffer is None:
            numpy_dtype = dtypes.numpy_dtype(self.dtype)
            if self._direct:
                self._buffer = _bytes_of(self._local).view(numpy_dtype).reshape(box.shape)
            else:
                self._buffer = page_aligned(box.shape, numpy_dtype)
        return self._buffer

    def finish(self) -> Any:
        """The tensor: `like` itself, or the new one."""
        if self._buffer is not None and not self._direct and self._buffer.size:
            flat = torch.from_numpy(self._buffer.reshape(-1).view(np.uint8)).view(TORCH_DTYPES[self.dtype])
            self._local.copy_(flat.reshape(self._local.shape))
        if self._like is None or not self._like.is_meta:
            return self._local if self._like is None else self._like
        return _like_meta(self._like, self._local)


def _new_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    raw = page_aligned((math.prod(shape) * dtypes.itemsize_of(dtype),), np.dtype(np.uint8))
    return torch.from_numpy(raw).view(TORCH_DTYPES[dtype]).reshape(shape)


def _like_meta(like: Any, local: Any) -> Any:
    """A loaded tensor in the place of a meta one: a DTensor or parameter if that was one."""
    if is_dtensor(like):
        module = sys.modules["torch.distributed.tensor"]
        mesh, placements = like.device_mesh, like.placements
        local = module.DTensor.from_local(local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(local, requires_grad=like.requires_grad)
    return local.requires_grad_(like.requires_grad)
