"""Systematic Reed-Solomon coding over GF(2^8) with a Cauchy matrix, computed by ISA-L on the caller's buffers."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.codec.crc import Buffer


class ReedSolomon:
    """`data` (k) data blocks and `parity` (m) parity blocks, any k of which give back all n = k + m."""

    def __init__(self, data: int, parity: int) -> None:
        raise NotImplementedError

    @classmethod
    def of(cls, data: int, parity: int) -> ReedSolomon:
        """The coder of this geometry, made once a process. Raises ValueError unless 1 <= k, 0 <= m and n <= 16."""
        raise NotImplementedError

    def encode(self, base: int, block_bytes: int) -> None:
        """Fill the m parity blocks that follow the k data blocks at address `base`; all lie `block_bytes` apart."""
        raise NotImplementedError

    def encode_blocks(self, blocks: Sequence[int], block_bytes: int) -> None:
        """The same for blocks anywhere: n addresses, the k data blocks first."""
        raise NotImplementedError

    def rebuild(self, blocks: Sequence[int], present: Sequence[bool], block_bytes: int, want: Sequence[int]) -> None:
        """Fill the blocks at the positions `want` from any k that are `present`.

        `blocks` are n addresses; those neither present nor wanted are not touched and may be 0. ValueError if fewer than k
        blocks are present or a wanted one is present.
        """
        raise NotImplementedError

    def encode_small(self, data: Buffer) -> list[bytes]:
        """Cut `data` into n shards of ceil(len / k) bytes, zero padded, parity last."""
        raise NotImplementedError

    def join_small(self, shards: Sequence[Buffer | None], size_bytes: int) -> bytes:
        """The `size_bytes` that `encode_small` cut, from any k of its n shards. ValueError if there are fewer."""
        raise NotImplementedError
