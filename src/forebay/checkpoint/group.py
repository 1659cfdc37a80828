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

    def post(self, payload: bytes) -> None:
        """Not collective: tell rank 0 something. Raises `SaveFailed` if rank 0 is gone."""

    def take_posted(self) -> list[bytes]:
        """On rank 0: what ranks posted since the last call. Empty elsewhere."""


class SingleProcess:
    """The group of one."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._posted: list[bytes] = []

    def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
        """The payload itself."""
        assert payload is not None
        return payload

    def check_peers(self) -> None:
        """There are no peers."""

    def post(self, payload: bytes) -> None:
        """See `Group`."""
        self._posted.append(payload)

    def take_posted(self) -> list[bytes]:
        """See `Group`."""
        taken, self._posted = self._posted, []
        return taken
