"""The UNIX socket for clients on the same host: half the CPU of loopback TCP for the same bytes.

Its place follows from the port, so that a client finds it without being told: `<port>.sock` in the runtime folder of the server's user.
It stands for 127.0.0.1 at that port, so a server that does not listen there makes none. Anyone who can enter the folder may connect, as
anyone on the host may connect to the port; requests are signed all the same.

Changes in the folder are made under a lock on it. A socket that nobody answers was left by a server that was killed; one that somebody
answers is never touched.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.errors import ConfigError
from forebay.server.sockets import BACKLOG

SYSTEM_FOLDER = "/run/forebay"  # root's: others may look in, so that their clients find the socket
OFF = "off"
_STANDS_FOR = ("127.0.0.1", "0.0.0.0", "::")  # noqa: S104 - addresses at which a server hears 127.0.0.1

_log = logging.getLogger("forebay.server")


class UnixListener:
    """A listening socket, from which every worker accepts, and its file."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`. Raises ConfigError: the folder is missing, another server listens there, something else is there."""
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _locked(path.parent):
                _make_room(path)
                self.sock.bind(str(path))
                path.chmod(0o666)
                self.sock.listen(BACKLOG)
                self._file = _identity_of(path)
        except OSError as error:
            self.sock.close()
            raise ConfigError(f"unix_socket: cannot listen on {path}: {error.strerror or error}") from error
        except ConfigError:
            self.sock.close()
            raise
        self.sock.setblocking(False)

    def close(self) -> None:
        """Remove the file, unless it is another server's by now, and stop listening."""
        try:
            with _locked(self.path.parent):
                # Before the socket is closed: until then nobody takes its place, and its inode's number is not given to another file.
                if _identity_of(self.path) == self._file:
                    self.path.unlink()
        except FileNotFoundError:
            pass  # somebody tidied up
        except OSError as error:
            _log.warning("%s is left behind, and the next server there will replace it: %s", self.path, error)
        self.sock.close()


def open_unix_listener(given: str | None, address: tuple[str, int], *, is_tls: bool) -> UnixListener | None:
    """The listener that the configuration asks for; None if it is off, or if none stands for the TCP `address` (a bound one).

    Raises ConfigError. Where nothing is configured that means: clients will use TCP, as they do without a socket.
    """
    if given == OFF:
        return None
    if given is not None:
        return UnixListener(Path(given))
    host, port = address
    if is_tls or host not in _STANDS_FOR:
        return None
    folder = runtime_folder()
    try:
        _prepare(folder)
        _sweep(folder)
    except OSError as error:
        raise ConfigError(f"unix_socket: cannot use {folder}: {error.strerror}") from error
    return UnixListener(folder / f"{port}.sock")


def runtime_folder() -> Path:
    """Where the sockets of this user's servers are. `forebay.locations.same_host` looks in the same places."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "forebay"
    uid = os.getuid()
    return Path(SYSTEM_FOLDER) if uid == 0 else Path(f"/tmp/forebay-{uid}")  # noqa: S108 - private and checked


def _prepare(folder: Path) -> None:
    """Make the folder, which only its user may change. Raises ConfigError and OSError."""
    folder.mkdir(mode=0o755 if str(folder) == SYSTEM_FOLDER else 0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"unix_socket: {folder} is not a folder that only this user may change")


def _sweep(folder: Path) -> None:
    """Remove the sockets that killed servers left behind."""
    with _locked(folder):
        for path in folder.glob("*.sock"):
            if path.is_socket() and not _answers(path):
                path.unlink(missing_ok=True)


def _make_room(path: Path) -> None:
    """Remove what a killed server left at `path`; the folder is locked. Raises ConfigError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"unix_socket: {path} is there already and is no socket")
    if _answers(path):
        raise ConfigError(f"unix_socket: another server listens on {path}")
    path.unlink()


def _answers(path: Path) -> bool:
    """Whether a process listens there. One with a full queue does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _identity_of(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
