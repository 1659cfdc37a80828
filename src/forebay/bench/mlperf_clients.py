"""The client libraries that can carry a checkpoint: each writes an object in parts and reads blocks of it, in its own way.

Those with an interface for parts are driven by our own lanes (`PartClient`); those that only take a stream are given one, and keep as many
parts in flight as they see fit (`StreamClient`). Nothing is tuned beyond part size and parts in flight, which the rules set.
"""

from __future__ import annotations

# ruff: noqa: D102, PLC0415 - the methods are those of PartClient and StreamClient; the libraries are optional
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from forebay.bench.content import crc64nvme_base64
from forebay.bench.errors import BenchmarkFailed
from forebay.bench.mlperf_plan import PART_BYTES
from forebay.bench.wire import UNSIGNED, Connection, Endpoint, element, quote_path
from forebay.locations import open_location


class PartClient(Protocol):
    """Writes and reads pieces, from several threads at once."""

    def begin(self, name: str, size_bytes: int) -> Any:
        """Start an object; what comes back is handed to the calls below."""

    def put_part(self, upload: Any, index: int, view: memoryview) -> None:
        """Write part `index`, which starts at `index` * PART_BYTES. `view` is not kept."""

    def finish(self, upload: Any) -> None:
        """Make the object appear, durable."""

    def read(self, name: str, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""


class StreamClient(Protocol):
    """Writes a stream, from one thread; reads pieces, from several."""

    def write_stream(self, name: str, size_bytes: int, fill: Callable[[memoryview, int], None]) -> None:
        """Write an object of `size_bytes`; `fill(view, offset)` makes its content."""

    def read(self, name: str, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""


class ForebayClient:
    """The checkpoint library's own way to a folder or an object store (`forebay.locations`)."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        options = {} if endpoint is None else {
            "endpoint": endpoint.url, "access_key": endpoint.access_key, "secret_key": endpoint.secret_key, "region": endpoint.region,
        }  # fmt: skip
        self._location = open_location(target, **options)

    def begin(self, name: str, size_bytes: int) -> Any:
        return self._location.upload(name, size_bytes, PART_BYTES)

    def put_part(self, upload: Any, index: int, view: memoryview) -> None:
        upload.write_part(index, [view])

    def finish(self, upload: Any) -> None:
        upload.complete()

    def read(self, name: str, offset: int, view: memoryview) -> None:
        self._location.read_into(name, offset, view)


class PosixClient:
    """Ordinary buffered files, fsynced at the end: what frameworks do, made durable."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        assert endpoint is None
        self._folder = Path(target)

    def begin(self, name: str, size_bytes: int) -> int:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def put_part(self, upload: int, index: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(upload, view[done:], index * PART_BYTES + done)

    def finish(self, upload: int) -> None:
        os.fsync(upload)
        os.close(upload)

    def read(self, name: str, offset: int, view: memoryview) -> None:
        file = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(view):
                count = os.preadv(file, [view[done:]], offset + done)
                if not count:
                    raise BenchmarkFailed(f"{name} ends before {offset + len(view)}")
                done += count
        finally:
            os.close(file)


class WireClient:
    """The benchmark's own minimal S3 client: a connection a thread, bodies from and into memory, parts protected by CRC64NVME."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        assert endpoint is not None
        self._endpoint = endpoint
        self._bucket, self._prefix = bucket_and_prefix(target)
        self._local = threading.local()

    def _connection(self) -> Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = Connection(self._endpoint)
        connection: Connection = self._local.connection
        return connection

    def _path(self, name: str) -> str:
        return quote_path(self._bucket, self._prefix + name)

    def begin(self, name: str, size_bytes: int) -> tuple[str, str, dict[int, str]]:
        path = self._path(name)
        answer = self._connection().request("POST", path, "uploads=")
        upload_id = element(answer.body, "UploadId")
        if upload_id is None:
            raise BenchmarkFailed(f"no UploadId in the answer to CreateMultipartUpload of {path}")
        return path, upload_id, {}

    def put_part(self, upload: tuple[str, str, dict[int, str]], index: int, view: memoryview) -> None:
        path, upload_id, etags = upload
        query = f"partNumber={index + 1}&uploadId={upload_id}"
        crc = crc64nvme_base64(view)
        answer = self._connection().request("PUT", path, query, body=view, sha256=UNSIGNED, crc64nvme=crc)
        etags[index + 1] = answer.headers["etag"]

    def finish(self, upload: tuple[str, str, dict[int, str]]) -> None:
        path, upload_id, etags = upload
        parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etags[n]}</ETag></Part>" for n in sorted(etags))
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._connection().request("POST", path, f"uploadId={upload_id}", body=body)
        if element(answer.body, "Code") is not None:  # S3 may answer 200 and then fail
            raise BenchmarkFailed(f"completing {path} failed: {answer.body[:500].decode(errors='replace')}")

    def read(self, name: str, offset: int, view: memoryview) -> None:
        byte_range = f"bytes={offset}-{offset + len(view) - 1}"
        self._connection().request("GET", self._path(name), byte_range=byte_range, expect=(206,), into=view)


class Boto3Client:
    """boto3's client: upload_part and ranged get_object, with its default checksums."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        import boto3
        from botocore.config import Config

        assert endpoint is not None
        self._bucket, self._prefix = bucket_and_prefix(target)
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
            region_name=endpoint.region,
            config=Config(max_pool_connections=64, s3={"addressing_style": "path"}),
        )

    def begin(self, name: str, size_bytes: int) -> tuple[dict[str, str], dict[int, str]]:
        where = {"Bucket": self._bucket, "Key": self._prefix + name}
        return {**where, "UploadId": self._client.create_multipart_upload(**where)["UploadId"]}, {}

    def put_part(self, upload: tuple[dict[str, str], dict[int, str]], index: int, view: memoryview) -> None:
        where, etags = upload
        body = view.obj if isinstance(view.obj, bytearray) and len(view.obj) == len(view) else bytes(view)
        etags[index + 1] = self._client.upload_part(**where, PartNumber=index + 1, Body=body)["ETag"]

    def finish(self, upload: tuple[dict[str, str], dict[int, str]]) -> None:
        where, etags = upload
        parts = [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]
        self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})

    def read(self, name: str, offset: int, view: memoryview) -> None:
        byte_range = f"bytes={offset}-{offset + len(view) - 1}"
        body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, Range=byte_range)["Body"]
        done = 0
        while count := body.readinto(view[done:]):
            done += count
        _require_whole(name, done, view)


