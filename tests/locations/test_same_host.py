"""The library takes the UNIX socket of a store on its host when there is one to be trusted, and TCP otherwise."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from location_kit import MiB, content

from forebay.locations import same_host
from forebay.locations.s3 import S3
from forebay.locations.same_host import connect_on_host

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess

TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def runtime(store: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(store.folder))
    return store.unix_socket.parent


def families(location: S3) -> set[int]:
    """Of the connections that were used."""
    return {connection.sock.family for _, connection in location._bucket.wire._idle}


def made(store: ServerProcess, host: str) -> S3:
    endpoint = f"http://{host}:{store.port}"
    location = S3("bucket", endpoint=endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, retry_s=10.0)
    assert location._bucket.ask("create", "PUT", "").status in (200, 409)
    return location


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_bytes_go_through_the_socket(store: ServerProcess, runtime: Path, host: str) -> None:
    location = made(store, host)
    data = content(20 * MiB)
    upload = location.upload("x", len(data), 8 * MiB)
    for index in range(3):
        upload.write_part(index, [data[index * 8 * MiB : (index + 1) * 8 * MiB]])
    upload.complete()
    assert location.get("x")[0] == data
    assert families(location) == {socket.AF_UNIX}


def test_off(store: ServerProcess, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_UNIX_SOCKET", "off")
    assert families(made(store, "127.0.0.1")) == {socket.AF_INET}


def test_tcp_where_there_is_no_socket(store: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert families(made(store, "127.0.0.1")) == {socket.AF_INET}


def test_tcp_for_other_addresses(runtime: Path, store: ServerProcess) -> None:
    for host in ("127.0.0.2", "::1", "10.0.0.1", "store.example.org"):
        assert connect_on_host(host, store.port, TIMEOUT_S) is None


def test_tcp_where_nobody_answers_the_socket(store: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "forebay"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / f"{store.port}.sock"))
    assert families(made(store, "127.0.0.1")) == {socket.AF_INET}


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a socket for port 1 that is good as it is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "forebay"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "1.sock"))
        listener.listen()
        connection = connect_on_host("127.0.0.1", 1, TIMEOUT_S)
        assert connection is not None
        connection.close()
        yield folder


def test_a_folder_that_others_may_change_is_not_trusted(listening: Path) -> None:
    listening.chmod(0o777)
    assert connect_on_host("127.0.0.1", 1, TIMEOUT_S) is None


def test_a_link_is_not_trusted(listening: Path) -> None:
    real = listening.rename(listening.with_name("real"))
    listening.symlink_to(real)
    assert connect_on_host("127.0.0.1", 1, TIMEOUT_S) is None


def test_a_folder_or_listener_of_another_user_is_not_trusted(listening: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.geteuid()
    monkeypatch.setattr(same_host, "_is_trusted", lambda uid: uid != us)
    assert connect_on_host("127.0.0.1", 1, TIMEOUT_S) is None
    monkeypatch.setattr(same_host, "_is_safe", lambda folder: True)
    assert connect_on_host("127.0.0.1", 1, TIMEOUT_S) is None, "the listener's process decides too"
