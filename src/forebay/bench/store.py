"""The store under test: one that runs already, or one started over temporary folders for the length of a run."""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote
from xml.sax.saxutils import unescape

import msgspec

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.proctree import cpu_seconds_of, peak_resident_bytes_of, server_roots
from forebay.bench.wire import Connection, Endpoint, element

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
REMOVE_BATCH_KEYS = 1000


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """How a store spreads an object.

    `data` blocks and `parity` blocks a stripe. A plain folder or an unknown store is 1 + 0.
    """

    data: int = 1
    parity: int = 0

    @property
    def write_factor(self) -> float:
        """Bytes written for a byte stored."""
        return (self.data + self.parity) / self.data

    def __str__(self) -> str:
        """`3+1`."""
        return f"{self.data}+{self.parity}"


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """A store that answers, and what is known of it."""

    endpoint: Endpoint
    geometry: Geometry | None  # None: the store does not say and nobody told us
    process_roots: frozenset[int]  # empty: not on this host, or not ours to see
    started_here: bool
    limit_folder: Path | None  # a folder on the drives' filesystem; None: its limits cannot be measured here
    said: dict[str, Any]  # what it reports of itself

    def facts(self) -> list[tuple[str, str]]:
        """What a reader should know of it, as it reports it."""
        names = ("version", "sets", "drives_per_set", "parity", "write_quorum", "workers", "buffer_bytes")
        return [(f"store's {name.replace('_', ' ')}", str(self.said[name])) for name in names if name in self.said]

    def cpu_seconds(self) -> float | None:
        """CPU seconds of its processes so far, or None."""
        return cpu_seconds_of(set(self.process_roots)) if self.process_roots else None

    def peak_resident_bytes(self) -> int | None:
        """The sum of its processes' peak resident memory so far, or None."""
        return peak_resident_bytes_of(set(self.process_roots)) if self.process_roots else None


def running_store(endpoint: Endpoint, geometry: Geometry | None, limit_folder: Path | None) -> Store:
    """A store that somebody else runs at `endpoint`; what it does not say of itself is taken from the arguments.

    Raises BenchmarkFailed when nothing listens there.
    """
    try:
        socket.create_connection((endpoint.host, endpoint.port), 10).close()
    except OSError as error:
        raise BenchmarkFailed(
            f"nothing answers at {endpoint.url} ({error.strerror or error}); start a store there, "
            "or let the benchmark start one with --drives N"
        ) from error
    roots = frozenset(server_roots(endpoint.host, endpoint.port))
    said = what_it_says(endpoint)
    return Store(
        endpoint=endpoint,
        geometry=geometry or _geometry_said(said),
        process_roots=roots,
        started_here=False,
        limit_folder=limit_folder or (_drives_folder(said) if roots else None),
        said=said,
    )


@contextmanager
def temporary_store(folder: Path, drives: int, parity: int | None, workers: int | None) -> Iterator[Store]:
    """A `forebay server` over `drives` new folders below `folder`; it is stopped and its data removed on leaving.

    Raises BenchmarkFailed with the server's last words when it does not become ready.
    """
    root = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=folder))
    try:
        paths = [root / f"drive{i}" for i in range(drives)]
        for path in paths:
            path.mkdir()
        with _server(paths, root, parity, workers) as (process, endpoint):
            said = what_it_says(endpoint)
            yield Store(
                endpoint=endpoint,
                geometry=_geometry_said(said),
                process_roots=frozenset({process.pid}),
                started_here=True,
                limit_folder=root,
                said=said,
            )
    finally:
        shutil.rmtree(root)


def what_it_says(endpoint: Endpoint) -> dict[str, Any]:
    """What a Forebay says of itself to its root user (`/forebay/admin/cluster` and `/node`); empty for any other store."""
    connection = Connection(endpoint)
    said: dict[str, Any] = {}
    try:
        for subject in ("cluster", "node"):
            said |= msgspec.json.decode(connection.request("GET", f"/forebay/admin/{subject}", expect=(200,)).body)
    except (BenchmarkFailed, msgspec.DecodeError):  # another store, or keys that are not root's
        return {}
    finally:
        connection.close()
    return said


def _geometry_said(said: dict[str, Any]) -> Geometry | None:
    if "drives_per_set" not in said:
        return None
    return Geometry(data=said["drives_per_set"] - said["parity"], parity=said["parity"])


