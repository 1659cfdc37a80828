"""Request bodies on the wire, decoded incrementally and without copying the payload.

A body says what the next bytes are:

- `payload_size > 0`: the next `payload_size` bytes are payload. Receive at most so many straight into their own buffer,
  then call `payload_received(view)`. It hashes where chunk signatures ask for it, and keeps no reference.
- `payload_size == 0` and not `finished`: the next bytes are framing. Call `feed(data)`: it takes what is framing and
  returns how many bytes it took: at least one of a non-empty `data`, at most FEED_BYTES_MAX. Once it stops short of that,
  the rest is payload, or, once `finished`, belongs to
  the next request.
- `finished`: the body was read to its last byte, trailers included, and every signature held. Only now may the object be
  published.

Both methods raise StoreError, after which the body is dead and the connection cannot be used again. A peer that closes
early gets nothing published: the caller answers `incomplete()`.

    while not body.finished:
        if body.payload_size:
            view = buffer[: body.payload_size]          # leftover bytes of an earlier read first, then the socket
            count = receive_into(view)
            body.payload_received(view[:count])
        else:
            data = leftover or receive()
            leftover = data[body.feed(data) :]

A body on the wire is delimited by Content-Length or by `Transfer-Encoding: chunked` (RFC 9112 section 7.1). Inside it
may stand the `aws-chunked` framing, with chunk signatures, a trailer of checksums, or both:
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html and sigv4-streaming-trailers.html.
"""

from __future__ import annotations

import abc
import enum
import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Protocol

from forebay.errors import StoreError
from forebay.s3.request import Request
from forebay.s3.sigv4 import EMPTY_SHA256, ChunkSigner, PayloadMode, Verified

Buffer = bytes | bytearray | memoryview

BODY_BYTES_MAX = 5 * 1024**4 + 1024**4  # 5 TiB, the largest object, and its framing with room to spare
CHUNK_BYTES_MIN = 8192  # all chunks but the last; S3's rule, and the bound on what a chunk costs per byte
FEED_BYTES_MAX = 4096  # of framing taken in one call: what follows it in the buffer is not copied
LINE_BYTES_MAX = 1024  # a chunk head with its signature takes about 90
TRAILER_BYTES_MAX = 8 * 1024
_HEX_BYTES = frozenset(b"0123456789abcdefABCDEF")
TRAILER_SIGNATURE = "x-amz-trailer-signature"
LENGTH_DIGITS_MAX = 16
SIZE_HEX_DIGITS_MAX = 15


class Body(Protocol):
    """A body being decoded; see the module's text."""

    payload_size: int
    finished: bool
    trailers: dict[str, str]  # lower-case names; complete once finished

    def feed(self, data: Buffer) -> int:
        """Take framing bytes; returns how many were taken. Raises StoreError."""

    def payload_received(self, view: Buffer) -> None:
        """Account for 1 … `payload_size` bytes of payload. Raises StoreError if a signature that ends here fails."""


def open_body(request: Request, verified: Verified, *, required: bool = False) -> Body:
    """The decoder for this request's body, from Content-Length, Transfer-Encoding and the payload mode.

    A request without either header has no body; where one is `required` (PutObject, UploadPart) that is
    MissingContentLength. Raises StoreError: MissingContentLength, InvalidArgument, InvalidRequest,
    NotImplemented (unknown transfer coding), EntityTooLarge.
    """
    if required and not {"content-length", "transfer-encoding"} & request.headers.keys():
        raise StoreError("MissingContentLength")
    outer = _wire_body(request.headers)
    if not _is_aws_chunked(verified):
        return outer
    size_bytes = decoded_length(request, verified)
    if size_bytes is None:
        raise StoreError("MissingContentLength", "You must provide the x-amz-decoded-content-length header.")
    has_trailer = verified.payload is not PayloadMode.SIGNED_CHUNKS
    if not has_trailer and "x-amz-trailer" in request.headers:
        raise StoreError("InvalidRequest", "The x-amz-trailer header needs a payload mode with a trailer.")
    return _NestedBody(outer, _AwsChunkedBody(size_bytes, verified.chunk_signer, request.headers.get("x-amz-trailer"), has_trailer))


