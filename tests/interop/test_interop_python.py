"""Python's clients: boto3 in its ways, minio-py, obstore, s3fs, pyarrow."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import socket
import urllib.request
from datetime import timedelta
from pathlib import Path

import boto3.s3.transfer
import minio
import minio.commonconfig
import minio.deleteobjects
import obstore
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
import s3fs
from botocore.exceptions import ClientError
from interop_store import MIB, ODD_KEYS
from obstore.store import S3Store

from running_store import Store

CHECKSUMS = {
    "default-checksums": {},
    "without-checksums": {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"},
}


def _drain(client: object, bucket: str, key: str, **options: object) -> bytes:
    return client.get_object(Bucket=bucket, Key=key, **options)["Body"].read()


@pytest.mark.parametrize("checksums", CHECKSUMS)
def test_boto3(store: Store, bucket: str, small: bytes, large: bytes, large_file: Path, tmp_path: Path, checksums: str) -> None:
    client = store.boto(**CHECKSUMS[checksums])
    for key in ODD_KEYS:
        client.put_object(Bucket=bucket, Key=key, Body=small, Metadata={"color": "blue"}, ContentType="x/y", CacheControl="no-cache")
        head = client.head_object(Bucket=bucket, Key=key)
        assert (head["Metadata"], head["ContentType"], head["CacheControl"]) == ({"color": "blue"}, "x/y", "no-cache")
        assert _drain(client, bucket, key) == small
    assert sorted(entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]) == sorted(ODD_KEYS, key=str.encode)

    client.upload_file(str(large_file), bucket, "multipart")  # in parts, by several threads
    client.put_object(Bucket=bucket, Key="single", Body=large)
    for key in ("multipart", "single"):
        client.download_file(bucket, key, str(tmp_path / key))
        assert (tmp_path / key).read_bytes() == large
        assert _drain(client, bucket, key, Range="bytes=1000-70000") == large[1000:70001]
        assert _drain(client, bucket, key, Range="bytes=-17") == large[-17:]

    client.copy({"Bucket": bucket, "Key": "multipart"}, bucket, "copied", Config=boto3.s3.transfer.TransferConfig(multipart_threshold=MIB))
    assert _drain(client, bucket, "copied") == large
    objects = [{"Key": key} for key in [*ODD_KEYS, "multipart", "single", "copied"]]
    deleted = client.delete_objects(Bucket=bucket, Delete={"Objects": objects})
    assert "Errors" not in deleted and len(deleted["Deleted"]) == len(objects)
    client.delete_bucket(Bucket=bucket)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_boto3_checksums_end_to_end(store: Store, bucket: str, small: bytes, algorithm: str) -> None:
    client = store.boto(response_checksum_validation="when_supported")
    put = client.put_object(Bucket=bucket, Key="k", Body=small, ChecksumAlgorithm=algorithm)
    got = client.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got["Body"].read() == small
    assert put[f"Checksum{algorithm}"] == got[f"Checksum{algorithm}"]


def test_boto3_refuses_a_body_that_changed_on_the_way(store: Store, bucket: str, small: bytes) -> None:
    client = store.boto()
    with pytest.raises(ClientError) as refused:
        client.put_object(Bucket=bucket, Key="k", Body=small, ChecksumCRC32="AAAAAA==")
    assert refused.value.response["Error"]["Code"] == "BadDigest"
    with pytest.raises(ClientError) as missing:
        client.head_object(Bucket=bucket, Key="k")
    assert missing.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_boto3_virtual_hosted(store: Store, bucket: str, small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def to_loopback(host: str, *rest: object, **named: object) -> object:
        """Not every machine resolves names below `localhost`."""
        return resolve("127.0.0.1" if host.endswith(".localhost") else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", to_loopback)
    by_name = dataclasses.replace(store, host="localhost")
    client = by_name.boto(s3={"addressing_style": "virtual"})
    hosts = []
    client.meta.events.register("before-send.s3.*", lambda request, **_: hosts.append(request.url.split("/")[2]))
    client.put_object(Bucket=bucket, Key="dir/a b.bin", Body=small)
    assert _drain(client, bucket, "dir/a b.bin") == small
    assert hosts and all(host == f"{bucket}.localhost:{store.port}" for host in hosts)
    assert _drain(store.boto(), bucket, "dir/a b.bin") == small, "by path it is the same object"


def test_boto3_presigned(store: Store, bucket: str, small: bytes) -> None:
    client = store.boto(signature_version="s3v4")
    url = client.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "a b"}, ExpiresIn=60)
    request = urllib.request.Request(url, data=small, method="PUT", headers={"Content-Type": "application/octet-stream"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b"}, ExpiresIn=60)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == small


def test_minio(store: Store, bucket: str, small: bytes, large: bytes, large_file: Path, tmp_path: Path) -> None:
    client = minio.Minio(
        endpoint=f"{store.host}:{store.port}", access_key=store.access_key, secret_key=store.secret_key, secure=False, region=store.region
    )
    assert client.bucket_exists(bucket_name=bucket) and not client.bucket_exists(bucket_name=f"{bucket}-not")
    for key in ODD_KEYS:
        client.put_object(bucket_name=bucket, object_name=key, data=io.BytesIO(small), length=len(small), metadata={"color": "blue"})
        assert client.stat_object(bucket_name=bucket, object_name=key).metadata["x-amz-meta-color"] == "blue"
        answer = client.get_object(bucket_name=bucket, object_name=key)
        assert answer.read() == small
        answer.close()
        answer.release_conn()
    assert sorted(entry.object_name for entry in client.list_objects(bucket_name=bucket, recursive=True)) == sorted(ODD_KEYS)

    client.fput_object(bucket_name=bucket, object_name="large", file_path=str(large_file), part_size=8 * MIB)
    client.copy_object(
        bucket_name=bucket, object_name="copied", source=minio.commonconfig.CopySource(bucket_name=bucket, object_name="large")
    )
    client.compose_object(
        bucket_name=bucket,
        object_name="composed",
        sources=[minio.commonconfig.ComposeSource(bucket_name=bucket, object_name=name) for name in ("large", "plain.bin")],
    )
    for name, content in {"large": large, "copied": large, "composed": large + small}.items():
        client.fget_object(bucket_name=bucket, object_name=name, file_path=str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == content
    url = client.presigned_get_object(bucket_name=bucket, object_name="plain.bin", expires=timedelta(minutes=1))
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == small
    doomed = [minio.deleteobjects.DeleteObject(name) for name in [*ODD_KEYS, "large", "copied", "composed"]]
    assert not list(client.remove_objects(bucket_name=bucket, delete_object_list=doomed))
    client.remove_bucket(bucket_name=bucket)


def test_obstore(store: Store, bucket: str, small: bytes, large: bytes) -> None:
    client = S3Store(
        bucket,
        endpoint=store.endpoint,
        access_key_id=store.access_key,
        secret_access_key=store.secret_key,
        region=store.region,
        client_options={"allow_http": True},
        conditional_put="etag",
    )
    for key in ODD_KEYS:
        obstore.put(client, key, small, attributes={"Content-Type": "x/y"})
        assert bytes(obstore.get(client, key).bytes()) == small
    assert sorted(entry["path"] for page in obstore.list(client) for entry in page) == sorted(ODD_KEYS)

    obstore.put(client, "large", large, use_multipart=True, chunk_size=8 * MIB)
    assert bytes(obstore.get(client, "large").bytes()) == large
    assert bytes(obstore.get_range(client, "large", start=1000, end=70_000)) == large[1000:70_000]
    obstore.copy(client, "large", "copied")
    assert obstore.head(client, "copied")["size"] == len(large)

    obstore.put(client, "once", b"first", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(client, "once", b"second", mode="create")
    etag = obstore.head(client, "once")["e_tag"]
    obstore.put(client, "once", b"third", mode={"e_tag": etag})
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(client, "once", b"fourth", mode={"e_tag": etag})
    assert bytes(obstore.get(client, "once").bytes()) == b"third"
    obstore.delete(client, [*ODD_KEYS, "large", "copied", "once"])
    assert not [entry for page in obstore.list(client) for entry in page]


def test_s3fs(store: Store, bucket: str, small: bytes, large: bytes, large_file: Path, tmp_path: Path) -> None:
    files = s3fs.S3FileSystem(
        key=store.access_key,
        secret=store.secret_key,
        endpoint_url=store.endpoint,
        client_kwargs={"region_name": store.region},
        skip_instance_cache=True,
    )
    for key in ODD_KEYS:
        files.pipe_file(f"{bucket}/{key}", small)
        assert files.cat_file(f"{bucket}/{key}") == small
    assert sorted(files.find(bucket)) == sorted(f"{bucket}/{key}" for key in ODD_KEYS)
    files.put_file(str(large_file), f"{bucket}/large")
    with files.open(f"{bucket}/written", "wb", block_size=8 * MIB) as sink:
        for start in range(0, len(large), 3 * MIB):
            sink.write(large[start : start + 3 * MIB])
    files.copy(f"{bucket}/large", f"{bucket}/copied")
    for name in ("large", "written", "copied"):
        files.get_file(f"{bucket}/{name}", str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == large
    with files.open(f"{bucket}/large", "rb") as source:
        source.seek(12_345)
        assert source.read(1000) == large[12_345:13_345]
    files.rm(bucket, recursive=True)
    assert not files.exists(bucket)


def test_pyarrow(store: Store, bucket: str, small: bytes, large: bytes) -> None:
    files = pa.fs.S3FileSystem(
        access_key=store.access_key,
        secret_key=store.secret_key,
        endpoint_override=f"{store.host}:{store.port}",
        scheme="http",
        region=store.region,
        allow_bucket_deletion=True,
    )
    for key, content in {"dir/small": small, "dir/empty": b"", "large": large}.items():
        with files.open_output_stream(f"{bucket}/{key}") as sink:
            sink.write(content)
        with files.open_input_stream(f"{bucket}/{key}") as source:
            assert source.read() == content
    table = pa.table({"step": list(range(10_000)), "name": [f"row {row}" for row in range(10_000)]})
    pa.parquet.write_table(table, f"{bucket}/dir/table.parquet", filesystem=files)
    assert pa.parquet.read_table(f"{bucket}/dir/table.parquet", filesystem=files, columns=["step"]) == table.select(["step"])
    listed = files.get_file_info(pa.fs.FileSelector(bucket, recursive=True))
    assert {info.path for info in listed if info.is_file} == {
        f"{bucket}/{key}" for key in ("dir/small", "dir/empty", "dir/table.parquet", "large")
    }
    files.copy_file(f"{bucket}/large", f"{bucket}/copied")
    with files.open_input_file(f"{bucket}/copied") as source:
        assert source.read_at(1000, len(large) - 1000) == large[-1000:]
    files.delete_dir_contents(bucket)
    files.delete_dir(bucket)


def test_no_client_content_is_damaged_by_a_digest_of_zero_bytes(store: Store, bucket: str) -> None:
    client = store.boto()
    etag = client.put_object(Bucket=bucket, Key="empty", Body=b"")["ETag"]
    assert etag.strip('"') == hashlib.md5(b"").hexdigest()
    assert _drain(client, bucket, "empty") == b""


def test_an_expected_continue_comes_before_the_answer_to_an_empty_body(store: Store, bucket: str) -> None:
    """Without it the botocore inside aws-cli misreads the connection's next answer, and waits for a minute."""
    url = store.boto(signature_version="s3v4").generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "k"})
    target = url.removeprefix(store.endpoint)
    head = f"PUT {target} HTTP/1.1\r\nHost: {store.host}:{store.port}\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection((store.host, store.port), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"Content-Length: 0" not in answer:
            answer += connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