def _drives_folder(said: dict[str, Any]) -> Path | None:
    """A folder beside the first drive, on its filesystem, that can be written to."""
    for drive in said.get("drives", []):
        path = Path(drive.get("path") or "/nonexistent")
        if path.is_dir():
            beside = path.parent if path.parent.stat().st_dev == path.stat().st_dev else path
            return beside if os.access(beside, os.W_OK) else None
    return None


@contextmanager
def _server(paths: list[Path], root: Path, parity: int | None, workers: int | None) -> Iterator[tuple[subprocess.Popen[bytes], Endpoint]]:
    port = _free_port()
    user, password = f"bench{secrets.token_hex(4)}", secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "forebay.server", *map(str, paths), "--address", f"127.0.0.1:{port}"]
    command += [] if parity is None else ["--parity", str(parity)]
    command += [] if workers is None else ["--workers", str(workers)]
    environment = {**os.environ, "FOREBAY_ROOT_USER": user, "FOREBAY_ROOT_PASSWORD": password}
    with (root / "server.log").open("w+b") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_ready(process, port, log)
            yield process, Endpoint(host="127.0.0.1", port=port, access_key=user, secret_key=password)
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/forebay/health/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:  # not listening yet
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    log.seek(0)
    words = log.read()[-4000:].decode(errors="replace").strip()
    state = "is not ready" if process.poll() is None else f"ended with exit code {process.returncode}"
    raise BenchmarkFailed(f"the server that this benchmark started {state}:\n{words}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def bucket_for_run(endpoint: Endpoint, bucket: str | None, *, keep: bool = False) -> Iterator[str]:
    """The bucket to work in: `bucket`, which must exist and stays, or a new one.

    A new one is emptied and removed afterwards, unless `keep` says that the whole store goes anyway.
    """
    if bucket is not None:
        yield bucket
        return
    name = f"forebay-bench-{secrets.token_hex(4)}"
    connection = Connection(endpoint)
    connection.request("PUT", f"/{name}")
    connection.close()
    try:
        yield name
    except BaseException as error:
        try:
            if not keep:
                _remove_bucket(endpoint, name)
        except (OSError, BenchmarkFailed):  # the store may be what failed; its error matters more
            error.add_note(f"the bucket {name} could not be removed")
        raise
    if not keep:
        _remove_bucket(endpoint, name)


def _remove_bucket(endpoint: Endpoint, bucket: str) -> None:
    connection = Connection(endpoint)
    remove_keys(connection, bucket, "")
    connection.request("DELETE", f"/{bucket}")
    connection.close()


def remove_keys(connection: Connection, bucket: str, prefix: str) -> int:
    """Delete every key below `prefix`, a thousand at a time. Returns how many."""
    removed = 0
    while True:
        query = f"list-type=2&max-keys={REMOVE_BATCH_KEYS}&prefix={quote(prefix, safe='')}"
        page = connection.request("GET", f"/{bucket}", query).body
        keys = [part.split(b"</Key>")[0] for part in page.split(b"<Key>")[1:]]
        if not keys:
            return removed
        objects = b"".join(b"<Object><Key>" + key + b"</Key></Object>" for key in keys)
        body = b"<Delete><Quiet>true</Quiet>" + objects + b"</Delete>"
        answer = connection.request("POST", f"/{bucket}", "delete=", body=body).body
        if (code := element(answer, "Code")) is not None:
            raise BenchmarkFailed(f"deleting what the benchmark wrote to {bucket} failed: {code}")
        removed += len(keys)


def key_sizes(connection: Connection, bucket: str, prefix: str) -> list[int]:
    """The sizes of all keys below `prefix`."""
    sizes: list[int] = []
    last = ""
    while True:
        query = f"list-type=2&max-keys={REMOVE_BATCH_KEYS}&prefix={quote(prefix, safe='')}&start-after={quote(last, safe='')}"
        page = connection.request("GET", f"/{bucket}", query).body
        sizes += [int(part.split(b"</Size>")[0]) for part in page.split(b"<Size>")[1:]]
        keys = [part.split(b"</Key>")[0].decode() for part in page.split(b"<Key>")[1:]]
        if not keys:
            return sizes
        last = unescape(keys[-1])
