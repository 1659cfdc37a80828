"""The wire over TLS: the loop relays to threads, and framing holds all the same."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_wire import LARGE, get, put
from wire_fixture import Answers, WireServer

from certificates import write_certificate


@pytest.fixture
def client(tmp_path: Path) -> Iterator[socket.socket]:
    certificate, key = write_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        WireServer(ssl=context) as server,
        server.connect() as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        yield client


def test_uploads_and_downloads(client: socket.socket) -> None:
    answers = Answers(client)
    body = b"0123456789abcdef" * (LARGE // 16)
    client.sendall(put("/a", b"abc") + put("/large", body) + get("/stream/5000000/5000000") + get("/2"))
    assert answers.next()[2] == b"3:abc"
    assert answers.next()[2] == b"%d:" % len(body) + body[:32]
    assert answers.next()[2] == b"s" * 5_000_000
    assert answers.next()[1]["x-path"] == "/2"


def test_continue(client: socket.socket) -> None:
    request = put("/large", b"c" * LARGE, "Expect: 100-continue")
    client.sendall(request[:-LARGE])
    answers = Answers(client)
    assert answers.next()[0] == 100
    client.sendall(request[-LARGE:])
    assert answers.next()[2].startswith(b"%d:" % LARGE)


def test_refusal_reaches_a_client_that_sends_on(client: socket.socket) -> None:
    client.sendall(put("/refuse", b"z" * 2_000_000))
    answers = Answers(client)
    assert answers.next()[0] == 403
