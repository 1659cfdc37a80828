"""The processes that save and restore one checkpoint together.

What every rank must agree on is decided by rank 0 and broadcast: the attempt's name, the step, the checkpoint to
restore. The work itself is planned without talking, and reported through the location. A group also knows who is gone.
"""

from __future__ import annotations

from typing import Protocol


class Group(Protocol):
    """`size` processes, numbered from 0. Calls are collective where said so: every rank makes them, in the same
    order.
    """

    rank: int
    size: int

    def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
        """Collective: rank 0's `payload`, on every rank. Other ranks pass None.

        Raises `SaveFailed` naming a rank that is gone, or after `timeout_s`.
        """

    def check_peers(self) -> None:
        """Not collective, cheap, called often while waiting: raises `SaveFailed` naming a rank that is known to be
        gone.
        """


class SingleProcess:
    """The group of one."""

    rank = 0
    size = 1

    def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
        """The payload itself."""
        assert payload is not None
        return payload

    def check_peers(self) -> None:
        """There are no peers."""