def decoded_length(request: Request, verified: Verified) -> int | None:
    """The payload's length in bytes if the head tells it, else None (Transfer-Encoding: chunked).

    Raises StoreError: InvalidArgument, EntityTooLarge.
    """
    name = "x-amz-decoded-content-length" if _is_aws_chunked(verified) else "content-length"
    if name == "content-length" and "transfer-encoding" in request.headers:
        return None
    text = request.headers.get(name)
    if text is None:
        return None if _is_aws_chunked(verified) else 0
    return _length(name, text)


def stored_content_encoding(headers: Mapping[str, str]) -> str | None:
    """Content-Encoding as it belongs to the object: without `aws-chunked`, which belongs to the transfer."""
    value = headers.get("content-encoding")
    if not value:
        return value
    codings = [coding.strip() for coding in value.split(",")]
    return ", ".join(coding for coding in codings if coding.lower() != "aws-chunked") or None


def incomplete() -> StoreError:
    """The error for a body that stopped before it was finished."""
    return StoreError("IncompleteBody", "The request body terminated unexpectedly")


def _is_aws_chunked(verified: Verified) -> bool:
    return verified.payload not in (PayloadMode.LITERAL, PayloadMode.UNSIGNED)


def _length(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= LENGTH_DIGITS_MAX):
        raise StoreError("InvalidArgument", f"{name} is not a length.", ArgumentName=name, ArgumentValue=text)
    size_bytes = int(text)
    if size_bytes > BODY_BYTES_MAX:
        raise StoreError("EntityTooLarge", ProposedSize=text, MaxSizeAllowed=str(BODY_BYTES_MAX))
    return size_bytes


def _wire_body(headers: Mapping[str, str]) -> Body:
    transfer_encoding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if transfer_encoding is None:
        return _FixedLengthBody(_length("content-length", length) if length is not None else 0)
    if length is not None:  # RFC 9112 section 6.3: two lengths may be request smuggling
        raise StoreError("InvalidRequest", "A request has Content-Length or Transfer-Encoding, not both.")
    if transfer_encoding.strip().lower() != "chunked":
        raise StoreError("NotImplemented", "The only transfer coding served is chunked.", Header="Transfer-Encoding")
    return _TransferChunkedBody()


class _FixedLengthBody:
    """All payload, up to a length."""

    def __init__(self, size_bytes: int) -> None:
        self.payload_size = size_bytes
        self.finished = size_bytes == 0
        self.trailers: dict[str, str] = {}

    def feed(self, data: Buffer) -> int:
        return 0

    def payload_received(self, view: Buffer) -> None:
        assert len(view) <= self.payload_size
        self.payload_size -= len(view)
        self.finished = self.payload_size == 0


class _State(enum.Enum):
    HEAD = enum.auto()  # in the line that opens a chunk
    PAYLOAD = enum.auto()
    CHUNK_END = enum.auto()  # in the CRLF after a chunk's payload
    TRAILER = enum.auto()  # in the lines after the last chunk
    DONE = enum.auto()  # after the empty line that ends it all


