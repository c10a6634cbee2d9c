"""Kernels that read and write Avro's binary encoding column by column, as a program of read.py and write.py says.

A program is int64[n, 5]: an operation and its operands, a line each. Both kernels run twice over the rows: once to
count what goes where, once to write it into memory of just that size. Nothing in the bytes is believed: every read is
bounded by its row's end. Rules: Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.kernels.jit import (
    COPY_SLACK,
    MEMORY,
    copy_short,
    load_i8,
    load_native_i32,
    load_native_i64,
    load_u8,
    memcpy,
    njit,
    read_varlong,
    store_i8,
    store_native_i32,
    store_native_i64,
    varlong_size,
    write_varlong,
)

SLACK = COPY_SLACK
"""Bytes that a kernel may write past the end of its output."""

# Operations of both kinds of program.
END, JUMP, INT, LONG, BOOLEAN, COPY, BYTES, ENUM, DECIMAL, DECIMAL_FIXED, NULLABLE = range(11)
# Of reading: UNION branches; PAD_* append the place of a null; a list is BLOCK, its items' lines, ITEM, CLOSE.
UNION, NULL, PAD_FIXED, PAD_BYTES, SET_VALID, BLOCK, ITEM, CLOSE = range(11, 19)
# Of writing.
REQUIRE, TAG, IF_VALID, FAIL, LIST, NEXT = range(19, 25)

# Faults of a row.
FINE, CUT, TRAILING, BRANCH, SYMBOL, INT_RANGE, BLOCK_COUNT, DECIMAL_SIZE, NULL_VALUE, BOOLEAN_BYTE = range(10)
REASONS = {
    CUT: "the bytes end within a value",
    TRAILING: "bytes are left behind the last field",
    BRANCH: "a union has no such branch",
    SYMBOL: "an enum has no such symbol",
    INT_RANGE: "an int does not fit 32 bits",
    BLOCK_COUNT: "an array or map has more items than there are bytes",
    DECIMAL_SIZE: "a decimal does not fit its type",
    NULL_VALUE: "a null where the schema has none",
    BOOLEAN_BYTE: "a boolean is neither 0 nor 1",
}
MOST_EMPTY_ITEMS = 1 << 16
"""Of a block of an array whose items take no bytes (null, say)."""


@njit
def read_rows(program, data, starts, ends, fill, counts, sizes, outs, bytes_outs, left):
    """Reads rows data[starts[i]:ends[i]] into columns; (row, reason) of the first bad row, else (-1, FINE).

    `counts`, `sizes` (int64[columns], in and out): values of a column, and its bytes or items. With `fill`, `outs` and
    `bytes_outs` are addresses of its values or offsets (int32) and of its bytes. `left` is int64[depth of lists].
    """
    data_end = len(data)
    for row in range(len(starts)):
        position, end = np.int64(starts[row]), np.int64(ends[row])
        line = np.int64(0)
        while True:
            operation = program[line, 0]
            column = program[line, 1]
            line += 1
            if operation in (LONG, INT, ENUM):
                value, position = read_varlong(data, position, end)
                if position < 0:
                    return row, CUT
                if operation == LONG:
                    if fill:
                        store_native_i64(MEMORY, outs[column] + 8 * counts[column], value)
                else:
                    if value < -0x80000000 or value > 0x7FFFFFFF:
                        return row, INT_RANGE
                    if operation == ENUM and (value < 0 or value >= program[line - 1, 2]):
                        return row, SYMBOL
                    if fill:
                        store_native_i32(MEMORY, outs[column] + 4 * counts[column], value)
                counts[column] += 1
            elif operation == BYTES:
                size, position = read_varlong(data, position, end)
                if position < 0 or size < 0 or size > end - position:
                    return row, CUT
                if fill:
                    copy_short(MEMORY, bytes_outs[column] + sizes[column], data, position, size, data_end)
                position += size
                sizes[column] += size
                counts[column] += 1
                if fill:
                    store_native_i32(MEMORY, outs[column] + 4 * counts[column], sizes[column])
            elif operation == COPY:
                size = program[line - 1, 2]
                if size > end - position:
                    return row, CUT
                if fill:
                    memcpy(MEMORY, outs[column] + size * counts[column], data, position, size)
                position += size
                counts[column] += 1
            elif operation == NULLABLE:
                branch, position = read_varlong(data, position, end)
                if position < 0:
                    return row, CUT
                if branch != 0 and branch != 1:
                    return row, BRANCH
                is_null = branch == program[line - 1, 2]
                if fill:
                    store_i8(MEMORY, outs[column] + counts[column], np.int64(not is_null))
                counts[column] += 1
                if is_null:
                    line = program[line - 1, 3]
            elif operation == JUMP:
                line = column
            elif operation == BOOLEAN:
                if position >= end:
                    return row, CUT
                value = load_u8(data, position)
                if value > 1:
                    return row, BOOLEAN_BYTE
                if fill:
                    store_i8(MEMORY, outs[column] + counts[column], value)
                position += 1
                counts[column] += 1
            elif operation == SET_VALID:
                if fill:
                    store_i8(MEMORY, outs[column] + counts[column], program[line - 1, 2])
                counts[column] += 1
            elif operation == NULL:
                counts[column] += 1
            elif operation == PAD_FIXED:
                size = program[line - 1, 2]
                if fill:
                    for at in range(size):
                        store_i8(MEMORY, outs[column] + size * counts[column] + at, np.int64(0))
                counts[column] += 1
            elif operation in (PAD_BYTES, CLOSE):
                counts[column] += 1
                if fill:
                    store_native_i32(MEMORY, outs[column] + 4 * counts[column], sizes[column])
            elif operation == BLOCK:
                count, position = read_varlong(data, position, end)
                if position >= 0 and count < 0:  # the block's size in bytes follows
                    count = -count
                    _, position = read_varlong(data, position, end)
                if position < 0:
                    return row, CUT
                if count == 0:
                    line = program[line - 1, 3]
                else:
                    most = end - position if program[line - 1, 4] > 0 else np.int64(MOST_EMPTY_ITEMS)
                    if count < 0 or count > most:
                        return row, BLOCK_COUNT
                    left[program[line - 1, 2]] = count
                    sizes[column] += count
            elif operation == ITEM:
                left[column] -= 1
                line = program[line - 1, 2] if left[column] > 0 else program[line - 1, 3]
            elif operation == UNION:
                branch, position = read_varlong(data, position, end)
                if position < 0:
                    return row, CUT
                if branch < 0 or branch >= column:
                    return row, BRANCH
                line += branch
            elif operation in (DECIMAL, DECIMAL_FIXED):
                size = program[line - 1, 2]
                if operation == DECIMAL:
                    size, position = read_varlong(data, position, end)
                if position < 0 or size < 0 or size > end - position:
                    return row, CUT
                sign = np.int64(0)
                if size > 0 and load_u8(data, position) >= 0x80:
                    sign = np.int64(0xFF)
                for at in range(size - 16):  # bytes that say the sign only
                    if load_u8(data, position + at) != sign:
                        return row, DECIMAL_SIZE
                if size > 16 and (load_u8(data, position + size - 16) >= 0x80) != (sign != 0):
                    return row, DECIMAL_SIZE
                if fill:
                    to = outs[column] + 16 * counts[column]
                    for at in range(16):
                        byte = load_u8(data, position + size - 1 - at) if at < size else sign
                        store_i8(MEMORY, to + at, byte)
                position += size
                counts[column] += 1
            else:  # END
                break
        if position != end:
            return row, TRAILING
    return -1, FINE


@njit(forceinline=True)
def _is_null(valid, first_bit, index):
    if valid == 0:
        return False
    bit = first_bit + index
    return (load_u8(MEMORY, valid + (bit >> 3)) >> (bit & 7)) & 1 == 0


@njit(forceinline=True)
def _decimal_size(address):
    """The fewest bytes that hold the 16-byte little-endian two's complement number at an address."""
    sign = np.int64(0xFF) if load_u8(MEMORY, address + 15) >= 0x80 else np.int64(0)
    size = np.int64(16)
    while size > 1 and load_u8(MEMORY, address + size - 1) == sign:
        if (load_u8(MEMORY, address + size - 2) >= 0x80) != (sign != 0):
            break
        size -= 1
    return size


