"""The client process that measures what the machine itself can do: direct file writes and reads, TCP over loopback.

Several threads move 4 MiB blocks with O_DIRECT, each in a file of its own, as a store with all its drives on one disk
would at best. No checksum, no parity, no network: a ceiling, not an implementation.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.bench.limits import BLOCK_BYTES, TCP_BLOCK_BYTES, TCP_SECONDS_MAX
from forebay.bench.seat import Seat, client_main


class _Disk:
    """One scratch file and its buffer, driven by one thread."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.moved_bytes = 0
        self.buffer = mmap.mmap(-1, BLOCK_BYTES)  # page-aligned, as O_DIRECT wants it
        self.buffer.write(os.urandom(BLOCK_BYTES))

    @contextmanager
    def opened(self, flags: int) -> Iterator[int]:
        file = os.open(self.path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def write(self, deadline_s: float) -> None:
        with self.opened(os.O_CREAT | os.O_WRONLY) as file:
            while self.size_bytes < BLOCK_BYTES or (self.size_bytes < self.bytes_max and time.monotonic() < deadline_s):
                self.size_bytes += os.pwritev(file, [self.buffer], self.size_bytes)
            os.fdatasync(file)
        self.moved_bytes = self.size_bytes

    def read(self, deadline_s: float) -> None:
        self.moved_bytes = 0
        with self.opened(os.O_RDONLY) as file:
            while not self.moved_bytes or time.monotonic() < deadline_s:
                self.moved_bytes += os.preadv(file, [self.buffer], self.moved_bytes % self.size_bytes)


def _in_threads(works: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again below, in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _tcp_bytes(seconds: float) -> int:
    """Bytes that one loopback connection carried from a sending to a receiving thread within `seconds`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    received = 0

    def send() -> None:
        block = os.urandom(TCP_BLOCK_BYTES)
        deadline_s = time.monotonic() + seconds
        with sender:
            while time.monotonic() < deadline_s:
                sender.sendall(block)

    def receive() -> None:
        nonlocal received
        block = bytearray(TCP_BLOCK_BYTES)
        with receiver:
            while count := receiver.recv_into(block):
                received += count

    _in_threads([send, receive])
    return received


def measure(seat: Seat) -> dict[str, Any]:
    """Stretches `write`, `read`, `tcp` of `job["seconds"]` (the last shorter), in `job["folder"]`, by `job["threads"]` threads."""
    folder, threads, seconds = Path(seat.job["folder"]), seat.job["threads"], seat.job["seconds"]
    disks = [_Disk(folder / f"forebay-limit-{os.getpid()}-{i}", seat.job["bytes_max"] // threads) for i in range(threads)]
    try:
        start_s = seat.barrier("write")
        _in_threads([lambda disk=disk: disk.write(start_s + seconds) for disk in disks])  # type: ignore[misc]
        start_s = seat.barrier("read", {"bytes": sum(disk.moved_bytes for disk in disks)})
        _in_threads([lambda disk=disk: disk.read(start_s + seconds) for disk in disks])  # type: ignore[misc]
    finally:
        for disk in disks:
            disk.path.unlink(missing_ok=True)
    seat.barrier("tcp", {"bytes": sum(disk.moved_bytes for disk in disks)})
    return {"bytes": _tcp_bytes(min(seconds, TCP_SECONDS_MAX))}


if __name__ == "__main__":
    client_main(measure)