class _ChunkFraming(abc.ABC):
    """What the two chunked framings share: lines, states and limits. Subclasses say what the lines mean."""

    def __init__(self) -> None:
        self.payload_size = 0
        self.finished = False
        self.trailers: dict[str, str] = {}
        self._state = _State.HEAD
        self._partial = b""  # of a line whose end has not come yet
        self._trailer_bytes = 0

    def feed(self, data: Buffer) -> int:
        raw = bytes(memoryview(data)[:FEED_BYTES_MAX])
        position = 0
        while position < len(raw) and not self.payload_size and not self.finished:
            end = raw.find(b"\n", position)
            stop = len(raw) if end < 0 else end + 1
            line = self._partial + raw[position:stop]
            if len(line) > LINE_BYTES_MAX:
                raise _bad_framing(f"A line is longer than {LINE_BYTES_MAX} bytes.")
            self._partial = line if end < 0 else b""
            position = stop
            if end >= 0:
                self._line(line)
        return position

    def _line(self, line: bytes) -> None:
        """`line` ends in LF. Only a trailer of aws-chunked may do without the CR."""
        if self._state is _State.HEAD:
            if not line.endswith(b"\r\n"):
                raise _bad_framing("The head of a chunk does not end in CRLF.")
            self._chunk_head(line[:-2])
        elif self._state is _State.CHUNK_END:
            if line != b"\r\n":
                raise StoreError("IncompleteBody", "A chunk is longer than its head says.")
            self._state = _State.HEAD
        elif self._state is _State.TRAILER:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise _malformed_trailer(f"The trailer is longer than {TRAILER_BYTES_MAX} bytes.")
            self._trailer_line(line)
        else:
            self._line_after_end(line)

    def payload_received(self, view: Buffer) -> None:
        assert len(view) <= self.payload_size
        self.payload_size -= len(view)
        if not self.payload_size:
            self._state = _State.CHUNK_END

    def _open_chunk(self, size_text: bytes) -> int:
        """Go to the chunk's payload, or to the trailer if it is the last. Returns its size in bytes."""
        if not 1 <= len(size_text) <= SIZE_HEX_DIGITS_MAX or not _HEX_BYTES.issuperset(size_text):
            raise _bad_framing("The head of a chunk does not begin with its size in hexadecimal.")
        self.payload_size = int(size_text, 16)
        self._state = _State.PAYLOAD if self.payload_size else _State.TRAILER
        return self.payload_size

    def _add_trailer(self, line: bytes) -> tuple[str, str]:
        name, colon, value = line.decode("latin-1").partition(":")
        name, value = name.strip(" \t").lower(), value.strip(" \t")
        if not colon or not name or name in self.trailers:
            raise _malformed_trailer("A line of the trailer is no `name:value`, or a name comes twice.")
        self.trailers[name] = value
        return name, value

    @abc.abstractmethod
    def _chunk_head(self, line: bytes) -> None:
        """The line that opens a chunk, without its CRLF."""

    @abc.abstractmethod
    def _trailer_line(self, line: bytes) -> None:
        """A line after the last chunk, with its end."""

    @abc.abstractmethod
    def _line_after_end(self, line: bytes) -> None:
        """A line after the empty one that ends the trailer."""


class _TransferChunkedBody(_ChunkFraming):
    """`Transfer-Encoding: chunked`. Chunk extensions are ignored, as RFC 9112 section 7.1.1 asks."""

    def __init__(self) -> None:
        super().__init__()
        self._total_bytes = 0

    def _chunk_head(self, line: bytes) -> None:
        self._total_bytes += self._open_chunk(line.partition(b";")[0].rstrip(b" \t"))
        if self._total_bytes > BODY_BYTES_MAX:
            raise StoreError("EntityTooLarge", MaxSizeAllowed=str(BODY_BYTES_MAX))

    def _trailer_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise _malformed_trailer("A line of the trailer does not end in CRLF.")
        if line == b"\r\n":
            self._state = _State.DONE
            self.finished = True
        else:
            self._add_trailer(line[:-2])

    def _line_after_end(self, line: bytes) -> None:
        raise AssertionError("a finished body takes nothing")


