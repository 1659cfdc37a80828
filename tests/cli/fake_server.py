"""A stand-in for a server: the admin API's answers as a test wants them, over real HTTP, signatures checked by the real verifier."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forebay.errors import StoreError
from forebay.s3.request import Hosts, parse_request
from forebay.s3.sigv4 import Verifier

ACCESS_KEY, SECRET_KEY = "root-user", "root-password"


class FakeServer:
    """`answers["GET cluster"]` is a document, a list of documents given one after the other, or a StoreError's (status, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.ready = True
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, question: str, data: Any) -> Any:
        self.asked.append((question, data))
        found = self.answers[question]
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    verifier = Verifier({ACCESS_KEY: SECRET_KEY}.get, "us-east-1")

    def do_GET(self) -> None:
        if self.path.startswith("/forebay/health/"):
            self._send(200 if self.fake.ready else 503, {"status": "live"})
        else:
            self._admin()

    def do_POST(self) -> None:
        self._admin()

    def _admin(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        try:
            self.verifier.verify(parse_request(self.command, self.path.encode(), headers, Hosts(())), time.time())
            subject = self.path.split("?")[0].removeprefix("/forebay/admin/")
            self._send(200, self.fake.answer(f"{self.command} {subject}", json.loads(body or b"null")))
        except StoreError as error:
            self._send(403, f"<Error><Code>{error.code}</Code><Message>{error.message or 'no'}</Message></Error>")

    def _send(self, status: int, document: Any) -> None:
        data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """Runs in a thread."""
    fake = FakeServer()
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def drive(position: int, state: str = "current", **changes: Any) -> dict[str, Any]:
    """A drive's report as the server gives it."""
    return {
        "set": 0,
        "position": position,
        "path": f"/mnt/d{position + 1}",
        "state": state,
        "reason": "" if state == "current" else "no such folder",
        "drive_id": f"{position:032x}",
        "sequence": 7,
        "total_bytes": 1 << 40,
        "free_bytes": 1 << 39,
        "missing_shards": 0,
        "is_filling": False,
    } | changes


def cluster(*drives: dict[str, Any], ready: bool = True) -> dict[str, Any]:
    """The cluster's report."""
    shown = list(drives) or [drive(position) for position in range(4)]
    return {
        "deployment": "d" * 32,
        "version": "0.1.0",
        "region": "us-east-1",
        "ready": ready,
        "nodes": 1,
        "sets": 1,
        "drives_per_set": 4,
        "parity": 1,
        "write_quorum": 3,
        "drives": shown,
    }


def heal(**changes: Any) -> dict[str, Any]:
    """The report on healing: nothing to do."""
    names = ("drives_waiting", "blobs_done", "blobs_total", "bytes_done", "bytes_total", "failed", "started_s", "finished_s")
    return {"running": False} | dict.fromkeys(names, 0) | changes


def scrub(**changes: Any) -> dict[str, Any]:
    """The report on scrubbing: a clean one ended."""
    return {
        "running": False,
        "started_s": 1.7e9,
        "finished_s": 1.7e9 + 60,
        "records_checked": 12,
        "records_bad": 0,
        "blocks_checked": 40,
        "blocks_bad": 0,
        "bytes_checked": 40 << 20,
        "bytes_total": 40 << 20,
        "next_s": 1.8e9,
    } | changes
