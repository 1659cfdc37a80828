"""Boxes, cuts and plans: every element is written exactly once, whatever the layout."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.checkpoint import dtypes
from forebay.checkpoint.fetch import _blocks_touched, contiguous_span
from forebay.checkpoint.layout import CELLS_MAX, REPLICA_SLICE_BYTES_MIN, Box, c_order_boxes, cut, join_boxes, whole
from forebay.checkpoint.manifest import Piece
from forebay.checkpoint.plan import ArraySpec, make_plan
from forebay.checkpoint.stage import Part, block_bounds, block_count, parts_of

shapes = st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple)


@st.composite
def box_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    start = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return Box(start, tuple(draw(st.integers(1, n - a)) for n, a in zip(shape, start, strict=True)))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[Box, ...], ...]]:
    """A shape, and by rank boxes that together cover it: a random grid, dealt out with replicas."""
    shape = draw(shapes)
    planes = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=3))}) for n in shape]
    cells: list[Box] = [Box((), ())]
    for p in planes:
        cells = [Box((*c.start, a), (*c.shape, b - a)) for c in cells for a, b in itertools.pairwise(p)]
    ranks = draw(st.integers(1, 4))
    holders: list[list[Box]] = [[] for _ in range(ranks)]
    for cell in cells:
        for rank in draw(st.sets(st.integers(0, ranks - 1), min_size=1)):
            holders[rank].append(cell)
    return shape, tuple(map(tuple, holders))


@given(layouts())
def test_cells_cover_each_element_once_and_are_held(layout: tuple[tuple[int, ...], tuple[tuple[Box, ...], ...]]) -> None:
    shape, holders = layout
    seen = np.zeros(shape, int)
    for cell in cut(shape, 4, holders):
        seen[cell.box.within((0,) * len(shape))] += 1
        for rank in cell.holders:
            held = np.zeros(shape, bool)
            for box in holders[rank]:
                held[box.within((0,) * len(shape))] = True
            assert held[cell.box.within((0,) * len(shape))].all()
        assert all(a <= b for a, b in zip(cell.box.shape, cell.stored_shape, strict=True))
    assert (seen == 1).all()


@given(layouts())
def test_the_cut_is_a_regular_grid(layout: tuple[tuple[int, ...], tuple[tuple[Box, ...], ...]]) -> None:
    """Small arrays never hit `CELLS_MAX`, so all cells are stored with one shape and stand at its multiples."""
    shape, holders = layout
    cells = cut(shape, 4, holders)
    assert len(cells) <= CELLS_MAX
    stored = cells[0].stored_shape
    for cell in cells:
        assert cell.stored_shape == stored
        assert all(a % n == 0 for a, n in zip(cell.box.start, stored, strict=True))


def test_uneven_shards_are_padded_not_shredded() -> None:
    rows = tuple((Box((a, 0), (n, 8)),) for a, n in ((0, 3), (3, 3), (6, 3), (9, 1)))
    cells = cut((10, 8), 4, rows)
    assert [(c.box.shape, c.stored_shape) for c in cells] == [((3, 8), (3, 8))] * 3 + [((1, 8), (3, 8))]


def test_a_rank_that_holds_all_parts_holds_one_box() -> None:
    quarters = [Box((a, b), (2, 2)) for a in (0, 2) for b in (0, 2)]
    assert join_boxes(quarters) == (whole((4, 4)),)
    assert join_boxes(quarters[:3]) == tuple(sorted(quarters[:3]))
    overlapping = [Box((0,), (3,)), Box((2,), (3,)), Box((4,), (2,))]
    assert join_boxes(overlapping) == tuple(sorted(overlapping))
    assert len(cut((4, 4), 4, (tuple(quarters),))) == 1


def test_what_nobody_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no process holds the part \[2:4\]"):
        cut((4,), 4, ((Box((0,), (2,)),),))


def test_replicas_share_large_arrays_and_leave_small_ones_whole() -> None:
    rows = 4 * REPLICA_SLICE_BYTES_MIN // 4096
    held = tuple((whole((rows, 1024)),) for _ in range(8))
    assert len(cut((rows, 1024), 4, held)) == 4
    assert len(cut((rows // 8, 1024), 4, held)) == 1
    plan = make_plan([ArraySpec("w", "float32", (rows, 1024), held)], 8, "a")
    assert sorted(piece.rank for piece in plan.pieces) == [0, 1, 2, 3]


def test_replicas_share_many_small_arrays() -> None:
    held = tuple((whole((1000,)),) for _ in range(4))
    plan = make_plan([ArraySpec(f"w{i}", "float32", (1000,), held) for i in range(16)], 4, "a")
    assert [sum(p.rank == r for p in plan.pieces) for r in range(4)] == [4, 4, 4, 4]


def test_zero_size_arrays_have_a_piece() -> None:
    plan = make_plan([ArraySpec("w", "float32", (0, 5), ((whole((0, 5)),),))], 1, "a")
    assert [(p.size_bytes, p.stored_shape) for p in plan.pieces] == [(0, (0, 5))]


@given(st.data(), shapes)
def test_c_order_boxes_list_the_elements_in_order(data: st.DataObject, shape: tuple[int, ...]) -> None:
    flat = np.arange(math.prod(shape)).reshape(shape)
    first = data.draw(st.integers(0, flat.size))
    last = data.draw(st.integers(first, flat.size))
    boxes = c_order_boxes(shape, first, last)
    listed = [int(x) for box in boxes for x in flat[box.within((0,) * len(shape))].ravel()]
    assert listed == list(range(first, last))
    assert len(boxes) <= max(1, 2 * len(shape))


@given(st.data(), shapes)
def test_contiguous_span_agrees_with_addresses(data: st.DataObject, shape: tuple[int, ...]) -> None:
    common = data.draw(box_in(shape))
    flat = np.arange(math.prod(shape)).reshape(shape)
    elements = flat[common.within((0,) * len(shape))].ravel()
    span = contiguous_span(whole(shape), common, common)
    contiguous = (np.diff(elements) == 1).all()
    assert (span is not None) == contiguous
    if span is not None:
        assert span == (elements[0], 0)


@given(st.data(), shapes, st.integers(1, 9), st.integers(0, 20))
def test_blocks_touched_are_those_that_hold_the_box(data: st.DataObject, shape: tuple[int, ...], window: int, offset: int) -> None:
    itemsize = 4
    piece = Piece(0, offset * itemsize, (0,) * len(shape), shape, ())
    common = data.draw(box_in(shape))
    flat = np.arange(math.prod(shape)).reshape(shape)
    size = window * itemsize
    wanted = {(offset + int(e)) * itemsize // size - offset * itemsize // size for e in flat[common.within((0,) * len(shape))].ravel()}
    touched = _blocks_touched(piece, common, itemsize, size)
    assert wanted <= set(touched)
    assert touched == sorted(set(touched))
    assert max(touched) <= max(wanted) and min(touched) >= min(wanted)
    inner = math.prod(shape[1:]) * itemsize
    if inner > size and len(shape) == 1:
        assert set(touched) == wanted


specs = st.lists(
    st.tuples(st.sampled_from(["float32", "bfloat16", "int8", "complex128", "int4", "float64", "numpy:|S3"]), layouts()), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(specs)
def test_plans_are_valid_safetensors_files(arrays: list[tuple[str, tuple[tuple[int, ...], tuple[tuple[Box, ...], ...]]]]) -> None:
    ranks = 4
    padded = [ArraySpec(f"a.{i}", d, s, h + ((),) * (ranks - len(h))) for i, (d, (s, h)) in enumerate(arrays)]
    plan = make_plan(padded, ranks, "0123456789ab")
    assert plan == make_plan(list(padded), ranks, "0123456789ab")
    for index, file in enumerate(plan.files):
        assert len(file.header) % 4096 == 0
        loaded = dict(safetensors.deserialize(file.header + bytes(file.size_bytes - len(file.header))))
        assert set(loaded) == {plan.pieces[i].name for i in file.pieces}
        end = len(file.header)
        for number in file.pieces:
            piece = plan.pieces[number]
            assert piece.offset == end and piece.file == index and piece.rank == file.rank
            assert piece.offset % dtypes.alignment_of(padded[piece.array].dtype) == 0
            end += piece.size_bytes
        assert end == file.size_bytes
    for array, spec in enumerate(padded):
        seen = np.zeros(spec.shape, int)
        for piece in plan.pieces:
            if piece.array == array:
                seen[piece.box.within((0,) * len(spec.shape))] += 1
                assert piece.size_bytes == math.prod(piece.stored_shape) * dtypes.itemsize_of(spec.dtype)
        assert (seen == 1).all()


def test_headers_name_the_logical_shape() -> None:
    spec = ArraySpec("x", "complex128", (2, 3), ((whole((2, 3)),),))
    plan = make_plan([spec], 1, "a")
    header = json.loads(plan.files[0].header[8:])
    assert header["x"] == {"dtype": "U8", "shape": [2, 3, 16], "data_offsets": [0, 96]}
    assert header["__metadata__"]["format"] == "pt"


def test_names_that_meet_are_told_apart() -> None:
    held = ((Box((0,), (1,)),), (Box((1,), (1,)),))
    specs_ = [ArraySpec("w", "int8", (2,), held), ArraySpec("w[0:1]", "int8", (1,), ((whole((1,)),),) * 2)]
    names = [piece.name for piece in make_plan(specs_, 2, "a").pieces]
    assert len(set(names)) == 3 and "w[0:1]" in names and "w[0:1]~2" in names


@given(st.integers(0, 3 * 2**22), st.integers(0, 3 * 2**22), st.integers(1, 5))
def test_blocks_partition_a_piece(offset: int, size: int, parts: int) -> None:
    bounds = [b for i in range(parts) for b in block_bounds(offset, size * i // parts, size * (i + 1) // parts)]
    assert bounds == [] or (bounds[0][1] == 0 and bounds[-1][2] == size)
    assert all(a[2] == b[1] for a, b in itertools.pairwise(bounds))
    assert len({number for number, _, _ in bounds}) == block_count(offset, size)


def test_parts_partition_a_file() -> None:
    held = ((whole((1000, 1000)),),)
    plan = make_plan([ArraySpec(f"w{i}", "float32", (1000, 1000), held) for i in range(5)], 1, "a")
    parts: list[Part] = list(parts_of(plan, 0, 8 * 2**20))
    assert sum(part.size_bytes for part in parts) == plan.files[0].size_bytes
    taken = dict.fromkeys(range(5), 0)
    for part in parts:
        for segment in part.segments:
            assert segment.start == taken[segment.piece]
            taken[segment.piece] = segment.stop
    assert taken == dict.fromkeys(range(5), 4000000)
