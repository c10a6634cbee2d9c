"""Kernels that write text: strings of JSON (RFC 8259, section 7) and base64 (RFC 4648, section 4, with padding), which
one of them reads, too.

Rows are int64[n + 1] of offsets into a buffer, which the caller has bounded.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *

Character = cython.struct(code=cython.longlong, size=cython.longlong)


@cython.cfunc
@cython.nogil
def character_at(at: i64, end: i64) -> Character:
    """The character of UTF-8 at an address, and its bytes: none where it is none (Unicode, table 3-7)."""
    out: Character = Character(load_u8(at), 1)
    least: i64
    byte: i64
    if out.code < 0x80:
        return out
    if 0xC2 <= out.code < 0xE0:
        out.code, out.size, least = out.code & 0x1F, 2, 0x80
    elif 0xE0 <= out.code < 0xF0:
        out.code, out.size, least = out.code & 0x0F, 3, 0x800
    elif 0xF0 <= out.code < 0xF5:
        out.code, out.size, least = out.code & 0x07, 4, 0x10000
    else:
        out.size = 0
        return out
    if out.size > end - at:
        out.size = 0
        return out
    for byte in range(1, out.size):
        if load_u8(at + byte) & 0xC0 != 0x80:
            out.size = 0
            return out
        out.code = out.code << 6 | load_u8(at + byte) & 0x3F
    if out.code < least or out.code > 0x10FFFF or 0xD800 <= out.code < 0xE000:
        out.size = 0
    return out


@cython.cfunc
@cython.nogil
def _obeyed(code: i64) -> cython.bint:
    """Whether a character from 0x7F on is one that `errors.escaped` shows."""
    return (
        code <= 0x9F
        or code == 0x061C
        or 0x200E <= code <= 0x200F
        or 0x2028 <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
    )


@cython.cfunc
@cython.inline
@cython.nogil
def _string(
    at: i64, end: i64, to: i64, table: i64, is_string: cython.bint, is_safe: cython.bint, fill: cython.bint
) -> i64:
    """Writes the bytes from `at` to `end`, to `to`. How many these are; -1 where they are no text."""
    begin: i64 = to
    byte: i64
    place: i64
    size: i64
    found: Character
    if is_string:
        if fill:
            store_i8(to, 0x22)
        to += 1
    while at < end:
        byte = load_u8(at)
        size = load_u8(table + byte)
        if size == 1:
            if fill:
                store_i8(to, byte)
            to += 1
            at += 1
            continue
        found = Character(byte, 1) if size else character_at(at, end)
        if found.size == 0:
            return -1
        if size == 0 and not (is_safe and _obeyed(found.code)):
            if fill:
                copy_bytes(to, at, found.size)
            size = found.size
        elif size == 2:
            if fill:
                store_i8(to, 0x5C)
                store_i8(to + 1, load_u8(table + 256 + byte))
        else:
            size = 6
            if fill:
                store_i8(to, 0x5C)
                store_i8(to + 1, 0x75)
                for place in range(4):
                    byte = found.code >> (12 - 4 * place) & 15
                    store_i8(to + 2 + place, byte + (0x30 if byte < 10 else 0x57))
        to += size
        at += found.size
    if is_string:
        if fill:
            store_i8(to, 0x22)
        to += 1
    return to - begin


def json_strings(data, offsets, sizes, out, table, is_string: cython.bint, is_safe: cython.bint) -> None:
    """Rows of UTF-8 as JSON: with quotes, if `is_string`; `is_safe`: without characters that a terminal would obey.

    `table` (uint8[384]) has for each byte how many stand for it: 1, the byte itself; 2, \\ and the letter 256 places
    on; 6, \\u and its number; 0, it begins a longer character. Without `out` (None), `sizes` (int64[n]) get the bytes
    that each row takes, -1 where it is not UTF-8. With it, these rows go there, one behind the other; the others are
    left out. `out` has their room.
    """
    base: i64 = address_of(data)
    offset_at: i64 = address_of(offsets)
    size_at: i64 = address_of(sizes)
    table_at: i64 = address_of(table)
    rows: i64 = len(sizes)
    fill: cython.bint = out is not None
    to: i64 = address_of(out) if fill else 0
    row: i64
    start: i64
    end: i64
    with cython.nogil:
        for row in range(rows):
            start = base + load_native_i64(offset_at + 8 * row)
            end = base + load_native_i64(offset_at + 8 * row + 8)
            if not fill:
                store_native_i64(size_at + 8 * row, _string(start, end, 0, table_at, is_string, is_safe, False))
            elif load_native_i64(size_at + 8 * row) >= 0:
                to += _string(start, end, to, table_at, is_string, is_safe, True)


def base64_text(data, offsets, out) -> None:
    """Rows as base64, one behind the other: `out` has room for four bytes for each three, begun ones too."""
    base: i64 = address_of(data)
    offset_at: i64 = address_of(offsets)
    to: i64 = address_of(out)
    rows: i64 = len(offsets) - 1
    row: i64
    at: i64
    end: i64
    bits: i64
    place: i64
    digit: i64
    with cython.nogil:
        for row in range(rows):
            at = base + load_native_i64(offset_at + 8 * row)
            end = base + load_native_i64(offset_at + 8 * row + 8)
            while at < end:
                bits = load_u8(at) << 16
                if at + 1 < end:
                    bits |= load_u8(at + 1) << 8
                if at + 2 < end:
                    bits |= load_u8(at + 2)
                for place in range(4):
                    digit = bits >> (18 - 6 * place) & 63
                    if at + place > end:
                        digit = 0x3D
                    elif digit < 26:
                        digit += 0x41
                    elif digit < 52:
                        digit += 0x61 - 26
                    elif digit < 62:
                        digit += 0x30 - 52
                    else:
                        digit = 0x2B if digit == 62 else 0x2F
                    store_i8(to + place, digit)
                to += 4
                at += 3


def base64_bytes(text, offsets, values, out, ends) -> int:
    """The bytes that rows of base64 stand for, one behind the other: the first row that is none, or -1.

    `values` (uint8[256]) has the value of each digit, and 255 for what is none. `ends` (int64[n]) get the end of each
    row's bytes in `out`, which has room for three of them for each four of the text.
    """
    base: i64 = address_of(text)
    offset_at: i64 = address_of(offsets)
    value_at: i64 = address_of(values)
    begin: i64 = address_of(out)
    end_at: i64 = address_of(ends)
    rows: i64 = len(ends)
    to: i64 = begin
    row: i64 = 0
    at: i64
    end: i64
    bits: i64
    place: i64
    digit: i64
    digits: i64
    with cython.nogil:
        while row < rows:
            at = base + load_native_i64(offset_at + 8 * row)
            end = base + load_native_i64(offset_at + 8 * row + 8)
            while end - at >= 4:
                digits = 4
                if at + 4 == end and load_u8(at + 3) == 0x3D:
                    digits = 2 if load_u8(at + 2) == 0x3D else 3
                bits = 0
                for place in range(4):
                    digit = load_u8(value_at + load_u8(at + place)) if place < digits else 0
                    bits = bits << 6 | digit | (digit & 0x80) << 32
                if bits >> 24:
                    break
                store_i8(to, bits >> 16)
                store_i8(to + 1, bits >> 8)
                store_i8(to + 2, bits)
                to += digits - 1
                at += 4
            if at < end:
                break
            store_native_i64(end_at + 8 * row, to - begin)
            row += 1
    return row if row < rows else -1
