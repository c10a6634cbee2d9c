"""Codecs: they read and write a column of each format. A codec takes and gives whole columns without nulls.

Where a column is in Confluent's wire format, its rows are taken by schema id: each row is read with the schema it was
written with and brought to the one type that the column has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, UnknownSchemaError, reason_of
from spark_segments.values import protobuf, wire
from spark_segments.values.avro import evolution
from spark_segments.values.avro import schema as avro_schema
from spark_segments.values.avro import write as avro_write
from spark_segments.values.avro.read import reader_of
from spark_segments.values.column_types import conformed
from spark_segments.values.registries.registry import AVRO, JSON, PROTOBUF, Registry, Schema
from spark_segments.values.rows import offsets_of, without
from spark_segments.values.text import connect as connect_json
from spark_segments.values.text import json_schema
from spark_segments.values.text.csv import check_type, read_csv, write_csv
from spark_segments.values.text.json_read import check_json, read_json, read_text
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable, refused_by_arrow
from spark_segments.values.widening import widened

NUMBERS = {
    "short": (pa.int16(), ">i2"),
    "int": (pa.int32(), ">i4"),
    "long": (pa.int64(), ">i8"),
    "float": (pa.float32(), ">f4"),
    "double": (pa.float64(), ">f8"),
}
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@dataclass(frozen=True, slots=True)
class Plain:
    """Reads and writes a column of `type`. Codecs are pickled to Spark's tasks, and so are their functions.

    `read` gives the values, and raises Undecodable. `write` gives the bytes, as binary or text, and raises Undecodable
    for a value, InvalidOptionError for a type.
    """

    type: pa.DataType
    read: Callable[[pa.BinaryArray], pa.Array] = field(repr=False, compare=False)
    write: Callable[[pa.Array], pa.Array] = field(repr=False, compare=False)


def numbers(name: str) -> Plain:
    """short, int, long, float, double, as Kafka's ShortSerializer to DoubleSerializer write them: big-endian."""
    return Plain(NUMBERS[name][0], partial(_read_numbers, name), partial(_write_numbers, name))


def string() -> Plain:
    """As Kafka's StringSerializer: UTF-8."""
    return Plain(pa.string(), read_text, partial(_cast, kind=pa.string()))


def uuids() -> Plain:
    """As Kafka's UUIDSerializer: text."""
    return Plain(pa.string(), _read_uuids, _write_uuids)


def json(kind: pa.DataType) -> Plain:
    """JSON of a type."""
    return Plain(kind, partial(read_json, kind=kind), partial(_write_conformed, write_json, kind))


def json_text() -> Plain:
    """JSON without a type: text that is checked to be JSON."""
    return Plain(pa.string(), _read_json_text, _write_json_text)


def csv(kind: pa.DataType) -> Plain:
    """A line of CSV."""
    check_type(kind)
    return Plain(kind, partial(read_csv, kind=kind), partial(_write_conformed, write_csv, kind))


def connect(kind: pa.DataType, envelope: bool) -> Plain:
    """JSON as Kafka Connect has it."""
    read = connect_json.read_envelopes if envelope else connect_json.read
    write = connect_json.write_envelopes if envelope else connect_json.write
    return Plain(kind, partial(read, kind=kind), partial(_write_conformed, write, kind))


def avro(node: avro_schema.Node) -> Plain:
    """Avro of a fixed schema that the rows do not name."""
    return Plain(node.type, partial(_read_avro, node=node), partial(avro_write.write, node=node))


def message(text: str, name: str | None) -> Plain:
    """A Protobuf message of a schema that the rows do not name. `name`: by default that of the schema's first."""
    kind = protobuf.message_of(text, (), name).type
    return Plain(kind, partial(_read_messages, text, name), partial(_write_messages, text, name))


def _read_numbers(name: str, array: pa.BinaryArray) -> pa.Array:
    kind, dtype = NUMBERS[name]
    width = np.dtype(dtype).itemsize
    offsets = offsets_of(array)
    wrong = np.flatnonzero(np.diff(offsets) != width)
    if wrong.size:
        row = int(wrong[0])
        raise Undecodable(f"a {name} has {width} bytes, and here are {offsets[row + 1] - offsets[row]}", row)
    values = np.frombuffer(array.buffers()[2] or b"", dtype, len(array), int(offsets[0]))
    return pa.array(values.astype(np.dtype(dtype).newbyteorder("=")), kind)


