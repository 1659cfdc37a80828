import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from random import Random

import lmdb
import msgspec
import pytest

from forebay.directio import DirectFile
from forebay.drive import LocalDrive, shards
from forebay.drive.failures import drive_error
from forebay.drive.faults import flip_bit_in_file
from forebay.drive.index import MAP_BYTES_MIN
from forebay.drive.interface import SEQ_KEY
from forebay.drive.testing import BLOB, IDENTITY, aligned, put_shard, read_shard
from forebay.errors import DriveFailed, DriveFull, RecordCorrupt

MIB = 1 << 20


def files(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


# folders


def test_an_open_drive_has_the_documented_layout(drive, folder):
    put_shard(drive, BLOB, bytes(4096))
    writer = drive.create_shard(BLOB)
    *published, staged = files(folder)
    assert published == [f"blobs/ab/{BLOB.hex()}", "forebay.json", "index/data.mdb", "index/lock.mdb"]
    assert re.fullmatch(rf"staging/{BLOB.hex()}\.{os.getpid()}\.\d+", staged)
    writer.abort()
    assert sorted(os.listdir(folder)) == ["blobs", "forebay.json", "index", "staging", "trash"]
    assert sorted(os.listdir(f"{folder}/blobs")) == [f"{prefix:02x}" for prefix in range(256)]
    drive.trash_shard(BLOB)
    assert f"trash/{BLOB.hex()}" in files(folder)


def test_missing_folders_are_made_again_when_the_drive_is_opened(drive, folder):
    put_shard(drive, BLOB, b"x" * 4096)
    drive.close()
    for name in ("trash", "staging", "blobs/00"):
        os.rmdir(f"{folder}/{name}")
    again = LocalDrive.open(folder)
    put_shard(again, bytes(16), bytes(4096))
    assert read_shard(again, BLOB) == b"x" * 4096
    again.close()


def test_foreign_names_among_shards_and_in_staging_are_left_alone(drive, folder):
    put_shard(drive, BLOB, bytes(4096))
    strange = ["blobs/ab/.nfs0001", "blobs/ab/" + "AB" * 16, "blobs/ab/" + "cd" * 16, "staging/x", "staging/a.b.c.d"]
    for name in strange:
        Path(folder, name).touch()
    assert drive.list_shards(0xAB) == [(BLOB, 4096)]
    assert drive.clear_staging(()) == 0
    assert set(strange) <= set(files(folder))


def test_a_staging_name_left_by_a_process_with_our_pid_is_passed_over(drive, folder):
    for number in range(100_000, 100_010):
        Path(folder, f"staging/{BLOB.hex()}.{os.getpid()}.{number}").touch()
    shards._numbers = count(100_000)
    put_shard(drive, BLOB, b"y" * 4096)
    assert read_shard(drive, BLOB) == b"y" * 4096
    assert drive.clear_staging(()) == 10


def test_unaligned_writes_are_refused_and_nothing_is_written(drive, folder):
    writer = drive.create_shard(BLOB)
    if not writer._open_file().is_direct:
        pytest.skip("no O_DIRECT here")
    for view, offset in ((aligned(bytes(100)), 0), (aligned(bytes(4096)), 100)):
        with pytest.raises(ValueError, match="multiples of 4096"):
            writer.write([view], offset)
    assert os.stat(writer._open_file().path).st_size == 0
    writer.abort()


# drives that go away


def test_an_emptied_drive_fails_until_it_is_formatted_again(drive, folder):
    """What `rm -rf drive/*` does under a running store: nothing may be acknowledged into unlinked files."""
    put_shard(drive, BLOB, bytes(4096))
    drive.commit(1, [(b"Oa", b"1")], [])
    for name in os.listdir(folder):
        shutil.rmtree(f"{folder}/{name}") if os.path.isdir(f"{folder}/{name}") else os.unlink(f"{folder}/{name}")
    for operation in (
        lambda: drive.commit(2, [(b"Oa", b"2")], []),
        lambda: drive.open_shard(BLOB),
        lambda: drive.shard_size(BLOB),
        lambda: drive.trash_shard(BLOB),
        lambda: drive.list_shards(0xAB),
        lambda: drive.create_shard(BLOB),
        lambda: drive.empty_trash(0),
        lambda: drive.clear_staging(()),
        drive.probe,
    ):
        with pytest.raises(DriveFailed):
            operation()
    LocalDrive.format(folder, IDENTITY)
    again = LocalDrive.open(folder)
    assert again.seq() == 0 and again.get(b"Oa") is None
    with pytest.raises(DriveFailed, match="or another one than was opened"):
        drive.commit(2, [], [])
    again.commit(1, [(b"Oa", b"new")], [])
    assert again.get(b"Oa") == b"new"
    again.close()


def test_a_shard_being_written_when_the_folder_vanishes_fails_to_publish(drive, folder):
    writer = drive.create_shard(BLOB)
    writer.write([aligned(bytes(4096))], 0)
    writer.sync()
    os.rename(folder, folder + ".away")
    with pytest.raises(DriveFailed, match=f"publish shard {BLOB.hex()}: No such file"):
        writer.publish()
    writer.abort()
    with pytest.raises(DriveFailed, match="look at the free space: No such file"):
        LocalDrive.space(LocalDrive(folder, IDENTITY, drive._index, None))
    os.rename(folder + ".away", folder)


def test_the_probe_notices_another_drive_in_its_place(drive, folder):
    other = msgspec.structs.replace(IDENTITY, drive_id="f" * 32)
    os.unlink(f"{folder}/forebay.json")
    with pytest.raises(DriveFailed, match=r"vanished or changed: .*not a drive"):
        drive.probe()
    LocalDrive.format(folder + "2", other)
    shutil.copy(f"{folder}2/forebay.json", folder)
    with pytest.raises(DriveFailed, match="another drive is in its place"):
        drive.probe()


def test_the_probe_notices_what_is_not_read_back(drive, monkeypatch):
    monkeypatch.setattr(DirectFile, "preadv", lambda self, views, offset: 4096)
    with pytest.raises(DriveFailed, match="not what is read back"):
        drive.probe()
    assert drive.clear_staging(()) == 0


# errors of the system


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, ""), DriveFull, "No space left on device; free some space"),
        (OSError(errno.EDQUOT, ""), DriveFull, "Disk quota exceeded; free some space"),
        (OSError(errno.EIO, ""), DriveFailed, "Input/output error"),
        (OSError(errno.EROFS, ""), DriveFailed, "Read-only file system"),
        (OSError("odd"), DriveFailed, "odd"),
        (lmdb.MapFullError("put", -30792), DriveFull, "size of its map"),
        (lmdb.CorruptedError("get"), DriveFailed, "get"),
    ],
)
def test_errors_are_told_apart(error, kind, message):
    told = drive_error("/d", "write x", error)
    assert type(told) is kind and told.drive == "/d"
    assert str(told).startswith("/d: write x: ") and message in str(told)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, DriveFailed), (errno.ENOSPC, DriveFull)])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync", "fsync", "preadv", "open"])
