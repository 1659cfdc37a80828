"""Named crash points: where a test has the process killed, as a power cut would."""

from __future__ import annotations


def crash_point(name: str) -> None:
    """Kill the process with SIGKILL if FOREBAY_CRASH_AT is `name` (or `name:N`, at the N-th time); else nothing."""
