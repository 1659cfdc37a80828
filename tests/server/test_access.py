"""Who may do what: owners, others, anonymous requests; access control lists and the block of public access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from conftest import refused
from server_process import ServerProcess

DENIED = (403, "AccessDenied")
BLOCK = {"BlockPublicAcls": False, "IgnorePublicAcls": False, "BlockPublicPolicy": False, "RestrictPublicBuckets": False}


@pytest.fixture(scope="module")
def anonymous(store: ServerProcess) -> Iterator[Any]:
    config = Config(signature_version=UNSIGNED, retries={"total_max_attempts": 1})
    client = boto3.session.Session().client("s3", endpoint_url=store.endpoint, region_name="us-east-1", config=config)
    yield client
    client.close()


def reads(client: Any, bucket: str, key: str) -> bool:
    """Whether a client may read an object; anything but yes and AccessDenied is an error."""
    try:
        client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except client.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied"
        return False
    return True


@pytest.mark.parametrize(
    ("acl", "others", "everybody"),
    [("private", False, False), ("authenticated-read", True, False), ("public-read", True, True), ("public-read-write", True, True)],
)
def test_canned_lists_of_objects(s3: Any, other: Any, anonymous: Any, bucket: str, acl: str, others: bool, everybody: bool) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL=acl)
    assert (reads(s3, bucket, "k"), reads(other, bucket, "k"), reads(anonymous, bucket, "k")) == (True, others, everybody)
    assert refused(anonymous.put_object, Bucket=bucket, Key="k", Body=b"y") == DENIED, "WRITE is a grant of buckets"
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="private")
    assert not reads(other, bucket, "k") and not reads(anonymous, bucket, "k")


def test_lists_of_buckets(s3: Any, other: Any, anonymous: Any, bucket: str) -> None:
    for client in (other, anonymous):
        assert refused(client.list_objects_v2, Bucket=bucket) == DENIED
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    assert anonymous.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert refused(anonymous.get_object, Bucket=bucket, Key="none") == (404, "NoSuchKey"), "who may list is told"
    assert refused(anonymous.put_object, Bucket=bucket, Key="k", Body=b"") == DENIED
    assert refused(anonymous.get_bucket_acl, Bucket=bucket) == DENIED
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    anonymous.put_object(Bucket=bucket, Key="k", Body=b"x")
    anonymous.delete_object(Bucket=bucket, Key="k")
    assert refused(anonymous.delete_bucket, Bucket=bucket) == DENIED


def test_grants_in_headers_and_documents(s3: Any, other: Any, bucket: str) -> None:
    account = other.list_buckets()["Owner"]["ID"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", GrantRead=f"id={account}")
    assert reads(other, bucket, "k")
    found = s3.get_object_acl(Bucket=bucket, Key="k")
    assert [(g["Grantee"]["ID"], g["Permission"]) for g in found["Grants"]] == [(account, "READ")]
    assert refused(other.get_object_acl, Bucket=bucket, Key="k") == DENIED
    found["Grants"][0]["Permission"] = "READ_ACP"
    s3.put_object_acl(Bucket=bucket, Key="k", AccessControlPolicy={"Grants": found["Grants"], "Owner": found["Owner"]})
    assert not reads(other, bucket, "k")
    assert other.get_object_acl(Bucket=bucket, Key="k")["Grants"] == found["Grants"]
    nobody = f"id={'0' * 64}"
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", GrantRead=nobody) == (400, "InvalidArgument")
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", GrantRead=f"id={account}", ACL="private") == (400, "InvalidRequest")


def test_an_anonymous_copy_reads_no_more_than_an_anonymous_read(s3: Any, anonymous: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    s3.put_object(Bucket=bucket, Key="for-accounts", Body=b"x", ACL="authenticated-read")
    s3.put_object(Bucket=bucket, Key="for-all", Body=b"x", ACL="public-read")
    assert not reads(anonymous, bucket, "for-accounts")
    assert refused(anonymous.copy_object, Bucket=bucket, Key="copy", CopySource=f"{bucket}/for-accounts") == DENIED
    upload = anonymous.create_multipart_upload(Bucket=bucket, Key="copy")["UploadId"]
    source = {"CopySource": f"{bucket}/for-accounts", "PartNumber": 1, "UploadId": upload}
    assert refused(anonymous.upload_part_copy, Bucket=bucket, Key="copy", **source) == DENIED
    anonymous.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/for-all")
    anonymous.abort_multipart_upload(Bucket=bucket, Key="copy", UploadId=upload)


def test_public_grants_are_ignored_where_the_bucket_says_so(s3: Any, other: Any, anonymous: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    for key, acl in (("all", "public-read"), ("accounts", "authenticated-read")):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", ACL=acl)
    account = other.list_buckets()["Owner"]["ID"]
    s3.put_object(Bucket=bucket, Key="one", Body=b"x", GrantRead=f"id={account}")
    s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration={**BLOCK, "IgnorePublicAcls": True})
    assert not reads(anonymous, bucket, "all") and not reads(other, bucket, "all") and not reads(other, bucket, "accounts")
    assert reads(other, bucket, "one") and reads(s3, bucket, "all"), "grants to one account and owners are not public"
    assert refused(anonymous.list_objects_v2, Bucket=bucket) == DENIED
    s3.delete_public_access_block(Bucket=bucket)
    assert reads(anonymous, bucket, "all")


def test_public_grants_are_refused_where_the_bucket_says_so(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    settings = {**BLOCK, "BlockPublicAcls": True}
    s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=settings)
    assert s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"] == settings
    for acl in ("public-read", "public-read-write", "authenticated-read"):
        assert refused(s3.put_bucket_acl, Bucket=bucket, ACL=acl) == DENIED
        assert refused(s3.put_object_acl, Bucket=bucket, Key="k", ACL=acl) == DENIED
        assert refused(s3.put_object, Bucket=bucket, Key="new", Body=b"", ACL=acl) == DENIED
        assert refused(s3.copy_object, Bucket=bucket, Key="new", CopySource=f"{bucket}/k", ACL=acl) == DENIED
        assert refused(s3.create_multipart_upload, Bucket=bucket, Key="new", ACL=acl) == DENIED
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="private")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_bucket_tags_and_expected_owners(s3: Any, other: Any, bucket: str) -> None:
    assert refused(s3.get_bucket_tagging, Bucket=bucket) == (404, "NoSuchTagSet")
    tags = [{"Key": "team", "Value": "vision"}]
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
    assert refused(other.put_bucket_tagging, Bucket=bucket, Tagging={"TagSet": []}) == DENIED
    s3.delete_bucket_tagging(Bucket=bucket)
    assert refused(s3.get_bucket_tagging, Bucket=bucket) == (404, "NoSuchTagSet")
    assert refused(s3.get_public_access_block, Bucket=bucket) == (404, "NoSuchPublicAccessBlockConfiguration")
    mine, theirs = (client.list_buckets()["Owner"]["ID"] for client in (s3, other))
    assert s3.list_objects_v2(Bucket=bucket, ExpectedBucketOwner=mine)["KeyCount"] == 0
    assert refused(s3.list_objects_v2, Bucket=bucket, ExpectedBucketOwner=theirs) == DENIED
