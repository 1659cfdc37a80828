"""The wire over TLS: the loop relays to threads, and framing holds all the same."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from test_wire import LARGE, get, put
from wire_fixture import Answers, WireServer


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = folder / "cert.pem", folder / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return certificate_path, key_path


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
