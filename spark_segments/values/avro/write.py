"""Arrow to Avro's binary encoding: a column's arrays laid beside a schema as a program for the kernel.

Every value must fit its schema without a loss: a cast that would cut digits or a fraction of a millisecond raises. A
field that the schema lacks raises too; one that the column lacks is written as the schema's default.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.avro import avro_kernels
from spark_segments.values.avro import operations as k
from spark_segments.values.avro.read import MOST_BYTES, Line, program_of
from spark_segments.values.avro.schema import Node, default_array
from spark_segments.values.column_types import times_of_text, valid_bits
from spark_segments.values.undecodable import Undecodable, refused_by_arrow


def write(array: pa.Array, node: Node, prefix: bytes = b"") -> pa.BinaryArray:
    """Each row of `array` in Avro's binary encoding after `prefix`.

    Raises InvalidOptionError where the column's type does not fit the schema, Undecodable for a value that does not.
    """
    plan = _WritePlan()
    with refused_by_arrow():
        plan.node(array, node, 0, "")
    nodes = np.array(plan.nodes, np.int64).reshape(-1, 4)
    offsets = np.zeros(len(array) + 1, np.int64)
    index = np.zeros(plan.depth + 2, np.int64)
    stop = np.zeros(plan.depth + 2, np.int64)
    arguments = program_of(plan.lines), len(array), prefix, nodes
    row, reason = avro_kernels.write_rows(*arguments, False, np.empty(0, np.uint8), offsets, index, stop)
    if reason != k.FINE:
        raise Undecodable(k.REASONS[reason], int(row))
    if offsets[-1] > MOST_BYTES:
        raise Undecodable("more than 2 GiB of values in a batch")
    out = np.empty(int(offsets[-1]) + k.SLACK, np.uint8)
    avro_kernels.write_rows(*arguments, True, out, offsets, index, stop)
    content = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out[: int(offsets[-1])])]
    return pa.Array.from_buffers(pa.binary(), len(array), content)


class _WritePlan:
    """The lines so far, the addresses of their arrays, and the arrays, which must live as long."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.nodes: list[tuple[int, int, int, int]] = []
        self.depth = 0
        self._alive: list[Any] = []

    def node(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        """Adds the lines that write `array` as `node`. `path` names the field for errors."""
        if pa.types.is_null(array.type) and node.kind != "null":
            array = pa.nulls(len(array), node.type)
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        if node.kind == "union":
            self._union(array, node, level, path)
        elif node.kind in ("null", "recursive"):
            if array.null_count < len(array):
                raise _misfit(array, node, path)
        elif node.kind == "record":
            self._record(array, node, level, path)
        elif node.kind in ("array", "map"):
            self._list(array, node, level, path)
        else:
            self._leaf(array, node, level, path)

    def _add(self, array: pa.Array, width: int) -> int:
        """The number of a node for `array`, whose values (or offsets) are `width` bytes each."""
        buffers = array.buffers()
        self._alive.append(buffers)
        address = [0 if buffer is None else buffer.address for buffer in [*buffers[:3], None, None][:3]]
        valid = address[0] if array.null_count else 0
        begin = address[1] + array.offset * width
        self.nodes.append((begin, address[2] if len(buffers) > 2 else 0, valid, array.offset))
        return len(self.nodes) - 1

    def _require(self, array: pa.Array, number: int, level: int) -> None:
        if array.null_count:
            self.lines.append((k.REQUIRE, number, level))

    def _leaf(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        stored = _stored(array, node, path)
        kind = stored.type
        if pa.types.is_binary(kind):
            number = self._add(stored if stored.buffers()[1] else pa.array([b""], pa.binary())[:0], 4)
            line: Line = (k.BYTES, number, level)
        else:
            width = kind.bit_width // 8
            number = self._add(stored, width)
            if node.logical == "decimal":
                line = (k.DECIMAL if node.kind == "bytes" else k.DECIMAL_FIXED, number, level, node.size)
            elif node.kind in ("int", "enum"):
                line = (k.INT, number, level)
            else:
                line = (k.LONG, number, level) if node.kind == "long" else (k.COPY, number, level, width)
        self._require(stored, number, level)
        self.lines.append(line)

    def _record(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        if not pa.types.is_struct(array.type):
            raise _misfit(array, node, path)
        names = [field.name for field in node.fields]
        unknown = [field.name for field in array.type if field.name not in names]
        if unknown:
            raise InvalidOptionError(
                f"The Avro schema {node.name} has no such fields",
                expected=names,
                found=[f"{path}{name}" for name in unknown],
                hint="Drop them from the column, or give a value.schema that has them",
            )
        self._require(array, self._add(array, 0), level)
        for field in node.fields:
            at = array.type.get_field_index(field.name)
            if at >= 0:
                child = array.field(at)
            elif field.has_default:
                child = default_array(field.node, field.default, len(array))
            else:
                raise InvalidOptionError(
                    f"The column lacks the field {path}{field.name}, for which the Avro schema has no default",
                    found=array.type,
                )
            self.node(child, field.node, level, f"{path}{field.name}.")

    def _list(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        t = pa.types
        if t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
            array = array.cast(pa.list_(array.type.value_type))
        if not (t.is_list(array.type) if node.kind == "array" else t.is_map(array.type)):
            raise _misfit(array, node, path)
        if not array.buffers()[1]:  # Arrow leaves out the offsets of no rows
            array = pa.array([[]], array.type)[:0]
        number = self._add(array, 4)
        self._require(array, number, level)
        start = len(self.lines)
        self.lines.append(())
        self.depth = max(self.depth, level + 1)
        if node.kind == "map":
            self._leaf(array.keys, Node("string", type=pa.string()), level + 1, path)
            self.node(array.items, node.children[0], level + 1, path)
        else:
            self.node(array.values, node.children[0], level + 1, path)
        self.lines.append((k.NEXT, number, level + 1, start + 1))
        self.lines[start] = (k.LIST, number, level, len(self.lines))

    def _union(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        null = node.null_branch
        members = node.members
        if not members:
            self.lines.append((k.TAG, 0, level, null))
        elif len(members) == 1 and len(node.children) == 2:
            start = len(self.lines)
            if array.null_count:
                number = self._add(array, 0)
                self.lines.append(())
            else:
                self.lines.append((k.TAG, 0, level, members[0][0]))
            self.node(array, members[0][1], level, path)
            if array.null_count:
                self.lines[start] = (k.NULLABLE, number, level, null, len(self.lines))
        else:
            self._wide_union(array, node, level, path)

    def _wide_union(self, array: pa.Array, node: Node, level: int, path: str) -> None:
        """The first member of the struct that is set; of a column that is no such struct, the widest branch it fits."""
        members = node.members
        choices = []
        names = [field.name for field in array.type] if pa.types.is_struct(array.type) else []
        if pa.types.is_struct(node.type) and names == [field.name for field in node.type]:
            for at, (branch, child) in enumerate(members):
                part = array.flatten()[at]
                choices.append((branch, child, part))
        else:
            branch, child = next((member for member in members if member[1].type == array.type), members[-1])
            choices.append((branch, child, array))
        ends = []
        for branch, child, part in choices:
            number = self._add(part, 0)
            start = len(self.lines)
            self.lines += [(), (k.TAG, 0, level, branch)]
            self.node(part, child, level, path)
            ends.append(len(self.lines))
            self.lines.append(())
            self.lines[start] = (k.IF_VALID, number, level, len(self.lines))
        null = node.null_branch
        self.lines.append((k.FAIL, 0, level, k.NULL_VALUE) if null < 0 else (k.TAG, 0, level, null))
        for at in ends:
            self.lines[at] = (k.JUMP, 0, level, len(self.lines))


def _stored(array: pa.Array, node: Node, path: str) -> pa.Array:
    """A leaf's values as the kernel takes them: int32, int64, fixed-width bytes, decimal128 or binary."""
    logical = node.logical
    kind = node.kind
    try:
        if kind == "enum":
            return _symbol_numbers(array, node, path)
        if logical == "decimal":
            return array.cast(node.type)
        if logical == "uuid" and kind == "fixed":
            return _uuid_bytes(array)
        if logical == "duration":
            return _duration_bytes(array)
        if logical == "date":
            return array.cast(pa.date32()).cast(pa.int32())
        if logical is not None and (logical.startswith("time-") or "timestamp-" in logical):
            return _ticks(array, node, logical)
        if kind == "boolean":
            return array.cast(pa.bool_()).cast(pa.uint8())
        if kind == "fixed":
            return array.cast(pa.binary()).cast(pa.binary(node.size))
        if kind == "string":
            return array.cast(pa.string()).cast(pa.binary())
        if kind == "float" and pa.types.is_float64(array.type):
            raise _misfit(array, node, path)  # would lose digits silently
        return array.cast(node.type)
    except pa.ArrowNotImplementedError as error:
        raise _misfit(array, node, path) from error


def _symbol_numbers(array: pa.Array, node: Node, path: str) -> pa.Array:
    numbers = pc.index_in(array.cast(pa.string()), value_set=pa.array(node.symbols))
    if numbers.null_count > array.null_count:
        raise Undecodable(f"{path[:-1] or 'a value'} is no symbol of the enum {node.name}")
    return numbers


def _duration_bytes(array: pa.Array) -> pa.Array:
    """Months, days and milliseconds, 32 bits each."""
    parts = [child.cast(pa.uint32()).fill_null(0) for child in array.flatten()]
    joined = np.stack([part.to_numpy() for part in parts], axis=1).astype("<u4")
    return pa.Array.from_buffers(pa.binary(12), len(array), [valid_bits(array), pa.py_buffer(joined.tobytes())])


def _ticks(array: pa.Array, node: Node, logical: str) -> pa.Array:
    """Times of day, or timestamps, as numbers of the schema's unit. A cast that would cut digits raises."""
    if pa.types.is_string(array.type):
        array = times_of_text(array, node.type)
    is_millis = logical.endswith("millis")
    if "timestamp-" in logical:
        return array.cast(pa.timestamp("ms" if is_millis else "us")).cast(pa.int64())
    # Spark has no times of day: as a number, such a column is microseconds, in 64 bits.
    wide = array.cast(pa.int64()) if pa.types.is_integer(array.type) else array
    times = wide.cast(pa.time64("us"))
    return times.cast(pa.time32("ms")).cast(pa.int32()) if is_millis else times.cast(pa.int64())


def _uuid_bytes(array: pa.Array) -> pa.Array:
    text = pc.replace_substring(array.cast(pa.string()), "-", "")
    if not pc.all(pc.match_substring_regex(text, "^[0-9a-fA-F]{32}$"), min_count=0).as_py():
        raise Undecodable("not a UUID")
    joined = bytes.fromhex("".join(text.fill_null("0" * 32).to_pylist()))
    return pa.Array.from_buffers(pa.binary(16), len(array), [valid_bits(array), pa.py_buffer(joined)])


def _misfit(array: pa.Array, node: Node, path: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"The type of {path[:-1] or 'the column'} does not fit the Avro schema",
        expected=f"{node.logical or node.name or node.kind} ({node.type})",
        found=array.type,
        hint="Cast the column before it is written",
    )
