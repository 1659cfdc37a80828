"""Documents that clients send: those that botocore writes, and those that attack."""

import botocore.serialize
import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3 import xml_requests
from forebay.s3.checksums import Algorithm, Checksum
from forebay.s3.conditions import WriteCondition
from forebay.s3.xml_requests import (
    CompletedPart,
    DeleteRequest,
    ObjectToDelete,
    parse_complete_multipart,
    parse_create_bucket,
    parse_delete,
    parse_tagging,
    parse_versioning,
)

PARSERS = [parse_complete_multipart, parse_create_bucket, parse_delete, parse_tagging, parse_versioning]
MODEL = botocore.session.get_session().get_service_model("s3")
XML_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=20)


def written(operation, **parameters):
    """The body that botocore sends."""
    serializer = botocore.serialize.create_serializer("rest-xml", include_validation=False)
    operation_model = MODEL.operation_model(operation)
    where = {name: "x" for name in ("Bucket", "Key") if name in operation_model.input_shape.members}
    body = serializer.serialize_to_request(where | parameters, operation_model)["body"]
    return body if isinstance(body, bytes) else body.encode()


def code_of(parser, body):
    with pytest.raises(StoreError) as caught:
        parser(body)
    return caught.value.code


def test_complete_multipart_from_botocore():
    body = written(
        "CompleteMultipartUpload",
        MultipartUpload={
            "Parts": [
                {"PartNumber": 1, "ETag": '"abc"', "ChecksumCRC32": "AAAAAA=="},
                {"PartNumber": 3, "ETag": "def-2"},
            ]
        },
    )
    assert parse_complete_multipart(body) == [
        CompletedPart(1, "abc", Checksum(Algorithm.CRC32, bytes(4))),
        CompletedPart(3, "def-2", None),
    ]


def part(number, etag="e", more=""):
    return f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>{more}</Part>"


def complete(*parts):
    return f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>".encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MalformedXML"),
        (complete(), "MalformedXML"),
        (complete(part(2), part(1)), "InvalidPartOrder"),
        (complete(part(1), part(1)), "InvalidPartOrder"),
        (complete(part(0)), "InvalidArgument"),
        (complete(part(10_001)), "InvalidArgument"),
        (complete(part("x")), "MalformedXML"),
        (complete(part("²")), "MalformedXML"),
        (complete(part("-1")), "MalformedXML"),
        (complete(part("1" * 5000)), "MalformedXML"),
        (complete("<Part><PartNumber>1</PartNumber></Part>"), "MalformedXML"),
        (complete("<Part><ETag>1</ETag></Part>"), "MalformedXML"),
        (complete(part(1, more="<ETag>f</ETag>")), "MalformedXML"),
        (complete(part(1, more="<ChecksumSHA1>bad</ChecksumSHA1>")), "BadDigest"),
        (complete(part(1, more="<ChecksumCRC32>AAAAAA==</ChecksumCRC32><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>")), "InvalidRequest"),
        (complete(part(1, "<b>e</b>")), "MalformedXML"),
        (b"<Delete><Object><Key>k</Key></Object></Delete>", "MalformedXML"),
        (b" " * (5 << 20), "MaxMessageLengthExceeded"),
    ],
)
def test_refused_completions(body, code):
    assert code_of(parse_complete_multipart, body) == code


def test_ten_thousand_parts():
    body = complete(
        *(part(n, "&quot;" + "a" * 32 + "&quot;", "<ChecksumSHA256>" + "A" * 43 + "=</ChecksumSHA256>") for n in range(1, 10_001))
    )
    assert len(body) < xml_requests.COMPLETE_BYTES_MAX
    assert len(parse_complete_multipart(body)) == 10_000


def test_namespaces_and_prefixes():
    body = b'<s:CompleteMultipartUpload xmlns:s="http://s3.amazonaws.com/doc/2006-03-01/"><s:Part>'
    body += b"<s:PartNumber> 1 </s:PartNumber>\n<s:ETag>e</s:ETag><s:New/></s:Part></s:CompleteMultipartUpload>"
    assert parse_complete_multipart(body) == [CompletedPart(1, "e", None)]


@given(st.lists(st.tuples(XML_TEXT.filter(bool), st.none() | st.text("abc0", min_size=1)), min_size=1, max_size=5), st.booleans())
def test_delete_from_botocore(pairs, quiet):
    objects = [{"Key": key} | ({"VersionId": version} if version else {}) for key, version in pairs]
    body = written("DeleteObjects", Delete={"Objects": objects, "Quiet": quiet})
    assert parse_delete(body) == DeleteRequest([ObjectToDelete(*pair) for pair in pairs], quiet)


def test_delete_conditions_from_botocore():
    body = written(
        "DeleteObjects", Delete={"Objects": [{"Key": "k", "ETag": '"e"', "Size": 5, "LastModifiedTime": "2025-06-15T15:06:40Z"}]}
    )
    assert parse_delete(body).objects == [ObjectToDelete("k", None, WriteCondition(("e",), None, 5, 1_750_000_000, delete=True))]


def test_delete_keeps_white_space_and_references():
    body = b"<Delete><Object><Key> a&#x1F600;\t&lt;&#13; </Key></Object></Delete>"
    assert parse_delete(body).objects[0].key == " a\U0001f600\t<\r "
    body = b"<Delete><Object><Key><![CDATA[<&>]]></Key></Object></Delete>"
    assert parse_delete(body).objects[0].key == "<&>"


