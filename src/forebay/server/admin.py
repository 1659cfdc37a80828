"""What is served under /forebay/: health, metrics, and the admin API.

Health and metrics are open, as probes and scrapers cannot sign. The admin API takes and gives JSON, is signed like S3 requests, and
is for root only. Its questions are answered by the supervisor, which owns the drives' background work:

    GET  /forebay/admin/<subject>     ask            POST /forebay/admin/<subject>     act (a JSON object as body)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from forebay.errors import StoreError
from forebay.s3.checksums import PayloadCheck
from forebay.s3.chunked import open_body
from forebay.s3.request import Request
from forebay.s3.sigv4 import Verified
from forebay.server.exchange import Answer, Exchange
from forebay.server.message import Response
from forebay.server.metrics import Gauge, render
from forebay.server.services import Identity, Services

ADMIN_BUCKET = "forebay"  # the first segment of the path
DOCUMENT_BYTES_MAX = 64 << 10
JSON = {"Content-Type": "application/json", "Cache-Control": "no-store"}
TEXT = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store"}

_STATES = ("offline", "stale", "syncing", "current")
_DRIVE_GAUGES: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
    ("forebay_drive_state", "0 offline, 1 stale, 2 syncing, 3 current.", lambda drive: _STATES.index(drive["state"])),
    ("forebay_drive_total_bytes", "Size of the drive's filesystem.", lambda drive: drive["total_bytes"]),
    ("forebay_drive_free_bytes", "What new data may still take.", lambda drive: drive["free_bytes"]),
    ("forebay_drive_missing_shards", "Shards known to be missing or damaged.", lambda drive: drive["missing_shards"]),
)
_HEAL_GAUGES = (
    ("forebay_heal_running", "Whether shards are being rebuilt.", "running"),
    ("forebay_heal_failed_blobs", "Blobs that the last pass could not rebuild.", "failed"),
)
_SCRUB_GAUGES = (
    ("forebay_scrub_running", "Whether a scrub is under way.", "running"),
    ("forebay_scrub_bad_blocks", "Damaged or missing blocks that the last scrub found.", "blocks_bad"),
    ("forebay_scrub_bad_records", "Damaged index records that the last scrub found.", "records_bad"),
    ("forebay_scrub_finished_seconds", "When the last scrub ended, Unix time.", "finished_s"),
)

Ask = Callable[[str, Any], Awaitable[Any]]
Identify = Callable[[Request], tuple[Identity, Verified]]


class Admin:
    """Serves /forebay/ in one worker. `ask(question, data)` reaches the supervisor."""

    def __init__(self, services: Services, run_dir: str, identify: Identify, ask: Ask) -> None:
        self._services = services
        self._run_dir = run_dir
        self._identify = identify
        self._ask = ask

    def handle(self, exchange: Exchange, request: Request) -> Answer:
        """Answer one request. Raises StoreError."""
        if request.key is None:
            raise StoreError("InvalidBucketName", f"The name {ADMIN_BUCKET} is reserved.", BucketName=ADMIN_BUCKET)
        path = request.key
        if path.startswith("admin/"):
            return self._admin(exchange, request, path.removeprefix("admin/"))
        if request.method not in ("GET", "HEAD"):
            raise StoreError("MethodNotAllowed", headers={"Allow": "GET, HEAD"})
        if path == "health/live":
            return _json({"status": "live"})
        if path == "health/ready":
            ready = self._services.engine.ready()
            return _json({"status": "ready" if ready else "not ready"}, 200 if ready else 503)
        if path == "metrics":
            return self._metrics()
        raise StoreError("NoSuchKey", f"There is nothing at /forebay/{path}.")

    async def _metrics(self) -> Response:
        try:
            drives = (await self._ask("GET drives", {}))["drives"]
            heal, scrub = await self._ask("GET heal", {}), await self._ask("GET scrub", {})
        except ConnectionError as error:
            raise StoreError("ServiceUnavailable", "The server is stopping.") from error
        gauges = [
            Gauge("forebay_ready", "Whether a write would succeed now.", [({}, float(self._services.engine.ready()))]),
            *(_drive_gauge(name, text, drives, value) for name, text, value in _DRIVE_GAUGES),
            *(Gauge(name, text, [({}, float(heal[field]))]) for name, text, field in _HEAL_GAUGES),
            *(Gauge(name, text, [({}, float(scrub[field]))]) for name, text, field in _SCRUB_GAUGES),
        ]
        return Response(200, TEXT, render(self._run_dir, gauges).encode())

    def _admin(self, exchange: Exchange, request: Request, subject: str) -> Answer:
        identity, verified = self._identify(request)
        if not identity.is_root:
            raise StoreError("AccessDenied", "The admin API is for the root credentials.")
        if request.method not in ("GET", "POST"):
            raise StoreError("MethodNotAllowed", headers={"Allow": "GET, POST"})
        return self._relay(exchange, request, verified, subject)

    async def _relay(self, exchange: Exchange, request: Request, verified: Verified, subject: str) -> Response:
        check = PayloadCheck(request.headers, verified.payload_sha256)
        body = open_body(request, verified)
        document = await exchange.read_body(body, DOCUMENT_BYTES_MAX)
        check.update(document)
        check.finish(body.trailers)
        data: dict[str, Any] = dict(request.params)
        if document:
            try:
                data.update(msgspec.json.decode(document, type=dict[str, Any]))
            except msgspec.DecodeError as error:
                raise StoreError("InvalidRequest", f"The body is not a JSON object: {error}") from error
        try:
            return _json(await self._ask(f"{request.method} {subject}", data))
        except ConnectionError as error:
            raise StoreError("ServiceUnavailable", "The server is stopping.") from error


def _drive_gauge(name: str, text: str, drives: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> Gauge:
    return Gauge(name, text, [({"set": str(each["set"]), "position": str(each["position"])}, float(value(each))) for each in drives])


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, JSON, msgspec.json.encode(value) + b"\n")
