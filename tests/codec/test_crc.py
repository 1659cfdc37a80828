from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import combine_crc64nvme, crc64nvme


def by_the_book(data: bytes) -> int:
    """CRC-64/NVME bit by bit: reflected polynomial 0x9A6C9329AC4BC9B5, all ones before and after."""
    value = 2**64 - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
    return value ^ (2**64 - 1)


def test_the_check_value_of_the_catalogue():
    assert crc64nvme(b"123456789") == 0xAE8B14860A799888 == by_the_book(b"123456789")
    assert crc64nvme(b"") == 0


@given(st.binary(max_size=200), st.integers(0, 200))
def test_pieces_continue_and_combine(data, cut):
    head, tail = data[:cut], memoryview(data)[cut:]
    assert crc64nvme(data) == by_the_book(data)
    assert crc64nvme(tail, crc64nvme(head)) == crc64nvme(data)
    assert combine_crc64nvme(crc64nvme(head), crc64nvme(tail), len(tail)) == crc64nvme(data)
