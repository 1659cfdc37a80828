"""The checkpoint libraries, each saving and restoring the same state in the way that its own documentation shows first.

A contender's `save` returns as soon as the state may be changed; the function that it gives back waits until the library says that it is
done. Whether the bytes are on the disk by then differs between libraries, so the caller makes them all durable afterwards.
"""

# ruff: noqa: D102, PLC0415 - the methods are those of Contender; frameworks are optional, and only one is wanted in a process

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import forebay
from forebay.bench.wire import Endpoint
from forebay.locations import open_location

Arrays = dict[str, np.ndarray[Any, Any]]
Wait = Callable[[], None]

CHANGED_SHARE = 0.05


class Contender(Protocol):
    """A library with its state in place."""

    def save(self, target: str) -> Wait:
        """Save to `target`; returns when the state may be changed, with a function that waits for the rest."""

    def restore(self, target: str) -> Any:
        """Read it back, in the library's own types."""

    def arrays_of(self, restored: Any) -> Arrays:
        """The restored state as NumPy arrays by name."""


class _Jax:
    """State as a nested dict of jax.Arrays on CPU."""

    def __init__(self, arrays: Arrays, endpoint: Endpoint | None) -> None:
        jax = import_module("jax")
        self.endpoint = endpoint
        self.state = _nest({name: jax.device_put(array) for name, array in arrays.items()})
        jax.block_until_ready(self.state)

    def like(self) -> Any:
        jax = import_module("jax")
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)

    def arrays_of(self, restored: Any) -> Arrays:
        return {name: np.asarray(array) for name, array in _flatten(restored).items()}


class _Torch:
    """State as a flat dict of torch tensors on CPU."""

    def __init__(self, arrays: Arrays, endpoint: Endpoint | None) -> None:
        import torch

        self.endpoint = endpoint
        self.state = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def empty(self) -> dict[str, Any]:
        import torch

        return {name: torch.empty_like(tensor) for name, tensor in self.state.items()}

    def arrays_of(self, restored: Any) -> Arrays:
        return {name: tensor.numpy() for name, tensor in restored.items()}


class ForebayJax(_Jax):
    """Ours, for JAX."""

    def save(self, target: str) -> Wait:
        pending = forebay.save_async(self.state, _forebay_place(target, self.endpoint))
        return lambda: _discard(pending.wait())

    def restore(self, target: str) -> Any:
        return forebay.load(_forebay_place(target, self.endpoint), like=self.like())


class ForebayTorch(_Torch):
    """Ours, for PyTorch."""

    def save(self, target: str) -> Wait:
        pending = forebay.save_async(self.state, _forebay_place(target, self.endpoint))
        return lambda: _discard(pending.wait())

    def restore(self, target: str) -> Any:
        return forebay.load(_forebay_place(target, self.endpoint), like=self.empty())


class ForebayAgain(ForebayTorch):
    """Ours, saving a state of which a small part has changed since the checkpoint before."""

    moved_bytes: int | None = None

    def prepare(self, target: str) -> None:
        """Save the state as it was before, and change some arrays of it."""
        forebay.save(self.state, _forebay_place(f"{target}-before", self.endpoint))
        left_bytes = CHANGED_SHARE * sum(tensor.nbytes for tensor in self.state.values())
        for name in sorted(self.state, key=lambda name: self.state[name].nbytes):
            if self.state[name].nbytes <= left_bytes:
                self.state[name].add_(1)
                left_bytes -= self.state[name].nbytes

    def save(self, target: str) -> Wait:
        before = _forebay_place(f"{target}-before", self.endpoint)
        pending = forebay.save_async(self.state, _forebay_place(target, self.endpoint), base=before)

        def wait() -> None:
            saved = pending.wait()
            self.moved_bytes = saved.size_bytes - saved.copied_bytes

        return wait


class TorchSave(_Torch):
    """One pickle of the whole state dict."""

    def save(self, target: str) -> Wait:
        import torch

        if self.endpoint is not None:
            with self._store().writer(f"{target}/state.pt") as writer:
                torch.save(self.state, writer)
        else:
            Path(target).mkdir(parents=True)
            torch.save(self.state, Path(target) / "state.pt")
        return _nothing_left

    def restore(self, target: str) -> Any:
        import torch

        if self.endpoint is None:
            return torch.load(Path(target) / "state.pt", weights_only=True)
        with self._store().reader(f"{target}/state.pt") as reader:
            return torch.load(reader, weights_only=True)

    def _store(self) -> Any:
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        assert self.endpoint is not None
        config = S3ClientConfig(force_path_style=True)
        return S3Checkpoint(self.endpoint.region, endpoint=self.endpoint.url, s3client_config=config)


