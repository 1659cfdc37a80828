"""The conformance kit: what every implementation of `Drive` must do. Subclass `DriveTests`, say how to open one.

    class TestMyDrive(DriveTests):
        def open_drive(self, folder): return MyDrive(folder)

Only tests import this module; it needs pytest.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from forebay.directio import ALIGNMENT_BYTES, Arena
from forebay.drive.interface import KEY_BYTES_MAX, Drive, Identity

IDENTITY = Identity(
    deployment="5f3c0a52d1b94e7f8f1f6f4f7c8a9b0c",
    set_index=0,
    position=2,
    data=3,
    parity=1,
    sets=1,
    drive_id="0123456789abcdef0123456789abcdef",
    device="",
)
BLOB = bytes.fromhex("ab" * 16)
BLOB_2 = bytes.fromhex("ab" * 15 + "cd")


def aligned(content: bytes) -> memoryview:
    """`content` in memory that direct I/O accepts."""
    size = max(-(-len(content) // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
    view = Arena(size, 1).acquire().view[: len(content)]
    view[:] = content
    return view


def put_shard(drive: Drive, blob_id: bytes, content: bytes) -> None:
    """Write, sync and publish a shard in one go."""
    writer = drive.create_shard(blob_id)
    writer.write([aligned(content)], 0)
    writer.sync()
    writer.publish()


def read_shard(drive: Drive, blob_id: bytes) -> bytes | None:
    """The whole of a shard."""
    reader = drive.open_shard(blob_id)
    if reader is None:
        return None
    view = aligned(bytes(reader.size_bytes))
    assert reader.read([view], 0) == len(view)
    reader.close()
    return bytes(view)


def crash_point_names(folder: Path) -> list[str]:
    """Every name that the sources under `folder` give to `crash_point`, so that a test can visit them all."""
    calls = re.compile(r'crash_point\("([^"]+)"\)')
    return sorted({name for file in folder.rglob("*.py") for name in calls.findall(file.read_text())})


class DriveTests:
    """Subclass it and give `open_drive`."""

    def open_drive(self, folder: Path) -> Drive:
        """Open the drive in `folder` with the identity `IDENTITY`, making it if there is none yet."""
        raise NotImplementedError

    @pytest.fixture
    def drive(self, tmp_path: Path) -> Iterator[Drive]:
        """A fresh drive."""
        drive = self.open_drive(tmp_path / "drive")
        yield drive
        drive.close()

    # identity and health

    def test_identity_space_and_probe(self, drive: Drive, tmp_path: Path) -> None:
        """It knows who and where it is, and works."""
        assert isinstance(drive, Drive)
        assert drive.identity == IDENTITY
        assert drive.path == str(tmp_path / "drive")
        space = drive.space()
        assert 0 < space.free_bytes <= space.total_bytes
        drive.probe()
        assert drive.clear_staging(()) == 0, "the probe leaves nothing"

    def test_close_is_idempotent(self, tmp_path: Path) -> None:
        """Twice is as good as once."""
        drive = self.open_drive(tmp_path / "drive")
        drive.close()
        drive.close()

    # index

    def test_a_fresh_index_is_empty(self, drive: Drive) -> None:
        """No records, sequence 0."""
        assert drive.seq() == 0
        assert drive.get(b"Oa") is None
        assert drive.get_many([b"Oa", b"Ob"]) == [None, None]
        assert drive.scan(b"", b"", 10) == []
        with drive.cursor() as cursor:
            assert not cursor.seek(b"")
            assert not cursor.last_before(b"zzz")

    def test_commits_put_replace_and_delete(self, drive: Drive) -> None:
        """Deletes come first, missing ones are no error, empty values are values."""
        drive.commit(1, [(b"Oa", b"1"), (b"Ob", b""), (b"Oc", b"3")], [])
        assert drive.get_many([b"Oc", b"Oa", b"Oc", b"Ob", b"Od"]) == [b"3", b"1", b"3", b"", None]
        drive.commit(2, [(b"Oa", b"one"), (b"Oc", b"three")], [b"Oc", b"Ob", b"Ox"])
        assert [drive.get(key) for key in (b"Oa", b"Ob", b"Oc")] == [b"one", None, b"three"]
        drive.commit(3, [], [])
        assert drive.seq() == 3

    def test_sequence_numbers_never_go_back(self, drive: Drive) -> None:
        """A lower one is refused and changes nothing; the same one may be given again."""
        drive.commit(7, [(b"Oa", b"7")], [])
        with pytest.raises(ValueError, match="commit 6 comes after commit 7"):
            drive.commit(6, [(b"Oa", b"6")], [])
        assert (drive.seq(), drive.get(b"Oa")) == (7, b"7")
        drive.commit(7, [(b"Oa", b"again")], [])
        drive.commit(2**63, [], [])
        assert (drive.seq(), drive.get(b"Oa")) == (2**63, b"again")

    def test_commits_outlive_the_drive_object(self, drive: Drive, tmp_path: Path) -> None:
        """What was committed is there when the drive is opened again."""
        drive.commit(1, [(b"Oa", b"1" * 100_000)], [])
        drive.close()
        again = self.open_drive(tmp_path / "drive")
        assert (again.seq(), again.get(b"Oa")) == (1, b"1" * 100_000)
        again.close()

    def test_keys_have_limits(self, drive: Drive) -> None:
        """1 to 511 bytes; a commit with a wrong one is refused as a whole."""
        longest = b"O" + b"x" * (KEY_BYTES_MAX - 1)
        drive.commit(1, [(longest, b"1"), (b"\0", b"2"), (b"\xff" * KEY_BYTES_MAX, b"3")], [])
        assert drive.get_many([longest, b"\0", b"\xff" * KEY_BYTES_MAX]) == [b"1", b"2", b"3"]
        for wrong in (b"", longest + b"x"):
            with pytest.raises(ValueError, match="1 to 511 bytes"):
                drive.commit(2, [(b"Ob", b"2"), (wrong, b"2")], [])
        assert (drive.seq(), drive.get(b"Ob")) == (1, None)

    def test_scans_and_cursors_agree_with_a_sorted_dict(self, drive: Drive) -> None:
        """Bounds, limits and both directions, over keys that are prefixes of one another."""
        dice = Random(1)  # noqa: S311
        model = {b"O" + dice.randbytes(dice.randrange(4)): dice.randbytes(5) for _ in range(200)}
        drive.commit(1, list(model.items()), [])
        keys = sorted(model)
        bounds = [b"O", b"P", b"O\x80", *dice.sample(keys, 10), *(key + b"\0" for key in dice.sample(keys, 10))]
        for start in bounds:
            for stop in bounds:
                within = [(key, model[key]) for key in keys if start <= key < stop]
                for limit in (0, 1, 7, 1000):
                    assert drive.scan(start, stop, limit) == within[:limit]
                    assert drive.scan(start, stop, limit, reverse=True) == within[::-1][:limit]
            with drive.cursor() as cursor:
                after = [key for key in keys if key >= start]
                assert cursor.seek(start) and cursor.key == (after or [b"Sseq"])[0]
                before = [key for key in keys if key < start]
                assert cursor.last_before(start) == bool(before)
                if before:
                    assert (cursor.key, bytes(cursor.value)) == (before[-1], model[before[-1]])
        assert drive.scan(b"O", b"", 1000)[: len(keys)] == [(key, model[key]) for key in keys]
        assert drive.scan(b"O", b"", 1000, reverse=True)[-1] == (keys[0], model[keys[0]])

    def test_a_cursor_walks_one_snapshot(self, drive: Drive) -> None:
        """Both ways, and without seeing later commits."""
        drive.commit(1, [(b"Oa", b"1"), (b"Ob", b"2"), (b"Oc", b"3")], [])
        with drive.cursor() as cursor:
            assert cursor.seek(b"O")
            drive.commit(2, [(b"Ob", b"new"), (b"Obb", b"new")], [b"Oc"])
            walked = [(cursor.key, bytes(cursor.value))]
            while cursor.next() and cursor.key < b"P":
                walked.append((cursor.key, bytes(cursor.value)))
            assert walked == [(b"Oa", b"1"), (b"Ob", b"2"), (b"Oc", b"3")]
            assert cursor.seek(b"Ob") and cursor.previous() and cursor.key == b"Oa" and not cursor.previous()
        assert drive.scan(b"O", b"P", 9) == [(b"Oa", b"1"), (b"Ob", b"new"), (b"Obb", b"new")]

    def test_readers_see_whole_commits_while_writers_write(self, drive: Drive) -> None:
        """Two records that every commit writes alike are never seen different, from many threads."""
        drive.commit(1, [(b"Oa", b"0"), (b"Ob", b"0")], [])
        done, torn = threading.Event(), []

        def read() -> None:
            while not done.is_set():
                a, b = drive.get_many([b"Oa", b"Ob"])
                if a != b:
                    torn.append((a, b))

        readers = [threading.Thread(target=read) for _ in range(4)]
        for thread in readers:
            thread.start()
        try:
            for number in range(2, 60):
                drive.commit(number, [(b"Oa", b"%d" % number), (b"Ob", b"%d" % number)], [])
        finally:
            done.set()
            for thread in readers:
                thread.join(30)
        assert not torn

    # shards

    def test_a_shard_is_there_from_its_publication_on(self, drive: Drive) -> None:
        """Written in gathers, invisible until published, read in scatters."""
        content = Random(2).randbytes(5 * ALIGNMENT_BYTES)  # noqa: S311
        writer = drive.create_shard(BLOB)
        writer.write([aligned(content[: 2 * ALIGNMENT_BYTES]), aligned(content[2 * ALIGNMENT_BYTES :])], 0)
        writer.write([aligned(b"\7" * ALIGNMENT_BYTES)], len(content))
        writer.sync()
        assert drive.open_shard(BLOB) is None and drive.shard_size(BLOB) is None and drive.list_shards(BLOB[0]) == []
        writer.publish()
        size_bytes = len(content) + ALIGNMENT_BYTES
        assert drive.shard_size(BLOB) == size_bytes and drive.list_shards(BLOB[0]) == [(BLOB, size_bytes)]
        reader = drive.open_shard(BLOB)
        assert reader is not None and reader.size_bytes == size_bytes
        views = [aligned(bytes(ALIGNMENT_BYTES)), aligned(bytes(2 * ALIGNMENT_BYTES))]
        assert reader.read(views, ALIGNMENT_BYTES) == 3 * ALIGNMENT_BYTES
        assert b"".join(views) == content[ALIGNMENT_BYTES : 4 * ALIGNMENT_BYTES]
        assert reader.read(views, 5 * ALIGNMENT_BYTES) == ALIGNMENT_BYTES, "less only at the end"
        assert reader.read(views, 6 * ALIGNMENT_BYTES) == 0
        reader.close()
        reader.close()

    def test_what_is_not_there(self, drive: Drive) -> None:
        """None or nothing, no error; but a blob id must be one."""
        assert drive.open_shard(BLOB) is None
        assert drive.shard_size(BLOB) is None
        assert drive.list_shards(0) == []
        drive.trash_shard(BLOB)
        calls: list[Callable[[bytes], object]] = [
            drive.create_shard,
            drive.open_shard,
            drive.shard_size,
            drive.trash_shard,
        ]
        for call in calls:
            with pytest.raises(ValueError, match="blob id has 16 bytes"):
                call(b"short")

    def test_lists_are_sorted_and_by_prefix(self, drive: Drive) -> None:
        """Only published shards of the prefix."""
        for blob_id in (BLOB_2, BLOB, bytes(16)):
            put_shard(drive, blob_id, bytes(ALIGNMENT_BYTES))
        unpublished = drive.create_shard(BLOB[:15] + b"\0")
        assert drive.list_shards(BLOB[0]) == [(BLOB, ALIGNMENT_BYTES), (BLOB_2, ALIGNMENT_BYTES)]
        assert drive.list_shards(0) == [(bytes(16), ALIGNMENT_BYTES)]
        unpublished.abort()

    def test_a_reader_outlives_a_delete(self, drive: Drive) -> None:
        """A trashed shard is gone from lists but opens until the trash is emptied, and stays open after."""
        put_shard(drive, BLOB, b"x" * ALIGNMENT_BYTES)
        drive.trash_shard(BLOB)
        assert drive.shard_size(BLOB) is None and drive.list_shards(BLOB[0]) == []
        reader = drive.open_shard(BLOB)
        assert reader is not None
        assert drive.empty_trash(3600) == 0
        assert drive.empty_trash(0) == 1
        assert drive.open_shard(BLOB) is None
        view = aligned(bytes(ALIGNMENT_BYTES))
        assert reader.read([view], 0) == ALIGNMENT_BYTES and view == b"x" * ALIGNMENT_BYTES
        reader.close()

    def test_publishing_again_replaces(self, drive: Drive) -> None:
        """As healing does; who has the old one open keeps the old one."""
        put_shard(drive, BLOB, b"old!" * ALIGNMENT_BYTES)
        reader = drive.open_shard(BLOB)
        assert reader is not None
        put_shard(drive, BLOB, b"new" * ALIGNMENT_BYTES)
        assert read_shard(drive, BLOB) == b"new" * ALIGNMENT_BYTES
        view = aligned(bytes(ALIGNMENT_BYTES))
        assert reader.read([view], 0) == ALIGNMENT_BYTES and bytes(view[:4]) == b"old!"
        reader.close()

    def test_two_writers_of_one_shard_do_not_mix(self, drive: Drive) -> None:
        """The one that publishes last wins whole."""
        first, second = drive.create_shard(BLOB), drive.create_shard(BLOB)
        first.write([aligned(b"1" * ALIGNMENT_BYTES)], 0)
        second.write([aligned(b"2" * ALIGNMENT_BYTES)], ALIGNMENT_BYTES)
        second.write([aligned(b"2" * ALIGNMENT_BYTES)], 0)
        for writer in (second, first):
            writer.sync()
            writer.publish()
        assert read_shard(drive, BLOB) == b"1" * ALIGNMENT_BYTES

    def test_aborted_writers_leave_nothing(self, drive: Drive) -> None:
        """Abort twice, or after publishing, is harmless; a closed writer refuses."""
        writer = drive.create_shard(BLOB)
        writer.write([aligned(bytes(ALIGNMENT_BYTES))], 0)
        writer.abort()
        writer.abort()
        assert drive.clear_staging(()) == 0 and drive.open_shard(BLOB) is None
        with pytest.raises(ValueError, match="closed"):
            writer.write([aligned(bytes(ALIGNMENT_BYTES))], 0)
        writer = drive.create_shard(BLOB)
        writer.write([aligned(bytes(ALIGNMENT_BYTES))], 0)
        writer.sync()
        writer.publish()
        writer.abort()
        assert drive.shard_size(BLOB) == ALIGNMENT_BYTES
        for call in (writer.sync, writer.publish):
            with pytest.raises(ValueError, match="closed"):
                call()

    def test_staging_is_cleared_of_the_dead_only(self, drive: Drive) -> None:
        """By the process id of the writer."""
        drive.create_shard(BLOB)
        assert drive.clear_staging({os.getpid()}) == 0
        assert drive.clear_staging({os.getpid() + 1}) == 1
        assert drive.clear_staging(()) == 0

    def test_shards_outlive_the_drive_object(self, drive: Drive, tmp_path: Path) -> None:
        """What was published is there when the drive is opened again."""
        put_shard(drive, BLOB, b"x" * ALIGNMENT_BYTES)
        drive.close()
        again = self.open_drive(tmp_path / "drive")
        assert read_shard(again, BLOB) == b"x" * ALIGNMENT_BYTES
        again.close()
