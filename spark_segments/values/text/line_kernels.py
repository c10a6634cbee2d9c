"""Kernels that take lines apart: at separators, and as records that are objects of JSON (RFC 8259).

Spans are two rows of int64: where each begins in a buffer, and its bytes. They are what `gather` copies.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.values.text.fields import *
    from spark_segments.values.text.kernels import *

Read = cython.struct(at=cython.longlong, to=cython.longlong)
Listed = cython.struct(at=cython.longlong, to=cython.longlong, headers=cython.longlong)
# The addresses of what `record_spans` fills and of the members' names; the rows and headers that have room.
Table = cython.struct(
    text=cython.longlong, spans=cython.longlong, numbers=cython.longlong, valid=cython.longlong,
    header_ends=cython.longlong, header_spans=cython.longlong, rows=cython.longlong, room=cython.longlong,
    names=cython.longlong, name_ends=cython.longlong,
)  # fmt: skip


def count_lines(block) -> tuple:
    """(lines, those of them that begin with a brace)."""
    at: i64 = address_of(block)
    end: i64 = at + size_of(block)
    lines: i64 = 0
    braces: i64 = 0
    with cython.nogil:
        while at < end:
            lines += 1
            braces += load_u8(at) == 0x7B
            at = find_byte(at, end, 0x0A) + 1
    return lines, braces


@cython.cfunc
@cython.inline
@cython.nogil
def _store_span(spans: i64, column: i64, row: i64, rows: i64, start: i64, size: i64) -> cython.void:
    at: i64 = spans + 8 * (2 * column * rows + row)
    store_native_i64(at, start)
    store_native_i64(at + 8 * rows, size)


@cython.cfunc
@cython.inline
@cython.nogil
def _find(at: i64, end: i64, sought: i64, size: i64) -> i64:
    """The first address from `at` on where the `size` ≥ 1 bytes at `sought` stand; -1 where they do not."""
    byte: i64
    while end - at >= size:
        at = find_byte(at, end - size + 1, load_u8(sought))
        if at > end - size:
            break
        byte = 1
        while byte < size and load_u8(at + byte) == load_u8(sought + byte):
            byte += 1
        if byte == size:
            return at
        at += 1
    return -1


def split_lines(block, separators, separator_ends, spans, rows: i64) -> tuple:
    """Fills the spans (int64[parts, 2, rows]) of what is before, between and behind the separators of each line.

    The separators, one fewer than the parts and none of them empty, lie one behind the other. A line ends with \\n or
    \\r\\n, and the block has `rows` of them. (rows, 0), or (the first line that lacks a separator, which one).
    """
    base: i64 = address_of(block)
    block_end: i64 = base + size_of(block)
    sought: i64 = address_of(separators)
    ends: i64 = address_of(separator_ends)
    span_at: i64 = address_of(spans)
    last: i64 = len(separator_ends)
    next_line: i64 = base
    row: i64 = 0
    part: i64 = 0
    at: i64
    end: i64
    found: i64
    begin: i64
    size: i64
    with cython.nogil:
        while row < rows and next_line < block_end:
            at = next_line
            end = find_byte(at, block_end, 0x0A)
            next_line = end + 1
            if end < block_end and end > at and load_u8(end - 1) == 0x0D:
                end -= 1
            begin = 0
            part = 0
            while part < last:
                size = load_native_i64(ends + 8 * part) - begin
                found = _find(at, end, sought + begin, size)
                if found < 0:
                    break
                _store_span(span_at, part, row, rows, at - base, found - at)
                at = found + size
                begin += size
                part += 1
            _store_span(span_at, part, row, rows, at - base, end - at)
            if part < last:
                break
            row += 1
    return row, part if row < rows else 0


@cython.cfunc
@cython.inline
@cython.nogil
def _unspaced(at: i64, end: i64) -> i64:
    """The first address from `at` on that has no white space of a line."""
    while at < end and (load_u8(at) == 0x20 or load_u8(at) == 0x09 or load_u8(at) == 0x0D):
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
def _marks(word: u64) -> u64:
    """The lowest bit that is set is in the first of eight bytes that does not stand for itself in a string."""
    ones: u64 = 0x0101010101010101
    quotes: u64 = word ^ (0x22 * ones)
    escapes: u64 = word ^ (0x5C * ones)
    found: u64 = wrap_u64(quotes - ones) & ~quotes
    found |= wrap_u64(escapes - ones) & ~escapes
    found |= wrap_u64(word - 0x20 * ones) & ~word
    return (found | word) & (0x80 * ones)


@cython.cfunc
@cython.nogil
def _hexadecimal(at: i64, end: i64) -> i64:
    """The number of four hexadecimal digits; -1 where there are none."""
    number: i64 = 0
    place: i64
    digit: i64
    if end - at < 4:
        return -1
    for place in range(4):
        digit = load_u8(at + place)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x61 <= digit <= 0x66:
            digit -= 0x57
        elif 0x41 <= digit <= 0x46:
            digit -= 0x37
        else:
            return -1
        number = number << 4 | digit
    return number


@cython.cfunc
@cython.nogil
def _unicode(at: i64, end: i64, to: i64) -> Read:
    """Writes the character of the digits behind \\u, of two escapes where it takes a pair of surrogates. Its `at` is 0
    where there is none.
    """
    out: Read = Read(0, to)
    code: i64 = _hexadecimal(at, end)
    low: i64
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return out
    at += 4
    if code >= 0xD800 and code <= 0xDBFF:
        if end - at < 2 or load_u8(at) != 0x5C or load_u8(at + 1) != 0x75:
            return out
        low = _hexadecimal(at + 2, end)
        if low < 0xDC00 or low > 0xDFFF:
            return out
        at += 6
        code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
    if code < 0x80:
        store_i8(to, code)
        to += 1
    elif code < 0x800:
        store_i8(to, 0xC0 | code >> 6)
        store_i8(to + 1, 0x80 | code & 0x3F)
        to += 2
    elif code < 0x10000:
        store_i8(to, 0xE0 | code >> 12)
        store_i8(to + 1, 0x80 | code >> 6 & 0x3F)
        store_i8(to + 2, 0x80 | code & 0x3F)
        to += 3
    else:
        store_i8(to, 0xF0 | code >> 18)
        store_i8(to + 1, 0x80 | code >> 12 & 0x3F)
        store_i8(to + 2, 0x80 | code >> 6 & 0x3F)
        store_i8(to + 3, 0x80 | code & 0x3F)
        to += 4
    out.at, out.to = at, to
    return out


@cython.cfunc
@cython.nogil
def _string(at: i64, end: i64, to: i64) -> Read:
    """Writes the text of the string that begins behind a quote. Its `at` is 0 where there is none.

    A text takes no more bytes than its string, and eight bytes are copied only where the string has them.
    """
    out: Read = Read(0, to)
    marks: u64
    byte: i64
    size: i64
    found: Character
    while at < end:
        if end - at >= 8:
            marks = _marks(load_u64_le(at))
            copy_bytes(to, at, 8)
            size = trailing_zeros(marks) >> 3 if marks != 0 else 8
            at += size
            to += size
            if marks == 0:
                continue
        byte = load_u8(at)
        if byte == 0x5C:
            if end - at < 2:
                return out
            byte = load_u8(at + 1)
            if byte == 0x75:
                out = _unicode(at + 2, end, to)
                if out.at == 0:
                    return out
                at, to = out.at, out.to
                out.at = 0
                continue
            if byte == 0x6E:
                byte = 0x0A
            elif byte == 0x74:
                byte = 0x09
            elif byte == 0x72:
                byte = 0x0D
            elif byte == 0x62:
                byte = 0x08
            elif byte == 0x66:
                byte = 0x0C
            elif byte != 0x22 and byte != 0x5C and byte != 0x2F:
                return out
            store_i8(to, byte)
            at += 2
            to += 1
        elif byte == 0x22:
            out.at, out.to = at + 1, to
            return out
        elif byte >= 0x80:
            found = character_at(at, end)
            if found.size == 0:
                return out
            copy_bytes(to, at, found.size)
            at += found.size
            to += found.size
        elif byte < 0x20:
            return out
        else:
            store_i8(to, byte)
            at += 1
            to += 1
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _integer(at: i64, end: i64) -> Read:
    """A whole number of at most 18 digits, as `to`. Its `at` is 0 where there is none, or -0."""
    out: Read = Read(0, 0)
    negative: cython.bint = load_u8(at) == 0x2D
    number: i64 = 0
    at += negative
    first: i64 = at
    while at < end and at - first < 19 and 0x30 <= load_u8(at) <= 0x39:
        number = number * 10 + load_u8(at) - 0x30
        at += 1
    if at == first or at - first > 18 or (load_u8(first) == 0x30 and (at - first > 1 or negative)):
        return out
    out.at, out.to = at, -number if negative else number
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _word_end(at: i64, end: i64) -> i64:
    """The address behind null, true or false; 0 where none of them stands there."""
    word: i64
    if end - at < 4:
        return 0
    word = load_u32_le(at)
    if word in (NULL_WORD, TRUE_WORD):
        return at + 4
    if word == FALSE_WORD and end - at > 4 and load_u8(at + 4) == 0x65:
        return at + 5
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
def _number_of(at: i64, size: i64, names: i64, ends: i64) -> i64:
    """The number of the member whose name stands there; MEMBERS where none has that name."""
    member: i64
    begin: i64 = 0
    byte: i64
    for member in range(MEMBERS):
        if load_native_i64(ends + 8 * member) - begin == size:
            byte = 0
            while byte < size and load_u8(at + byte) == load_u8(names + begin + byte):
                byte += 1
            if byte == size:
                return member
        begin = load_native_i64(ends + 8 * member)
    return MEMBERS


@cython.cfunc
@cython.inline
@cython.nogil
def _name(at: i64, end: i64, to: i64, table: Table) -> Read:
    """The number of the member that a name announces, as `to`, and where its value begins: 0 where there is none."""
    out: Read = Read(0, 0)
    name: Read
    if at >= end or load_u8(at) != 0x22:
        return out
    name = _string(at + 1, end, to)
    if name.at == 0:
        return out
    at = _unspaced(name.at, end)
    if at >= end or load_u8(at) != 0x3A:
        return out
    at = _unspaced(at + 1, end)
    if at < end:
        out.at, out.to = at, _number_of(to, name.to - to, table.names, table.name_ends)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _next_item(at: i64, end: i64, closing: i64) -> i64:
    """The address of the item behind a comma; that behind a closing bracket, negative; 0 where neither stands there."""
    at = _unspaced(at, end)
    if at < end and load_u8(at) == 0x2C:
        return _unspaced(at + 1, end)
    if at < end and load_u8(at) == closing:
        return -at - 1
    return 0


@cython.cfunc
@cython.nogil
def _header(at: i64, end: i64, to: i64, row: i64, table: Table) -> Read:
    """A header, from its brace on, into a row of the headers. Its `at` is 0 where it is not taken."""
    out: Read = Read(0, to)
    read: Read
    column: i64
    seen: i64 = 0
    if at >= end or load_u8(at) != 0x7B:
        return out
    if row < table.room:
        for column in range(TEXTS):
            _store_span(table.header_spans, column, row, table.room, -1, 0)
    at = _unspaced(at + 1, end)
    while at > 0:
        read = _name(at, end, to, table)
        column = read.to
        if read.at == 0 or column >= TEXTS or column == KEY_BASE64 or seen >> column & 1:
            return out
        seen |= 1 << column
        at = read.at
        if load_u8(at) == 0x22:
            read = _string(at + 1, end, to)
            if read.at == 0:
                return out
            if row < table.room:
                _store_span(table.header_spans, column, row, table.room, to - table.text, read.to - to)
            at, to = read.at, read.to
        else:
            at = _word_end(at, end) if load_u8(at) == 0x6E else 0
            if at == 0:
                return out
        at = _next_item(at, end, 0x7D)
    out.at, out.to = -at, to
    return out


@cython.cfunc
@cython.nogil
def _headers(at: i64, end: i64, to: i64, row: i64, table: Table) -> Listed:
    """The headers behind an opening bracket, into rows from `row` on. Its `at` is 0 where they are not taken."""
    out: Listed = Listed(0, to, row)
    read: Read
    at = _unspaced(at, end)
    if at < end and load_u8(at) == 0x5D:
        out.at = at + 1
        return out
    while at > 0:
        read = _header(at, end, out.to, out.headers, table)
        if read.at == 0:
            return out
        out.to = read.to
        out.headers += 1
        at = _next_item(read.at, end, 0x5D)
    out.at = -at
    return out


@cython.cfunc
@cython.nogil
def _record(at: i64, end: i64, to: i64, row: i64, headers: i64, table: Table) -> Listed:
    """A record, from its brace on, into a row of the table. Its `at` is 0 where it is not taken."""
    out: Listed = Listed(0, to, headers)
    refused: Listed = out
    read: Read
    listed: Listed
    member: i64
    column: i64
    byte: i64
    seen: i64 = 0
    if load_u8(at) != 0x7B:
        return refused
    for column in range(TEXTS):
        _store_span(table.spans, column, row, table.rows, -1, 0)
    for column in range(MEMBERS - TEXTS):
        store_i8(table.valid + column * table.rows + row, 0)
    at = _unspaced(at + 1, end)
    while at > 0:
        read = _name(at, end, out.to, table)
        member = read.to
        if read.at == 0 or (member < MEMBERS and seen >> member & 1):
            return refused
        seen |= 1 << member
        at = read.at
        byte = load_u8(at)
        if byte == 0x22:
            read = _string(at + 1, end, out.to)
            if read.at == 0 or TEXTS <= member < MEMBERS:
                return refused
            if member < TEXTS:
                _store_span(table.spans, member, row, table.rows, out.to - table.text, read.to - out.to)
                out.to = read.to
            at = read.at
        elif byte == 0x6E or ((byte == 0x74 or byte == 0x66) and member == MEMBERS):
            at = _word_end(at, end)
        elif byte == 0x5B and member == HEADERS:
            listed = _headers(at + 1, end, out.to, out.headers, table)
            at, out.to, out.headers = listed.at, listed.to, listed.headers
            store_i8(table.valid + (HEADERS - TEXTS) * table.rows + row, 1)
        elif member < TEXTS or member == HEADERS:
            return refused
        else:
            read = _integer(at, end)
            at = read.at
            if member < MEMBERS:
                store_native_i64(table.numbers + 8 * ((member - TEXTS) * table.rows + row), read.to)
                store_i8(table.valid + (member - TEXTS) * table.rows + row, 1)
        if at > 0:
            at = _next_item(at, end, 0x7D)
    if at == 0 or (seen >> VALUE & 1 == 0 and seen >> VALUE_BASE64 & 1 == 0):
        return refused
    out.at = -at
    return out


def record_spans(block, names, name_ends, text, spans, numbers, valid, header_ends, header_spans) -> tuple:
    """Takes records apart that are lines of JSON.

    `names` has the names of the MEMBERS, one behind the other. The texts of members go to `text`, which has the
    block's size, and their spans, from -1 on for null, to `spans` (int64[TEXTS, 2, rows]); timestamps and partitions
    to `numbers` (int64[2, rows]). `valid` (uint8[3, rows]) says which of these and of the headers are not null. The
    headers of a row end at header_ends[row + 1] (int32) of `header_spans` (int64[TEXTS, 2, headers]), of which only
    the first are stored where there are more.

    (records, headers); (-1, 0) where a line is not taken: it is no object, or more of them than there are rows, has
    a member twice, no value, a part of another type, a number of more than 18 digits or with a fraction, or anything
    nested beside the headers. What is taken is JSON and UTF-8.
    """
    at: i64 = address_of(block)
    block_end: i64 = at + size_of(block)
    table: Table = Table(
        address_of(text), address_of(spans), address_of(numbers), address_of(valid), address_of(header_ends),
        address_of(header_spans), len(header_ends) - 1, size_of(header_spans) // (16 * TEXTS), address_of(names),
        address_of(name_ends),
    )  # fmt: skip
    read: Listed = Listed(0, 0, 0)
    row: i64 = 0
    end: i64
    with cython.nogil:
        read.to = table.text
        store_native_i32(table.header_ends, 0)
        while at < block_end:
            end = find_byte(at, block_end, 0x0A)
            at = _unspaced(at, end)
            if at < end:
                if row == table.rows:
                    break
                read = _record(at, end, read.to, row, read.headers, table)
                if read.at == 0 or _unspaced(read.at, end) < end:
                    break
                row += 1
                store_native_i32(table.header_ends + 4 * row, read.headers)
            at = end + 1
    if at < block_end:
        return -1, 0
    return row, read.headers
