"""Bodies on the wire: every split parses alike, every byte is verified, nothing ends early or late."""

import base64
import hashlib
import io
import itertools
import zlib

import botocore.httpchecksum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import StoreError
from forebay.s3 import chunked
from forebay.s3.checksums import PayloadCheck
from forebay.s3.chunked import decoded_length, incomplete, open_body, stored_content_encoding
from forebay.s3.request import Hosts, parse_request
from forebay.s3.sigv4 import (
    EMPTY_SHA256,
    Credentials,
    PayloadMode,
    Verified,
    Verifier,
    chunk_signer,
    sign_request,
)

CREDENTIALS = Credentials("AK", "secret")
NOW_S = 1_750_000_000.0
HOSTS = Hosts()
TRAILER = "x-amz-checksum-crc32"


def crc32_of(payload):
    return base64.b64encode(zlib.crc32(payload).to_bytes(4, "big")).decode()


def chunks_of(payload, size):
    return [payload[i : i + size] for i in range(0, len(payload), size)]


class Upload:
    """A PUT as a client makes it: head, and the framed body for one payload mode."""

    def __init__(self, mode, payload=b"", chunk_size=8192, *, headers=None, trailer=True, declared=None):
        self.mode = mode
        self.payload = payload
        with_trailer = trailer and mode in (PayloadMode.SIGNED_CHUNKS_TRAILER, PayloadMode.UNSIGNED_TRAILER)
        self.headers = {"host": "localhost"}
        if mode not in (PayloadMode.LITERAL, PayloadMode.UNSIGNED):
            self.headers["x-amz-decoded-content-length"] = str(len(payload) if declared is None else declared)
        if with_trailer:
            self.headers["x-amz-trailer"] = TRAILER
        self.headers |= headers or {}
        value = hashlib.sha256(payload).hexdigest() if mode is PayloadMode.LITERAL else mode.value
        self.headers |= sign_request(CREDENTIALS, "PUT", "/b/k", self.headers, payload_sha256=value, now_s=NOW_S)
        self.signer = chunk_signer(CREDENTIALS, self.headers)
        self.wire = self._frame(chunks_of(payload, chunk_size), with_trailer)

    @property
    def is_signed(self):
        return self.mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER)

    def _frame(self, chunks, with_trailer):
        if self.mode in (PayloadMode.LITERAL, PayloadMode.UNSIGNED):
            return self.payload
        return b"".join(self.chunk(chunk) for chunk in chunks) + self.last(with_trailer)

    def chunk(self, data):
        return self.chunk_head(data) + data + b"\r\n"

    def chunk_head(self, data):
        if not self.is_signed:
            return b"%x\r\n" % len(data)
        signature = self.signer.sign_chunk(hashlib.sha256(data).hexdigest())
        return b"%x;chunk-signature=%s\r\n" % (len(data), signature.encode())

    def last(self, with_trailer):
        end = self.chunk_head(b"")
        if with_trailer:
            line = f"{TRAILER}:{crc32_of(self.payload)}"
            end += line.encode() + b"\r\n"
            if self.is_signed:
                end += b"x-amz-trailer-signature:" + self.signer.sign_trailer(line.encode() + b"\n").encode() + b"\r\n"
        elif self.mode is PayloadMode.SIGNED_CHUNKS_TRAILER:
            end += b"x-amz-trailer-signature:" + self.signer.sign_trailer(b"").encode() + b"\r\n"
        return end + b"\r\n"

    def open(self, wire=None, transfer_chunked=False, **more):
        headers = dict(self.headers)
        if transfer_chunked:
            headers["transfer-encoding"] = "chunked"
        else:
            headers["content-length"] = str(len(self.wire if wire is None else wire))
        headers |= more
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        request = parse_request("PUT", b"/b/k", raw, HOSTS)
        return open_body(request, Verifier({"AK": "secret"}.get, "us-east-1").verify(request, NOW_S))


