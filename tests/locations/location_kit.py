"""What every location must do: subclass `LocationTests` and give it a `location` fixture."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from forebay.directio import Arena
from forebay.errors import LocationError, ObjectMissing, PreconditionFailed
from forebay.locations import Absent, Location, Unchanged

MiB = 2**20


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def read(location: Location, key: str, offset: int, size: int) -> bytes:
    out = bytearray(size)
    location.read_into(key, offset, memoryview(out))
    return bytes(out)


class LocationTests:
    """One body of tests for every kind of location."""

    def test_is_a_location(self, location: Location) -> None:
        assert isinstance(location, Location)
        assert location.part_bytes % 4096 == 0 and location.part_bytes >= location.part_bytes_min

    def test_put_and_get(self, location: Location) -> None:
        etag = location.put("a/b.json", b"one")
        assert location.get("a/b.json") == (b"one", etag)
        again = location.put("a/b.json", memoryview(b"two!"))
        assert location.get("a/b.json") == (b"two!", again)
        assert etag != again and etag and again

    def test_get_of_nothing(self, location: Location) -> None:
        with pytest.raises(ObjectMissing):
            location.get("nothing")
        assert location.head("nothing") is None
        assert location.head("no/thing") is None

    def test_put_if_absent(self, location: Location) -> None:
        location.put("commit", b"first", Absent())
        with pytest.raises(PreconditionFailed):
            location.put("commit", b"second", Absent())
        assert location.get("commit")[0] == b"first"

    def test_put_if_unchanged(self, location: Location) -> None:
        old = location.put("doc", b"first")
        new = location.put("doc", b"second", Unchanged(old))
        with pytest.raises(PreconditionFailed):
            location.put("doc", b"third", Unchanged(old))
        assert location.get("doc") == (b"second", new)

    def test_put_if_unchanged_of_nothing(self, location: Location) -> None:
        with pytest.raises((PreconditionFailed, ObjectMissing)):
            location.put("gone", b"x", Unchanged('"00"'))
        assert location.head("gone") is None

    def test_one_of_many_absent_puts_wins(self, location: Location) -> None:
        won: list[int] = []

        def put(number: int) -> None:
            try:
                location.put("race", f"writer {number}".encode(), Absent())
                won.append(number)
            except PreconditionFailed:
                pass

        threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert location.get("race")[0] == f"writer {won[0]}".encode()

    def test_head(self, location: Location) -> None:
        etag = location.put("dir/x", b"12345")
        entry = location.head("dir/x")
        assert entry is not None
        assert (entry.key, entry.size_bytes, entry.etag) == ("dir/x", 5, etag)
        assert abs(entry.modified_s - time.time()) < 60
        assert location.head("dir") is None

    @pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 1), (0, 10_000), (4096, 4096), (9_999, 1), (1, 8191), (4096, 5904)])
    def test_read_into(self, location: Location, offset: int, size: int) -> None:
        data = content(10_000)
        location.put("data", data)
        assert read(location, "data", offset, size) == data[offset : offset + size]

    def test_read_into_aligned_memory(self, location: Location) -> None:
        data = content(50_000)
        location.put("data", data)
        with Arena(65536, 1).acquire() as slot:
            location.read_into("data", 4096, slot.view[:45_904])
            assert bytes(slot.view[:45_904]) == data[4096:]

    def test_read_beyond_the_end(self, location: Location) -> None:
        location.put("data", b"123")
        with pytest.raises(LocationError):
            read(location, "data", 1, 3)
        with pytest.raises(LocationError):
            read(location, "data", 100, 3)
        with pytest.raises(ObjectMissing):
            read(location, "other", 0, 3)

    def test_list_folder(self, location: Location) -> None:
        for key in ("a", "b/1", "b/2", "b/c/3", "b.txt", "d/x", "e", "f", "g/h/i"):
            location.put(key, key.encode())
        listing = location.list_folder()
        assert [entry.key for entry in listing.objects] == ["a", "b.txt", "e", "f"]
        assert listing.folders == ("b", "d", "g")
        below = location.list_folder("b")
        assert [(entry.key, entry.size_bytes) for entry in below.objects] == [("b/1", 3), ("b/2", 3)]
        assert below.folders == ("c",)
        assert below.objects[0].etag == location.get("b/1")[1]
        empty = location.list_folder("nowhere")
        assert (empty.objects, empty.folders) == ((), ())

    def test_walk(self, location: Location) -> None:
        keys = ["a", "b-1", "b/1", "b/c/2", "b0", "c/d/e/f"]
        for key in keys:
            location.put(key, b"x")
        assert [entry.key for entry in location.walk()] == sorted(keys)
        assert [entry.key for entry in location.walk("b")] == ["b/1", "b/c/2"]
        assert list(location.walk("zzz")) == []

    def test_child(self, location: Location) -> None:
        child = location.child("run/step-1")
        child.put("x/y", b"1")
        assert location.get("run/step-1/x/y")[0] == b"1"
        assert [entry.key for entry in child.walk()] == ["x/y"]
        assert child.list_folder().folders == ("x",)
        assert child.url.startswith(location.url) and child.url.endswith("run/step-1")

    def test_delete(self, location: Location) -> None:
        for number in range(7):
            location.put(f"d/{number}", b"x")
        location.delete([f"d/{n}" for n in range(6)])
        location.delete(["d/0", "never/was"])
        assert [entry.key for entry in location.walk()] == ["d/6"]
        location.delete(iter(["d/6"]))
        assert location.list_folder().folders == ()

    @pytest.mark.parametrize("key", ["", "/", "a//b", "../x", "a/../b", "./a", "a/", "/a", "a\0b"])
    def test_bad_keys(self, location: Location, key: str) -> None:
        with pytest.raises(ValueError, match="key"):
            location.put(key, b"x")

    @pytest.mark.parametrize("extra", [0, 1, 4096, 2_500_000])
    def test_upload_in_parts(self, location: Location, extra: int) -> None:
        part = 8 * MiB
        data = content(2 * part + extra)
        upload = location.upload("data/big", len(data), part)
        assert location.head("data/big") is None
        parts = [data[i : i + part] for i in range(0, len(data), part)]
        threads = [
            threading.Thread(target=upload.write_part, args=(i, [p[:100], memoryview(p)[100:]]))
            for i, p in reversed(list(enumerate(parts)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        entry = upload.complete()
        assert entry.size_bytes == len(data)
        assert location.head("data/big").etag == entry.etag
        assert location.get("data/big")[0] == data
        assert [e.key for e in location.walk()] == ["data/big"]

    def test_upload_of_one_part_and_from_aligned_memory(self, location: Location) -> None:
        data = content(100_001)
        with Arena(MiB, 1).acquire() as slot:
            slot.view[: len(data)] = data
            upload = location.upload("small", len(data), 8 * MiB)
            upload.write_part(0, [slot.view[: len(data)]])
            slot.view[: len(data)] = bytes(len(data))  # the buffer is the caller's again
        upload.complete()
        assert location.get("small")[0] == data

    def test_aborted_upload_leaves_nothing(self, location: Location) -> None:
        upload = location.upload("data/gone", 9 * MiB, 8 * MiB)
        upload.write_part(0, [content(8 * MiB)])
        upload.abort()
        upload.abort()
        assert list(location.walk()) == []
        assert location.sweep_uploads("", time.time() + 60) == 0

    def test_sweep_uploads(self, location: Location) -> None:
        upload = location.upload("run/data/half", 9 * MiB, 8 * MiB)
        upload.write_part(0, [content(8 * MiB)])
        assert location.sweep_uploads("run", time.time() - 3600) == 0
        swept = location.sweep_uploads("run", time.time() + 60)
        assert swept == self.sweeps
        assert list(location.walk()) == []

    sweeps = 1
    """How many unfinished uploads this kind of location finds when there is one."""

    def test_names_of_all_kinds(self, location: Location) -> None:
        keys = ["sp ace", "plus+plus", "ünï/çødé", "percent%20", "a=b&c?d#e", "quote'\"<>", "tilde~x", "step-00000001/x"]
        for key in keys:
            location.put(key, key.encode())
        assert [entry.key for entry in location.walk()] == sorted(keys)
        for key in keys:
            assert location.get(key)[0] == key.encode()
        location.delete(keys)
        assert list(location.walk()) == []
