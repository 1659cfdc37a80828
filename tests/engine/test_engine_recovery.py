"""Commits cut short on every subset of the drives: what is read after is the old state whole or the new one whole, and stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from engine_store import BUCKET, Store, assert_drives_agree, pattern, refused

from forebay.engine import admission, keyspace, objects
from forebay.engine.committer import Op
from forebay.engine.erasure_set import Changes, _apply
from forebay.engine.objects import Attributes
from forebay.engine.records import Log, pack
from forebay.engine.shared import DriveState
from forebay.engine.transaction import Batch, Transaction

KEYS = (b"inline", b"deleted", b"blob", b"tagged", b"new")


def old_state(store: Store) -> dict[bytes, object]:
    for key in KEYS[:4]:
        store.delete(key)
        store.put(key, pattern(2000, 1))
    store.delete(b"new")
    store.reap()
    return read_state(store)


def read_state(store: Store) -> dict[bytes, object]:
    found: dict[bytes, object] = {key: store.get(key) for key in KEYS}
    found["tags"] = store.engine.find(BUCKET, b"tagged").version.tags
    listed = store.listed()
    assert listed == sorted(key for key in KEYS if found[key] is not None)
    return found


def new_ops(store: Store) -> list[Op]:
    """A batch that adds, overwrites, deletes and changes in place, small and large."""
    writer = store.engine.writer(BUCKET, b"blob")
    writer.write(pattern(100_000, 2))
    return [
        objects.put_bytes(BUCKET, b"inline", pattern(2000, 2), Attributes(), None),
        objects.delete(BUCKET, b"deleted", None, None),
        objects.put_blob(BUCKET, b"blob", writer.finish(), Attributes(), None),
        objects.update(BUCKET, b"tagged", None, lambda version: version.tags.update(a="b")),
        objects.put_bytes(BUCKET, b"new", b"tiny", Attributes(), None),
    ]


NEW = {
    b"inline": pattern(2000, 2), b"deleted": None, b"blob": pattern(100_000, 2), b"tagged": pattern(2000, 1), b"new": b"tiny",
    "tags": {"a": "b"},
}  # fmt: skip


def cut_short(store: Store, ops: list[Op], has: tuple[int, ...]) -> None:
    """Do what `ErasureSet.commit` does, and stop when the drives `has` have it."""
    each = store.set()
    with each.shared.lock(0):
        batch = Batch(each, each.next_seq())
        for op in ops:
            transaction = Transaction(batch, each.current()[0][1])
            op.judge(transaction)
            transaction.join()
        key = keyspace.log_key(batch.seq)
        members = [p for p, _ in each.current()]
        batch.values[key] = pack(key, Log(list(batch.values), os.urandom(8), batch.seq - 1, each._ordinal_of_published() + 1, members))
        each.shared.set_tried(0, batch.seq)
        for position in has:
            _apply(each.drive(position), position, Changes(batch.seq, batch.values))


def subsets(drives: int, *sizes: int) -> list[tuple[int, ...]]:
    return [subset for size in sizes for subset in combinations(range(drives), size)]


@pytest.fixture
def make(fast_path: Path) -> Callable[[int, int], Store]:
    made: list[Store] = []

    def make(data: int, parity: int) -> Store:
        made.append(Store(fast_path, data, parity))
        return made[0]

    yield make
    made[0].stop()


@pytest.mark.parametrize("data, parity", [(3, 1), (2, 2), (1, 1)])
def test_the_next_commit_settles_the_last_one(make: Callable[[int, int], Store], data: int, parity: int) -> None:
    store = make(data, parity)
    drives = data + parity
    for has in subsets(drives, *range(1, drives + 1)):
        old = old_state(store)
        cut_short(store, new_ops(store), has)
        assert read_state(store) == old, "nothing is seen before it is published"
        store.put(b"inline2", b"x")
        store.delete(b"inline2")
        assert read_state(store) == (NEW if len(has) == drives else old), has
        assert_drives_agree(store)


@pytest.mark.parametrize("data, parity", [(3, 1), (2, 2)])
def test_a_start_settles_the_last_commit(make: Callable[[int, int], Store], data: int, parity: int) -> None:
    """Whichever drives have it and whichever are away at the start. Up to m may be away."""
    store = make(data, parity)
    drives = data + parity
    cases = [(has, away) for has in subsets(drives, *range(1, drives + 1)) for away in subsets(drives, *range(parity + 1))]
    for has, away in Random(1).sample(cases, 45):
        old = old_state(store)
        cut_short(store, new_ops(store), has)
        store.restart(without=away)
        seen = NEW if set(range(drives)) - set(away) <= set(has) else old
        assert read_state(store) == seen, (has, away)
        for number in away:
            store.bring_back(number)
        store.admit_all()
        assert read_state(store) == seen, (has, away)
        assert_drives_agree(store)


def test_more_drives_away_than_the_parity(make: Callable[[int, int], Store]) -> None:
    """Two of 3 + 1 drives know a commit that was never acknowledged and cannot read it. When a third one comes, all is decided."""
    store = make(3, 1)
    for has, away in (((0, 1), (2, 3)), ((0, 1, 2), (2, 3)), ((0, 1, 2, 3), (2, 3)), ((0, 2), (1, 3)), ((2, 3), (0, 1)), ((3,), (0, 1))):
        old = old_state(store)
        cut_short(store, new_ops(store), has)
        store.restart(without=away)
        refused(lambda: store.put(b"x", b"y"), "ServiceUnavailable")
        back, last = away
        store.bring_back(back)
        admission.admit(store.set(), store.layout, back, lambda: False)
        assert store.set().writable(), store.states()
        store.put(b"inline2", b"x")
        store.delete(b"inline2")
        present = set(range(4)) - {last}
        seen = read_state(store)
        if present <= set(has):
            assert seen == NEW
        elif not set(range(4)) - set(away) <= set(has):
            assert seen == old
        else:  # it was shown to readers as far as they could read it: only what nobody could read was taken back
            assert seen[b"inline"] == old[b"inline"] and seen[b"new"] is None and seen["tags"] == {"a": "b"}
        store.bring_back(last)
        store.admit_all()
        assert read_state(store) == seen
        assert_drives_agree(store)


def test_a_drive_with_a_commit_that_nobody_acknowledged_comes_back_late(make: Callable[[int, int], Store]) -> None:
    """Invariants 3 and 4 at once: it took part in a commit that died with it, and the others went on without it."""
    store = make(3, 1)
    for rounds in (0, 1, 3):
        old = old_state(store)
        cut_short(store, new_ops(store), (2,))
        store.restart(without=(2,))
        assert read_state(store) == old
        for i in range(rounds):
            store.put(b"deleted", b"%d" % i)
            store.delete(b"deleted")
        seen = read_state(store)
        store.bring_back(2)
        store.admit_all()
        assert read_state(store) == seen
        assert_drives_agree(store)
        store.restart(without=(0,))
        assert read_state(store) == seen
        store.bring_back(0)
        store.admit_all()


def test_two_drives_with_different_last_commits(make: Callable[[int, int], Store]) -> None:
    """A commit cut short on one drive, then another acknowledged by the rest; at the start only one drive of each kind is there."""
    store = make(3, 1)
    store.put(b"inline", b"old")
    cut_short(store, [objects.put_bytes(BUCKET, b"inline", b"torn", Attributes(), None)], (0,))
    store.set().take_out(0, "it went away in that moment")
    store.put(b"tagged", b"acknowledged")
    store.restart(without=(1, 2))  # 0 and 3 are there
    assert store.states()[3] is DriveState.CURRENT and store.states()[0] is not DriveState.CURRENT
    for number in (1, 2):
        store.bring_back(number)
    store.admit_all()
    assert store.get(b"tagged") == b"acknowledged"
    assert store.get(b"inline") == b"old"
    assert_drives_agree(store)


def test_numbers_are_never_used_twice(make: Callable[[int, int], Store]) -> None:
    store = make(3, 1)
    each = store.set()
    seen = {each.published()}
    for i in range(3):
        cut_short(store, [objects.put_bytes(BUCKET, b"inline", b"torn", Attributes(), None)], (i,))
        seen.add(each.shared.tried(0))
        each.take_out(i, "test")
        store.put(b"inline", b"x")
        assert each.published() not in seen
        seen.add(each.published())
        store.admit_all()
    store.put(b"inline", b"y")
    assert_drives_agree(store)


def test_a_delete_while_a_drive_was_away_stays(make: Callable[[int, int], Store]) -> None:
    """Invariant 4: by replay of the log, by comparison, over a restart, in a versioned bucket."""
    store = make(3, 1)
    store.engine.create_bucket("versioned")
    store.engine.set_versioning("versioned", "Enabled")
    for i in range(20):
        store.put(b"k%02d" % i, pattern(100 if i % 2 else 70_000, i))
    first = store.engine.put("versioned", b"key", b"1", Attributes()).wait().version_id
    store.restart(without=(1,))
    for i in range(0, 20, 3):
        store.delete(b"k%02d" % i)
    store.engine.delete("versioned", b"key", first).wait()
    content = store.content()
    store.reap()
    # The log is cut, so that only a comparison of everything finds out.
    keys = [k for k in store.index_of(0) if k[:1] == b"L"][:-1]
    for _, drive in store.set().current():
        drive.commit(drive.seq(), [], keys)
    store.bring_back(1)
    store.admit_all()
    assert store.content() == content
    refused(lambda: store.engine.find("versioned", b"key", first), "NoSuchVersion")
    assert_drives_agree(store)
    store.restart(without=(0,))  # the drive that was away is read now
    assert store.content() == content
    refused(lambda: store.engine.find("versioned", b"key", first), "NoSuchVersion")
