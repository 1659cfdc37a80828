"""Ranges, row by row and against slicing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3.ranges import content_range, copy_range, parse_part_number, resolve_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("", None),
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 10)),
        ("bytes=3-5", (3, 6)),
        ("Bytes = 3-5", (3, 6)),
        ("bytes=9-9", (9, 10)),
        ("bytes=5-1000", (5, 10)),
        ("bytes=5-" + "9" * 19, (5, 10)),
        ("bytes=-1", (9, 10)),
        ("bytes=-10", (0, 10)),
        ("bytes=-11", (0, 10)),
        ("bytes=0-1,3-4", None),
        ("bytes=5-4", None),
        ("bytes=a-b", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("bytes=1", None),
        ("bytes=--1", None),
        ("bytes=+1-2", None),
        ("bytes=1-2-3", None),
        ("bytes=²-3", None),
        ("bytes=1-" + "9" * 5000, None),
        ("items=0-1", None),
        ("0-1", None),
    ],
)
def test_of_ten_bytes(header, expected):
    assert resolve_range(header, 10) == expected


@pytest.mark.parametrize(
    ("header", "size_bytes"), [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-0", 0), ("bytes=-5", 0)]
)
def test_unsatisfiable(header, size_bytes):
    with pytest.raises(StoreError) as caught:
        resolve_range(header, size_bytes)
    assert caught.value.code == "InvalidRange"
    assert caught.value.headers == {"Content-Range": f"bytes */{size_bytes}"}
    assert caught.value.fields == {"RangeRequested": header, "ActualObjectSize": str(size_bytes)}


@given(st.integers(0, 30), st.none() | st.integers(0, 30), st.none() | st.integers(0, 30))
def test_against_slicing(size_bytes, first, last):
    data = bytes(range(size_bytes))
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if (first is None and last is None) or (first is not None and last is not None and last < first):
        assert resolve_range(header, size_bytes) is None
        return
    expected = data[first : None if last is None else last + 1] if first is not None else data[max(0, size_bytes - last) :]
    if not expected:
        with pytest.raises(StoreError):
            resolve_range(header, size_bytes)
        return
    found = resolve_range(header, size_bytes)
    assert data[found.start : found.stop] == expected
    assert content_range(found, size_bytes) == f"bytes {found.start}-{found.stop - 1}/{size_bytes}"


def test_copy_range():
    assert copy_range("bytes=0-9", 10) == (0, 10)
    for header in (
        "0-2",
        "bytes=0",
        "bytes=hello-world",
        "bytes=0-bar",
        "bytes=hello-",
        "bytes=0-2,3-5",
        "bytes=-5",
        "bytes=5-",
        "bytes=5-4",
    ):
        with pytest.raises(StoreError) as caught:
            copy_range(header, 10)
        assert caught.value.code == "InvalidArgument"
    with pytest.raises(StoreError) as caught:
        copy_range("bytes=0-10", 10)
    assert caught.value.code == "InvalidRange"


def test_part_number():
    assert parse_part_number("1") == 1
    assert parse_part_number("10000") == 10_000
    for text in ("", "0", "10001", "-1", "x", "1.0", "²", "1" * 5000, " 1"):
        with pytest.raises(StoreError) as caught:
            parse_part_number(text)
        assert caught.value.code == "InvalidArgument"
