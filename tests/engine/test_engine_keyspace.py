"""Index keys: S3's order is the index's order for any bytes, however long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.drive import KEY_BYTES_MAX
from forebay.engine import keyspace
from forebay.engine.keyspace import NODE_BYTES, SEGMENT_BYTES, TABLE_OBJECT, TABLE_UPLOAD

NODE = bytes(range(NODE_BYTES))
# Bytes that meet the escape, the terminator and the pointer mark; runs that reach the ends of segments.
BYTES = st.lists(st.sampled_from([b"\x00", b"\x01", b"\xfe", b"\xff", b"a", b"b", b"/", b"\x00\xff", b"\x00\x01"]), max_size=8).map(
    b"".join
)
RUNS = st.tuples(
    st.sampled_from([b"a", b"\x00", b"\xff", b"ab"]), st.sampled_from([0, 1, 216, 219, 220, 221, 438, 439, 440, 441, 660, 880, 1000])
)
KEYS = st.one_of(BYTES, st.tuples(RUNS, BYTES, RUNS, BYTES).map(lambda p: (p[0][0] * p[0][1] + p[1] + p[2][0] * p[2][1] + p[3])[:1024]))
KEYS = KEYS.filter(bool)


def walk_order(keys: set[bytes]) -> list[bytes]:
    """The keys in the order in which a walk over the index meets them: entries in order, pointers entered where they stand."""
    entries: dict[bytes, tuple[str, bytes]] = {}
    for key in keys:
        entries[keyspace.entry_prefix(TABLE_OBJECT, NODE, key)] = ("key", key)
        for pointer, child in keyspace.pointers(TABLE_OBJECT, NODE, key):
            entries[pointer] = ("node", child)
    ordered = sorted(entries)

    def visit(node: bytes) -> list[bytes]:
        found: list[bytes] = []
        for entry in ordered:
            if entry.startswith(TABLE_OBJECT + node):
                kind, what = entries[entry]
                found += [what] if kind == "key" else visit(what)
        return found

    return visit(NODE)


@given(st.sets(KEYS, max_size=12))
def test_a_walk_meets_keys_in_their_order(keys: set[bytes]) -> None:
    assert walk_order(keys) == sorted(keys)


@given(KEYS)
def test_every_key_fits(key: bytes) -> None:
    for table, suffix in ((TABLE_OBJECT, keyspace.VERSION_SUFFIX_BYTES), (TABLE_UPLOAD, keyspace.UPLOAD_SUFFIX_BYTES)):
        assert len(keyspace.entry_prefix(table, NODE, key)) + suffix <= KEY_BYTES_MAX
    assert all(len(pointer) == keyspace.POINTER_KEY_BYTES for pointer, _ in keyspace.pointers(TABLE_OBJECT, NODE, key))


@given(KEYS, KEYS)
def test_entries_of_different_keys_never_mix(a: bytes, b: bytes) -> None:
    """No entry of one key starts with the prefix of another, or the versions of one would be taken for the other's."""
    if a != b:
        one, other = (keyspace.entry_prefix(TABLE_OBJECT, NODE, key) for key in (a, b))
        assert not one.startswith(other) and not other.startswith(one)


@given(KEYS)
def test_escaping_is_undone_and_keeps_order(key: bytes) -> None:
    assert keyspace.unescape(keyspace.escape(key)) == key
    assert keyspace.TERMINATOR not in keyspace.escape(key)


@given(KEYS, KEYS)
def test_escaping_keeps_order(a: bytes, b: bytes) -> None:
    assert (a < b) == (keyspace.escape(a) + keyspace.TERMINATOR < keyspace.escape(b) + keyspace.TERMINATOR)


@given(st.integers(0, keyspace.SEQ_MAX), st.integers(0, keyspace.SEQ_MAX), st.integers(0, 3))
def test_versions_sort_newest_first(older: int, newer: int, flags: int) -> None:
    key = keyspace.version_key(b"Ox", newer, flags)
    assert keyspace.version_suffix(key) == (newer, flags)
    if older < newer:
        assert key < keyspace.version_key(b"Ox", older, flags)


@given(st.integers(0, keyspace.SEQ_MAX), st.binary(min_size=8, max_size=8))
def test_version_ids(seq: int, random: bytes) -> None:
    assert keyspace.parse_version_id(keyspace.version_id(seq, random)) == (seq, random)


@pytest.mark.parametrize("text", ["", "null", "0" * 31, "0" * 33, "G" * 32, "A" * 32, " " * 32, "0" * 30 + "é"])
def test_what_is_no_version_id(text: str) -> None:
    assert keyspace.parse_version_id(text) is None


@given(BYTES, BYTES, st.binary(max_size=3))
def test_successor(prefix: bytes, other: bytes, rest: bytes) -> None:
    after = keyspace.successor(prefix)
    assert after is None or prefix + rest < after
    assert (after is None) == (prefix.strip(b"\xff") == b"")
    if prefix <= other and (after is None or other < after):
        assert other.startswith(prefix) or after is None


def test_a_long_key_and_its_segment_are_different_nodes() -> None:
    assert SEGMENT_BYTES == 440
    key = b"k" * 441
    ((pointer, child),) = keyspace.pointers(TABLE_OBJECT, NODE, key)
    assert keyspace.entry_prefix(TABLE_OBJECT, NODE, key) == TABLE_OBJECT + child + b"k" + keyspace.TERMINATOR
    assert keyspace.entry_prefix(TABLE_OBJECT, NODE, key[:440]) < pointer < keyspace.entry_prefix(TABLE_OBJECT, NODE, key[:439] + b"l")


def test_log_reap_heal_claim_and_part_keys_sort_by_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 1 << 20, 1 << 40]
    for make in (keyspace.log_key, lambda n: keyspace.reap_key(n, 7), lambda n: keyspace.part_key(b"u" * 16, n % 65536)):
        keys = [make(n) for n in numbers[: 4 if make is not keyspace.log_key else 6]]
        assert keys == sorted(keys)
    assert keyspace.log_seq(keyspace.log_key(1 << 40)) == 1 << 40
