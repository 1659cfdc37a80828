"""One bounded pool of aligned buffers: whoever wants to hold body bytes waits here for a slot."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Slot:
    """A buffer on loan from an arena. `view` is writable memory of `slot_bytes`, `address` where it lies."""

    view: memoryview
    address: int

    def release(self) -> None:
        """Give it back; idempotent. Nothing may use `view` or `address` after."""
        raise NotImplementedError

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class Arena:
    """`slots` buffers of `slot_bytes` (a multiple of 4,096), in one pre-faulted mapping, huge pages where there are any."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        raise NotImplementedError

    def acquire(self, timeout_s: float | None = None) -> Slot | None:
        """A slot, in the order of asking; waits at most `timeout_s` (None: for ever) and returns None after that."""
        raise NotImplementedError

    def try_acquire(self) -> Slot | None:
        """A slot if one is free and nobody waits, else None."""
        raise NotImplementedError

    def add_waiter(self, callback: Callable[[Slot], None]) -> Callable[[], bool]:
        """Queue `callback`; it is called once with a slot, from the thread that frees one (or at once if one is free).

        Returns a function that withdraws it: True if it was still waiting, False if it has been or is being called. The
        callback must not block or raise (`loop.call_soon_threadsafe` is what it is for).
        """
        raise NotImplementedError

    @property
    def free_slots(self) -> int:
        """How many slots are on loan to nobody."""
        raise NotImplementedError