def test_every_system_call_of_a_shard_may_fail(drive, monkeypatch, number, kind, call):
    """Whatever fails, the drive says which kind of failure, and what was stored before is untouched."""
    put_shard(drive, BLOB, b"old!" * 1024)
    real = getattr(os, call)

    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(kind, match=os.strerror(number)):
        if call == "preadv":
            reader = drive.open_shard(BLOB)
            reader.read([aligned(bytes(4096))], 0)
        else:
            put_shard(drive, BLOB, b"new!" * 1024)
    monkeypatch.setattr(os, call, real)
    assert read_shard(drive, BLOB) in (b"old!" * 1024, b"new!" * 1024 if call == "fsync" else b"")


# space


def test_shards_stop_at_the_reserve_and_index_commits_go_on(drive, folder):
    writer = drive.create_shard(BLOB)
    writer.write([aligned(bytes(4096))], 0)
    drive.close()
    tight = LocalDrive.open(folder, reserve_bytes=1 << 60)
    assert tight.space().free_bytes == 0 and tight.space().total_bytes > 0
    with pytest.raises(DriveFull, match="only the reserve is free"):
        tight.create_shard(BLOB)
    tight.commit(1, [(b"Ha", b"tombstone")], [b"Oa"])
    assert tight.get(b"Ha") == b"tombstone"
    tight.close()
    writer.abort()


