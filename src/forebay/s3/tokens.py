"""Continuation tokens of listings: opaque to clients, checked on return.

A token is base64url of one format byte, a CRC32 (big-endian) of what follows, and the position in UTF-8. The CRC catches tokens that
were cut or altered on their way; it is no secret, as a client may list from any position anyway.
"""

from __future__ import annotations

import base64
import binascii

from forebay.errors import StoreError

FORMAT = 1
HEAD_BYTES = 5
TOKEN_CHARS_MAX = 2048  # a position is a key of at most 1,024 bytes; base64 and the header make it at most 1,376


def encode_token(position: str) -> str:
    """A token that says where a listing goes on (a key, or a common prefix, to start after)."""
    raw = position.encode()
    return base64.urlsafe_b64encode(bytes((FORMAT,)) + binascii.crc32(raw).to_bytes(4, "big") + raw).decode()


def decode_token(token: str) -> str:
    """The position. Raises StoreError InvalidArgument if the token is not one of ours or was damaged."""
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        raw = data[HEAD_BYTES:]
        if (
            len(token) <= TOKEN_CHARS_MAX
            and len(data) >= HEAD_BYTES
            and data[0] == FORMAT
            and int.from_bytes(data[1:HEAD_BYTES], "big") == binascii.crc32(raw)
        ):
            return raw.decode()
    except ValueError:
        pass  # answered below, like a wrong checksum
    raise StoreError(
        "InvalidArgument",
        "The continuation token provided is incorrect",
        ArgumentName="continuation-token",
        ArgumentValue=token[:TOKEN_CHARS_MAX],
    )
