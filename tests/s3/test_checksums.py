"""Checksums against independent implementations, and every promise that a request can make about its payload."""

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3.checksums import (
    Algorithm,
    Checksum,
    ChecksumType,
    PayloadCheck,
    combines,
    composite,
    content_md5,
    full_object,
    hasher,
    header_of,
    object_checksum,
    parse_checksum,
    request_checksum,
    upload_checksum,
)


def b64(digest):
    return base64.b64encode(digest).decode()


def digest_of(algorithm, *pieces):
    running = hasher(algorithm)
    for piece in pieces:
        running.update(piece)
    return running.digest()


def reflected_crc(data, polynomial, bits):
    """Bit by bit, from the definition."""
    crc = mask = (1 << bits) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
    return (crc ^ mask).to_bytes(bits // 8, "big")


REFERENCES = {
    Algorithm.CRC32: lambda data: zlib.crc32(data).to_bytes(4, "big"),
    Algorithm.CRC32C: lambda data: reflected_crc(data, 0x82F63B78, 32),
    Algorithm.CRC64NVME: lambda data: reflected_crc(data, 0x9A6C9329AC4BC9B5, 64),
    Algorithm.SHA1: lambda data: hashlib.sha1(data).digest(),
    Algorithm.SHA256: lambda data: hashlib.sha256(data).digest(),
}
ALGORITHMS = list(Algorithm)
CHECK_VALUES = {  # of b"123456789"; the catalogue of parametrised CRC algorithms
    Algorithm.CRC32: "cbf43926",
    Algorithm.CRC32C: "e3069283",
    Algorithm.CRC64NVME: "ae8b14860a799888",
}


@given(st.sampled_from(ALGORITHMS), st.lists(st.binary(max_size=60), max_size=5))
def test_running_checksums(algorithm, pieces):
    assert digest_of(algorithm, *pieces) == REFERENCES[algorithm](b"".join(pieces))


@pytest.mark.parametrize(("algorithm", "check"), CHECK_VALUES.items())
def test_check_values(algorithm, check):
    assert digest_of(algorithm, b"123456789").hex() == check
    assert digest_of(algorithm, memoryview(bytearray(b"123456789"))).hex() == check


@given(st.sampled_from([a for a in ALGORITHMS if combines(a)]), st.lists(st.binary(max_size=60), min_size=1, max_size=6))
def test_full_object_is_the_checksum_of_all_bytes(algorithm, parts):
    combined = full_object(algorithm, [(digest_of(algorithm, part), len(part)) for part in parts])
    assert combined == Checksum(algorithm, digest_of(algorithm, *parts))
    assert combined.type is ChecksumType.FULL_OBJECT


def test_composite():
    parts = [b"one", b"two"]
    checksum = composite(Algorithm.SHA256, [hashlib.sha256(part).digest() for part in parts])
    expected = hashlib.sha256(hashlib.sha256(b"one").digest() + hashlib.sha256(b"two").digest()).digest()
    assert checksum.text == f"{b64(expected)}-2"
    assert checksum.type is ChecksumType.COMPOSITE
    assert (checksum.header, checksum.element) == ("x-amz-checksum-sha256", "ChecksumSHA256")


@given(st.sampled_from(ALGORITHMS), st.binary(max_size=20), st.integers(0, 10_000))
def test_text_round_trip(algorithm, data, part_count):
    checksum = Checksum(algorithm, digest_of(algorithm, data), part_count)
    assert parse_checksum(algorithm, checksum.text) == checksum


@pytest.mark.parametrize("text", ["", "bad", "AAAA", "AAAAAA=", "AAAAAA==-", "AAAAAA==-x", "AAAAAA==-0", "é", "AAAA AA==", "AAAAAA==\n"])
def test_bad_texts(text):
    with pytest.raises(StoreError, match="x-amz-checksum-crc32 header is invalid") as caught:
        parse_checksum(Algorithm.CRC32, text)
    assert caught.value.code == ("InvalidRequest" if text.startswith("AAAAAA==-") else "BadDigest")


# --- what a request says


def test_request_checksum():
    assert request_checksum({}) is None
    found = request_checksum({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-sdk-checksum-algorithm": "CRC32"})
    assert found == (Algorithm.CRC32, bytes(4), None)
    found = request_checksum({"x-amz-trailer": "X-Amz-Checksum-Sha1"})
    assert found == (Algorithm.SHA1, None, "x-amz-checksum-sha1")
    assert request_checksum({"x-amz-checksum-mode": "ENABLED", "x-amz-checksum-algorithm": "CRC32"}) is None


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-amz-checksum-crc32": "bad"}, "BadDigest"),
        ({"x-amz-checksum-crc32": ""}, "BadDigest"),
        ({"x-amz-checksum-crc32": "AAAAAA==-1"}, "BadDigest"),
        ({"x-amz-checksum-crc64": "AAAAAAAAAAA="}, "InvalidRequest"),
        ({"x-amz-checksum-xxhash3": "AAAAAAAAAAA="}, "NotImplemented"),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="}, "InvalidRequest"),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-trailer": "x-amz-checksum-crc32"}, "InvalidRequest"),
        ({"x-amz-trailer": "x-amz-meta-a"}, "InvalidRequest"),
        ({"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"}, "InvalidRequest"),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, "InvalidRequest"),
        ({"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": "AAAAAA=="}, "InvalidRequest"),
    ],
)
def test_refused_checksums(headers, code):
    with pytest.raises(StoreError) as caught:
        request_checksum(headers)
    assert caught.value.code == code


