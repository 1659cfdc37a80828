"""Listening sockets: one a worker on the same port, all made by the supervisor.

Each worker has its own accept queue (SO_REUSEPORT), so the kernel spreads connections. The supervisor keeps a
descriptor of each: when a worker dies, the connections in its queue wait for its replacement instead of being reset.
"""

from __future__ import annotations

import socket

from forebay.errors import ConfigError

BACKLOG = 1024


def bind_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one address; port 0 takes a free one. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"s3_addr: the host {host!r} is not known: {error}") from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    _bind(family, address, shared=False, listening=False).close()  # fails if another server has the port, even a sharing one
    listeners: list[socket.socket] = []
    try:
        for _ in range(count):
            listeners.append(_bind(family, address, shared=True, listening=True))
            address = listeners[0].getsockname()
    except ConfigError:
        close_all(listeners)
        raise
    return listeners


def close_all(sockets: list[socket.socket]) -> None:
    """Close every one."""
    for each in sockets:
        each.close()


def _bind(family: int, address: tuple[object, ...], *, shared: bool, listening: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        if listening:
            made.listen(BACKLOG)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"s3_addr: cannot listen on {address[0]} port {address[1]}: {reason}") from error
    made.setblocking(False)
    return made
