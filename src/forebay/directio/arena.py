"""One bounded pool of aligned buffers: whoever wants to hold body bytes waits here for a slot.

A fresh buffer costs a page fault every 4 KiB, so the whole pool is one mapping, faulted in when it is made, on huge
pages where the kernel has them.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections import OrderedDict
from collections.abc import Callable
from ctypes import addressof, c_char
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock
from types import TracebackType
from typing import overload

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
MADV_POPULATE_WRITE = 23  # Linux 5.14; not yet a name in Python 3.11

log = logging.getLogger(__name__)

Waiter = Callable[["Slot"], None]


class Slot:
    """A buffer on loan from an arena. `view` is writable memory of `slot_bytes`, `address` where it lies."""

    __slots__ = ("_arena", "_index", "address", "view")

    def __init__(self, arena: Arena, index: int, view: memoryview, address: int) -> None:
        self._arena: Arena | None = arena
        self._index = index
        self.view = view
        self.address = address

    def release(self) -> None:
        """Give it back; idempotent. Nothing may use `view` or `address` after."""
        arena, self._arena = self._arena, None
        if arena is not None:
            arena._give_back(self._index)

    def __enter__(self) -> Slot:
        """The slot itself; it is released at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Release it."""
        self.release()


class Arena:
    """`slots` buffers of `slot_bytes` (a multiple of 4,096), in one pre-faulted mapping.

    The memory belongs to this process (a fork sees a copy of it) and goes when the last view of it goes. `prefault=False` is for pools
    that do not live long or are rarely used up: their pages come at first use.
    """

    def __init__(self, slot_bytes: int, slots: int, *, prefault: bool = True) -> None:
        if slot_bytes < 1 or slot_bytes % PAGE_BYTES or slots < 1:
            raise ValueError(f"{slots} slots of {slot_bytes} bytes: need one or more, in multiples of {PAGE_BYTES}")
        self.slot_bytes = slot_bytes
        self.slots = slots
        memory, address = _aligned_memory(slot_bytes * slots, prefault)
        starts = range(0, slot_bytes * slots, slot_bytes)
        self._buffers = [(memory[start : start + slot_bytes], address + start) for start in starts]
        self._lock = Lock()
        self._free = list(range(slots - 1, -1, -1))  # a stack: the slot used last is the one most likely in cache
        self._waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._tickets = count()

    @overload
    def acquire(self, timeout_s: None = None) -> Slot: ...

    @overload
    def acquire(self, timeout_s: float) -> Slot | None: ...

    def acquire(self, timeout_s: float | None = None) -> Slot | None:
        """A slot, in the order of asking; waits at most `timeout_s` (None: for ever) and returns None after that."""
        arrived: SimpleQueue[Slot] = SimpleQueue()
        withdraw = self.add_waiter(arrived.put)
        try:
            return arrived.get(timeout=timeout_s)
        except BaseException as error:
            late = None if withdraw() else arrived.get()  # handed over in this very moment
            if isinstance(error, Empty):
                return late
            if late is not None:
                late.release()
            raise

    def try_acquire(self) -> Slot | None:
        """A slot if one is free (then nobody waits), else None."""
        with self._lock:
            return self._lend(self._free.pop()) if self._free else None

    def add_waiter(self, callback: Waiter) -> Callable[[], bool]:
        """Queue `callback`; it is called once with a slot, by the thread that frees one (at once if one is free).

        Returns a function that withdraws it: True if it was still waiting, False if it has been or is being called. The
        callback must not block or raise (`loop.call_soon_threadsafe` is what it is for); if it raises, the slot goes to
        the next one and the exception to the log.
        """
        with self._lock:
            ticket = next(self._tickets)
            if not self._free:
                self._waiters[ticket] = callback
                return lambda: self._withdraw(ticket)
            slot = self._lend(self._free.pop())
        callback(slot)
        return lambda: False

    @property
    def free_slots(self) -> int:
        """How many slots are on loan to nobody."""
        return len(self._free)

    @property
    def waiting(self) -> int:
        """How many are queued for a slot."""
        return len(self._waiters)

    def _lend(self, index: int) -> Slot:
        return Slot(self, index, *self._buffers[index])

    def _give_back(self, index: int) -> None:
        while True:
            with self._lock:
                if not self._waiters:
                    self._free.append(index)
                    return
                _, callback = self._waiters.popitem(last=False)
                slot = self._lend(index)
            try:
                callback(slot)
            except Exception:
                log.exception("a waiter for a buffer failed; its buffer goes to the next one")
                slot._arena = None
            else:
                return

    def _withdraw(self, ticket: int) -> bool:
        with self._lock:
            return self._waiters.pop(ticket, None) is not None


def _aligned_memory(size_bytes: int, prefault: bool) -> tuple[memoryview, int]:
    """Zeroed private memory that starts on a huge page's boundary, and its address."""
    spare_bytes = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 0
    mapping = mmap.mmap(-1, size_bytes + spare_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    if prefault:
        _populate(mapping)
    base = addressof(c_char.from_buffer(mapping))
    skip = -base % HUGE_PAGE_BYTES if spare_bytes else 0
    return memoryview(mapping)[skip : skip + size_bytes], base + skip


def _populate(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(MADV_POPULATE_WRITE)
    except OSError:  # an older kernel: touch every page
        for start in range(0, len(mapping), PAGE_BYTES):
            mapping[start] = 0
