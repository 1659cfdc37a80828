"""The UNIX socket for clients on the same host."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess
from wire_fixture import Answers

from forebay.errors import ConfigError
from forebay.s3.sigv4 import Credentials, sign_request
from forebay.server import unix_socket
from forebay.server.unix_socket import UnixListener, open_unix_listener

LOOPBACK = ("127.0.0.1", 9000)


def ask(server: ServerProcess, client: socket.socket, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """A signed request; the Host header is that of the TCP endpoint."""
    host = {"host": f"127.0.0.1:{server.port}"}
    digest = hashlib.sha256(body).hexdigest()
    signed = sign_request(Credentials(ACCESS_KEY, SECRET_KEY), method, target, host, payload_sha256=digest, now_s=time.time())
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in (host | signed).items())]
    client.sendall("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body)
    status, _, answer = Answers(client).next()
    return status, answer


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(20)
    client.connect(str(path))
    return client


def refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) in (errno.ECONNREFUSED, errno.ENOENT)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path / "forebay"


@pytest.mark.parametrize("size_bytes", [0, 3000, 60_000, 70_000, 5_000_001])
def test_bodies_of_every_size(store: ServerProcess, bucket: str, size_bytes: int) -> None:
    body = os.urandom(size_bytes)
    with connect(store.unix_socket) as client:
        for _ in range(2):  # the connection is kept
            assert ask(store, client, "PUT", f"/{bucket}/k", body)[0] == 200
            assert ask(store, client, "GET", f"/{bucket}/k") == (200, body)


def test_unsigned_requests_are_refused(store: ServerProcess, bucket: str) -> None:
    with connect(store.unix_socket) as client:
        client.sendall(f"GET /{bucket}/k HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert Answers(client).next()[0] == 403


def test_only_the_user_may_enter(store: ServerProcess) -> None:
    assert store.unix_socket.parent.stat().st_mode & 0o777 == 0o700


def test_it_goes_with_the_server_and_a_killed_ones_is_replaced(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    path = server.unix_socket
    server.kill()
    assert path.is_socket()
    assert refuses(path)
    with ServerProcess(tmp_path, port=server.port), connect(path) as client:
        assert ask(server, client, "GET", "/")[0] == 200
    assert not path.exists()
    assert list(path.parent.iterdir()) == []


def test_a_configured_path_and_off(tmp_path: Path) -> None:
    chosen = tmp_path / "here.sock"
    with ServerProcess(tmp_path, extra=f'unix_socket = "{chosen}"') as server, connect(chosen) as client:
        assert ask(server, client, "GET", "/")[0] == 200
        assert not server.unix_socket.exists()
    assert not chosen.exists()
    with ServerProcess(tmp_path, extra='unix_socket = "off"') as server:
        assert not server.unix_socket.exists()


def test_a_configured_path_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    chosen = tmp_path / "notes.txt"
    chosen.write_text("not a socket")
    with pytest.raises(RuntimeError, match=r"notes\.txt is there already and is no socket"):
        ServerProcess(tmp_path, extra=f'unix_socket = "{chosen}"')
    assert chosen.read_text() == "not a socket"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_it_stands_for_the_loopback_address(runtime: Path, host: str) -> None:
    listener = open_unix_listener(None, (host, 9000), is_tls=False)
    assert listener is not None
    assert listener.path == runtime / "9000.sock"
    listener.close()
    assert not listener.path.exists()


def test_where_none_is_made(runtime: Path) -> None:
    assert open_unix_listener(None, ("127.0.0.2", 9000), is_tls=False) is None
    assert open_unix_listener(None, ("::1", 9000), is_tls=False) is None
    assert open_unix_listener(None, LOOPBACK, is_tls=True) is None
    assert open_unix_listener("off", LOOPBACK, is_tls=False) is None
    assert not runtime.exists()


def test_two_servers_do_not_fight(runtime: Path) -> None:
    first = open_unix_listener(None, LOOPBACK, is_tls=False)
    with pytest.raises(ConfigError, match="another server listens"):
        open_unix_listener(None, LOOPBACK, is_tls=False)
    with connect(first.path):
        pass
    first.close()


def test_the_end_of_one_leaves_the_socket_of_its_successor(runtime: Path) -> None:
    first = open_unix_listener(None, LOOPBACK, is_tls=False)
    first.path.unlink()  # as programs that tidy up temporary folders do
    second = open_unix_listener(None, LOOPBACK, is_tls=False)
    first.close()
    assert not refuses(second.path)
    with connect(second.path):
        pass
    second.close()


def test_what_killed_servers_left_is_swept(runtime: Path) -> None:
    other = open_unix_listener(None, ("127.0.0.1", 9001), is_tls=False)
    alive = open_unix_listener(None, ("127.0.0.1", 9002), is_tls=False)
    other.sock.close()
    listener = open_unix_listener(None, LOOPBACK, is_tls=False)
    assert sorted(path.name for path in runtime.iterdir()) == ["9000.sock", "9002.sock"]
    listener.close()
    alive.close()


def test_a_folder_that_others_may_change_is_not_used(runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(ConfigError, match="only this user may change"):
        open_unix_listener(None, LOOPBACK, is_tls=False)
    runtime.rmdir()
    runtime.symlink_to(runtime.parent)
    with pytest.raises(ConfigError, match="only this user may change"):
        open_unix_listener(None, LOOPBACK, is_tls=False)


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on .*: No such file"):
        UnixListener(tmp_path / "missing" / "s.sock")
    with pytest.raises(ConfigError, match=r"cannot listen on .*too long"):
        UnixListener(tmp_path / ("n" * 120))


def test_a_server_without_its_folder_serves_over_tcp(tmp_path: Path) -> None:
    (tmp_path / "forebay").write_text("in the way")
    with ServerProcess(tmp_path) as server:
        assert any("clients on this host will use TCP" in line for line in server.lines)


def test_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert unix_socket.runtime_folder() == Path("/tmp/forebay-1234")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert unix_socket.runtime_folder() == Path("/run/forebay")


def test_both_workers_accept(store: ServerProcess) -> None:
    """One that is stopped leaves the connections to the other."""
    for stopped in store.worker_pids():
        os.kill(stopped, signal.SIGSTOP)
        try:
            with connect(store.unix_socket) as client:
                assert ask(store, client, "GET", "/")[0] == 200
        finally:
            os.kill(stopped, signal.SIGCONT)
