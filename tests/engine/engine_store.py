"""A store in this process for the tests of the engine: folders, drives that do wrong on purpose, restarts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from forebay.drive import Drive, LocalDrive
from forebay.drive.faults import Fault, FaultPlan, FaultyDrive, Rule
from forebay.engine import admission, keyspace, records
from forebay.engine.committer import Op
from forebay.engine.engine import Engine
from forebay.engine.heal import Healer, Progress
from forebay.engine.keeper import Keeper, Options
from forebay.engine.objects import Attributes
from forebay.engine.opening import Layout, open_engine, prepare
from forebay.engine.placement import UNIT_BYTES, Geometry
from forebay.engine.recovery import shard_position
from forebay.engine.shared import DriveState, SharedState
from forebay.errors import StoreError

BUCKET = "bucket"
SLOTS = 8


class Store:
    """`engine` over `sets` sets of `data` + `parity` drives in folders of `root`; `plans[set, position]` says what goes wrong."""

    def __init__(self, root: Path, data: int = 3, parity: int = 1, sets: int = 1, *, start: bool = True) -> None:
        self.geometry = Geometry(data, parity)
        self.paths = [str(root / f"drive{i}") for i in range(sets * (data + parity))]
        self.root = root
        self.plans: dict[tuple[int, int], FaultPlan] = {}
        self.faulty: dict[tuple[int, int], list[FaultyDrive]] = {}
        self.commit_timeout_s = 10.0
        if start:
            self.start()
            self.engine.create_bucket(BUCKET)

    def start(self) -> None:
        self.shared = SharedState(self.root / "shared")
        self.layout = prepare(self.paths, self.geometry, self.shared)
        self.engine = self.open_engine()

    def open_engine(self) -> Engine:
        engine = open_engine(self.layout, self.shared, arena_bytes=SLOTS * self.geometry.drives * UNIT_BYTES, opener=self._open)
        for erasure_set in engine.sets:
            erasure_set.commit_timeout_s = self.commit_timeout_s
        return engine

    def _open(self, layout: Layout, set_index: int, position: int) -> Drive:
        plan = self.plans.setdefault((set_index, position), FaultPlan())
        drive = FaultyDrive(LocalDrive.open(layout.paths[set_index][position], layout.expected(set_index, position)), plan)
        self.faulty.setdefault((set_index, position), []).append(drive)
        return drive

    def stop(self) -> None:
        for plan in self.plans.values():
            plan.clear()
        self.engine.close()
        self.shared.close()

    def restart(self, without: tuple[int, ...] = ()) -> None:
        """Stop and start, with the drives `without` (by number) away. They come back by `bring_back`."""
        self.stop()
        self.start_without(without)

    def start_without(self, without: tuple[int, ...]) -> None:
        for number in without:
            self.take_away(number)
        self.start()

    def take_away(self, number: int) -> None:
        """The folder is gone, and what is there is not its filesystem."""
        path = Path(self.paths[number])
        path.rename(f"{path}.away")
        path.write_text("the disk is not mounted")

    def bring_back(self, number: int) -> None:
        path = Path(self.paths[number])
        if Path(f"{path}.away").exists():
            path.unlink()
            Path(f"{path}.away").rename(path)

    def wipe(self, number: int) -> None:
        shutil.rmtree(self.paths[number])
        Path(self.paths[number]).mkdir()

    def set(self, index: int = 0):
        return self.engine.sets[index]

    def states(self, index: int = 0) -> list[DriveState]:
        return [self.set(index).state(p) for p in range(self.geometry.drives)]

    def fault(self, position: int, *rules: Rule, set_index: int = 0, **options: object) -> FaultPlan:
        """From now on, drive `position` meets these faults."""
        plan = self.plans[set_index, position]
        plan.rules, plan._seen, plan._done = list(rules), [0] * len(rules), [0] * len(rules)
        plan._released.clear()
        for name, value in options.items():
            setattr(plan, name, value)
        return plan

    def heal_faults(self) -> None:
        for plan in self.plans.values():
            plan.clear()
        for drives in self.faulty.values():
            for drive in drives:
                drive.reappear()

    def keeper(self, **options: object) -> Keeper:
        return Keeper(self.engine, self.layout, Options(**{"probe_every_s": 0.02, "collect_every_s": 0.0, "orphan_kept_s": 0.0, **options}))

    def admit_all(self) -> None:
        """Bring every drive up to date and rebuild what it lacks, as the keeper does."""
        why: dict[tuple[int, int], str] = {}
        for _ in range(4):
            for erasure_set in self.engine.sets:
                for position in range(self.geometry.drives):
                    if erasure_set.state(position) is not DriveState.CURRENT:
                        why[erasure_set.index, position] = admission.admit(erasure_set, self.layout, position, lambda: False)
        assert all(s.state(p) is DriveState.CURRENT for s in self.engine.sets for p in range(self.geometry.drives)), why
        self.heal()

    def reap(self, set_index: int = 0) -> None:
        """Have the last commit settled, if it was cut short, and everything removed that is superseded."""
        self.engine.submit(Op(lambda _: None, set_index=set_index)).wait()
        while any(key[:1] == keyspace.TABLE_REAP for key in self.index_of(self.set(set_index).current()[0][0], set_index)):
            self.engine.submit(Op(lambda _: None, set_index=set_index)).wait()

    def heal(self) -> Progress:
        healer = Healer(self.engine, 0, threading.Event())
        healer.look()
        healer.run()
        return healer.progress

    # objects

    def put(self, key: bytes, content: bytes, condition=None) -> None:
        if len(content) <= 64 << 10:
            self.engine.put(BUCKET, key, content, Attributes(etag="e"), condition).wait()
            return
        self.put_blob(key, content, condition)

    def put_blob(self, key: bytes, content: bytes, condition=None) -> bytes:
        writer = self.engine.writer(BUCKET, key)
        try:
            writer.write(content)
        except BaseException:
            writer.abort()
            raise
        blob = writer.finish()
        self.engine.put(BUCKET, key, blob, Attributes(etag="e"), condition).wait()
        return blob.blob_id

    def get(self, key: bytes, start: int = 0, stop: int | None = None) -> bytes | None:
        """None if there is no such key."""
        try:
            return self.engine.read(self.engine.open(BUCKET, key), start, stop)
        except StoreError as e:
            if e.code == "NoSuchKey":
                return None
            raise

    def delete(self, key: bytes) -> None:
        self.engine.delete(BUCKET, key).wait()

    def listed(self) -> list[bytes]:
        found, after = [], b""
        while True:
            page = self.engine.list_objects(BUCKET, after=after)
            found += [o.key for o in page.objects]
            if page.next_after is None:
                return found
            after = page.next_after

    def content(self) -> dict[bytes, bytes | None]:
        return {key: self.get(key) for key in self.listed()}

    def index_of(self, position: int, set_index: int = 0) -> dict[bytes, bytes]:
        """All records of a drive's index but its own system records."""
        drive = self.set(set_index).drive(position)
        assert drive is not None
        return {k: v for k, v in drive.scan(b"", b"", 1 << 30) if k[:1] != b"S"}