def test_a_writer_that_meets_the_reserve_stops(drive, monkeypatch):
    writer = drive.create_shard(BLOB)
    drive._gauge._reserve_bytes, drive._gauge._next_look_s = 1 << 60, 0
    with pytest.raises(DriveFull, match="only the reserve"):
        writer.write([aligned(bytes(4096))], 0)
    writer.abort()


def test_the_reserve_has_a_default(folder, drive):
    drive.close()
    default = LocalDrive.open(folder)
    status = os.statvfs(folder)
    reserve = max(64 * MIB, int(status.f_blocks * status.f_frsize * 0.005))
    assert abs(default.space().free_bytes - (status.f_bavail * status.f_frsize - reserve)) < 512 * MIB
    default.close()


def fill(path: str) -> str:
    """Take every free byte of a filesystem; returns the file that holds them."""
    with open(f"{path}/filler", "wb", buffering=0) as filler:
        for size in (MIB, 4096):
            try:
                while filler.write(bytes(size)) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler.name


def test_a_really_full_disk_harms_nothing(mount):
    path = mount("small", 16)
    LocalDrive.format(path, IDENTITY)
    drive = LocalDrive.open(path, reserve_bytes=0)
    put_shard(drive, BLOB, b"x" * MIB)
    records = [(b"O%06d" % number, os.urandom(3000)) for number in range(100)]
    drive.commit(1, records, [])
    filler = fill(path)
    with pytest.raises(DriveFull, match="No space left"):
        for seq in range(2, 100):
            drive.commit(seq, [(b"N%06d-%d" % (seq, index), os.urandom(3000)) for index in range(10)], [])
    full_at = drive.seq()
    with pytest.raises(DriveFull, match=r"No space left|only the reserve"):
        put_shard(drive, bytes(16), bytes(MIB))
    assert drive.shard_size(bytes(16)) is None and read_shard(drive, BLOB) == b"x" * MIB
    assert drive.scan(b"O", b"P", 1000) == records and drive.scan(b"N%06d" % (full_at + 1), b"O", 9) == []
    os.unlink(filler)
    drive.clear_staging(())
    drive.commit(full_at + 1, [(b"H", b"")], [key for key, _ in records])
    drive._gauge._next_look_s = 0
    put_shard(drive, bytes(16), b"y" * MIB)
    drive.close()
    again = LocalDrive.open(path, reserve_bytes=0)
    assert again.seq() == full_at + 1 and again.scan(b"O", b"P", 9) == [] and read_shard(again, bytes(16)) == b"y" * MIB
    again.close()


def test_within_the_reserve_everything_can_be_deleted(mount):
    """Shards fill the drive to the reserve; every record can still be replaced by a tombstone, one commit each."""
    path = mount("small", 32)
    LocalDrive.format(path, IDENTITY)
    drive = LocalDrive.open(path, reserve_bytes=8 * MIB)
    drive.commit(1, [(b"O%06d" % number, os.urandom(2000)) for number in range(1000)], [])
    with pytest.raises(DriveFull, match="only the reserve is free"):
        for number in range(100):
            drive._gauge._next_look_s = 0
            put_shard(drive, bytes([number]) * 16, bytes(MIB))
    for number in range(1000):
        drive.commit(2 + number, [(b"T%06d" % number, bytes(300))], [b"O%06d" % number])
    assert drive.scan(b"O", b"P", 1) == []
    drive.close()


