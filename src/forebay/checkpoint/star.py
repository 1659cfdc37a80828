"""A group as a star of TCP connections: every rank holds one to rank 0.

The kernel closes a dead process's connections at once, and answers keep-alive probes for one that is merely busy; so a
closed connection is proof of death, and a rank that holds Python's lock for a minute is not taken for dead. A lost
machine or a cut network shows by unanswered probes within `PROBE_LIMIT_S`. Rank 0 passes the news on.

Frames: a kind (1 byte), a length (4 bytes, big endian), a payload.

| kind | from | payload |
|---|---|---|
| `H` hello | rank > 0, first | the token, 16 bytes; rank, 4 bytes |
| `W` welcome | rank 0 | empty: the token was right |
| `B` broadcast | rank 0 | the payload |
| `P` post | rank > 0 | the payload |
| `D` departed | rank 0 | a rank, 4 bytes; what became of it |
| `Q` quit | any | empty: this process ends in good order |
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay.errors import SaveFailed

FRAME_BYTES_MAX = 2**20
TOKEN_BYTES = 16
SEND_LIMIT_S = 30
"""How long a rank may take to make room for a frame before it counts as lost."""
PROBE_IDLE_S, PROBE_INTERVAL_S, PROBE_COUNT = 2, 1, 4
PROBE_LIMIT_S = PROBE_IDLE_S + PROBE_INTERVAL_S * PROBE_COUNT
INBOX_FRAMES_MAX = 10_000
"""Broadcasts that a rank may lag behind; then rank 0 is slowed down by TCP."""
WAIT_SLICE_S = 0.2
_HEAD = struct.Struct(">cI")
_RANK = struct.Struct(">I")

_open_stars: weakref.WeakSet[_Star] = weakref.WeakSet()


class _Star:
    """What both ends share: who is gone, and an orderly end."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._gone: dict[int, str] = {}
        self._closed = False
        _open_stars.add(self)

    def check_peers(self) -> None:
        """See `Group`."""
        if self._gone:
            rank, fate = next(iter(self._gone.items()))
            raise SaveFailed(rank, fate)

    def close(self) -> None:
        """Leave in good order. Harmless twice."""
        if not self._closed:
            self._closed = True
            for sock in self._sockets():
                with contextlib.suppress(OSError):
                    sock.sendall(frame(b"Q"))
        self.drop_sockets()

    def drop_sockets(self) -> None:
        """Close this process's copies of the sockets without a word: what a forked child must do, for a connection
        that a child keeps open hides its parent's death.
        """
        for sock in self._sockets():
            sock.close()

    def _sockets(self) -> list[socket.socket]:
        raise NotImplementedError


def _close_all() -> None:
    for star in list(_open_stars):
        star.close()


