"""Kernels that read and write Avro's binary encoding column by column, as a program of read.py and write.py says.

A program is int64[n, 5]: an operation and its operands, a line each; see operations.py. Both kernels run twice over the
rows: once to count what goes where, once to write it into memory of just that size. Nothing in the bytes is believed:
every read is bounded by its row's end. Rules: Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

import cython
import numpy as np

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.values.avro.operations import *

# The state of a row: the line that comes next, the byte that comes next, and what is wrong.
Step = cython.struct(line=cython.longlong, position=cython.longlong, fault=cython.longlong)
Columns = cython.struct(
    counts=cython.longlong,
    sizes=cython.longlong,
    outs=cython.longlong,
    bytes_outs=cython.longlong,
    left=cython.longlong,
    data_end=cython.longlong,
)


@cython.cfunc
@cython.inline
@cython.nogil
def _at(array: i64, index: i64) -> i64:
    return load_native_i64(array + 8 * index)


@cython.cfunc
@cython.inline
@cython.nogil
def _add(array: i64, index: i64, number: i64) -> cython.void:
    store_native_i64(array + 8 * index, load_native_i64(array + 8 * index) + number)


@cython.cfunc
@cython.inline
@cython.nogil
def _step(line: i64, position: i64, fault: i64) -> Step:
    out: Step = Step(line, position, fault)
    return out


@cython.cfunc
@cython.nogil
def _has_decimal(position: i64, size: i64, sign: i64) -> cython.bint:
    """Whether the bytes, of which those beyond 16 may only say the sign, fit 16 bytes."""
    at: i64
    for at in range(size - 16):
        if load_u8(position + at) != sign:
            return False
    return size <= 16 or (load_u8(position + size - 16) >= 0x80) == (sign != 0)


@cython.cfunc
@cython.inline
@cython.nogil
def _read_line(operation: i64, at: i64, line: i64, position: i64, end: i64, to: Columns, fill: cython.bint) -> Step:
    """Reads what the operation of the line at address `at` says; `line` is the number of the next one."""
    column: i64 = load_native_i64(at + 8)
    operand: i64 = load_native_i64(at + 16)
    out: i64
    size: i64
    sign: i64
    index: i64
    read: Varint
    if operation in (LONG, INT, ENUM):
        read = read_varlong(position, end)
        if read.at < 0:
            return _step(line, 0, CUT)
        if operation == LONG:
            if fill:
                store_native_i64(_at(to.outs, column) + 8 * _at(to.counts, column), read.value)
        else:
            if read.value < FIRST_INT or read.value > LAST_INT:
                return _step(line, 0, INT_RANGE)
            if operation == ENUM and (read.value < 0 or read.value >= operand):
                return _step(line, 0, SYMBOL)
            if fill:
                store_native_i32(_at(to.outs, column) + 4 * _at(to.counts, column), read.value)
        _add(to.counts, column, 1)
        return _step(line, read.at, FINE)
    if operation == BYTES:
        read = read_varlong(position, end)
        size = read.value
        if read.at < 0 or size < 0 or size > end - read.at:
            return _step(line, 0, CUT)
        if fill:
            copy_short(_at(to.bytes_outs, column) + _at(to.sizes, column), read.at, size, to.data_end)
        _add(to.sizes, column, size)
        _add(to.counts, column, 1)
        if fill:
            store_native_i32(_at(to.outs, column) + 4 * _at(to.counts, column), _at(to.sizes, column))
        return _step(line, read.at + size, FINE)
    if operation == COPY:
        if operand > end - position:
            return _step(line, 0, CUT)
        if fill:
            copy_bytes(_at(to.outs, column) + operand * _at(to.counts, column), position, operand)
        _add(to.counts, column, 1)
        return _step(line, position + operand, FINE)
    if operation == NULLABLE:
        read = read_varlong(position, end)
        if read.at < 0:
            return _step(line, 0, CUT)
        if read.value != 0 and read.value != 1:
            return _step(line, 0, BRANCH)
        if fill:
            store_i8(_at(to.outs, column) + _at(to.counts, column), read.value != operand)
        _add(to.counts, column, 1)
        return _step(load_native_i64(at + 24) if read.value == operand else line, read.at, FINE)
    if operation == JUMP:
        return _step(column, position, FINE)
    if operation == BOOLEAN:
        if position >= end:
            return _step(line, 0, CUT)
        if load_u8(position) > 1:
            return _step(line, 0, BOOLEAN_BYTE)
        if fill:
            store_i8(_at(to.outs, column) + _at(to.counts, column), load_u8(position))
        _add(to.counts, column, 1)
        return _step(line, position + 1, FINE)
    if operation == SET_VALID:
        if fill:
            store_i8(_at(to.outs, column) + _at(to.counts, column), operand)
        _add(to.counts, column, 1)
        return _step(line, position, FINE)
    if operation == NULL:
        _add(to.counts, column, 1)
        return _step(line, position, FINE)
    if operation == PAD_FIXED:
        if fill:
            fill_bytes(_at(to.outs, column) + operand * _at(to.counts, column), 0, operand)
        _add(to.counts, column, 1)
        return _step(line, position, FINE)
    if operation in (PAD_BYTES, CLOSE):
        _add(to.counts, column, 1)
        if fill:
            store_native_i32(_at(to.outs, column) + 4 * _at(to.counts, column), _at(to.sizes, column))
        return _step(line, position, FINE)
    if operation == BLOCK:
        read = read_varlong(position, end)
        size = read.value
        if read.at >= 0 and size < 0:  # the block's size in bytes follows
            size = wrap_i64(-size)
            read = read_varlong(read.at, end)
        if read.at < 0:
            return _step(line, 0, CUT)
        if size == 0:
            return _step(load_native_i64(at + 24), read.at, FINE)
        if size < 0 or size > (end - read.at if load_native_i64(at + 32) > 0 else MOST_EMPTY_ITEMS):
            return _step(line, 0, BLOCK_COUNT)
        store_native_i64(to.left + 8 * operand, size)
        _add(to.sizes, column, size)
        return _step(line, read.at, FINE)
    if operation == ITEM:
        _add(to.left, column, -1)
        return _step(operand if _at(to.left, column) > 0 else load_native_i64(at + 24), position, FINE)
    if operation == UNION:
        read = read_varlong(position, end)
        if read.at < 0:
            return _step(line, 0, CUT)
        if read.value < 0 or read.value >= column:
            return _step(line, 0, BRANCH)
        return _step(line + read.value, read.at, FINE)
    # DECIMAL, DECIMAL_FIXED
    size = operand
    if operation == DECIMAL:
        read = read_varlong(position, end)
        size = read.value
        position = read.at
    if position < 0 or size < 0 or size > end - position:
        return _step(line, 0, CUT)
    sign = 0xFF if size > 0 and load_u8(position) >= 0x80 else 0
    if not _has_decimal(position, size, sign):
        return _step(line, 0, DECIMAL_SIZE)
    if fill:
        out = _at(to.outs, column) + 16 * _at(to.counts, column)
        for index in range(16):
            store_i8(out + index, load_u8(position + size - 1 - index) if index < size else sign)
    _add(to.counts, column, 1)
    return _step(line, position + size, FINE)


def read_rows(program, data, starts, ends, fill: cython.bint, counts, sizes, outs, bytes_outs, left) -> tuple:
    """Reads rows data[starts[i]:ends[i]] into columns; (row, reason) of the first bad row, else (-1, FINE).

    `data` is any buffer, `starts` and `ends` int64[n]. `counts`, `sizes` (int64[columns], in and out): values of a
    column, and its bytes or items. With `fill`, `outs` and `bytes_outs` are lists of arrays: its values or offsets
    (int32), and its bytes. `left` is int64[depth of lists].
    """
    program_at: i64 = address_of(program)
    begin: i64 = address_of(data)
    start_at: i64 = address_of(starts)
    end_at: i64 = address_of(ends)
    rows: i64 = len(starts)
    out_addresses = np.array([address_of(out) for out in outs], np.int64)
    bytes_addresses = np.array([address_of(one) for one in bytes_outs], np.int64)
    to: Columns = Columns(
        address_of(counts),
        address_of(sizes),
        address_of(out_addresses),
        address_of(bytes_addresses),
        address_of(left),
        begin + size_of(data),
    )
    row: i64 = 0
    bad: i64 = FINE
    position: i64
    end: i64
    at: i64
    operation: i64
    done: Step
    with cython.nogil:
        while row < rows:
            position = begin + load_native_i64(start_at + 8 * row)
            end = begin + load_native_i64(end_at + 8 * row)
            at = program_at
            operation = load_native_i64(at)
            while operation != END:
                done = _read_line(operation, at, (at - program_at) // LINE_BYTES + 1, position, end, to, fill)
                if done.fault != FINE:
                    bad = done.fault
                    break
                position = done.position
                at = program_at + done.line * LINE_BYTES
                operation = load_native_i64(at)
            if bad == FINE and position != end:
                bad = TRAILING
            if bad != FINE:
                break
            row += 1
    return (-1 if bad == FINE else row), bad


@cython.cfunc
@cython.inline
@cython.nogil
def _is_null(node: i64, index: i64) -> cython.bint:
    """Whether the value at an index of a node is null."""
    valid: i64 = load_native_i64(node + 16)
    bit: i64 = load_native_i64(node + 24) + index
    return valid != 0 and (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0


@cython.cfunc
@cython.inline
@cython.nogil
def _decimal_size(at: i64) -> i64:
    """The fewest bytes that hold the 16-byte little-endian two's complement number at an address."""
    sign: i64 = 0xFF if load_u8(at + 15) >= 0x80 else 0
    size: i64 = 16
    while size > 1 and load_u8(at + size - 1) == sign and (load_u8(at + size - 2) >= 0x80) == (sign != 0):
        size -= 1
    return size


