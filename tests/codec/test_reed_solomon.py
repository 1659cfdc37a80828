from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rs_reference import inverse, multiply, parity_blocks

from forebay.codec import ReedSolomon, crc64nvme, isal
from forebay.codec.isal import address_of
from forebay.codec.reed_solomon import BLOCKS_MAX, DECODERS_MAX
from forebay.errors import ConfigError

GEOMETRIES = [(k, m) for k in range(1, 9) for m in range(5) if k + m <= 10]


def encoded(k: int, m: int, block_bytes: int, seed: int = 1) -> bytearray:
    """n blocks in a row, parity filled by `encode`."""
    buffer = bytearray(Random(seed).randbytes(k * block_bytes) + bytes(m * block_bytes))
    ReedSolomon.of(k, m).encode(address_of(buffer), block_bytes)
    return buffer


def addresses(buffer: bytearray, n: int, block_bytes: int) -> list[int]:
    return [address_of(buffer) + index * block_bytes for index in range(n)]


@pytest.mark.parametrize(("k", "m"), [*GEOMETRIES, (12, 4), (15, 1), (16, 0), (8, 8)])
@pytest.mark.parametrize("block_bytes", [1, 63, 64, 1000, 4096])
def test_parity_is_what_the_arithmetic_says(k, m, block_bytes):
    buffer = encoded(k, m, block_bytes)
    blocks = [bytes(buffer[index * block_bytes : (index + 1) * block_bytes]) for index in range(k + m)]
    assert blocks[k:] == parity_blocks(blocks[:k], m)


@pytest.mark.parametrize(("k", "m"), GEOMETRIES)
def test_every_erasure_pattern_is_rebuilt_and_nothing_else_is_touched(k, m):
    n, block_bytes = k + m, 96
    whole = encoded(k, m, block_bytes)
    coder = ReedSolomon.of(k, m)
    for count in range(m + 1):
        for lost in combinations(range(n), count):
            damaged = bytearray(whole)
            for position in lost:
                damaged[position * block_bytes : (position + 1) * block_bytes] = b"\xaa" * block_bytes
            present = [position not in lost for position in range(n)]
            coder.rebuild(addresses(damaged, n, block_bytes), present, block_bytes, lost)
            assert damaged == whole


@pytest.mark.parametrize(("k", "m"), [(k, m) for k in range(1, BLOCKS_MAX) for m in range(1, BLOCKS_MAX - k + 1)])
def test_every_minor_of_the_cauchy_matrix_of_two_rows_is_invertible(k, m):
    """The determinant of rows a, b and columns c, d; larger minors are covered by the erasure patterns above."""
    for rows in combinations(range(k, k + m), min(2, m)):
        for columns in combinations(range(k), min(len(rows), k)):
            cells = [[inverse(row ^ column) for column in columns] for row in rows[: len(columns)]]
            if len(columns) == 1:
                assert cells[0][0]
            else:
                assert multiply(cells[0][0], cells[1][1]) != multiply(cells[0][1], cells[1][0])


def test_the_worst_patterns_of_the_widest_sets_are_rebuilt():
    for k, m in [(12, 4), (8, 8), (1, 15)]:
        n, block_bytes = k + m, 64
        whole = encoded(k, m, block_bytes)
        for lost in Random(k).sample(list(combinations(range(n), m)), min(400, len(list(combinations(range(n), m))))):
            damaged = bytearray(whole)
            for position in lost:
                damaged[position * block_bytes : (position + 1) * block_bytes] = bytes(block_bytes)
            present = [position not in lost for position in range(n)]
            ReedSolomon.of(k, m).rebuild(addresses(damaged, n, block_bytes), present, block_bytes, lost)
            assert damaged == whole


def test_blocks_that_are_lost_but_not_wanted_may_have_no_address():
    whole = encoded(4, 2, 128)
    target = bytearray(128)
    blocks = addresses(whole, 6, 128)
    blocks[0], blocks[5] = address_of(target), 0
    ReedSolomon.of(4, 2).rebuild(blocks, [False, True, True, True, True, False], 128, [0])
    assert target == whole[:128]


def test_encode_blocks_takes_blocks_that_lie_anywhere():
    whole = encoded(3, 2, 4096)
    apart = [whole[index * 4096 : (index + 1) * 4096] if index < 3 else bytearray(4096) for index in range(5)]
    ReedSolomon.of(3, 2).encode_blocks([address_of(block) for block in apart], 4096)
    assert b"".join(apart) == whole


