import threading
import time

import pytest

from forebay.drive import LocalDrive
from forebay.drive.faults import FAULTS_OF, Fault, FaultPlan, FaultyDrive, Rule
from forebay.drive.testing import BLOB, BLOB_2, IDENTITY, aligned, put_shard, read_shard
from forebay.errors import DriveFailed, DriveFull

CONTENT = bytes(range(256)) * 64  # four pages


def faulty(drive, *rules, **options):
    return FaultyDrive(drive, FaultPlan(rules, **options))


def do(drive, operation):
    """Call the operation of this name once, on a drive that has BLOB and the record Oa."""
    if operation.startswith("shard."):
        shard_operation(drive, operation)
        return
    calls = {
        "get": lambda: drive.get(b"Oa"),
        "get_many": lambda: drive.get_many([b"Oa", b"Ob"]),
        "scan": lambda: drive.scan(b"O", b"P", 9),
        "cursor": lambda: drive.cursor().__enter__(),
        "seq": drive.seq,
        "commit": lambda: drive.commit(2, [(b"Oa", b"new")], []),
        "list_shards": lambda: drive.list_shards(0xAB),
        "trash_shard": lambda: drive.trash_shard(BLOB),
        "empty_trash": lambda: drive.empty_trash(0),
        "clear_staging": lambda: drive.clear_staging(()),
        "space": drive.space,
        "probe": drive.probe,
    }
    calls[operation]()


def shard_operation(drive, operation):
    if operation == "shard.size":
        drive.shard_size(BLOB)
    elif operation in ("shard.open", "shard.read"):
        read_shard(drive, BLOB)
    else:
        put_shard(drive, BLOB_2, CONTENT)


@pytest.fixture
def full_drive(drive):
    put_shard(drive, BLOB, CONTENT)
    drive.commit(1, [(b"Oa", b"1" * 100), (b"Ob", b"2" * 100)], [])
    return drive


@pytest.mark.parametrize("operation", FAULTS_OF)
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.FULL, Fault.ERROR_AFTER, Fault.VANISH])
def test_every_operation_can_fail_and_recovers(full_drive, operation, fault):
    if fault not in FAULTS_OF[operation]:
        with pytest.raises(ValueError, match="can meet"):
            Rule(operation, fault)
        return
    drive = faulty(full_drive, Rule(operation, fault, times=1))
    with pytest.raises(DriveFull if fault is Fault.FULL else DriveFailed, match="injected"):
        do(drive, operation)
    assert drive.plan.happened == [(operation, fault)]
    if fault is Fault.VANISH:
        with pytest.raises(DriveFailed, match="vanished"):
            drive.get(b"Oa")
        drive.reappear()
    do(drive, operation)
    assert full_drive.get(b"Ob") == b"2" * 100


def test_an_error_after_the_commit_is_a_commit(full_drive):
    drive = faulty(full_drive, Rule("commit", Fault.ERROR_AFTER))
    with pytest.raises(DriveFailed):
        drive.commit(2, [(b"Oa", b"new")], [])
    assert (full_drive.seq(), full_drive.get(b"Oa")) == (2, b"new")
    drive = faulty(full_drive, Rule("commit", Fault.ERROR))
    with pytest.raises(DriveFailed):
        drive.commit(3, [(b"Oa", b"newer")], [])
    assert (full_drive.seq(), full_drive.get(b"Oa")) == (2, b"new")


@pytest.mark.parametrize("seed", range(5))
def test_a_torn_write_leaves_a_beginning_and_a_short_one_does_not_even_say_so(full_drive, seed):
    for fault in (Fault.TORN, Fault.SHORT):
        writer = faulty(full_drive, Rule("shard.write", fault), seed=seed).create_shard(BLOB_2)
        if fault is Fault.TORN:
            with pytest.raises(DriveFailed):
                writer.write([aligned(CONTENT[:4096]), aligned(CONTENT[4096:])], 0)
        else:
            writer.write([aligned(CONTENT[:4096]), aligned(CONTENT[4096:])], 0)
        writer.sync()
        writer.publish()
        left = read_shard(full_drive, BLOB_2)
        assert len(left) < len(CONTENT) and CONTENT.startswith(left)


@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_bit_at_rest_stays_and_one_in_reading_does_not(full_drive, seed):
    writing = faulty(full_drive, Rule("shard.write", Fault.FLIP), seed=seed)
    put_shard(writing, BLOB_2, CONTENT)
    assert differing_bits(read_shard(full_drive, BLOB_2), CONTENT) == 1
    reading = faulty(full_drive, Rule("shard.read", Fault.FLIP, times=1), seed=seed)
    reader = reading.open_shard(BLOB)
    views = [aligned(bytes(4096)), aligned(bytes(12288))]
    assert reader.read(views, 0) == len(CONTENT)
    assert differing_bits(b"".join(views), CONTENT) == 1
    assert reader.read(views, 0) == len(CONTENT) and b"".join(views) == CONTENT


