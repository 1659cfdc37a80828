"""PutObject, GetObject, HeadObject, DeleteObject, copies, tags, conditions, ranges, through boto3."""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import re
from typing import Any

import pytest
from conftest import make_client, refused
from server_process import ServerProcess

INLINE, SMALL_BLOB, STRIPES = 65_536, 65_537, 7_000_001
SIZES = [0, 1, 4096, INLINE, SMALL_BLOB, 1 << 20, 3 << 20, STRIPES]


@pytest.mark.parametrize("size", SIZES)
def test_round_trip(s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="k", Body=data)
    assert put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == data
    assert got["ETag"] == put["ETag"]
    assert got["ContentType"] == "binary/octet-stream"
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["ContentLength"] == size
    assert head["ETag"] == put["ETag"]


def test_large_put_has_an_opaque_etag_unless_md5_is_sent(s3: Any, bucket: str) -> None:
    data = os.urandom((8 << 20) + 1)
    etag = s3.put_object(Bucket=bucket, Key="k", Body=data)["ETag"]
    assert re.fullmatch(r'"[0-9a-f]{32}-1"', etag)
    again = s3.put_object(Bucket=bucket, Key="k", Body=data)["ETag"]
    assert again == etag
    assert s3.put_object(Bucket=bucket, Key="k", Body=data[::-1])["ETag"] != etag
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    assert s3.put_object(Bucket=bucket, Key="k", Body=data, ContentMD5=md5)["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data


@pytest.mark.parametrize("size", [100, 200_000])
def test_wrong_digests_store_nothing(s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=data, ContentMD5=md5) == (400, "BadDigest")
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=data, ContentMD5="nonsense") == (400, "InvalidDigest")
    sha = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=data, ChecksumSHA256=sha) == (400, "BadDigest")
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("size", [0, 1000, SMALL_BLOB])
@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums_are_stored_and_returned(s3: Any, bucket: str, algorithm: str, size: int) -> None:
    data = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="k", Body=data, ChecksumAlgorithm=algorithm)
    value = put[f"Checksum{algorithm}"]
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head[f"Checksum{algorithm}"] == value
    assert head["ChecksumType"] == "FULL_OBJECT"
    assert f"Checksum{algorithm}" not in s3.head_object(Bucket=bucket, Key="k")
    assert s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["Body"].read() == data
    attributes = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["Checksum", "ObjectSize", "ETag"])
    assert attributes["Checksum"][f"Checksum{algorithm}"] == value
    assert attributes["ObjectSize"] == size


@pytest.mark.parametrize("size", [1000, SMALL_BLOB, STRIPES])
def test_crc64nvme_is_computed_if_the_client_sends_nothing(store: ServerProcess, bucket: str, size: int) -> None:
    data = os.urandom(size)
    client = make_client(store, request_checksum_calculation="when_required")
    client.put_object(Bucket=bucket, Key="plain", Body=data)
    known = client.head_object(Bucket=bucket, Key="plain", ChecksumMode="ENABLED")["ChecksumCRC64NVME"]
    assert client.put_object(Bucket=bucket, Key="sent", Body=data, ChecksumAlgorithm="CRC64NVME")["ChecksumCRC64NVME"] == known
    client.close()


def test_attributes_of_an_object(s3: Any, bucket: str) -> None:
    system = {
        "CacheControl": "no-cache",
        "ContentDisposition": 'attachment; filename="x"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "ContentType": "text/plain",
    }
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"One": "1", "two": "b c"}, Tagging="a=1&b=%20c", **system)
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"x"
    assert {name: got[name] for name in system} == system
    assert got["Metadata"] == {"one": "1", "two": "b c"}
    assert got["TagCount"] == 2
    tags = s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": " c"}]


