"""Where things go: pure functions of names, sizes and geometry."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from forebay.codec import crc64nvme

UNIT_BYTES = 1 << 20  # a full block
BLOCK_ALIGN_BYTES = 4096  # direct I/O
INLINE_BYTES_MAX = 64 << 10  # larger objects get a blob


def set_of_key(bucket_id: bytes, key: bytes, sets: int) -> int:
    """The erasure set of a key."""
    if sets == 1:
        return 0
    return int.from_bytes(blake2b(key, digest_size=8, key=bucket_id).digest(), "little") % sets


class Geometry(NamedTuple):
    """An erasure set: `data` + `parity` drives."""

    data: int
    parity: int

    @property
    def drives(self) -> int:
        """How many drives hold a stripe."""
        return self.data + self.parity

    @property
    def write_quorum(self) -> int:
        """How many drives must hold a commit before it is acknowledged."""
        return self.data + 1 if self.data == self.parity else self.data

    @property
    def read_quorum(self) -> int:
        """How many drives must be present so that one of them surely has the last acknowledged commit."""
        return self.drives - self.write_quorum + 1

    @property
    def stripe_bytes(self) -> int:
        """Content bytes of a full stripe."""
        return self.data * UNIT_BYTES

    def stripes(self, size: int) -> int:
        """Stripes of a blob of `size` bytes; a blob is never empty."""
        return -(-size // self.stripe_bytes)

    def block_bytes(self, content_bytes: int) -> int:
        """Block length of a stripe that holds `content_bytes`."""
        return -(-content_bytes // (self.data * BLOCK_ALIGN_BYTES)) * BLOCK_ALIGN_BYTES

    def shard_bytes(self, size: int) -> int:
        """Length of each shard file of a blob of `size` bytes."""
        full, rest = divmod(size, self.stripe_bytes)
        return full * UNIT_BYTES + (self.block_bytes(rest) if rest else 0)

    def rotation(self, blob_id: bytes) -> int:
        """Shard position p of a blob lies on drive (p + rotation) mod n."""
        return blob_id[0] % self.drives

    def drive_of(self, blob_id: bytes, shard_position: int) -> int:
        """The drive that holds a shard position."""
        return (shard_position + self.rotation(blob_id)) % self.drives

    def shard_of(self, blob_id: bytes, drive_position: int) -> int:
        """The shard position that a drive holds."""
        return (drive_position - self.rotation(blob_id)) % self.drives


def inline_rotation(prefix: bytes, drives: int) -> int:
    """Shard position s of an inline object lies on drive (s + rotation) mod n."""
    return crc64nvme(prefix) % drives
