"""Reed-Solomon and checksums over native kernels, on buffers that the caller owns. No I/O."""

from forebay.codec.crc import combine_crc64nvme, crc64nvme
from forebay.codec.reed_solomon import ReedSolomon

__all__ = ["ReedSolomon", "combine_crc64nvme", "crc64nvme"]