def test_records_are_read_with_a_flipped_bit(full_drive):
    drive = faulty(full_drive, *(Rule(operation, Fault.FLIP) for operation in ("get", "get_many", "scan", "cursor")))
    assert differing_bits(drive.get(b"Oa"), b"1" * 100) == 1
    assert drive.get(b"Ox") is None
    for values in (drive.get_many([b"Oa", b"Ob"]), [value for _, value in drive.scan(b"O", b"P", 9)]):
        assert differing_bits(b"".join(values), b"1" * 100 + b"2" * 100) == 1
    with drive.cursor() as cursor:
        assert cursor.seek(b"Oa") and cursor.key == b"Oa" and differing_bits(bytes(cursor.value), b"1" * 100) == 1


def test_a_short_read_looks_like_a_short_file(full_drive):
    reader = faulty(full_drive, Rule("shard.read", Fault.SHORT)).open_shard(BLOB)
    assert reader.read([aligned(bytes(len(CONTENT)))], 0) in range(0, len(CONTENT), 4096)


def test_slow_calls_take_their_time(full_drive):
    drive = faulty(full_drive, Rule("get", Fault.SLOW), latency_s=0.03)
    start_s = time.monotonic()
    assert drive.get(b"Oa") == b"1" * 100
    assert time.monotonic() - start_s >= 0.03


def test_stuck_calls_wait_until_they_are_released(full_drive):
    drive = faulty(full_drive, Rule("get", Fault.STUCK))
    got = []
    thread = threading.Thread(target=lambda: got.append(drive.get(b"Oa")))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and not got and drive.seq() == 1, "other calls go on"
    drive.plan.release()
    thread.join(10)
    assert got == [b"1" * 100] and drive.get(b"Oa")


def test_rules_count_calls(full_drive):
    drive = faulty(full_drive, Rule("get*", Fault.ERROR, skip=2, times=2))
    outcomes = []
    for call in range(6):
        try:
            drive.get(b"Oa") if call % 2 else drive.get_many([b"Oa"])
            outcomes.append("ok")
        except DriveFailed:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "failed", "ok", "ok"]
    drive = faulty(full_drive, Rule("get", Fault.ERROR))
    drive.plan.clear()
    assert drive.get(b"Oa")


def outcomes_of(drive, seed):
    drive = faulty(drive, Rule("get", Fault.ERROR, probability=0.3), Rule("*", Fault.FLIP, 0.3), seed=seed)
    result = []
    for _ in range(60):
        try:
            result.append(drive.get(b"Oa"))
        except DriveFailed:
            result.append(None)
    return result


def test_a_seed_replays_and_another_one_differs(full_drive):
    assert outcomes_of(full_drive, 1) == outcomes_of(full_drive, 1) != outcomes_of(full_drive, 2)
    failures = outcomes_of(full_drive, 1).count(None)
    assert 5 <= failures <= 35


def test_a_seed_replays_whatever_other_operations_come_between(full_drive):
    def failing_gets(others):
        drive, result = faulty(full_drive, Rule("get", Fault.ERROR, probability=0.5), seed=3), []
        for call in range(40):
            for _ in range(others):
                drive.seq()
            try:
                drive.get(b"Oa")
            except DriveFailed:
                result.append(call)
        return result

    assert failing_gets(0) == failing_gets(3)


# power cuts


def reopened(drive, folder):
    drive.close()
    return LocalDrive.open(folder, IDENTITY, reserve_bytes=0)


def test_a_crash_takes_nothing_that_was_synced(full_drive, folder):
    drive = faulty(full_drive)
    put_shard(drive, BLOB_2, CONTENT)
    drive.crash()
    again = reopened(drive, folder)
    assert read_shard(again, BLOB_2) == CONTENT
    again.close()


def test_a_crash_takes_what_was_not_synced(full_drive, folder):
    """A writer that publishes without sync, or writes again after it, loses just that."""
    drive = faulty(full_drive)
    writer = drive.create_shard(BLOB_2)
    writer.write([aligned(CONTENT)], 0)
    writer.sync()
    writer.write([aligned(b"\xff" * 4096)], 4096)
    writer.write([aligned(b"\xff" * 4096)], len(CONTENT))
    writer.publish()
    assert len(read_shard(drive, BLOB_2)) == len(CONTENT) + 4096, "readable until the power goes"
    drive.crash()
    again = reopened(drive, folder)
    assert read_shard(again, BLOB_2) == CONTENT[:4096] + bytes(4096) + CONTENT[8192:]
    again.close()


@pytest.mark.parametrize("trashed", [False, True])
def test_a_lying_sync_is_found_out_by_a_crash(full_drive, folder, trashed):
    drive = faulty(full_drive, Rule("shard.sync", Fault.LOSE_SYNC, times=1))
    put_shard(drive, BLOB_2, CONTENT)
    put_shard(drive, BLOB, CONTENT)
    assert read_shard(drive, BLOB_2) == CONTENT
    if trashed:
        drive.trash_shard(BLOB_2)
    drive.crash()
    again = reopened(drive, folder)
    assert read_shard(again, BLOB_2) == b"" and read_shard(again, BLOB) == CONTENT
    again.close()


def test_a_name_that_was_not_durable_is_gone_after_a_crash(full_drive, folder):
    drive = faulty(full_drive, Rule("shard.publish", Fault.LOSE_SYNC))
    put_shard(drive, BLOB_2, CONTENT)
    drive.crash()
    again = reopened(drive, folder)
    assert again.open_shard(BLOB_2) is None
    again.close()


def differing_bits(one, other):
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))
