"""The client for large objects: blocking connections in threads, bodies sent from and received into memory.

The kernel and the checksum do the work without the interpreter's lock, so threads of one process do not hinder each
other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from awscrt import checksums

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.tally import Recorder, Tally, put_together
from forebay.bench.wire import UNSIGNED, Connection, Endpoint


class Transfer(NamedTuple):
    """One large PUT or GET. For a PUT `body` is sent; for a GET the answer must have `size_bytes` and this checksum."""

    method: str
    path: str
    size_bytes: int
    crc64nvme: int
    body: memoryview | None = None
    sha256: str = UNSIGNED
    crc64nvme_base64: str = ""


class LargeClient:
    """`connections` keep-alive connections to one endpoint, each driven by a thread of its own."""

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        self._connections = [Connection(endpoint) for _ in range(connections)]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    def run(
        self,
        next_transfer: Callable[[int], Transfer | None],
        start_s: float,
        deadline_s: float,
        progress: Callable[[float], None],
    ) -> Tally:
        """Keep every connection busy until the deadline, or until `next_transfer(connection)` has no more for it.

        Raises BenchmarkFailed at the first wrong answer. `progress` is called from this thread.
        """
        recorders = [Recorder(start_s, deadline_s) for _ in self._connections]
        lanes = [
            _Lane(number, connection, recorder, next_transfer)
            for number, (connection, recorder) in enumerate(zip(self._connections, recorders, strict=True))
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            while lane.is_alive():
                lane.join(0.1)
                progress(sum(each.moved_bytes for each in lanes))
        _raise_first(lanes)
        return put_together(recorder.tally() for recorder in recorders)


class _Lane(threading.Thread):
    def __init__(self, number: int, connection: Connection, recorder: Recorder, next_transfer: Callable[[int], Transfer | None]) -> None:
        super().__init__(name=f"lane-{number}", daemon=True)
        self._number = number
        self._connection = connection
        self._recorder = recorder
        self._next_transfer = next_transfer
        self.moved_bytes = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._recorder.deadline_s:
                transfer = self._next_transfer(self._number)
                if transfer is None:
                    break
                begin_s = time.monotonic()
                if transfer.body is not None:
                    self._put(transfer)
                else:
                    self._get(transfer)
                self._recorder.add(begin_s, time.monotonic(), transfer.size_bytes)
        except BaseException as error:  # raised again in the thread that waits
            self.error = error

    def _put(self, transfer: Transfer) -> None:
        assert transfer.body is not None
        self._connection.request(
            "PUT",
            transfer.path,
            body=transfer.body,
            sha256=transfer.sha256,
            crc64nvme=transfer.crc64nvme_base64,
            expect=(200,),
        )
        self.moved_bytes += transfer.size_bytes

    def _get(self, transfer: Transfer) -> None:
        crc, received = 0, 0

        def take(piece: memoryview) -> None:
            nonlocal crc, received
            crc = checksums.crc64nvme(piece, crc)
            received += len(piece)
            self.moved_bytes += len(piece)

        self._connection.request("GET", transfer.path, sink=take, expect=(200,))
        if received != transfer.size_bytes or crc != transfer.crc64nvme:
            raise BenchmarkFailed(
                f"GET {transfer.path}: {received} of {transfer.size_bytes} bytes, CRC64NVME {crc:016x} instead of {transfer.crc64nvme:016x}"
            )
        self._recorder.read_operations += 1
        self._recorder.verified_operations += 1


def _raise_first(lanes: Sequence[_Lane]) -> None:
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
