"""Avro's binary encoding to Arrow: the program for a schema, and the columns that the kernel filled, as Arrow arrays.

What a schema needs is laid out once (`reader_of`) and used for every batch. Each node becomes lines of the program and
a function that makes its Arrow array; a place for null is appended to all columns below it by `pads`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.values.avro import avro_kernels
from spark_segments.values.avro import operations as k
from spark_segments.values.avro.recursive import RecursiveReader, contains_itself
from spark_segments.values.avro.schema import DURATION, Node
from spark_segments.values.column_types import map_entries
from spark_segments.values.undecodable import Undecodable, refused_by_arrow

Line = tuple[int, ...]
_WIDTHS = {"int": 4, "long": 8, "float": 4, "double": 8, "boolean": 1, "enum": 4}
MOST_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Column:
    """Memory that the kernel fills: `width` bytes a value, or offsets (0) with bytes behind them where `bytes_too`."""

    width: int
    bytes_too: bool = False


class _Filled:
    """The columns of a batch of rows."""

    def __init__(self, columns: list[_Column], counts: np.ndarray, sizes: np.ndarray) -> None:
        self.counts = counts.copy()
        self.outs = [
            np.empty(int(n) * column.width, np.uint8) if column.width else np.zeros((int(n) + 1) * 4, np.uint8)
            for column, n in zip(columns, counts, strict=True)
        ]
        self.bytes_outs = [
            np.empty(int(size) + k.SLACK, np.uint8) if column.bytes_too else np.empty(0, np.uint8)
            for column, size in zip(columns, sizes, strict=True)
        ]
        self._sizes = sizes.copy()

    def values(self, column: int) -> pa.Buffer:
        return pa.py_buffer(self.outs[column])

    def bytes(self, column: int) -> pa.Buffer:
        return pa.py_buffer(self.bytes_outs[column][: int(self._sizes[column])])

    def bits(self, column: int) -> pa.Buffer:
        return pa.py_buffer(np.packbits(self.outs[column], bitorder="little"))

    def array(self, column: int, kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
        return pa.Array.from_buffers(kind, int(self.counts[column]), [valid, self.values(column)])


Assemble = Callable[[_Filled, "pa.Buffer | None"], pa.Array]


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Reads rows of a schema."""

    program: np.ndarray
    columns: list[_Column]
    depth: int
    assemble: Assemble

    def read(self, data: pa.Buffer | None, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        """The values of rows data[starts[i]:ends[i]] (int64[n] each). Raises Undecodable with the row."""
        width = len(self.columns)
        left = np.zeros(self.depth + 1, np.int64)
        counts = np.zeros(width, np.int64)
        sizes = np.zeros(width, np.int64)
        arguments = self.program, b"" if data is None else data, starts, ends
        row, reason = avro_kernels.read_rows(*arguments, False, counts, sizes, [], [], left)
        if reason != k.FINE:
            raise Undecodable(k.REASONS[reason], int(row))
        widths = np.array([column.width for column in self.columns], np.int64)
        if sizes.size and (sizes.max() > MOST_BYTES or (counts * widths).sum() > MOST_BYTES):
            raise Undecodable("more than 2 GiB in a column of a batch")
        filled = _Filled(self.columns, counts, sizes)
        counts[:] = 0
        sizes[:] = 0
        avro_kernels.read_rows(*arguments, True, counts, sizes, filled.outs, filled.bytes_outs, left)
        with refused_by_arrow():
            return self.assemble(filled, None)


@lru_cache(maxsize=256)
def reader_of(node: Node) -> AvroReader | RecursiveReader:
    """The reader of a schema."""
    if contains_itself(node):
        return RecursiveReader(node)
    plan = _ReadPlan()
    assemble, _ = plan.node(node, 0)
    return AvroReader(program_of(plan.lines), plan.columns, plan.depth, assemble)


def program_of(lines: list[Line]) -> np.ndarray:
    """The lines and an end, as kernels take them: int64[n, 5]."""
    program = np.zeros((len(lines) + 1, 5), np.int64)
    for at, line in enumerate([*lines, (k.END,)]):
        program[at, : len(line)] = line
    return program


class _ReadPlan:
    """Lines and columns so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.columns: list[_Column] = []
        self.depth = 0

    def node(self, node: Node, level: int) -> tuple[Assemble, list[Line]]:
        """Adds the lines that read `node`; (how its array is made, the lines that append a null in its place)."""
        if node.kind == "record":
            return self._record(node, level)
        if node.kind in ("array", "map"):
            return self._list(node, level)
        if node.kind == "union":
            is_nullable = len(node.children) == 2 and node.null_branch >= 0 and len(node.members) == 1
            return self._nullable(node, level) if is_nullable else self._union(node, level)
        return self._leaf(node)

    def _column(self, width: int, bytes_too: bool = False) -> int:
        self.columns.append(_Column(width, bytes_too))
        return len(self.columns) - 1

    def _leaf(self, node: Node) -> tuple[Assemble, list[Line]]:
        if node.logical == "decimal":
            column = self._column(16)
            self.lines.append((k.DECIMAL if node.kind == "bytes" else k.DECIMAL_FIXED, column, node.size))
            return _decimal(column, node.type), [(k.PAD_FIXED, column, 16)]
        if node.kind in ("bytes", "string"):
            column = self._column(0, bytes_too=True)
            self.lines.append((k.BYTES, column))
            return _binary(column, node.type), [(k.PAD_BYTES, column)]
        if node.kind == "null":
            column = self._column(0)
            self.lines.append((k.NULL, column))
            return lambda filled, valid: pa.nulls(int(filled.counts[column])), [(k.NULL, column)]
        width = node.size if node.kind == "fixed" else _WIDTHS[node.kind]
        column = self._column(width)
        operation = {"int": k.INT, "long": k.LONG, "boolean": k.BOOLEAN, "enum": k.ENUM}.get(node.kind, k.COPY)
        self.lines.append((operation, column, len(node.symbols) if node.kind == "enum" else width))
        return _fixed_width(column, node), [(k.PAD_FIXED, column, width)]

    def _record(self, node: Node, level: int) -> tuple[Assemble, list[Line]]:
        counter = self._column(0)  # a record without fields takes no bytes, and has rows
        self.lines.append((k.NULL, counter))
        parts = [self.node(field.node, level) for field in node.fields]
        pads: list[Line] = [(k.NULL, counter), *(line for _, lines in parts for line in lines)]

        def assemble(filled: _Filled, valid: pa.Buffer | None) -> pa.Array:
            children = [part(filled, None) for part, _ in parts]
            return pa.Array.from_buffers(node.type, int(filled.counts[counter]), [valid], children=children)

        return assemble, pads

    def _list(self, node: Node, level: int) -> tuple[Assemble, list[Line]]:
        offsets = self._column(0)
        self.depth = max(self.depth, level + 1)
        block = len(self.lines)
        self.lines.append(())
        key = self._leaf(Node("string", type=pa.string()))[0] if node.kind == "map" else None
        item, _ = self.node(node.children[0], level + 1)
        self.lines.append((k.ITEM, level, block + 1, block))
        least = 1 if node.kind == "map" else _least_bytes(node.children[0])
        self.lines[block] = (k.BLOCK, offsets, level, len(self.lines), least)
        self.lines.append((k.CLOSE, offsets))

        def assemble(filled: _Filled, valid: pa.Buffer | None) -> pa.Array:
            child = item(filled, None)
            if key is not None:
                child = map_entries(key(filled, None), child)
            content = [valid, filled.values(offsets)]
            return pa.Array.from_buffers(node.type, int(filled.counts[offsets]), content, children=[child])

        return assemble, [(k.CLOSE, offsets)]

    def _nullable(self, node: Node, level: int) -> tuple[Assemble, list[Line]]:
        valid = self._column(1)
        start = len(self.lines)
        self.lines.append(())
        value, pads = self.node(node.members[0][1], level)
        jump = len(self.lines)
        self.lines.append(())
        self.lines[start] = (k.NULLABLE, valid, node.null_branch, jump + 1)
        self.lines.extend(pads)
        self.lines[jump] = (k.JUMP, len(self.lines))
        return lambda filled, _: value(filled, filled.bits(valid)), [(k.SET_VALID, valid, 0), *pads]

    def _union(self, node: Node, level: int) -> tuple[Assemble, list[Line]]:
        """A struct of the branches; of numbers, the wider."""
        start = len(self.lines)
        branches = len(node.children)
        self.lines.extend([()] * (branches + 1))
        self.lines[start] = (k.UNION, branches)
        union = self._column(1)
        marks = {at: self._column(1) for at, _ in node.members}
        # All columns are known only when all branches are laid out; so the pads of the others come in a second part.
        parts: dict[int, tuple[Assemble, list[Line]]] = {}
        openings: dict[int, int] = {}
        for at, child in enumerate(node.children):
            self.lines[start + 1 + at] = (k.JUMP, len(self.lines))
            self.lines.append((k.SET_VALID, union, int(child.kind != "null")))
            if child.kind != "null":
                self.lines.append((k.SET_VALID, marks[at], 1))
                parts[at] = self.node(child, level)
            openings[at] = len(self.lines)
            self.lines.append(())
        exits = []
        for at in range(branches):
            self.lines[openings[at]] = (k.JUMP, len(self.lines))
            for other, (_, pads) in parts.items():
                if other != at:
                    self.lines += [(k.SET_VALID, marks[other], 0), *pads]
            exits.append(len(self.lines))
            self.lines.append(())
        for at in exits:
            self.lines[at] = (k.JUMP, len(self.lines))
        all_pads: list[Line] = [(k.SET_VALID, union, 0)]
        for at, (_, pads) in parts.items():
            all_pads += [(k.SET_VALID, marks[at], 0), *pads]

        def assemble(filled: _Filled, _: pa.Buffer | None) -> pa.Array:
            members = [part(filled, filled.bits(marks[at])) for at, (part, _) in parts.items()]
            if not members:
                return pa.nulls(int(filled.counts[union]))
            if not pa.types.is_struct(node.type) or len(members) == 1:
                return pc.coalesce(*(member.cast(node.type) for member in members))
            length = int(filled.counts[union])
            return pa.Array.from_buffers(node.type, length, [filled.bits(union)], children=members)

        return assemble, all_pads


def _least_bytes(node: Node) -> int:
    """0 for a node whose values may take no bytes, else 1."""
    if node.kind == "null" or (node.kind == "fixed" and node.size == 0):
        return 0
    return 1 if node.kind != "record" else max((_least_bytes(field.node) for field in node.fields), default=0)


def _decimal(column: int, kind: pa.DataType) -> Assemble:
    def assemble(filled: _Filled, valid: pa.Buffer | None) -> pa.Array:
        decimals = filled.array(column, kind, valid)
        decimals.validate(full=True)  # the digits fit the precision
        return decimals

    return assemble


def _binary(column: int, kind: pa.DataType) -> Assemble:
    def assemble(filled: _Filled, valid: pa.Buffer | None) -> pa.Array:
        content = [valid, filled.values(column), filled.bytes(column)]
        rows = pa.Array.from_buffers(pa.binary(), int(filled.counts[column]), content)
        return rows.cast(kind)  # text is checked to be UTF-8

    return assemble


def _fixed_width(column: int, node: Node) -> Assemble:
    kind = node.type
    logical = node.logical

    def assemble(filled: _Filled, valid: pa.Buffer | None) -> pa.Array:
        if node.kind == "boolean":
            return pa.Array.from_buffers(kind, int(filled.counts[column]), [valid, filled.bits(column)])
        if node.kind == "enum":
            return pa.array(node.symbols).take(filled.array(column, pa.int32(), valid))
        if node.kind == "fixed":
            return _fixed(filled, column, node, valid)
        if logical is not None and logical.endswith("millis"):
            number = filled.array(column, pa.int32() if node.kind == "int" else pa.int64(), valid).cast(pa.int64())
            return pc.multiply_checked(number, 1000).cast(kind)
        return filled.array(column, kind, valid)

    return assemble


def _fixed(filled: _Filled, column: int, node: Node, valid: pa.Buffer | None) -> pa.Array:
    length = int(filled.counts[column])
    if node.logical == "duration":
        numbers = np.frombuffer(filled.values(column), "<u4").reshape(-1, 3).astype(np.int64)
        children = [pa.array(np.ascontiguousarray(numbers[:, at])) for at in range(3)]
        return pa.Array.from_buffers(DURATION, length, [valid], children=children)
    data = filled.values(column)
    size = node.size
    if node.logical == "uuid":
        text = np.frombuffer(bytes(data).hex().encode(), np.uint8).reshape(-1, 32)
        dashed = np.full((length, 36), ord("-"), np.uint8)
        for begin, end, at in ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24)):
            dashed[:, at : at + end - begin] = text[:, begin:end]
        data = pa.py_buffer(dashed.reshape(-1))
        size = 36
    if length * size > MOST_BYTES:
        raise Undecodable("more than 2 GiB in a column of a batch")
    offsets = pa.py_buffer(np.arange(length + 1, dtype=np.int32) * np.int32(size))
    return pa.Array.from_buffers(node.type, length, [valid, offsets, data])
