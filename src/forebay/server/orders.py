"""What the supervisor tells a worker when it starts it."""

from __future__ import annotations

import socket

import msgspec

from forebay.engine.opening import Layout
from forebay.server.config import Config

DRAIN_S = 30.0  # how long requests in flight may take to end when the server stops
LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class Orders(msgspec.Struct):
    """The first message to a worker."""

    slot: int
    parent_pid: int
    config: Config
    layout: Layout
    run_dir: str
    shared_path: str
    listen_fd: int
    unix_fd: int | None  # of the socket for clients on this host


def receive_orders(control: socket.socket) -> Orders:
    """The first line on the control socket, read byte by byte so that nothing after it is taken."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = control.recv(1)
        if not byte:
            raise ConnectionError("the supervisor is gone")
        line += byte
    return msgspec.json.decode(line, type=Orders)