def decode(body, pieces):
    """Run the caller's loop over the pieces as they arrive. Returns (payload, trailers, what was left over)."""
    payload = bytearray()
    pieces = list(pieces)
    data = b""
    while not body.finished:
        if not data:
            if not pieces:
                raise incomplete()
            data = pieces.pop(0)
            continue
        if body.payload_size:
            view = memoryview(data)[: body.payload_size]
            body.payload_received(view)
            payload += view
            data = data[len(view) :]
        else:
            taken = body.feed(data)
            assert 1 <= taken <= len(data)
            data = data[taken:]
    assert body.payload_size == 0
    return bytes(payload), dict(body.trailers), data + b"".join(pieces)


def transfer_frame(data, size=7000, trailer=b""):
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks_of(data, size)) + b"0\r\n" + trailer + b"\r\n"


def splits(data, cuts):
    positions = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(positions)]


FRAMED = [PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER, PayloadMode.UNSIGNED_TRAILER]
MODES = [PayloadMode.LITERAL, PayloadMode.UNSIGNED, *FRAMED]
PAYLOAD = bytes(range(256)) * 90  # 2.8 chunks of 8 KiB


@pytest.mark.parametrize("transfer_chunked", [False, True])
@pytest.mark.parametrize("payload", [PAYLOAD, b"", b"x", PAYLOAD[:8192]])
@pytest.mark.parametrize("mode", MODES)
def test_whole_and_byte_by_byte(mode, payload, transfer_chunked):
    for step in (1 << 20, 1, 3):
        upload = Upload(mode, payload)
        wire = transfer_frame(upload.wire) if transfer_chunked else upload.wire
        body = upload.open(transfer_chunked=transfer_chunked)
        got, trailers, rest = decode(body, chunks_of(wire, step))
        assert got == payload
        assert rest == b""
        with_trailer = mode in (PayloadMode.SIGNED_CHUNKS_TRAILER, PayloadMode.UNSIGNED_TRAILER)
        assert trailers == ({TRAILER: crc32_of(payload)} if with_trailer else {})


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FRAMED),
    st.integers(0, 20_000),
    st.booleans(),
    st.integers(8192, 9000),
    st.lists(st.integers(0, 24_000), max_size=12),
)
def test_any_split_parses_alike(mode, size, transfer_chunked, chunk_size, cuts):
    payload = PAYLOAD[:size]
    upload = Upload(mode, payload, chunk_size)
    wire = transfer_frame(upload.wire, size=777) if transfer_chunked else upload.wire
    pieces = splits(wire + b"GET / HTTP", cuts)
    got, _, rest = decode(upload.open(transfer_chunked=transfer_chunked), pieces)
    assert got == payload
    assert rest == b"GET / HTTP"


@pytest.mark.parametrize("mode", FRAMED)
def test_every_truncation_is_incomplete(mode):
    upload = Upload(mode, PAYLOAD[:9000])
    interesting = [*range(0, 120), *range(8180, 8400), *range(len(upload.wire) - 250, len(upload.wire))]
    for length in interesting:
        upload = Upload(mode, PAYLOAD[:9000])
        with pytest.raises(StoreError) as caught:  # the peer closes
            decode(upload.open(), [upload.wire[:length]])
        assert caught.value.code == "IncompleteBody"
        upload = Upload(mode, PAYLOAD[:9000])
        with pytest.raises(StoreError) as caught:  # the peer announces no more than that
            cut = upload.wire[:length]
            decode(upload.open(cut), [cut])
        assert caught.value.code in ("IncompleteBody", "MalformedTrailerError")


@pytest.mark.parametrize("mode", FRAMED)
def test_every_changed_byte_is_noticed(mode):
    """Flip one bit anywhere: signed modes refuse; the unsigned one refuses or hands out what its checksum exposes."""
    payload = PAYLOAD[:8200]
    length = len(Upload(mode, payload).wire)
    for position in [*range(0, 150), *range(8150, length)]:
        upload = Upload(mode, payload)
        wire = bytearray(upload.wire)
        wire[position] ^= 1
        try:
            got, trailers, _ = decode(upload.open(), [bytes(wire)])
        except StoreError:
            continue
        assert mode is PayloadMode.UNSIGNED_TRAILER
        assert got != payload or trailers != {TRAILER: crc32_of(payload)}


