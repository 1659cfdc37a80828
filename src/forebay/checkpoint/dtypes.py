"""Logical dtypes: their names in the manifest, what NumPy calls them, and how a safetensors file holds them.

Names are NumPy's and ml_dtypes' (`float32`, `bfloat16`, `float8_e4m3fn`, `int4`). Torch's alone is
`float4_e2m1fn_x2` (and `complex32`, until ml_dtypes 0.6). Other NumPy dtypes (dates, fixed-size strings, big-endian numbers) are `numpy:`
and their `str`. A dtype that safetensors lacks is stored as `U8`, its item as one more axis if that is wider than a byte. Sub-byte
types take one byte an element, as ml_dtypes holds them, except `float4_e2m1fn_x2`, two of which torch packs into one.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from forebay.errors import FormatUnknown

SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""safetensors' name for each logical dtype that it has (https://github.com/huggingface/safetensors, version 0.8)."""

_PLAIN = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
}  # fmt: skip
_ML: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
        "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int1",
        "uint1", "int2", "uint2", "int4", "uint4", "complex32", "bcomplex32",
    )
    if hasattr(ml_dtypes, name)
}  # fmt: skip
TORCH_ONLY = {"complex32": 4, "bcomplex32": 4, "float4_e2m1fn_x2": 1}
"""Logical dtypes that only torch has (the first two also newer versions of ml_dtypes), and their size."""
_NUMPY_KINDS = "iufcbmMSUV"


def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """The logical name of a NumPy dtype; None for one that cannot be stored (objects, fields)."""
    if dtype.name in _ML and dtype == _ML[dtype.name]:
        return dtype.name
    if dtype.name in _PLAIN and dtype.isnative:
        return dtype.name
    plain = dtype.kind in _NUMPY_KINDS and not dtype.hasobject and dtype.names is None and dtype.subdtype is None
    return f"numpy:{dtype.str}" if plain and np.dtype(dtype.str) == dtype else None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a logical name; for torch's own, unsigned integers of the same width.

    Raises `FormatUnknown` for a name that this version does not know.
    """
    if name in _ML:
        return _ML[name]
    if name in _PLAIN:
        return np.dtype(name)
    if name in TORCH_ONLY:
        return np.dtype(f"V{TORCH_ONLY[name]}") if TORCH_ONLY[name] > 1 else np.dtype("uint8")
    if name.startswith("numpy:"):
        try:
            return np.dtype(name.removeprefix("numpy:"))
        except TypeError:
            pass
    raise FormatUnknown(f"dtype {name!r} is not known to this version of Forebay and its libraries")


def itemsize_of(name: str) -> int:
    """Bytes an element."""
    return numpy_dtype(name).itemsize


def alignment_of(name: str) -> int:
    """The power of two at which an element wants to lie: the largest that divides its size."""
    size = itemsize_of(name) or 1
    return size & -size


def stored_form(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape that the safetensors header states for an array of a logical dtype."""
    if name in SAFETENSORS:
        return SAFETENSORS[name], shape
    itemsize = itemsize_of(name)
    return "U8", shape if itemsize == 1 else (*shape, itemsize)
