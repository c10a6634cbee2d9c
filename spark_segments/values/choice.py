"""From options to a codec: the schema that a column is read or written with, and its source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, UnknownSchemaError, ValueFormatError
from spark_segments.values import codecs, protobuf, wire
from spark_segments.values.avro import schema as avro_schema
from spark_segments.values.column_types import portable, type_of_ddl
from spark_segments.values.format_options import FORMAT_OF, KINDS, ColumnFormat
from spark_segments.values.registries.registry import AVRO, PROTOBUF, Registry, Schema
from spark_segments.values.schema_bounds import compact, json_of
from spark_segments.values.text import connect, json_schema
from spark_segments.values.undecodable import Undecodable

Sample = Callable[[], Iterator[pa.RecordBatch]]
"""The first records with a value in the column, and their headers, one a batch."""


def no_records() -> Iterator[pa.RecordBatch]:
    """The sample of a column whose topic has no value in it, or is not known."""
    return iter(())


def reading_codec(
    chosen: ColumnFormat, topic: str | None, registry: Registry | None, sample: Sample = no_records
) -> codecs.Codec:
    """The codec that reads a column. Raises InvalidOptionError where its type is not known.

    `sample` gives values of the topic. The type of Connect's JSON with a schema comes from the first of them that says
    it. So does the schema of a topic whose subject is not in the registry: a record names its schema by an id.
    """
    kind = KINDS.get(chosen.format)
    if kind is None:
        return _plain(chosen, None, sample)
    if registry is None:
        return _unregistered(chosen, None)
    text = chosen.schema
    if text is not None and not is_schema(text, kind):
        value_type = type_of_ddl(text)
        schema = None
    else:
        schema = Schema(kind, text) if text is not None else _newest(chosen, topic, registry, kind, sample)
        value_type = codecs.type_of_registered(registry, schema, chosen.message)
    subject = chosen.subject_of(topic)
    return codecs.Registered(
        kind, registry, value_type, schema, chosen.message, checked=chosen.checked, subject=subject
    )


def writing_codec(
    chosen: ColumnFormat, topic: str | None, registry: Registry | None, column_type: pa.DataType | None
) -> codecs.Codec:
    """The codec that writes a column of `column_type` (None: the schema says which). Registers a schema where needed.

    The schema is value.schema, else the subject's newest, else one made of the column's type.
    """
    kind = KINDS.get(chosen.format)
    if kind is None:
        return _plain(chosen, column_type)
    if registry is None:
        return _unregistered(chosen, column_type)
    subject = chosen.subject_of(topic)
    if subject is None:
        raise InvalidOptionError(
            "A write to several topics has no default subject", hint=f"Give {chosen.column}.subject, or topic"
        )
    newest = registry.version(subject) if chosen.schema is None else None
    if newest is not None and newest.kind != kind:
        raise InvalidOptionError(f"The schemas of {subject} are {newest.kind}", expected=kind, found=newest.kind)
    schema = newest or Schema(kind, _schema_to_write(chosen, kind, column_type))
    if schema.id is None:
        if not chosen.register:
            registered = registry.version(subject)
            if registered is None or registered != schema:
                raise registry.error(f"{subject} has no such schema, and auto.register.schemas is false")
            schema = registered
        else:
            schema = replace(schema, id=registry.register(subject, schema))
    value_type = codecs.type_of_registered(registry, schema, chosen.message)
    return codecs.Registered(
        kind, registry, value_type, schema, chosen.message, written=schema, checked=chosen.checked, subject=subject
    )


def _newest(chosen: ColumnFormat, topic: str | None, registry: Registry, kind: str, sample: Sample) -> Schema:
    """The newest schema of the subject; where there is none, the schema of the topic's first value."""
    subject = chosen.subject_of(topic)
    newest = None if subject is None else registry.version(subject)
    for record in sample() if newest is None else ():
        with contextlib.suppress(Undecodable, UnknownSchemaError):
            framing = codecs.Registered(kind, registry, pa.null())
            [schema_id] = wire.schema_ids(
                framing.framed(record.column(chosen.column), record.column("headers"), chosen.column)
            )
            newest = registry.schema(int(schema_id), subject)
            break
    if newest is None:
        raise InvalidOptionError(
            f"No schema to read {chosen.column}s as",
            expected=f"a subject {subject}" if subject else "the name of a subject",
            found=", ".join(list(registry.subjects())[:10]) or "no subjects",
            hint=f"Give {chosen.column}.schema or {chosen.column}.subject",
        )
    if newest.kind != kind:
        raise InvalidOptionError(
            f"The schemas of {subject} are {newest.kind}",
            found=chosen.format,
            expected=FORMAT_OF[newest.kind],
            hint=f"Set {chosen.column}.format={FORMAT_OF[newest.kind]}",
        )
    return newest


