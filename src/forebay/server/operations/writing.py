"""PutObject, and receiving payloads for it and for UploadPart.

Small payloads are taken on the loop and go into the index; larger ones are received by a thread, straight into the engine's
stripe buffers, with every promised digest computed while the bytes are in cache.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from forebay.engine.engine import Engine
from forebay.engine.objects import Attributes, Condition, Written
from forebay.engine.placement import INLINE_BYTES_MAX
from forebay.engine.writer import BlobWriter, WrittenBlob
from forebay.errors import StoreError
from forebay.s3.checksums import Algorithm, Checksum, PayloadCheck
from forebay.s3.chunked import Body, decoded_length, open_body
from forebay.s3.conditions import Current, WriteCondition, write_condition
from forebay.server.exchange import Answer
from forebay.server.message import Response
from forebay.server.operations.common import (
    add_written_id,
    checksum_headers,
    checksums_of,
    current_of,
    etag_of,
    object_attributes,
    wants_md5,
)
from forebay.server.services import Call, Services
from forebay.server.transfer import Wire, receive_body

OBJECT_BYTES_MAX = 5 << 40  # S3's limit for an object
# SDKs and command line tools send objects up to here in one PUT by default, and their users know ETags of those as MD5.
MD5_OBJECT_BYTES_MAX = 8 << 20


class Payload(NamedTuple):
    """What an upload is about to bring: the decoder, the digests to check, and the length if the head tells it."""

    body: Body
    check: PayloadCheck
    length: int | None
    is_small: bool  # goes into the index, and is received on the loop


def open_payload(services: Services, call: Call, bytes_max: int, md5_bytes_max: int, also: Algorithm | None) -> Payload:
    """Read what the head says of the payload. Raises StoreError before a byte of it is asked for.

    `also`: a checksum to compute if the client sends none.
    """
    length = decoded_length(call.request, call.verified)
    if length is not None and length > bytes_max:
        raise StoreError("EntityTooLarge", ProposedSize=str(length), MaxSizeAllowed=str(bytes_max))
    check = PayloadCheck(
        call.headers,
        call.verified.payload_sha256,
        also=also,
        md5=wants_md5(services.config.etag, call.headers, length, md5_bytes_max),
    )
    body = open_body(call.request, call.verified, required=True)
    return Payload(body, check, length, length is not None and length <= INLINE_BYTES_MAX)


def put_object(services: Services, call: Call) -> Answer:
    """See the module."""
    services.engine.bucket(call.bucket)
    condition = write_condition(call.headers)
    check_early(services.engine, call, condition)
    attributes = object_attributes(services, call)
    payload = open_payload(services, call, OBJECT_BYTES_MAX, MD5_OBJECT_BYTES_MAX, Algorithm.CRC64NVME)
    if not payload.is_small:
        return _put_large(services, call, attributes, condition, payload)
    if call.exchange.body_is_here:
        return _put_small(services, call, attributes, condition, payload, take(call, payload))
    return _put_small_later(services, call, attributes, condition, payload)


def take(call: Call, payload: Payload) -> bytes:
    """The whole payload, which is here, verified."""
    data = call.exchange.take_body(payload.body)
    payload.check.update(data)
    payload.check.finish(payload.body.trailers)
    return data


async def read_small(call: Call, payload: Payload) -> bytes:
    """The whole payload, received on the loop, verified."""
    data = await call.exchange.read_body(payload.body, INLINE_BYTES_MAX)
    payload.check.update(data)
    payload.check.finish(payload.body.trailers)
    return data


async def _put_small_later(
    services: Services, call: Call, attributes: Attributes, condition: WriteCondition | None, payload: Payload
) -> Response:
    data = await read_small(call, payload)
    return await _put_small(services, call, attributes, condition, payload, data)


async def _put_small(
    services: Services,
    call: Call,
    attributes: Attributes,
    condition: WriteCondition | None,
    payload: Payload,
    data: bytes,
) -> Response:
    described = with_digests(attributes, etag_of(payload.check), payload.check.checksum)
    written = await services.commit(
        lambda done: services.engine.put(call.bucket, call.key, data, described, judge(condition), on_done=done)
    )
    return answer(written)


async def _put_large(
    services: Services, call: Call, attributes: Attributes, condition: WriteCondition | None, payload: Payload
) -> Response:
    work = partial(_receive_and_put, services.engine, call, attributes, condition, payload)
    return answer(await call.exchange.in_transfer(work))


def _receive_and_put(
    engine: Engine,
    call: Call,
    attributes: Attributes,
    condition: WriteCondition | None,
    payload: Payload,
    wire: Wire,
) -> Written:
    blob = receive_blob(engine, call, payload, wire)
    described = with_digests(attributes, etag_of(payload.check, blob), blob_checksum(payload.check, blob))
    data = blob if blob is not None else b""
    return engine.put(call.bucket, call.key, data, described, judge(condition)).wait()


def receive_blob(engine: Engine, call: Call, payload: Payload, wire: Wire) -> WrittenBlob | None:
    """In a transfer thread: receive, verify and store a payload. None if it was empty; nothing refers to it yet."""
    writer = engine.writer(call.bucket, call.key)
    try:
        size = receive_body(wire, payload.body, _Limited(writer), payload.check.update)
        payload.check.finish(payload.body.trailers)
        if size == 0:
            writer.abort()
            return None
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


class _Limited:
    """A writer that takes no more than an object may have: bodies of unknown length are only known when they end."""

    def __init__(self, writer: BlobWriter) -> None:
        self._writer = writer
        self._left_bytes = OBJECT_BYTES_MAX
        self.buffer = writer.buffer

    def filled(self, count: int) -> None:
        """See BlobWriter."""
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise StoreError("EntityTooLarge", MaxSizeAllowed=str(OBJECT_BYTES_MAX))
        self._writer.filled(count)


def blob_checksum(check: PayloadCheck, blob: WrittenBlob | None) -> Checksum | None:
    """The client's checksum if it sent one, else the CRC64NVME that comes with the blob."""
    sent = check.checksum
    if blob is None or (sent is not None and sent.algorithm is not Algorithm.CRC64NVME):
        return sent
    return Checksum(Algorithm.CRC64NVME, blob.crc64.to_bytes(8, "big"))


def with_digests(attributes: Attributes, etag: str, checksum: Checksum | None) -> Attributes:
    """`attributes` with ETag and checksum."""
    return msgspec.structs.replace(
        attributes,
        etag=etag,
        checksums=checksums_of(checksum),
        checksum_type=checksum.type.value if checksum is not None else "",
    )


def judge(condition: WriteCondition | None) -> Condition | None:
    """The condition as the engine calls it, inside the critical section that publishes."""
    if condition is None:
        return None
    return lambda current: condition.check(None if current is None else Current(*current))


def check_early(engine: Engine, call: Call, condition: WriteCondition | None) -> None:
    """Refuse what is bound to fail before its body is sent. The judgement that counts comes with the commit."""
    if condition is None:
        return
    try:
        current = current_of(engine.find(call.bucket, call.key).version)
    except StoreError as error:
        if error.code != "NoSuchKey":
            raise
        current = None
    condition.check(current)


def answer(written: Written) -> Response:
    """The answer to a successful PutObject."""
    version = written.version
    headers = {"ETag": f'"{version.etag}"', **checksum_headers(version)}
    add_written_id(headers, written.version_id)
    return Response(200, headers)
