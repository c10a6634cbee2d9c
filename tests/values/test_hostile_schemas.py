"""Schemas that double at each level, that are nested without an end, or that are none: refused by name, and at once.

A schema of n levels stands for 2ⁿ fields. The deadline is one for a schema that would take years.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.cli.page.serve import Pages
from spark_segments.cli.page.topic_table import TopicLines
from spark_segments.cli.records.value_text import guessed
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.values import protobuf
from spark_segments.values.avro import evolution
from spark_segments.values.avro import schema as avro_schema
from spark_segments.values.avro.read import reader_of
from spark_segments.values.batches import decoders
from spark_segments.values.column_types import type_of_ddl
from spark_segments.values.format_options import column_formats
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import Schema
from spark_segments.values.schema_bounds import MOST_DEPTH, MOST_FIELDS
from spark_segments.values.text import connect, json_schema
from spark_segments.values.undecodable import Undecodable

LEVELS = 25


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < 120


def doubling_avro(levels: int = LEVELS) -> str:
    made: object = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"R{level - 1}"}]
        made = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(made)


def doubling_json(levels: int = LEVELS) -> str:
    definitions = {"R0": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    for level in range(1, levels):
        below = {"$ref": f"#/definitions/R{level - 1}"}
        definitions[f"R{level}"] = {"type": "object", "properties": {"a": below, "b": below}}
    return json.dumps({"$ref": f"#/definitions/R{levels - 1}", "definitions": definitions})


def doubling_proto(levels: int = LEVELS) -> str:
    below = (f"message R{n} {{ R{n - 1} a = 1; R{n - 1} b = 2; }}" for n in range(levels - 1, 0, -1))
    return 'syntax = "proto3";\n' + "\n".join(below) + "\nmessage R0 { int32 x = 1; }"


def test_an_avro_schema_that_doubles_is_refused_by_name():
    with pytest.raises(InvalidOptionError, match=r"too large at R1\d"):
        avro_schema.parse(doubling_avro())


def test_a_json_schema_that_doubles_is_refused_by_name():
    with pytest.raises(InvalidOptionError, match=r"too large at the value\.a\.a"):
        json_schema.type_of_schema(doubling_json())


def test_a_protobuf_schema_that_doubles_is_refused_by_name():
    with pytest.raises(InvalidOptionError, match=r"too large at R1\d"):
        protobuf.message_of(doubling_proto())


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [("AVRO", "avro", doubling_avro), ("JSON", "jsonschema", doubling_json), ("PROTOBUF", "protobuf", doubling_proto)],
)
def test_a_registry_that_has_such_a_schema_stops_the_read(tmp_path, kind, name, make):
    (tmp_path / f"7.{ {'AVRO': 'avsc', 'JSON': 'json', 'PROTOBUF': 'proto'}[kind] }").write_text(make())
    (tmp_path / "subjects.json").write_text('{"subjects": {"orders-value": {"versions": {"1": 7}}}}')
    with pytest.raises(InvalidOptionError, match="too large at"):
        decoders(column_formats({"value.format": name, "schema.registry": str(tmp_path)}), "orders")


def test_schemas_of_fewer_fields_are_read():
    assert avro_schema.parse(doubling_avro(10)).all_fields == 3 * 2**9 - 1
    made = json_schema.type_of_schema(doubling_json(10))
    for _ in range(9):
        assert made.names == ["a", "b"]
        made = made.field(1).type
    assert made == pa.struct([("x", pa.int64())])
    assert protobuf.message_of(doubling_proto(6)).name == "R5"


def test_a_wide_schema_is_read():
    fields = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(MOST_FIELDS // 4)]
    made = avro_schema.parse(json.dumps({"type": "record", "name": "Wide", "fields": fields}))
    assert made.type.num_fields == MOST_FIELDS // 4


def nested_unions(levels: int, last: str) -> str:
    made: object = last
    for level in range(levels):
        fields = [{"name": "a", "type": ["null", made]}]
        made = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(made)


def test_two_schemas_that_do_not_fit_are_found_out_at_once():
    """Each union on the way tries its branches, once."""
    levels = MOST_DEPTH // 2 - 2
    writer, reader = (avro_schema.parse(nested_unions(levels, last)) for last in ("int", "string"))
    with pytest.raises(evolution.Incompatible):
        evolution.resolve(writer, reader, strict=True)


DEEP = 100_000
NESTS = {
    "lists": "[" * DEEP,
    "closed lists": "[" * DEEP + "]" * DEEP,
    "objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "a thousand": "[" * 1000 + "]" * 1000,
    "nearly a thousand": '{"a":' * 990 + "1" + "}" * 990,
}
FORMATS = [
    {},
    {"value.format": "json"},
    {"value.format": "json", "value.schema": "a int"},
    {"value.format": "json", "value.schema": "a map<string,int>"},
    {"value.format": "connect-json"},
    {"value.format": "connect-json", "value.schema": "a int"},
    {"value.format": "csv", "value.schema": "a string"},
    {"value.format": "long"},
]


@pytest.mark.cases(2)
@pytest.mark.parametrize("text", NESTS.values(), ids=NESTS)
def test_a_value_that_is_nested_without_an_end_is_read_or_one_error(tmp_path, text):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    log.topic("orders").append([{"key": text, "value": text}])
    for formats in FORMATS:
        try:
            assert sum(batch.num_rows for batch in log.topic("orders").scan(formats=formats).batches()) == 1
        except SegmentsError as error:
            assert "\n" not in str(error)
        pages = Pages(log, dict(formats), TopicLines(log))
        for path in ("/records", "/record"):
            assert pages.answer(path, {"topic": "orders", "offset": "0"}).status < 500
    assert isinstance(guessed(log, "orders", {}), tuple)


SCHEMAS: dict[str, Callable[[str], object]] = {
    "DDL": type_of_ddl,
    "Avro": avro_schema.parse,
    "JSON Schema": json_schema.type_of_schema,
    "Connect": lambda text: decoders(column_formats({"value.format": "connect-json", "value.schema": text}), "orders"),
    "protobuf": protobuf.message_of,
}
TEXTS = {
    "lists": "[" * DEEP,
    "items": '{"type":"array","items":' * DEEP + '"int"' + "}" * DEEP,
    "200 items": '{"type":"array","items":' * 200 + '{"type":"string"}' + "}" * 200,
    "DDL": "array<" * DEEP + "int" + ">" * DEEP,
    "400 of DDL": "array<" * 400 + "int" + ">" * 400,
    "a type of a type": '{"type":' * 500 + '"int"' + "}" * 500,
    "no end": '{"type":',
    "a number": "{}",
    "an array of nothing": '{"type": "array"}',
    "a struct of nothing": '{"type": "struct"}',
    "fields that are none": '{"type": "record", "name": "R", "fields": 7}',
    "a field that is none": '{"type": "struct", "fields": [7]}',
    "a name that is none": '{"type": "record", "name": {}, "fields": []}',
    "symbols that are none": '{"type": "enum", "name": "E", "symbols": [[1], 2]}',
    "a type that is none": '{"type": {"type": {}}}',
    "types that are none": '{"type": [[], {}, 7]}',
    "properties that are none": '{"type": "object", "properties": [1]}',
    "a reference to nothing": '{"$ref": 7}',
    "a reference to itself": '{"$ref": "#"}',
    "a choice that is none": '{"oneOf": 7}',
    "messages": "message A {" * 2000 + "}" * 2000,
    "an option of Connect": '{"type": "object", "connect.type": []}',
    "a decimal of no digits": "a decimal(0)",
    "a decimal of a huge scale": json.dumps(
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": 2**40}}
    ),
    "a decimal of no scale": '{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":7}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", ["DDL", "Avro", "JSON Schema", "Connect"])
def test_a_schema_that_is_none_is_one_error(kind, text):
    try:
        SCHEMAS[kind](text)  # a text may be a schema of one kind, and none of another
    except SegmentsError as error:
        assert "\n" not in str(error)


def test_messages_within_messages_are_one_error():
    with pytest.raises(InvalidOptionError):
        protobuf.message_of('syntax = "proto3";' + TEXTS["messages"])


def test_a_registered_schema_that_is_nested_is_one_error(tmp_path):
    registry = open_registry(str(tmp_path))
    with pytest.raises(SegmentsError):
        registry.register("x", Schema("AVRO", TEXTS["items"]))
        registry.register("x", Schema("AVRO", TEXTS["items"] + " "))


def test_a_column_of_null_bytes_takes_no_memory_for_what_a_schema_claims():
    node = avro_schema.parse('["null", {"type": "fixed", "name": "F", "size": 2000000000}]')
    rows = pa.array([b"\0"] * 1000, pa.binary())
    starts = np.arange(1000, dtype=np.int64)
    with pytest.raises(Undecodable, match="2 GiB"):
        reader_of(node).read(rows.buffers()[2], starts, starts + 1)


def test_an_envelope_that_is_nested_is_one_error():
    with pytest.raises(InvalidOptionError):
        connect.type_of_schema(json.loads('{"type":"array","items":' * 200 + '{"type":"int8"}' + "}" * 200))