class S3TorchConnectorClient:
    """s3torchconnector: its streaming writer, and one range-based reader a thread."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        from s3torchconnector import S3ClientConfig, S3ReaderConstructor
        from s3torchconnector._s3client import S3Client

        assert endpoint is not None
        os.environ.update(AWS_ACCESS_KEY_ID=endpoint.access_key, AWS_SECRET_ACCESS_KEY=endpoint.secret_key)
        self._bucket, self._prefix = bucket_and_prefix(target)
        config = S3ClientConfig(part_size=PART_BYTES, force_path_style=True)
        self._client = S3Client(endpoint.region, endpoint=endpoint.url, s3client_config=config)
        self._reader_constructor = S3ReaderConstructor.range_based(buffer_size=0)
        self._local = threading.local()

    def write_stream(self, name: str, size_bytes: int, fill: Callable[[memoryview, int], None]) -> None:
        buffer = bytearray(PART_BYTES)
        with self._client.put_object(self._bucket, self._prefix + name) as writer:
            for offset in range(0, size_bytes, PART_BYTES):
                view = memoryview(buffer)[: min(PART_BYTES, size_bytes - offset)]
                fill(view, offset)
                writer.write(view)

    def read(self, name: str, offset: int, view: memoryview) -> None:
        if getattr(self._local, "name", None) != name:
            self._local.name = name
            self._local.reader = self._client.get_object(self._bucket, self._prefix + name, reader_constructor=self._reader_constructor)
        reader = self._local.reader
        reader.seek(offset)
        done = 0
        while done < len(view) and (count := reader.readinto(view[done:])):
            done += count
        _require_whole(name, done, view)


class S3dlioClient:
    """s3dlio: its multipart writer with reserved buffers, and ranged gets."""

    def __init__(self, target: str, endpoint: Endpoint | None) -> None:
        import s3dlio  # type: ignore[import-untyped]

        assert endpoint is not None
        os.environ.update(AWS_ACCESS_KEY_ID=endpoint.access_key, AWS_SECRET_ACCESS_KEY=endpoint.secret_key)
        s3dlio.configure_s3(endpoint_url=endpoint.url, region=endpoint.region)
        self._library = s3dlio
        self._target = target.rstrip("/")
        self.in_flight = 2

    def write_stream(self, name: str, size_bytes: int, fill: Callable[[memoryview, int], None]) -> None:
        writer = self._library.MultipartUploadWriter.from_uri(f"{self._target}/{name}", part_size=PART_BYTES, max_in_flight=self.in_flight)
        for offset in range(0, size_bytes, PART_BYTES):
            count = min(PART_BYTES, size_bytes - offset)
            with memoryview(writer.reserve(count)) as view:
                fill(view[:count], offset)
            writer.commit(count)
        writer.close()

    def read(self, name: str, offset: int, view: memoryview) -> None:
        data = self._library.get_range(f"{self._target}/{name}", offset, len(view))
        _require_whole(name, len(data), view)
        view[:] = memoryview(data)


def bucket_and_prefix(target: str) -> tuple[str, str]:
    """`s3://bucket/some/prefix` as ("bucket", "some/prefix/")."""
    parts = urlsplit(target)
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


def _require_whole(name: str, got_bytes: int, view: memoryview) -> None:
    if got_bytes != len(view):
        raise BenchmarkFailed(f"{name}: {got_bytes} bytes came instead of {len(view)}")


FOLDER_CLIENTS: dict[str, Callable[[str, Endpoint | None], Any]] = {"forebay": ForebayClient, "posix": PosixClient}
S3_CLIENTS: dict[str, Callable[[str, Endpoint | None], Any]] = {
    "forebay": ForebayClient,
    "wire": WireClient,
    "boto3": Boto3Client,
    "s3torchconnector": S3TorchConnectorClient,
    "s3dlio": S3dlioClient,
}
