"""The benchmark's own client: its signatures, and that no wrong answer counts as a right one."""

from __future__ import annotations

import hashlib
import math
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest
from bench_scripted_server import Script, ScriptedServer, answer

from forebay.bench.errors import BenchmarkFailed
from forebay.bench.s3_large import LargeClient, Transfer
from forebay.bench.s3_small import Request, SmallClient
from forebay.bench.tally import Recorder
from forebay.bench.wire import EMPTY_SHA256, UNSIGNED, Connection, Endpoint, Signer, element, endpoint_of, quote_path
from forebay.codec import crc64nvme
from forebay.s3.sigv4 import Credentials, sign_request

ENDPOINT = Endpoint(host="127.0.0.1", port=9000, access_key="AKID", secret_key="secret", region="eu-west-2")
BODY = bytes(range(256)) * 16


def parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode().rstrip("\r\n").split("\r\n")
    return first, dict(line.split(":", 1) for line in lines)


@pytest.mark.parametrize("crc", ["", "AAAAAAAAAAA="])
@pytest.mark.parametrize("query", ["", "list-type=2&prefix=a%2Fb"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_signatures_are_those_of_the_s3_room(method: str, query: str, crc: str) -> None:
    path = quote_path("bucket", "a key/with ü")
    payload = UNSIGNED if crc else EMPTY_SHA256
    before_s = math.floor(time.time())
    first, headers = parse(Signer(ENDPOINT).head(method, path, query, payload, 7, crc))
    assert first == f"{method} {path}{'?' + query if query else ''} HTTP/1.1"
    assert headers["content-length"] == "7"
    given = {"host": ENDPOINT.authority} | ({"x-amz-checksum-crc64nvme": crc} if crc else {})
    credentials = Credentials("AKID", "secret", "eu-west-2")
    target = f"{path}?{query}" if query else path
    expected = [
        {
            name.lower(): value
            for name, value in sign_request(credentials, method, target, given, payload_sha256=payload, now_s=second).items()
        }
        for second in range(before_s, math.ceil(time.time()) + 1)
    ]
    assert {name: headers[name] for name in expected[0]} in expected


def test_a_signer_renews_its_date() -> None:
    signer = Signer(ENDPOINT)
    signer.head("GET", "/b/k", "", EMPTY_SHA256, 0)
    signer._date = "19990101T000000Z"
    assert b"19990101" in signer.head("GET", "/b/k", "", EMPTY_SHA256, 0)
    signer._renew_s = 0.0
    assert b"19990101" not in signer.head("GET", "/b/k", "", EMPTY_SHA256, 0)


@pytest.mark.parametrize("url", ["https://host", "host:9000", "http://", "http://host/path"])
def test_endpoints_that_are_none(url: str) -> None:
    with pytest.raises(BenchmarkFailed, match="plain HTTP"):
        endpoint_of(url, "a", "b", "c")


def test_element_takes_the_first() -> None:
    assert element(b"<A><UploadId>x1</UploadId><UploadId>x2</UploadId></A>", "UploadId") == "x1"
    assert element(b"<A/>", "UploadId") is None


def run_small(script: Script, request: Request, connections: int = 2, count: int = 6) -> tuple[Recorder, ScriptedServer]:
    with ScriptedServer(script) as server:
        client = SmallClient(server.endpoint, connections, 1 << 16)
        left = iter([request] * count)
        recorder = Recorder(time.monotonic(), math.inf)
        try:
            client.run(lambda _lane: next(left, None), recorder, lambda _moved: None)
        finally:
            client.close()
    return recorder, server


def run_large(script: Script, transfer: Transfer) -> None:
    with ScriptedServer(script) as server:
        client = LargeClient(server.endpoint, 1)
        left = iter([transfer])
        try:
            client.run(lambda _lane: next(left, None), time.monotonic(), math.inf, lambda _moved: None)
        finally:
            client.close()


SMALL_GET: Request = (b"GET /b/k HTTP/1.1\r\n\r\n", len(BODY), BODY, len(BODY))
LARGE_GET = Transfer("GET", "/b/k", len(BODY), crc64nvme(BODY))
WRONG = {
    "error": answer(b"<Error><Code>SlowDown</Code></Error>", "503 Slow Down"),
    "flipped bit": answer(bytes([BODY[0] ^ 1]) + BODY[1:]),
    "short": answer(BODY[:-1]),
    "long": answer(BODY + b"x"),
    "more than announced": answer(BODY + b"x", length=len(BODY)),
    "cut": answer(BODY[:-1], length=len(BODY), extra="Connection: close\r\n"),
    "closed": None,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_small_answers_that_are_wrong_fail_the_run(wrong: str) -> None:
    with pytest.raises(BenchmarkFailed):
        run_small(lambda _head, _body: WRONG[wrong], SMALL_GET)


@pytest.mark.parametrize("wrong", WRONG)
def test_large_answers_that_are_wrong_fail_the_run(wrong: str) -> None:
    with pytest.raises(BenchmarkFailed):
        run_large(lambda _head, _body: WRONG[wrong], LARGE_GET)


def test_right_answers_are_counted_and_verified() -> None:
    recorder, server = run_small(lambda _head, _body: answer(BODY), SMALL_GET)
    tally = recorder.tally()
    assert (tally.operations, tally.bytes, tally.read_operations, tally.verified_operations) == (6, 6 * len(BODY), 6, 6)
    assert (len(server.heads), server.connections) == (6, 2)
    run_large(lambda _head, _body: answer(BODY), LARGE_GET)


def test_a_server_that_closes_after_each_answer_is_no_failure() -> None:
    recorder, server = run_small(lambda _head, _body: answer(BODY, extra="Connection: close\r\n"), SMALL_GET)
    assert recorder.tally().operations == 6
    assert server.connections >= 6


def test_a_page_with_too_few_keys_fails_the_run() -> None:
    page: Request = (b"GET /b HTTP/1.1\r\n\r\n", None, 3, 0)
    run_small(lambda _head, _body: answer(b"<Key>a</Key><Key>b</Key><Key>c</Key>"), page)
    with pytest.raises(BenchmarkFailed, match="2 keys instead of 3"):
        run_small(lambda _head, _body: answer(b"<Key>a</Key><Key>b</Key>"), page)


def test_a_small_body_beyond_the_send_buffer_arrives_whole() -> None:
    size = 4 << 20
    body = hashlib.sha256(b"x").digest() * (size // 32)
    seen: list[bytes] = []

    def script(_head: bytes, received: bytes) -> bytes:
        seen.append(received)
        return answer()

    head = f"PUT /b/k HTTP/1.1\r\ncontent-length:{size}\r\n\r\n".encode()
    run_small(script, (head + body, 0, None, size), connections=1, count=1)
    assert seen == [body]


def test_a_connection_reads_into_the_callers_memory() -> None:
    target = bytearray(len(BODY))
    with ScriptedServer(lambda head, _body: answer(BODY, "206 Partial Content") if b"range:bytes=0-4095" in head else answer()) as server:
        connection = Connection(server.endpoint, 5)
        connection.request("GET", "/b/k", byte_range="bytes=0-4095", expect=(206,), into=memoryview(target))
        with pytest.raises(BenchmarkFailed, match="answered 200"):
            connection.request("GET", "/b/k", expect=(206,), into=memoryview(target))
        with pytest.raises(BenchmarkFailed, match="4096 bytes, 10 were asked for"):
            connection.request("GET", "/b/k", byte_range="bytes=0-4095", expect=(206,), into=memoryview(target)[:10])
        connection.close()
    assert target == BODY


def test_by_the_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    endpoint = msgspec.structs.replace(ENDPOINT, by_unix_socket=True)
    with pytest.raises(BenchmarkFailed, match="no UNIX socket"):
        Connection(endpoint)
    (tmp_path / "forebay").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "forebay" / "9000.sock"))
        listener.listen()
        connection = Connection(endpoint)
        heads: list[bytes] = []

        def serve() -> None:
            with listener.accept()[0] as peer:
                heads.append(peer.recv(4096))
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        server = threading.Thread(target=serve)
        server.start()
        assert connection.request("GET", "/b/k").body == b"hi"
        server.join()
        assert b"host:127.0.0.1:9000\r\n" in heads[0]
        connection.close()
