"""What is written in a format is read back as it was, for every format and any value its type has."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kafka.serializer.json import JsonSerializer

from spark_segments.errors import InvalidOptionError
from spark_segments.values import codecs, protobuf
from spark_segments.values.column_types import type_of_ddl
from spark_segments.values.text import connect, json_schema
from spark_segments.values.undecodable import Undecodable
from tests.examples import examples

UTC = datetime.UTC
CASES = examples(120, suppress_health_check=[HealthCheck.too_slow])
_EPOCH = datetime.datetime(1970, 1, 1)
_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def _after(microseconds: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=microseconds)


def _whole(step: int) -> st.SearchStrategy[int]:
    return st.integers(-(10**14) // step, 10**15 // step).map(lambda n: n * step)


def _leaves(step: int) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """(type, values); times are multiples of `step` microseconds."""
    times = st.integers(0, 86_399_999_999 // step).map(lambda n: _after(n * step).time())
    return [
        (pa.bool_(), st.booleans()),
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
        (pa.float64(), _DOUBLES),
        (pa.string(), _TEXT),
        (pa.binary(), st.binary(max_size=10)),
        (pa.date32(), st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))),
        (pa.time64("us"), times),
        (pa.timestamp("us", "UTC"), _whole(step).map(lambda us: _after(us).replace(tzinfo=UTC))),
        (pa.decimal128(38, 3), st.integers(-(10**20), 10**20).map(lambda n: decimal.Decimal(n).scaleb(-3))),
    ]


def _types(step: int, depth: int, maps: bool) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    leaf = st.sampled_from(_leaves(step))
    if depth == 0:
        return leaf
    below = _types(step, depth - 1, maps)
    choices = [
        leaf,
        below.map(lambda one: (pa.list_(pa.field("element", one[0])), st.lists(st.none() | one[1], max_size=3))),
        st.lists(below, min_size=1, max_size=3).map(_struct),
    ]
    if maps:
        choices.append(
            below.map(
                lambda one: (
                    pa.map_(pa.string(), pa.field("value", one[0])),
                    st.dictionaries(_TEXT, st.none() | one[1], max_size=3).map(lambda found: list(found.items())),
                )
            )
        )
    return st.one_of(choices)


def _struct(parts: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = pa.struct([pa.field(f"f{at}", one) for at, (one, _) in enumerate(parts)])
    return kind, st.fixed_dictionaries({f"f{at}": st.none() | values for at, (_, values) in enumerate(parts)})


def columns(step: int = 1, depth: int = 2, maps: bool = True) -> st.SearchStrategy[pa.Array]:
    """Columns of structs without null rows."""
    structs = st.lists(_types(step, depth, maps), min_size=1, max_size=4).map(_struct)
    return structs.flatmap(
        lambda one: st.lists(one[1], min_size=1, max_size=5).map(lambda rows: pa.array(rows, one[0]))
    )


def back(codec: codecs.Codec, array: pa.Array) -> pa.Array:
    made = codec.read(codec.write(array).cast(pa.binary()))
    made.validate(full=True)
    return made


@CASES
@given(columns())
def test_json(array):
    assert back(codecs.json(array.type), array).equals(array)
    assert back(codecs.json(array.type), array[1:]).equals(array[1:])


@CASES
@given(columns(depth=1, maps=False))
def test_json_is_what_other_readers_read(array):
    for text, row in zip(codecs.json(array.type).write(array).to_pylist(), array.to_pylist(), strict=True):
        found = json.loads(text)
        assert list(found) == list(row)
        for field in array.type:
            if pa.types.is_integer(field.type) or pa.types.is_string(field.type) or pa.types.is_boolean(field.type):
                assert found[field.name] == row[field.name]
            if pa.types.is_binary(field.type) and row[field.name] is not None:
                assert base64.b64decode(found[field.name]) == row[field.name]
    written = JsonSerializer().serialize("t", [], {"a": 1.5, "b": [True, None, "é\n"]})
    kind = type_of_ddl("a double, b array<string>")
    with pytest.raises(Undecodable):  # true is no string
        codecs.json(kind).read(pa.array([written]))
    assert codecs.json(type_of_ddl("a double")).read(pa.array([written])).to_pylist() == [{"a": 1.5}]


@CASES
@given(columns(depth=0))
def test_csv(array):
    text = codecs.csv(array.type).write(array)
    made = codecs.csv(array.type).read(text.cast(pa.binary()))
    assert made.equals(array)
    for line, row in zip(text.to_pylist(), array.to_pylist(), strict=True):
        if line and "\r" not in line.replace("\r\n", ""):
            (fields,) = csv.reader(io.StringIO(line, newline=""))
            texts = [one for one, field in zip(fields, array.type, strict=True) if pa.types.is_string(field.type)]
            assert texts == [row[field.name] or "" for field in array.type if pa.types.is_string(field.type)]


def by_own_schema(rows: pa.BinaryArray) -> pa.Array:
    """Connect's envelopes as the schema of the first says."""
    kind = connect.type_of_envelope(rows[0].as_py()) if len(rows) else pa.null()
    return connect.read_envelopes(rows, kind)


