"""Drives that come back, are emptied or replaced; healing, scrubbing and garbage: invariant 5 among others."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engine_store import BUCKET, SLOTS, Store, assert_drives_agree, pattern, refused, wait_until

from forebay.drive.faults import Fault, Rule
from forebay.engine import admission, buckets, keyspace
from forebay.engine.collect import Collector
from forebay.engine.engine import Engine
from forebay.engine.keeper import DriveReport, HealStatus, Keeper, ScrubStatus
from forebay.engine.multipart import PartChoice
from forebay.engine.objects import Attributes, claim_blobs
from forebay.engine.pace import Pace, Stopping
from forebay.engine.records import Bucket
from forebay.engine.shared import DriveState
from forebay.errors import StoreError

OBJECTS = {b"small": pattern(500), b"blob": pattern(100_000), b"stripes": pattern(7 << 20), b"a/b": b"", b"x" * 700: pattern(66_000)}


@pytest.fixture
def store(fast_path: Path) -> Iterator[Store]:
    store = Store(fast_path)
    for key, content in OBJECTS.items():
        store.put(key, content)
    yield store
    store.heal_faults()
    wait_until(lambda: store.engine.arena.free_slots == SLOTS, 10, "all buffers are free")
    store.stop()


@pytest.fixture
def keep(store: Store) -> Iterator[Callable[..., Keeper]]:
    keepers: list[Keeper] = []

    def keep(**options: object) -> Keeper:
        keepers.append(store.keeper(**options))
        keepers[-1].start()
        return keepers[-1]

    yield keep
    for keeper in keepers:
        keeper.close()
        keeper.close()


def is_whole(keeper: Keeper) -> bool:
    return all(r.state == "current" and not r.missing_shards and not r.is_filling for r in keeper.drives())


def collector(store: Store, **options: float) -> Collector:
    return Collector(store.engine, threading.Event(), **{"upload_kept_s": 3600.0, "orphan_kept_s": 0.0, **options})


def shard_files(store: Store) -> set[tuple[int, str]]:
    return {(i, f.name) for i, path in enumerate(store.paths) for f in Path(path, "blobs").rglob("*") if f.is_file()}


def test_what_the_keeper_says_is_json(store: Store, keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    for answer, kind in ((keeper.drives(), list[DriveReport]), (keeper.heal_status(), HealStatus), (keeper.scrub_status(), ScrubStatus)):
        assert msgspec.json.decode(msgspec.json.encode(answer), type=kind) == answer
    reports = keeper.drives()
    assert [(r.set, r.position, r.path, r.state, r.reason) for r in reports] == [(0, p, store.paths[p], "current", "") for p in range(4)]
    assert all(r.drive_id and r.sequence and r.total_bytes > r.free_bytes > 0 for r in reports)


def test_an_emptied_drive_is_refilled_while_the_store_runs(store: Store, keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    before = shard_files(store)
    old = keeper.drives()[2].drive_id
    store.wipe(2)
    store.put(b"meanwhile", pattern(80_000))
    wait_until(lambda: keeper.drives()[2].state != "current" or keeper.drives()[2].drive_id != old, what="noticed")
    wait_until(lambda: is_whole(keeper), what=str(keeper.drives()))
    keeper.close()
    assert keeper.drives()[2].drive_id != old
    assert before <= shard_files(store)
    assert_drives_agree(store)
    store.restart(without=(0,))
    assert store.content() == {**OBJECTS, b"meanwhile": pattern(80_000)}


def test_a_removed_folder_is_made_again_at_the_start(store: Store) -> None:
    before = shard_files(store)
    store.stop()
    shutil.rmtree(store.paths[1])
    store.start()
    assert store.states()[1] is DriveState.STALE
    assert store.content() == OBJECTS
    keeper = store.keeper()
    keeper.start()
    wait_until(lambda: is_whole(keeper))
    keeper.close()
    assert shard_files(store) == before
    assert_drives_agree(store)


def test_an_empty_mount_point_is_left_alone_until_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another filesystem lies under the folder than the peers remember, nothing is formatted but by `replace`."""
    store.stop()
    shutil.rmtree(store.paths[3])
    os.mkdir(store.paths[3])
    real = admission.refill_if_safe.__globals__["classify_folder"]

    def elsewhere(path: str, remembered=()):
        return real(path, {"another filesystem"} if remembered else ()) if path == store.paths[3] else real(path, remembered)

    monkeypatch.setitem(admission.refill_if_safe.__globals__, "classify_folder", elsewhere)
    store.start()
    keeper = store.keeper()
    keeper.start()
    wait_until(lambda: "forebay drive replace" in keeper.drives()[3].reason, what=str(keeper.drives()[3]))
    assert os.listdir(store.paths[3]) == []
    refused(lambda: keeper.replace(0, 2), "InvalidRequest")
    refused(lambda: keeper.replace(0, 4), "InvalidArgument")
    refused(lambda: keeper.replace(1, 0), "InvalidArgument")
    report = keeper.replace(0, 3)
    assert (report.set, report.position) == (0, 3)
    wait_until(lambda: is_whole(keeper))
    keeper.close()
    assert_drives_agree(store)
    store.restart(without=(1,))
    assert store.content() == OBJECTS


