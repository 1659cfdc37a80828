"""Amazon S3 and what speaks like it, Forebay's own store among them.

A client of our own, because three things that pay are in no client that Python has: bytes go from and to the caller's buffers without a
copy; each part carries the CRC64NVME that the server checks, instead of a SHA-256 or nothing; and parts can be copied on the server
(UploadPartCopy), which saves a checkpoint that has hardly changed without sending it. It does what a checkpoint needs and no more.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from forebay.codec import crc64nvme
from forebay.errors import LocationError, LocationUnavailable, ObjectMissing, PreconditionFailed
from forebay.locations.interface import Absent, Buffer, Condition, Entry, Listing, Location
from forebay.locations.keys import check_key, join_prefix
from forebay.locations.s3_bucket import UNSIGNED, Bucket, children, error_code, options_from, parse_answer, text_of
from forebay.locations.signing import uri_encode
from forebay.locations.wire import RETRY_STATUSES, Answer, Failure, read_all

DELETE_KEYS_MAX = 1000
"""S3's limit of keys in one DeleteObjects."""


class S3:
    """The location of a bucket, or of a prefix in it. See `locations.interface.Location` for the methods."""

    part_bytes = 32 * 2**20
    part_bytes_min = 5 * 2**20
    streams = 8
    direct_io = False

    def __init__(self, bucket: str | Bucket, prefix: str = "", **options: Any) -> None:
        """`options` are those of `S3Options`."""
        self._bucket = bucket if isinstance(bucket, Bucket) else Bucket(bucket, options_from(options))
        self._prefix = join_prefix(prefix)
        self.url = self._bucket.url(self._prefix)

    def __repr__(self) -> str:
        """The URL."""
        return f"S3({self.url!r})"

    @property
    def copies_parts(self) -> bool:
        """UploadPartCopy is part of S3; a store that lacks it is found out at the first copy."""
        return True

    def child(self, prefix: str) -> S3:
        """See `Location`."""
        return type(self)(self._bucket, join_prefix(self._prefix, prefix))

    def put(self, key: str, data: Buffer, condition: Condition = None) -> str:
        """See `Location`."""
        full, headers = self._key(key), _condition_headers(condition)
        payload_hash = hashlib.sha256(data).hexdigest()
        answer = self._bucket.ask("put", "PUT", full, {}, headers, [data], payload_hash)
        try:
            return _etag(self._bucket.check("put", full, answer))
        except PreconditionFailed:
            # The first answer to this very put may have been lost, and the retry have met what it wrote.
            stored = self._stored(key, data)
            if stored is None:
                raise
            return stored

    def get(self, key: str) -> tuple[bytes, str]:
        """See `Location`."""
        full = self._key(key)
        answer = self._bucket.check("get", full, self._bucket.ask("get", "GET", full))
        return answer.body, _etag(answer)

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """See `Location`. What a broken connection brought is kept, and the rest asked for."""
        full, done = self._key(key), 0
        if not len(view):
            return
        for one in self._bucket.wire.tries("read", self._bucket.url(full)):
            headers = {"range": f"bytes={offset + done}-{offset + len(view) - 1}"}
            request = self._bucket.request("GET", full, {}, headers)
            try:
                with self._bucket.wire.exchange(request) as response:
                    if response.status == 206:
                        self._check_range(full, offset + done, response.headers.get("content-range", ""))
                        done += _receive(response, view[done:])
                        one.failed(f"the connection ended {len(view) - done} bytes early")
                    else:
                        answer = read_all(request, response)
                        if answer.status not in RETRY_STATUSES:
                            raise self._range_error(full, answer, offset, len(view))
                        one.failed(f"status {answer.status} {error_code(answer)}")
            except Failure as error:
                one.failed(error)
            if done == len(view):
                return

    def head(self, key: str) -> Entry | None:
        """See `Location`."""
        full = self._key(key)
        answer = self._bucket.ask("head", "HEAD", full)
        if answer.status == 404:
            return None
        headers = self._bucket.check("head", full, answer).headers
        modified = parsedate_to_datetime(headers["last-modified"]).timestamp() if "last-modified" in headers else 0.0
        return Entry(key, int(headers["content-length"]), _etag(answer), modified)

    def list_folder(self, prefix: str = "") -> Listing:
        """See `Location`."""
        objects: list[Entry] = []
        folders: list[str] = []
        for page in self._pages(self._folder(prefix), {"delimiter": "/"}):
            objects += self._entries(page)
            folders += [text_of(item, "Prefix").rstrip("/").rsplit("/", 1)[-1] for item in children(page, "CommonPrefixes")]
        return Listing(tuple(sorted(objects, key=lambda entry: entry.key)), tuple(sorted(set(folders))))

    def walk(self, prefix: str = "") -> Iterator[Entry]:
        """See `Location`."""
        for page in self._pages(self._folder(prefix), {}):
            yield from self._entries(page)

    def delete(self, keys: Iterable[str]) -> None:
        """See `Location`."""
        batch: list[str] = []
        for key in keys:
            batch.append(self._key(key))
            if len(batch) == DELETE_KEYS_MAX:
                self._delete(batch)
                batch = []
        if batch:
            self._delete(batch)

    def upload(self, key: str, size_bytes: int, part_bytes: int) -> S3Upload:
        """See `Location`."""
        return S3Upload(self._bucket, self._key(key), key, size_bytes, part_bytes)

    def sweep_uploads(self, prefix: str, before_s: float) -> int:
        """See `Location`."""
        swept, query = 0, {"uploads": "", "prefix": self._folder(prefix)}
        while True:
            answer = self._bucket.check("list uploads", "", self._bucket.ask("list uploads", "GET", "", query))
            page = parse_answer(self._bucket, "list uploads", "", answer)
            for upload in children(page, "Upload"):
                if _time(text_of(upload, "Initiated")) < before_s:
                    swept += self._abort(text_of(upload, "Key"), text_of(upload, "UploadId"))
            if text_of(page, "IsTruncated") != "true":
                return swept
            query["key-marker"] = text_of(page, "NextKeyMarker")
            query["upload-id-marker"] = text_of(page, "NextUploadIdMarker")

    def close(self) -> None:
        """See `Location`."""
        self._bucket.wire.close()

    def _key(self, key: str) -> str:
        return join_prefix(self._prefix, check_key(key))

    def _folder(self, prefix: str) -> str:
        folder = join_prefix(self._prefix, prefix)
        return f"{folder}/" if folder else ""

    def _stored(self, key: str, data: Buffer) -> str | None:
        """The entity tag of the object, if it is these very bytes."""
        try:
            found, etag = self.get(key)
        except ObjectMissing:
            return None
        return etag if found == data else None

    def _check_range(self, full: str, offset: int, content_range: str) -> None:
        if not content_range.startswith(f"bytes {offset}-"):
            raise LocationUnavailable("read", self._bucket.url(full), f"asked for bytes from {offset}, was sent {content_range!r}")

    def _range_error(self, full: str, answer: Answer, offset: int, length: int) -> LocationError:
        if answer.status in (200, 416):
            return LocationError("read", self._bucket.url(full), f"no bytes {offset} to {offset + length}: status {answer.status}")
        return self._bucket.error("read", full, answer)

    def _pages(self, prefix: str, more: Mapping[str, str]) -> Iterator[ElementTree.Element]:
        query = {"list-type": "2", "prefix": prefix, **more}
        while True:
            answer = self._bucket.check("list", prefix, self._bucket.ask("list", "GET", "", query))
            page = parse_answer(self._bucket, "list", prefix, answer)
            yield page
            token = text_of(page, "NextContinuationToken")
            if text_of(page, "IsTruncated") != "true" or not token:
                return
            query["continuation-token"] = token

    def _entries(self, page: ElementTree.Element) -> list[Entry]:
        skip = len(self._prefix) + 1 if self._prefix else 0
        return [
            Entry(
                text_of(item, "Key")[skip:],
                int(text_of(item, "Size", "0")),
                text_of(item, "ETag"),
                _time(text_of(item, "LastModified")),
            )
            for item in children(page, "Contents")
            if not text_of(item, "Key").endswith("/")  # the empty objects that consoles make for folders
        ]

    def _delete(self, keys: list[str]) -> None:
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        body = f"<Delete><Quiet>true</Quiet>{listed}</Delete>".encode()
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()  # S3 demands it
        headers = {"content-md5": md5, "content-type": "application/xml"}
        answer = self._bucket.ask("delete", "POST", "", {"delete": ""}, headers, [body], hashlib.sha256(body).hexdigest())
        if answer.status == 501:
            for key in keys:
                single = self._bucket.ask("delete", "DELETE", key)
                if single.status != 404:
                    self._bucket.check("delete", key, single)
            return
        page = parse_answer(self._bucket, "delete", keys[0], self._bucket.check("delete", keys[0], answer))
        for error in children(page, "Error"):
            if text_of(error, "Code") != "NoSuchKey":
                raise LocationError(
                    "delete", self._bucket.url(text_of(error, "Key")), f"{text_of(error, 'Code')}: {text_of(error, 'Message')}"
                )

    def _abort(self, full: str, upload_id: str) -> bool:
        answer = self._bucket.ask("abort", "DELETE", full, {"uploadId": upload_id})
        if answer.status == 404:
            return False  # someone else ended it
        self._bucket.check("abort", full, answer)
        return True


