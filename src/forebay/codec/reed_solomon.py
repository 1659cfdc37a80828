"""Systematic Reed-Solomon coding over GF(2^8) with a Cauchy matrix, computed by ISA-L on the caller's buffers.

The generator is the identity of k rows over a Cauchy matrix of m rows (J. Bloemer et al., "An XOR-Based
Erasure-Resilient Coding Scheme", 1995): every square part of a Cauchy matrix is invertible, so any k of the n blocks
give back all of them. This does not hold for the Vandermonde matrices that ISA-L offers as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from forebay.codec.crc import Buffer
from forebay.codec.isal import address_of, ffi, library

ADDRESSES = ffi.typeof("uintptr_t[]")
BLOCKS_MAX = 16  # n of one set; keeps decoding tables small and every failure pattern testable
BLOCK_BYTES_MAX = 2**31 - 1  # ISA-L takes the length as a C int
DECODERS_MAX = 256  # failure patterns remembered a geometry, at most 7.5 KiB each


class ReedSolomon:
    """`data` (k) data blocks and `parity` (m) parity blocks, any k of which give back all n = k + m.

    Calls release the GIL and may run in many threads at once. Use `of`, which makes one a geometry.
    """

    def __init__(self, data: int, parity: int) -> None:
        if data < 1 or parity < 0 or data + parity > BLOCKS_MAX:
            raise ValueError(f"data={data}, parity={parity}: need data >= 1, parity >= 0 and a sum <= {BLOCKS_MAX}")
        self.data = data
        self.parity = parity
        self.total = data + parity
        self._library = library()
        self._encode = self._library.ec_encode_data
        generator = ffi.new("unsigned char[]", self.total * data)
        self._library.gf_gen_cauchy1_matrix(generator, self.total, data)
        self._generator = bytes(ffi.buffer(generator))
        self._tables = self._make_tables(self._generator[data * data :], parity)
        self._decoder = lru_cache(maxsize=DECODERS_MAX)(self._make_decoder)

    @classmethod
    def of(cls, data: int, parity: int) -> ReedSolomon:
        """The coder of this geometry, made once a process. Raises ValueError unless 1 <= k, 0 <= m and n <= 16."""
        return _coder(data, parity)

    def encode(self, base: int, block_bytes: int) -> None:
        """Fill the m parity blocks that follow the k data blocks at address `base`; all lie `block_bytes` apart."""
        self.encode_blocks([base + index * block_bytes for index in range(self.total)], block_bytes)

    def encode_blocks(self, blocks: Sequence[int], block_bytes: int) -> None:
        """The same for blocks anywhere: n addresses, the k data blocks first."""
        self._check(blocks, block_bytes)
        self._multiply(self._tables, blocks, block_bytes)

    def rebuild(self, blocks: Sequence[int], present: Sequence[bool], block_bytes: int, want: Sequence[int]) -> None:
        """Fill the blocks at the positions `want` from any k that are `present`.

        `blocks` are n addresses; those neither present nor wanted are not touched and may be 0. ValueError if fewer
        than k blocks are present or a wanted one is present.
        """
        self._check(blocks, block_bytes)
        have = [position for position in range(self.total) if present[position]][: self.data]
        if len(have) < self.data:
            raise ValueError(f"{sum(present)} blocks are present, {self.data} are needed")
        if any(present[position] for position in want):
            raise ValueError(f"blocks {sorted(want)} are wanted but some of them are present")
        if want:
            tables = self._decoder(tuple(have), tuple(want))
            self._multiply(tables, [blocks[position] for position in (*have, *want)], block_bytes)

    def encode_small(self, data: Buffer) -> list[bytes]:
        """Cut `data` into n shards of ceil(len / k) bytes, zero padded, parity last."""
        block_bytes = -(-len(data) // self.data)
        if not block_bytes:
            return [b""] * self.total
        buffer = bytearray(self.total * block_bytes)
        buffer[: len(data)] = data
        self.encode(address_of(buffer), block_bytes)
        whole = bytes(buffer)
        return [whole[start : start + block_bytes] for start in range(0, len(whole), block_bytes)]

    def join_small(self, shards: Sequence[Buffer | None], size_bytes: int) -> bytes:
        """The `size_bytes` that `encode_small` cut, from any k of its n shards (None: lost).

        ValueError if there are fewer, or if one has not the length that belongs to `size_bytes`.
        """
        block_bytes = -(-size_bytes // self.data)
        if len(shards) != self.total or any(shard is not None and len(shard) != block_bytes for shard in shards):
            raise ValueError(f"need {self.total} shards of {block_bytes} bytes or None")
        lost = [position for position in range(self.data) if shards[position] is None]
        whole = [bytearray(block_bytes) if shard is None else shard for shard in shards]
        if lost:
            present = [shard is not None for shard in shards]
            self.rebuild([address_of(shard) for shard in whole], present, block_bytes, lost)
        return b"".join(whole[: self.data])[:size_bytes]

    def _check(self, blocks: Sequence[int], block_bytes: int) -> None:
        if len(blocks) != self.total or not 0 <= block_bytes <= BLOCK_BYTES_MAX:
            limits = f"need {self.total} addresses of at most {BLOCK_BYTES_MAX} bytes"
            raise ValueError(f"{limits}, got {len(blocks)} of {block_bytes}")

    def _multiply(self, tables: Any, blocks: Sequence[int], block_bytes: int) -> None:
        """Fill the blocks behind the first k with the products of those k and the matrix of `tables`."""
        rows = len(blocks) - self.data
        if rows and block_bytes:
            addresses = ffi.new(ADDRESSES, blocks)
            self._encode(block_bytes, self.data, rows, tables, addresses, addresses + self.data)

    def _make_tables(self, matrix: bytes, rows: int) -> Any:
        tables = ffi.new("unsigned char[]", 32 * self.data * rows)
        self._library.ec_init_tables(self.data, rows, ffi.from_buffer(matrix), tables)
        return tables

    def _make_decoder(self, have: tuple[int, ...], want: tuple[int, ...]) -> Any:
        """Tables of the matrix that turns blocks `have` into blocks `want`: generator[want] x generator[have]^-1."""
        k, multiply = self.data, self._library.gf_mul
        rows = [self._generator[position * k : (position + 1) * k] for position in range(self.total)]
        square = ffi.new("unsigned char[]", b"".join(rows[position] for position in have))
        inverse = ffi.new("unsigned char[]", k * k)
        if self._library.gf_invert_matrix(square, inverse, k):
            raise AssertionError(f"Cauchy submatrix {have} of {k}+{self.parity} is singular")
        decoder = bytearray()
        for position in want:
            for column in range(k):
                value = 0
                for index in range(k):
                    value ^= multiply(rows[position][index], inverse[index * k + column])
                decoder.append(value)
        return self._make_tables(bytes(decoder), len(want))


@cache
def _coder(data: int, parity: int) -> ReedSolomon:
    return ReedSolomon(data, parity)