def refused(mode, wire_of, *, payload=PAYLOAD[:9000], **options):
    upload = Upload(mode, payload, **options)
    wire = wire_of(upload)
    with pytest.raises(StoreError) as caught:
        decode(upload.open(wire), [wire])
    return caught.value.code


def test_signature_of_last_chunk_and_trailer_are_checked():
    for mode in (PayloadMode.SIGNED_CHUNKS, PayloadMode.SIGNED_CHUNKS_TRAILER):
        assert refused(mode, lambda u: u.wire.replace(b"\r\n0;chunk-signature=", b"\r\n0;chunk-signature=0")[: len(u.wire)]) == (
            "SignatureDoesNotMatch"
        )
    wrong = "x-amz-trailer-signature:" + "0" * 64
    assert refused(
        PayloadMode.SIGNED_CHUNKS_TRAILER, lambda u: u.wire[: u.wire.rindex(b"x-amz-trailer-s")] + wrong.encode() + b"\r\n\r\n"
    ) == ("SignatureDoesNotMatch")


def test_a_signed_trailer_without_its_signature_never_ends():
    assert refused(PayloadMode.SIGNED_CHUNKS_TRAILER, lambda u: u.wire[: u.wire.rindex(b"x-amz-trailer-s")] + b"\r\n") == "IncompleteBody"


def test_chunks_of_another_request_do_not_fit():
    other = Upload(PayloadMode.SIGNED_CHUNKS, PAYLOAD[:9000], headers={"x-amz-meta-a": "1"})
    assert refused(PayloadMode.SIGNED_CHUNKS, lambda u: other.wire) == "SignatureDoesNotMatch"


def test_reordered_chunks_are_refused():
    def reordered(upload):
        head = len(upload.wire[: upload.wire.index(b"\r\n")]) + 2
        one, two = upload.wire[: head + 8194], upload.wire[head + 8194 : 2 * (head + 8194)]
        return two + one + upload.wire[2 * (head + 8194) :]

    assert refused(PayloadMode.SIGNED_CHUNKS, reordered, payload=PAYLOAD[:16_384]) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("mode", FRAMED)
@pytest.mark.parametrize("declared", [8999, 9001, 0])
def test_decoded_length_must_agree(mode, declared):
    assert refused(mode, lambda u: u.wire, declared=declared) == "IncompleteBody"


@pytest.mark.parametrize("mode", FRAMED)
@pytest.mark.parametrize("garbage", [b"x", b"0\r\n\r\n", b"\r\n\r\n", b"GET / HTTP/1.1\r\n"])
def test_garbage_after_the_end_is_refused(mode, garbage):
    assert refused(mode, lambda u: u.wire + garbage) in ("InvalidRequest", "IncompleteBody")


@pytest.mark.parametrize("mode", FRAMED)
def test_small_chunks_are_refused_but_the_last(mode):
    assert refused(mode, lambda u: u.wire, chunk_size=8191) == "InvalidChunkSizeError"
    upload = Upload(mode, PAYLOAD[:8193], chunk_size=8192)
    assert decode(upload.open(), [upload.wire])[0] == PAYLOAD[:8193]


@pytest.mark.parametrize(
    "head",
    [b"\r\n", b"zz\r\n", b"-1\r\n", b"+1\r\n", b"0x10\r\n", b"1_0\r\n", b" 10\r\n", b"10\n", b"f" * 16 + b"\r\n", b"1" * 2000],
)
@pytest.mark.parametrize("mode", FRAMED)
def test_bad_chunk_heads(mode, head):
    assert refused(mode, lambda u: head + u.wire) == "InvalidRequest"
    upload = Upload(PayloadMode.UNSIGNED, b"")
    with pytest.raises(StoreError) as caught:
        decode(upload.open(transfer_chunked=True), [head, b"\r\n" * 600])
    assert caught.value.code == "InvalidRequest"