def test_too_few_blocks_are_refused():
    coder = ReedSolomon.of(3, 2)
    with pytest.raises(ValueError, match="2 blocks are present, 3 are needed"):
        coder.rebuild([0] * 5, [True, True, False, False, False], 64, [2])
    with pytest.raises(ValueError, match="some of them are present"):
        coder.rebuild([0] * 5, [True, True, True, True, False], 64, [1])
    with pytest.raises(ValueError, match="need 5 addresses"):
        coder.rebuild([0] * 4, [True] * 5, 64, [])
    with pytest.raises(ValueError, match="at most"):
        coder.encode(0, 2**31)


@pytest.mark.parametrize(("k", "m"), [(0, 1), (1, -1), (16, 1), (17, 0)])
def test_impossible_geometries_are_refused(k, m):
    with pytest.raises(ValueError, match="data"):
        ReedSolomon.of(k, m)


def test_coders_are_shared_and_decoders_are_bounded():
    assert ReedSolomon.of(3, 1) is ReedSolomon.of(3, 1)
    coder, whole = ReedSolomon(8, 4), encoded(8, 4, 16)
    for lost in combinations(range(12), 4):
        present = [position not in lost for position in range(12)]
        coder.rebuild(addresses(whole, 12, 16), present, 16, lost)
    assert whole == encoded(8, 4, 16)
    assert coder._decoder.cache_info().currsize == DECODERS_MAX


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), geometry=st.sampled_from(GEOMETRIES), seed=st.integers(0, 2**32))
def test_small_objects_come_back_from_any_k_shards(data, geometry, seed):
    k, m = geometry
    coder = ReedSolomon.of(k, m)
    shards = coder.encode_small(data)
    assert [len(shard) for shard in shards] == [-(-len(data) // k)] * (k + m)
    assert b"".join(shards[:k])[: len(data)] == data and not any(b"".join(shards[:k])[len(data) :])
    lost = Random(seed).sample(range(k + m), m)
    kept = [None if position in lost else memoryview(shard) for position, shard in enumerate(shards)]
    assert coder.join_small(kept, len(data)) == data
    if m and data:
        kept[next(position for position in range(k + m) if position not in lost)] = None
        with pytest.raises(ValueError, match="are needed"):
            coder.join_small([None if k == 1 else shard for shard in kept], len(data))


def test_small_shards_agree_with_the_block_coder():
    data = Random(5).randbytes(4 * 999)
    buffer = bytearray(data + bytes(2 * 999))
    ReedSolomon.of(4, 2).encode(address_of(buffer), 999)
    assert b"".join(ReedSolomon.of(4, 2).encode_small(memoryview(data))) == buffer


def test_shards_of_a_wrong_length_are_refused():
    coder = ReedSolomon.of(2, 1)
    shards = coder.encode_small(b"abcdef")
    with pytest.raises(ValueError, match="3 shards of 4 bytes"):
        coder.join_small(shards, 8)
    with pytest.raises(ValueError, match="3 shards of 3 bytes"):
        coder.join_small(shards[:2], 6)


def test_the_self_test_constant_comes_from_the_reference():
    k, m, length = 3, 2, 4096 + 77
    source = bytes((index * 31 + (index >> 8) * 7) & 0xFF for index in range(k * length))
    blocks = [source[index * length : (index + 1) * length] for index in range(k)]
    assert crc64nvme(b"".join(parity_blocks(blocks, m))) == isal.SELF_TEST_CRC


def test_a_library_that_computes_wrongly_is_refused():
    class Broken:
        gf_gen_cauchy1_matrix = isal.library().gf_gen_cauchy1_matrix
        ec_init_tables = isal.library().ec_init_tables

        @staticmethod
        def ec_encode_data(*arguments: object) -> None:
            pass

    with pytest.raises(ConfigError, match=r"broken\.so: .* self-test"):
        isal.self_test(Broken, "broken.so")


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setattr(isal, "bundled_library", lambda: None)
    monkeypatch.setattr(isal, "SYSTEM_LIBRARY", "libno-such-isal.so.2")
    with pytest.raises(ConfigError, match=r"install pyeclib.*libisal2.*libno-such-isal"):
        isal.library.__wrapped__()