class S3Upload:
    """A multipart upload; an object of one part is a plain put. See `locations.interface.Upload`."""

    _checksums = True

    def __init__(self, bucket: Bucket, full: str, key: str, size_bytes: int, part_bytes: int) -> None:
        self._bucket, self._full, self._key = bucket, full, key
        self._size_bytes, self._part_bytes = size_bytes, part_bytes
        self._single = size_bytes <= part_bytes
        self._etags: dict[int, str] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._upload_id = "" if self._single else self._create()

    def write_part(self, index: int, buffers: Sequence[Buffer]) -> None:
        """See `Upload`. The server checks the part against its CRC64NVME."""
        crc = 0
        for buffer in buffers:
            crc = crc64nvme(buffer, crc)
        headers = {"x-amz-checksum-crc64nvme": base64.b64encode(crc.to_bytes(8, "big")).decode()} if self._checksums else {}
        query = {} if self._single else self._part(index)
        answer = self._bucket.ask("upload part", "PUT", self._full, query, headers, buffers, UNSIGNED)
        self._done(index, _etag(self._bucket.check("upload part", self._full, answer)))

    def copy_part(self, index: int, source: Location, source_key: str, *, offset: int, size_bytes: int, etag: str) -> bool:
        """See `Upload`."""
        if self._single or not isinstance(source, S3) or source._bucket.wire.netloc != self._bucket.wire.netloc:
            return False
        path = f"{source._bucket.name}/{source._key(source_key)}"
        headers = {
            "x-amz-copy-source": uri_encode(path, keep_slash=True),
            "x-amz-copy-source-range": f"bytes={offset}-{offset + size_bytes - 1}",
            "x-amz-copy-source-if-match": etag,
        }
        answer = self._bucket.ask("copy part", "PUT", self._full, self._part(index), headers)
        if answer.status != 200 or error_code(answer):
            return False  # changed, gone, or not possible here: the caller writes the bytes, and learns of any real trouble then
        result = parse_answer(self._bucket, "copy part", self._full, answer)
        self._done(index, text_of(result, "ETag"))
        return True

    def complete(self) -> Entry:
        """See `Upload`."""
        if self._single:
            self._ended = True
            return Entry(self._key, self._size_bytes, self._etags[0], 0.0)
        parts = "".join(f"<Part><PartNumber>{i + 1}</PartNumber><ETag>{escape(e)}</ETag></Part>" for i, e in sorted(self._etags.items()))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": self._upload_id}
        answer = self._bucket.ask("complete", "POST", self._full, query, {}, [body], hashlib.sha256(body).hexdigest())
        etag = self._completed_before() if error_code(answer) == "NoSuchUpload" else None
        if etag is None:
            self._bucket.check("complete", self._full, answer)
            etag = text_of(parse_answer(self._bucket, "complete", self._full, answer), "ETag")
        self._ended = True
        return Entry(self._key, self._size_bytes, etag, 0.0)

    def abort(self) -> None:
        """See `Upload`."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._single:
                self._bucket.ask("delete", "DELETE", self._full)
            else:
                self._bucket.ask("abort", "DELETE", self._full, {"uploadId": self._upload_id})
        except LocationError:
            pass  # what is left is swept later

    def _create(self) -> str:
        """Start the upload, with checksums unless the server does not know them."""
        headers = {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "FULL_OBJECT"}
        answer = self._bucket.ask("create upload", "POST", self._full, {"uploads": ""}, headers)
        if answer.status in (400, 501):
            self._checksums = False
            answer = self._bucket.ask("create upload", "POST", self._full, {"uploads": ""})
        self._bucket.check("create upload", self._full, answer)
        return text_of(parse_answer(self._bucket, "create upload", self._full, answer), "UploadId")

    def _part(self, index: int) -> dict[str, str]:
        return {"partNumber": str(index + 1), "uploadId": self._upload_id}

    def _done(self, index: int, etag: str) -> None:
        with self._lock:
            self._etags[index] = etag

    def _completed_before(self) -> str | None:
        """If the answer to a first completion was lost, the object is there. Data keys are not written twice."""
        answer = self._bucket.ask("head", "HEAD", self._full)
        if answer.status != 200 or int(answer.headers.get("content-length", "-1")) != self._size_bytes:
            return None
        return _etag(answer)


def _condition_headers(condition: Condition) -> dict[str, str]:
    if condition is None:
        return {}
    return {"if-none-match": "*"} if isinstance(condition, Absent) else {"if-match": condition.etag}


def _etag(answer: Answer) -> str:
    return answer.headers.get("etag", "")


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC).timestamp()
    except ValueError:
        return 0.0


def _receive(response: Any, view: memoryview) -> int:
    """Fill `view` from the body; the bytes that came before it ended or broke."""
    done = 0
    while done < len(view):
        try:
            count = response.readinto(view[done:])
        except Failure:
            break
        if not count:
            break
        done += count
    return done
