"""A small S3 in this process, over loopback, whose N-th request can be made to fail: for the library's tests.

It keeps one bucket in memory and does what the library asks for: conditional puts, ranges, listings with delimiter, bulk delete,
multipart uploads with checksums and copied parts. It checks signatures only for being there; the store's own tests do that.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from forebay.codec import crc64nvme


@dataclass
class Stored:
    data: bytes
    etag: str
    modified_s: float = field(default_factory=time.time)


@dataclass
class Upload:
    key: str
    started_s: float
    parts: dict[int, Stored] = field(default_factory=dict)


@dataclass
class Fault:
    """What happens to the request of this number (from 0): `status` instead of an answer, or the connection is cut.

    `cut`: `before` the request is carried out, `after` it was (the answer is lost), or `middle` of the answer's body. `times`: how
    many requests from there on.
    """

    number: int
    status: int | None = None
    cut: str | None = None
    times: int = 1


class FakeS3:
    """Start with `with FakeS3() as s3:`; `s3.options` are those for `locations.s3.S3`."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[str] = []
        self.bytes_received = 0
        self.fault: Fault | None = None
        self.on_request: Callable[[int, str], None] | None = None
        self.knows_checksums = True
        self.lock = threading.RLock()
        self._etags = 0
        fake = self

        class Handler(_Handler):
            s3 = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FakeS3:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "access_key": "AKTEST", "secret_key": "very-secret-key", "retry_s": 2.0, "read_timeout_s": 5.0}

    def next_etag(self) -> str:
        with self.lock:
            self._etags += 1
            return f'"{self._etags:032x}"'

    def reset_requests(self, fault: Fault | None = None) -> None:
        with self.lock:
            self.requests, self.bytes_received, self.fault = [], 0, fault


