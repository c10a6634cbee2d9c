"""What rows say of themselves and cannot be: bytes that are no text, and types that change between rows."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, ValueFormatError
from spark_segments.values.registries.directory import DirectoryRegistry
from spark_segments.values.registries.registry import Schema
from verification.world.topics import contents

NO_TEXT = [b"caf\xe9", b"\xc0\xaf", b"\xed\xa0\x80", b"\xff\xfe"]
"""Latin-1, an overlong form, a surrogate, a byte order mark of UTF-16."""
_RECORD = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "%s"}]}'


@pytest.fixture
def log(tmp_path: Any) -> LogDir:
    log = LogDir.create(f"{tmp_path}/log")
    log.create_topic("rows")
    return log


@pytest.fixture
def registry(tmp_path: Any) -> str:
    made = DirectoryRegistry(f"{tmp_path}/registry")
    made.register("rows-value", Schema("AVRO", _RECORD % "bytes"))
    made.register("json", Schema("JSON", '{"type": "object", "properties": {"a": {"type": "string"}}}'))
    return made.address


def _envelope(kind: dict[str, Any], payload: bytes) -> bytes:
    schema = {"type": "struct", "fields": [{"field": "a", **kind}]}
    return b'{"schema":%b,"payload":{"a":%b}}' % (json.dumps(schema).encode(), payload)


def _text(text: bytes) -> bytes:
    return b'{"a": "%b"}' % text


def _avro(text: bytes) -> bytes:
    return b"\0\0\0\0\1" + bytes([2 * len(text)]) + text


READS = {
    "json": (_text, {"value.schema": "a string"}),
    "a field of json that is not read": (lambda text: b'{"a": "x", "b": "%b"}' % text, {"value.schema": "a string"}),
    "a list": (lambda text: b'{"a": ["%b"]}' % text, {"value.schema": "a array<string>"}),
    "a map": (_text, {"value.schema": "map<string, string>"}),
    "connect": (lambda text: _envelope({"type": "string"}, b'"%b"' % text), {"value.format": "connect-json"}),
    "jsonschema": (
        lambda text: b"\0\0\0\0\2" + _text(text),
        {"value.format": "jsonschema", "value.subject": "json"},
    ),
    "avro": (_avro, {"value.format": "avro", "value.schema": _RECORD % "string"}),
}


@pytest.mark.parametrize("bad", NO_TEXT)
@pytest.mark.parametrize("what", READS)
def test_bytes_that_are_no_text_are_an_error_with_their_offset_or_null(log, registry, what, bad):
    value, options = READS[what]
    log.topic("rows").append(pa.table({"value": [value(b"x"), value(bad)]}))
    formats = {"value.format": "json", **options}
    formats |= {"schema.registry": registry} if formats["value.format"] in ("avro", "jsonschema") else {}
    with pytest.raises(ValueFormatError, match="topic rows, partition 0, offset 1"):
        contents(log, "rows", formats=formats)
    either = {"value.errors": "null", "value.raw.column": "raw"}
    good, null = contents(log, "rows", formats=formats | either, columns=["value"])
    assert good["value"] is not None and good["raw"] is None
    assert null == {"value": None, "raw": value(bad)}


TIMESTAMP = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}


def _decimal(scale: int) -> dict[str, Any]:
    name = "org.apache.kafka.connect.data.Decimal"
    return {"type": "bytes", "name": name, "version": 1, "parameters": {"scale": str(scale)}}


@pytest.mark.parametrize(
    ("first", "then", "types"),
    [
        ((TIMESTAMP, b"1700000000000"), ({"type": "int64"}, b"1700000000000"), ("timestamp", "int64")),
        (({"type": "int64"}, b"1700000000000"), (TIMESTAMP, b"1700000000000"), ("int64", "timestamp")),
        (({"type": "float"}, b"1.5"), ({"type": "double"}, b"1e300"), ("float", "double")),
        (({"type": "boolean"}, b"true"), ({"type": "int32"}, b"1"), ("bool", "int32")),
        (({"type": "int32"}, b"1"), ({"type": "boolean"}, b"true"), ("int32", "bool")),
        (({"type": "int32"}, b"1"), ({"type": "int64"}, b"1099511627776"), ("int32", "int64")),
        (({"type": "int32"}, b"1"), ({"type": "string"}, b'"x"'), ("int32", "string")),
        ((_decimal(4), b'"AQ=="'), (_decimal(2), b'"AQ=="'), None),
        ((_decimal(2), b'"AQ=="'), (_decimal(4), b'"AQ=="'), ("decimal128(38, 2)", "decimal128(38, 4)")),
        (({"type": "int64"}, b"1"), ({"type": "int32"}, b"2"), None),
        (({"type": "double"}, b"1.5"), ({"type": "float"}, b"2.5"), None),
        (({"type": "double"}, b"1.5"), ({"type": "int32"}, b"2"), None),
        (({"type": "double"}, b"1.5"), ({"type": "int64"}, b"2"), ("double", "int64")),
    ],
)
def test_a_field_of_connects_json_that_gets_another_type_is_widened_or_an_error(log, first, then, types):
    log.topic("rows").append(pa.table({"value": [_envelope(*first), _envelope(*then)]}))
    formats = {"value.format": "connect-json"}
    if types is None:
        before, after = (row["value"]["a"] for row in contents(log, "rows", formats=formats))
        wanted = [json.loads(first[1]), json.loads(then[1])] if first[0]["type"] != "bytes" else None
        assert [before, after] == (wanted or [Decimal("0.0001"), Decimal("0.01")])
        return
    with pytest.raises(ValueFormatError) as raised:
        contents(log, "rows", formats=formats)
    said = str(raised.value)
    assert "topic rows, partition 0, offset 1" in said and "a is " in said and all(name in said for name in types)
    values = [row["value"] for row in contents(log, "rows", formats=formats | {"value.errors": "null"})]
    assert values[0] is not None and values[1] is None


@pytest.mark.parametrize(
    ("unscaled", "expected"),
    [
        (b"\x01", Decimal("0.01")),
        (b"\xff" * 20, Decimal("-0.01")),
        (b"\x7f" + b"\xff" * 15, None),
        (b"\x7f" * 20, None),
    ],
)
def test_a_decimal_of_more_digits_than_spark_has_is_read_where_it_fits(log, unscaled, expected):
    """Kafka Connect says a precision of 64 for every decimal."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": decimal}]})
    log.topic("rows").append(pa.table({"value": [bytes([2 * len(unscaled)]) + unscaled]}))
    formats = {"value.format": "avro", "value.schema": schema}
    if expected is None:
        with pytest.raises(ValueFormatError, match="offset 0"):
            contents(log, "rows", formats=formats)
    [row] = contents(log, "rows", formats=formats | {"value.errors": "null"})
    assert row["value"] == (None if expected is None else {"a": expected})


