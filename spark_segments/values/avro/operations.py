"""The operations of programs that read and write Avro, and the faults of a row."""

from __future__ import annotations

from spark_segments.format.buffers import COPY_SLACK

SLACK = COPY_SLACK
"""Bytes that a kernel may write past the end of its output."""

LINE_BYTES = 40  # of a line of a program: an operation and four operands
NODE_BYTES = 32  # of a node that is written

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
FIRST_INT = -(2**31)
LAST_INT = 2**31 - 1
MOST_EMPTY_ITEMS = 1 << 16
"""Of a block of an array whose items take no bytes (null, say)."""
