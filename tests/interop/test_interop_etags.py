"""Large single PUTs have an ETag that is no MD5. No client may take it for one: none warns, fails, or copies again."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from interop_store import Programs

from running_store import Store

MULTIPART_FORM = re.compile(r'"[0-9a-f]{32}-\d+"')
COMPLAINTS = re.compile(r"warn|md5|etag|mismatch|differ|corrupt", re.IGNORECASE)


@pytest.fixture
def opaque(store: Store, bucket: str, large: bytes) -> str:
    """The key of an object whose ETag is opaque."""
    etag = store.boto().put_object(Bucket=bucket, Key="opaque.bin", Body=large)["ETag"]
    assert MULTIPART_FORM.fullmatch(etag), etag
    return "opaque.bin"


def test_small_objects_have_their_md5(store: Store, bucket: str, small: bytes) -> None:
    etag = store.boto().put_object(Bucket=bucket, Key="k", Body=small)["ETag"]
    assert etag == f'"{hashlib.md5(small).hexdigest()}"'


def test_a_client_that_sends_content_md5_gets_it_as_etag(store: Store, bucket: str, large: bytes) -> None:
    digest = hashlib.md5(large).digest()
    etag = store.boto().put_object(Bucket=bucket, Key="k", Body=large, ContentMD5=base64.b64encode(digest).decode())["ETag"]
    assert etag == f'"{digest.hex()}"'


def test_rclone_single_put_and_opaque_etags(
    store: Store, programs: Programs, bucket: str, opaque: str, large_file: Path, large: bytes, tmp_path: Path
) -> None:
    remote = (
        f":s3,provider=Other,endpoint='{store.endpoint}',access_key_id='{store.access_key}',secret_access_key='{store.secret_key}',"
        f"region={store.region},upload_cutoff=500Mi:{bucket}"
    )
    programs.run("rclone", "-v", "copyto", large_file, f"{remote}/single.bin")  # one PUT, with Content-MD5
    assert not COMPLAINTS.search(programs.warnings), programs.warnings
    assert store.boto().head_object(Bucket=bucket, Key="single.bin")["ETag"] == f'"{hashlib.md5(large).hexdigest()}"'
    for key in ("single.bin", opaque):
        programs.run("rclone", "-v", "copyto", f"{remote}/{key}", tmp_path / key)
        assert not COMPLAINTS.search(programs.warnings), programs.warnings
        assert (tmp_path / key).read_bytes() == large
    programs.run("rclone", "-v", "copyto", "--checksum", tmp_path / opaque, f"{remote}/{opaque}")
    assert "Copied" not in programs.warnings, f"rclone holds the object for changed: {programs.warnings}"
    known = {line[34:]: line[:32].strip() for line in programs.run("rclone", "md5sum", remote).splitlines()}
    assert known == {"single.bin": hashlib.md5(large).hexdigest(), opaque: ""}, "rclone believes a wrong MD5"
    programs.run("rclone", "sync", "-v", remote, f"{remote}/copied", "--exclude", "copied/**")
    programs.run("rclone", "check", remote, f"{remote}/copied", "--exclude", "copied/**")
    assert "0 differences found" in programs.warnings


def test_s3cmd_single_put_and_opaque_etags(
    programs: Programs,
    s3cmd_config: Path,
    bucket: str,
    opaque: str,
    large_file: Path,
    large: bytes,
    tmp_path: Path,
) -> None:
    s3cmd = ("s3cmd", "-c", s3cmd_config, "--no-progress", "--disable-multipart")
    programs.run(*s3cmd, "put", large_file, f"s3://{bucket}/single.bin")
    assert not COMPLAINTS.search(programs.warnings), programs.warnings
    for key in ("single.bin", opaque):
        programs.run(*s3cmd, "get", f"s3://{bucket}/{key}", tmp_path / key)
        assert not COMPLAINTS.search(programs.warnings), programs.warnings
        assert (tmp_path / key).read_bytes() == large
    folder = tmp_path / "synced"
    folder.mkdir()
    (folder / "single.bin").write_bytes(large)
    programs.run(*s3cmd, "sync", f"{folder}/", f"s3://{bucket}/synced/")
    assert "upload" not in programs.run(*s3cmd, "sync", f"{folder}/", f"s3://{bucket}/synced/"), "a second sync moves nothing"


def test_s5cmd_aws_and_boto3_read_opaque_etags(
    programs: Programs, bucket: str, opaque: str, large: bytes, tmp_path: Path, store: Store
) -> None:
    programs.run("s5cmd", "cp", f"s3://{bucket}/{opaque}", tmp_path / "s5cmd")
    programs.run("aws", "s3", "cp", f"s3://{bucket}/{opaque}", tmp_path / "aws")
    store.boto().download_file(bucket, opaque, str(tmp_path / "boto3"))
    assert all((tmp_path / name).read_bytes() == large for name in ("s5cmd", "aws", "boto3"))
