"""Documents that the server answers with, read back by botocore's parser."""

import datetime
from xml.etree import ElementTree

import botocore.parsers
import botocore.session
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forebay.s3 import xml_responses as x
from forebay.s3.checksums import Algorithm, Checksum, ChecksumType

MODEL = botocore.session.get_session().get_service_model("s3")
OWNER = x.Owner("id", "na<me>")
TIME_NS = 1_750_000_000_123_456_789
TIME = datetime.datetime(2025, 6, 15, 15, 6, 40, 123_000, tzinfo=datetime.UTC)
ODD = " a&b<c>\"d'é😀]]> "
CRC = Checksum(Algorithm.CRC32, bytes(4))
COMPOSITE = Checksum(Algorithm.SHA1, bytes(20), 3)
OWNER_READ = {"ID": "id", "DisplayName": "na<me>"}
XML_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=20)


def read(operation, body, status=200):
    shape = MODEL.operation_model(operation).output_shape
    parsed = botocore.parsers.create_parser("rest-xml").parse({"status_code": status, "headers": {}, "body": body}, shape)
    parsed.pop("ResponseMetadata")
    return parsed


def listing(**changes):
    fields = {
        "bucket": "b",
        "prefix": "",
        "delimiter": None,
        "max_keys": 1000,
        "prefixes": (),
        "is_truncated": False,
        "encoding_url": False,
        "owner": None,
    }
    return x.Listing(**fields | changes)


def test_list_buckets():
    body = x.list_buckets(OWNER, [x.BucketEntry("b1", TIME_NS)], prefix="b", next_token="t", region="r")
    assert read("ListBuckets", body) == {
        "Owner": OWNER_READ,
        "Buckets": [{"Name": "b1", "CreationDate": TIME, "BucketRegion": "r"}],
        "Prefix": "b",
        "ContinuationToken": "t",
    }
    assert read("ListBuckets", x.list_buckets(OWNER, []))["Buckets"] == []


ENTRY = x.ObjectEntry(ODD, TIME_NS, "e-1", 5, "STANDARD", Algorithm.CRC32, ChecksumType.FULL_OBJECT)
ENTRY_READ = {
    "Key": ODD,
    "LastModified": TIME,
    "ETag": '"e-1"',
    "Size": 5,
    "StorageClass": "STANDARD",
    "ChecksumAlgorithm": ["CRC32"],
    "ChecksumType": "FULL_OBJECT",
}


def test_list_objects_v1():
    full = listing(prefix=ODD, delimiter="/", prefixes=[ODD + "/", "b/"], is_truncated=True, owner=OWNER, max_keys=2)
    assert read("ListObjects", x.list_objects_v1(full, [ENTRY], ODD, ODD)) == {
        "Name": "b",
        "Prefix": ODD,
        "Marker": ODD,
        "NextMarker": ODD,
        "MaxKeys": 2,
        "Delimiter": "/",
        "IsTruncated": True,
        "Contents": [ENTRY_READ | {"Owner": OWNER_READ}],
        "CommonPrefixes": [{"Prefix": ODD + "/"}, {"Prefix": "b/"}],
    }
    empty = read("ListObjects", x.list_objects_v1(listing(), [], "", None))
    assert empty == {"Name": "b", "Prefix": "", "Marker": "", "MaxKeys": 1000, "IsTruncated": False}


def test_list_objects_v2():
    body = x.list_objects_v2(listing(prefixes=["p/"], delimiter="/"), [ENTRY], continuation_token="a", next_token="b", start_after=ODD)
    assert read("ListObjectsV2", body) == {
        "Name": "b",
        "Prefix": "",
        "MaxKeys": 1000,
        "Delimiter": "/",
        "KeyCount": 2,
        "IsTruncated": False,
        "ContinuationToken": "a",
        "NextContinuationToken": "b",
        "StartAfter": ODD,
        "Contents": [ENTRY_READ],
        "CommonPrefixes": [{"Prefix": "p/"}],
    }


