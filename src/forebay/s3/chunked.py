"""Request bodies on the wire, decoded incrementally and without copying the payload.

A decoder says what the next bytes are:

- `payload_size > 0`: the next `payload_size` bytes are payload. Receive at most so many straight into their own buffer, then call
  `payload_received(view)` (it hashes where signatures ask for it, and keeps no reference).
- `payload_size == 0` and not `finished`: the next bytes are framing. Call `feed(data)`: it takes what is framing and returns how many bytes it took;
  what is left is payload, or, once `finished`, belongs to the next request. `feed` takes nothing when payload is expected.
- `finished`: the body has been read to its last byte, trailers included, and every signature held. Only now may the object be published.

If the peer closes early, call `abort()`: it returns the StoreError to answer with (IncompleteBody).

Loop of a caller:

    while not body.finished:
        if body.payload_size:
            view = buffer[: body.payload_size]          # leftover bytes of an earlier read first, then the socket
            count = recv_into(view)
            body.payload_received(view[:count])
        else:
            data = leftover or recv(4096)
            leftover = data[body.feed(data):]
"""

from __future__ import annotations

from typing import Protocol

from forebay.s3.request import Request
from forebay.s3.sigv4 import Verified


Buffer = bytes | bytearray | memoryview


class Body(Protocol):
    """A body being decoded; see the module's text."""

    payload_size: int
    finished: bool
    trailers: dict[str, str]  # lower-case names; complete once finished

    def feed(self, data: Buffer) -> int:
        """Take framing bytes; returns how many were taken. Raises StoreError, after which the body is dead."""

    def payload_received(self, view: Buffer) -> None:
        """Account for 1 … `payload_size` bytes of payload. Raises StoreError if a signature that ends here fails."""


def open_body(request: Request, verified: Verified) -> Body:
    """The decoder for this request's body, from Content-Length, Transfer-Encoding and the payload mode.

    Raises StoreError: MissingContentLength, InvalidArgument, InvalidRequest, NotImplemented (unknown transfer coding), EntityTooLarge.
    """
    raise NotImplementedError


def decoded_length(request: Request, verified: Verified) -> int | None:
    """The payload's length in bytes if the head tells it, else None (Transfer-Encoding: chunked)."""
    raise NotImplementedError
