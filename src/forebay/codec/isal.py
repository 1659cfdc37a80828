"""Finds and opens ISA-L (https://github.com/intel/isa-l), and proves that it computes what we expect.

The library is called through cffi in ABI mode, which needs no compiler and releases the GIL around every call.
Addresses are passed as integers: the C declarations below say `uintptr_t` where `erasure_code.h` says
`unsigned char *`.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from cffi import FFI

from forebay.codec.crc import crc64nvme
from forebay.errors import ConfigError

SYSTEM_LIBRARY = "libisal.so.2"
SELF_TEST_CRC = 0xAB260E1D5FCFAA80  # of the parity in `self_test`, as tests/codec/rs_reference.py computes it

ffi = FFI()
ffi.cdef("""
    void ec_init_tables(int k, int rows, unsigned char *matrix, unsigned char *tables);
    void ec_encode_data(int length, int k, int rows, unsigned char *tables, uintptr_t *sources, uintptr_t *targets);
    void gf_gen_cauchy1_matrix(unsigned char *matrix, int rows, int k);
    int gf_invert_matrix(unsigned char *matrix, unsigned char *inverse, int k);
    unsigned char gf_mul(unsigned char a, unsigned char b);
""")

_address_type = ffi.typeof("uintptr_t")


def bundled_library() -> str | None:
    """Path of the ISA-L that pyeclib's wheel carries; None if pyeclib is not installed or was built without it."""
    try:
        files = importlib.metadata.files("pyeclib") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [file for file in files if file.name.startswith("libisal") and ".so" in file.name]
    return str(found[0].locate()) if found else None


@cache
def library() -> Any:
    """The opened and tested library. Raises ConfigError if there is none, or if it gives wrong answers."""
    bundled = bundled_library()
    failures = []
    for path in filter(None, (bundled, SYSTEM_LIBRARY)):
        try:
            opened = ffi.dlopen(path)
        except OSError as error:
            failures.append(str(error))
            continue
        self_test(opened, path)
        return opened
    raise ConfigError(
        "no ISA-L library for erasure coding: install pyeclib >= 1.6.4 from a wheel (`pip install --only-binary :all: "
        f"pyeclib`) or the system's libisal2 (`apt-get install libisal2`). Tried: {'; '.join(failures)}"
    )


def self_test(opened: Any, path: str) -> None:
    """Encode a known pattern, long enough for the vector kernels and with a tail, and compare. Raises ConfigError."""
    k, m, length = 3, 2, 4096 + 77
    source = bytearray((index * 31 + (index >> 8) * 7) & 0xFF for index in range(k * length))
    parity = bytearray(m * length)
    matrix = ffi.new("unsigned char[]", (k + m) * k)
    tables = ffi.new("unsigned char[]", 32 * k * m)
    opened.gf_gen_cauchy1_matrix(matrix, k + m, k)
    opened.ec_init_tables(k, m, matrix + k * k, tables)
    base, target = address_of(source), address_of(parity)
    sources = ffi.new("uintptr_t[]", [base + index * length for index in range(k)])
    targets = ffi.new("uintptr_t[]", [target + index * length for index in range(m)])
    opened.ec_encode_data(length, k, m, tables, sources, targets)
    if crc64nvme(parity) != SELF_TEST_CRC:
        raise ConfigError(f"{path}: the ISA-L library fails its self-test on this processor; install another build")


def address_of(buffer: bytes | bytearray | memoryview) -> int:
    """Where the memory of `buffer` lies; the caller keeps it alive."""
    return int(ffi.cast(_address_type, ffi.from_buffer(buffer)))