def test_url_encoding_as_clients_decode_it():
    from urllib.parse import unquote_plus

    odd = "a+b c/d%é\x01\x00\n*~"
    coded = listing(prefix=odd, delimiter=odd, prefixes=[odd], encoding_url=True)
    entry = msgspec.structs.replace(ENTRY, key=odd)
    for name, body in (
        ("ListObjects", x.list_objects_v1(coded, [entry], odd, odd)),
        ("ListObjectsV2", x.list_objects_v2(coded, [entry], continuation_token=None, next_token=None, start_after=odd)),
    ):
        found = read(name, body)
        assert found["EncodingType"] == "url"
        texts = [found["Prefix"], found["Delimiter"], found["Contents"][0]["Key"], found["CommonPrefixes"][0]["Prefix"]]
        texts += [found[key] for key in ("Marker", "NextMarker", "StartAfter") if key in found]
        assert {unquote_plus(text) for text in texts} == {odd}
    assert b"a%2Bb%20c/d%25%C3%A9%01%00%0A%2A~" in body


def test_control_characters_are_references():
    body = x.list_objects_v1(listing(), [msgspec.structs.replace(ENTRY, key="a\x01\x00\r\n\t\x7f\ufffe\u2028")], "", None)
    assert "<Key>a&#x1;&#x0;&#xD;&#xA;&#x9;\x7f&#xFFFE;\u2028</Key>".encode() in body


def test_carriage_returns_survive_parsing():
    body = x.list_objects_v1(listing(), [msgspec.structs.replace(ENTRY, key="a\r\nb\tc")], "", None)
    assert read("ListObjects", body)["Contents"][0]["Key"] == "a\r\nb\tc"


def test_list_versions():
    versions = [
        x.VersionEntry(ODD, "v2", True, True, TIME_NS),
        x.VersionEntry("k", "null", False, False, TIME_NS, "e", 7, "STANDARD", Algorithm.SHA1, ChecksumType.COMPOSITE),
    ]
    body = x.list_versions(
        listing(owner=OWNER, is_truncated=True),
        versions,
        key_marker="a",
        version_id_marker="b",
        next_key_marker=ODD,
        next_version_id_marker="d",
    )
    found = read("ListObjectVersions", body)
    assert found["DeleteMarkers"] == [{"Key": ODD, "VersionId": "v2", "IsLatest": True, "LastModified": TIME, "Owner": OWNER_READ}]
    assert found["Versions"] == [
        {
            "Key": "k",
            "VersionId": "null",
            "IsLatest": False,
            "LastModified": TIME,
            "Owner": OWNER_READ,
            "ETag": '"e"',
            "Size": 7,
            "StorageClass": "STANDARD",
            "ChecksumAlgorithm": ["SHA1"],
            "ChecksumType": "COMPOSITE",
        }
    ]
    assert [found[k] for k in ("KeyMarker", "VersionIdMarker", "NextKeyMarker", "NextVersionIdMarker")] == ["a", "b", ODD, "d"]
    assert body.index(b"<DeleteMarker>") < body.index(b"<Version>")


PAGE = x.PartsPage([x.PartEntry(4, TIME_NS, "e", 9, CRC)], 3, 4, 1, True)


def test_list_parts():
    upload = x.UploadEntry(ODD, "u", TIME_NS, "STANDARD", Algorithm.CRC32, ChecksumType.COMPOSITE)
    assert read("ListParts", x.list_parts("b", upload, OWNER, PAGE)) == {
        "Bucket": "b",
        "Key": ODD,
        "UploadId": "u",
        "Initiator": OWNER_READ,
        "Owner": OWNER_READ,
        "StorageClass": "STANDARD",
        "PartNumberMarker": 3,
        "NextPartNumberMarker": 4,
        "MaxParts": 1,
        "IsTruncated": True,
        "ChecksumAlgorithm": "CRC32",
        "ChecksumType": "COMPOSITE",
        "Parts": [{"PartNumber": 4, "LastModified": TIME, "ETag": '"e"', "Size": 9, "ChecksumCRC32": "AAAAAA=="}],
    }


def test_list_multipart_uploads():
    page = x.UploadsPage(
        uploads=[x.UploadEntry(ODD, "u", TIME_NS)],
        prefix=ODD,
        delimiter="/",
        prefixes=["p/"],
        key_marker="km",
        upload_id_marker="um",
        next_key_marker="nk",
        next_upload_id_marker="nu",
        max_uploads=1,
        is_truncated=True,
        encoding_url=False,
    )
    assert read("ListMultipartUploads", x.list_multipart_uploads("b", OWNER, page)) == {
        "Bucket": "b",
        "KeyMarker": "km",
        "UploadIdMarker": "um",
        "NextKeyMarker": "nk",
        "NextUploadIdMarker": "nu",
        "Prefix": ODD,
        "Delimiter": "/",
        "MaxUploads": 1,
        "IsTruncated": True,
        "Uploads": [
            {
                "Key": ODD,
                "UploadId": "u",
                "Initiated": TIME,
                "StorageClass": "STANDARD",
                "Owner": OWNER_READ,
                "Initiator": OWNER_READ,
            }
        ],
        "CommonPrefixes": [{"Prefix": "p/"}],
    }


