"""One store for all clients, started by its command line over four folders, and the content that they move."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop_store import ACCESS_KEY, MIB, SECRET_KEY, Programs, Store, free_port, wait_ready


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    port = free_port()
    drives = [str(folder / f"drive{number}") for number in range(1, 5)]
    command = [sys.executable, "-m", "forebay.cli", "server", *drives, "--address", f"127.0.0.1:{port}", "--domain", "localhost"]
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, "FOREBAY_ROOT_USER": ACCESS_KEY, "FOREBAY_ROOT_PASSWORD": SECRET_KEY},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    started = Store(port, process, log)
    try:
        wait_ready(started)
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(45)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert code == 0, log.read_text()
    assert " ERROR " not in log.read_text(), log.read_text()


@pytest.fixture
def bucket(store: Store) -> str:
    """A new, empty bucket."""
    name = f"interop-{uuid.uuid4().hex[:12]}"
    store.boto().create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def small() -> bytes:
    return random.Random(1).randbytes(5 * 1024 + 7)


@pytest.fixture(scope="session")
def large() -> bytes:
    """More than the 64 MiB at which several clients change how they upload; not a multiple of anything."""
    return random.Random(2).randbytes(66 * MIB + 12_345)


@pytest.fixture(scope="session")
def large_file(large: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("content") / "large.bin"
    path.write_bytes(large)
    return path


@pytest.fixture
def programs(store: Store, tmp_path: Path) -> Programs:
    home = tmp_path / "home"
    home.mkdir()
    return Programs(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": store.access_key,
            "AWS_SECRET_ACCESS_KEY": store.secret_key,
            "AWS_REGION": store.region,
            "AWS_DEFAULT_REGION": store.region,
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # a fault must not hide behind a retry
            "S3_ENDPOINT_URL": store.endpoint,
        }
    )


@pytest.fixture
def s3cmd_config(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "s3cfg"
    path.write_text(
        f"[default]\naccess_key = {store.access_key}\nsecret_key = {store.secret_key}\nhost_base = {store.host}:{store.port}\n"
        f"host_bucket = {store.host}:{store.port}\nuse_https = False\nbucket_location = {store.region}\n"
    )
    return path
