"""The records of a checkpoint, as they lie in `manifest.json` and `index/<attempt>/hNNNNN.json`.

Every record is JSON in an envelope `{"format", "version", "crc64nvme", "body"}`: the checksum is over the bytes of
`body` as they stand. The offset of a byte range is from the start of its file, header included.
docs/formats/checkpoint.md explains each field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from forebay.codec import crc64nvme
from forebay.errors import CheckpointCorrupt, FormatUnknown

VERSION = 1
"""The version written. All versions up to it are read."""
MANIFEST_KEY = "manifest.json"
MANIFEST_FORMAT = "forebay.checkpoint"
INDEX_FORMAT = "forebay.checkpoint.index"
FAILURE_FORMAT = "forebay.checkpoint.failure"
BLOCK_BYTES = 4 * 2**20
"""Bytes under one CRC: a piece is cut into blocks of this size, the last one shorter."""


class TypedKey(msgspec.Struct, array_like=True, frozen=True):
    """A dict key that is not a string: its exact type and its text (`int`, `bool`, `float`, `none`, `bytes`,
    `tuple`).
    """

    kind: str
    text: str


Key = str | int | TypedKey
"""One step of a path: a field's name or a string key; a place in a list or tuple; any other dict key."""
Path = tuple[Key, ...]


class Array(msgspec.Struct, tag="array", tag_field="t", omit_defaults=True, frozen=True):
    """A leaf whose data is `Manifest.arrays[index]`. `kind` is what it was: see `checkpoint.leaves`."""

    index: int
    kind: str
    detail: str = ""


class Value(msgspec.Struct, tag="value", tag_field="t", omit_defaults=True, frozen=True):
    """A leaf kept in the manifest itself: its exact type and its text."""

    kind: str
    text: str = ""


class Mapping(msgspec.Struct, tag="dict", tag_field="t", omit_defaults=True, frozen=True):
    """A dict in its order. `type` is `dict` or the name of one of the standard library's subclasses."""

    keys: tuple[Key, ...]
    children: tuple[Node, ...]
    type: str = "dict"


class Sequence(msgspec.Struct, tag="seq", tag_field="t", omit_defaults=True, frozen=True):
    """A list or tuple."""

    children: tuple[Node, ...]
    type: str = "list"


class Fields(msgspec.Struct, tag="fields", tag_field="t", omit_defaults=True, frozen=True):
    """A node of a class of the user's: `type` names it. Loaded without `like`, it is a dict of its fields.

    `kind` is `namedtuple`, `dataclass`, `pytree` (registered with JAX) or `state_dict` (a torch module or the like).
    """

    kind: str
    type: str
    keys: tuple[Key, ...]
    children: tuple[Node, ...]


Node = Array | Value | Mapping | Sequence | Fields


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Contiguous bytes of one array: a box of it, in C order.

    `shape` is the box as stored. The array may end inside it (at its far edges); what lies beyond is zero.
    `crcs`: CRC64NVME of each block of `BLOCK_BYTES`.
    """

    file: int
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    crcs: tuple[int, ...]


class ArrayEntry(msgspec.Struct, omit_defaults=True, frozen=True):
    """One array: its name in the data files, logical dtype, global shape, and the pieces that cover it exactly once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    sharding: str = ""


class FileEntry(msgspec.Struct, frozen=True):
    """A data file: its key below the checkpoint, size, CRC64NVME of all its bytes, and entity tag when it was
    written.
    """

    key: str
    size_bytes: int
    crc: int
    etag: str


class Manifest(msgspec.Struct, omit_defaults=True, frozen=True):
    """A complete checkpoint. That it exists is the commit."""

    attempt: str
    step: int | None
    created_s: float
    writer: str
    block_bytes: int
    tree: Node
    arrays: tuple[ArrayEntry, ...]
    files: tuple[FileEntry, ...]
    metadata: dict[str, Any] = {}
    temporary: bool = False

    def leaves(self, node: Node | None = None, path: Path = ()) -> Iterator[tuple[Path, Array | Value]]:
        """Every leaf under `node` (the root) with its path from there, in the tree's order."""
        node = self.tree if node is None else node
        if isinstance(node, Array | Value):
            yield path, node
            return
        for key, child in children_of(node).items():
            yield from self.leaves(child, (*path, key))

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the checkpoint: nothing has checksums then. See `checkpoint.foreign`."""
        return not self.attempt

    @property
    def size_bytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.size_bytes for file in self.files)


class IndexPiece(msgspec.Struct, array_like=True, frozen=True):
    """A piece written by a host: which of the plan's pieces, and its blocks' CRCs."""

    piece: int
    crcs: tuple[int, ...]


class HostIndex(msgspec.Struct, frozen=True):
    """What one host wrote in one attempt. `plan` is the digest of the plan it followed; all hosts must agree."""

    rank: int
    plan: str
    files: tuple[FileEntry, ...]
    pieces: tuple[IndexPiece, ...]


class HostFailure(msgspec.Struct, frozen=True):
    """Why a host's part of an attempt failed: it stops the others."""

    rank: int
    message: str


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    version: int
    crc64nvme: str
    body: msgspec.Raw


_Record = TypeVar("_Record", Manifest, HostIndex, HostFailure)


def encode(format_name: str, record: Manifest | HostIndex | HostFailure, beside: dict[str, Any] | None = None) -> bytes:
    """The record's bytes, sealed. `beside` are fields of the envelope for other readers; they are not under the checksum."""
    body = msgspec.json.encode(record)
    envelope = _Envelope(format_name, VERSION, f"{crc64nvme(body):016x}", msgspec.Raw(body))
    return msgspec.json.encode({**msgspec.structs.asdict(envelope), **(beside or {})})


def decode(data: bytes, format_name: str, record: type[_Record], where: str) -> _Record:
    """The record in `data`. Raises `FormatUnknown` or `CheckpointCorrupt`, naming `where` it was read."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointCorrupt(f"{where} is not a record of Forebay: {error}") from error
    if envelope.format != format_name:
        raise FormatUnknown(f"{where} says it is {envelope.format!r}, not {format_name!r}")
    if envelope.version > VERSION:
        raise FormatUnknown(f"{where} has format version {envelope.version}; this Forebay reads up to {VERSION}. Upgrade it")
    if f"{crc64nvme(bytes(envelope.body)):016x}" != envelope.crc64nvme:
        raise CheckpointCorrupt(f"{where} fails its own checksum")
    try:
        return msgspec.json.decode(envelope.body, type=record)
    except msgspec.DecodeError as error:
        raise CheckpointCorrupt(f"{where}: {error}") from error


def children_of(node: Node) -> dict[Key, Node]:
    """A node's children by key, in order; none of a leaf."""
    if isinstance(node, Array | Value):
        return {}
    keys: tuple[Key, ...] = tuple(range(len(node.children))) if isinstance(node, Sequence) else node.keys
    return dict(zip(keys, node.children, strict=True))


def path_text(path: Path) -> str:
    """A path for people, such as `model/layers/0/w` or `state/[int 1]/exp_avg`."""
    return "/".join(f"[{k.kind} {k.text}]" if isinstance(k, TypedKey) else str(k) for k in path)