def test_multipart_results():
    assert read("CreateMultipartUpload", x.initiate_multipart("b", ODD, "u")) == {"Bucket": "b", "Key": ODD, "UploadId": "u"}
    body = x.complete_multipart("http://h/b/k", "b", ODD, "e-3", COMPOSITE)
    assert read("CompleteMultipartUpload", body) == {
        "Location": "http://h/b/k",
        "Bucket": "b",
        "Key": ODD,
        "ETag": '"e-3"',
        "ChecksumSHA1": COMPOSITE.text,
        "ChecksumType": "COMPOSITE",
    }


def test_copy_results():
    assert read("CopyObject", x.copy_object("e", TIME_NS, CRC)) == {
        "CopyObjectResult": {"ETag": '"e"', "LastModified": TIME, "ChecksumCRC32": "AAAAAA==", "ChecksumType": "FULL_OBJECT"}
    }
    assert read("UploadPartCopy", x.copy_part("e", TIME_NS, None)) == {"CopyPartResult": {"ETag": '"e"', "LastModified": TIME}}


def test_delete_result():
    results = [
        x.Deleted(ODD),
        x.Deleted("marker", None, "m1"),
        x.Deleted("version", "v", "v"),
        x.DeleteFailed("bad", "v", "AccessDenied", "Access <Denied>"),
    ]
    failed = [{"Key": "bad", "VersionId": "v", "Code": "AccessDenied", "Message": "Access <Denied>"}]
    assert read("DeleteObjects", x.delete_result(results, quiet=False)) == {
        "Deleted": [
            {"Key": ODD},
            {"Key": "marker", "DeleteMarker": True, "DeleteMarkerVersionId": "m1"},
            {"Key": "version", "VersionId": "v", "DeleteMarker": True, "DeleteMarkerVersionId": "v"},
        ],
        "Errors": failed,
    }
    assert read("DeleteObjects", x.delete_result(results, quiet=True)) == {"Errors": failed}


def test_object_attributes():
    body = x.object_attributes(etag="e", checksum=CRC, size_bytes=0, storage_class="STANDARD", part_count=9, page=PAGE)
    assert read("GetObjectAttributes", body) == {
        "ETag": "e",
        "Checksum": {"ChecksumCRC32": "AAAAAA==", "ChecksumType": "FULL_OBJECT"},
        "ObjectParts": {
            "TotalPartsCount": 9,
            "PartNumberMarker": 3,
            "NextPartNumberMarker": 4,
            "MaxParts": 1,
            "IsTruncated": True,
            "Parts": [{"PartNumber": 4, "Size": 9, "ChecksumCRC32": "AAAAAA=="}],
        },
        "StorageClass": "STANDARD",
        "ObjectSize": 0,
    }
    assert read("GetObjectAttributes", x.object_attributes(size_bytes=5)) == {"ObjectSize": 5}


def test_small_documents():
    assert ElementTree.fromstring(x.location("eu-west-1")).text == "eu-west-1"
    assert ElementTree.fromstring(x.location("us-east-1")).text is None
    assert read("GetBucketVersioning", x.versioning("Enabled")) == {"Status": "Enabled"}
    assert read("GetBucketVersioning", x.versioning(None)) == {}
    assert read("GetObjectTagging", x.tagging([("a", ODD)])) == {"TagSet": [{"Key": "a", "Value": ODD}]}
    assert read("GetObjectTagging", x.tagging([])) == {"TagSet": []}


@given(XML_TEXT, XML_TEXT)
def test_any_text_survives(key, prefix):
    body = x.list_objects_v1(listing(prefix=prefix), [msgspec.structs.replace(ENTRY, key=key)], prefix, None)
    found = read("ListObjects", body)
    assert (found["Contents"][0]["Key"], found["Prefix"], found["Marker"]) == (key, prefix, prefix)
