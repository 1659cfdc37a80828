"""The wire against raw sockets: splits, pipelining, 100-continue, early errors, stalls, ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from wire_fixture import Answers, WireServer

from forebay.server.head import HEAD_BYTES_MAX

LARGE = 3_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


@pytest.fixture
def client(server: WireServer) -> Iterator[socket.socket]:
    with server.connect() as connected:
        yield connected


def put(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"PUT {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", *headers]).encode() + b"\r\n\r\n"


def test_every_answer_names_itself(client: socket.socket) -> None:
    client.sendall(get("/a"))
    status, headers, body = Answers(client).next()
    assert (status, body) == (200, b"hello")
    assert {"server", "date", "x-amz-request-id", "x-amz-id-2", "content-length"} <= set(headers)


def test_byte_by_byte(client: socket.socket) -> None:
    for byte in put("/a", b"0123456789"):
        client.sendall(bytes([byte]))
    assert Answers(client).next()[2] == b"10:0123456789"


def test_pipelined_requests_are_answered_in_order(client: socket.socket) -> None:
    client.sendall(get("/1") + put("/late", b"x") + put("/b", b"abc") + get("/stream/300000/300000") + get("/2"))
    answers = Answers(client)
    assert answers.next()[1]["x-path"] == "/1"
    assert answers.next()[2] == b"late"
    assert answers.next()[2] == b"3:abc"
    assert answers.next()[2] == b"s" * 300_000
    assert answers.next()[1]["x-path"] == "/2"


def test_large_body_with_a_request_behind_it(client: socket.socket) -> None:
    body = b"0123456789abcdef" * (LARGE // 16)
    client.sendall(get("/0") + put("/a", body) + get("/2"))
    answers = Answers(client)
    assert answers.next()[1]["x-path"] == "/0"
    assert answers.next()[2] == b"%d:" % len(body) + body[:32]
    assert answers.next()[1]["x-path"] == "/2"


def test_document_on_the_loop(client: socket.socket) -> None:
    body = b"d" * 200_000
    client.sendall(put("/document", body)[:-1])
    time.sleep(0.05)
    client.sendall(b"d" + get("/next"))
    answers = Answers(client)
    assert answers.next()[2] == b"200000:" + b"d" * 32
    assert answers.next()[1]["x-path"] == "/next"


@pytest.mark.parametrize("path", ["/document", "/large"])
@pytest.mark.parametrize("size", [10, LARGE])
def test_continue_is_sent_when_the_body_is_wanted(client: socket.socket, path: str, size: int) -> None:
    if path == "/document" and size == LARGE:
        size = 500_000
    request = put(path, b"c" * size, "Expect: 100-continue")
    client.sendall(request[:-size])
    answers = Answers(client)
    assert answers.next()[0] == 100
    client.sendall(request[-size:])
    assert answers.next()[2] == b"%d:" % size + b"c" * min(size, 32)
    client.sendall(get("/again"))
    assert answers.next()[1]["x-path"] == "/again"


def test_no_continue_after_a_refusal(client: socket.socket) -> None:
    client.sendall(put("/refuse", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 1000000"))
    answers = Answers(client)
    status, headers, body = answers.next()
    assert (status, headers["connection"], body) == (403, "close", b"AccessDenied")
    assert answers.closed()


def test_refusal_reaches_a_client_that_sends_on(client: socket.socket) -> None:
    client.settimeout(20)
    client.sendall(put("/refuse", b"z" * 20_000_000))  # the answer was given after the head
    answers = Answers(client)
    assert answers.next()[0] == 403
    assert answers.closed()


def test_refused_small_body_keeps_the_connection(client: socket.socket) -> None:
    client.sendall(put("/refuse", b"GET /smuggled HTTP/1.1\r\n\r\n") + get("/next"))
    answers = Answers(client)
    assert answers.next()[0] == 403
    assert answers.next()[1]["x-path"] == "/next"


def test_smuggling_attempt_ends_the_connection(client: socket.socket) -> None:
    client.sendall(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get("/evil"))
    answers = Answers(client)
    assert answers.next()[0] == 400
    assert answers.closed()


def test_overlong_head(client: socket.socket) -> None:
    client.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * HEAD_BYTES_MAX)
    answers = Answers(client)
    assert answers.next()[2] == b"RequestHeaderSectionTooLarge"
    assert answers.closed()


def test_longest_head(client: socket.socket) -> None:
    start = b"GET /long HTTP/1.1\r\nX: "
    client.sendall(start + b"y" * (HEAD_BYTES_MAX - len(start)) + b"\r\n\r\n")
    assert Answers(client).next()[1]["x-path"] == "/long"


def test_head_has_no_body(client: socket.socket) -> None:
    client.sendall(get("/stream/300000/300000", method="HEAD") + get("/x", method="HEAD") + get("/2"))
    answers = Answers(client)
    assert answers.next(bodyless=True)[1]["content-length"] == "300000"
    assert answers.next(bodyless=True)[1]["content-length"] == "5"
    assert answers.next()[1]["x-path"] == "/2"


def test_connection_close_is_honoured(client: socket.socket) -> None:
    client.sendall(get("/a", "Connection: close"))
    answers = Answers(client)
    assert answers.next()[1]["connection"] == "close"
    assert answers.closed()


def test_half_closed_client_gets_its_answer(client: socket.socket) -> None:
    client.sendall(put("/late", b"x"))
    client.shutdown(socket.SHUT_WR)
    answers = Answers(client)
    assert answers.next()[2] == b"late"
    assert answers.closed()


@pytest.mark.parametrize("path", ["/document", "/large"])
def test_body_that_ends_early(client: socket.socket, path: str) -> None:
    client.sendall(put(path, b"e" * LARGE if path == "/large" else b"e" * 200_000)[:-5])
    client.shutdown(socket.SHUT_WR)
    answers = Answers(client)
    assert answers.next()[::2] == (400, b"IncompleteBody")
    assert answers.closed()


def test_stream_that_fails_at_once_is_an_error(client: socket.socket) -> None:
    client.sendall(get("/stream/5/-1") + get("/2"))
    answers = Answers(client)
    assert answers.next()[0] == 403
    assert answers.next()[1]["x-path"] == "/2"


@pytest.mark.parametrize("delivered", [100_000, 999_999, 1_000_001])
def test_stream_of_another_length_breaks_the_connection(client: socket.socket, delivered: int) -> None:
    client.sendall(get(f"/stream/1000000/{delivered}") + get("/2"))
    answers = Answers(client)
    assert answers.head()[0] == 200
    while answers.more():
        pass
    assert len(answers.data) <= delivered
    assert b"x-path" not in answers.data


def test_forged_headers_are_not_sent(client: socket.socket) -> None:
    client.sendall(get("/forge") + get("/2"))
    answers = Answers(client)
    status, headers, body = answers.next()
    assert (status, body) == (500, b"ValueError")
    assert "set-cookie" not in headers
    assert answers.next()[1]["x-path"] == "/2"


def test_slow_reader_gets_everything(server: WireServer) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(("127.0.0.1", server.port))
        client.sendall(get("/1") * 2000 + get("/stream/2000000/2000000"))
        time.sleep(0.1)
        answers = Answers(client)
        for _ in range(2000):
            assert answers.next()[2] == b"hello"
        assert len(answers.next()[2]) == 2_000_000


def test_vanished_client_harms_nothing(server: WireServer) -> None:
    for request in (put("/large", b"v" * LARGE)[:-9], get("/stream/90000000/90000000"), put("/late", b""), b"GET / HT"):
        with server.connect() as client:
            client.sendall(request)
    with server.connect() as client:
        client.sendall(get("/alive"))
        assert Answers(client).next()[1]["x-path"] == "/alive"


def test_stalls_time_out() -> None:
    with WireServer(stall_timeout_s=0.2, head_timeout_s=0.2, idle_timeout_s=0.4) as server:
        cases = {
            b"GET / HT": b"RequestTimeout",  # within a head
            put("/a", b"abc")[:-1]: b"RequestTimeout",  # within a small body
            put("/document", b"d" * 100_000)[:-1]: b"RequestTimeout",
            put("/large", b"d" * LARGE)[:-1]: b"RequestTimeout",
        }
        for request, expected in cases.items():
            with server.connect() as client:
                client.sendall(request)
                answers = Answers(client)
                assert answers.next()[2] == expected
                assert answers.closed()
        with server.connect() as client:  # idle between requests: closed without an answer
            client.sendall(get("/a"))
            answers = Answers(client)
            assert answers.next()[0] == 200
            assert answers.closed()
        with server.connect() as client:  # stops reading
            client.sendall(get("/stream/900000000/900000000"))
            give_up = time.monotonic() + 5
            while not server.app.done[-1][0].startswith("/stream") and time.monotonic() < give_up:
                time.sleep(0.02)
            assert server.app.done[-1] == ("/stream/900000000/900000000", 500, 0)


def test_a_trickling_client_times_out() -> None:
    with WireServer(stall_timeout_s=0.3) as server, server.connect() as client:
        client.sendall(put("/large", b"d" * LARGE)[:1000])  # in one go, then a byte now and then
        client.settimeout(0.05)
        answers = Answers(client)
        give_up = time.monotonic() + 30
        while b"RequestTimeout" not in answers.data:
            assert time.monotonic() < give_up
            client.send(b"d")
            try:
                assert answers.more()
            except TimeoutError:
                pass


def test_too_many_connections() -> None:
    with WireServer(connections_max=1) as server, server.connect() as first:
        first.sendall(get("/a"))
        assert Answers(first).next()[0] == 200
        with server.connect() as second:
            answers = Answers(second)
            assert answers.next()[::2] == (503, b"SlowDown")
            assert answers.closed()


def test_drain_finishes_what_is_in_flight() -> None:
    with WireServer() as server:
        busy, idle = server.connect(), server.connect()
        with busy, idle:
            server.app.sink_delay_s = 0.01
            body = b"f" * LARGE
            busy.sendall(put("/large", body)[: LARGE // 2])
            time.sleep(0.05)
            server.loop.call_soon_threadsafe(server.stop.set)
            assert Answers(idle).closed()
            busy.sendall(put("/large", body)[LARGE // 2 :])
            answers = Answers(busy)
            status, headers, _ = answers.next()
            assert (status, headers["connection"]) == (200, "close")
            assert answers.closed()