def test_signed_mode_needs_a_signature_in_every_head():
    assert refused(PayloadMode.SIGNED_CHUNKS, lambda u: b"2328\r\n" + PAYLOAD[:9000] + b"\r\n0\r\n\r\n") == "InvalidRequest"


@pytest.mark.parametrize(
    "trailer",
    [
        b"",  # announced and not sent
        b"x-amz-checksum-crc32c:AAAAAA==\r\n",  # another than announced
        b"x-amz-checksum-crc32:a\r\nx-amz-checksum-crc32:b\r\n",
        b"x-amz-checksum-crc32:a\r\nx-amz-meta-a:b\r\n",
        b"no colon\r\n",
        b":value\r\n",
        b"x-amz-trailer-signature:00\r\n",
        b"x-amz-checksum-crc32:a\r\n" + b"x-y:a\r\n" * 2000,
    ],
)
def test_malformed_trailers(trailer):
    wire = b"0\r\n" + trailer + b"\r\n"
    assert refused(PayloadMode.UNSIGNED_TRAILER, lambda u: wire, payload=b"") == "MalformedTrailerError"


def test_a_trailer_has_a_limit_even_in_empty_lines():
    assert (
        refused(PayloadMode.SIGNED_CHUNKS_TRAILER, lambda u: u.wire[: u.wire.index(b"\r\n") + 2] + b"\r\n" * 5000, payload=b"")
        == "MalformedTrailerError"
    )


def test_ends_as_minio_go_writes_them():
    signed = Upload(PayloadMode.SIGNED_CHUNKS_TRAILER, PAYLOAD[:9000])
    wire = signed.wire.replace(b"\r\nx-amz-trailer-signature", b"\n\r\nx-amz-trailer-signature")
    assert wire != signed.wire
    assert decode(signed.open(wire), [wire])[1] == {TRAILER: crc32_of(PAYLOAD[:9000])}
    unsigned = Upload(PayloadMode.UNSIGNED_TRAILER, PAYLOAD[:9000])
    wire = unsigned.wire[:-4] + b"\n\r\n\r\n"
    for step in (1, 10_000):
        unsigned = Upload(PayloadMode.UNSIGNED_TRAILER, PAYLOAD[:9000])
        assert decode(unsigned.open(wire), chunks_of(wire, step))[1] == {TRAILER: crc32_of(PAYLOAD[:9000])}


def test_trailer_names_are_case_insensitive_and_values_trimmed():
    upload = Upload(PayloadMode.UNSIGNED_TRAILER, b"")
    wire = b"0\r\nX-Amz-Checksum-CRC32:  AAAAAA== \r\n\r\n"
    assert decode(upload.open(wire), [wire])[1] == {TRAILER: "AAAAAA=="}


@pytest.mark.parametrize("size", [0, 1, 8192, 9000, 1 << 20, (1 << 20) + 1])
def test_bodies_as_botocore_writes_them(size):
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    wrapper = botocore.httpchecksum.AwsChunkedWrapper(
        io.BytesIO(payload),
        checksum_cls=botocore.httpchecksum.Crc32Checksum,
        checksum_name=TRAILER,
        chunk_size=64 * 1024,
    )
    wire = wrapper.read()
    body = Upload(PayloadMode.UNSIGNED_TRAILER, payload).open(wire)
    got, trailers, _ = decode(body, chunks_of(wire, 1000))
    assert got == payload
    check = PayloadCheck({"x-amz-trailer": TRAILER}, None)
    check.update(got)
    check.finish(trailers)


# --- the outer bodies


def test_transfer_chunked_extensions_and_trailers():
    upload = Upload(PayloadMode.UNSIGNED)
    wire = b"5;name=value\r\nhello\r\n3 \r\n, w\r\n0;last\r\nA: b\r\n\r\nrest"
    for step in (1, 2, 100):
        assert decode(upload.open(transfer_chunked=True), chunks_of(wire, step)) == (b"hello, w", {"a": "b"}, b"rest")


