"""The client for small requests: many connections on one epoll loop, one request in flight on each.

Small answers fit a receive buffer and small requests a send buffer, so a request costs the client one send, one
receive and one epoll event: some tens of microseconds with its signature. The rare partial send is finished when the
socket takes more.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.tally import Recorder
from forebay.bench.wire import Endpoint, connect, is_closed

HEAD_BYTES_MAX = 16 << 10
SILENCE_MAX_S = 30.0

# What to send; the body length of a right answer (None: whatever it announces); its body, or how many `<Key>` it holds, or None for
# no check; the payload bytes that the request moves.
Request = tuple[bytes, int | None, bytes | int | None, int]


class _Lane:
    """One connection and the request in flight on it."""

    __slots__ = (
        *("begin_s", "body", "body_length", "buffer", "filled", "moved_bytes"),
        *("number", "send", "socket", "unsent", "view"),
    )

    def __init__(self, number: int, endpoint: Endpoint, answer_bytes_max: int) -> None:
        self.number = number
        self.connect(endpoint)
        self.buffer = bytearray(HEAD_BYTES_MAX + answer_bytes_max)
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.unsent = memoryview(b"")
        self.begin_s = 0.0
        self.body_length: int | None = 0
        self.body: bytes | int | None = None
        self.moved_bytes = 0

    def connect(self, endpoint: Endpoint) -> None:
        self.socket = connect(endpoint, SILENCE_MAX_S)
        self.socket.setblocking(False)
        self.send = self.socket.send


class SmallClient:
    """`connections` keep-alive connections to one endpoint, driven by the calling thread."""

    def __init__(self, endpoint: Endpoint, connections: int, answer_bytes_max: int) -> None:
        self._endpoint = endpoint
        self._epoll = select.epoll()
        lanes = [_Lane(number, endpoint, answer_bytes_max) for number in range(connections)]
        self._lanes = {lane.socket.fileno(): lane for lane in lanes}
        for file in self._lanes:
            self._epoll.register(file, select.EPOLLIN)

    def close(self) -> None:
        """Close all connections."""
        for lane in self._lanes.values():
            lane.socket.close()
        self._epoll.close()

    def run(self, next_request: Callable[[int], Request | None], recorder: Recorder, progress: Callable[[float], None]) -> None:
        """Keep every connection busy until the recorder's deadline, or until `next_request(connection)` has no more
        for it.

        Raises BenchmarkFailed at the first answer that is not 2xx, has another length than expected, or another body.
        """
        for lane in list(self._lanes.values()):
            if is_closed(lane.socket):
                self._reconnect(lane)
        lanes, poll, clock, deadline_s = self._lanes, self._epoll.poll, time.monotonic, recorder.deadline_s
        busy = sum(self._start(lane, next_request(lane.number)) for lane in list(lanes.values()))
        moved_bytes, until_progress = 0, 1000
        while busy:
            events = poll(SILENCE_MAX_S)
            if not events:
                raise BenchmarkFailed(f"the server said nothing for {SILENCE_MAX_S:.0f} s with {busy} requests in flight")
            for file, event in events:
                lane = lanes[file]
                if event & select.EPOLLOUT and self._send_more(lane):
                    continue
                if not self._receive(lane):
                    continue
                now_s = clock()
                recorder.add(lane.begin_s, now_s, lane.moved_bytes)
                moved_bytes += lane.moved_bytes
                if lane.body_length:
                    recorder.read_operations += 1
                    recorder.verified_operations += lane.body is not None
                if now_s >= deadline_s or not self._start(lane, next_request(lane.number)):
                    busy -= 1
            until_progress -= len(events)
            if until_progress < 0:
                until_progress = 1000
                progress(moved_bytes)

    def _start(self, lane: _Lane, request: Request | None) -> bool:
        if request is None:
            return False
        data, lane.body_length, lane.body, lane.moved_bytes = request
        lane.filled = 0
        lane.begin_s = time.monotonic()
        try:
            sent = lane.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            lane.unsent = memoryview(data)[sent:]
            self._epoll.modify(lane.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def _reconnect(self, lane: _Lane) -> None:
        """A server may end a connection after any answer, if it says so."""
        del self._lanes[lane.socket.fileno()]
        lane.socket.close()
        lane.connect(self._endpoint)
        self._lanes[lane.socket.fileno()] = lane
        self._epoll.register(lane.socket.fileno(), select.EPOLLIN)

    def _send_more(self, lane: _Lane) -> bool:
        """Send what is left; True while the answer cannot have come."""
        if lane.unsent:
            lane.unsent = lane.unsent[lane.send(lane.unsent) :]
        if not lane.unsent:
            self._epoll.modify(lane.socket.fileno(), select.EPOLLIN)
        return True

    def _receive(self, lane: _Lane) -> bool:
        """Take what has come; True when the answer is complete and right."""
        filled = lane.filled
        count = lane.socket.recv_into(lane.view[filled:] if filled else lane.view)
        if not count:
            raise BenchmarkFailed("the server closed a connection with a request in flight, or sent more than fits an answer")
        lane.filled = filled = filled + count
        buffer = lane.buffer
        head_end = buffer.find(b"\r\n\r\n", 0, filled)
        if head_end < 0:
            return False
        head = bytes(buffer[:head_end]).lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 : end if (end := head.find(b"\r\n", at + 17)) >= 0 else None]) if at >= 0 else 0
        missing = head_end + 4 + length - filled
        if missing > 0:
            return False
        self._check(lane, head, head_end + 4, length, missing)
        if b"\r\nconnection: close" in head:
            self._reconnect(lane)
        return True

    def _check(self, lane: _Lane, head: bytes, body_start: int, length: int, missing: int) -> None:
        buffer = lane.buffer
        if not head.startswith(b"http/1.1 2") or missing < 0 or (lane.body_length is not None and length != lane.body_length):
            what = bytes(buffer[: min(lane.filled, 1500)]).decode(errors="replace")
            raise BenchmarkFailed(f"expected 2xx with {lane.body_length} bytes of body, got:\n{what}")
        if isinstance(lane.body, bytes):
            if not buffer.startswith(lane.body, body_start, body_start + length):
                raise BenchmarkFailed("an answer's body is not what was written")
        elif lane.body is not None and (keys := buffer.count(b"<Key>", body_start, body_start + length)) != lane.body:
            raise BenchmarkFailed(f"a listed page has {keys} keys instead of {lane.body}")