def test_a_folder_with_something_else_is_not_touched(store: Store, keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    store.take_away(1)
    store.put(b"new", b"x")
    wait_until(lambda: "not a Forebay drive" in keeper.drives()[1].reason, what=str(keeper.drives()[1]))
    error = refused(lambda: keeper.replace(0, 1), "InvalidRequest")
    assert store.paths[1] in str(error)
    assert Path(store.paths[1]).read_text() == "the disk is not mounted"
    store.bring_back(1)
    refused(lambda: keeper.replace(0, 1), "InvalidRequest")
    wait_until(lambda: is_whole(keeper))


def test_a_drive_that_vanishes_from_an_idle_store_is_noticed(store: Store, keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    store.fault(0, Rule("probe", Fault.VANISH))
    wait_until(lambda: keeper.drives()[0].state == "offline")
    assert "vanished" in keeper.drives()[0].reason
    store.heal_faults()
    wait_until(lambda: is_whole(keeper))


def test_a_drive_that_fails_at_every_step_never_stops_the_keeper(store: Store, keep: Callable[..., Keeper]) -> None:
    store.restart(without=(2,))
    for i in range(5):
        store.put(b"missed %d" % i, pattern(70_000, i))
    store.bring_back(2)
    rules = [Rule(name, Fault.ERROR, skip=i, times=1) for name in ("commit", "get", "scan", "seq", "probe", "shard.*") for i in range(3)]
    store.fault(2, *rules)
    keeper = store.keeper()
    keeper.start()
    wait_until(lambda: is_whole(keeper), what=str(keeper.drives()))
    keeper.close()
    assert_drives_agree(store)


def test_writes_go_on_while_a_drive_is_brought_up_to_date(store: Store) -> None:
    store.restart(without=(0,))
    for i in range(600):
        store.engine.put(BUCKET, b"many/%04d" % i, b"v" * i, Attributes())
    store.put(b"last", b"")
    store.bring_back(0)
    store.wipe(0)
    keeper = store.keeper()
    keeper.start()
    expected = {b"many/%04d" % i: b"v" * i for i in range(600)} | OBJECTS | {b"last": b""}
    i = 0
    while not is_whole(keeper) or i < 50:
        key = b"many/%04d" % (i * 7 % 600)
        if i % 3:
            store.put(key, b"w" * (i % 90))
            expected[key] = b"w" * (i % 90)
        else:
            store.delete(key)
            expected.pop(key, None)
        i += 1
        assert i < 3000
    keeper.close()
    assert_drives_agree(store)
    store.restart(without=(1,))
    assert store.content() == expected


def test_scrubbing_finds_and_repairs_what_has_rotten(store: Store, keep: Callable[..., Keeper]) -> None:
    files = sorted(shard_files(store))
    blobs = sorted({name for _, name in files})
    for i, name in enumerate(blobs):  # of each blob on another drive
        path = Path(store.paths[i], "blobs", name[:2], name)
        if i % 3 == 0:
            path.unlink()
            continue
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw if i % 3 == 1 else raw[:-4096])
    drive = store.set().drive(1)
    index = store.index_of(1)
    key, value = next((k, v) for k, v in index.items() if k[:1] == b"O" and v)
    gone = next(k for k in index if k[:1] == b"D")
    extra = keyspace.TABLE_COMPLETED + b"e" * 16
    drive.commit(drive.seq(), [(key, value[:-1] + bytes([value[-1] ^ 1])), (extra, index[key])], [gone])
    keeper = keep(scrub_bytes_per_s=0)
    keeper.start_scrub()
    wait_until(lambda: not keeper.scrub_status().running and keeper.scrub_status().records_checked, what=str(keeper.scrub_status()))
    status = keeper.scrub_status()
    assert status.records_bad == 3 and status.blocks_bad >= len(blobs), status
    assert status.bytes_checked and status.bytes_total >= status.bytes_checked
    wait_until(lambda: is_whole(keeper) and not keeper.heal_status().running)
    keeper.start_scrub()
    wait_until(lambda: not keeper.scrub_status().running)
    status = keeper.scrub_status()
    assert (status.records_bad, status.blocks_bad) == (0, 0), status
    assert status.next_s == pytest.approx(status.finished_s + 14 * 86400, abs=5)
    assert sorted(shard_files(store)) == files
    keeper.close()
    assert_drives_agree(store)
    store.restart(without=(0,))
    assert store.content() == OBJECTS
    assert store.keeper()._last_scrub() == msgspec.structs.replace(status, next_s=0.0), "the result survives a restart"


def test_scrubbing_stops_at_once_and_keeps_to_its_rate(store: Store) -> None:
    keeper = store.keeper(scrub_bytes_per_s=1 << 20)
    keeper.start()
    keeper.start_scrub()
    wait_until(lambda: keeper.scrub_status().records_checked)
    began_s = time.monotonic()
    keeper.close()
    assert time.monotonic() - began_s < 5, "11 MB at 1 MB/s were not waited for"


def test_pace() -> None:
    stop = threading.Event()
    pace = Pace(1e6, stop)
    began_s = time.monotonic()
    for _ in range(30):
        pace.spend(10_000)
    assert time.monotonic() - began_s >= 0.15
    stop.set()
    with pytest.raises(Stopping):
        pace.spend(0)


# garbage


def test_stale_uploads_go_and_live_ones_stay(store: Store) -> None:
    def upload(key: bytes, parts: int):
        found = store.engine.create_upload(BUCKET, key, Attributes()).wait()
        for number in range(1, parts + 1):
            writer = store.engine.writer(BUCKET, key)
            writer.write(pattern(70_000, number))
            store.engine.put_part(BUCKET, key, found.upload_id, number, writer.finish(), "e", {}).wait()
        return found

    before = shard_files(store)
    upload(b"stale", 2)
    upload(b"long" * 200, 1)
    collector(store).run()
    assert len(store.engine.list_uploads(BUCKET).uploads) == 2
    collector(store, upload_kept_s=0.0).run()
    assert store.engine.list_uploads(BUCKET).uploads == []
    wait_until(lambda: shard_files(store) == before)
    live = upload(b"live", 1)
    collector(store, upload_kept_s=60.0).run()
    store.engine.complete(BUCKET, b"live", live.upload_id, [PartChoice(1, "e")], lambda u, p: Attributes()).wait()
    assert store.get(b"live") == pattern(70_000, 1)
    assert [k for k in store.index_of(0) if k[:1] == b"P"] == []


def test_uploads_of_a_deleted_bucket_go_after_an_hour(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.engine.create_bucket("gone")
    store.engine.create_upload("gone", b"k", Attributes()).wait()
    store.engine.delete_bucket("gone")
    collector(store).run()
    assert [k for k in store.index_of(0) if k[:1] == b"U"]
    monkeypatch.setattr("forebay.engine.collect.LEFTOVER_KEPT_S", 0.0)
    collector(store).run()
    assert not [k for k in store.index_of(0) if k[:1] == b"U"]
    assert not [k for k in store.index_of(0) if k == keyspace.bucket_key("gone")], "nor does the bucket leave anything"


def test_orphans_go_only_when_seen_twice_and_everybody_agrees(store: Store) -> None:
    for i in range(2):  # a body that was received and never committed
        writer = store.engine.writer(BUCKET, b"k%d" % i)
        writer.write(pattern(90_000, i))
        writer.finish()
    live = {(p, n) for p, n in shard_files(store) if any(n == k[1:].hex() for k in store.index_of(0) if k[:1] == b"D")}
    orphans = shard_files(store) - live
    assert len(orphans) == 8
    found = collector(store)
    found.orphans()
    assert shard_files(store) == live | orphans, "seen once"
    store.set().take_out(3, "test")
    found.orphans()
    found.orphans()
    assert shard_files(store) == live | orphans, "a drive is away that might know better"
    store.admit_all()
    found.orphans()
    found.orphans()
    assert shard_files(store) == live
    patient = collector(store, orphan_kept_s=3600.0)
    writer = store.engine.writer(BUCKET, b"k")
    writer.write(pattern(90_000, 7))
    writer.finish()
    patient.orphans()
    patient.orphans()
    assert len(shard_files(store) - live) == 4, "not yet"
    assert store.content() == OBJECTS


def test_a_drive_that_lost_its_records_makes_nobody_lose_shards(store: Store) -> None:
    """Invariant 5: one drive's empty listing is a minority."""
    before = shard_files(store)
    drive = store.set().drive(0)
    drive.commit(drive.seq(), [], [k for k in store.index_of(0) if k[:1] in b"DCO"])
    found = collector(store)
    for _ in range(3):
        found.orphans()
    assert shard_files(store) == before
    keeper = store.keeper(scrub_bytes_per_s=0)
    keeper.start()
    keeper.start_scrub()
    wait_until(lambda: not keeper.scrub_status().running)
    keeper.close()
    assert_drives_agree(store)
    assert store.content() == OBJECTS


def test_a_comparison_with_a_drive_that_lost_records_loses_nothing(store: Store) -> None:
    """Invariant 5 once more: the first current drive lacks what the others have, while a stale one is compared with it."""
    store.restart(without=(3,))
    store.put(b"new", b"x")
    store.bring_back(3)
    store.wipe(3)
    drive = store.set().drive(0)
    drive.commit(drive.seq(), [], [k for k in store.index_of(0) if k[:1] in b"DCO"])
    store.admit_all()
    wait_until(lambda: len(store.index_of(3)) >= len(store.index_of(1)) - 2)
    assert {k for k in store.index_of(3) if k[:1] in b"DO"} == {k for k in store.index_of(1) if k[:1] in b"DO"}
    store.restart(without=(0,))
    assert store.listed() == sorted([*OBJECTS, b"new"])
    for key, content in OBJECTS.items():  # of small ones, two drives have lost their shares
        assert len(content) == 500 or store.get(key) == content


def test_trash_is_emptied_after_its_time(store: Store) -> None:
    store.delete(b"blob")
    store.reap()
    trash = [Path(p, "trash") for p in store.paths]
    wait_until(lambda: all(len(os.listdir(t)) == 1 for t in trash))
    found = collector(store)
    found.trash(60)
    assert all(len(os.listdir(t)) == 1 for t in trash)
    found.trash(0)
    assert all(os.listdir(t) == [] for t in trash)


def test_staging_of_dead_processes_goes(store: Store) -> None:
    writer = store.engine.writer(BUCKET, b"k")
    writer.write(b"x")
    dead = Path(store.paths[0], "staging", f"{'ab' * 16}.99999999.1")
    dead.write_bytes(b"")
    collector(store).staging({os.getpid()})
    assert not dead.exists()
    assert len(os.listdir(Path(store.paths[0], "staging"))) == 1
    writer.abort()


def test_pointers_of_empty_nodes_go(store: Store) -> None:
    def pointers() -> list[bytes]:
        return [k for k in store.index_of(0) if k[:1] in b"OU" and len(k) == keyspace.POINTER_KEY_BYTES and k.endswith(b"\xff")]

    long = b"L" * 1000
    store.put(long, b"")
    assert len(pointers()) == 3, "two segments of this one, one of the other"
    found = collector(store)
    found.pointers()
    assert len(pointers()) == 3
    store.delete(long)
    store.reap()
    found.pointers()
    found.pointers()
    assert len(pointers()) == 1
    store.put(long, b"again")
    assert long in store.listed()


def test_old_answers_of_completed_uploads_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = store.engine.create_upload(BUCKET, b"k", Attributes()).wait()
    store.engine.put_part(BUCKET, b"k", upload.upload_id, 1, None, "e", {}).wait()
    choices = [PartChoice(1, "e")]
    for _ in range(2):
        store.engine.complete(BUCKET, b"k", upload.upload_id, choices, lambda u, p: Attributes()).wait()
    collector(store).run()
    store.engine.complete(BUCKET, b"k", upload.upload_id, choices, lambda u, p: Attributes()).wait()
    monkeypatch.setattr("forebay.engine.multipart.COMPLETED_KEPT_S", 0)
    collector(store).run()
    refused(lambda: store.engine.complete(BUCKET, b"k", upload.upload_id, choices, lambda u, p: Attributes()).wait(), "NoSuchUpload")


def test_a_blob_deleted_while_it_is_healed_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shard_files(store)
    blob_id = store.put_blob(b"short-lived", pattern(80_000))
    Path(store.paths[1], "blobs", f"{blob_id[0]:02x}", blob_id.hex()).unlink()
    store.engine.queue_heal(0, 1, blob_id)
    store.reap()
    real = Store.heal.__globals__["Healer"]._rebuild

    def delete_first(self, *args: object) -> None:
        store.delete(b"short-lived")
        store.reap()
        real(self, *args)

    monkeypatch.setattr(Store.heal.__globals__["Healer"], "_rebuild", delete_first)
    store.heal()
    wait_until(lambda: shard_files(store) == before)
    assert not [k for k in store.index_of(0) if k[:1] == b"H"]


# several sets


@pytest.fixture
def two_sets(fast_path: Path) -> Iterator[Store]:
    store = Store(fast_path, 2, 1, sets=2)
    yield store
    store.stop()


def key_on(store: Store, set_index: int, name: bytes) -> bytes:
    bucket = store.engine.bucket(BUCKET)
    return next(k for i in range(1000) if store.engine.set_of(bucket, k := b"%s-%d" % (name, i)).index == set_index)


def test_copies_over_sets_hold_their_blobs(two_sets: Store) -> None:
    store, content = two_sets, pattern(90_000)
    source, target = key_on(store, 0, b"s"), key_on(store, 1, b"t")
    store.put(source, content)
    store.engine.copy(store.engine.open(BUCKET, source), BUCKET, target, Attributes())
    store.delete(source)
    store.reap(0)
    assert store.get(target) == content
    store.delete(target)
    store.reap(1)
    assert [k for k in store.index_of(1, 1) if k[:1] == b"F"]
    collector(store).run()
    assert not [k for k in store.index_of(0, 1) if k[:1] == b"F"]
    store.reap(0)
    assert not [k for k in store.index_of(0, 0) if k[:1] in b"CD"]


def test_a_copy_whose_outcome_is_uncertain_keeps_its_claims(two_sets: Store) -> None:
    """The commit of the version fails on all drives but may still come to be: the blob must not go with the source."""
    store, content = two_sets, pattern(90_000)
    source, target = key_on(store, 0, b"s"), key_on(store, 1, b"t")
    store.put(source, content)
    opened = store.engine.open(BUCKET, source)
    for position in range(3):
        store.fault(position, Rule("commit", Fault.ERROR_AFTER), set_index=1)
    refused(lambda: store.engine.copy(opened, BUCKET, target, Attributes()), "ServiceUnavailable")
    store.heal_faults()
    store.delete(source)
    store.reap(0)
    store.restart()
    store.admit_all()
    assert store.get(target) in (None, content)
    assert store.get(target) == content, "all drives have it: it is there now"


def test_half_made_and_half_deleted_buckets(two_sets: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store = two_sets
    engine = store.engine
    engine.submit(buckets.put_record(Bucket("half-made", b"h" * 16, 0), buckets.Clash.REFUSE, set_index=1)).wait()
    key = key_on(store, 1, b"k")
    engine.create_bucket("half-deleted")
    deleted = engine.bucket("half-deleted")
    key = next(k for i in range(1000) if engine.set_of(deleted, k := b"%d" % i).index == 1)
    engine.put("half-deleted", key, b"acknowledged in that moment", Attributes()).wait()
    engine.submit(engine.remove_bucket_op("half-deleted", 0)).wait()
    assert not engine.exists("half-deleted")
    monkeypatch.setattr("forebay.engine.collect.LEFTOVER_KEPT_S", 0.0)
    collector(store).run()
    assert engine.read(engine.open("half-deleted", key)) == b"acknowledged in that moment"
    assert sorted(b.name for b in engine.list_buckets()) == [BUCKET, "half-deleted"]
    engine.create_bucket("half-made")
    key = next(k for i in range(1000) if engine.set_of(engine.bucket("half-made"), k := b"%d" % i).index == 1)
    engine.put("half-made", key, b"x", Attributes()).wait()
    assert engine.read(engine.open("half-made", key)) == b"x"


def test_two_make_the_same_bucket_at_once(two_sets: Store) -> None:
    """One wins, and all sets know the bucket by one id: what is acknowledged is found."""
    store = two_sets
    engines = [store.engine, store.open_engine()]
    for round_number in range(8):
        name = f"contested-{round_number}"
        errors: list[str] = []

        def make(engine: Engine, name: str = name, errors: list[str] = errors) -> None:
            try:
                engine.create_bucket(name)
            except StoreError as error:
                errors.append(error.code)

        threads = [threading.Thread(target=make, args=(each,)) for each in engines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors in ([], ["BucketAlreadyOwnedByYou"]), errors
        for i in range(6):
            engines[i % 2].put(name, b"%d" % i, b"x", Attributes()).wait()
        assert len(store.engine.list_objects(name).objects) == 6
    engines[1].close()


def test_deleting_a_bucket_races_with_puts(two_sets: Store) -> None:
    """Either the put is refused or the bucket stays; nothing that was acknowledged is lost."""
    store = two_sets
    for round_number in range(10):
        name = f"racing-{round_number}"
        store.engine.create_bucket(name)
        done: list[bytes] = []

        def put(name=name, done=done) -> None:
            for i in range(12):
                try:
                    store.engine.put(name, b"%d" % i, b"x", Attributes()).wait()
                    done.append(b"%d" % i)
                except Exception as e:
                    assert getattr(e, "code", e) == "NoSuchBucket"

        thread = threading.Thread(target=put)
        thread.start()
        outcome = "deleted"
        try:
            store.engine.delete_bucket(name)
        except Exception as e:
            outcome = getattr(e, "code", repr(e))
        thread.join()
        assert outcome in ("deleted", "BucketNotEmpty")
        if outcome == "deleted":
            assert done == []
        else:
            assert [o.key for o in store.engine.list_objects(name).objects] == sorted(done)


def test_claims_of_nobody_are_released(two_sets: Store) -> None:
    """A copy claimed a blob of another set and died before its version was published."""
    store, content = two_sets, pattern(90_000)
    source = key_on(store, 0, b"s")
    blob_id = store.put_blob(source, content)
    store.engine.submit(claim_blobs([blob_id], b"nobody" + bytes(10), set_index=0)).wait()
    target = key_on(store, 1, b"t")
    store.engine.copy(store.engine.open(BUCKET, source), BUCKET, target, Attributes())
    store.delete(source)
    store.reap(0)
    found = collector(store)
    found.claims()
    assert len([k for k in store.index_of(0, 0) if k[:1] == b"C"]) == 2, "seen once"
    found.claims()
    assert len([k for k in store.index_of(0, 0) if k[:1] == b"C"]) == 1
    assert store.get(target) == content
