"""From folders to a running store: what each folder turns out to be, and starts that were cut short."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_store import Store, assert_drives_agree, pattern, wait_until
from test_engine_crashes import Nursery

from forebay.drive import LocalDrive
from forebay.engine import keyspace
from forebay.engine.opening import START_GAP, prepare
from forebay.engine.placement import Geometry
from forebay.engine.recovery import newest_log
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import ConfigError, DriveFailed, DriveMismatch, ForebayError


@pytest.fixture
def store(fast_path: Path) -> Iterator[Store]:
    store = Store(fast_path)
    store.put(b"key", pattern(100_000))
    store.stop()
    yield store


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in sorted(root.rglob("*")) if f.is_file() and "index" not in str(f)}


def refuse(paths: list[str], data: int, parity: int, error: type[ForebayError], words: str) -> None:
    """`prepare` must refuse and change nothing."""
    root = Path(paths[0]).parent
    before = snapshot(root)
    with pytest.raises(error, match=words):
        prepare(paths, Geometry(data, parity), SharedState.private())
    assert snapshot(root) == before


def test_the_order_of_the_folders_does_not_matter(store: Store) -> None:
    drives = [LocalDrive.read_identity(path).position for path in store.paths]
    assert drives == [0, 1, 2, 3]
    store.paths = [store.paths[i] for i in (2, 0, 3, 1)]
    store.start()
    assert store.layout.paths == [sorted(store.paths)]
    assert store.get(b"key") == pattern(100_000)
    store.stop()


def test_a_drive_may_move_to_another_folder(store: Store) -> None:
    os.rename(store.paths[1], store.paths[1] + "-moved")
    store.paths[1] += "-moved"
    store.start()
    assert store.states() == [DriveState.CURRENT] * 4
    assert store.content() == {b"key": pattern(100_000)}
    store.stop()


def test_two_drives_that_changed_places(store: Store) -> None:
    a, b = store.paths[0], store.paths[3]
    os.rename(a, a + "x")
    os.rename(b, a)
    os.rename(a + "x", b)
    store.start()
    assert store.layout.paths == [[b, *store.paths[1:3], a]]
    assert store.content() == {b"key": pattern(100_000)}
    store.stop()


def test_what_is_refused(store: Store, fast_path: Path) -> None:
    refuse([*store.paths[:3], store.paths[0]], 3, 1, ConfigError, "named twice")
    refuse(store.paths[:3], 2, 1, ConfigError, "belongs to a store of 4 drives, but 3 are named")
    refuse(store.paths, 2, 2, ConfigError, r"made with 3\+1 drives a set.*--parity 1")
    other = Store(fast_path / "o", start=False)
    other.root.mkdir()
    prepare(other.paths, Geometry(3, 1), SharedState.private())
    refuse([*store.paths[:3], other.paths[3]], 3, 1, DriveMismatch, "belongs to deployment")
    shutil.copytree(store.paths[0], fast_path / "copy")
    refuse([*store.paths[:3], str(fast_path / "copy")], 3, 1, DriveMismatch, "is the same drive")


def test_a_new_store_takes_no_folder_that_holds_something(fast_path: Path) -> None:
    paths = [str(fast_path / f"d{i}") for i in range(4)]
    os.mkdir(paths[2])
    Path(paths[2], "thesis.txt").write_text("irreplaceable")
    refuse(paths, 3, 1, DriveMismatch, "neither empty nor a Forebay drive")
    assert not Path(paths[0]).exists()


def test_too_few_drives(store: Store) -> None:
    """Nothing is invented: with fewer drives than a read quorum the set does not start, and says so."""
    store.start_without((0, 1, 2))
    assert DriveState.CURRENT not in store.states()
    assert not store.engine.ready()
    store.stop()
    for number in (0, 1, 2):
        store.bring_back(number)
    store.start()
    assert store.states() == [DriveState.CURRENT] * 4
    assert store.content() == {b"key": pattern(100_000)}
    store.stop()


def test_an_emptied_and_a_stale_drive_are_no_read_quorum(store: Store) -> None:
    """The drives with the last commits are away; those that are there must not be taken for the truth."""
    store.start_without((3,))
    store.put(b"key2", b"")  # without content: that would need three drives
    store.stop()
    store.bring_back(3)
    store.wipe(2)
    store.start_without((0, 1))
    assert DriveState.CURRENT not in store.states()
    store.stop()
    store.bring_back(0)
    store.bring_back(1)
    store.start()
    assert store.get(b"key2") == b""
    store.admit_all()
    assert_drives_agree(store)
    store.stop()


def test_every_start_leaves_a_gap_in_the_numbers(store: Store) -> None:
    drive = LocalDrive.open(store.paths[0])
    before = newest_log(drive)
    drive.close()
    store.start()
    after = newest_log(store.set().drive(0))
    assert after.seq >= before.seq + START_GAP and after.log.previous == before.seq
    assert after.log.members == [0, 1, 2, 3]
    store.stop()


def test_an_index_that_vanished_is_filled_again(store: Store) -> None:
    shutil.rmtree(Path(store.paths[1], "index"))
    store.start()
    assert store.states()[1] is DriveState.STALE
    store.admit_all()
    assert_drives_agree(store)
    store.restart(without=(0,))
    assert store.content() == {b"key": pattern(100_000)}
    store.stop()


def truncate_index(path: str) -> None:
    """As a filesystem leaves it that lost its newest blocks: reading it through LMDB's map is a SIGBUS."""
    os.truncate(Path(path, "index", "data.mdb"), 8192)


