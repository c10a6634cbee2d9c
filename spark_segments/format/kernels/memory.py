"""Loads, stores, copies, searches and Kafka's varints at addresses, as kernels have them that Python runs uncompiled.

Compiled kernels take memory.h, which checks nothing: the caller has bounded every position. Here every access is
checked against the memory that was granted, so a kernel that reads or writes elsewhere fails. load_x(address) reads a
big-endian number, store_x(address, number) keeps its low bits; "native" is the host's byte order, as in Arrow's
buffers, and "le" has the low byte first.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from spark_segments.format.buffers import CHUNK_BYTES

i64 = u64 = int

_granted: list[tuple[int, int]] = []


@contextmanager
def granted(*ranges: tuple[int, int]) -> Iterator[None]:
    """Lets kernels also use memory in the ranges [start, end), as long as the context lasts."""
    before = len(_granted)
    _granted.extend(ranges)
    try:
        yield
    finally:
        del _granted[before:]


def _check(address: int, size: int) -> None:
    if size < 0 or not any(start <= address and address + size <= end for start, end in _granted):
        raise MemoryError(f"{size} bytes at {address:#x} were not granted")


def address_of(view: Any) -> int:
    """The address of the first byte of a buffer, which is granted from then on, until the context ends."""
    array = np.frombuffer(view, np.uint8)
    address = int(array.__array_interface__["data"][0])
    _granted.append((address, address + array.nbytes))
    return address


def size_of(buffer: Any) -> int:
    """The bytes of a buffer."""
    return np.frombuffer(buffer, np.uint8).nbytes


def _load(layout: str) -> Callable[[int], int]:
    number_layout = struct.Struct(layout)

    def load(address: int) -> int:
        _check(address, number_layout.size)
        return int(number_layout.unpack(ctypes.string_at(address, number_layout.size))[0])

    return load


def _store(layout: str) -> Callable[[int, int], None]:
    number_layout = struct.Struct(layout)
    mask = (1 << 8 * number_layout.size) - 1

    def store(address: int, number: int) -> None:
        _check(address, number_layout.size)
        ctypes.memmove(address, number_layout.pack(int(number) & mask), number_layout.size)

    return store


load_u8, load_i8 = _load("B"), _load("b")
load_i16, load_i32, load_u32, load_i64 = _load(">h"), _load(">i"), _load(">I"), _load(">q")
load_native_i32, load_native_i64 = _load("=i"), _load("=q")
load_u16_le, load_u32_le, load_u64_le = _load("<H"), _load("<I"), _load("<Q")
store_i8, store_i16, store_i32, store_i64 = _store("B"), _store(">H"), _store(">I"), _store(">Q")
store_native_i32, store_native_i64 = _store("=I"), _store("=Q")


def wrap_i64(number: int) -> int:
    """The number as an int64 holds it: what a compiled kernel does by itself when it calculates."""
    return (int(number) + 2**63) % 2**64 - 2**63


def wrap_u64(number: int) -> int:
    """The number as a uint64 holds it."""
    return int(number) % 2**64


def wrap_u32(number: int) -> int:
    """The number as a uint32 holds it."""
    return int(number) % 2**32


def multiply_high(a: int, b: int) -> int:
    """The upper 64 bits of the 128-bit product of two uint64."""
    return a * b >> 64


def swap_64(number: int) -> int:
    """A uint64 with its bytes in the other order."""
    return int.from_bytes(number.to_bytes(8, "little"), "big")


def prefetch(address: int) -> None:
    """Fetches the cache line at an address, which may be any, into the second level's cache ahead of its use."""


prefetch_near = prefetch
"""The same into the first level's cache."""


def copy_bytes(out: int, data: int, size: int) -> None:
    """Copies `size` ≥ 0 bytes. Source and target do not overlap."""
    if size:
        _check(out, size)
        _check(data, size)
        ctypes.memmove(out, data, size)


def fill_bytes(out: int, value: int, size: int) -> None:
    """Sets `size` ≥ 0 bytes to one value."""
    if size:
        _check(out, size)
        ctypes.memset(out, value, size)


def copy_chunk(out: int, data: int) -> None:
    """Copies CHUNK_BYTES bytes: all are read before any is written."""
    _check(data, CHUNK_BYTES)
    _check(out, CHUNK_BYTES)
    ctypes.memmove(out, ctypes.string_at(data, CHUNK_BYTES), CHUNK_BYTES)


def copy_short(out: int, data: int, size: int, data_end: int) -> None:
    """`copy_bytes`, quicker for short sizes.

    It may read up to `data_end`, and may write COPY_SLACK bytes past the copy: the caller must have room for them.
    """
    if size <= 4 * CHUNK_BYTES and data + 4 * CHUNK_BYTES <= data_end:
        for at in range(0, max(size, 1), CHUNK_BYTES):
            copy_chunk(out + at, data + at)
    else:
        copy_bytes(out, data, size)


class Varint(NamedTuple):
    """A number, and the address behind it, or (0, -1) where it is cut or too long."""

    value: int
    at: int


def _read(at: int, end: int, most_bytes: int, mask: int) -> Varint:
    raw = 0
    for number in range(min(most_bytes, end - at)):
        byte = load_u8(at + number)
        raw |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            raw &= mask
            return Varint((raw >> 1) ^ -(raw & 1), at + number + 1)
    return Varint(0, -1)


def read_varint(at: int, end: int) -> Varint:
    """An int32 as a zigzag varint that ends at or before `end`.

    As Kafka's ByteUtils: at most five bytes, of which the fifth gives its low four bits.
    """
    return _read(at, end, 5, 2**32 - 1)


def read_varlong(at: int, end: int) -> Varint:
    """An int64 as a zigzag varlong: at most ten bytes, of which the tenth gives its lowest bit."""
    return _read(at, end, 10, 2**64 - 1)


def write_varlong(out: int, value: int) -> int:
    """Writes an int64 as a zigzag varlong (of an int32: the same bytes as its varint). The address behind it."""
    raw = wrap_u64((value << 1) ^ (value >> 63))
    while raw >= 0x80:
        store_i8(out, raw & 0x7F | 0x80)
        out, raw = out + 1, raw >> 7
    store_i8(out, raw)
    return out + 1


def varlong_size(value: int) -> int:
    """Bytes that `write_varlong` writes."""
    raw = wrap_u64((value << 1) ^ (value >> 63))
    return max(1, -(-raw.bit_length() // 7))