def test_content_md5():
    assert content_md5({}) is None
    assert content_md5({"content-md5": b64(bytes(16))}) == bytes(16)
    for text in ("", "AAAA", "AWS HAHAHA", "rL0Y20zC+Fzt72VPzMSk2A="):
        with pytest.raises(StoreError, match="Content-MD5") as caught:
            content_md5({"content-md5": text})
        assert caught.value.code == "InvalidDigest"


@pytest.mark.parametrize(
    ("algorithm", "kind", "expected"),
    [
        (None, None, None),
        ("CRC32", None, "COMPOSITE"),
        ("crc32c", "full_object", "FULL_OBJECT"),
        ("CRC64NVME", None, "FULL_OBJECT"),
        ("SHA256", "COMPOSITE", "COMPOSITE"),
        ("CRC64NVME", "COMPOSITE", StoreError),
        ("SHA1", "FULL_OBJECT", StoreError),
        ("SHA1", "HALF", StoreError),
        ("MD4", None, StoreError),
        ("", None, StoreError),
        (None, "COMPOSITE", StoreError),
    ],
)
def test_upload_checksum(algorithm, kind, expected):
    headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind}
    headers = {name: value for name, value in headers.items() if value is not None}
    if expected is StoreError:
        with pytest.raises(StoreError) as caught:
            upload_checksum(headers)
        assert caught.value.code == "InvalidRequest"
    else:
        found = upload_checksum(headers)
        assert (found and found.type) == expected


def test_object_checksum():
    assert object_checksum({}) is None
    assert object_checksum({"x-amz-checksum-crc32": "AAAAAA==-3"}) == Checksum(Algorithm.CRC32, bytes(4), 3)
    with pytest.raises(StoreError) as caught:
        object_checksum({"x-amz-checksum-sha256": "bad"})
    assert caught.value.code == "BadDigest"
    with pytest.raises(StoreError) as caught:
        object_checksum({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="})
    assert caught.value.code == "InvalidRequest"


# --- one pass over the payload

PAYLOAD = b"the payload of a request"


def check(headers=None, sha256=None, trailers=None, payload=PAYLOAD, **options):
    found = PayloadCheck(headers or {}, sha256, **options)
    for i in range(0, len(payload), 5):
        found.update(memoryview(payload)[i : i + 5])
    found.finish(trailers or {})
    return found


def code_of(*args, **kwargs):
    with pytest.raises(StoreError) as caught:
        check(*args, **kwargs)
    return caught.value.code


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_payload_check(algorithm):
    name, right = header_of(algorithm), b64(REFERENCES[algorithm](PAYLOAD))
    assert check({name: right}).checksum.text == right
    assert check({"x-amz-trailer": name}, trailers={name: right}).checksum.text == right
    wrong = b64(REFERENCES[algorithm](b"other"))
    assert code_of({name: wrong}) == "BadDigest"
    assert code_of({"x-amz-trailer": name}, trailers={name: wrong}) == "BadDigest"
    assert code_of({"x-amz-trailer": name}, trailers={name: "bad"}) == "BadDigest"
    assert code_of({"x-amz-trailer": name}) == "MalformedTrailerError"


def test_payload_sha256_and_md5():
    sha256 = hashlib.sha256(PAYLOAD).hexdigest()
    md5 = hashlib.md5(PAYLOAD).digest()
    found = check({"content-md5": b64(md5), "x-amz-checksum-sha256": b64(bytes.fromhex(sha256))}, sha256)
    assert found.md5 == md5
    assert found.checksum.digest.hex() == sha256
    assert code_of(sha256="0" * 64) == "XAmzContentSHA256Mismatch"
    assert code_of({"content-md5": b64(bytes(16))}) == "BadDigest"


def test_what_is_computed_besides():
    assert check().checksum is None
    assert check().md5 is None
    assert check(md5=True).md5 == hashlib.md5(PAYLOAD).digest()
    found = check(also=Algorithm.CRC64NVME)
    assert found.checksum == Checksum(Algorithm.CRC64NVME, REFERENCES[Algorithm.CRC64NVME](PAYLOAD))
    found = check({"x-amz-checksum-crc32": b64(REFERENCES[Algorithm.CRC32](PAYLOAD))}, also=Algorithm.CRC64NVME)
    assert found.checksum.algorithm is Algorithm.CRC32
    assert found.also == REFERENCES[Algorithm.CRC64NVME](PAYLOAD)


def test_a_checksum_about_the_object_is_left_alone():
    assert check({"x-amz-checksum-crc32": "AAAAAA==-3"}, about_object=True).checksum is None


def test_empty_payload():
    assert check(sha256=hashlib.sha256(b"").hexdigest(), payload=b"", md5=True).md5 == hashlib.md5(b"").digest()