def test_response_overrides(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    got = s3.get_object(Bucket=bucket, Key="k", ResponseContentType="foo/bar", ResponseContentDisposition="é")
    assert got["ContentType"] == "foo/bar"
    assert got["Body"].read() == b"x"
    forged = "a\r\nSet-Cookie: b"
    assert refused(s3.get_object, Bucket=bucket, Key="k", ResponseContentType=forged) == (400, "InvalidArgument")


def test_tagging(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    tags = [{"Key": "\u00e9", "Value": "\u00fc"}, {"Key": "x", "Value": ""}]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags})
    assert sorted(s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"], key=str) == sorted(tags, key=str)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    many = [{"Key": str(number), "Value": ""} for number in range(11)]
    assert refused(s3.put_object_tagging, Bucket=bucket, Key="k", Tagging={"TagSet": many})[0] == 400
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    assert refused(s3.get_object_tagging, Bucket=bucket, Key="none") == (404, "NoSuchKey")


@pytest.mark.parametrize("size", [1000, STRIPES])
def test_ranges(s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    s3.put_object(Bucket=bucket, Key="k", Body=data)
    for start, stop in [(0, 1), (10, 20), (size - 1, size), (size // 3, size - 7)]:
        got = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={start}-{stop - 1}")
        assert got["Body"].read() == data[start:stop]
        assert got["ContentRange"] == f"bytes {start}-{stop - 1}/{size}"
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=-5")["Body"].read() == data[-5:]
    assert s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={size - 3}-")["Body"].read() == data[-3:]
    assert s3.get_object(Bucket=bucket, Key="k", Range=f"bytes=5-{size * 9}")["Body"].read() == data[5:]
    assert refused(s3.get_object, Bucket=bucket, Key="k", Range=f"bytes={size}-") == (416, "InvalidRange")
    assert s3.head_object(Bucket=bucket, Key="k", Range="bytes=1-3")["ContentLength"] == 3


def test_conditional_reads(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    assert s3.get_object(Bucket=bucket, Key="k", IfMatch=etag)["Body"].read() == b"x"
    assert refused(s3.get_object, Bucket=bucket, Key="k", IfMatch='"no"') == (412, "PreconditionFailed")
    assert refused(s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=etag)[0] == 304
    assert refused(s3.head_object, Bucket=bucket, Key="k", IfNoneMatch=etag)[0] == 304


def test_conditional_writes(s3: Any, bucket: str) -> None:
    big = os.urandom(200_000)
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", IfMatch='"a"') == (404, "NoSuchKey")
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x", IfNoneMatch="*")["ETag"]
    for body in (b"y", big):
        assert refused(s3.put_object, Bucket=bucket, Key="k", Body=body, IfNoneMatch="*") == (412, "PreconditionFailed")
        assert refused(s3.put_object, Bucket=bucket, Key="k", Body=body, IfMatch='"no"') == (412, "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    s3.put_object(Bucket=bucket, Key="k", Body=big, IfMatch=etag)
    assert refused(s3.delete_object, Bucket=bucket, Key="k", IfMatch=etag) == (412, "PreconditionFailed")
    assert refused(s3.delete_object, Bucket=bucket, Key="k", IfMatchSize=7) == (412, "PreconditionFailed")
    past = datetime.datetime(2020, 1, 1)
    assert refused(s3.delete_object, Bucket=bucket, Key="k", IfMatchLastModifiedTime=past) == (412, "PreconditionFailed")
    s3.delete_object(Bucket=bucket, Key="k", IfMatch="*", IfMatchSize=len(big))
    assert refused(s3.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")


def test_keys_are_bytes(s3: Any, bucket: str) -> None:
    keys = ["a", "a/", "a/b", "a//b", "/", "//", "..", "../x", "a/../b", ".", " ", "+", "%2F", "é\u00fc\U0001f600", "\x01",
            "x" * 1024, "?q=1&b", "#"]  # fmt: skip
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in keys:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert listed == sorted(keys, key=str.encode)
    assert refused(s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"") == (400, "KeyTooLongError")


@pytest.mark.parametrize("size", [0, 1000, STRIPES])
def test_copy(s3: Any, bucket: str, size: int) -> None:
    data = os.urandom(size)
    s3.put_object(Bucket=bucket, Key="a b/é", Body=data, Metadata={"m": "1"}, ContentType="text/x", Tagging="t=1")
    source = {"Bucket": bucket, "Key": "a b/é"}
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=source)
    got = s3.get_object(Bucket=bucket, Key="copy")
    assert got["Body"].read() == data
    assert (got["Metadata"], got["ContentType"], got["TagCount"]) == ({"m": "1"}, "text/x", 1)
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "2"})
    assert s3.head_object(Bucket=bucket, Key="copy")["Metadata"] == {"n": "2"}
    copied = s3.copy_object(Bucket=bucket, Key="summed", CopySource=source, ChecksumAlgorithm="SHA256")
    assert copied["CopyObjectResult"]["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(data).digest()).decode()
    assert refused(s3.copy_object, Bucket=bucket, Key="a b/é", CopySource=source) == (400, "InvalidRequest")
    s3.delete_object(Bucket=bucket, Key="a b/é")
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == data
    assert refused(s3.copy_object, Bucket=bucket, Key="x", CopySource=source) == (404, "NoSuchKey")


def test_copy_conditions(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    source = f"{bucket}/k"
    s3.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch=etag)
    assert refused(s3.copy_object, Bucket=bucket, Key="c", CopySource=source, CopySourceIfNoneMatch=etag) == (
        412,
        "PreconditionFailed",
    )
    assert refused(s3.copy_object, Bucket=bucket, Key="c", CopySource=source, IfNoneMatch="*")[0] == 412


def test_bulk_delete(s3: Any, bucket: str) -> None:
    keys = [f"k{number:03}" for number in range(300)]
    for key in keys[:40]:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    assert [entry["Key"] for entry in done["Deleted"]] == keys
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    done = s3.delete_objects(Bucket=bucket, Delete={"Quiet": True, "Objects": [{"Key": "k", "ETag": "no"}, {"Key": "x" * 1025}]})
    assert [(error["Key"][:2], error["Code"]) for error in done["Errors"]] == [
        ("k", "PreconditionFailed"),
        ("xx", "KeyTooLongError"),
    ]


def test_versions(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0")
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    ids = [s3.put_object(Bucket=bucket, Key="k", Body=body)["VersionId"] for body in (b"1", os.urandom(200_000))]
    marker = s3.delete_object(Bucket=bucket, Key="k")
    assert marker["DeleteMarker"]
    assert refused(s3.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
    assert s3.get_object(Bucket=bucket, Key="k", VersionId=ids[0])["Body"].read() == b"1"
    assert s3.get_object(Bucket=bucket, Key="k", VersionId="null")["Body"].read() == b"0"
    assert refused(s3.get_object, Bucket=bucket, Key="k", VersionId=marker["VersionId"])[0] == 405
    listed = s3.list_object_versions(Bucket=bucket)
    assert [entry["VersionId"] for entry in listed["Versions"]] == [ids[1], ids[0], "null"]
    assert [entry["IsLatest"] for entry in listed["DeleteMarkers"]] == [True]
    s3.delete_object(Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    assert s3.head_object(Bucket=bucket, Key="k")["VersionId"] == ids[1]
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=bucket, Key="k", Body=b"new null")
    assert s3.get_object(Bucket=bucket, Key="k", VersionId="null")["Body"].read() == b"new null"
    assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 3
    assert refused(s3.get_object, Bucket=bucket, Key="k", VersionId="garbage")[0] == 400


def test_what_is_not_built_says_so(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert refused(s3.put_bucket_policy, Bucket=bucket, Policy="{}") == (501, "NotImplemented")
    assert refused(s3.delete_bucket_policy, Bucket=bucket) == (501, "NotImplemented")
    assert refused(s3.get_object_retention, Bucket=bucket, Key="k") == (501, "NotImplemented")
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"y", ServerSideEncryption="AES256") == (501, "NotImplemented")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_user_metadata_limit(s3: Any, bucket: str) -> None:
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", Metadata={"a": "x" * 2048}) == (400, "MetadataTooLarge")
