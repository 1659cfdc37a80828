"""What the benchmark tells its client processes to do."""

from __future__ import annotations

import msgspec

from forebay.bench.wire import Endpoint


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch.

    `fill`, `put`, `get`, `mixed` or `list`, for so many seconds (0: until there is nothing left to do).
    """

    operation: str
    seconds: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process is to do; every client of a crew has the same stretches."""

    endpoint: Endpoint
    bucket: str
    prefix: str
    seed: str
    size_bytes: int
    objects: int
    connections: int
    small: bool  # epoll client rather than threads
    payload_check: str  # sha256, crc64nvme or none
    mixed_get_share: float
    stretches: list[Plan]


def stretch_name(index: int, operation: str) -> str:
    """The barrier at which stretch `index` starts."""
    return f"{index} {operation}"