class Dcp(_Torch):
    """torch.distributed.checkpoint in one process."""

    threads = 1

    def save(self, target: str) -> Wait:
        dcp = _dcp()
        dcp.save(self.state, storage_writer=self._writer(target))
        return _nothing_left

    def restore(self, target: str) -> Any:
        dcp = _dcp()
        state = self.empty()
        dcp.load(state, storage_reader=self._reader(target))
        return state

    def _writer(self, target: str) -> Any:
        if self.endpoint is None:
            return _dcp().FileSystemWriter(target, thread_count=self.threads)
        from s3torchconnector import S3ClientConfig
        from s3torchconnector.dcp import S3StorageWriter

        config = S3ClientConfig(force_path_style=True)
        os.environ["AWS_ENDPOINT_URL"] = self.endpoint.url
        return S3StorageWriter(self.endpoint.region, target, s3client_config=config, thread_count=self.threads)

    def _reader(self, target: str) -> Any:
        if self.endpoint is None:
            return _dcp().FileSystemReader(target)
        from s3torchconnector import S3ClientConfig
        from s3torchconnector.dcp import S3StorageReader

        return S3StorageReader(self.endpoint.region, target, s3client_config=S3ClientConfig(force_path_style=True))


class Dcp4(Dcp):
    """With four writing threads."""

    threads = 4


class DcpAsync(Dcp4):
    """Copies the state first and writes in a thread."""

    def save(self, target: str) -> Wait:
        dcp = _dcp()
        future: Any = dcp.async_save(self.state, storage_writer=self._writer(target))
        return lambda: _discard(future.result())


class Safetensors(_Torch):
    """One safetensors file."""

    def save(self, target: str) -> Wait:
        from safetensors.torch import save_file

        Path(target).mkdir(parents=True)
        save_file(self.state, Path(target) / "state.safetensors")
        return _nothing_left

    def restore(self, target: str) -> Any:
        from safetensors.torch import load_file

        return load_file(Path(target) / "state.safetensors")


class OrbaxV0(_Jax):
    """Orbax's StandardCheckpointer."""

    def save(self, target: str) -> Wait:
        import orbax.checkpoint as ocp

        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(target, self.state)

        def wait() -> None:
            checkpointer.wait_until_finished()
            checkpointer.close()

        return wait

    def restore(self, target: str) -> Any:
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(target, self.like())


class OrbaxV1(_Jax):
    """Orbax's newer interface."""

    def save(self, target: str) -> Wait:
        import orbax.checkpoint.experimental.v1 as ocp

        response = ocp.save_async(target, self.state)
        return lambda: _discard(response.result())

    def restore(self, target: str) -> Any:
        import orbax.checkpoint.experimental.v1 as ocp

        return ocp.load(target, self.like())


class TensorStore:
    """Every array a zarr v3 array in one OCDBT database, all written and read at once."""

    def __init__(self, arrays: Arrays, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint
        self.state = arrays

    def save(self, target: str) -> Wait:
        import tensorstore as ts

        context = self._context()
        opening = {
            name: ts.open(self._spec(target, name), dtype=array.dtype, shape=array.shape, create=True, context=context)
            for name, array in self.state.items()
        }
        writes = [opening[name].result().write(array) for name, array in self.state.items()]
        for write in writes:
            write.copy.result()

        def wait() -> None:
            for write in writes:
                write.result()

        return wait

    def restore(self, target: str) -> Any:
        import tensorstore as ts

        context = self._context()
        opening = {name: ts.open(self._spec(target, name), open=True, context=context) for name in self.state}
        reads = {name: array.result().read() for name, array in opening.items()}
        return {name: read.result() for name, read in reads.items()}

    def arrays_of(self, restored: Any) -> Arrays:
        return dict(restored)

    def _context(self) -> Any:
        import tensorstore as ts

        return ts.Context({"cache_pool": {"total_bytes_limit": 0}})

    def _spec(self, target: str, name: str) -> dict[str, Any]:
        base: Any = {"driver": "file", "path": f"{target}/"}
        if self.endpoint is not None:
            bucket, _, path = target.removeprefix("s3://").partition("/")
            base = {
                "driver": "s3", "bucket": bucket, "path": f"{path}/", "endpoint": self.endpoint.url,
                "aws_region": self.endpoint.region, "aws_credentials": {"type": "environment"},
            }  # fmt: skip
        return {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}


MAKERS: dict[str, Callable[[Arrays, Endpoint | None], Contender]] = {
    "forebay-jax": ForebayJax,
    "forebay-torch": ForebayTorch,
    "forebay-again": ForebayAgain,
    "torch.save": TorchSave,
    "dcp": Dcp,
    "dcp-4": Dcp4,
    "dcp-async": DcpAsync,
    "safetensors": Safetensors,
    "orbax-v0": OrbaxV0,
    "orbax-v1": OrbaxV1,
    "tensorstore": TensorStore,
}


def _forebay_place(target: str, endpoint: Endpoint | None) -> Any:
    if endpoint is None:
        return target
    return open_location(
        target, endpoint=endpoint.url, access_key=endpoint.access_key, secret_key=endpoint.secret_key, region=endpoint.region
    )


def _dcp() -> Any:
    return import_module("torch.distributed.checkpoint")


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = value
    return tree


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _discard(result: object) -> None:
    """A wait has no result."""


def _nothing_left() -> None:
    """The library had finished when it returned."""
