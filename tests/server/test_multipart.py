"""Multipart uploads, through boto3."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

import pytest
from conftest import refused

PART = 5 << 20


@pytest.fixture(scope="module")
def blocks() -> list[bytes]:
    return [os.urandom(PART), os.urandom(PART), os.urandom(1234)]


def upload(s3: Any, bucket: str, key: str, blocks: list[bytes], **options: Any) -> tuple[str, list[dict[str, Any]]]:
    """(upload id, the parts as Complete wants them)."""
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"]
    parts = []
    for number, block in enumerate(blocks, 1):
        extra = {"ChecksumAlgorithm": options["ChecksumAlgorithm"]} if "ChecksumAlgorithm" in options else {}
        done = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=block, **extra)
        sums = {name: value for name, value in done.items() if name.startswith("Checksum")}
        parts.append({"PartNumber": number, "ETag": done["ETag"], **sums})
    return upload_id, parts


def complete(s3: Any, bucket: str, key: str, upload_id: str, parts: list[dict[str, Any]], **options: Any) -> Any:
    return s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, **options)


def test_whole_life(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    upload_id, parts = upload(s3, bucket, "k", blocks, Metadata={"m": "1"}, ContentType="text/x", Tagging="t=1")
    assert [entry["UploadId"] for entry in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload_id]
    listed = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload_id, MaxParts=2)
    assert [entry["Size"] for entry in listed["Parts"]] == [PART, PART]
    rest = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload_id, PartNumberMarker=listed["NextPartNumberMarker"])
    assert [entry["PartNumber"] for entry in rest["Parts"]] == [3]
    assert refused(s3.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
    done = complete(s3, bucket, "k", upload_id, parts)
    again = complete(s3, bucket, "k", upload_id, parts)
    assert again["ETag"] == done["ETag"]
    assert done["ETag"].endswith('-3"')
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"".join(blocks)
    assert (got["Metadata"], got["ContentType"], got["TagCount"]) == ({"m": "1"}, "text/x", 1)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_reading_parts(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    upload_id, parts = upload(s3, bucket, "k", blocks)
    complete(s3, bucket, "k", upload_id, parts)
    for number, block in enumerate(blocks, 1):
        got = s3.get_object(Bucket=bucket, Key="k", PartNumber=number)
        assert got["Body"].read() == block
        assert got["PartsCount"] == 3
    assert s3.head_object(Bucket=bucket, Key="k", PartNumber=3)["ContentLength"] == 1234
    assert refused(s3.get_object, Bucket=bucket, Key="k", PartNumber=4) == (400, "InvalidPart")
    straddling = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={PART - 10}-{PART + 9}")["Body"].read()
    assert straddling == blocks[0][-10:] + blocks[1][:10]


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("CRC32C", "FULL_OBJECT"), ("CRC64NVME", "FULL_OBJECT"),
     ("SHA1", "COMPOSITE"), ("SHA256", "COMPOSITE")],
)  # fmt: skip
def test_checksums(s3: Any, bucket: str, blocks: list[bytes], algorithm: str, kind: str) -> None:
    upload_id, parts = upload(s3, bucket, "k", blocks, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    done = complete(s3, bucket, "k", upload_id, parts, ChecksumType=kind)
    value = done[f"Checksum{algorithm}"]
    assert value.endswith("-3") == (kind == "COMPOSITE")
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[f"Checksum{algorithm}"], head["ChecksumType"]) == (value, kind)
    if kind == "FULL_OBJECT":
        whole = s3.put_object(Bucket=bucket, Key="whole", Body=b"".join(blocks), ChecksumAlgorithm=algorithm)
        assert whole[f"Checksum{algorithm}"] == value
    elif algorithm == "SHA256":
        digests = b"".join(hashlib.sha256(block).digest() for block in blocks)
        assert value == base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-3"
    attributes = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts", "Checksum"])
    assert attributes["ObjectParts"]["TotalPartsCount"] == 3
    assert len(attributes["ObjectParts"]["Parts"]) == 3


def test_wrong_completions(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    upload_id, parts = upload(s3, bucket, "k", blocks)
    wrong = [{**parts[0], "ETag": '"0123"'}, *parts[1:]]
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=wrong) == (400, "InvalidPart")
    backwards = parts[::-1]
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=backwards) == (
        400,
        "InvalidPartOrder",
    )
    small_first = [{**parts[2], "PartNumber": 3}, {"PartNumber": 4, "ETag": parts[0]["ETag"]}]
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=small_first)[0] == 400
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    with_condition = {"s3": s3, "bucket": bucket, "key": "k", "upload_id": upload_id, "parts": parts}
    assert refused(complete, IfNoneMatch="*", **with_condition) == (412, "PreconditionFailed")
    complete(s3, bucket, "k", upload_id, parts)
    other = [parts[0]]
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=other) == (404, "NoSuchUpload")


def test_a_long_list_of_parts(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    """Its document is parsed by a thread."""
    upload_id, parts = upload(s3, bucket, "k", blocks[:2])
    absent = [{"PartNumber": number, "ETag": "0" * 32} for number in range(len(parts) + 1, 2000)]
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=parts + absent) == (400, "InvalidPart")
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=absent[::-1]) == (400, "InvalidPartOrder")
    complete(s3, bucket, "k", upload_id, parts)


def test_abort(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"live")
    upload_id, _ = upload(s3, bucket, "k", blocks[:1])
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload_id)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"live"
    assert refused(s3.list_parts, Bucket=bucket, Key="k", UploadId=upload_id) == (404, "NoSuchUpload")
    arguments = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
    assert refused(s3.upload_part, PartNumber=1, Body=b"x", **arguments) == (404, "NoSuchUpload")
    assert refused(s3.abort_multipart_upload, Bucket=bucket, Key="k", UploadId="f" * 32) == (404, "NoSuchUpload")


def test_a_part_again_replaces_it(s3: Any, bucket: str, blocks: list[bytes]) -> None:
    upload_id, parts = upload(s3, bucket, "k", blocks[:1])
    again = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload_id, PartNumber=1, Body=blocks[1])
    assert refused(complete, s3=s3, bucket=bucket, key="k", upload_id=upload_id, parts=parts) == (400, "InvalidPart")
    complete(s3, bucket, "k", upload_id, [{"PartNumber": 1, "ETag": again["ETag"]}])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == blocks[1]


def test_empty_part(s3: Any, bucket: str) -> None:
    upload_id, parts = upload(s3, bucket, "k", [b""])
    complete(s3, bucket, "k", upload_id, parts)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b""


@pytest.mark.parametrize("algorithm", [None, "SHA256"])
def test_copied_parts(s3: Any, bucket: str, blocks: list[bytes], algorithm: str | None) -> None:
    data = b"".join(blocks)
    s3.put_object(Bucket=bucket, Key="source", Body=data)
    s3.put_object(Bucket=bucket, Key="little", Body=b"little")
    options = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k", **options)["UploadId"]
    parts = []
    ranges = [f"bytes=7-{PART + 6}", f"bytes={PART - 5}-{2 * PART + 20}", None]
    for number, span in enumerate(ranges, 1):
        arguments = {"CopySourceRange": span} if span else {}
        source = f"{bucket}/{'source' if span else 'little'}"
        copied = s3.upload_part_copy(Bucket=bucket, Key="k", UploadId=upload_id, PartNumber=number, CopySource=source, **arguments)[
            "CopyPartResult"
        ]
        sums = {name: value for name, value in copied.items() if name.startswith("Checksum")}
        parts.append({"PartNumber": number, "ETag": copied["ETag"], **sums})
    complete(s3, bucket, "k", upload_id, parts)
    expected = data[7 : PART + 7] + data[PART - 5 : 2 * PART + 21] + b"little"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == expected
    arguments = {"Bucket": bucket, "Key": "k", "UploadId": upload_id, "PartNumber": 1, "CopySource": f"{bucket}/source"}
    assert refused(s3.upload_part_copy, **arguments) == (404, "NoSuchUpload")


def test_part_numbers(s3: Any, bucket: str) -> None:
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    arguments = {"Bucket": bucket, "Key": "k", "UploadId": upload_id, "Body": b"x"}
    assert refused(s3.upload_part, PartNumber=0, **arguments) == (400, "InvalidArgument")
    assert refused(s3.upload_part, PartNumber=10_001, **arguments) == (400, "InvalidArgument")
