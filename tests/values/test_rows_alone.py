"""A value decodes to the same, or to none, alone and beside others: an index has values that other batches gave."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_segments.values import codecs
from spark_segments.values.avro.schema import parse
from spark_segments.values.codecs import Codec, Registered
from spark_segments.values.column_types import type_of_ddl
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import Schema
from spark_segments.values.text import connect
from spark_segments.values.undecodable import Undecodable
from tests.examples import examples

FIELDS = "id bigint, x double, f float, s string, d decimal(10,2), b boolean, day date, raw binary"
NUMBERS = ["1", "1.0", "1e1", "1.5", "-0", "-0.0", "1e39", "1e999", "NaN", "Infinity", "Inf", "9223372036854775808"]
TEXTS = [
    '"NaN"',
    '"-Infinity"',
    '-"Infinity"',
    '"1.5"',
    '"1234"',
    '"12"',
    '"AQ=="',
    '"2026-01-01"',
    '"\\ud800"',
    '"\\"NaN"',
]
OTHERS = [
    "null",
    "true",
    "[]",
    "{}",
    '"',
    "",
    '["NaN", 1.0]',
    '{"x": "NaN", "id": 1.0, "x": 1}',
    '[["k", 7]]',
    '{"k": "12"}',
]
CONNECT = {
    "type": "struct",
    "fields": [
        {"field": "id", "type": "int64", "optional": True},
        {"field": "x", "type": "double", "optional": True},
        {"field": "f", "type": "float", "optional": True},
        {"field": "s", "type": "string", "optional": True},
        *(
            {
                "field": name,
                "type": "bytes",
                "optional": True,
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": scale},
            }
            for name, scale in (("d", "0"), ("m", "2"))
        ),
    ],
}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "x": {"type": "number"},
        "s": {"type": "string"},
        "l": {"type": "array", "items": {"type": "integer"}},
    },
}
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "x", "type": ["null", "double"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "s", "type": "string"},
    ],
}

_members = st.builds(
    '"{}": {}'.format,
    st.sampled_from(["id", "x", "f", "s", "d", "m", "b", "day", "raw", "l", "n", "NaN", "\\u0078"]),
    st.sampled_from([*NUMBERS, *TEXTS, *OTHERS]),
)
_objects = st.lists(_members, max_size=3).map(lambda members: "{" + ", ".join(members) + "}")
_json = st.one_of(
    _objects, st.sampled_from([*NUMBERS, *TEXTS, *OTHERS, '{"id": 5}\n', '{"id": 5} {"id": 6}', '{"id": 1,}'])
)
_csv = st.lists(st.sampled_from(["1", "1.0", "NaN", "x", '"', '""', ",", " ", "\n", "\r", "1e999", "1.5"]), max_size=9)


def outcome(codec: Codec, rows: list[bytes]) -> list[str] | None:
    """The values of rows as text, None where they cannot be decoded."""
    try:
        return [repr(value) for value in codec.read(pa.array(rows, pa.binary())).to_pylist()]
    except Undecodable:
        return None


def assert_rows_decode_as_alone(codec: Codec, rows: list[bytes]) -> None:
    alone = [outcome(codec, [row]) for row in rows]
    together = None if None in alone else [value for values in alone if values is not None for value in values]
    assert outcome(codec, rows) == together


JSON_CODECS: dict[str, Callable[[], Codec]] = {
    "json": lambda: codecs.json(type_of_ddl(f"{FIELDS}, l array<double>, n struct<x: double, id: bigint>")),
    "json without floats": lambda: codecs.json(type_of_ddl("id bigint, s string, d decimal(10,2), l array<bigint>")),
    "json with a map": lambda: codecs.json(type_of_ddl("id bigint, x double, n map<string, double>")),
    "json of a float": lambda: codecs.json(type_of_ddl("double")),
    "connect-json": lambda: codecs.connect(connect.type_of_schema(CONNECT), envelope=False),
    "connect-json of DDL": lambda: codecs.connect(
        type_of_ddl("id bigint, x double, d decimal(38,0), l array<decimal(38,2)>, n map<string, decimal(38,0)>"), False
    ),
}


@pytest.mark.parametrize("name", JSON_CODECS)
@examples(300)
@given(rows=st.lists(_json, min_size=2, max_size=4))
@example(rows=['{"id": 1.0}', '{"x": "NaN"}'])
@example(rows=['{"s": "NaN", "id": 1}', '{"id": 1, "id": 2}'])
@example(rows=['{"d": "1234"}', '{"d": 7}'])
def test_json_decodes_as_alone(name, rows):
    assert_rows_decode_as_alone(JSON_CODECS[name](), [row.encode() for row in rows])


@examples(300)
@given(rows=st.lists(_objects, min_size=2, max_size=4))
def test_payloads_of_connect_decode_as_alone(rows):
    codec = codecs.connect(connect.type_of_schema(CONNECT), envelope=True)
    envelopes = [f'{{"schema":{json.dumps(CONNECT)},"payload":{row}}}' for row in rows]
    assert_rows_decode_as_alone(codec, [row.encode() for row in envelopes])


@pytest.fixture(scope="module")
def of_json_schema(tmp_path_factory):
    """The codec of a registered JSON Schema, which takes 1.0 for an integer."""
    directory = tmp_path_factory.mktemp("schemas")
    registry = open_registry(str(directory), {})
    schema = Schema("JSON", json.dumps(JSON_SCHEMA))
    assert registry.register("t-value", schema) == 1
    return Registered("JSON", registry, codecs.type_of_registered(registry, schema, None))


@examples(300)
@given(rows=st.lists(_json, min_size=2, max_size=4))
@example(rows=['{"x": Inf}', '{"id": 1.0}'])
def test_json_of_a_json_schema_decodes_as_alone(of_json_schema, rows):
    assert_rows_decode_as_alone(of_json_schema, [b"\0\0\0\0\1" + row.encode() for row in rows])


@examples(300)
@given(rows=st.lists(_csv.map("".join), min_size=2, max_size=4))
def test_csv_decodes_as_alone(rows):
    assert_rows_decode_as_alone(
        codecs.csv(type_of_ddl("id bigint, x double, s string")), [row.encode() for row in rows]
    )


@examples(300)
@given(
    rows=st.lists(
        st.binary(max_size=24) | st.just(b"\x02\x02" + b"\0" * 6 + b"\xf8\x7f\x02\x07\x02x"), min_size=2, max_size=4
    )
)
def test_avro_decodes_as_alone(rows):
    assert_rows_decode_as_alone(codecs.avro(parse(json.dumps(AVRO), ())), rows)