def _whole(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def _struct(**field: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"field": "a", **field}, {"field": "b", "type": "string", "optional": True}]}


NUMBER = _struct(type="int32")
TEXT = {"type": "string", "optional": True}
CONNECTS = {
    "the payload first": ([json.dumps({"payload": {"a": 1}, "schema": NUMBER}).encode()], None, [{"a": 1, "b": None}]),
    "white space": (
        [json.dumps({"schema": NUMBER, "payload": {"a": 1}}, indent=2).encode(), _whole(NUMBER, {"a": 2})],
        None,
        [{"a": 1, "b": None}, {"a": 2, "b": None}],
    ),
    "no schema, with DDL": ([_whole(None, {"a": 1}), _whole(None, None)], "a int", [{"a": 1}, None]),
    "numbers for decimals": (
        [_whole(_struct(**_decimal(2)), {"a": 12.34}), _whole(_struct(**_decimal(2)), {"a": 5})],
        None,
        [{"a": Decimal("12.34"), "b": None}, {"a": Decimal("5.00"), "b": None}],
    ),
    "a map of numbers": (
        [_whole(_struct(type="map", keys={"type": "int32"}, values=TEXT), {"a": [[1, "x"], [2, None]]})],
        None,
        [{"a": [(1, "x"), (2, None)], "b": None}],
    ),
    "a default": (
        [_whole(_struct(type="int32", default=7), value) for value in ({"b": "x"}, {"a": None}, {"a": 1}, None)],
        None,
        [{"a": 7, "b": "x"}, {"a": 7, "b": None}, {"a": 1, "b": None}, None],
    ),
}


@pytest.mark.parametrize("what", CONNECTS)
def test_connects_json_is_read_as_converters_write_it(log, what):
    values, ddl, expected = CONNECTS[what]
    log.topic("rows").append(pa.table({"value": values}))
    formats = {"value.format": "connect-json"} | ({"value.schema": ddl} if ddl else {})
    assert [row["value"] for row in contents(log, "rows", formats=formats)] == expected


