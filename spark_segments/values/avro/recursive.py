"""Rows of Avro schemas with a record that contains itself, read by plain code: Arrow has no type for such a record.

Within itself it is JSON text, as in Protobuf: bytes are base64, decimals and times are text as Python writes them, NaN
and infinities are text as in all JSON here, a union is its value alone. A time beyond the years 1 to 9999 is refused.
Rules: Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

import base64
import decimal
import json
import math
import struct
import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import reason_of
from spark_segments.values.avro import operations as k
from spark_segments.values.avro.schema import Node
from spark_segments.values.undecodable import Undecodable, refused_by_arrow

MOST_LEVELS = 100
"""Of records within records: as deep as Protobuf's messages may be."""

_FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


def contains_itself(node: Node) -> bool:
    """Whether a record of the schema is within itself."""
    below = [field.node for field in node.fields] + list(node.children)
    return node.kind == "recursive" or any(map(contains_itself, below))


class RecursiveReader:
    """Reads rows of a schema, a value at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def read(self, data: pa.Buffer | None, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        """The values of rows data[starts[i]:ends[i]] (int64[n] each). Raises Undecodable with the row."""
        content = b"" if data is None else memoryview(data)
        values = []
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            bytes_of_row = _Row(bytes(content[start:end]))
            try:
                values.append(bytes_of_row.value(self._node, 0))
                if bytes_of_row.at != end - start:
                    raise Undecodable(k.REASONS[k.TRAILING])
            except Undecodable as error:
                raise Undecodable(error.reason, row) from None
            except (ArithmeticError, ValueError) as error:  # no UTF-8, or a number, a date or a time out of range
                raise Undecodable(reason_of(error), row) from None
        try:
            with refused_by_arrow():
                return pa.array(values, self._node.type)
        except OverflowError as error:
            raise Undecodable(reason_of(error)) from None


class _Row:
    """The bytes of a row, read from `at` on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise Undecodable(k.REASONS[k.CUT])
        self.at += size
        return self.data[self.at - size : self.at]

    def varlong(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= (1 << 64) - 1
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise Undecodable(k.REASONS[k.CUT])

    def value(self, node: Node, level: int, *, is_json: bool = False) -> Any:
        """A value as pyarrow takes it for the node's type, or as JSON has it."""
        if level > MOST_LEVELS:
            raise Undecodable(f"more than {MOST_LEVELS} levels of records within records")
        if node.kind == "record":
            return {field.name: self.value(field.node, level + 1, is_json=is_json) for field in node.fields}
        if node.kind == "recursive":
            record = self.value(node.target[0], level, is_json=True)
            return record if is_json else json.dumps(record, default=_text, ensure_ascii=False, separators=(",", ":"))
        if node.kind == "array":
            return [self.value(node.children[0], level, is_json=is_json) for _ in self.items(node)]
        if node.kind == "map":
            pairs = []
            for _ in self.items(node):
                key = self.take(self.varlong()).decode()
                pairs.append((key, self.value(node.children[0], level, is_json=is_json)))
            return dict(pairs) if is_json else pairs
        if node.kind == "union":
            return self.union_value(node, level, is_json=is_json)
        value = self.leaf(node)
        return _json_value(node, value) if is_json else value

    def union_value(self, node: Node, level: int, *, is_json: bool) -> Any:
        """The value of the branch that the row has; a struct of all branches as a dictionary of its member alone."""
        branch = self.branch(node)
        value = self.value(node.children[branch], level, is_json=is_json)
        is_plain = node.children[branch].kind == "null" or len(node.members) == 1
        if is_json or is_plain or not pa.types.is_struct(node.type):
            return value
        member = [at for at, _ in node.members].index(branch)
        return {f"member{member}": value}

    def branch(self, node: Node) -> int:
        branch = self.varlong()
        if not 0 <= branch < len(node.children):
            raise Undecodable(k.REASONS[k.BRANCH])
        return branch

    def items(self, node: Node) -> Any:
        """Yields once for each item of an array or a map."""
        while count := self.varlong():
            if count < 0:
                count = -count
                self.varlong()
            begin = self.at
            for number in range(count):
                if number >= k.MOST_EMPTY_ITEMS and self.at == begin:
                    raise Undecodable(k.REASONS[k.BLOCK_COUNT])
                yield number

    def leaf(self, node: Node) -> Any:
        kind = node.kind
        if kind == "null":
            return None
        if kind == "boolean":
            (byte,) = self.take(1)
            if byte > 1:
                raise Undecodable(k.REASONS[k.BOOLEAN_BYTE])
            return bool(byte)
        if kind in _FLOATS:
            return _FLOATS[kind].unpack(self.take(_FLOATS[kind].size))[0]
        if kind == "enum":
            number = self.varlong()
            if not 0 <= number < len(node.symbols):
                raise Undecodable(k.REASONS[k.SYMBOL])
            return node.symbols[number]
        if kind in ("int", "long"):
            number = self.varlong()
            if kind == "int" and not k.FIRST_INT <= number <= k.LAST_INT:
                raise Undecodable(k.REASONS[k.INT_RANGE])
            return number * 1000 if (node.logical or "").endswith("millis") else number
        return _value_of_bytes(node, self.take(node.size if kind == "fixed" else self.varlong()))


def _value_of_bytes(node: Node, raw: bytes) -> Any:
    """The value of a string, of bytes or of a fixed number of them."""
    if node.logical == "decimal":
        digits = int.from_bytes(raw, "big", signed=True)
        # Python's own precision of 28 digits would round a longer number.
        with decimal.localcontext(prec=max(1, len(str(digits)))):
            return decimal.Decimal(digits).scaleb(-node.scale)
    if node.logical == "duration":
        return dict(zip(("months", "days", "milliseconds"), struct.unpack("<III", raw), strict=True))
    if node.logical == "uuid" and node.kind == "fixed":
        return str(uuid.UUID(bytes=raw))
    return raw.decode() if node.kind == "string" else raw


def _json_value(node: Node, value: Any) -> Any:
    """A leaf's value as JSON has it."""
    if value is None:
        return None
    if node.kind in _FLOATS and not math.isfinite(value):  # by the rule of all JSON here
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value if node.logical is None else pa.scalar(value, node.type).as_py()


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
