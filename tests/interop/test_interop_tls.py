"""Clients over TLS, where several of them frame bodies in another way: unsigned chunks with a checksum in the trailer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from interop_store import MIB, Programs
from obstore.store import S3Store

from running_store import Store, running_store


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("secure"), tls=True) as running:
        running.boto().create_bucket(Bucket="secure")
        yield running
    assert " ERROR " not in running.log.read_text(), running.log.read_text()


def test_boto3_over_tls(secure: Store, small: bytes, large: bytes, large_file: Path) -> None:
    client = secure.boto()
    sent = []
    client.meta.events.register("before-send.s3.PutObject", lambda request, **_: sent.append(request.headers))
    for key, content in {"small": small, "empty": b"", "large": large}.items():
        client.put_object(Bucket="secure", Key=key, Body=content)
    client.upload_file(str(large_file), "secure", "parts")
    for key, content in {"small": small, "empty": b"", "large": large, "parts": large}.items():
        got = client.get_object(Bucket="secure", Key=key)
        assert got["Body"].read() == content
        assert "ContentEncoding" not in got
    assert any(b"TRAILER" in headers["X-Amz-Content-SHA256"] for headers in sent), "the framing that this test is for"


def test_programs_over_tls(secure: Store, programs: Programs, large: bytes, large_file: Path, tmp_path: Path) -> None:
    programs.environment |= {"AWS_ENDPOINT_URL": secure.endpoint, "S3_ENDPOINT_URL": secure.endpoint}
    remote = f":s3,provider=Other,env_auth,region={secure.region},endpoint='{secure.endpoint}':secure"
    trusting_aws = ("aws", "--ca-bundle", secure.certificate)
    programs.run(*trusting_aws, "s3", "cp", large_file, "s3://secure/aws")
    programs.run("s5cmd", "--no-verify-ssl", "cp", large_file, "s3://secure/s5cmd")
    programs.run("rclone", "--ca-cert", secure.certificate, "copyto", large_file, f"{remote}/rclone")
    programs.run(*trusting_aws, "s3", "cp", "s3://secure/rclone", tmp_path / "rclone")
    programs.run("s5cmd", "--no-verify-ssl", "cp", "s3://secure/aws", tmp_path / "aws")
    programs.run("rclone", "--ca-cert", secure.certificate, "copyto", f"{remote}/s5cmd", tmp_path / "s5cmd")
    assert all((tmp_path / name).read_bytes() == large for name in ("aws", "s5cmd", "rclone"))


def test_obstore_over_tls(secure: Store, small: bytes, large: bytes) -> None:
    store = S3Store(
        "secure",
        endpoint=secure.endpoint,
        access_key_id=secure.access_key,
        secret_access_key=secure.secret_key,
        region=secure.region,
        client_options={"allow_invalid_certificates": True},
    )
    obstore.put(store, "obstore/small", small)
    obstore.put(store, "obstore/large", large, use_multipart=True, chunk_size=8 * MIB)
    assert bytes(obstore.get(store, "obstore/small").bytes()) == small
    assert bytes(obstore.get(store, "obstore/large").bytes()) == large
