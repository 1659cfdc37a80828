"""Content that can be made again, and that nothing can compress."""

from __future__ import annotations

import base64
import zlib

import pytest
from awscrt import checksums
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.content import Payloads, Stream, crc64nvme_base64

WHOLE_BYTES = (3 << 20) + 64


def filled(seed: str, size_bytes: int, offset: int = 0) -> bytes:
    buffer = bytearray(size_bytes)
    Stream(seed).fill(memoryview(buffer), offset)
    return bytes(buffer)


WHOLE = filled("a", WHOLE_BYTES)


@given(st.integers(0, WHOLE_BYTES // 16 - 1), st.integers(1, 3 << 20))
def test_any_stretch_is_that_of_the_whole(block: int, size_bytes: int) -> None:
    size_bytes = min(size_bytes, WHOLE_BYTES - block * 16)
    assert filled("a", size_bytes, block * 16) == WHOLE[block * 16 :][:size_bytes]


def test_seeds_differ_and_content_does_not_compress() -> None:
    other = filled("b", 1 << 20)
    assert other != WHOLE[: 1 << 20]
    assert len(zlib.compress(other)) > len(other)


def test_nothing_to_fill_is_no_error() -> None:
    assert filled("a", 0) == b""


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 100_000])
def test_payloads_are_distinct_and_their_checksums_right(size_bytes: int) -> None:
    payloads = Payloads("seed", size_bytes, 5, with_sha256=True)
    assert all(len(view) == size_bytes for view in payloads.views)
    assert len({bytes(view) for view in payloads.views}) == (5 if size_bytes > 1 else len(set(map(bytes, payloads.views))))
    for view, crc, text in zip(payloads.views, payloads.crc64nvme, payloads.crc64nvme_base64, strict=True):
        assert crc == checksums.crc64nvme(bytes(view))
        assert base64.b64decode(text) == crc.to_bytes(8, "big")
        assert crc64nvme_base64(view) == text