class _AwsChunkedBody(_ChunkFraming):
    """The `aws-chunked` framing inside a body; where the wire ends is the outer body's to know.

    Two writings of the end are in use besides the documented one, both by minio-go, and are accepted: a signed trailer
    has an empty line before its signature, an unsigned one has two empty lines after it.
    """

    def __init__(self, size_bytes: int, signer: ChunkSigner | None, trailer: str | None, has_trailer: bool) -> None:
        super().__init__()
        self._left_bytes = size_bytes  # of the decoded length
        self._signer = signer
        self._announced = {name.strip().lower() for name in trailer.split(",")} if trailer and has_trailer else set()
        self._signature_due = signer is not None and has_trailer
        self._signature = ""  # the open chunk's, as announced
        self._hash = sha256()
        self._last_size = CHUNK_BYTES_MIN
        self._extra_line = False

    def payload_received(self, view: Buffer) -> None:
        super().payload_received(view)
        if self._signer is not None:
            self._hash.update(view)
            if not self.payload_size:
                self._check_chunk(self._signer, self._hash.hexdigest())
                self._hash = sha256()

    def wire_ended(self) -> None:
        """The outer body is finished: this one must be too. Raises StoreError IncompleteBody."""
        if self._state is not _State.DONE or self._partial:
            raise incomplete()

    def _chunk_head(self, line: bytes) -> None:
        size_text, _, extension = line.partition(b";")
        size_bytes = self._open_chunk(size_text)
        if size_bytes and self._last_size < CHUNK_BYTES_MIN:
            raise StoreError("InvalidChunkSizeError", BadChunkSize=str(self._last_size))
        self._last_size = size_bytes or self._last_size
        self._left_bytes -= size_bytes
        if self._left_bytes < 0 or (self._left_bytes and not size_bytes):
            raise StoreError("IncompleteBody", "The chunks do not add up to x-amz-decoded-content-length.")
        if self._signer is not None:
            name, _, signature = extension.decode("latin-1").partition("=")
            if name != "chunk-signature":
                raise _bad_framing("The head of a chunk has no chunk-signature.")
            self._signature = signature
            if not size_bytes:
                self._check_chunk(self._signer, EMPTY_SHA256)

    def _check_chunk(self, signer: ChunkSigner, chunk_sha256_hex: str) -> None:
        _check_signature(signer.sign_chunk(chunk_sha256_hex), self._signature)

    def _trailer_line(self, line: bytes) -> None:
        content = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if not content:
            if not self._signature_due:
                self._end()
        elif TRAILER_SIGNATURE in self.trailers:
            raise _malformed_trailer("There is more after the trailer's signature.")
        else:
            name, value = self._add_trailer(content)
            if name == TRAILER_SIGNATURE:
                self._check_trailer(value)
            elif name not in self._announced:
                raise _malformed_trailer(f"The trailer {name} was not announced in x-amz-trailer.")

    def _check_trailer(self, signature: str) -> None:
        if self._signer is None or not self._signature_due:
            raise _malformed_trailer("The trailer has a signature where none belongs.")
        signed = "".join(f"{n}:{v}\n" for n, v in self.trailers.items() if n != TRAILER_SIGNATURE)
        _check_signature(self._signer.sign_trailer(signed.encode("latin-1")), signature)
        self._signature_due = False

    def _end(self) -> None:
        missing = self._announced.difference(self.trailers)
        if missing:
            raise _malformed_trailer(f"The trailer {', '.join(sorted(missing))} was announced and not sent.")
        self.trailers.pop(TRAILER_SIGNATURE, None)
        self._state = _State.DONE

    def _line_after_end(self, line: bytes) -> None:
        if line != b"\r\n" or self._extra_line:
            raise _bad_framing("There is more after the end of the aws-chunked body.")
        self._extra_line = True


class _NestedBody:
    """aws-chunked framing inside a body on the wire."""

    def __init__(self, outer: Body, inner: _AwsChunkedBody) -> None:
        self._outer = outer
        self._inner = inner
        self.payload_size = 0
        self.finished = False
        self.trailers = inner.trailers
        self._advance()

    def feed(self, data: Buffer) -> int:
        view = memoryview(data)
        taken = 0
        while taken < len(view) and not self.payload_size and not self.finished:
            if self._outer.payload_size:
                piece = view[taken : taken + self._outer.payload_size]
                count = self._inner.feed(piece)
                self._outer.payload_received(piece[:count])
            else:
                count = self._outer.feed(view[taken:])
            taken += count
            self._advance()
        return taken

    def payload_received(self, view: Buffer) -> None:
        self._outer.payload_received(view)
        self._inner.payload_received(view)
        self._advance()

    def _advance(self) -> None:
        self.payload_size = min(self._outer.payload_size, self._inner.payload_size)
        if self._outer.finished:
            self._inner.wire_ended()
            self.finished = True


def _check_signature(expected: str, announced: str) -> None:
    if not hmac.compare_digest(expected.encode(), announced.encode()):
        raise StoreError("SignatureDoesNotMatch", "The signature of a chunk of the body does not match.")


def _bad_framing(message: str) -> StoreError:
    return StoreError("InvalidRequest", f"The chunked framing of the body is broken. {message}")


def _malformed_trailer(message: str) -> StoreError:
    return StoreError("MalformedTrailerError", f"The request contained trailing data that was not well-formed. {message}")
