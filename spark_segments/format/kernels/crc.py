"""CRC-32C (Castagnoli), the checksum of magic 2 record batches: a function for buffers, and a kernel for other kernels.

The function comes from the package crc32c. Kernels cannot call Python, so the kernel is machine code: three interleaved
streams keep the processor's instruction busy (a step takes three cycles, but each cycle can begin a step). On a
processor without the instruction the kernel goes byte by byte through a table, a tenth as fast.
"""

from __future__ import annotations

from typing import Any

import crc32c as package
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target

from spark_segments.format.kernels.jit import intrinsic, load_u8, load_u64_le, njit, prefetch

_POLYNOMIAL = 0x82F63B78  # bits reversed
_MASK = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)


def _byte_table() -> np.ndarray:
    """uint64[256]: the CRC that each value of a byte adds."""
    crc = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        crc = (crc >> np.uint64(1)) ^ (crc & np.uint64(1)) * np.uint64(_POLYNOMIAL)
    return crc


_TABLE = _byte_table()


def _shift_tables(zeros: int) -> np.ndarray:
    """uint64[4, 256]: the CRC that each byte of a CRC becomes after `zeros` zero bytes; `zeros` is a power of two."""
    columns = np.uint64(1) << np.arange(32, dtype=np.uint64)  # the bits of a CRC; below, each bit after a zero byte
    columns = _TABLE[columns & _BYTE] ^ (columns >> np.uint64(8))
    while zeros > 1:
        columns = np.array([np.bitwise_xor.reduce(columns[_bits(int(column))]) for column in columns])
        zeros //= 2
    return np.array(
        [
            [np.bitwise_xor.reduce(columns[_bits(byte << 8 * lane)], initial=np.uint64(0)) for byte in range(256)]
            for lane in range(4)
        ]
    )


def _bits(number: int) -> list[int]:
    return [bit for bit in range(32) if number >> bit & 1]


# Bytes of each of the three streams before their CRCs are combined: multiples of a cache line.
_LONG, _MIDDLE, _SHORT = 8192, 1024, 128
_CACHE_LINE = 64
_AHEAD = 3 * _LONG
_SHIFT_LONG, _SHIFT_MIDDLE, _SHIFT_SHORT = (_shift_tables(size) for size in (_LONG, _MIDDLE, _SHORT))


def _instructions() -> tuple[str, str] | None:
    """LLVM's names of the CRC-32C steps for a byte and for eight, of the CPU that numba compiles for, or None."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    wanted = set(features.split(","))
    if triple.startswith("x86_64") and "+crc32" in wanted:
        return "llvm.x86.sse42.crc32.32.8", "llvm.x86.sse42.crc32.64.64"
    if triple.startswith(("aarch64", "arm64")) and "+crc" in wanted:
        return "llvm.aarch64.crc32cb", "llvm.aarch64.crc32cx"
    return None


def _step(name: str, crc_bits: int, data_bits: int) -> Any:
    @intrinsic
    def step(typing_context, crc, data):
        def generate(context, builder, signature, arguments):
            crc_type, data_type = ir.IntType(crc_bits), ir.IntType(data_bits)
            function_type = ir.FunctionType(crc_type, [crc_type, data_type])
            function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
            fitted = (
                value if value.type == wanted else builder.trunc(value, wanted)
                for value, wanted in zip(arguments, function_type.args, strict=True)
            )
            result = builder.call(function, list(fitted))
            return result if crc_bits == 64 else builder.zext(result, ir.IntType(64))

        return types.uint64(types.uint64, types.uint64), generate

    return step


@njit
def table_crc32c_range(data, start, end):
    """CRC-32C of data[start:end] as int64, on any processor."""
    crc = _MASK
    while start < end:
        crc = _TABLE[(crc ^ np.uint64(load_u8(data, start))) & _BYTE] ^ (crc >> np.uint64(8))
        start += 1
    return np.int64(crc ^ _MASK)


@njit
def _shifted(crc, tables):
    return (
        tables[0, crc & _BYTE]
        ^ tables[1, (crc >> np.uint64(8)) & _BYTE]
        ^ tables[2, (crc >> np.uint64(16)) & _BYTE]
        ^ tables[3, crc >> np.uint64(24)]
    )


_FOUND = _instructions()

if _FOUND is None:
    crc32c_range = table_crc32c_range
else:
    _step_byte = _step(_FOUND[0], 32, 32 if "aarch64" in _FOUND[0] else 8)
    _step_word = _step(_FOUND[1], 32 if "aarch64" in _FOUND[1] else 64, 64)

    @njit
    def _three_streams(crc, data, start, end, size, shift):
        """(CRC, position) after all blocks of three streams of `size` bytes that fit before `end`."""
        while start + 3 * size <= end:
            second = np.uint64(0)
            third = np.uint64(0)
            for line in range(start, start + size, _CACHE_LINE):
                # The CPU's own prefetching does not follow three streams that start anew so often.
                prefetch(data, line + _AHEAD)
                prefetch(data, line + _AHEAD + size)
                prefetch(data, line + _AHEAD + 2 * size)
                for at in range(line, line + _CACHE_LINE, 8):
                    crc = _step_word(crc, load_u64_le(data, at))
                    second = _step_word(second, load_u64_le(data, at + size))
                    third = _step_word(third, load_u64_le(data, at + 2 * size))
            crc = _shifted(_shifted(crc, shift) ^ second, shift) ^ third
            start += 3 * size
        return crc, start

    @njit
    def crc32c_range(data, start, end):
        """CRC-32C of data[start:end] as int64."""
        crc = _MASK
        crc, start = _three_streams(crc, data, start, end, _LONG, _SHIFT_LONG)
        crc, start = _three_streams(crc, data, start, end, _MIDDLE, _SHIFT_MIDDLE)
        crc, start = _three_streams(crc, data, start, end, _SHORT, _SHIFT_SHORT)
        while start + 8 <= end:
            crc = _step_word(crc, load_u64_le(data, start))
            start += 8
        while start < end:
            crc = _step_byte(crc, np.uint64(load_u8(data, start)))
            start += 1
        return np.int64(crc ^ _MASK)


def crc32c(buffer: Any) -> int:
    """CRC-32C of all bytes of a buffer."""
    return int(package.crc32c(buffer))
