"""Buckets and listings, through boto3."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import refused


def test_life_of_a_bucket(s3: Any) -> None:
    s3.create_bucket(Bucket="life-1")
    s3.create_bucket(Bucket="life-1")  # us-east-1: one's own again
    assert s3.head_bucket(Bucket="life-1")["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket="life-1")["LocationConstraint"] is None
    assert "life-1" in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket="life-1", Key="k", Body=b"")
    assert refused(s3.delete_bucket, Bucket="life-1") == (409, "BucketNotEmpty")
    s3.delete_object(Bucket="life-1", Key="k")
    s3.delete_bucket(Bucket="life-1")
    assert refused(s3.head_bucket, Bucket="life-1")[0] == 404
    assert refused(s3.delete_bucket, Bucket="life-1") == (404, "NoSuchBucket")
    assert refused(s3.put_object, Bucket="life-1", Key="k", Body=b"x" * 100_000) == (404, "NoSuchBucket")
    assert refused(s3.list_objects_v2, Bucket="life-1") == (404, "NoSuchBucket")


def test_names_and_regions(s3: Any) -> None:
    assert refused(s3.create_bucket, Bucket="forebay") == (400, "InvalidBucketName")
    assert refused(s3.create_bucket, Bucket="Upper_Case") == (400, "InvalidBucketName")
    wrong = {"LocationConstraint": "eu-central-1"}
    assert refused(s3.create_bucket, Bucket="region-1", CreateBucketConfiguration=wrong)[0] == 400


def test_users_keep_to_their_own_buckets(s3: Any, other: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    other.create_bucket(Bucket="others-own")
    other.put_object(Bucket="others-own", Key="k", Body=b"y")
    assert [entry["Name"] for entry in other.list_buckets()["Buckets"]] == ["others-own"]
    assert refused(other.create_bucket, Bucket=bucket) == (409, "BucketAlreadyExists")
    for call, arguments in [
        (other.get_object, {"Key": "k"}),
        (other.put_object, {"Key": "k", "Body": b"z"}),
        (other.delete_object, {"Key": "k"}),
        (other.list_objects_v2, {}),
        (other.delete_bucket, {}),
    ]:
        assert refused(call, Bucket=bucket, **arguments) == (403, "AccessDenied")
    source = f"{bucket}/k"
    assert refused(other.copy_object, Bucket="others-own", Key="c", CopySource=source) == (403, "AccessDenied")
    upload = other.create_multipart_upload(Bucket="others-own", Key="c")["UploadId"]
    part = {"Bucket": "others-own", "Key": "c", "UploadId": upload, "PartNumber": 1, "CopySource": source}
    assert refused(other.upload_part_copy, **part) == (403, "AccessDenied")
    assert s3.get_object(Bucket="others-own", Key="k")["Body"].read() == b"y"


@pytest.fixture
def filled(s3: Any, bucket: str) -> str:
    for key in ["a", "b/", "b/1", "b/2", "c/x/1", "c/x/2", "d", "é/1"]:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
@pytest.mark.parametrize("version", ["list_objects", "list_objects_v2"])
def test_pages_hold_everything_once(s3: Any, filled: str, version: str, page: int) -> None:
    pages = s3.get_paginator(version).paginate(Bucket=filled, PaginationConfig={"PageSize": page})
    keys = [entry["Key"] for each in pages for entry in each.get("Contents", [])]
    assert keys == ["a", "b/", "b/1", "b/2", "c/x/1", "c/x/2", "d", "é/1"]
    pages = list(s3.get_paginator(version).paginate(Bucket=filled, Delimiter="/", PaginationConfig={"PageSize": page}))
    found = [entry["Key"] for each in pages for entry in each.get("Contents", [])]
    prefixes = [entry["Prefix"] for each in pages for entry in each.get("CommonPrefixes", [])]
    assert (found, prefixes) == (["a", "d"], ["b/", "c/", "é/"])


def test_listing_details(s3: Any, filled: str) -> None:
    page = s3.list_objects_v2(Bucket=filled, Prefix="b/", Delimiter="/", FetchOwner=True)
    assert [entry["Key"] for entry in page["Contents"]] == ["b/", "b/1", "b/2"]
    assert page["Contents"][0]["Owner"]["DisplayName"]
    assert page["KeyCount"] == 3
    assert s3.list_objects_v2(Bucket=filled, MaxKeys=0)["IsTruncated"] is False
    assert s3.list_objects_v2(Bucket=filled, StartAfter="c/x/2")["KeyCount"] == 2
    assert s3.list_objects(Bucket=filled, Marker="d")["Contents"][0]["Key"] == "é/1"
    assert refused(s3.list_objects_v2, Bucket=filled, ContinuationToken="nonsense") == (400, "InvalidArgument")
    assert refused(s3.list_objects_v2, Bucket=filled, EncodingType="base64") == (400, "InvalidArgument")


def test_version_pages(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    expected = []
    for key in ("a", "b"):
        ids = [s3.put_object(Bucket=bucket, Key=key, Body=str(number).encode())["VersionId"] for number in range(3)]
        expected += [(key, version) for version in reversed(ids)]
    for page in (1, 2, 4, 1000):
        pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": page})
        assert [(entry["Key"], entry["VersionId"]) for each in pages for entry in each["Versions"]] == expected


def test_bucket_pages(s3: Any) -> None:
    for number in range(3):
        s3.create_bucket(Bucket=f"paged-{number}")
    first = s3.list_buckets(Prefix="paged-", MaxBuckets=2)
    assert [entry["Name"] for entry in first["Buckets"]] == ["paged-0", "paged-1"]
    rest = s3.list_buckets(Prefix="paged-", MaxBuckets=2, ContinuationToken=first["ContinuationToken"])
    assert [entry["Name"] for entry in rest["Buckets"]] == ["paged-2"]
    assert "ContinuationToken" not in rest
