"""Multipart uploads: what S3 says of them, and that no blob is lost or kept for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_store import BUCKET, Store, pattern, refused, wait_until

from forebay.engine import multipart
from forebay.engine.multipart import PART_BYTES_MIN, PartChoice, choose
from forebay.engine.objects import Attributes
from forebay.engine.records import Part, Upload
from forebay.errors import StoreError

KEY = b"dir/upload"


@pytest.fixture
def store(fast_path: Path) -> Iterator[Store]:
    store = Store(fast_path)
    yield store
    store.stop()


def begin(store: Store, key: bytes = KEY) -> Upload:
    return store.engine.create_upload(BUCKET, key, Attributes(headers={"content-type": "a/b"}, tags={"t": "1"})).wait()


def put_part(store: Store, upload: Upload, number: int, content: bytes, etag: str = "e") -> Part:
    writer = store.engine.writer(BUCKET, upload.key)
    writer.write(content)
    return store.engine.put_part(BUCKET, upload.key, upload.upload_id, number, writer.finish(), etag, {"CRC32": "c"}).wait()


def complete(store: Store, upload: Upload, *choices: PartChoice, condition=None):
    return store.engine.complete(
        BUCKET, upload.key, upload.upload_id, choices, lambda u, parts: Attributes(etag=f"whole-{len(parts)}"), condition
    ).wait()


def tables(store: Store, names: bytes) -> dict[bytes, bytes]:
    store.reap()
    return {k: v for k, v in store.index_of(0).items() if k[:1] in names}


def part(number: int, size: int, etag: str = "e", **checksums: str) -> Part:
    return Part(number, size, etag, 0, [], checksums)


BIG = PART_BYTES_MIN


@pytest.mark.parametrize(
    "choices, code",
    [
        ([], "MalformedXML"),
        ([(2, "e"), (1, "e")], "InvalidPartOrder"),
        ([(1, "e"), (1, "e")], "InvalidPartOrder"),
        ([(1, "e"), (9, "e")], "InvalidPart"),
        ([(1, "other")], "InvalidPart"),
        ([(3, "e"), (4, "e")], "EntityTooSmall"),
        ([(1, "e", {"CRC32": "wrong"})], "InvalidPart"),
        ([(3, "e")], None),
        ([(1, "e"), (3, "e")], None),
        ([(1, "e", {"CRC32": "right"}), (2, "e"), (4, "e")], None),
    ],
)
def test_choosing_parts(choices: list[tuple], code: str | None) -> None:
    present = {1: part(1, BIG, CRC32="right"), 2: part(2, BIG), 3: part(3, 100), 4: part(4, BIG)}
    wanted = [PartChoice(*choice) for choice in choices]
    if code:
        refused(lambda: choose(present, wanted), code)
    else:
        assert [p.number for p in choose(present, wanted)] == [c.number for c in wanted]


def test_an_upload_becomes_an_object(store: Store) -> None:
    upload = begin(store)
    contents = {1: pattern(BIG, 1), 2: pattern(BIG + 77, 2), 7: pattern(1, 3)}
    for number, content in contents.items():
        put_part(store, upload, number, content)
    assert store.get(KEY) is None
    written = complete(store, upload, *(PartChoice(n, "e") for n in contents))
    whole = b"".join(contents.values())
    assert store.get(KEY) == whole
    for start, stop in ((0, 1), (BIG - 3, BIG + 3), (2 * BIG, len(whole)), (len(whole) - 1, len(whole)), (5, 2 * BIG + 50)):
        assert store.get(KEY, start, stop) == whole[start:stop]
    version = store.engine.find(BUCKET, KEY).version
    assert (version.etag, version.headers, version.tags, version.size) == ("whole-3", {"content-type": "a/b"}, {"t": "1"}, len(whole))
    assert [p.number for p in version.parts] == [1, 2, 7] and written.version.etag == "whole-3"
    assert not tables(store, b"UP")
    store.delete(KEY)
    assert not tables(store, b"DC")


def test_completing_twice_gives_the_same_answer(store: Store) -> None:
    upload = begin(store)
    put_part(store, upload, 1, b"x" * 70_000)
    first = complete(store, upload, PartChoice(1, "e"))
    store.put(KEY, b"newer")
    again = complete(store, upload, PartChoice(1, "e"))
    assert (again.version_id, again.version.etag) == (first.version_id, first.version.etag)
    assert store.get(KEY) == b"newer", "the answer is repeated, not the deed"
    refused(lambda: complete(store, upload, PartChoice(1, "other")), "NoSuchUpload")
    refused(lambda: store.engine.put_part(BUCKET, KEY, upload.upload_id, 1, None, "e", {}).wait(), "NoSuchUpload")
    refused(lambda: store.engine.abort(BUCKET, KEY, upload.upload_id).wait(), "NoSuchUpload")


def test_a_refused_complete_leaves_the_upload(store: Store) -> None:
    upload = begin(store)
    put_part(store, upload, 1, b"x" * 70_000)

    def never(current: object) -> None:
        raise StoreError("PreconditionFailed")

    refused(lambda: complete(store, upload, PartChoice(1, "e"), condition=never), "PreconditionFailed")
    refused(lambda: complete(store, upload, PartChoice(1, "f")), "InvalidPart")
    complete(store, upload, PartChoice(1, "e"))
    assert store.get(KEY) == b"x" * 70_000


def test_parts_that_are_replaced_or_not_chosen_free_their_blobs(store: Store) -> None:
    upload = begin(store)
    put_part(store, upload, 1, pattern(70_000, 1))
    put_part(store, upload, 1, pattern(80_000, 2))
    put_part(store, upload, 2, pattern(90_000, 3))
    assert len(tables(store, b"D")) == 2
    complete(store, upload, PartChoice(1, "e"))
    assert len(tables(store, b"D")) == 1
    assert store.get(KEY) == pattern(80_000, 2)


def test_aborting_frees_everything(store: Store) -> None:
    upload = begin(store, b"L" * 900)
    put_part(store, upload, 1, pattern(70_000, 1))
    store.engine.abort(BUCKET, upload.key, upload.upload_id).wait()
    assert not tables(store, b"DCP")
    assert store.engine.list_uploads(BUCKET).uploads == []
    refused(lambda: store.engine.list_parts(BUCKET, upload.key, upload.upload_id), "NoSuchUpload")
    wait_until(lambda: not any(f.is_file() for p in store.paths for f in Path(p, "blobs").rglob("*")))


def test_the_same_part_from_many_at_once_never_mixes(store: Store) -> None:
    upload = begin(store)
    contents = [pattern(300_000, i) for i in range(8)]
    threads = [threading.Thread(target=put_part, args=(store, upload, 1, content, f"e{i}")) for i, content in enumerate(contents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, (found,), _ = store.engine.list_parts(BUCKET, KEY, upload.upload_id)
    complete(store, upload, PartChoice(1, found.etag))
    assert store.get(KEY) == contents[int(found.etag[1:])]
    assert len(tables(store, b"D")) == 1


def test_parts_are_listed_in_pages(store: Store) -> None:
    upload = begin(store)
    for number in (10_000, 3, 1, 2, 77):
        store.engine.put_part(BUCKET, KEY, upload.upload_id, number, None, f"e{number}", {}).wait()
    seen: list[int] = []
    more = True
    while more:
        _, parts, more = store.engine.list_parts(BUCKET, KEY, upload.upload_id, after=seen[-1] if seen else 0, limit=2)
        seen += [p.number for p in parts]
        assert len(parts) <= 2
    assert seen == [1, 2, 3, 77, 10_000]
    assert store.engine.list_parts(BUCKET, KEY, upload.upload_id, after=10_000)[1:] == ([], False)


def test_uploads_are_listed_by_key_then_by_time(store: Store) -> None:
    uploads = [begin(store, key) for key in (b"b", b"a", b"b", b"c/1", b"c/2", b"L" * 600, b"b")]
    wanted = [(u.key, u.upload_id) for u in sorted(uploads, key=lambda u: (u.key, u.created_ns))]
    seen: list[tuple[bytes, bytes]] = []
    marker: tuple[bytes, bytes] | None = (b"", b"")
    while marker is not None:
        page = store.engine.list_uploads(BUCKET, key_marker=marker[0], upload_marker=marker[1], limit=2)
        seen += [(u.key, u.upload_id) for u in page.uploads]
        marker = page.next_marker
    assert seen == wanted
    page = store.engine.list_uploads(BUCKET, delimiter=b"/", key_marker=b"b")
    assert [u.key for u in page.uploads] == [] and page.common_prefixes == [b"c/"]


def test_copied_parts_share_their_bytes(store: Store) -> None:
    content = pattern((6 << 20) + 10)
    store.put(b"source", content)
    store.put(b"small", b"0123456789")
    upload = begin(store)
    source = store.engine.open(BUCKET, b"source")
    store.engine.copy_part(source, 3, PART_BYTES_MIN + 4, BUCKET, KEY, upload.upload_id, 1, "e", {})
    store.engine.copy_part(store.engine.open(BUCKET, b"small"), 2, 5, BUCKET, KEY, upload.upload_id, 2, "e", {})
    refused(lambda: complete(store, upload, PartChoice(1, "e"), PartChoice(2, "wrong")), "InvalidPart")
    complete(store, upload, PartChoice(1, "e"), PartChoice(2, "e"))
    assert len(tables(store, b"D")) == 2, "one blob of the source, and a small one"
    store.delete(b"source")
    store.reap()
    assert store.get(KEY) == content[3 : PART_BYTES_MIN + 4] + b"234"
    store.delete(KEY)
    assert not tables(store, b"DC")


@pytest.mark.parametrize("text", ["", "x", "A" * 32, "0" * 31, "0" * 33])
def test_what_is_no_upload_id(text: str) -> None:
    refused(lambda: multipart.parse_upload_id(text), "NoSuchUpload")
