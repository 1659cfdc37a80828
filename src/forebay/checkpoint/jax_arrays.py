"""JAX arrays as sources and targets. Imported only by programs that use JAX."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.arrays import Bytes1D, copy_from_parts, replicated, view_of_parts
from forebay.checkpoint.layout import Box, whole
from forebay.checkpoint.targets import Buffers
from forebay.errors import LeafRefused


def key_impl(keys: Any) -> str:
    """The name of the keys' generator, such as `threefry2x32`."""
    return str(jax.random.key_impl(keys))


def key_dtype(impl: str) -> Any:
    """The dtype of keys of a generator."""
    return jax.random.key(0, impl=impl).dtype


def box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """The box of a shard's index."""
    bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
    return Box(tuple(a for a, _, _ in bounds), tuple(b - a for a, b, _ in bounds))


def device_boxes(sharding: Any, shape: tuple[int, ...]) -> list[tuple[Any, Box]]:
    """Every device of a sharding with the box it holds."""
    return [(device, box_of(index, shape)) for device, index in sharding.devices_indices_map(shape).items()]


class JaxSource:
    """A `jax.Array`. On CPU its shards are read where they lie: they are immutable, and while a NumPy view of them
    exists XLA does not reuse them even if the array is donated. On other devices the array may be donated by the next
    step, so it is not settled.
    """

    def __init__(self, path: str, array: Any, ranks: int, rank: int) -> None:
        name = dtypes.dtype_name(np.dtype(array.dtype))
        if name is None:
            raise LeafRefused(path, f"JAX arrays of dtype {array.dtype} cannot be stored")
        if array.is_deleted():
            raise LeafRefused(path, "this array was deleted: its buffer was donated to a computation")
        self.dtype = name
        self.shape = tuple(array.shape)
        self.sharding = str(array.sharding)
        self.holders = _holders(path, array, ranks)
        self.identity: Hashable = ("jax", id(array))
        # One shard of each box: replicas on other devices are the same.
        self._shards = list({box_of(s.index, self.shape): s.data for s in array.addressable_shards}.items())
        self.settled = all(s.device.platform == "cpu" for s in array.addressable_shards)
        self._parts = [(box, np.asarray(data)) for box, data in self._shards] if self.settled else []
        self._array = array

    def view(self, box: Box) -> Bytes1D | None:
        """See `ArraySource`."""
        return view_of_parts(self._parts, box)

    def copy_into(self, box: Box, out: np.ndarray[Any, Any]) -> None:
        """See `ArraySource`. From a device only the bytes asked for are fetched."""
        if self.settled:
            return copy_from_parts(self._parts, box, out)
        for held, data in self._shards:
            if held.contains(box):
                np.copyto(out, _fetch(data, held, box))
                return None
        parts = [(common, _fetch(data, held, common)) for held, data in self._shards if (common := held.overlap(box))]
        return copy_from_parts(parts, box, out)


def _fetch(data: Any, held: Box, box: Box) -> np.ndarray[Any, Any]:
    if held == box:
        return np.asarray(data)
    # dynamic_slice is compiled once a shape; plain slicing would be compiled for every start.
    start = [a - o for a, o in zip(box.start, held.start, strict=True)]
    return np.asarray(jax.lax.dynamic_slice(data, start, box.shape))


def _holders(path: str, array: Any, ranks: int) -> tuple[tuple[Box, ...], ...]:
    if jax.process_count() == 1:
        return replicated(tuple(array.shape), ranks)
    if jax.process_count() != ranks:
        raise LeafRefused(path, f"JAX runs on {jax.process_count()} processes, but the save on {ranks}: pass their group")
    if array.is_fully_addressable:  # local to each process, such as a step counter
        return replicated(tuple(array.shape), ranks)
    boxes: list[dict[Box, None]] = [{} for _ in range(ranks)]
    for device, box in device_boxes(array.sharding, tuple(array.shape)):
        boxes[device.process_index][box] = None
    return tuple(map(tuple, boxes))


class JaxTarget(Buffers):
    """Where a loaded array goes: over the devices of a sharding, or without one (None) whole to the default device."""

    def __init__(self, shape: tuple[int, ...], sharding: Any, dtype: str) -> None:
        self.sharding = sharding
        here = jax.process_index()
        devices = [] if self.sharding is None else device_boxes(self.sharding, shape)
        self._mine = [(device, box) for device, box in devices if device.process_index == here]
        boxes = dict.fromkeys(box for _, box in self._mine) if self.sharding is not None else (whole(shape),)
        super().__init__(shape, dtype, boxes)

    def finish(self) -> Any:
        """The array. Its shards take over the buffers, or copies of them."""
        with exact_widths():
            if self.sharding is None:
                return jax.numpy.asarray(self.buffer(whole(self.shape)))
            shards = [jax.device_put(self.buffer(box), device) for device, box in self._mine]
            dtype = dtypes.numpy_dtype(self.dtype)
            return jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards, dtype=dtype)


def exact_widths() -> Any:
    """A context in which 64-bit arrays stay 64 bits wide, whatever `jax_enable_x64` says."""
    home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    return home.enable_x64(True)


def has_dtype(name: str) -> bool:
    """Whether JAX has arrays of this logical dtype."""
    try:
        return bool(jax.dtypes.canonicalize_dtype(dtypes.numpy_dtype(name), allow_extended_dtype=False) is not None)
    except TypeError:
        return False


def key_sharding(keys: Any, shape: tuple[int, ...]) -> Any:
    """The sharding of the data of typed keys, which has `shape`: the axis of the words is not cut. None if it has
    none.
    """
    sharding = getattr(keys, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding):
        words = [None] * (len(shape) - len(sharding.spec))
        spec = jax.sharding.PartitionSpec(*sharding.spec, *words)  # type: ignore[no-untyped-call]
        return jax.sharding.NamedSharding(sharding.mesh, spec)
    return sharding if isinstance(sharding, jax.sharding.SingleDeviceSharding) else None


def wrap_keys(data: Any, impl: str) -> Any:
    """Typed PRNG keys from their data."""
    return jax.random.wrap_key_data(data, impl=impl)


def key_data(keys: Any) -> Any:
    """The keys' data as an ordinary array of uint32."""
    return jax.random.key_data(keys)