def delete(*objects):
    return f"<Delete>{''.join(objects)}</Delete>".encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (delete(), "MalformedXML"),
        (delete("<Object><Key></Key></Object>"), "MalformedXML"),
        (delete("<Object><VersionId>1</VersionId></Object>"), "MalformedXML"),
        (delete("<Object><Key>a</Key></Object>" * 1001), "MalformedXML"),
        (delete("<Object><Key>a</Key><Size>x</Size></Object>"), "InvalidArgument"),
        (delete("<Object><Key>a</Key><LastModifiedTime>x</LastModifiedTime></Object>"), "InvalidArgument"),
        (delete("<Object><Key>a</Key><ETag></ETag></Object>"), "InvalidArgument"),
        (b"<Delete><Object><Key>a</Key></Object>", "MalformedXML"),
        (b"<Delete><Object><Key>a</Object></Delete>", "MalformedXML"),
        (b"<Delete><Object><Key>\x01</Key></Object></Delete>", "MalformedXML"),
        (b"<Delete><Object><Key>\xff</Key></Object></Delete>", "MalformedXML"),
        (delete("<Object><Key>a</Key></Object>") + b"<x/>", "MalformedXML"),
    ],
)
def test_refused_deletes(body, code):
    assert code_of(parse_delete, body) == code


def test_create_bucket():
    assert parse_create_bucket(b"") is None
    assert parse_create_bucket(b" \n") is None
    assert parse_create_bucket(written("CreateBucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})) == "eu-west-1"
    assert parse_create_bucket(b"<CreateBucketConfiguration/>") is None
    assert code_of(parse_create_bucket, b"<Other/>") == "MalformedXML"
    tags = written("CreateBucket", CreateBucketConfiguration={"Tags": [{"Key": "a", "Value": "b"}]})
    assert code_of(parse_create_bucket, tags) == "NotImplemented"


def test_versioning():
    for status in ("Enabled", "Suspended"):
        assert parse_versioning(written("PutBucketVersioning", VersioningConfiguration={"Status": status})) == status
    assert parse_versioning(b"<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Disabled</MfaDelete></VersioningConfiguration>")
    assert code_of(parse_versioning, b"<VersioningConfiguration/>") == "IllegalVersioningConfigurationException"
    assert code_of(parse_versioning, b"<VersioningConfiguration><Status>On</Status></VersioningConfiguration>") == "MalformedXML"
    mfa = b"<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Enabled</MfaDelete></VersioningConfiguration>"
    assert code_of(parse_versioning, mfa) == "NotImplemented"


def test_tagging():
    tags = [{"Key": "a b", "Value": "é"}, {"Key": "c", "Value": ""}]
    assert parse_tagging(written("PutObjectTagging", Tagging={"TagSet": tags})) == [("a b", "é"), ("c", "")]
    assert parse_tagging(b"<Tagging><TagSet/></Tagging>") == []
    assert code_of(parse_tagging, b"<Tagging/>") == "MalformedXML"
    assert code_of(parse_tagging, written("PutObjectTagging", Tagging={"TagSet": tags * 2})) == "InvalidTag"
    eleven = [{"Key": f"k{i}", "Value": "v"} for i in range(11)]
    assert code_of(parse_tagging, written("PutObjectTagging", Tagging={"TagSet": eleven})) == "InvalidTag"


LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
ATTACKS = {
    "doctype": b"<!DOCTYPE Delete><Delete><Object><Key>a</Key></Object></Delete>",
    "entities": LAUGHS + b"<Delete><Object><Key>&b;</Key></Object></Delete>",
    "external": b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&a;</Key></Object></Delete>',
    "external-dtd": b'<!DOCTYPE x SYSTEM "http://127.0.0.1/x.dtd"><Delete/>',
    "undefined-entity": b"<Delete><Object><Key>&a;</Key></Object></Delete>",
    "deep": b"<Delete>" + b"<a>" * 20_000,
    "utf16-doctype": '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x><Delete><Object><Key>a</Key></Object></Delete>'.encode("utf-16"),
    "ebcdic": b'<?xml version="1.0" encoding="cp037"?>' + "<!DOCTYPE x><Delete/>".encode("cp037"),
    "unknown-encoding": b'<?xml version="1.0" encoding="klingon"?><Delete/>',
    "multi-byte-encoding": b'<?xml version="1.0" encoding="shift_jis"?><Delete/>',
    "codec-encoding": b'<?xml version="1.0" encoding="zlib"?><Delete/>',
    "nul": b"\x00",
    "surrogate": b"<Delete><Object><Key>&#xD800;</Key></Object></Delete>",
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("parser", PARSERS)
def test_attacks(parser, attack):
    assert code_of(parser, ATTACKS[attack]) == "MalformedXML"


def test_elements_and_texts_are_bounded():
    assert code_of(parse_delete, b"<Delete>" + b"<a/>" * 70_000 + b"</Delete>") == "MalformedXML"
    assert code_of(parse_delete, delete(f"<Object><Key>{'a' * 9000}</Key></Object>")) == "MalformedXML"
    assert parse_delete(delete(f"<Object><Key>{'a' * 5000}</Key></Object>")).objects[0].key == "a" * 5000


WORDS = [
    w.encode()
    for w in (
        "<Delete>",
        "</Delete>",
        "<Object>",
        "</Object>",
        "<Key>",
        "</Key>",
        "<!DOCTYPE a>",
        "&amp;",
        "&#x0;",
        "<![CDATA[",
        "]]>",
        "<Tagging>",
        "<TagSet>",
        "<Part>",
        "<?xml?>",
        "<CompleteMultipartUpload>",
        "a",
        "<!--",
        "-->",
    )
]


@settings(max_examples=300)
@given(st.sampled_from(PARSERS), st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=5)), max_size=15))
def test_only_store_errors_escape(parser, pieces):
    try:
        parser(b"".join(pieces))
    except StoreError:
        pass