def _write_numbers(name: str, array: pa.Array) -> pa.Array:
    kind, dtype = NUMBERS[name]
    if kind == pa.float32() and pa.types.is_float64(array.type):
        raise InvalidOptionError("A double does not fit a float without a loss", hint="Cast the column to float")
    values = _cast(array, kind).to_numpy(zero_copy_only=False).astype(dtype)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * np.int32(values.itemsize)
    content = [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(array), content)


def _read_uuids(array: pa.BinaryArray) -> pa.StringArray:
    text = read_text(array)
    right = pc.match_substring_regex(text, _UUID)
    if not pc.all(right, min_count=0).as_py():
        raise Undecodable("not a UUID of 36 characters", int(pc.index(right, pa.scalar(False)).as_py()))
    return text


def _write_uuids(array: pa.Array) -> pa.StringArray:
    return _read_uuids(_cast(array, pa.string()))


def _read_json_text(array: pa.BinaryArray) -> pa.StringArray:
    return check_json(read_text(array))


def _write_json_text(array: pa.Array) -> pa.StringArray:
    return _read_json_text(_cast(array, pa.binary()))


def _read_messages(text: str, name: str | None, array: pa.BinaryArray) -> pa.Array:
    return protobuf.message_of(text, (), name).read(array)


def _write_messages(text: str, name: str | None, array: pa.Array) -> pa.Array:
    return protobuf.message_of(text, (), name).write(array)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as another type, without loss."""
    try:
        with refused_by_arrow():
            return array.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise InvalidOptionError(
            "The column's type does not fit its format", expected=kind, found=array.type
        ) from error


def _write_conformed(write: Callable[[pa.Array], pa.Array], kind: pa.DataType, array: pa.Array) -> pa.Array:
    with refused_by_arrow():
        values = conformed(array, kind)
    return write(values)


def _read_avro(array: pa.BinaryArray, node: avro_schema.Node, head: int = 0) -> pa.Array:
    """Rows of a schema, each behind `head` bytes."""
    offsets = offsets_of(array)
    return reader_of(node).read(array.buffers()[2], offsets[:-1] + head, offsets[1:])


@lru_cache(maxsize=256)
def _parsed(text: str, references: tuple[str, ...]) -> avro_schema.Node:
    return avro_schema.parse(text, references)


def node_of(registry: Registry, schema: Schema) -> avro_schema.Node:
    """The Avro schema of a registered schema."""
    return _parsed(schema.text, tuple(text for _, text in registry.references(schema)))


@dataclass(frozen=True, slots=True)
class Registered:
    """A column in Confluent's wire format: AVRO, PROTOBUF or JSON. `schema` is the reader's, where there is one.

    `type` is the column's: the reader schema's or, with a type given in DDL, that one, which fields go to by name.
    `written` is the schema that rows are written with. With `checked`, JSON is checked against the schema of its id.
    Ids are ids in the context of `subject`.
    """

    kind: str
    registry: Registry
    type: pa.DataType
    schema: Schema | None = None
    message: str | None = None
    written: Schema | None = None
    checked: bool = False
    subject: str | None = None

    def framed(self, array: pa.BinaryArray, headers: pa.ListArray | None, column: str) -> pa.BinaryArray:
        """Values of a column as `read` takes them: their ids may be in headers of the records, or in AWS Glue's frame,
        whose Protobuf names messages in another way, and is refused.
        """
        name = f"__{column}_schema_id"
        is_glue = self.kind != PROTOBUF
        return wire.framed(array, headers, name, self.registry.number_of_guid, is_glue=is_glue)

    def read(self, array: pa.BinaryArray) -> pa.Array:
        ids = wire.schema_ids(array)
        different = np.unique(ids)
        if len(different) == 1:
            return self._read_one(array, int(different[0]))
        parts, places = [], []
        for schema_id in different:
            rows = np.flatnonzero(ids == schema_id)
            parts.append(self._read_one(array.take(pa.array(rows)), int(schema_id)))
            places.append(rows)
        if not parts:
            return pa.array([], self.type)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    def write(self, array: pa.Array) -> pa.Array:
        schema = self.written
        if schema is None or schema.id is None:
            raise InvalidOptionError("No schema to write with", hint="Give value.schema or a subject that has one")
        head = wire.header(schema.id)
        if self.kind == AVRO:
            return avro_write.write(array, node_of(self.registry, schema), head)
        if self.kind == PROTOBUF:
            message = protobuf.message_of(schema.text, self.registry.references(schema), self.message)
            return _joined(head + wire.write_indexes(message.indexes), message.write(array))
        json_schema.check_fits(array.type, self.type, "the value")
        texts = write_json(array).cast(pa.binary())
        self._check_json(texts, schema)
        return _joined(head, texts)

    def _read_one(self, array: pa.BinaryArray, schema_id: int) -> pa.Array:
        """Rows of the same schema id."""
        try:
            schema = self.registry.schema(schema_id, self.subject)
        except UnknownSchemaError as error:
            raise Undecodable(str(error)) from error
        if schema.kind != self.kind:
            raise Undecodable(f"the schema {schema_id} is {schema.kind}, and here {self.kind} is read")
        try:
            values = {AVRO: self._avro, PROTOBUF: self._protobuf, JSON: self._json}[self.kind](array, schema)
            return widened(values, self.type)
        except (evolution.Incompatible, pa.ArrowInvalid) as error:
            why = str(error) if isinstance(error, evolution.Incompatible) else reason_of(error)
            raise Undecodable(f"the schema {schema_id} cannot be read as the reader's: {why}") from None

    def _avro(self, array: pa.BinaryArray, schema: Schema) -> pa.Array:
        writer = node_of(self.registry, schema)
        if self.schema is None or self.schema == schema:
            return _read_avro(array, writer, wire.HEADER_BYTES)
        resolution = evolution.resolve(writer, node_of(self.registry, self.schema))
        return resolution.convert(_read_avro(array, resolution.node, wire.HEADER_BYTES))

    def _protobuf(self, array: pa.BinaryArray, schema: Schema) -> pa.Array:
        references = self.registry.references(schema)
        rest = without(array, wire.HEADER_BYTES)
        parts: list[pa.Array] = []
        places: list[pa.Array] = []
        left = pa.array(np.arange(len(rest)))
        while len(left):  # nearly always once: the rows are messages of one place
            rows = rest.take(left) if parts else rest
            indexes, size = wire.message_indexes(rows[0].as_py())
            alike = pc.starts_with(rows, rows[0].as_py()[:size])
            message = protobuf.message_at(schema.text, references, indexes)
            if self.schema is not None or self.message is not None:
                self._check_message(message.name)
            parts.append(message.read(without(rows.filter(alike), size)))
            places.append(left.filter(alike))
            left = left.filter(pc.invert(alike))
        if len(parts) == 1:
            return parts[0]
        values = pa.concat_arrays([widened(part, self.type) for part in parts])
        return values.take(pc.sort_indices(pa.concat_arrays(places)))

    def _check_message(self, name: str) -> None:
        own_name = self.message
        if self.schema is not None:
            own_name = protobuf.message_of(self.schema.text, self.registry.references(self.schema), self.message).name
        if own_name not in (name, name.rpartition(".")[2]):
            raise Undecodable(
                f"a message {name}, and here {own_name} is read: set value.message, or read the others apart"
            )

    def _json(self, array: pa.BinaryArray, schema: Schema) -> pa.Array:
        rest = without(array, wire.HEADER_BYTES)
        values = read_json(rest, self.type, whole_numbers=True)
        self._check_json(rest, schema)
        return values

    def _check_json(self, array: pa.BinaryArray, schema: Schema) -> None:
        if self.checked:
            json_schema.check_values(array, schema.text, self.registry.references(schema))


Codec = Plain | Registered


def _joined(head: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    return pc.binary_join_element_wise(pa.scalar(head), values, b"")


def type_of_registered(registry: Registry, schema: Schema, message: str | None) -> pa.DataType:
    """The column type of a registered schema."""
    if schema.kind == AVRO:
        return node_of(registry, schema).type
    if schema.kind == PROTOBUF:
        return protobuf.message_of(schema.text, registry.references(schema), message).type
    return json_schema.type_of_schema(schema.text)
