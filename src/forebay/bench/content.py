"""Random, incompressible content that any client can make again: AES-128 in counter mode, from a seed and an offset.

One core makes it several times faster than any disk or socket here takes it, no two stretches of it are alike, so
neither compression nor deduplication can help, and the bytes at any offset can be computed again to verify what comes
back.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode

from awscrt import checksums
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_CIPHER_BLOCK_BYTES = 16
_ZEROS = bytes(1 << 20)

Buffer = bytes | bytearray | memoryview


class Stream:
    """An endless stream of random bytes, addressed by offset."""

    def __init__(self, seed: str) -> None:
        self._key = hashlib.sha256(seed.encode()).digest()[:16]

    def fill(self, target: memoryview, offset: int) -> None:
        """Write the bytes from `offset` (a multiple of 16) on into `target`."""
        assert offset % _CIPHER_BLOCK_BYTES == 0
        counter = (offset // _CIPHER_BLOCK_BYTES).to_bytes(16, "big")
        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
        # update_into wants a block more than it writes, so the last piece goes through a buffer of its own
        whole = max(0, len(target) - _CIPHER_BLOCK_BYTES)
        done = 0
        while done < whole:
            step = min(len(_ZEROS), whole - done)
            done += encryptor.update_into(memoryview(_ZEROS)[:step], target[done:])
        target[done:] = encryptor.update(_ZEROS[: len(target) - done])


def crc64nvme_base64(data: Buffer) -> str:
    """The value of an x-amz-checksum-crc64nvme header."""
    return b64encode(checksums.crc64nvme(data).to_bytes(8, "big")).decode()


class Payloads:
    """`count` distinct bodies of `size_bytes` each, with their checksums, all ready before a clock starts.

    The bodies are windows of one random buffer, 4 KiB apart, so that many large ones fit in memory.
    """

    _STEP_BYTES = 4096

    def __init__(self, seed: str, size_bytes: int, count: int, *, with_sha256: bool) -> None:
        buffer = bytearray(size_bytes + (count - 1) * self._STEP_BYTES)
        Stream(seed).fill(memoryview(buffer), 0)
        views = [memoryview(buffer)[i * self._STEP_BYTES :][:size_bytes] for i in range(count)]
        self.size_bytes = size_bytes
        self.count = count
        self.views = views
        self.crc64nvme = [checksums.crc64nvme(view) for view in views]
        self.crc64nvme_base64 = [b64encode(crc.to_bytes(8, "big")).decode() for crc in self.crc64nvme]
        self.sha256_hex = [hashlib.sha256(view).hexdigest() for view in views] if with_sha256 else None