_REQUIRED = {"type": "struct", "fields": [{"field": "a", "type": "int32", "optional": False}]}
GOOD = _whole(_REQUIRED, {"a": 1})


@pytest.mark.parametrize("errors", ["fail", "null"])
@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (b"not json", "not the envelope"),
        (_whole(None, None), None),
        (_whole(_struct(**_decimal(39)), {"a": "AQ=="}), "scale 39"),
        (_whole(_REQUIRED, {}), "the field a is required"),
        (_whole(_REQUIRED, {"a": "text"}), "not the JSON of its type"),
    ],
)
def test_a_first_record_that_is_no_envelope_is_an_error_or_null_as_a_later_one_is(log, first, fault, errors):
    log.topic("rows").append(pa.table({"value": [first, GOOD, first]}))
    formats = {"value.format": "connect-json", "value.errors": errors}
    rows = log.topic("rows").scan(offsets={0: (1, 2)}, formats=formats).to_table()
    assert rows.column("value").to_pylist() == [{"a": 1}]
    if fault is not None and errors == "fail":
        with pytest.raises(ValueFormatError, match=f"{fault}.*topic rows, partition 0, offset 0"):
            contents(log, "rows", formats=formats)
        return
    assert [row["value"] for row in contents(log, "rows", formats=formats)] == [None, {"a": 1}, None]


def test_a_field_that_does_not_fit_is_not_called_the_wrong_format(log):
    log.topic("rows").append([{"value": '{"id": "x"}'}])
    with pytest.raises(ValueFormatError, match="expected a value of its type or schema, found JSON"):
        contents(log, "rows", formats={"value.format": "json", "value.schema": "id int"})


def test_a_time_that_no_engine_has_in_the_first_record_of_connects_json_is_null(log):
    """The year 294276, which a long of milliseconds can say."""
    log.topic("rows").append(
        pa.table({"value": [_envelope(TIMESTAMP, b"9224318015999999"), _envelope(TIMESTAMP, b"0")]})
    )
    formats = {"value.format": "connect-json", "value.errors": "null"}
    before, after = (row["value"] for row in contents(log, "rows", formats=formats))
    assert before is None and after["a"].year == 1970


def test_a_topic_without_any_envelope_is_one_error(log):
    log.topic("rows").append([{"value": "x"}, {"value": "{}"}])
    with pytest.raises(ValueFormatError, match="nor does a later one name a type"):
        contents(log, "rows", formats={"value.format": "connect-json", "value.errors": "null"})


@pytest.mark.parametrize("scale", [-1, 39, 127])
def test_a_decimal_of_a_scale_that_no_engine_has_is_an_error_but_where_it_is_left_out(log, scale):
    """Connect's JDBC source gives Oracle's NUMBER the scale 127."""
    fields = [{"field": "id", "type": "int32"}, {"field": "price", **_decimal(scale)}]
    row = _whole({"type": "struct", "fields": fields}, {"id": 7, "price": "AQ=="})
    log.topic("rows").append(pa.table({"value": [row]}))
    connect = {"value.format": "connect-json"}
    for formats in (connect, connect | {"value.schema": "id int, price decimal(38, 2)"}):
        with pytest.raises(ValueFormatError, match=f"the scale {scale}"):
            contents(log, "rows", formats=formats)
    with pytest.raises(InvalidOptionError, match=f"the scale {scale}"):
        contents(log, "rows", formats=connect | {"value.schema": json.dumps(_struct(**_decimal(scale)))})
    [read] = contents(log, "rows", formats=connect | {"value.schema": "id int"})
    assert read["value"] == {"id": 7}
    [read] = contents(log, "rows", formats=connect | {"value.schema": "other int"})
    assert read["value"] == {"other": None}


