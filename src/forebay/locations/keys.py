"""Keys below a location, and the joining of them."""

from __future__ import annotations

KEY_BYTES_MAX = 1024
"""S3's limit on a whole key; other stores allow as much or more."""


def check_key(key: str) -> str:
    """The key itself. Raises ValueError if it is empty or could escape from the location."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\0" in key:
        raise ValueError(f"{key!r} is not a key: parts between slashes must not be empty, '.' or '..'")
    return key


def join_prefix(*parts: str) -> str:
    """The parts as one prefix, without slashes at its ends."""
    return "/".join(stripped for part in parts if (stripped := part.strip("/")))
