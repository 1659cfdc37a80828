import mmap
import threading
import time

import pytest

from forebay.directio import Arena, Slot
from forebay.directio import arena as arena_module


def test_slots_are_aligned_apart_and_writable():
    arena = Arena(8192, 5)
    slots = [arena.try_acquire() for _ in range(5)]
    assert arena.try_acquire() is None and arena.free_slots == 0
    assert len({slot.address for slot in slots}) == 5
    for number, slot in enumerate(slots):
        assert slot.address % 4096 == 0 and len(slot.view) == 8192
        slot.view[:] = bytes([number]) * 8192
    assert [bytes(slot.view) for slot in slots] == [bytes([number]) * 8192 for number in range(5)]


def test_large_arenas_start_on_a_huge_page():
    slot = Arena(1 << 20, 4).acquire()
    assert slot is not None and slot.address % (1 << 20) == 0


@pytest.mark.parametrize(("slot_bytes", "slots"), [(0, 1), (4095, 1), (4096, 0), (-4096, 1)])
def test_impossible_arenas_are_refused(slot_bytes, slots):
    with pytest.raises(ValueError, match="slots of"):
        Arena(slot_bytes, slots)


def test_an_old_kernel_gets_its_pages_touched(monkeypatch):
    monkeypatch.setattr(arena_module, "MADV_POPULATE_WRITE", 9999)
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9998)
    with Arena(4096, 3).acquire() as slot:
        assert bytes(slot.view) == bytes(4096)


def test_release_is_idempotent_even_when_the_slot_is_lent_again():
    arena = Arena(4096, 1)
    first = arena.acquire()
    first.release()
    second = arena.acquire()
    first.release()
    assert arena.free_slots == 0
    second.release()
    assert arena.free_slots == 1
    with arena.acquire():
        assert arena.free_slots == 0
    assert arena.free_slots == 1


def test_waiting_ends_with_the_time_limit_and_leaves_nothing_behind():
    arena = Arena(4096, 1)
    with arena.acquire():
        assert arena.acquire(timeout_s=0.01) is None
        assert arena.waiting == 0
    assert arena.free_slots == 1


def test_waiters_are_served_in_order_of_asking():
    arena, order, threads = Arena(4096, 1), [], []
    held = arena.acquire()

    def wait(number: int) -> None:
        with arena.acquire():
            order.append(number)

    for number in range(6):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while arena.waiting <= number:
            time.sleep(0.001)
    held.release()
    for thread in threads:
        thread.join(10)
    assert order == list(range(6)) and arena.free_slots == 1


def test_callbacks_queue_with_threads_and_can_be_withdrawn():
    arena, got = Arena(4096, 1), []
    assert arena.add_waiter(got.append)() is False, "there was a free slot: it has been called"
    first, second = arena.add_waiter(got.append), arena.add_waiter(got.append)
    assert first() is True and first() is False and arena.waiting == 1
    got.pop().release()
    assert len(got) == 1 and second() is False
    got.pop().release()
    assert arena.free_slots == 1


def test_a_waiter_that_raises_loses_its_turn_and_no_slot(caplog):
    arena, got = Arena(4096, 1), []

    def broken(slot: Slot) -> None:
        raise RuntimeError("loop is closed")

    held = arena.acquire()
    arena.add_waiter(broken)
    arena.add_waiter(got.append)
    held.release()
    assert len(got) == 1 and "loop is closed" in caplog.text
    got[0].release()
    assert arena.free_slots == 1


def test_many_threads_never_share_a_slot():
    arena = Arena(4096, 3)
    clashes: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            slot = arena.acquire(timeout_s=0.0005 if number % 2 else None)
            if slot is None:
                continue
            slot.view[0] = number
            time.sleep(0)
            if slot.view[0] != number:
                clashes.append(number)
            slot.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not clashes and arena.free_slots == 3 and arena.waiting == 0