_INNER = {"type": "struct", "fields": [{"field": "n", "type": "int32"}, {"field": "d", "type": "int32", "default": 5}]}
_OPTIONAL = _INNER | {"optional": True}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (_INNER, {"n": 1}, {"n": 1, "d": 5}),
        (_INNER, {"d": 2}, ValueFormatError),
        (_INNER, None, ValueFormatError),
        (_OPTIONAL, None, None),
        ({"type": "array", "items": _INNER}, [{"n": 1}], [{"n": 1, "d": 5}]),
        ({"type": "array", "items": _INNER}, [{"n": None}], ValueFormatError),
        ({"type": "array", "items": {"type": "int32"}}, [1, None], ValueFormatError),
        ({"type": "array", "items": _OPTIONAL}, [None, {"n": 1}], [None, {"n": 1, "d": 5}]),
        ({"type": "map", "keys": {"type": "string"}, "values": _INNER}, {"k": {"n": 1}}, [("k", {"n": 1, "d": 5})]),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}, {"k": None}, ValueFormatError),
        ({"type": "map", "keys": {"type": "string"}, "values": _OPTIONAL, "optional": True}, None, None),
    ],
)
def test_what_a_schema_of_connect_requires_is_there_at_any_depth(log, field, value, expected):
    """JsonConverter: a null is the default where there is one, and where the part is not optional an error."""
    schema = {"type": "struct", "fields": [{"field": "a", **field}]}
    log.topic("rows").append(pa.table({"value": [_whole(schema, {"a": value})]}))
    if expected is ValueFormatError:
        with pytest.raises(ValueFormatError, match="is required by the schema"):
            contents(log, "rows", formats={"value.format": "connect-json"})
        return
    [row] = contents(log, "rows", formats={"value.format": "connect-json"})
    assert row["value"] == {"a": expected}


@pytest.mark.parametrize(
    "value", [b'{"schema": 1}', b'{"payload": {}, "schema": ', b'{"payload": 1, "schema": {}} x', b"{}"]
)
def test_what_is_no_envelope_is_an_error(log, value):
    log.topic("rows").append(pa.table({"value": [value]}))
    with pytest.raises(ValueFormatError, match="envelope"):
        contents(log, "rows", formats={"value.format": "connect-json", "value.schema": "a int"})


def test_an_integer_of_json_schema_may_be_written_with_a_point(log, tmp_path):
    registry = DirectoryRegistry(f"{tmp_path}/registry")
    registry.register("rows-value", Schema("JSON", '{"type": "object", "properties": {"a": {"type": "integer"}}}'))
    texts = [b'{"a": 1.0}', b'{"a": 1e2}', b'{"a": 7}', b'{"a": 1.5}', b'{"a": 1e999999999}']
    log.topic("rows").append(pa.table({"value": [b"\0\0\0\0\1" + text for text in texts]}))
    formats = {"value.format": "jsonschema", "schema.registry": registry.address, "value.errors": "null"}
    values = [row["value"] for row in contents(log, "rows", formats=formats)]
    assert values == [{"a": 1}, {"a": 100}, {"a": 7}, None, None]


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64])
def test_a_fixed_of_more_bytes_than_a_value_has_is_an_error(log, size):
    log.topic("rows").append(pa.table({"value": [b"x"]}))
    schema = json.dumps({"type": "fixed", "name": "F", "size": size})
    with pytest.raises(InvalidOptionError, match="less than 2 GiB"):
        contents(log, "rows", formats={"value.format": "avro", "value.schema": schema})


@pytest.mark.parametrize("bad", [b'""', b"[]", b"7", b"true"])
def test_what_is_no_object_among_objects_with_maps_is_an_error_with_its_offset(log, bad):
    """Arrow takes an empty text alone for a struct, and fails in its own words where other rows have fields."""
    log.topic("rows").append(pa.table({"value": [b'{"s": {"m": {"k": "v"}}}', b'{"s": %b}' % bad]}))
    formats = {"value.format": "json", "value.schema": "s struct<m: map<string, string>>"}
    with pytest.raises(ValueFormatError, match="topic rows, partition 0, offset 1"):
        contents(log, "rows", formats=formats)


def test_two_fields_of_one_name_are_an_error_of_the_schema_or_of_the_record_that_brings_it(log):
    with pytest.raises(InvalidOptionError, match="two fields of the same name: found a"):
        contents(log, "rows", formats={"value.format": "json", "value.schema": "s struct<a: int, b: int, a: int>"})
    fields = [{"field": "a", "type": "int32"}]
    rows = [{"schema": {"type": "struct", "fields": fields * many}, "payload": {"a": 1}} for many in (1, 2)]
    log.topic("rows").append(pa.table({"value": [json.dumps(row).encode() for row in rows]}))
    with pytest.raises(ValueFormatError, match=r"two fields of the same name.*topic rows, partition 0, offset 1"):
        contents(log, "rows", formats={"value.format": "connect-json"})
