"""An OCDBT database over existing files: TensorStore's "optionally-cooperative distributed B+tree".

Written once, never changed: one manifest with one version, and one file of B+tree nodes. Small values are in the leaves, large ones are
byte ranges of other files. The format is TensorStore's, described in its documentation of the `ocdbt` key-value store driver,
"Storage format": https://google.github.io/tensorstore/kvstore/ocdbt/index.html. Nothing is compressed.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from awscrt.checksums import crc32c

MANIFEST_MAGIC = 0x0CDB3A2A
NODE_MAGIC = 0x0CDB20DE
MAX_INLINE_BYTES = 1024
MAX_NODE_BYTES = 8_000_000
NODE_BYTES = 1 << 20
"""Nodes are closed at about this size, far below `MAX_NODE_BYTES`, so that a reader of one key reads little."""
NODE_ENTRIES_MAX = 8192
VERSION_TREE_ARITY_LOG2 = 4


@dataclass(frozen=True, slots=True)
class Extent:
    """A value that is a byte range of a file; `file` is relative to the database's folder."""

    file: str
    offset: int
    size_bytes: int


Value = bytes | Extent
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _Child:
    """A finished node: its first key, place in the node file, height, and sums over its subtree."""

    key: bytes
    offset: int
    size_bytes: int
    keys: int
    tree_bytes: int
    indirect_bytes: int


def encode_database(entries: Mapping[bytes, Value], node_file: str, uuid: bytes, time_ms: int) -> tuple[bytes, bytes]:
    """The database's `manifest.ocdbt`, and the contents of `node_file`. There must be at least one entry."""
    nodes = bytearray()
    keys = sorted(entries)
    level = [_leaf(nodes, [(key, entries[key]) for key in run]) for run in _runs(keys, lambda k: _weight(k, entries[k]))]
    height = 0
    while len(level) > 1:
        height += 1
        level = [_interior(nodes, run, height, node_file) for run in _runs(level, lambda child: len(child.key) + 40)]
    return _manifest(level[0], height, node_file, uuid, time_ms), bytes(nodes)


def _weight(key: bytes, value: Value) -> int:
    return len(key) + (len(value.file) + 16 if isinstance(value, Extent) else len(value) + 8)


def _runs(items: Sequence[_Item], weight: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Consecutive items that make up one node each."""
    run: list[_Item] = []
    size_bytes = 0
    for item in items:
        if run and (size_bytes + weight(item) > NODE_BYTES or len(run) == NODE_ENTRIES_MAX):
            yield run
            run, size_bytes = [], 0
        run.append(item)
        size_bytes += weight(item)
    yield run


def _leaf(nodes: bytearray, entries: list[tuple[bytes, Value]]) -> _Child:
    values = [value for _, value in entries]
    extents = [value for value in values if isinstance(value, Extent)]
    files = sorted({extent.file for extent in extents})
    ids = {file: index for index, file in enumerate(files)}
    body = bytes([0]) + _file_table(files) + varint(len(entries))
    body += _keys([key for key, _ in entries], interior=False)
    body += b"".join(varint(v.size_bytes if isinstance(v, Extent) else len(v)) for v in values)
    body += b"".join(varint(isinstance(v, Extent)) for v in values)
    body += b"".join(varint(ids[e.file]) for e in extents) + b"".join(varint(e.offset) for e in extents)
    body += b"".join(v for v in values if not isinstance(v, Extent))
    return _append(nodes, entries[0][0], body, len(entries), 0, sum(e.size_bytes for e in extents))


def _interior(nodes: bytearray, children: list[_Child], height: int, node_file: str) -> _Child:
    body = bytes([height]) + _file_table([node_file]) + varint(len(children))
    body += _keys([child.key for child in children], interior=True)
    body += varint(0) * len(children)
    for column in ("offset", "size_bytes", "keys", "tree_bytes", "indirect_bytes"):
        body += b"".join(varint(getattr(child, column)) for child in children)
    sums = (sum(c.keys for c in children), sum(c.tree_bytes for c in children), sum(c.indirect_bytes for c in children))
    return _append(nodes, children[0].key, body, *sums)


def _append(nodes: bytearray, key: bytes, body: bytes, keys: int, tree_bytes: int, indirect_bytes: int) -> _Child:
    node = _framed(NODE_MAGIC, body)
    offset = len(nodes)
    nodes += node
    return _Child(key, offset, len(node), keys, tree_bytes + len(node), indirect_bytes)


def _keys(keys: list[bytes], *, interior: bool) -> bytes:
    """The key columns: shared prefix with the key before, rest, (no implicit prefix of the subtree,) and the rests."""
    shared = [0, *itertools.starmap(_shared_length, itertools.pairwise(keys))]
    columns = b"".join(map(varint, shared[1:]))
    columns += b"".join(varint(len(key) - n) for key, n in zip(keys, shared, strict=True))
    columns += varint(0) * len(keys) if interior else b""
    return columns + b"".join(key[n:] for key, n in zip(keys, shared, strict=True))


def _shared_length(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _file_table(files: Sequence[str]) -> bytes:
    """Count, lengths shared with the path before (none), lengths, lengths of the base paths (none), paths."""
    paths = [file.encode() for file in files]
    columns = varint(len(paths)) + varint(0) * max(0, len(paths) - 1)
    return columns + b"".join(varint(len(path)) for path in paths) + varint(0) * len(paths) + b"".join(paths)


def _manifest(root: _Child, height: int, node_file: str, uuid: bytes, time_ms: int) -> bytes:
    config = uuid + varint(0) + varint(MAX_INLINE_BYTES) + varint(MAX_NODE_BYTES)
    config += bytes([VERSION_TREE_ARITY_LOG2]) + varint(0)
    version = varint(1) + varint(1) + bytes([height]) + varint(0) + varint(root.offset) + varint(root.size_bytes)
    version += varint(root.keys) + varint(root.tree_bytes) + varint(root.indirect_bytes) + struct.pack("<Q", time_ms)
    return _framed(MANIFEST_MAGIC, config + _file_table([node_file]) + version + varint(0))


def _framed(magic: int, body: bytes) -> bytes:
    """Magic (big-endian), length of everything, format version 0, no compression, body, CRC-32C of all before it."""
    tail = varint(0) + varint(0) + body
    data = struct.pack(">I", magic) + struct.pack("<Q", 4 + 8 + len(tail) + 4) + tail
    return data + struct.pack("<I", crc32c(data))


def varint(number: int) -> bytes:
    """Little-endian base 128: seven bits a byte, the high bit set on all but the last."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
