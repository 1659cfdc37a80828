"""Files read and written past the page cache (O_DIRECT), whole and in gathers; buffered where a filesystem has none."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT_BYTES = 4096


def aligned_length(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of 4,096."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class DirectFile:
    """An open file. Positional, so threads may share it. All methods raise OSError as the kernel reports it."""

    is_direct: bool

    def pwritev(self, views: Sequence[memoryview], offset: int) -> None:
        """Write all of `views` from `offset` on. ValueError on a direct file unless everything is a multiple of 4,096."""
        raise NotImplementedError

    def preadv(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` from `offset` on; returns the bytes read, less than asked only at the end of the file."""
        raise NotImplementedError

    def write_tail(self, view: memoryview, size_bytes: int, offset: int) -> None:
        """Write the last `size_bytes` of a file from aligned `offset`: `view` is padded with zeros, the file cut to fit."""
        raise NotImplementedError

    def datasync(self) -> None:
        """Make data and size durable (fdatasync)."""
        raise NotImplementedError

    def truncate(self, size_bytes: int) -> None:
        """Set the length."""
        raise NotImplementedError

    def size_bytes(self) -> int:
        """The length."""
        raise NotImplementedError

    def fileno(self) -> int:
        """The descriptor, owned by this object."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it; idempotent."""
        raise NotImplementedError


def open_direct(path: str, flags: int, mode: int = 0o600) -> DirectFile:
    """Open `path` with O_DIRECT if its filesystem has it, else buffered (`is_direct` tells). O_CLOEXEC is added."""
    raise NotImplementedError
