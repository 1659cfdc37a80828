from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.placement import BLOCK_ALIGN_BYTES, UNIT_BYTES, Geometry, set_of_key
from forebay.engine.reader import cut_extents, stripes
from forebay.engine.records import Extent

GEOMETRIES = [
    Geometry(1, 0),
    Geometry(1, 1),
    Geometry(2, 1),
    Geometry(3, 1),
    Geometry(2, 2),
    Geometry(4, 2),
    Geometry(8, 4),
    Geometry(12, 4),
]


@pytest.mark.parametrize(
    "g, write, read",
    [
        (Geometry(1, 0), 1, 1),
        (Geometry(1, 1), 2, 1),
        (Geometry(2, 1), 2, 2),
        (Geometry(3, 1), 3, 2),
        (Geometry(2, 2), 3, 2),
        (Geometry(8, 4), 8, 5),
    ],
)
def test_quorums(g: Geometry, write: int, read: int) -> None:
    assert (g.write_quorum, g.read_quorum) == (write, read)


@pytest.mark.parametrize("g", GEOMETRIES)
def test_quorums_overlap_and_a_commit_can_be_read(g: Geometry) -> None:
    assert g.write_quorum + g.read_quorum > g.drives, "a reader meets the last acknowledged commit"
    assert 2 * g.write_quorum > g.drives, "two commits meet"
    assert g.write_quorum >= g.data, "what is acknowledged can be rebuilt"


@given(st.sampled_from(GEOMETRIES), st.integers(1, 40 * UNIT_BYTES))
def test_stripes_cover_a_blob_and_shards_are_as_long_as_their_blocks(g: Geometry, size: int) -> None:
    found = list(stripes(g, size, 0, size, UNIT_BYTES))
    assert sum(s.content for s in found) == size
    assert len(found) == g.stripes(size)
    assert g.shard_bytes(size) == sum(s.block for s in found)
    offset = 0
    for s in found:
        assert s.shard_offset == offset and s.block % BLOCK_ALIGN_BYTES == 0 and s.block <= UNIT_BYTES
        assert s.content <= g.data * s.block < s.content + g.data * BLOCK_ALIGN_BYTES, "no block more than needed"
        offset += s.block


@given(st.sampled_from(GEOMETRIES), st.integers(1, 40 * UNIT_BYTES), st.data())
def test_a_range_takes_only_the_stripes_it_touches(g: Geometry, size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    found = list(stripes(g, size, start, stop, UNIT_BYTES))
    assert found[0].start <= start < found[0].start + found[0].content
    assert found[-1].start < stop <= found[-1].start + found[-1].content


@given(st.sampled_from(GEOMETRIES), st.binary(min_size=16, max_size=16))
def test_shards_lie_on_different_drives(g: Geometry, blob_id: bytes) -> None:
    assert sorted(g.drive_of(blob_id, p) for p in range(g.drives)) == list(range(g.drives))
    assert all(g.shard_of(blob_id, g.drive_of(blob_id, p)) == p for p in range(g.drives))


@given(st.lists(st.integers(1, 50), max_size=6), st.data())
def test_cutting_extents(lengths: list[int], data: st.DataObject) -> None:
    extents = [Extent(0, bytes([i]) * 16, 10 * i, n) for i, n in enumerate(lengths)]
    whole = [(e.blob_id, e.offset + i) for e in extents for i in range(e.length)]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert [(e.blob_id, e.offset + i) for e in cut_extents(extents, start, stop) for i in range(e.length)] == whole[start:stop]


def test_keys_spread_over_sets_and_stay_there() -> None:
    bucket = bytes(16)
    counts = [0] * 4
    for i in range(4000):
        counts[set_of_key(bucket, b"key %d" % i, 4)] += 1
    assert min(counts) > 850
    pinned = [set_of_key(bucket, key, 7) for key in (b"", b"a", b"b", b"a/b", b"\xff")]
    assert pinned == [1, 4, 4, 4, 1], "what is stored lies where this says"
    assert set_of_key(bucket, b"anything", 1) == 0
