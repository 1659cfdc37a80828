"""Starting, ending, dying and coming back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import make_client
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess, is_alive
from wire_fixture import Answers

from certificates import write_certificate
from forebay.errors import ConfigError
from forebay.s3.sigv4 import Credentials, sign_request
from forebay.server.exclusive import FolderLocks


def fetch(server: ServerProcess, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(server.endpoint + target, data=body or None, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def admin(
    server: ServerProcess, subject: str, credentials: tuple[str, str] = (ACCESS_KEY, SECRET_KEY), act: dict[str, Any] | None = None
) -> tuple[int, Any]:
    target = f"/forebay/admin/{subject}"
    host = {"host": f"127.0.0.1:{server.port}"}
    body = b"" if act is None else json.dumps(act).encode()
    digest = hashlib.sha256(body).hexdigest()
    method = "GET" if act is None else "POST"
    signed = sign_request(Credentials(*credentials), method, target, host, payload_sha256=digest, now_s=time.time())
    status, document = fetch(server, target, body, **signed)
    return status, json.loads(document) if status == 200 else document


def wait_for(condition: Any) -> None:
    give_up = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_health_metrics_and_admin(store: ServerProcess, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 1000)
    assert fetch(store, "/forebay/health/live")[0] == 200
    assert json.loads(fetch(store, "/forebay/health/ready")[1]) == {"status": "ready"}
    text = fetch(store, "/forebay/metrics")[1].decode()
    puts = next(line for line in text.splitlines() if line.startswith('forebay_requests_total{operation="PutObject",status="2xx"}'))
    assert int(puts.split()[1]) >= 1
    assert text.count('forebay_drive_state{set="0"') == 4
    assert "\nforebay_scrub_running 0.0\n" in text
    status, cluster = admin(store, "cluster")
    assert status == 200
    assert (cluster["ready"], cluster["parity"], len(cluster["drives"])) == (True, 1, 4)
    assert {drive["state"] for drive in cluster["drives"]} == {"current"}
    assert admin(store, "drives")[1]["drives"][0]["free_bytes"] > 0
    assert admin(store, "node")[1]["workers"] == 2
    assert admin(store, "topology")[1]["sets"][0]["index"] == 0
    assert admin(store, "heal")[1]["running"] is False
    assert admin(store, "scrub")[1]["running"] is False
    assert admin(store, "nonsense")[0] == 404
    assert admin(store, "cluster", ("other-user", "other-secret"))[0] == 403
    assert fetch(store, "/forebay/nothing")[0] == 404


def test_a_lost_drive_is_refilled_and_scrubbed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    client = make_client(server)
    client.create_bucket(Bucket="bucket")
    for number in range(4):
        client.put_object(Bucket="bucket", Key=str(number), Body=os.urandom(400_000))
    client.close()
    server.kill()
    shutil.rmtree(server.drives[1])
    server.drives[1].mkdir()
    with ServerProcess(tmp_path) as again:

        def lost_drive() -> dict[str, Any]:
            return admin(again, "drives")[1]["drives"][1]

        assert admin(again, "heal", act={})[0] == 200
        wait_for(lambda: lost_drive()["state"] == "current")
        wait_for(lambda: lost_drive()["missing_shards"] == 0 and not lost_drive()["is_filling"])
        assert len([path for path in (again.drives[1] / "blobs").rglob("*") if path.is_file()]) == 4
        assert admin(again, "scrub", act={})[1]["running"] is True
        wait_for(lambda: not admin(again, "scrub")[1]["running"])
        scrub = admin(again, "scrub")[1]
        assert (scrub["blocks_checked"], scrub["blocks_bad"], scrub["records_bad"]) == (16, 0, 0)
        assert admin(again, "drives/replace", act={"set": 0, "position": 1})[0] == 400
        assert admin(again, "drives/replace", act={"set": 0})[0] == 400
        assert admin(again, "drives/replace", act={"set": 9, "position": 1})[0] == 400


def test_a_killed_worker_is_replaced_and_loses_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = make_client(server)
        client.create_bucket(Bucket="bucket")
        acknowledged = []
        done = threading.Event()

        def write() -> None:
            number = 0
            while not done.is_set():
                number += 1
                body = b"%d" % number * (1 if number % 2 else 40_000)
                try:
                    client.put_object(Bucket="bucket", Key=str(number), Body=body)
                except Exception:
                    continue  # its worker was killed: not acknowledged
                acknowledged.append((str(number), body))

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(3):
            enough = len(acknowledged) + 5
            wait_for(lambda enough=enough: len(acknowledged) > enough)
            victim = server.worker_pids()[0]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda pid=victim: not is_alive(pid) and len(server.worker_pids()) == 2 and pid not in server.worker_pids())
        done.set()
        thread.join()
        for key, body in acknowledged:
            assert client.get_object(Bucket="bucket", Key=key)["Body"].read() == body
        client.close()


@pytest.mark.parametrize("lost", [None, "contents", "folder"])
def test_kill_9_and_start_again(tmp_path: Path, lost: str | None) -> None:
    server = ServerProcess(tmp_path)
    client = make_client(server)
    client.create_bucket(Bucket="bucket")
    bodies = {f"k{number}": os.urandom(number * 30_000) for number in range(6)}
    for key, body in bodies.items():
        client.put_object(Bucket="bucket", Key=key, Body=body)
    client.close()
    server.kill()
    if lost:
        shutil.rmtree(server.drives[2])
    if lost == "contents":
        server.drives[2].mkdir()
    with ServerProcess(tmp_path) as again:
        client = make_client(again)
        for key, body in bodies.items():
            assert client.get_object(Bucket="bucket", Key=key)["Body"].read() == body
        client.close()


def start_and_fail(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "forebay.server", *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_two_servers_cannot_have_one_drive_or_one_port(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        code, text = start_and_fail("--address", "127.0.0.1:0", str(server.drives[0]), str(tmp_path / "other"))
        assert code == 2
        assert "in use by another Forebay server" in text
        assert not (tmp_path / "other").exists()
        code, text = start_and_fail("--address", f"127.0.0.1:{server.port}", str(tmp_path / "other"))
        assert code == 2
        assert "cannot listen" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "0.0.0.0:0", "d1"], "no credentials are set"),
        ([], "no drives"),
        (["--parity", "2", "d1", "d2"], "default_parity_count"),
    ],
)
def test_a_bad_start_changes_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    paths = [str(tmp_path / each) if each.startswith("d") else each for each in arguments]
    code, text = start_and_fail(*paths)
    assert code == 2
    assert message in text
    assert list(tmp_path.iterdir()) == []


def test_graceful_end_finishes_uploads(tmp_path: Path) -> None:
    size = 6_000_000
    with ServerProcess(tmp_path) as server:
        client = make_client(server)
        client.create_bucket(Bucket="bucket")
        client.close()
        headers = {"host": f"127.0.0.1:{server.port}", "content-length": str(size)}
        headers |= sign_request(
            Credentials(ACCESS_KEY, SECRET_KEY), "PUT", "/bucket/k", headers, payload_sha256="UNSIGNED-PAYLOAD", now_s=time.time()
        )
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
            wire.sendall(f"PUT /bucket/k HTTP/1.1\r\n{lines}\r\n".encode() + bytes(size // 2))
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            wire.sendall(bytes(size - size // 2))
            assert Answers(wire).next()[0] == 200
        assert server._end(20) == 0
    assert not list((tmp_path / "run").iterdir())
    with ServerProcess(tmp_path) as again:
        client = make_client(again)
        assert client.head_object(Bucket="bucket", Key="k")["ContentLength"] == size
        client.close()


def test_over_tls(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    with ServerProcess(tmp_path, extra=f'tls_cert = "{certificate}"\ntls_key = "{key}"') as server:
        assert any("https://" in line for line in server.lines)
        server.endpoint = f"https://127.0.0.1:{server.port}"
        client = make_client(server, verify=str(certificate))
        client.create_bucket(Bucket="bucket")
        for size in (0, 100, 200_000, 20_000_000):
            data = os.urandom(size)
            client.put_object(Bucket="bucket", Key="k", Body=data, ChecksumAlgorithm="CRC32C")  # in a trailer, over TLS
            got = client.get_object(Bucket="bucket", Key="k")
            assert got["Body"].read() == data
            assert "ContentEncoding" not in got
        client.close()


def test_a_worker_that_dies_while_it_starts_is_replaced_too(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        before = server.worker_pids()
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: set(server.worker_pids()) - set(before))
        (newcomer,) = set(server.worker_pids()) - set(before)
        os.kill(newcomer, signal.SIGKILL)
        wait_for(lambda: len(server.worker_pids()) == 2 and newcomer not in server.worker_pids())
        client = make_client(server)
        client.create_bucket(Bucket="bucket")
        client.close()


def test_a_folder_that_was_made_anew_is_locked_again(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    locks, others = FolderLocks(), FolderLocks()
    locks.lock([str(folder)])
    folder.rmdir()
    folder.mkdir()
    locks.lock([str(folder)])
    assert len(locks.fds) == 1
    with pytest.raises(ConfigError, match="in use by another"):
        others.lock([str(folder)], wait_s=0)
    locks.close()
    others.lock([str(folder)], wait_s=0)
    others.close()