@pytest.mark.peeking
def test_an_index_that_kills_its_reader_keeps_only_its_drive_out(store: Store) -> None:
    truncate_index(store.paths[2])
    store.start()
    assert store.states() == [DriveState.CURRENT, DriveState.CURRENT, DriveState.OFFLINE, DriveState.CURRENT]
    assert store.content() == {b"key": pattern(100_000)}
    keeper = store.keeper()
    keeper.start()
    wait_until(lambda: "SIGBUS" in keeper.drives()[2].reason or "SIGSEGV" in keeper.drives()[2].reason)
    store.wipe(2)
    wait_until(lambda: keeper.drives()[2].state == "current" and not keeper.drives()[2].is_filling)
    keeper.close()
    assert_drives_agree(store)
    store.stop()


def test_the_drive_that_killed_a_worker_is_found_and_stays_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.start()
    keeper = store.keeper()
    bad = [store.paths[1]]

    def check(path: str) -> int:  # a really bad one would kill this process too, when the drive is probed
        if path in bad:
            raise DriveFailed(path, "reading the index ends in SIGBUS")
        return 1

    monkeypatch.setattr("forebay.engine.keeper.check_index", check)
    keeper.start()
    keeper.check_indexes()
    wait_until(lambda: store.states().count(DriveState.CURRENT) == 3 and keeper._reasons.get((0, 1)))
    assert keeper.drives()[1].state == "offline" and "SIGBUS" in keeper.drives()[1].reason
    bad.clear()
    wait_until(lambda: store.states() == [DriveState.CURRENT] * 4)
    keeper.close()
    store.stop()


def test_the_log_is_trimmed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.engine.erasure_set.LOG_COMMITS_KEPT", 100)
    store.start()
    for i in range(300):
        store.put(b"k%d" % (i % 7), b"%d" % i)
    store.reap()
    logs = [k for k in store.index_of(0) if k[:1] == keyspace.TABLE_LOG]
    assert 100 <= len(logs) <= 100 + 2 * 64
    assert_drives_agree(store)
    store.stop()


@pytest.mark.parametrize("sets", [1, 2])
def test_a_first_start_that_was_killed_is_finished_by_the_next(fast_path: Path, sets: int) -> None:
    nursery = Nursery()
    try:
        died = 0
        for i, (name, nth) in enumerate((n, k) for n in ("format.draft", "format.link", "commit.begin", "commit.end") for k in (1, 2, 3)):
            root = fast_path / str(i)
            root.mkdir()
            store = Store(root, 2, 1, sets, start=False)
            nursery.start(
                crash=name, nth=nth, name="w", seed=0, rounds=0, paths=store.paths, geometry=[2, 1],
                shared=str(root / "shared"), journal=str(root / "journal"),
            )  # fmt: skip
            died += nursery.wait(1)["w"] == -9
            store.start()
            assert all(state is DriveState.CURRENT for index in range(sets) for state in store.states(index)), (name, nth)
            store.engine.create_bucket("bucket")
            store.put(b"key", b"x")
            assert store.content() == {b"key": b"x"}
            store.stop()
        assert died == 12
    finally:
        nursery.close()
