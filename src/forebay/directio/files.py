"""Files read and written past the page cache (O_DIRECT), whole and in gathers; buffered where a filesystem has none.

Direct I/O wants addresses, lengths and offsets in multiples of the disk's block; 4,096 suits every disk there is.
Positions are always given, so threads may share a file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence

from cffi import FFI

ALIGNMENT_BYTES = 4096
IOV_MAX = 1024  # buffers that Linux takes in one call (limits.h)

_ffi = FFI()


def aligned_length(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of 4,096."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def open_direct(path: str, flags: int, mode: int = 0o600) -> DirectFile:
    """Open `path` with O_DIRECT if its filesystem has it, else buffered (`is_direct` tells). Raises OSError."""
    descriptor = os.open(path, flags & ~os.O_DIRECT | os.O_CLOEXEC, mode)
    try:
        # Set afterwards: a refused open(O_CREAT | O_DIRECT) leaves the file behind.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            os.close(descriptor)
            raise
        return DirectFile(path, descriptor, is_direct=False)
    return DirectFile(path, descriptor, is_direct=True)


class DirectFile:
    """An open file; see `open_direct`. All methods raise OSError as the kernel reports it.

    Buffers are contiguous views of bytes; they are the caller's again when a method returns.
    """

    def __init__(self, path: str, descriptor: int, *, is_direct: bool) -> None:
        self.path = path
        self.is_direct = is_direct
        self._descriptor = descriptor

    def pwritev(self, views: Sequence[memoryview], offset: int) -> None:
        """Write all of `views`, one after the other, from byte `offset` on.

        ValueError on a direct file unless offset, addresses and lengths are multiples of 4,096.
        """
        self._check(views, offset)
        left = list(views)
        while left:
            written = os.pwritev(self._descriptor, left[:IOV_MAX], offset)
            if not written and any(len(view) for view in left[:IOV_MAX]):
                raise OSError(errno.EIO, "the filesystem writes nothing and gives no reason", self.path)
            offset += written
            left = _after(left, written)

    def preadv(self, views: Sequence[memoryview], offset: int) -> int:
        """Fill `views` from byte `offset` on; returns the bytes read, less than asked only at the end of the file.

        ValueError on a direct file unless offset, addresses and lengths are multiples of 4,096.
        """
        self._check(views, offset)
        left, total = list(views), 0
        while left:
            count = os.preadv(self._descriptor, left[:IOV_MAX], offset + total)
            total += count
            left = _after(left, count)
            if not count or (self.is_direct and count % ALIGNMENT_BYTES):  # the end of the file
                break
        return total

    def write_tail(self, view: memoryview, size_bytes: int, offset: int) -> None:
        """Write the first `size_bytes` of `view` as the end of the file, at an aligned `offset`.

        `view` has room for `aligned_length(size_bytes)`: what follows the tail is overwritten with zeros, written, and
        cut off again.
        """
        padded_bytes = aligned_length(size_bytes)
        if len(view) < padded_bytes:
            raise ValueError(f"a tail of {size_bytes} bytes needs a buffer of {padded_bytes}, not {len(view)}")
        view[size_bytes:padded_bytes] = bytes(padded_bytes - size_bytes)
        self.pwritev([view[:padded_bytes]], offset)
        self.truncate(offset + size_bytes)

    def datasync(self) -> None:
        """Make data and length durable (fdatasync)."""
        os.fdatasync(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        """Set the length."""
        os.ftruncate(self._descriptor, size_bytes)

    def size_bytes(self) -> int:
        """The length."""
        return os.fstat(self._descriptor).st_size

    def fileno(self) -> int:
        """The descriptor, owned by this object."""
        return self._descriptor

    def close(self) -> None:
        """Close it; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """A file that nobody closed is closed with its last reference."""
        self.close()

    def _check(self, views: Sequence[memoryview], offset: int) -> None:
        if any(view.itemsize != 1 for view in views):
            raise ValueError("buffers must be views of bytes: use memoryview.cast('B')")
        if self.is_direct and (offset % ALIGNMENT_BYTES or not all(map(_is_aligned, views))):
            lengths = [len(view) for view in views]
            raise ValueError(f"direct I/O of {lengths} at {offset}: lengths, addresses and offset must be multiples of 4096")


def _is_aligned(view: memoryview) -> bool:
    return not (len(view) | int(_ffi.cast("uintptr_t", _ffi.from_buffer(view)))) % ALIGNMENT_BYTES


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `views` behind their first `count` bytes."""
    index = 0
    while index < len(views) and count >= len(views[index]):
        count -= len(views[index])
        index += 1
    return [views[index][count:], *views[index + 1 :]] if count else views[index:]
