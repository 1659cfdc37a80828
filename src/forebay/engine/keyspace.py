"""Index keys: how S3's keys of up to 1,024 bytes become keys of at most 511 bytes that sort the same.

An entry is ``table (1) · node (16) · name · 00 01 · suffix``. The name is the S3 key with every zero byte written as ``00 FF``;
since ``00 01`` ends it, ``a`` sorts before ``a\\0`` and ``a!``, and all entries of one key are neighbours.

A name longer than SEGMENT_BYTES is cut: its first SEGMENT_BYTES are looked up in a node of their own, whose id is a hash of the parent
node and the segment, so that a point look-up needs no extra read. For listings, a pointer entry ``table · node · segment · FF`` stands
in the parent where the longer names sort: after the name that equals the segment (``segment · 00 01``) and before every other.

The suffix of a version is its inverted sequence number and its flags, so that the newest sorts first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b

TABLE_BUCKET, TABLE_OBJECT, TABLE_UPLOAD, TABLE_PART = b"B", b"O", b"U", b"P"
TABLE_COMPLETED, TABLE_BLOB, TABLE_CLAIM, TABLE_HEAL, TABLE_LOG, TABLE_SYSTEM = b"X", b"D", b"C", b"H", b"L", b"S"
TABLE_REAP, TABLE_FOREIGN = b"R", b"F"  # work for a later commit of this set; claims to release on other sets

NODE_BYTES = 16
SEGMENT_BYTES = 440
TERMINATOR = b"\x00\x01"
POINTER_MARK = b"\xff"
LMDB_KEY_BYTES_MAX = 511
VERSION_SUFFIX_BYTES = 9
UPLOAD_SUFFIX_BYTES = 16
SEQ_MAX = (1 << 64) - 1

assert 1 + NODE_BYTES + SEGMENT_BYTES + len(TERMINATOR) + UPLOAD_SUFFIX_BYTES <= LMDB_KEY_BYTES_MAX
POINTER_KEY_BYTES = 1 + NODE_BYTES + SEGMENT_BYTES + len(POINTER_MARK)

_U64 = struct.Struct(">Q")
_VERSION_SUFFIX = struct.Struct(">QB")


def escape(key: bytes) -> bytes:
    """The S3 key as a name."""
    return key.replace(b"\x00", b"\x00\xff") if b"\x00" in key else key


def unescape(name: bytes) -> bytes:
    """The S3 key of a name."""
    return name.replace(b"\x00\xff", b"\x00") if b"\x00" in name else name


def child_node(node: bytes, segment: bytes) -> bytes:
    """The node of the names that start with `segment` and are longer."""
    return blake2b(segment, digest_size=NODE_BYTES, key=node).digest()


def descend(node: bytes, name: bytes) -> tuple[bytes, bytes]:
    """The node in which a name's entries stand, and the rest of the name there."""
    while len(name) > SEGMENT_BYTES:
        node, name = child_node(node, name[:SEGMENT_BYTES]), name[SEGMENT_BYTES:]
    return node, name


def entry_prefix(table: bytes, node: bytes, key: bytes) -> bytes:
    """What all entries of one S3 key start with."""
    if len(key) <= SEGMENT_BYTES // 2:  # even if every byte is escaped it fits one segment
        return table + node + escape(key) + TERMINATOR
    node, name = descend(node, escape(key))
    return table + node + name + TERMINATOR


def pointers(table: bytes, node: bytes, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, child node) of every pointer entry that a long S3 key needs; none for an ordinary one."""
    name = escape(key)
    while len(name) > SEGMENT_BYTES:
        segment, name = name[:SEGMENT_BYTES], name[SEGMENT_BYTES:]
        child = child_node(node, segment)
        yield table + node + segment + POINTER_MARK, child
        node = child


def version_key(prefix: bytes, seq: int, flags: int) -> bytes:
    """The index key of a version, from its `entry_prefix`."""
    return prefix + _VERSION_SUFFIX.pack(SEQ_MAX - seq, flags)


def version_suffix(entry_key: bytes) -> tuple[int, int]:
    """(sequence number, flags) of a version's index key."""
    inverted, flags = _VERSION_SUFFIX.unpack_from(entry_key, len(entry_key) - VERSION_SUFFIX_BYTES)
    return SEQ_MAX - inverted, flags


def version_id(seq: int, random: bytes) -> str:
    """S3's version id: 32 hexadecimal digits."""
    return _U64.pack(seq).hex() + random.hex()


def parse_version_id(text: str) -> tuple[int, bytes] | None:
    """(sequence number, random) or None if the text is not a version id of ours."""
    if len(text) != 32:
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return (_U64.unpack_from(raw)[0], raw[8:]) if raw.hex() == text else None


def successor(prefix: bytes) -> bytes | None:
    """The smallest byte string above every string that starts with `prefix`; None if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


def bucket_key(name: str) -> bytes:
    """Of a bucket record."""
    return TABLE_BUCKET + name.encode()


def part_key(upload_id: bytes, number: int) -> bytes:
    """Of a part record."""
    return TABLE_PART + upload_id + number.to_bytes(2, "big")


def claim_key(blob_id: bytes, owner: bytes) -> bytes:
    """Of a claim."""
    return TABLE_CLAIM + blob_id + owner


def reap_key(seq: int, index: int) -> bytes:
    """Of a reap record: in commit order."""
    return TABLE_REAP + _U64.pack(seq) + index.to_bytes(4, "big")


def log_key(seq: int) -> bytes:
    """Of a log record."""
    return TABLE_LOG + _U64.pack(seq)


def log_seq(key: bytes) -> int:
    """The commit that a log record describes."""
    return int(_U64.unpack_from(key, 1)[0])


def heal_key(position: int, blob_id: bytes) -> bytes:
    """Of a heal record: the shard of `blob_id` on drive `position` is missing or damaged."""
    return TABLE_HEAL + bytes([position]) + blob_id
