"""What `forebay bench checkpoint` saves, and what it tells its client processes."""

from __future__ import annotations

import msgspec

from forebay.bench.wire import Endpoint

ITEM_BYTES = 4  # float32

# name, what it saves, and whether it can write to an object store
CONTENDERS: dict[str, tuple[str, bool]] = {
    "forebay-jax": ("forebay.save_async of jax.Arrays", True),
    "forebay-torch": ("forebay.save_async of torch tensors", True),
    "forebay-again": ("forebay.save_async after at most 5% of the bytes changed, with the checkpoint before as base", True),
    "torch.save": ("torch.save; to a store through s3torchconnector's writer", True),
    "dcp": ("torch.distributed.checkpoint.save, one thread", False),
    "dcp-4": ("torch.distributed.checkpoint.save, four threads; to a store through s3torchconnector", True),
    "dcp-async": ("torch.distributed.checkpoint.async_save, four threads", False),
    "safetensors": ("safetensors.torch.save_file", False),
    "orbax-v0": ("orbax StandardCheckpointer, asynchronous", False),
    "orbax-v1": ("orbax v1 save_async", False),
    "tensorstore": ("TensorStore, zarr v3 in OCDBT, as Levanter writes", True),
}


class SaveJob(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one contender: save a state of about `size_bytes` to `target`, then restore it."""

    contender: str
    size_bytes: int
    seed: int
    target: str  # a folder that does not exist yet, or s3://bucket/prefix
    endpoint: Endpoint | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a client reports of a save."""

    state_bytes: int
    arrays: int
    blocked_s: float
    durable_s: float
    cpu_s: float
    peak_extra_bytes: int
    moved_bytes: int | None = None  # where the library says that it left the rest to the store to copy


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a client reports of a restore: until every page of every array is in memory, so that mapping a file is not reading it.

    Every array was then compared with what was saved, bit for bit.
    """

    restore_s: float
    cpu_s: float
    peak_extra_bytes: int  # the restored state included, where it was not there before


def state_shapes(size_bytes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a decoder's parameters, float32, of about `size_bytes` together (never more than a layer off)."""
    width = next((width for width, least in ((2048, 512 << 20), (1024, 128 << 20), (256, 8 << 20)) if size_bytes >= least), 64)
    hidden = width * 11 // 4
    layer: dict[str, tuple[int, ...]] = {
        "attention/query": (width, width), "attention/key": (width, width), "attention/value": (width, width),
        "attention/output": (width, width), "mlp/gate": (width, hidden), "mlp/up": (width, hidden), "mlp/down": (hidden, width),
        "norm/attention": (width,), "norm/mlp": (width,),
    }  # fmt: skip
    embedding = (width * 16, width)
    layer_bytes = sum(_bytes(shape) for shape in layer.values())
    layers = max(1, round((size_bytes - 2 * _bytes(embedding)) / layer_bytes))
    shapes: dict[str, tuple[int, ...]] = {"embedding": embedding}
    for index in range(layers):
        shapes |= {f"layers/{index}/{name}": shape for name, shape in layer.items()}
    return shapes | {"norm": (width,), "head": embedding}


def _bytes(shape: tuple[int, ...]) -> int:
    size = ITEM_BYTES
    for extent in shape:
        size *= extent
    return size
