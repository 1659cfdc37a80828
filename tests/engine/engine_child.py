"""Processes that work on a store and are killed at a crash point.

`engine_child.py` is a nursery: it reads one JSON line for each process wanted, forks it (imports are paid once), and answers with its exit
status. A process writes what it begins and what was acknowledged to a journal, one line each, before and after.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from itertools import count
from random import Random

from forebay.drive import crash
from forebay.engine import admission, opening
from forebay.engine.engine import Engine
from forebay.engine.heal import Healer
from forebay.engine.multipart import PartChoice
from forebay.engine.objects import Attributes
from forebay.engine.opening import Layout, open_engine, prepare
from forebay.engine.placement import UNIT_BYTES, Geometry
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import StoreError

BUCKET = "bucket"


def content(name: str) -> bytes:
    """What the object of this name holds: its size and bytes follow from it."""
    kind, seed = name.split("-")[:2]
    size = {"small": 3_000, "tiny": 7, "blob": 300_000, "large": 3_500_000}[kind]
    return Random(seed).randbytes(size)


class Writer:
    """Puts, deletes, multiparts and copies on keys of its own, each with a fresh content, written to the journal."""

    def __init__(self, engine: Engine, journal: int, owner: str, seed: int) -> None:
        self.engine = engine
        self.journal = journal
        self.owner = owner
        self.dice = Random(f"{owner} {seed}")
        self.seed = seed

    def say(self, what: str, key: str, name: str) -> None:
        os.write(self.journal, f"{what} {key} {name}\n".encode())

    def run(self, rounds: int) -> None:
        for i in range(rounds):
            name = f"{self.dice.choice(['small', 'small', 'tiny', 'blob', 'large'])}-{self.owner}.{self.seed}.{i}"
            key = f"{self.owner}/{self.dice.randrange(6)}"
            step = self.dice.choice([self.put, self.put, self.put, self.delete, self.multipart, self.copy])
            self.say("begin", key, "none" if step == self.delete else name)
            try:
                step(key.encode(), name)
            except StoreError as e:
                self.say("error", key, e.code)
                continue
            self.say("done", key, "none" if step == self.delete else name)

    def blob(self, key: bytes, name: str):
        writer = self.engine.writer(BUCKET, key)
        writer.write(content(name))
        return writer.finish()

    def put(self, key: bytes, name: str) -> None:
        data = content(name) if len(content(name)) <= 64 << 10 else self.blob(key, name)
        self.engine.put(BUCKET, key, data, Attributes(etag=name)).wait()

    def delete(self, key: bytes, name: str) -> None:
        self.engine.delete(BUCKET, key).wait()

    def multipart(self, key: bytes, name: str) -> None:
        upload = self.engine.create_upload(BUCKET, key, Attributes()).wait()
        self.engine.put_part(BUCKET, key, upload.upload_id, 1, self.blob(key, name), "e", {}).wait()
        self.engine.complete(BUCKET, key, upload.upload_id, [PartChoice(1, "e")], lambda u, p: Attributes(etag=name)).wait()

    def copy(self, key: bytes, name: str) -> None:
        source = f"{self.owner}-source-{self.seed}-{self.dice.randrange(1 << 30)}".encode()
        self.put(source, name)
        self.engine.copy(self.engine.open(BUCKET, source), BUCKET, key, Attributes(etag=name))
        self.engine.delete(BUCKET, source).wait()


def work(order: dict) -> None:
    """The life of one process."""
    opening.check_opening = admission.check_opening = lambda paths: {}  # see conftest.py
    if order.get("crash"):
        crash._name, crash._nth, crash._hits = order["crash"], str(order["nth"]), count(1)
    shared = SharedState(order["shared"])
    if order.get("layout"):
        layout = Layout(**order["layout"])
    else:
        layout = prepare(order["paths"], Geometry(*order["geometry"]), shared)
    engine = open_engine(layout, shared, arena_bytes=8 * layout.geometry.drives * UNIT_BYTES)
    if order.get("admit"):
        for position in range(layout.geometry.drives):
            if engine.sets[0].state(position) is not DriveState.CURRENT:
                admission.admit(engine.sets[0], layout, position, lambda: False)
        healer = Healer(engine, 0, threading.Event())
        healer.look()
        healer.run()
    journal = os.open(order["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    writers = [Writer(engine, journal, f"{order['name']}{i}", order["seed"]) for i in range(2)]
    threads = [threading.Thread(target=w.run, args=(order["rounds"],)) for w in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()


def main() -> None:
    """The nursery."""
    children: dict[int, object] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if order == "wait":
            for pid, token in list(children.items()):
                _, status = os.waitpid(pid, 0)
                print(json.dumps([token, os.waitstatus_to_exitcode(status)]), flush=True)
            children.clear()
            continue
        pid = os.fork()
        if not pid:
            code = 1
            try:
                work(order)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children[pid] = order["name"]


if __name__ == "__main__":
    main()