def write_rows(program, rows: i64, prefix, nodes, fill: cython.bint, out, out_offsets, index, stop) -> tuple:
    """Writes rows 0 to `rows`, each after `prefix`; (row, reason) of the first bad row, else (-1, FINE).

    `nodes` is int64[n, 4]: addresses of values or offsets, of bytes, of validity bits (0: none null), and the bit of
    row 0. Without `fill` only out_offsets (int64[rows + 1]) is written. `index`, `stop` are int64[depth of lists + 1].
    """
    program_at: i64 = address_of(program)
    prefix_at: i64 = address_of(prefix)
    prefix_size: i64 = size_of(prefix)
    nodes_at: i64 = address_of(nodes)
    begin: i64 = address_of(out)
    offset_at: i64 = address_of(out_offsets)
    index_at: i64 = address_of(index)
    stop_at: i64 = address_of(stop)
    position: i64 = begin
    row: i64 = 0
    bad: i64 = FINE
    operation: i64
    at: i64
    node: i64
    level: i64
    operand: i64
    item: i64
    line: i64
    value: i64
    size: i64
    first: i64
    byte: i64
    with cython.nogil:
        store_native_i64(offset_at, 0)
        while row < rows:
            if fill:
                copy_bytes(position, prefix_at, prefix_size)
            position += prefix_size
            store_native_i64(index_at, row)
            line = 0
            while True:
                at = program_at + line * LINE_BYTES
                line += 1
                operation = load_native_i64(at)
                if operation == END:
                    break
                node = nodes_at + load_native_i64(at + 8) * NODE_BYTES
                level = load_native_i64(at + 16)
                operand = load_native_i64(at + 24)
                item = _at(index_at, level)
                if operation in (LONG, INT):
                    if operation == LONG:
                        value = load_native_i64(load_native_i64(node) + 8 * item)
                    else:
                        value = load_native_i32(load_native_i64(node) + 4 * item)
                    position = write_varlong(position, value) if fill else position + varlong_size(value)
                elif operation == BYTES:
                    first = load_native_i32(load_native_i64(node) + 4 * item)
                    size = load_native_i32(load_native_i64(node) + 4 * item + 4) - first
                    if fill:
                        position = write_varlong(position, size)
                        copy_bytes(position, load_native_i64(node + 8) + first, size)
                    else:
                        position += varlong_size(size)
                    position += size
                elif operation == COPY:
                    if fill:
                        copy_bytes(position, load_native_i64(node) + operand * item, operand)
                    position += operand
                elif operation == NULLABLE:
                    value = operand
                    if _is_null(node, item):
                        line = load_native_i64(at + 32)
                    else:
                        value = 1 - operand
                    if fill:
                        store_i8(position, 2 * value)
                    position += 1
                elif operation == REQUIRE:
                    if _is_null(node, item):
                        bad = NULL_VALUE
                        break
                elif operation == JUMP:
                    line = operand
                elif operation == TAG:
                    position = write_varlong(position, operand) if fill else position + varlong_size(operand)
                elif operation == IF_VALID:
                    if _is_null(node, item):
                        line = operand
                elif operation == FAIL:
                    bad = operand
                    break
                elif operation == LIST:
                    first = load_native_i32(load_native_i64(node) + 4 * item)
                    size = load_native_i32(load_native_i64(node) + 4 * item + 4) - first
                    position = write_varlong(position, size) if fill else position + varlong_size(size)
                    if size == 0:
                        line = operand
                    else:
                        store_native_i64(index_at + 8 * level + 8, first)
                        store_native_i64(stop_at + 8 * level + 8, first + size)
                elif operation == NEXT:  # `level` is that of the items
                    store_native_i64(index_at + 8 * level, item + 1)
                    if item + 1 < _at(stop_at, level):
                        line = operand
                    else:
                        if fill:
                            store_i8(position, 0)
                        position += 1
                else:  # DECIMAL, DECIMAL_FIXED
                    value = load_native_i64(node) + 16 * item
                    size = _decimal_size(value)
                    if operation == DECIMAL:
                        if fill:
                            store_i8(position, 2 * size)
                        position += 1
                    elif size > operand:
                        bad = DECIMAL_SIZE
                        break
                    else:
                        size = operand
                    if fill:
                        for byte in range(size):
                            store_i8(
                                position + size - 1 - byte,
                                load_u8(value + byte) if byte < 16 else load_i8(value + 15) >> 7,
                            )
                    position += size
            if bad != FINE:
                break
            row += 1
            store_native_i64(offset_at + 8 * row, position - begin)
    return (-1 if bad == FINE else row), bad
