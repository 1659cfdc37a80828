"""Invariant 6: whatever a drive does wrong, requests succeed or get a clear error, and nothing stored is harmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_store import BUCKET, SLOTS, Store, assert_drives_agree, pattern, wait_until

from forebay.drive.faults import FAULTS_OF, Fault, Rule
from forebay.engine.multipart import PartChoice
from forebay.engine.objects import Attributes
from forebay.engine.records import BadRecord
from forebay.engine.shared import DriveState
from forebay.errors import StoreError

SLOW = {Fault.SLOW, Fault.STUCK, Fault.LOSE_SYNC}
CASES = [(operation, fault) for operation, faults in FAULTS_OF.items() for fault in sorted(faults - SLOW, key=lambda f: f.value)]
CLEAR = {"ServiceUnavailable", "InsufficientCapacity", "InternalError"}


class Work:
    """A round of requests of every kind. `possible[key]` is what the key may hold after the answers that were given."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.possible: dict[bytes, set[bytes | None]] = {}
        self.errors: list[StoreError] = []
        self.round = 0

    def run(self) -> None:
        self.round += 1
        n = self.round
        self.change(b"small", pattern(3000, n), self.store.put)
        self.change(b"again", pattern(100, n), self.store.put)
        self.change(b"blob", pattern(70_000 + n, n), self.store.put)
        self.change(b"stripes", pattern((3 << 20) + 5000 + n, n), self.store.put)
        self.change(b"upload", pattern(90_000, n), self.upload)
        self.change(b"copy", pattern(66_000, n), self.copy)
        self.change(b"again", None, lambda key, _: self.store.delete(key))

    def change(self, key: bytes, content: bytes | None, call: Callable[[bytes, bytes | None], None]) -> None:
        before = self.possible.get(key, {None})
        self.possible[key] = before | {content}
        try:
            call(key, content)
        except StoreError as e:
            assert e.code in CLEAR, e
            self.errors.append(e)
        else:
            self.possible[key] = {content}

    def upload(self, key: bytes, content: bytes) -> None:
        engine = self.store.engine
        upload = engine.create_upload(BUCKET, key, Attributes()).wait()
        writer = engine.writer(BUCKET, key)
        writer.write(content)
        engine.put_part(BUCKET, key, upload.upload_id, 1, writer.finish(), "e", {}).wait()
        engine.complete(BUCKET, key, upload.upload_id, [PartChoice(1, "e")], lambda u, p: Attributes(etag="x-1")).wait()

    def copy(self, key: bytes, content: bytes) -> None:
        source = b"source of " + key
        self.change(source, content, self.store.put)
        if self.possible[source] == {content}:
            self.store.engine.copy(self.store.engine.open(BUCKET, source), BUCKET, key, Attributes())
        else:
            raise StoreError("ServiceUnavailable", "the source was not stored")

    def check(self) -> None:
        """What is read now must be possible, and stays."""
        for key, contents in self.possible.items():
            found = self.store.get(key)
            assert found in contents, key
            self.possible[key] = {found}
        assert set(self.store.listed()) == {key for key, contents in self.possible.items() if contents != {None}}


def recover(store: Store) -> None:
    store.heal_faults()
    store.admit_all()


@pytest.fixture
def store(fast_path: Path) -> Store:
    store = Store(fast_path)
    yield store
    store.heal_faults()
    wait_until(lambda: store.engine.arena.free_slots == SLOTS, 10, "all buffers are free")
    store.stop()


@pytest.mark.parametrize("position", [0, 2])
def test_one_drive_does_wrong(store: Store, position: int) -> None:
    """At one of its first calls of each operation, or from then on: nobody notices."""
    work = Work(store)
    work.run()
    met = 0
    for operation, fault in CASES:
        for skip, times in ((0, 1), (1, 1), (2, None), (5, 1)) if position == 0 else ((1, None), (3, 1)):
            plan = store.fault(position, Rule(operation, fault, skip=skip, times=times))
            work.run()
            work.check()
            assert not work.errors, (operation, fault, work.errors)
            met += bool(plan.happened)
            plan.happened.clear()
            recover(store)
    assert met > len(CASES) / 2
    work.check()
    assert_drives_agree(store)
    for other in range(4):  # what was written while the drive did wrong survives the loss of any other
        store.restart(without=(other,))
        work.check()
        store.bring_back(other)
        store.admit_all()


def test_two_drives_do_wrong(store: Store) -> None:
    """More than the parity allows: requests are refused clearly, old content stays, and all is well when the drives are."""
    work = Work(store)
    work.run()
    refused = 0
    silent = {("shard.write", Fault.FLIP), ("shard.write", Fault.SHORT)}  # reported as success: then the content is lost
    for operation, fault in (case for case in CASES if case not in silent):
        for skip in (0, 2):
            for position in (1, 3):
                store.fault(position, Rule(operation, fault, skip=skip, times=4))
            work.errors.clear()
            work.run()
            refused += bool(work.errors)
            recover(store)
            work.check()
    assert refused > 10
    assert_drives_agree(store)
    store.restart(without=(0,))
    work.check()


def test_all_drives_are_full(store: Store) -> None:
    """Puts are refused as S3 says, reads and deletes go on, and room makes puts possible again."""
    work = Work(store)
    work.run()
    for position in range(4):
        store.fault(position, Rule("commit", Fault.FULL), Rule("shard.*", Fault.FULL))
    for size in (10, 100_000):
        with pytest.raises(StoreError) as caught:
            store.put(b"new", pattern(size))
        assert caught.value.code == "InsufficientCapacity"
    work.check()
    assert store.states() == [DriveState.CURRENT] * 4, "a full drive is no broken drive"
    store.heal_faults()
    store.delete(b"small")
    store.put(b"new", b"there is room again")
    assert store.get(b"small") is None and store.get(b"new") == b"there is room again"


