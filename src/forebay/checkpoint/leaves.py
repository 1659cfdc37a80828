"""Leaves: which are kept in the manifest, which are arrays, and how each comes back.

Kinds of `manifest.Value`: `none`, `bool`, `int`, `float`, `complex`, `str`, `bytes`, and `numpy` (a NumPy scalar).
Kinds of `manifest.Array`: `numpy`, `jax`, `torch`, `jax_key` (`detail` names the generator), and `str` and `bytes` too
long for the manifest. The `detail` of `torch` is `parameter`, `requires_grad`, both or neither.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

from forebay.checkpoint import dtypes
from forebay.checkpoint.arrays import ArraySource, NumpySource, SourceLeaf
from forebay.checkpoint.manifest import Array, Path, Value, path_text
from forebay.checkpoint.names import array_names
from forebay.errors import CheckpointCorrupt, LeafRefused

INLINE_BYTES_MAX = 4096
"""Longer strings and byte strings are stored as arrays."""


def imported(module: str) -> Any:
    """The framework, if the program has imported it (to its end)."""
    framework = sys.modules.get(module)
    return framework if hasattr(framework, "Array" if module == "jax" else "Tensor") else None


def is_jax(leaf: Any) -> bool:
    """Whether this is a `jax.Array` (keys included)."""
    jax = imported("jax")
    return jax is not None and isinstance(leaf, jax.Array)


def is_jax_key(leaf: Any) -> bool:
    """Whether this is an array of typed PRNG keys (`jax.random.key`), or stands for one."""
    jax = imported("jax")
    if jax is None or not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return False
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def is_torch(leaf: Any) -> bool:
    """Whether this is a `torch.Tensor`."""
    torch = imported("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


class LeafCollector:
    """Encodes the leaves of one tree: `encode` is `tree.flatten`'s callback. An array met twice is stored once."""

    def __init__(self, ranks: int, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        self.sources: list[ArraySource] = []
        self.paths: list[Path] = []
        self._known: dict[Hashable, int] = {}

    def names(self) -> list[str]:
        """The distinct names of the sources' arrays."""
        return array_names(self.paths)

    def encode(self, path: Path, leaf: Any) -> Array | Value:
        """The leaf's record. Raises `LeafRefused`."""
        inline = encode_value(leaf)
        if inline is not None:
            return inline
        kind, detail, source = self._source(path_text(path), leaf)
        index = self._known.get(source.identity)
        if index is None:
            index = self._known[source.identity] = len(self.sources)
            self.sources.append(source)
            self.paths.append(path)
        return Array(index, kind, detail)

    def _source(self, path: str, leaf: Any) -> tuple[str, str, ArraySource]:
        if type(leaf) in (str, bytes):
            raw = leaf.encode("utf-8", "surrogatepass") if type(leaf) is str else leaf
            return type(leaf).__name__, "", NumpySource(path, np.frombuffer(raw, np.uint8), self.ranks, settled=True)
        if isinstance(leaf, np.ndarray):
            return "numpy", "", NumpySource(path, leaf, self.ranks)
        if is_jax(leaf):
            return self._jax(path, leaf)
        if is_torch(leaf):
            return self._torch(path, leaf)
        if isinstance(leaf, SourceLeaf):
            return leaf.kind, leaf.detail, leaf.source(self.ranks)
        raise LeafRefused(path, _refusal(leaf))

    def _jax(self, path: str, leaf: Any) -> tuple[str, str, ArraySource]:
        from forebay.checkpoint import jax_arrays  # noqa: PLC0415 - only where the program uses JAX

        if is_jax_key(leaf):
            data = jax_arrays.JaxSource(path, jax_arrays.key_data(leaf), self.ranks, self.rank)
            return "jax_key", jax_arrays.key_impl(leaf), data
        return "jax", "", jax_arrays.JaxSource(path, leaf, self.ranks, self.rank)

    def _torch(self, path: str, leaf: Any) -> tuple[str, str, ArraySource]:
        from forebay.checkpoint import torch_arrays  # noqa: PLC0415 - only where the program uses PyTorch

        parameter = isinstance(leaf, imported("torch").nn.Parameter)
        detail = " ".join(["parameter"] * parameter + ["requires_grad"] * leaf.requires_grad)
        return "torch", detail, torch_arrays.TorchSource(path, leaf, self.ranks, self.rank)


def _refusal(leaf: Any) -> str:
    name = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    if callable(leaf):
        return f"a {name} is code, not state; save only the arrays (for Equinox: eqx.filter(model, eqx.is_array))"
    return f"a {name} would not come back as it was; convert it to an array, a number, a str or bytes"


def encode_value(leaf: Any) -> Value | None:
    """The record of a leaf that the manifest keeps, or None. Exact types only: subclasses would come back as their
    base.
    """
    cls = type(leaf)
    if leaf is None:
        return Value("none")
    if cls is bool:
        return Value("bool", str(leaf))
    if cls is int:  # Python refuses to print very long integers in decimal
        return Value("int", str(leaf) if abs(leaf) < 2**64 else hex(leaf))
    if cls is float:
        return Value("float", leaf.hex())
    if cls is complex:
        return Value("complex", f"{leaf.real.hex()} {leaf.imag.hex()}")
    if cls is str and len(leaf) <= INLINE_BYTES_MAX and not any("\ud800" <= c < "\ue000" for c in leaf):
        return Value("str", leaf)
    if cls is bytes and len(leaf) <= INLINE_BYTES_MAX:
        return Value("bytes", base64.b64encode(leaf).decode())
    if isinstance(leaf, np.generic) and (name := dtypes.dtype_name(leaf.dtype)) is not None and leaf.dtype.type is cls:
        return Value("numpy", f"{name} {base64.b64encode(leaf.tobytes()).decode()}")
    return None


def decode_value(value: Value) -> Any:
    """The leaf that a record stands for. Raises `CheckpointCorrupt`."""
    try:
        return _decode_value(value.kind, value.text)
    except (ValueError, TypeError) as error:
        raise CheckpointCorrupt(f"a leaf of kind {value.kind!r} cannot be read: {error}") from error


def _decode_value(kind: str, text: str) -> Any:
    match kind:
        case "none":
            return None
        case "bool":
            return ("False", "True").index(text) == 1
        case "int":
            return int(text, 0)
        case "float":
            return float.fromhex(text)
        case "complex":
            real, imag = text.split()
            return complex(float.fromhex(real), float.fromhex(imag))
        case "str":
            return text
        case "bytes":
            return base64.b64decode(text, validate=True)
        case "numpy":
            name, data = text.split(" ")
            return np.frombuffer(base64.b64decode(data, validate=True), dtypes.numpy_dtype(name))[0]
    raise ValueError("unknown kind")