@CASES
@given(columns(step=1000))
def test_connects_json(array):
    assert back(codecs.connect(array.type, envelope=False), array).equals(array)
    assert back(codecs.connect(array.type, envelope=True), array).equals(array)
    found = by_own_schema(connect.write_envelopes(array).cast(pa.binary()))
    assert found.to_pylist() == array.to_pylist()  # by its own schema; a decimal has 38 digits then


PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message All {
  double f0 = 1; float f1 = 2; int32 f2 = 3; int64 f3 = 4; uint32 f4 = 5; uint64 f5 = 6; sint32 f6 = 7; sint64 f7 = 8;
  fixed32 f8 = 9; fixed64 f9 = 10; sfixed32 f10 = 11; sfixed64 f11 = 12; bool f12 = 13; string f13 = 14; bytes f14 = 15;
  Kind f15 = 16; optional int64 f16 = 17; repeated int32 f17 = 18; repeated Inner f18 = 19; map<string, Inner> f19 = 20;
  google.protobuf.Timestamp f20 = 21; google.protobuf.Duration f21 = 22; google.protobuf.Int64Value f22 = 23;
  Inner f23 = 24; oneof choice { string f24 = 25; int32 f25 = 26; }
  enum Kind { ZERO = 0; ONE = 1; }
  message Inner { string s = 1; repeated string many = 2; }
}"""
_INNER = st.fixed_dictionaries({"s": _TEXT, "many": st.lists(_TEXT, max_size=2)})
_I32, _I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1).map(decimal.Decimal)
_MESSAGES = st.tuples(
    *(_DOUBLES, st.floats(width=32, allow_nan=False, allow_infinity=False), _I32, _I64, _U32, _U64, _I32, _I64),
    *(_U32, _U64, _I32, _I64, st.booleans(), _TEXT, st.binary(max_size=9), st.sampled_from(["ZERO", "ONE"])),
    *(st.none() | _I64, st.lists(_I32, max_size=3), st.lists(_INNER, max_size=2)),
    st.dictionaries(_TEXT, _INNER, max_size=1).map(lambda found: list(found.items())),
    st.none() | _whole(1).map(lambda us: _after(us).replace(tzinfo=UTC)),
    *(st.none() | st.integers(-(10**15), 10**15), st.none() | _I64, st.none() | _INNER),
    st.none() | _TEXT,
)


@CASES
@given(st.lists(_MESSAGES, min_size=1, max_size=4))
def test_protobuf(rows):
    message = protobuf.message_of(PROTO)
    made = [{f"f{at}": value for at, value in enumerate(row)} for row in rows]
    array = pa.array([row | {"f25": None if row["f24"] is not None else 7} for row in made], message.type)
    found = message.read(message.write(array))
    found.validate(full=True)
    assert found.to_pylist() == array.to_pylist()


def test_an_enum_without_a_name_keeps_its_number_and_a_wrong_name_is_refused():
    text = """syntax = "proto3"; enum E { A = 0; B = 5; }
    message Row { E e = 1; repeated E es = 2; map<string, E> m = 3; Inner i = 4; message Inner { E e = 1; } }"""
    message = protobuf.message_of(text)
    row = {"e": "99", "es": ["B", "7", "A"], "m": [("k", "B")], "i": {"e": "8"}}
    array = pa.array([row, {"e": "B", "es": [], "m": [], "i": None}], message.type)
    assert message.read(message.write(array)).equals(array)
    for wrong in ({"e": "C"}, {"es": ["C"]}, {"m": [("k", "")]}, {"i": {"e": "b"}}):
        with pytest.raises(Undecodable, match="no value of the enum E"):
            message.write(pa.array([wrong], message.type))


@CASES
@given(st.data())
def test_a_damaged_message_is_read_or_refused(data):
    message = protobuf.message_of(PROTO)
    rows = [{f"f{at}": value for at, value in enumerate(data.draw(_MESSAGES))}]
    damaged = bytearray(message.write(pa.array(rows, message.type))[0].as_py())
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        found = message.read(pa.array([bytes(damaged)], pa.binary()))
    except Undecodable:
        return
    found.validate(full=True)


def test_a_map_entry_may_lack_its_value():
    message = protobuf.message_of('syntax = "proto3"; message Row { map<string, I> m = 1; message I { int32 n = 1; } }')
    assert message.read(pa.array([b"\x0a\x03\x0a\x01k"])).to_pylist() == [{"m": [("k", None)]}]


# One row stays one row, whatever it says.


@CASES
@given(st.lists(st.sampled_from(["{", "}", '"id"', ":", "1", ",", "[", "]", "\n", '"', '{"id":1}', " "]), max_size=7))
def test_text_that_is_not_one_json_value_is_refused(pieces):
    text = "".join(pieces)
    codec = codecs.json(type_of_ddl("id bigint"))
    around = [b'{"id":7}', text.encode(), b'{"id":8}']
    try:
        found = codec.read(pa.array(around)).to_pylist()
    except Undecodable:
        return
    value = json.loads(text)
    assert found == [{"id": 7}, value if value is None else {"id": value.get("id")}, {"id": 8}]


@CASES
@given(st.lists(st.sampled_from(["1", ",", "\n", '"', "a", '""', "\r\n", "2,b"]), max_size=7))
def test_text_that_is_not_one_line_of_csv_is_refused(pieces):
    codec = codecs.csv(type_of_ddl("id bigint, s string"))
    around = [b"7,x", "".join(pieces).encode(), b"8,y"]
    try:
        found = codec.read(pa.array(around)).to_pylist()
    except Undecodable:
        return
    assert [found[0], found[2]] == [{"id": 7, "s": "x"}, {"id": 8, "s": "y"}]


@pytest.mark.parametrize("codec", [codecs.json, codecs.csv, lambda kind: codecs.connect(kind, envelope=True)])
def test_a_number_that_is_none_is_text_in_json_as_jackson_writes_it(codec):
    kind = pa.struct([("x", pa.float64())])
    rows = [{"x": 1.5}, {"x": math.inf}, {"x": -math.inf}, {"x": None}]
    nan, *written = codec(kind).write(pa.array([{"x": math.nan}, *rows], kind)).to_pylist()
    assert all(
        name in text for name, text in zip(("NaN", "1.5", "Infinity", "-Infinity"), (nan, *written), strict=False)
    )
    first, *others = codec(kind).read(pa.array([nan, *written], pa.binary())).to_pylist()
    assert math.isnan(first["x"]) and others == rows
    assert codecs.json(pa.float32()).write(pa.array([math.nan], pa.float32())).to_pylist() == ['"NaN"']


@pytest.mark.parametrize("codec", [codecs.json, codecs.csv])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_digits_behind_microseconds_are_cut_as_spark_does(codec, zone):
    kind = pa.struct([("t", pa.timestamp("us", zone)), ("c", pa.time64("us"))])
    texts = ["2026-01-31T12:00:00.1234569Z"[: None if zone else -1], "12:00:00.123456789"]
    row = {codecs.json: json.dumps(dict(zip("tc", texts, strict=True))), codecs.csv: ",".join(texts)}[codec]
    [found] = codec(kind).read(pa.array([row.encode()])).to_pylist()
    assert found["t"].microsecond == found["c"].microsecond == 123456


def test_the_columns_of_a_line_of_csv_are_counted_right():
    with pytest.raises(Undecodable, match="Expected 2 columns, got 3"):
        codecs.csv(type_of_ddl("a int, b int")).read(pa.array([b"1,2,3"]))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_json_has_years_of_four_digits(kind):
    for year in (1, 9999):
        array = pa.array([datetime.datetime(year, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")).cast(kind)
        assert back(codecs.json(kind), array).equals(array)
    with pytest.raises(Undecodable, match="outside of the years"):
        codecs.json(kind).write(
            pa.array([4_000_000 if kind == pa.date32() else 10**18])
            .cast(pa.int32() if kind == pa.date32() else pa.int64())
            .view(kind)
        )


# Connect's documented envelope.


def test_connects_envelope_is_what_its_converter_writes():
    kind = type_of_ddl("id bigint, price decimal(10,2), day date, at timestamp")
    row = {
        "id": 7,
        "price": decimal.Decimal("1.25"),
        "day": datetime.date(2020, 1, 1),
        "at": datetime.datetime(2020, 1, 1, tzinfo=UTC),
    }
    data = "org.apache.kafka.connect.data."
    fields = [
        {"type": "int64", "optional": True, "field": "id"},
        {
            **{"type": "bytes", "optional": True, "name": f"{data}Decimal", "version": 1},
            **{"parameters": {"scale": "2"}, "field": "price"},
        },
        {"type": "int32", "optional": True, "name": f"{data}Date", "version": 1, "field": "day"},
        {"type": "int64", "optional": True, "name": f"{data}Timestamp", "version": 1, "field": "at"},
    ]
    envelope = {
        "schema": {"type": "struct", "fields": fields, "optional": True},
        "payload": {"id": 7, "price": "fQ==", "day": 18262, "at": 1577836800000},
    }
    written = connect.write_envelopes(pa.array([row], kind)).to_pylist()
    assert written == [json.dumps(envelope, separators=(",", ":"))]


def test_connects_rows_may_have_different_schemas():
    first = connect.write_envelopes(pa.array([{"id": 1, "s": "a"}], type_of_ddl("id bigint, s string")))
    second = connect.write_envelopes(pa.array([{"id": 2}, {"id": 3}], type_of_ddl("id int")))
    rows = pa.array([first[0].as_py(), second[0].as_py(), first[0].as_py(), second[1].as_py()])
    found = by_own_schema(rows.cast(pa.binary())).to_pylist()
    expected = [{"id": 1, "s": "a"}, {"id": 2, "s": None}, {"id": 1, "s": "a"}, {"id": 3, "s": None}]
    assert found == expected


def test_an_envelope_may_have_white_space_as_pythons_json_writes_it():
    row = json.dumps({"schema": {"type": "int32", "optional": False}, "payload": 5})
    assert by_own_schema(pa.array([row.encode()])).to_pylist() == [5]


@pytest.mark.parametrize("codec", [codecs.csv, codecs.json, lambda kind: codecs.connect(kind, envelope=False)])
def test_a_column_is_written_in_the_order_and_types_of_its_schema(codec):
    one = codec(type_of_ddl("a bigint, b string, c int"))
    column = pa.array([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int16())]))
    assert back(one, column).to_pylist() == [{"a": 1, "b": "x", "c": None}]
    with pytest.raises(InvalidOptionError, match=r"no such fields.*other"):
        one.write(pa.array([{"a": 1, "other": 2}]))
    with pytest.raises(Undecodable):
        one.write(pa.array([{"c": 2**40}]))


# Types.


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["null", "number"]}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"enum": ["a", "b"]}, "string"),
        ({"type": "array", "items": {"type": "boolean"}}, "array<boolean>"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "map<string, string>"),
        (
            {"properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"type": "integer"}}},
            "struct<a: bigint>",
        ),
        ({"type": "integer", "connect.type": "int16"}, "smallint"),
    ],
)
def test_json_schemas_have_types(schema, ddl):
    assert json_schema.type_of_schema(json.dumps(schema)) == type_of_ddl(ddl)


@pytest.mark.parametrize("reference", ["#", "#/definitions/node"])
def test_a_json_schema_within_itself_names_the_field_by_its_shortest_path(reference):
    node = {"type": "object", "properties": {"id": {"type": "integer"}, "children": {"type": "array"}}}
    node["properties"]["children"]["items"] = {"$ref": reference}
    schema = node if reference == "#" else {"$ref": reference, "definitions": {"node": node}}
    with pytest.raises(InvalidOptionError) as caught:
        json_schema.type_of_schema(json.dumps(schema))
    assert "the type of the value.children[] open" in str(caught.value)
    assert f"a reference to {reference}, which has this field in it" in str(caught.value)


def test_a_json_schema_may_refer_to_one_definition_twice():
    schema = {
        "type": "object",
        "definitions": {"money": {"type": "number"}},
        "properties": {"net": {"$ref": "#/definitions/money"}, "tax": {"$ref": "#/definitions/money"}},
    }
    assert json_schema.type_of_schema(json.dumps(schema)) == type_of_ddl("net double, tax double")


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {},
        {"type": "object"},
        {"$ref": "#"},
        {"$ref": "other.json"},
    ],
)
def test_a_json_schema_of_an_open_type_asks_for_ddl(schema):
    with pytest.raises(InvalidOptionError, match="leaves the type"):
        json_schema.type_of_schema(json.dumps(schema))


def test_a_proto_that_does_not_compile_says_why():
    with pytest.raises(InvalidOptionError, match=r'no \.proto file.*"Missing" is not defined'):
        protobuf.message_of('syntax = "proto3"; message Row { Missing m = 1; }')
