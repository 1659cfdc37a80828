"""Names of arrays and pieces in the data files.

A name is the path's steps joined by dots, as PyTorch and Hugging Face name tensors, so a state dict keeps its names.
Two paths may join to the same text (`{"a.b": x, "a": {"b": y}}`); then the later ones get `~2`, `~3`, … The manifest
has the exact paths.
"""

from __future__ import annotations

from collections.abc import Iterable

from forebay.checkpoint.manifest import Key, Path, TypedKey

RESERVED = frozenset({"__metadata__"})
"""What safetensors itself calls an entry of its header."""


def array_names(paths: Iterable[Path]) -> list[str]:
    """A distinct name for each path, in order; the same for the same paths on every process."""
    taken = set(RESERVED)
    return [unique_name(".".join(map(_text, path)) or "~", taken) for path in paths]


def unique_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or a variant of it that is not in `taken`; adds it there."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}~{count}"
    taken.add(name)
    return name


def _text(key: Key) -> str:
    return key.text if isinstance(key, TypedKey) else str(key)