def _drop_all() -> None:
    for star in list(_open_stars):
        star._closed = True
        star.drop_sockets()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_drop_all)


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection at rank 0; `rank` is -1 until its hello."""

    sock: socket.socket
    rank: int = -1
    received: bytearray = field(default_factory=bytearray)


class Hub(_Star):
    """Rank 0. `host` is the address to listen on (empty: all)."""

    def __init__(self, size: int, host: str = "", port: int = 0) -> None:
        super().__init__(0, size)
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._posted: list[bytes] = []
        threading.Thread(target=self._serve, name="forebay-group", daemon=True).start()

    def wait_for_all(self, timeout_s: float) -> None:
        """Until every rank has connected. Raises `SaveFailed` naming one that has not."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self._peers) + len(self._gone) >= self.size - 1, timeout_s):
                missing = next(rank for rank in range(1, self.size) if rank not in self._peers)
                raise SaveFailed(missing, f"it did not connect to rank 0, port {self.port}, within {timeout_s:.0f} s")
        self.check_peers()

    def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
        """See `Group`."""
        assert payload is not None and len(payload) <= FRAME_BYTES_MAX
        self._send_all(frame(b"B", payload))
        self.check_peers()
        return payload

    def post(self, payload: bytes) -> None:
        """See `Group`."""
        with self._lock:
            self._posted.append(payload)

    def take_posted(self) -> list[bytes]:
        """See `Group`."""
        with self._lock:
            taken, self._posted = self._posted, []
        return taken

    def _send_all(self, data: bytes) -> None:
        with self._lock:
            lost = [(peer, error) for peer in self._peers.values() if (error := _send(peer.sock, data)) is not None]
        for peer, error in lost:
            self._depart(peer, f"its connection failed: {error}")

    def _depart(self, peer: _Peer, fate: str) -> None:
        with self._lock:
            if peer.rank < 0 or self._peers.pop(peer.rank, None) is None:
                return
            self._gone[peer.rank] = fate
            self._arrived.notify_all()
        self._send_all(frame(b"D", _RANK.pack(peer.rank) + fate.encode()))

    def _serve(self) -> None:
        """The thread that accepts, hears and notices ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, None)
            while not self._closed:
                try:
                    events = selector.select(WAIT_SLICE_S)
                    for key, _ in events:
                        self._heed(selector, key.data)
                except (OSError, ValueError):
                    if not self._closed:  # a socket was closed under the selector by `close`: then this is the end
                        raise

    def _heed(self, selector: selectors.BaseSelector, peer: _Peer | None) -> None:
        if peer is None:
            sock, _ = self._listener.accept()
            tune(sock)
            selector.register(sock, selectors.EVENT_READ, _Peer(sock))
            return
        fate = self._hear(peer)
        if fate:
            selector.unregister(peer.sock)
            self._depart(peer, fate)
            peer.sock.close()

    def _hear(self, peer: _Peer) -> str:
        """Take what has come; what became of the peer, if it is gone."""
        try:
            data = peer.sock.recv(2**16)
        except OSError as error:
            return f"its connection failed: {error}"
        if not data:
            return "its process ended or was killed: the connection closed"
        peer.received += data
        try:
            for kind, payload in frames(peer.received):
                if peer.rank < 0:
                    self._greet(peer, kind, payload)
                elif kind == b"P":
                    self.post(payload)
                elif kind == b"Q":
                    return "it ended"
        except ValueError as error:
            return str(error)
        return ""

    def _greet(self, peer: _Peer, kind: bytes, payload: bytes) -> None:
        rank = _RANK.unpack(payload[TOKEN_BYTES:])[0] if len(payload) == TOKEN_BYTES + _RANK.size else 0
        known = kind == b"H" and secrets.compare_digest(payload[:TOKEN_BYTES], self.token)
        if not known or not 0 < rank < self.size:
            raise ValueError("a stranger")
        with self._lock:
            if rank in self._peers or rank in self._gone:
                raise ValueError(f"rank {rank} connected twice")
            peer.rank, self._peers[rank] = rank, peer
            _send(peer.sock, frame(b"W"))
            self._arrived.notify_all()

    def _sockets(self) -> list[socket.socket]:
        return [self._listener, *(peer.sock for peer in list(self._peers.values()))]


class Spoke(_Star):
    """Another rank, connected to rank 0 at one of `hosts`."""

    def __init__(self, rank: int, size: int, hosts: Sequence[str], port: int, token: bytes, timeout_s: float) -> None:
        super().__init__(rank, size)
        self._lock = threading.Lock()
        self._inbox: queue.Queue[bytes] = queue.Queue(INBOX_FRAMES_MAX)
        self._sock = _connect(rank, hosts, port, token, timeout_s)
        threading.Thread(target=self._serve, name="forebay-group", daemon=True).start()

    def broadcast(self, payload: bytes | None, timeout_s: float) -> bytes:
        """See `Group`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return self._inbox.get(timeout=WAIT_SLICE_S)
            except queue.Empty:
                self.check_peers()
            if time.monotonic() > deadline_s:
                raise SaveFailed(0, f"rank {self.rank} waited {timeout_s:.0f} s for its decision")

    def post(self, payload: bytes) -> None:
        """See `Group`."""
        self.check_peers()
        with self._lock:
            error = _send(self._sock, frame(b"P", payload))
        if error is not None:
            self._gone.setdefault(0, f"its connection failed: {error}")
            self.check_peers()

    def take_posted(self) -> list[bytes]:
        """See `Group`."""
        return []

    def _serve(self) -> None:
        received, fate = bytearray(), ""
        while not fate:
            try:
                data = self._sock.recv(2**16)
                fate = "" if data else "its process ended or was killed: the connection closed"
            except OSError as error:
                data, fate = b"", f"its connection failed: {error}"
            received += data
            for kind, payload in frames(received):
                if kind == b"B":
                    self._inbox.put(payload)
                elif kind == b"D":
                    self._gone[_RANK.unpack(payload[: _RANK.size])[0]] = payload[_RANK.size :].decode()
                elif kind == b"Q":
                    fate = "it ended"
        self._gone.setdefault(0, fate)

    def _sockets(self) -> list[socket.socket]:
        return [self._sock] if hasattr(self, "_sock") else []


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return _HEAD.pack(kind, len(payload)) + payload


def frames(received: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take the complete frames off the front. Raises ValueError for one that is too long."""
    while len(received) >= _HEAD.size:
        kind, size_bytes = _HEAD.unpack_from(received)
        if size_bytes > FRAME_BYTES_MAX + 64:
            raise ValueError(f"a frame of {size_bytes} bytes")
        if len(received) < _HEAD.size + size_bytes:
            return
        payload = bytes(received[_HEAD.size : _HEAD.size + size_bytes])
        del received[: _HEAD.size + size_bytes]
        yield kind, payload


def tune(sock: socket.socket) -> None:
    """Small frames at once, probes while idle, and no endless send."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_LIMIT_S, 0))
    for option, value in (("TCP_KEEPIDLE", PROBE_IDLE_S), ("TCP_KEEPINTVL", PROBE_INTERVAL_S), ("TCP_KEEPCNT", PROBE_COUNT)):
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _send(sock: socket.socket, data: bytes) -> OSError | None:
    try:
        sock.sendall(data)
    except OSError as error:
        return error
    return None


def _listen(host: str, port: int) -> socket.socket:
    dual = host == "" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=dual, backlog=1024)


def _connect(rank: int, hosts: Sequence[str], port: int, token: bytes, timeout_s: float) -> socket.socket:
    deadline_s = time.monotonic() + timeout_s
    fault = "no address was tried"
    while time.monotonic() < deadline_s:
        for host in hosts:
            try:
                return _try_connect(rank, host, port, token, min(5.0, timeout_s))
            except (OSError, ValueError) as error:
                fault = f"{host}: {error}"
        time.sleep(WAIT_SLICE_S)
    raise SaveFailed(
        0,
        f"rank {rank} cannot reach it on port {port} ({fault}). Forebay keeps a connection from every rank to rank 0, to hear "
        "at once of one that dies; open that port, or name the way with FOREBAY_GROUP_HOST and FOREBAY_GROUP_PORT on rank 0",
    )


def _try_connect(rank: int, host: str, port: int, token: bytes, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((host, port), timeout_s)
    try:
        sock.sendall(frame(b"H", token + _RANK.pack(rank)))
        if sock.recv(_HEAD.size, socket.MSG_WAITALL) != frame(b"W"):
            raise ValueError("something else answers there")
        sock.settimeout(None)
        tune(sock)
    except BaseException:
        sock.close()
        raise
    return sock
