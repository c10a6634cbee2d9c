"""The base of every kernel: the compiler's settings, raw loads, stores and copies, and Kafka's varints.

Loads, stores and `memcpy` check nothing: the caller has bounded the position. The varint readers take the end of the
readable bytes, and return -1 as the next position where a varint is cut or too long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from spark_segments.format.buffers import byte_view as byte_view
from spark_segments.format.kernels.cache import share_between_copies
from spark_segments.format.kernels.kernel import Kernel

# Kernels take read-only arrays, as Arrow's buffers and bytes objects are. `byte_view` makes such a view of any buffer.
READONLY_BYTES = types.Array(types.uint8, 1, "C", readonly=True)

# Typed Any: a call leaves out the first parameter, which type checkers do not know.
intrinsic: Any = numba.extending.intrinsic

share_between_copies(__file__)

_SWAP = sys.byteorder == "little"
_sources: dict[Any, frozenset[str]] = {}


def njit(*args: Any, **options: Any) -> Any:
    """`numba.njit` with an on-disk cache and without the GIL; use it bare, with a signature, or with options.

    References to arrays are not counted, which would take longer than the work of many a kernel. A kernel that makes
    an array says `_nrt=True`.

    A cached kernel is discarded when its module, or a module whose kernels it calls, has changed. numba alone checks
    only the kernel's module.
    """
    if len(args) == 1 and not options and callable(args[0]) and not isinstance(args[0], types.Type):
        return _compile(args[0], (), {})
    return lambda function: _compile(function, args, options)


def _compile(function: Callable[..., Any], signature: tuple[Any, ...], options: dict[str, Any]) -> Any:
    # Nobody passes kernels on as C functions: the wrapper for that would only take time.
    settings = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
    kernel = Kernel(function, settings | options)
    _watch_sources(kernel, function)
    for one in signature:
        kernel.compile(one)
    return kernel


def _watch_sources(kernel: Any, function: Callable[..., Any]) -> None:
    files = {function.__code__.co_filename, __file__}
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, numba.core.registry.CPUDispatcher):
            files |= _sources.get(called, frozenset())
    _sources[kernel] = frozenset(files)
    cache_file = getattr(kernel._cache, "_cache_file", None)
    if cache_file is not None and all(os.path.isfile(file) for file in files):  # a file in a zip has no stamp
        stamps = (os.stat(file) for file in sorted(files))
        cache_file._source_stamp = tuple((stamp.st_mtime, stamp.st_size) for stamp in stamps)


# Given in place of an array, it turns positions into addresses, so that one call can read many buffers.
MEMORY = np.int64(0)


def _pointer(context: Any, builder: Any, data_type: Any, data: Any, position: Any) -> Any:
    byte_pointer = ir.IntType(8).as_pointer()
    if isinstance(data_type, types.Integer):
        return builder.inttoptr(builder.add(data, position), byte_pointer)
    return builder.gep(
        builder.bitcast(context.make_array(data_type)(context, builder, data).data, byte_pointer), [position]
    )


def _swapped(builder: Any, value: Any, big_endian: bool) -> Any:
    return builder.bswap(value) if big_endian and _SWAP and value.type.width > 8 else value


def _load(bits: int, big_endian: bool = True, signed: bool = True) -> Any:
    result = types.int64 if signed or bits < 64 else types.uint64

    @intrinsic
    def load(typing_context, data, position):
        def generate(context, builder, signature, arguments):
            integer = ir.IntType(bits)
            pointer = _pointer(context, builder, signature.args[0], *arguments)
            value = _swapped(builder, builder.load(builder.bitcast(pointer, integer.as_pointer()), align=1), big_endian)
            widen = builder.sext if signed else builder.zext
            return value if bits == 64 else widen(value, ir.IntType(64))

        return result(data, types.intp), generate

    return load


def _store(bits: int, big_endian: bool = True) -> Any:
    @intrinsic
    def store(typing_context, out, position, value):
        def generate(context, builder, signature, arguments):
            array, at, number = arguments
            integer = ir.IntType(bits)
            number = number if bits == 64 else builder.trunc(number, integer)
            pointer = _pointer(context, builder, signature.args[0], array, at)
            builder.store(
                _swapped(builder, number, big_endian), builder.bitcast(pointer, integer.as_pointer()), align=1
            )
            return context.get_dummy_value()

        return types.void(out, types.intp, types.int64), generate

    return store


# load_x(data, position) -> int64 and store_x(out, position, value), big-endian; stores keep the low bits of `value`.
load_u8 = _load(8, signed=False)
load_i8 = _load(8)
load_i16 = _load(16)
load_i32 = _load(32)
load_u32 = _load(32, signed=False)
load_i64 = _load(64)
store_i8 = _store(8)
store_i16 = _store(16)
store_i32 = _store(32)
store_i64 = _store(64)
# The same in the host's own byte order, for Arrow's buffers.
load_native_i32 = _load(32, big_endian=False)
load_native_i64 = _load(64, big_endian=False)
store_native_i32 = _store(32, big_endian=False)
store_native_i64 = _store(64, big_endian=False)
# Low byte first, as in snappy.
load_u16_le = _load(16, big_endian=_SWAP is False, signed=False)
load_u32_le = _load(32, big_endian=_SWAP is False, signed=False)
# Eight bytes in their order, low byte first, as uint64: for reading ahead of varints and for CRCs.
load_u64_le = _load(64, big_endian=_SWAP is False, signed=False)


def _prefetch(locality: int) -> Any:
    @intrinsic
    def prefetch(typing_context, data, position):
        def generate(context, builder, signature, arguments):
            pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            name, function_type = "llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
            function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
            address = _pointer(context, builder, signature.args[0], *arguments)
            read, of_data = number(0), number(1)
            builder.call(function, [address, read, number(locality), of_data])
            return context.get_dummy_value()

        return types.void(data, types.intp), generate

    return prefetch


# Both fetch the cache line at `position` ahead of its use: `prefetch` into the cache of the second level,
# `prefetch_near` into that of the first. The position may lie outside of `data`.
prefetch = _prefetch(2)
prefetch_near = _prefetch(3)


CHUNK_BYTES = 32


@intrinsic
def copy_chunk(typing_context, out, out_position, data, position):
    """Copies CHUNK_BYTES bytes by one load and one store; unchecked."""

    def generate(context, builder, signature, arguments):
        out_array, out_at, data_array, data_at = arguments
        chunk = ir.VectorType(ir.IntType(8), CHUNK_BYTES).as_pointer()
        target = builder.bitcast(_pointer(context, builder, signature.args[0], out_array, out_at), chunk)
        source = builder.bitcast(_pointer(context, builder, signature.args[2], data_array, data_at), chunk)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, data, types.intp), generate


@intrinsic
def memcpy(typing_context, out, out_position, data, position, size):
    """Copies `size` ≥ 0 bytes of uint8[] `data` from `position` to uint8[] `out` at `out_position`; unchecked."""

    def generate(context, builder, signature, arguments):
        out_array, out_at, data_array, data_at, count = arguments
        target = _pointer(context, builder, signature.args[0], out_array, out_at)
        source = _pointer(context, builder, signature.args[2], data_array, data_at)
        cgutils.raw_memcpy(builder, target, source, count, 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, data, types.intp, types.intp), generate


# Bytes that `copy_short` may write past the end of its copy.
COPY_SLACK = CHUNK_BYTES


@njit(forceinline=True)
def copy_short(out, out_position, data, position, size, data_end):
    """`memcpy` without the call for short sizes.

    It may read up to `data_end`, and may write COPY_SLACK bytes past the copy: the caller must have room for them.
    """
    if size <= 4 * CHUNK_BYTES and position + 4 * CHUNK_BYTES <= data_end:
        copy_chunk(out, out_position, data, position)
        if size > CHUNK_BYTES:
            copy_chunk(out, out_position + CHUNK_BYTES, data, position + CHUNK_BYTES)
            if size > 2 * CHUNK_BYTES:
                copy_chunk(out, out_position + 2 * CHUNK_BYTES, data, position + 2 * CHUNK_BYTES)
                if size > 3 * CHUNK_BYTES:
                    copy_chunk(out, out_position + 3 * CHUNK_BYTES, data, position + 3 * CHUNK_BYTES)
    else:
        memcpy(out, out_position, data, position, size)


@njit(forceinline=True)
def read_varint(data, position, end):
    """(int32 value as int64, next position) of a zigzag varint that ends at or before `end`, else (0, -1).

    As Kafka's ByteUtils: at most five bytes, of which the fifth gives its low four bits.
    """
    if position < end:
        raw = load_u8(data, position)
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), np.int64(position + 1)
        if position + 1 < end:
            byte = load_u8(data, position + 1)
            if byte < 0x80:
                raw = (raw & 0x7F) | byte << 7
                return (raw >> 1) ^ -(raw & 1), np.int64(position + 2)
    raw, position = _read_long(data, position, end, 35)
    raw &= 0xFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), np.int64(position)


@njit(forceinline=True)
def read_varlong(data, position, end):
    """(int64 value, next position) of a zigzag varlong that ends at or before `end`, else (0, -1).

    As Kafka's ByteUtils: at most ten bytes, of which the tenth gives its lowest bit.
    """
    if position < end:
        raw = load_u8(data, position)
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), np.int64(position + 1)
        if position + 1 < end:
            byte = load_u8(data, position + 1)
            if byte < 0x80:
                raw = (raw & 0x7F) | byte << 7
                return (raw >> 1) ^ -(raw & 1), np.int64(position + 2)
    raw, position = _read_long(data, position, end, 70)
    return np.int64(np.uint64(raw) >> np.uint64(1)) ^ -(raw & 1), np.int64(position)


@njit
def _read_long(data, position, end, bits):
    """(the low 64 bits of an unsigned varint of at most `bits` bits, next position), else (0, -1)."""
    raw = np.int64(0)
    for shift in range(0, bits, 7):
        if position >= end:
            break
        byte = load_u8(data, position)
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, np.int64(position)
    return np.int64(0), np.int64(-1)


@njit(forceinline=True)
def write_varlong(out, position, value):
    """Writes int64 `value` as a zigzag varlong (of an int32: the same bytes as its varint); the next position."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    if raw < np.uint64(0x80):
        store_i8(out, position, np.int64(raw))
        return np.int64(position + 1)
    if raw < np.uint64(0x4000):
        low, high = raw & np.uint64(0x7F), raw >> np.uint64(7)
        store_i16(out, position, np.int64(np.uint64(0x8000) | low << np.uint64(8) | high))
        return np.int64(position + 2)
    return _write_long(out, position, raw)


@njit
def _write_long(out, position, raw):
    while raw >= np.uint64(0x80):
        store_i8(out, position, np.int64(raw & np.uint64(0x7F)) | 0x80)
        position += 1
        raw >>= np.uint64(7)
    store_i8(out, position, np.int64(raw))
    return np.int64(position + 1)


@njit(forceinline=True)
def varlong_size(value):
    """Bytes that `write_varlong` writes for int64 `value`."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    if raw < np.uint64(0x80):
        return np.int64(1)
    if raw < np.uint64(0x4000):
        return np.int64(2)
    return _long_size(raw)


@njit
def _long_size(raw):
    size = np.int64(1)
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


# A varlong of an int32 is the same bytes as its varint.
write_varint = write_varlong
varint_size = varlong_size