@pytest.mark.parametrize(
    "wire", [b"5\r\nhello!\r\n0\r\n\r\n", b"5\r\nhello\n0\r\n\r\n", b"5\r\nhell\r\n0\r\n\r\n", b"5\nhello\r\n0\r\n\r\n"]
)
def test_transfer_chunked_is_strict_about_line_ends(wire):
    with pytest.raises(StoreError):
        decode(Upload(PayloadMode.UNSIGNED).open(transfer_chunked=True), [wire])


def test_a_body_has_a_limit():
    body = Upload(PayloadMode.UNSIGNED).open(transfer_chunked=True)
    with pytest.raises(StoreError, match="EntityTooLarge"):
        body.feed(b"fffffffffffff\r\n")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-length": "-1"}, "InvalidArgument"),
        ({"content-length": ""}, "InvalidArgument"),
        ({"content-length": "1" * 30}, "InvalidArgument"),
        ({"content-length": "9" * 15}, "EntityTooLarge"),
        ({"content-length": "1", "transfer-encoding": "chunked"}, "InvalidRequest"),
        ({"transfer-encoding": "gzip, chunked"}, "NotImplemented"),
    ],
)
def test_heads_that_open_no_body(headers, code):
    raw = [(n.encode(), v.encode()) for n, v in ({"host": "localhost"} | headers).items()]
    request = parse_request("PUT", b"/b/k", raw, HOSTS)
    with pytest.raises(StoreError) as caught:
        open_body(request, Verified(None, PayloadMode.UNSIGNED))
    assert caught.value.code == code


def test_a_body_that_is_required():
    request = parse_request("PUT", b"/b/k", [(b"host", b"localhost")], HOSTS)
    verified = Verified(None, PayloadMode.UNSIGNED)
    assert open_body(request, verified).finished
    assert decoded_length(request, verified) == 0
    with pytest.raises(StoreError, match="MissingContentLength"):
        open_body(request, verified, required=True)


def test_aws_chunked_needs_its_decoded_length():
    with pytest.raises(StoreError, match="x-amz-decoded-content-length"):
        upload = Upload(PayloadMode.UNSIGNED_TRAILER)
        raw = [(n.encode(), v.encode()) for n, v in upload.headers.items() if n != "x-amz-decoded-content-length"]
        open_body(parse_request("PUT", b"/b/k", raw, HOSTS), Verified("AK", PayloadMode.UNSIGNED_TRAILER))


def test_a_trailer_needs_a_mode_with_one():
    with pytest.raises(StoreError, match="payload mode with a trailer"):
        Upload(PayloadMode.SIGNED_CHUNKS, headers={"x-amz-trailer": TRAILER}).open()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate, gzip"),
        ("gzip, aws-chunked", "gzip"),
        ("aws-chunked,gzip", "gzip"),
        ("aws-chunked", None),
        ("AWS-CHUNKED, aws-chunked", None),
    ],
)
def test_stored_content_encoding(value, stored):
    assert stored_content_encoding({} if value is None else {"content-encoding": value}) == stored


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(FRAMED),
    st.booleans(),
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [b"\r\n", b"0\r\n", b"5\r\n", b";chunk-signature=", b"x-amz-checksum-crc32:", b"2000\r\n", b"x-amz-trailer-signature:"]
            ),
        ),
        max_size=20,
    ),
)
def test_only_store_errors_escape(mode, transfer_chunked, pieces):
    upload = Upload(mode, PAYLOAD[:100])
    try:
        decode(upload.open(b"".join(pieces), transfer_chunked=transfer_chunked), pieces)
    except StoreError:
        pass


def test_empty_chunk_hash_is_the_hash_of_nothing():
    assert hashlib.sha256(b"").hexdigest() == EMPTY_SHA256
    assert chunked.CHUNK_BYTES_MIN <= 64 * 1024
