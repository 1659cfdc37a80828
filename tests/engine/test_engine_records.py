"""Records: the frame is what its page says, every damage is noticed, and what was written once stays readable."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import crc64nvme
from forebay.engine import records
from forebay.engine.records import (
    NO_SHARD,
    BadRecord,
    Blob,
    Bucket,
    Completed,
    Extent,
    Log,
    Part,
    Pointer,
    Reap,
    Upload,
    Version,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "records-1"
KEY = b"Okey"
EXTENT = Extent(1, b"B" * 16, 4096, 5_000_000)
PART = Part(7, 5_000_000, "etag7", 1_700_000_000_000_000_007, [EXTENT], {"CRC32": "AAAAAA=="}, b"o" * 16)
EXAMPLES: dict[str, msgspec.Struct] = {
    "bucket": Bucket("name", b"i" * 16, 1_700_000_000_000_000_000, "Enabled", "owner", {"acl": b"<xml/>"}),
    "version": Version(
        b"r" * 8,
        b"o" * 16,
        1_700_000_000_000_000_001,
        10_000_000,
        "etag-2",
        {"content-type": "text/plain"},
        {"a": "ä"},
        {"t": "v"},
        {"SHA256": "x-2"},
        "COMPOSITE",
        [EXTENT],
        [PART],
        False,
    ),
    "upload": Upload(b"u" * 16, "bucket", b"k\x00\xff", 1_700_000_000_000_000_002, {}, {}, {}, "CRC64NVME", "FULL_OBJECT"),
    "part": PART,
    "completed": Completed("bucket", b"key", "v", "etag", ["1:e"], {}, "", 1_700_000_000_000_000_003),
    "blob": Blob(5_000_000, 3, 1, 1 << 20, bytes(64), 1_700_000_000_000_000_004),
    "reap": Reap([b"Oold"], [(0, b"B" * 16, b"o" * 16)]),
    "pointer": Pointer(b"n" * 16),
    "log": Log([b"Okey", b"Bname"], b"random08", 41, 17, [0, 1, 3]),
}


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(example) for example in EXAMPLES.values()} == set(records.STRUCT_OF_KIND.values())


def test_the_frame_is_as_the_page_says() -> None:
    """The offset table of the module's docstring, taken literally."""
    table = re.findall(r"^    (\d+) +(\d+) +(\S[\w ]*?)  ", records.__doc__, re.MULTILINE)
    assert [(int(o), int(n), name) for o, n, name in table] == [
        (0, 1, "kind"), (1, 1, "format"), (2, 1, "shard"), (3, 1, "flags"), (4, 4, "meta bytes"), (8, 8, "deleted seq"),
    ]  # fmt: skip
    value = records.frame(KEY, 2, b"META", 3, b"SHARD", 0x0102030405060708)
    assert struct.unpack_from("<BBBBIQ", value) == (2, 1, 3, 0, 4, 0x0102030405060708)
    assert value[16:20] == b"META" and value[20:25] == b"SHARD" and len(value) == 25 + 8
    assert struct.unpack_from("<Q", value, 25)[0] == crc64nvme(KEY + value[:25])


@pytest.mark.parametrize("name", EXAMPLES)
def test_records_come_back_as_they_were(name: str) -> None:
    value = records.pack(KEY, EXAMPLES[name])
    assert records.unpack(KEY, value, type(EXAMPLES[name])) == EXAMPLES[name]
    assert records.unframe(KEY, value).shard_position == NO_SHARD


@pytest.mark.parametrize("name", EXAMPLES)
def test_records_of_format_1_stay_readable(name: str) -> None:
    """Golden bytes, written once: fields may be added at the end, with a default, and nothing else may change."""
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert records.unpack(KEY, golden, type(EXAMPLES[name])) == EXAMPLES[name]


@pytest.mark.parametrize("name", ["version", "log", "pointer"])
def test_every_flipped_bit_is_noticed(name: str) -> None:
    value = records.pack(KEY, EXAMPLES[name])
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadRecord):
            records.unframe(KEY, bytes(damaged))


@given(st.integers(0, 400))
def test_every_truncation_is_noticed(length: int) -> None:
    value = records.pack(KEY, EXAMPLES["version"])
    if length < len(value):
        with pytest.raises(BadRecord):
            records.unframe(KEY, value[:length])


def test_a_record_in_the_wrong_place_or_of_the_wrong_kind_is_refused() -> None:
    value = records.pack(KEY, EXAMPLES["bucket"])
    with pytest.raises(BadRecord, match="checksum"):
        records.unframe(b"Kkey", value)
    with pytest.raises(BadRecord, match="expected a Version, found kind 1"):
        records.unpack(KEY, value, Version)


def test_a_newer_format_is_refused_by_name() -> None:
    body = struct.pack("<BBBBIQ", 2, 9, 255, 0, 0, 0)
    value = body + struct.pack("<Q", crc64nvme(KEY + body))
    with pytest.raises(BadRecord, match=r"format 9 is not one that this version of Forebay reads \(\[1\]\)"):
        records.unframe(KEY, value)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_nothing_but_bad_record(value: bytes) -> None:
    with pytest.raises(BadRecord):
        records.unpack(KEY, value, Version)


@given(st.binary(max_size=60), st.integers(0, 12))
def test_a_sealed_frame_with_arbitrary_content_raises_nothing_but_bad_record(meta: bytes, kind: int) -> None:
    """A checksum that matches proves nothing about the content of a record that a bug wrote."""
    value = records.frame(KEY, kind, meta)
    for struct_type in records.STRUCT_OF_KIND.values():
        try:
            records.unpack(KEY, value, struct_type)
        except BadRecord:
            pass


def test_marking_as_deleted_keeps_everything_else() -> None:
    value = records.pack_shards(KEY, EXAMPLES["version"], [b"0", b"1"])[1]
    marked = records.unframe(KEY, records.mark_deleted(KEY, value, 99))
    assert (marked.deleted_seq, marked.shard_position, bytes(marked.shard)) == (99, 1, b"1")
    assert records.mark_deleted(KEY, records.mark_deleted(KEY, value, 99), 0) == value


def write_golden() -> None:
    """Run by hand when a new format version is released, never over an old one."""
    GOLDEN.mkdir()
    for name, example in EXAMPLES.items():
        (GOLDEN / f"{name}.hex").write_text(records.pack(KEY, example).hex() + "\n")
