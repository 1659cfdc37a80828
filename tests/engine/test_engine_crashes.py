"""Invariants 1 to 4 against SIGKILL: processes die at every step of the write path, drives are lost after, and nothing acknowledged is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from engine_child import content
from engine_store import Store, assert_drives_agree

import forebay
from forebay.drive.testing import crash_point_names

SOURCES = Path(forebay.__file__).parent
WRITE_PATH = [
    name
    for name in (*crash_point_names(SOURCES / "drive"), *crash_point_names(SOURCES / "engine"))
    if not name.startswith(("format.", "engine.resync.", "engine.heal."))
]


class Nursery:
    def __init__(self) -> None:
        path = str(Path(__file__).with_name("engine_child.py"))
        self.process = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, **order: object) -> None:
        print(json.dumps(order), file=self.process.stdin, flush=True)

    def wait(self, children: int) -> dict[str, int]:
        print(json.dumps("wait"), file=self.process.stdin, flush=True)
        return dict(json.loads(self.process.stdout.readline()) for _ in range(children))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


class Journal:
    """What may be read of each key, by what the processes said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.possible: dict[str, set[str]] = {}
        self._read = 0

    def take(self) -> None:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines[self._read :]:
            what, key, name = line.split()
            if what == "begin":
                self.possible.setdefault(key, {"none"}).add(name)
                self._last = name
            elif what == "done":
                self.possible[key] = {name}
        self._read = len(lines)

    def check(self, store: Store) -> None:
        """Every key holds something that it may hold; from now on it must stay."""
        listed = {key.decode() for key in store.listed() if b"-source-" not in key}
        for key, names in self.possible.items():
            found = store.get(key.encode())
            name = "none" if found is None else store.engine.find("bucket", key.encode()).version.etag
            assert name in names, f"{key} holds {name}, not one of {names}"
            assert found is None or found == content(name)
            assert (key in listed) == (found is not None)
            self.possible[key] = {name}


@pytest.mark.parametrize("data, parity", [(3, 1), (2, 2)])
def test_killed_at_every_step(fast_path: Path, nursery: Nursery, data: int, parity: int) -> None:
    """At each crash point, at its first and its sixth visit; then a start with m other drives missing, then with all."""
    store = Store(fast_path, data, parity)
    store.stop()
    journal = Journal(fast_path / "journal")
    seed, died = 0, 0
    lost: tuple[int, ...] = ()
    dice = Random(f"{data}+{parity}")
    for name in WRITE_PATH:
        for nth in (1, 6):
            seed += 1
            nursery.start(
                crash=name, nth=nth, name="w", seed=seed, rounds=5, paths=store.paths, geometry=[data, parity],
                shared=str(fast_path / "shared"), journal=str(journal.path),
            )  # fmt: skip
            code = nursery.wait(1)["w"]
            assert code in (0, -9), (name, nth, code)
            died += code == -9
            journal.take()
            # Drives that missed commits are lost drives until they are admitted: no others may be lost with them.
            lost = lost or tuple(dice.sample(range(store.geometry.drives), parity))
            store.start_without(lost)
            journal.check(store)
            for number in lost:
                store.bring_back(number)
            if dice.random() < 0.5:  # else the next one starts with drives that missed commits
                store.admit_all()
                journal.check(store)
                assert_drives_agree(store)
                lost = ()
            store.stop()
    assert died > len(WRITE_PATH) / 2
    store.start()
    store.admit_all()
    journal.check(store)
    assert_drives_agree(store)
    store.stop()


@pytest.mark.parametrize("data, parity, sets", [(3, 1, 1), (2, 2, 2)])
def test_a_worker_dies_and_the_others_go_on(fast_path: Path, nursery: Nursery, data: int, parity: int, sets: int) -> None:
    """Processes share the drives; one is killed in the middle of a commit, and the others and readers meet what it left at once."""
    store = Store(fast_path, data, parity, sets)
    journals = {name: Journal(fast_path / name) for name in ("victim", "other")}
    layout = {"deployment": store.layout.deployment, "data": data, "parity": parity, "paths": store.layout.paths}
    died = 0
    for seed, name in enumerate(n for n in WRITE_PATH if "commit" in n or n == "shard.publish"):
        for who, journal in journals.items():
            nursery.start(
                crash=name if who == "victim" else "", nth=3 * seed % 7 + 1, name=who, seed=seed, rounds=6, layout=layout,
                shared=str(fast_path / "shared"), journal=str(journal.path),
            )  # fmt: skip
        codes = nursery.wait(2)
        assert codes["other"] == 0 and codes["victim"] in (0, -9)
        died += codes["victim"] == -9
        for journal in journals.values():
            journal.take()
            journal.check(store)
        assert all(state == 3 for index in range(sets) for state in store.states(index)), "no drive did anything wrong"
    assert died > 4
    assert "error" not in (fast_path / "other").read_text()
    for index in range(sets):
        assert_drives_agree(store, index)
    for lost in range(0, len(store.paths), 3):
        store.restart(without=(lost,))
        for journal in journals.values():
            journal.check(store)
        store.bring_back(lost)
    store.stop()


def test_killed_while_drives_are_brought_up_to_date(fast_path: Path, nursery: Nursery) -> None:
    """A server that dies while it synchronises or heals a drive begins again, and the drive ends up whole."""
    store = Store(fast_path)
    store.stop()
    journal = Journal(fast_path / "journal")
    names = [n for n in crash_point_names(SOURCES / "engine") if n.startswith(("engine.resync.", "engine.heal."))]
    assert len(names) == 5
    for seed, name in enumerate(names * 2):
        lost = seed % 4
        store.take_away(lost)
        order = {"seed": seed, "rounds": 4, "paths": store.paths, "geometry": [3, 1], "shared": str(fast_path / "shared"),
                 "journal": str(journal.path), "nth": 1, "name": "w"}  # fmt: skip
        nursery.start(**order)
        assert nursery.wait(1)["w"] == 0
        store.bring_back(lost)
        if seed >= len(names):
            store.wipe(lost)
        nursery.start(**order | {"crash": name, "admit": True})
        assert nursery.wait(1)["w"] == -9, name
        journal.take()
        store.start()
        journal.check(store)
        store.admit_all()
        journal.check(store)
        assert_drives_agree(store)
        store.restart(without=((lost + 1) % 4,))
        journal.check(store)
        store.bring_back((lost + 1) % 4)
        store.admit_all()
        store.stop()