class _Cut(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    s3: FakeS3

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        path = urllib.parse.unquote(url.path).lstrip("/")
        self.key = path.partition("/")[2]
        with self.s3.lock:
            number = len(self.s3.requests)
            self.s3.requests.append(f"{self.command} {self.path}")
            self.s3.bytes_received += len(body)
            fault = self.s3.fault
        if self.s3.on_request is not None:
            self.s3.on_request(number, self.command)
        active = fault if fault is not None and fault.number <= number < fault.number + fault.times else None
        self.cut_middle = active is not None and active.cut == "middle"
        if active is not None and active.cut == "before":
            self.close_connection = True
            return
        if active is not None and active.status is not None:
            self._error(active.status, "InternalError" if active.status >= 500 else "AccessDenied")
            return
        if "authorization" not in self.headers:
            self._error(403, "AccessDenied")
            return
        if active is not None and active.cut == "after":
            self.wfile.write = lambda data: len(data)  # type: ignore[method-assign]
            self.close_connection = True
        with self.s3.lock:
            answer = getattr(self, f"_{self.command.lower()}")(body)
        self._send(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.cut_middle:
            self.close_connection = True
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self.cut_middle = False
        self._send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as asked</Message></Error>".encode())

    def _fail(self, status: int, code: str) -> tuple[int, bytes]:
        return status, f"<Error><Code>{code}</Code><Message>fake</Message></Error>".encode()

    def _get(self, _: bytes) -> tuple[Any, ...]:
        if not self.key:
            return self._list_uploads() if "uploads" in self.query else self._list()
        stored = self.s3.objects.get(self.key)
        if stored is None:
            return self._fail(404, "NoSuchKey")
        data, headers = stored.data, {"etag": stored.etag}
        asked = self.headers.get("range")
        if asked is None:
            return 200, data, headers
        first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self._fail(416, "InvalidRange")
        last = min(last, len(data) - 1)
        return 206, data[first : last + 1], {**headers, "content-range": f"bytes {first}-{last}/{len(data)}"}

    def _head(self, _: bytes) -> tuple[Any, ...]:
        stored = self.s3.objects.get(self.key)
        if stored is None:
            return 404, b""
        return 200, b"", {
            "etag": stored.etag, "content-length": str(len(stored.data)),
            "last-modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(stored.modified_s)),
        }  # fmt: skip

    def _put(self, body: bytes) -> tuple[Any, ...]:
        if "uploadId" in self.query:
            return self._put_part(body)
        bad = self._bad_body(body)
        present = self.s3.objects.get(self.key)
        if bad:
            return self._fail(400, bad)
        if self.headers.get("if-none-match") == "*" and present is not None:
            return self._fail(412, "PreconditionFailed")
        wanted = self.headers.get("if-match")
        if wanted is not None and (present is None or present.etag != wanted):
            return self._fail(412 if present else 404, "PreconditionFailed" if present else "NoSuchKey")
        self.s3.objects[self.key] = Stored(body, self.s3.next_etag())
        return 200, b"", {"etag": self.s3.objects[self.key].etag}

    def _bad_body(self, body: bytes) -> str:
        crc = self.headers.get("x-amz-checksum-crc64nvme")
        if crc is not None and base64.b64decode(crc) != crc64nvme(body).to_bytes(8, "big"):
            return "BadDigest"
        sha256 = self.headers.get("x-amz-content-sha256", "")
        if sha256 != "UNSIGNED-PAYLOAD" and sha256 != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        return ""

    def _put_part(self, body: bytes) -> tuple[Any, ...]:
        upload = self.s3.uploads.get(self.query["uploadId"])
        if upload is None:
            return self._fail(404, "NoSuchUpload")
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            stored = self.s3.objects.get(urllib.parse.unquote(source).lstrip("/").partition("/")[2])
            if stored is None or stored.etag != self.headers.get("x-amz-copy-source-if-match", stored.etag):
                return self._fail(412, "PreconditionFailed")
            first, last = (int(n) for n in self.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-"))
            body = stored.data[first : last + 1]
        elif bad := self._bad_body(body):
            return self._fail(400, bad)
        part = Stored(body, self.s3.next_etag())
        upload.parts[int(self.query["partNumber"])] = part
        result = f"<CopyPartResult><ETag>{escape(part.etag)}</ETag></CopyPartResult>".encode() if source else b""
        return 200, result, {"etag": part.etag}

    def _post(self, body: bytes) -> tuple[Any, ...]:
        if "delete" in self.query:
            for element in ElementTree.fromstring(body).iter("Key"):
                self.s3.objects.pop(element.text or "", None)
            return 200, b"<DeleteResult/>"
        if "uploads" in self.query:
            if "x-amz-checksum-algorithm" in self.headers and not self.s3.knows_checksums:
                return self._fail(400, "InvalidArgument")
            upload_id = f"upload-{len(self.s3.uploads)}-{self.s3.next_etag()[-9:-1]}"
            self.s3.uploads[upload_id] = Upload(self.key, time.time())
            return 200, f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>".encode()
        upload = self.s3.uploads.get(self.query["uploadId"])
        if upload is None:
            return self._fail(404, "NoSuchUpload")
        listed = [(int(p.findtext("PartNumber")), p.findtext("ETag")) for p in ElementTree.fromstring(body).iter("Part")]
        if [(n, upload.parts[n].etag) for n in sorted(upload.parts)] != listed:
            return self._fail(400, "InvalidPart")
        if any(len(upload.parts[n].data) < 5 * 2**20 for n, _ in listed[:-1]):
            return self._fail(400, "EntityTooSmall")
        etag = self.s3.next_etag()
        self.s3.objects[upload.key] = Stored(b"".join(upload.parts[n].data for n, _ in listed), etag)
        del self.s3.uploads[self.query["uploadId"]]
        return 200, f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>".encode()

    def _delete(self, _: bytes) -> tuple[Any, ...]:
        if "uploadId" in self.query:
            return (204,) if self.s3.uploads.pop(self.query["uploadId"], None) else self._fail(404, "NoSuchUpload")
        self.s3.objects.pop(self.key, None)
        return (204,)

    def _list(self) -> tuple[int, bytes]:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        after, page = self.query.get("continuation-token", ""), 3  # pages are short, so that their joints are tested
        contents, folders, token = [], [], ""
        for key in sorted(k for k in self.s3.objects if k.startswith(prefix)):
            rest = key[len(prefix) :]
            folder = prefix + rest.split(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
            if (folder or key) <= after or folder in folders:
                continue
            if len(contents) + len(folders) == page:
                token = max([*folders, *(k for k in contents)])
                break
            folders.append(folder) if folder else contents.append(key)
        items = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(self.s3.objects[k].data)}</Size><ETag>{escape(self.s3.objects[k].etag)}</ETag>"
            f"<LastModified>{_iso(self.s3.objects[k].modified_s)}</LastModified></Contents>"
            for k in contents
        )
        items += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return 200, f"<ListBucketResult>{items}{more}</ListBucketResult>".encode()

    def _list_uploads(self) -> tuple[int, bytes]:
        prefix = self.query.get("prefix", "")
        items = "".join(
            f"<Upload><Key>{escape(u.key)}</Key><UploadId>{i}</UploadId><Initiated>{_iso(u.started_s)}</Initiated></Upload>"
            for i, u in self.s3.uploads.items()
            if u.key.startswith(prefix)
        )
        return 200, f"<ListMultipartUploadsResult>{items}</ListMultipartUploadsResult>".encode()


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
