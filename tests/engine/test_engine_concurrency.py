"""Invariants 2, 3 and 7 with many threads, two processes' worth of engines, and drives that come and go meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from engine_store import BUCKET, SLOTS, Store, assert_drives_agree, pattern, refused, wait_until

from forebay.engine import admission
from forebay.engine.engine import Engine
from forebay.engine.objects import Attributes, Current
from forebay.engine.shared import DriveState
from forebay.errors import StoreError


@pytest.fixture
def store(fast_path: Path) -> Iterator[Store]:
    store = Store(fast_path)
    yield store
    store.heal_faults()
    wait_until(lambda: store.engine.arena.free_slots == SLOTS, 10, "all buffers are free")
    store.stop()


class Threads:
    """Runs functions at once; raises what any of them raised."""

    def __init__(self, failed: threading.Event | None = None) -> None:
        self.failed = failed or threading.Event()
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *args: object) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as e:
                self.errors.append(e)
                self.failed.set()

        self.threads.append(threading.Thread(target=guarded))
        self.threads[-1].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]


def content_of(number: int) -> bytes:
    """Small and large in turn; begins with its number, and all of it follows from that."""
    return b"%08d" % number + pattern(200 if number % 3 else 150_000, number)


def test_readers_see_whole_versions_and_never_an_older_one_again(fast_path: Path) -> None:
    """Two engines write and read one key, while a drive is taken out, admitted and healed again and again.

    Of 2 + 2 drives: a blob that was written without one of them must be readable without another.
    """
    store = Store(fast_path, 2, 2)
    other = store.open_engine()
    done, acknowledged = threading.Event(), [0]
    store.put(b"key", content_of(0))

    def write() -> None:
        for number in range(1, 120):
            engine = (store.engine, other)[number % 2]
            content = content_of(number)
            if len(content) < 1000:
                engine.put(BUCKET, b"key", content, Attributes()).wait()
            else:
                writer = engine.writer(BUCKET, b"key")
                writer.write(content)
                engine.put(BUCKET, b"key", writer.finish(), Attributes()).wait()
            acknowledged[0] = number
        done.set()

    def read(engine: Engine) -> None:
        seen = 0
        while not done.is_set():
            floor = acknowledged[0]
            found = engine.read(engine.open(BUCKET, b"key"))
            number = int(found[:8])
            assert found == content_of(number), "whole"
            assert number >= max(seen, floor), "never older than what was seen or acknowledged"
            seen = number

    def flap() -> None:
        dice = Random(1)
        while not done.is_set():
            position = dice.randrange(4)
            store.set().take_out(position, "test")
            while store.states()[position] is not DriveState.CURRENT:
                admission.admit(store.set(), store.layout, position, lambda: False)

    threads = Threads(done)
    threads.start(write)
    for engine in (store.engine, other, store.engine):
        threads.start(read, engine)
    threads.start(flap)
    threads.join()
    assert store.get(b"key") == content_of(119)
    other.close()
    store.admit_all()
    assert_drives_agree(store)
    wait_until(lambda: store.engine.arena.free_slots == SLOTS)
    store.stop()


def test_of_many_conditional_puts_one_wins(store: Store) -> None:
    """The condition is judged where the commit is made: across threads and processes exactly one sees the key absent."""
    other = store.open_engine()

    def absent(current: Current | None) -> None:
        if current is not None:
            raise StoreError("PreconditionFailed")

    for round_number in range(10):
        won: list[int] = []

        def put(number: int, key: bytes = b"once-%d" % round_number, won: list[int] = won) -> None:
            try:
                (store.engine, other)[number % 2].put(BUCKET, key, b"%d" % number, Attributes(), absent).wait()
                won.append(number)
            except StoreError as e:
                assert e.code == "PreconditionFailed"

        threads = Threads()
        for number in range(8):
            threads.start(put, number)
        threads.join()
        assert len(won) == 1
        assert store.get(b"once-%d" % round_number) == b"%d" % won[0]
    other.close()


def test_counters_lose_no_increment(store: Store) -> None:
    """Compare-and-swap by ETag, from both engines at once."""
    other = store.open_engine()
    store.engine.put(BUCKET, b"counter", b"0", Attributes(etag="0")).wait()

    def add(engine: Engine) -> None:
        for _ in range(15):
            while True:
                opened = engine.open(BUCKET, b"counter")
                value, etag = int(engine.read(opened)), opened.found.version.etag

                def same(current: Current | None, etag: str = etag) -> None:
                    if current is None or current.etag != etag:
                        raise StoreError("PreconditionFailed")

                try:
                    engine.put(BUCKET, b"counter", b"%d" % (value + 1), Attributes(etag=f"{value + 1}"), same).wait()
                    break
                except StoreError as e:
                    assert e.code == "PreconditionFailed"

    threads = Threads()
    for engine in (store.engine, other, store.engine, other):
        threads.start(add, engine)
    threads.join()
    assert store.get(b"counter") == b"60"
    other.close()


def test_more_writers_and_readers_than_buffers(store: Store) -> None:
    """Invariant 7: 24 bodies of several stripes over 8 buffers; everyone gets through."""
    contents = {b"body-%d" % i: pattern((4 << 20) + i * 9999, i) for i in range(24)}
    threads = Threads()
    for key, content in contents.items():
        threads.start(store.put_blob, key, content)
    threads.join()
    threads = Threads()

    def read(key: bytes, content: bytes) -> None:
        assert store.get(key) == content

    for key, content in contents.items():
        threads.start(read, key, content)
    threads.join()
    assert store.engine.arena.free_slots == SLOTS


def test_writers_that_fail_or_are_left_give_everything_back(store: Store) -> None:
    for size in (0, 10, 3 << 20, 20 << 20):
        writer = store.engine.writer(BUCKET, b"key")
        writer.write(pattern(size))
        writer.abort()
        writer.abort()
    store.put(b"key2", pattern(20 << 20))
    opened = store.engine.open(BUCKET, b"key2")
    for count in range(4):
        reader = store.engine.reader(opened)
        views = iter(reader)
        for _ in range(count):
            next(views)
        reader.close()
    wait_until(lambda: store.engine.arena.free_slots == SLOTS)
    for path in store.paths:
        wait_until(lambda path=path: not any(Path(path, "staging").iterdir()), 10, "nothing is left in staging")


def test_requests_of_one_key_keep_their_order(store: Store) -> None:
    """Without waiting in between: what was submitted last is what is there."""
    for i in range(200):
        store.engine.put(BUCKET, b"key", b"%d" % i, Attributes())
    last = store.engine.put(BUCKET, b"key", b"last", Attributes())
    last.wait()
    assert store.get(b"key") == b"last"
    store.engine.delete(BUCKET, b"key")
    store.engine.put(BUCKET, b"key", b"again", Attributes())
    store.engine.delete(BUCKET, b"key").wait()
    assert store.get(b"key") is None
    store.reap()
    assert not [k for k in store.index_of(0) if k[:1] in b"OR"]


def test_a_listing_while_keys_come_and_go(store: Store) -> None:
    """Keys that are there all the time are in every listing, once and in order."""
    fixed = [b"fixed/%03d" % i for i in range(0, 100, 2)]
    for key in fixed:
        store.engine.put(BUCKET, key, b"", Attributes())
    store.put(b"zzz", b"")
    done = threading.Event()

    def change() -> None:
        dice = Random(1)
        for i in range(400):
            key = b"fixed/%03d" % (2 * dice.randrange(50) + 1)
            if i % 2:
                store.put(key, b"x")
            else:
                store.delete(key)
        done.set()

    def read() -> None:
        while not done.is_set():
            found, after = [], b""
            while True:
                page = store.engine.list_objects(BUCKET, prefix=b"fixed/", after=after, limit=7)
                found += [o.key for o in page.objects]
                if page.next_after is None:
                    break
                after = page.next_after
            assert found == sorted(set(found))
            assert [key for key in found if key in fixed] == fixed

    threads = Threads(done)
    threads.start(change)
    threads.start(read)
    threads.start(read)
    threads.join()


def test_a_process_that_ends_takes_no_drive_out(store: Store) -> None:
    """Requests that come too late to a closed engine fail there, and nobody else notices."""
    store.put(b"key", pattern(200_000))
    other = store.open_engine()
    opened = other.open(BUCKET, b"key")
    reader = other.reader(opened)
    other.close()
    for late in (
        lambda: other.find(BUCKET, b"key"),
        lambda: list(reader),
        lambda: other.writer(BUCKET, b"key"),
        lambda: other.delete(BUCKET, b"key"),
        lambda: other.list_objects(BUCKET),
    ):
        refused(late)
    assert store.states() == [DriveState.CURRENT] * 4