def _unregistered(chosen: ColumnFormat, column_type: pa.DataType | None) -> codecs.Codec:
    if chosen.format == "protobuf" and chosen.schema is not None and is_schema(chosen.schema, PROTOBUF):
        return codecs.message(chosen.schema, chosen.message)
    if chosen.format != "avro" or (chosen.schema is None and column_type is None):
        more = {
            "avro": " or, for Avro without its wire format, value.schema",
            "protobuf": " or, for messages without their wire format, value.schema: a .proto or a file of descriptors",
        }.get(chosen.format, "")
        raise InvalidOptionError(
            f"{chosen.column}.format={chosen.format} needs a schema registry",
            hint=f"Set schema.registry to an address or a directory{more}",
        )
    text = chosen.schema
    if text is not None and not is_schema(text, AVRO):
        text = compact(avro_schema.schema_of(type_of_ddl(text)))
    return codecs.avro(avro_schema.parse(text or compact(avro_schema.schema_of(column_type))))


def _plain(chosen: ColumnFormat, column_type: pa.DataType | None, sample: Sample = no_records) -> codecs.Codec:
    name = chosen.format
    column = chosen.column
    if name in codecs.NUMBERS:
        return codecs.numbers(name)
    if name in ("string", "uuid"):
        return codecs.uuids() if name == "uuid" else codecs.string()
    value_type = portable(column_type) if column_type is not None else None
    if chosen.schema is not None:
        value_type = _type_of_schema_option(chosen.schema, name)
    if name == "json":
        is_text = value_type is None or (chosen.schema is None and value_type in (pa.string(), pa.binary()))
        return codecs.json_text() if is_text or value_type is None else codecs.json(value_type)
    if name == "connect-json" and value_type is None and chosen.envelope:
        value_type = _type_of_envelopes(chosen, sample)
    if value_type is None:
        raise InvalidOptionError(
            f"{column}.format={name} needs {column}.schema",
            expected="Spark's DDL, such as id bigint, name string" + (", or a Connect schema" if "con" in name else ""),
            found="none",
        )
    return codecs.csv(value_type) if name == "csv" else codecs.connect(value_type, chosen.envelope)


def _type_of_envelopes(chosen: ColumnFormat, sample: Sample) -> pa.DataType | None:
    """The type of the first value whose schema says one: what stands before it is an error of its own record, or null.
    None where there is no value. Raises ValueFormatError where no value has a type.
    """
    column = chosen.column
    refusal = None
    for record in sample():
        try:
            return connect.type_of_envelope(record.column(column)[0].as_py())
        except Undecodable as error:
            refusal = refusal or error
    if refusal is None:
        return None
    raise ValueFormatError(
        f"The first {column} cannot be read as {chosen.format} ({refusal.reason}), nor does a later one name a type",
        expected='{"schema": …, "payload": …}',
        hint=f"Give {column}.schema, with {column}.schemas.enable=false where there are no envelopes, "
        f"or {column}.format=json",
    )


def _type_of_schema_option(text: str, name: str) -> pa.DataType:
    """The type in value.schema, for a format without schemas: DDL, or a JSON or Connect or Avro schema."""
    if text.strip()[:1] not in ("{", "["):
        return type_of_ddl(text)
    if name == "connect-json":
        return connect.type_of_schema(json_of(text, "schema of Connect"))
    try:
        return avro_schema.parse(text).type
    except InvalidOptionError:
        return json_schema.type_of_schema(text)


def is_schema(text: str, kind: str) -> bool:
    """Whether a text is a schema of its kind, rather than a type in DDL."""
    start = text.strip()
    if kind == PROTOBUF:
        return ("message" in start and "{" in start) or protobuf.is_descriptor(start)
    return start[:1] in ("{", "[", '"') or (kind == AVRO and start in avro_schema.PRIMITIVES)


def _schema_to_write(chosen: ColumnFormat, kind: str, column_type: pa.DataType | None) -> str:
    """The schema to write with where the subject has no schema: value.schema, or a schema of the column's type."""
    text = chosen.schema
    if text is not None and is_schema(text, kind):
        return text
    value_type = type_of_ddl(text) if text is not None else column_type
    if value_type is None or kind == PROTOBUF:
        raise InvalidOptionError(
            f"No schema to write {chosen.column}s with", hint=f"Give {chosen.column}.schema, or register one"
        )
    if kind == AVRO:
        return compact(avro_schema.schema_of(portable(value_type)))
    return compact(json_schema.schema_of(portable(value_type), chosen.subject or "Value"))
