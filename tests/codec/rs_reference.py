"""Reed-Solomon by the book: GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, one byte at a time. Judges the native kernel."""

from functools import cache


@cache
def multiply(a: int, b: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11D
        b >>= 1
    return product


@cache
def inverse(a: int) -> int:
    return next(candidate for candidate in range(1, 256) if multiply(a, candidate) == 1)


def parity_blocks(blocks: list[bytes], parity: int) -> list[bytes]:
    """Parity row i has the coefficients 1 / (i xor j), i = k ... n - 1."""
    k = len(blocks)
    result = []
    for row in range(k, k + parity):
        tables = [bytes(multiply(inverse(row ^ column), value) for value in range(256)) for column in range(k)]
        scaled = [block.translate(table) for block, table in zip(blocks, tables, strict=True)]
        total = 0
        for block in scaled:
            total ^= int.from_bytes(block, "big")
        result.append(total.to_bytes(len(blocks[0]), "big"))
    return result