def sameness(index: dict[bytes, bytes]) -> dict[bytes, object]:
    """What must be equal on all drives of a set: everything but the shards of small objects."""
    found: dict[bytes, object] = {}
    for key, value in index.items():
        frame = records.unframe(key, value) if value else None
        found[key] = (frame.kind, frame.deleted_seq, bytes(frame.meta)) if frame else b""
    return found


def assert_drives_agree(store: Store, set_index: int = 0) -> None:
    """Every current drive has the same records, and all shards of small objects are there and distinct."""
    store.reap(set_index)
    indexes = {p: store.index_of(p, set_index) for p, _ in store.set(set_index).current()}
    first = sameness(next(iter(indexes.values())))
    for p, index in indexes.items():
        here = sameness(index)
        differences = {k: (first.get(k), here.get(k)) for k in first | here if first.get(k) != here.get(k)}
        assert not differences, (p, differences)
        for key, value in index.items():
            frame = records.unframe(key, value) if value else None
            is_version = frame and frame.kind == records.KIND_VERSION and not frame.deleted_seq
            if frame and is_version and records.decode(key, frame, records.Version).inline:
                assert frame.shard_position == shard_position(key, p, store.geometry), (p, key)


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0, what: str = "") -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(f"it did not happen: {what}")


def refused(call: Callable[[], object], *codes: str) -> StoreError:
    """`call` must raise a StoreError, with one of `codes`."""
    try:
        call()
    except StoreError as e:
        assert not codes or e.code in codes, (e.code, str(e))
        return e
    raise AssertionError("it was not refused")


def pattern(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


__all__ = ["BUCKET", "Fault", "Iterator", "Rule", "Store", "keyspace"]
