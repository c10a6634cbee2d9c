"""CRC-32C (Castagnoli), the checksum of magic 2 record batches: for buffers, and for other kernels by address.

It takes the processor's instruction where there is one, else goes byte by byte through a table, a tenth as fast.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *

    def crc_begin():
        pass

    def table_crc(crc, start, end):
        crc ^= 0xFFFFFFFF
        for at in range(start, end):
            crc ^= load_u8(at)
            for _ in range(8):
                crc = crc >> 1 ^ (crc & 1) * 0x82F63B78
        return crc ^ 0xFFFFFFFF

    best_crc = table_crc

crc_begin()


@cython.cfunc
@cython.nogil
def crc32c_range(start: i64, end: i64) -> i64:
    """CRC-32C of the bytes from one address to another."""
    return best_crc(0, start, end)


def crc32c(buffer, crc: int = 0) -> int:
    """CRC-32C of all bytes of a buffer, after bytes whose CRC-32C is `crc`."""
    before: i64 = crc
    start: i64 = address_of(buffer)
    end: i64 = start + size_of(buffer)
    checksum: i64
    with cython.nogil:
        checksum = best_crc(before, start, end)
    return checksum


def table_crc32c(buffer, crc: int = 0) -> int:
    """The same as on a processor without the instruction."""
    start: i64 = address_of(buffer)
    return table_crc(crc, start, start + size_of(buffer))
