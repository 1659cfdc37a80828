"""Forebay's UNIX socket on this host, which costs half the CPU of loopback TCP: found from the port, or not used.

A server that hears 127.0.0.1 at a port listens at `<port>.sock` in the runtime folder of its user too (docs/server.md). It is taken
only if this user or root owns folder and listener; everything else, and every failure, means TCP.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator

VARIABLE = "FOREBAY_UNIX_SOCKET"
"""Set to `off`, no socket is looked for."""
HOSTS = frozenset({"127.0.0.1", "localhost"})
SYSTEM_FOLDER = "/run/forebay"
_CREDENTIALS = struct.Struct("3i")  # ucred of unix(7): pid, uid, gid


def connect_on_host(host: str, port: int, timeout_s: float) -> socket.socket | None:
    """A connection to the server that listens at `host` and `port`, by its UNIX socket; None if there is none to be trusted."""
    if host not in HOSTS or os.environ.get(VARIABLE, "").lower() == "off":
        return None
    for folder in _folders():
        if _is_safe(folder) and (connection := _connect(f"{folder}/{port}.sock", timeout_s)) is not None:
            return connection
    return None


def _folders() -> Iterator[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield f"{runtime}/forebay"
    yield f"/tmp/forebay-{os.geteuid()}"  # noqa: S108 - checked before it is used
    yield SYSTEM_FOLDER


def _is_safe(folder: str) -> bool:
    """Whether nobody but this user and root can put a socket there."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_trusted(status.st_uid) and not status.st_mode & 0o022


def _connect(path: str, timeout_s: float) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        made.connect(path)
        _, uid, _ = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except OSError:
        made.close()
        return None
    if not _is_trusted(uid):
        made.close()
        return None
    return made


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0)