def test_some_drives_are_full(store: Store) -> None:
    """A commit that only some drives have room for is undone or done later, never half seen."""
    store.put(b"key", b"old")
    for position in (1, 2):
        store.fault(position, Rule("commit", Fault.FULL))
    with pytest.raises(StoreError) as caught:
        store.put(b"key", b"new")
    assert caught.value.code == "InsufficientCapacity"
    assert store.get(b"key") == b"old"
    recover(store)
    assert store.get(b"key") == b"old"
    store.put(b"key", b"newer")
    assert store.get(b"key") == b"newer"
    assert_drives_agree(store)


def test_a_rotten_shard_is_never_served_and_gets_healed(store: Store) -> None:
    content = pattern(7 << 20)
    blob_id = store.put_blob(b"big", content)
    for position in range(4):
        path = Path(store.paths[position], "blobs", f"{blob_id[0]:02x}", blob_id.hex())
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 0x10
        path.write_bytes(raw)
        assert store.get(b"big") == content
        assert store.get(b"big", 123_456, 5_000_000) == content[123_456:5_000_000]
        store.engine.queue_heal(0, position, blob_id)  # a parity shard is not met by readers
        store.reap()
        assert store.heal().failed == 0
        raw[len(raw) // 2] ^= 0x10
        assert path.read_bytes() == raw


def test_more_rot_than_parity_breaks_the_read_and_serves_nothing_wrong(store: Store) -> None:
    content = pattern(7 << 20)
    blob_id = store.put_blob(b"big", content)
    for position in (0, 1):
        path = Path(store.paths[position], "blobs", f"{blob_id[0]:02x}", blob_id.hex())
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1  # in the last stripe
        path.write_bytes(raw)
    opened = store.engine.open(BUCKET, b"big")
    got = b""
    with pytest.raises(StoreError) as caught, store.engine.reader(opened) as reader:
        for view in reader:
            got += bytes(view)
    assert caught.value.code == "InternalError"
    assert content.startswith(got) and len(got) <= 6 << 20
    store.reap()
    assert store.heal().failed >= 1


def test_a_truncated_or_missing_shard_is_read_around(store: Store) -> None:
    content = pattern(4_000_000)
    blob_id = store.put_blob(b"big", content)
    path = Path(store.paths[2], "blobs", f"{blob_id[0]:02x}", blob_id.hex())
    whole = path.read_bytes()
    for size in (0, 4096, len(whole) - 4096):
        path.write_bytes(whole[:size])
        assert store.get(b"big") == content
        assert store.get(b"big", 3_999_990) == content[3_999_990:], "the end of a short shard is no zeros"
    path.unlink()
    assert store.get(b"big") == content


def test_a_damaged_index_record_is_read_around_and_repaired(store: Store) -> None:
    store.put(b"key", b"content")
    for position in range(4):
        drive = store.set().drive(position)
        key, value = next((k, v) for k, v in store.index_of(position).items() if k[:1] == b"O")
        drive.commit(drive.seq(), [(key, value[:-3] + bytes([value[-3] ^ 4]) + value[-2:])], [])
        assert store.get(b"key") == b"content"
        store.set().report_bad_record(position, BadRecord(key, "as scrubbing says of a drive that no reader asked"))
        wait_until(lambda key=key, v=value, p=position: store.index_of(p)[key] == v, 5, "repaired")
    assert_drives_agree(store)


@pytest.mark.parametrize("operation", ["commit", "shard.create", "shard.write", "shard.sync", "shard.publish", "shard.read", "shard.open"])
def test_a_stuck_drive_blocks_nobody(make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """It is taken out, or read around; requests succeed; no buffer is lost."""
    for name, limit_s in (("engine.erasure_set.STUCK_S", 0.4), ("engine.erasure_set.SLOW_S", 0.1), ("engine.writer.SHARD_TIMEOUT_S", 0.5),
                          ("engine.reader.SLOW_READ_S", 0.2), ("engine.reader.READ_TIMEOUT_S", 1.0)):  # fmt: skip
        monkeypatch.setattr(f"forebay.{name}", limit_s)
    store = make_store()
    store.set().commit_timeout_s = 0.5
    contents = {b"key%d" % i: pattern(3_500_000, i) for i in range(3)}
    for key, content in contents.items():
        store.put(key, content)
    store.fault(1, Rule(operation, Fault.STUCK))
    for _ in range(3):
        for key, content in contents.items():
            assert store.get(key) == content
    store.put(b"new", pattern(3_500_000, 9))
    store.put(b"small", b"x")
    assert store.get(b"new") == pattern(3_500_000, 9)
    assert store.get(b"small") == b"x"
    if operation.startswith("shard.read") or operation == "shard.open":
        wait_until(lambda: store.get(b"new") and store.states()[1] is DriveState.OFFLINE, 10, "a drive that hangs is taken out")
    assert store.states()[1] is DriveState.OFFLINE
    store.heal_faults()
    store.admit_all()
    assert_drives_agree(store)
    store.restart(without=(0,))
    assert store.content() == {**contents, b"new": pattern(3_500_000, 9), b"small": b"x"}