@njit
def write_rows(program, rows, prefix, nodes, fill, out, out_offsets, index, stop):
    """Writes rows 0 to `rows`, each after `prefix`; (row, reason) of the first bad row, else (-1, FINE).

    `nodes` is int64[n, 4]: addresses of values or offsets, of bytes, of validity bits (0: none null), and the bit of
    row 0. Without `fill` only out_offsets (int64[rows + 1]) is written. `index`, `stop` are int64[depth of lists + 1].
    """
    position = np.int64(0)
    prefix_size = np.int64(len(prefix))
    out_offsets[0] = 0
    for row in range(rows):
        if fill and prefix_size:
            memcpy(out, position, prefix, np.int64(0), prefix_size)
        position += prefix_size
        index[0] = row
        line = np.int64(0)
        while True:
            operation, node = program[line, 0], program[line, 1]
            level, operand = program[line, 2], program[line, 3]
            line += 1
            at = index[level]
            if operation in (LONG, INT):
                if operation == LONG:
                    value = load_native_i64(MEMORY, nodes[node, 0] + 8 * at)
                else:
                    value = load_native_i32(MEMORY, nodes[node, 0] + 4 * at)
                position = write_varlong(out, position, value) if fill else position + varlong_size(value)
            elif operation == BYTES:
                begin = load_native_i32(MEMORY, nodes[node, 0] + 4 * at)
                size = load_native_i32(MEMORY, nodes[node, 0] + 4 * at + 4) - begin
                if fill:
                    position = write_varlong(out, position, size)
                    memcpy(out, position, MEMORY, nodes[node, 1] + begin, size)
                else:
                    position += varlong_size(size)
                position += size
            elif operation == COPY:
                if fill:
                    memcpy(out, position, MEMORY, nodes[node, 0] + operand * at, operand)
                position += operand
            elif operation == NULLABLE:
                is_null = _is_null(nodes[node, 2], nodes[node, 3], at)
                if fill:
                    store_i8(out, position, 2 * (operand if is_null else 1 - operand))
                position += 1
                if is_null:
                    line = program[line - 1, 4]
            elif operation == REQUIRE:
                if _is_null(nodes[node, 2], nodes[node, 3], at):
                    return row, NULL_VALUE
            elif operation == JUMP:
                line = operand
            elif operation == TAG:
                position = write_varlong(out, position, operand) if fill else position + varlong_size(operand)
            elif operation == IF_VALID:
                if _is_null(nodes[node, 2], nodes[node, 3], at):
                    line = operand
            elif operation == FAIL:
                return row, operand
            elif operation == LIST:
                begin = load_native_i32(MEMORY, nodes[node, 0] + 4 * at)
                until = load_native_i32(MEMORY, nodes[node, 0] + 4 * at + 4)
                count = until - begin
                position = write_varlong(out, position, count) if fill else position + varlong_size(count)
                if count == 0:
                    line = operand
                else:
                    index[level + 1] = begin
                    stop[level + 1] = until
            elif operation == NEXT:  # `level` is that of the items
                index[level] += 1
                if index[level] < stop[level]:
                    line = operand
                else:
                    if fill:
                        store_i8(out, position, np.int64(0))
                    position += 1
            elif operation in (DECIMAL, DECIMAL_FIXED):
                address = nodes[node, 0] + 16 * at
                least = _decimal_size(address)
                size = operand
                if operation == DECIMAL:
                    size = least
                    if fill:
                        store_i8(out, position, 2 * size)
                    position += 1
                elif least > size:
                    return row, DECIMAL_SIZE
                if fill:
                    sign = load_i8(MEMORY, address + 15) >> 7
                    for byte in range(size):
                        store_i8(
                            out, position + size - 1 - byte, load_u8(MEMORY, address + byte) if byte < 16 else sign
                        )
                position += size
            else:  # END
                break
        out_offsets[row + 1] = position
    return -1, FINE