# the index between processes


def test_opening_twice_shares_the_index_until_the_last_one_closes(drive, folder):
    second = LocalDrive.open(folder)
    assert second._index is drive._index
    drive.commit(1, [(b"Oa", b"1")], [])
    drive.close()
    assert second.get(b"Oa") == b"1"
    second.close()
    with pytest.raises(DriveFailed, match="closed"):
        second.get(b"Oa")
    third = LocalDrive.open(folder)
    assert third.get(b"Oa") == b"1"
    third.close()


def test_an_index_does_not_survive_a_fork(drive, folder):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            LocalDrive.open(folder)
        except DriveFailed as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"already open in this process" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)


COUNTING = """
import sys
from forebay.drive import LocalDrive
drive = LocalDrive.open(sys.argv[1])
done = 0
while done < 40:
    seq = drive.seq() + 1
    try:
        drive.commit(seq, [(b"O%d-%s" % (seq, sys.argv[2].encode()), b"x" * 1800)], [])
        done += 1
    except ValueError:
        pass
drive.close()
"""


def test_processes_share_one_index(drive, folder):
    workers = [subprocess.Popen([sys.executable, "-c", COUNTING, folder, name]) for name in "abc"]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    found = [key.partition(b"-")[2] for key, _ in drive.scan(b"O", b"P", 1000)]
    assert {name: found.count(name) for name in (b"a", b"b", b"c")} == {b"a": 40, b"b": 40, b"c": 40}


def test_a_process_with_little_address_space_gets_a_smaller_map(drive, folder):
    drive.commit(1, [(b"Oa", b"1")], [])
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30));"
        "from forebay.drive import LocalDrive; drive = LocalDrive.open(sys.argv[1]);"
        "print(drive.get(b'Oa'), drive._index._begin.__self__.info()['map_size']); drive.close()"
    )
    out = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, timeout=60, check=True)
    value, size = out.stdout.split()
    assert value == "b'1'" and MAP_BYTES_MIN <= int(size) < 8 << 30


def test_threads_may_open_and_close_the_same_drive(folder, drive):
    drive.commit(1, [(b"Oa", b"1")], [])
    wrong = []

    def work():
        for _ in range(20):
            mine = LocalDrive.open(folder)
            if mine.get(b"Oa") != b"1":
                wrong.append(mine)
            mine.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and drive.get(b"Oa") == b"1"


# damage


def test_the_sequence_record_checks_itself(drive):
    drive.commit(1234567, [], [])
    golden = bytes.fromhex("000000000012d6873ad1a2abb5342839")
    assert drive.get(SEQ_KEY) == golden
    for bit in range(128):
        damaged = bytearray(golden)
        damaged[bit // 8] ^= 1 << bit % 8
        with drive._index._begin(write=True) as transaction:
            transaction.put(SEQ_KEY, bytes(damaged))
        with pytest.raises(RecordCorrupt, match="sequence number is damaged"):
            drive.seq()
        with pytest.raises(RecordCorrupt):
            drive.commit(2**62, [], [])


def test_a_flipped_bit_in_a_file_always_changes_it(tmp_path):
    for seed in range(50):
        (tmp_path / "f").write_bytes(bytes(100))
        offset = flip_bit_in_file(str(tmp_path / "f"), Random(seed))
        content = (tmp_path / "f").read_bytes()
        assert len(content) == 100 and content[offset].bit_count() == 1 and sum(content) == content[offset]


def test_files_opened_by_a_drive_are_closed(drive, folder):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        put_shard(drive, BLOB, bytes(4096))
        read_shard(drive, BLOB)
        drive.probe()
        drive.create_shard(BLOB).abort()
        drive.trash_shard(BLOB)
        drive.empty_trash(0)
        LocalDrive.open(folder).close()
    assert len(os.listdir("/proc/self/fd")) == before
