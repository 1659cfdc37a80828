"""A store started by its command line over four folders, as a user starts it; for tests of clients and of commands."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config

from certificates import write_certificate

ACCESS_KEY, SECRET_KEY = "interop-root", "interop/Secret+key=1"  # characters that clients have to escape
START_TIMEOUT_S, END_TIMEOUT_S = 30.0, 45.0


@dataclass
class Store:
    """Where the server listens, and its processes."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    drives: list[Path]
    host: str = "127.0.0.1"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = "us-east-1"
    certificate: Path | None = None  # with one, the store speaks TLS

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.host}:{self.port}"

    def boto(self, **config: object) -> object:
        options = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}} | config
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            verify=str(self.certificate) if self.certificate else None,
            config=Config(**options),
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _wait_ready(store: Store) -> None:
    trust = ssl.create_default_context(cafile=str(store.certificate)) if store.certificate else None
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up and store.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{store.endpoint}/forebay/health/ready", timeout=5, context=trust) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become ready:\n{store.log.read_text()}")


@contextmanager
def running_store(folder: Path, *options: str, tls: bool = False) -> Iterator[Store]:
    """Four drives below `folder`. Ends it by its process on leaving, which must take it well."""
    port = _free_port()
    drives = [folder / f"drive{number}" for number in range(1, 5)]
    command = [sys.executable, "-m", "forebay.cli", "server", *map(str, drives), "--address", f"127.0.0.1:{port}", *options]
    certificate = None
    if tls:
        certificate, key = write_certificate(folder)
        command += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, "FOREBAY_ROOT_USER": ACCESS_KEY, "FOREBAY_ROOT_PASSWORD": SECRET_KEY},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    store = Store(port, process, log, drives, certificate=certificate)
    try:
        _wait_ready(store)
        yield store
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert code == 0, log.read_text()
