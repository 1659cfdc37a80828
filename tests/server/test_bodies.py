"""Request bodies in every framing, and authentication, spoken by hand to a real server."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_client, refused
from server_process import ACCESS_KEY, SECRET_KEY, ServerProcess, environment
from wire_fixture import Answers

from forebay.s3.sigv4 import Credentials, chunk_signer, presign_target, sign_request

CREDENTIALS = Credentials(ACCESS_KEY, SECRET_KEY)
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIZES = [0, 100, 65_536, 65_537, 3_000_001]


@pytest.fixture
def wire(store: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", store.port), timeout=10) as client:
        yield client


def head(store: ServerProcess, method: str, target: str, payload: str, **extra: str) -> tuple[bytes, dict[str, str]]:
    """A signed request head and the headers that it holds."""
    headers = {"host": f"127.0.0.1:{store.port}", **{name.replace("_", "-"): value for name, value in extra.items()}}
    headers |= sign_request(CREDENTIALS, method, target, headers, payload_sha256=payload, now_s=time.time())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode(), headers


def aws_chunks(data: bytes, chunk: int = 8192) -> list[bytes]:
    return [data[at : at + chunk] for at in range(0, len(data), chunk)]


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def unsigned_trailer_body(data: bytes, checksum: str) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in aws_chunks(data))
    return framed + b"0\r\nx-amz-checksum-crc32:" + checksum.encode() + b"\r\n\r\n"


def signed_body(data: bytes, headers: dict[str, str]) -> bytes:
    signer = chunk_signer(CREDENTIALS, headers)
    pieces = []
    for each in [*aws_chunks(data), b""]:
        signature = signer.sign_chunk(hashlib.sha256(each).hexdigest())
        pieces.append(b"%x;chunk-signature=%b\r\n%b\r\n" % (len(each), signature.encode(), each))
    return b"".join(pieces)


def check_stored(s3: Any, bucket: str, data: bytes) -> None:
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == data
    assert "ContentEncoding" not in got


@pytest.mark.parametrize("size", SIZES)
def test_unsigned_trailer(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    data = os.urandom(size)
    body = unsigned_trailer_body(data, crc32(data))
    start, _ = head(
        store, "PUT", f"/{bucket}/k", UNSIGNED_TRAILER, content_length=str(len(body)), content_encoding="aws-chunked",
        x_amz_decoded_content_length=str(size), x_amz_trailer="x-amz-checksum-crc32",
    )  # fmt: skip
    again, _ = head(store, "GET", f"/{bucket}/k", hashlib.sha256(b"").hexdigest())
    wire.sendall(start + body + again)
    answers = Answers(wire)
    status, headers, _ = answers.next()
    assert (status, headers["x-amz-checksum-crc32"]) == (200, crc32(data))
    assert answers.next()[2] == data
    check_stored(s3, bucket, data)


@pytest.mark.parametrize("size", [100, 300_000])
def test_wrong_trailer_stores_nothing(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    data = os.urandom(size)
    body = unsigned_trailer_body(data, crc32(b"other"))
    start, _ = head(
        store, "PUT", f"/{bucket}/k", UNSIGNED_TRAILER, content_length=str(len(body)), content_encoding="aws-chunked",
        x_amz_decoded_content_length=str(size), x_amz_trailer="x-amz-checksum-crc32",
    )  # fmt: skip
    wire.sendall(start + body)
    assert Answers(wire).next()[0] == 400
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("size", SIZES)
def test_signed_chunks(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    data = os.urandom(size)
    length = len(signed_body(data, head(store, "PUT", "/", SIGNED_CHUNKS)[1]))
    start, headers = head(store, "PUT", f"/{bucket}/k", SIGNED_CHUNKS, content_length=str(length), x_amz_decoded_content_length=str(size))
    wire.sendall(start + signed_body(data, headers))
    assert Answers(wire).next()[0] == 200
    check_stored(s3, bucket, data)


@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("place", [-100, 90])
def test_altered_signed_chunk_stores_nothing(
    store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int, place: int
) -> None:
    data = os.urandom(size)
    length = len(signed_body(data, head(store, "PUT", "/", SIGNED_CHUNKS)[1]))
    start, headers = head(store, "PUT", f"/{bucket}/k", SIGNED_CHUNKS, content_length=str(length), x_amz_decoded_content_length=str(size))
    body = bytearray(signed_body(data, headers))
    body[place] ^= 1
    wire.sendall(start + body)
    assert Answers(wire).next()[0] in (400, 403)
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("size", SIZES)
def test_transfer_encoding_chunked(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    data = os.urandom(size)
    start, _ = head(store, "PUT", f"/{bucket}/k", "UNSIGNED-PAYLOAD", transfer_encoding="chunked")
    body = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(each), each) for each in aws_chunks(data, 70_001)) + b"0\r\n\r\n"
    again, _ = head(store, "GET", f"/{bucket}/k", hashlib.sha256(b"").hexdigest())
    wire.sendall(start + body + again)
    answers = Answers(wire)
    assert answers.next()[0] == 200
    assert answers.next()[2] == data
    check_stored(s3, bucket, data)


@pytest.mark.parametrize("size", [100, 300_000])
def test_payload_hash_is_checked(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    data = os.urandom(size)
    start, _ = head(store, "PUT", f"/{bucket}/k", hashlib.sha256(b"other").hexdigest(), content_length=str(size))
    wire.sendall(start + data)
    status, _, document = Answers(wire).next()
    assert status == 400
    assert b"XAmzContentSHA256Mismatch" in document
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("size", [100, 300_000])
def test_body_that_ends_early_stores_nothing(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket, size: int) -> None:
    start, _ = head(store, "PUT", f"/{bucket}/k", "UNSIGNED-PAYLOAD", content_length=str(size))
    wire.sendall(start + bytes(size - 1))
    wire.shutdown(socket.SHUT_WR)
    assert b"IncompleteBody" in Answers(wire).next()[2]
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


def test_continue_comes_after_authentication_and_conditions(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    start, _ = head(store, "PUT", f"/{bucket}/k", "UNSIGNED-PAYLOAD", content_length="1000000", expect="100-continue", if_none_match="*")
    wire.sendall(start)
    answers = Answers(wire)
    assert answers.next()[0] == 412
    assert answers.closed()


def test_anonymous_and_wrong_signatures_are_refused(store: ServerProcess, bucket: str) -> None:
    for target in ("/", f"/{bucket}", f"/{bucket}/k", "/forebay/admin/cluster"):
        connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=10)
        connection.request("GET", target)
        answer = connection.getresponse()
        assert answer.status == 403
        assert b"AccessDenied" in answer.read()
        connection.close()
    forger = make_client(store, ACCESS_KEY, "not the secret")
    assert refused(forger.list_buckets) == (403, "SignatureDoesNotMatch")
    forger.close()
    stranger = make_client(store, "nobody", "not the secret")
    assert refused(stranger.put_object, Bucket=bucket, Key="k", Body=b"x" * 200_000) == (403, "InvalidAccessKeyId")
    stranger.close()


def test_presigned_requests(store: ServerProcess, bucket: str) -> None:
    signer = make_client(store, signature_version="s3v4")  # boto3's default for us-east-1 is still version 2
    url = signer.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"}, ExpiresIn=60)
    signer.close()
    data = os.urandom(200_000)
    put = urllib.request.Request(url, data=data, method="PUT")
    with urllib.request.urlopen(put) as answer:
        assert answer.status == 200
    host = f"127.0.0.1:{store.port}"
    for method in ("GET", "HEAD", "DELETE"):
        target = presign_target(CREDENTIALS, method, f"/{bucket}/k", host, expires_s=60, now_s=time.time())
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}{target}", method=method)) as answer:
            assert answer.read() == (data if method == "GET" else b"")


def test_virtual_hosted_addressing(store: ServerProcess, s3: Any, bucket: str, wire: socket.socket) -> None:
    s3.put_object(Bucket=bucket, Key="a/b", Body=b"virtual")
    headers = {"host": f"{bucket}.localhost:{store.port}"}
    headers |= sign_request(CREDENTIALS, "GET", "/a/b", headers, payload_sha256=hashlib.sha256(b"").hexdigest(), now_s=time.time())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    wire.sendall(f"GET /a/b HTTP/1.1\r\n{lines}\r\n".encode())
    assert Answers(wire).next()[2] == b"virtual"


def test_errors_are_documents_with_ids(store: ServerProcess, bucket: str, wire: socket.socket) -> None:
    wire.sendall(head(store, "GET", f"/{bucket}/none", hashlib.sha256(b"").hexdigest())[0])
    status, headers, document = Answers(wire).next()
    assert status == 404
    assert headers["content-type"] == "application/xml"
    assert headers["x-amz-request-id"].encode() in document
    assert f"<Resource>/{bucket}/none</Resource>".encode() in document


def test_aws_cli(store: ServerProcess, bucket: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(20_000_000))
    aws = [str(Path(sys.executable).with_name("aws")), "--endpoint-url", store.endpoint, "s3"]
    secrets = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "us-east-1"}
    for arguments in (
        ["cp", str(source), f"s3://{bucket}/dir/k", "--no-progress"],
        ["cp", f"s3://{bucket}/dir/k", str(target), "--no-progress"],
        ["ls", f"s3://{bucket}/dir/"],
        ["rm", f"s3://{bucket}", "--recursive"],
    ):
        done = subprocess.run([*aws, *arguments], env=environment() | secrets, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    assert target.read_bytes() == source.read_bytes()
