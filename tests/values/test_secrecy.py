"""No error shows what a record holds: neither its text, nor that of the errors behind it, which Python prints, too."""

from __future__ import annotations

import datetime
import decimal
import json
import traceback
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.cli.records.input_rows import Format, Input
from spark_segments.cli.records.record_text import Properties
from spark_segments.errors import SegmentsError
from spark_segments.values.batches import decoders, encoders
from spark_segments.values.format_options import column_formats
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import Schema

SECRET = "4556737586899855"  # digits, so that it stands for numbers, too


def shown(error: BaseException) -> str:
    """All that a terminal, a log or Spark shows of an error."""
    return "".join(traceback.format_exception(error)) + str(error)


def is_hidden(error: BaseException) -> bool:
    text = shown(error)
    # The lines of source in a traceback are this file's.
    return SECRET not in text and SECRET.encode().hex(" ") not in text and SECRET.encode().hex() not in text


READ = [
    ("short", None, SECRET),
    ("int", None, SECRET + SECRET),
    ("uuid", None, SECRET),
    ("json", None, f'{{"card": {SECRET}'),
    ("json", None, f"x{SECRET}"),
    ("json", "card int", f'{{"card": {SECRET}}}'),
    ("json", "card int", f'{{"card": "{SECRET}"}}'),
    ("json", "card string", f'{{"card": {SECRET}}}'),
    ("json", "card date", f'{{"card": "{SECRET}"}}'),
    ("json", "card time", f'{{"card": "{SECRET}"}}'),
    ("json", "card timestamp", f'{{"card": "{SECRET}"}}'),
    ("json", "card timestamp_ntz", f'{{"card": "{SECRET}"}}'),
    ("json", "card binary", f'{{"card": "?{SECRET}"}}'),
    ("json", "card decimal(5,2)", f'{{"card": "{SECRET}"}}'),
    ("json", "card decimal(5,2)", f'{{"card": {SECRET}}}'),
    ("json", "card decimal(5,2)", f'{{"card": "x{SECRET}"}}'),
    ("json", "card boolean", f'{{"card": "{SECRET}"}}'),
    ("json", "card array<int>", f'{{"card": ["{SECRET}"]}}'),
    ("json", "card array<int>", f'{{"card": {{"{SECRET}": 1}}}}'),
    ("json", "card map<string,int>", f'{{"card": {{"{SECRET}": "x"}}}}'),
    ("json", "card map<string,int>", f'{{"card": {{"x": "{SECRET}"}}}}'),
    ("json", "card map<string,int>", f'{{"card": {{"x": {SECRET}}}}}'),
    ("json", "card map<string,tinyint>", f'{{"card": {{"x": [{SECRET}]}}}}'),
    ("json", "card map<string,decimal(5,2)>", f'{{"card": {{"x": "x{SECRET}"}}}}'),
    ("json", "card map<string,decimal(5,2)>", f'{{"card": {{"x": {SECRET}}}}}'),
    ("json", "card map<string,date>", f'{{"card": {{"x": "{SECRET}"}}}}'),
    ("csv", "card string", f"{SECRET},{SECRET}"),
    ("csv", "card int", SECRET),
    ("csv", "card int, name string", SECRET),
    ("csv", "card boolean", SECRET),
    ("csv", "card date", SECRET),
    ("csv", "card decimal(5,2)", SECRET),
    ("csv", "card string", f"{SECRET}\n{SECRET}"),
    ("connect-json", "card int", SECRET),
    ("connect-json", "card int", f'{{"schema":{{"type":"{SECRET}"}},"payload":1}}'),
    ("connect-json", "card int", f'{{"schema":{{"type":"struct","fields":[{{"x":"{SECRET}"}}]}},"payload":1}}'),
    ("connect-json", "card int", f'{{"schema":"{SECRET}","payload":1}}'),
    ("connect-json", "card int", f'{{"schema":{{"type":"int32"}},"payload":{SECRET}}}'),
    ("connect-json", None, f'{{"card":{SECRET}}}'),
    ("avro", '{"type":"record","name":"R","fields":[{"name":"card","type":"string"}]}', SECRET),
    ("avro", '{"type":"bytes","logicalType":"decimal","precision":3}', "\x10" + SECRET[:8]),
]


@pytest.mark.cases(27)
@pytest.mark.parametrize(("name", "schema", "value"), READ, ids=range(len(READ)))
@pytest.mark.parametrize("column", ["key", "value"])
def test_an_error_of_a_read_shows_nothing_of_the_record(tmp_path, name, schema, value, column):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    row = {"key": b"k", "value": b"v"} | {column: value.encode("latin-1")}
    log.topic("orders").append([row])
    options = {f"{column}.format": name} | ({} if schema is None else {f"{column}.schema": schema})
    with pytest.raises(SegmentsError) as caught:
        list(log.topic("orders").scan(formats=options).batches())
    assert is_hidden(caught.value), shown(caught.value)


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "card": {"type": "string", "maxLength": 3},
        "kind": {"type": "string", "enum": ["a"]},
        "more": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
    },
    "additionalProperties": False,
    "required": ["card"],
}
PROTO = 'syntax = "proto3"; message Order { string card = 1; int32 n = 2; }'
REGISTERED = [
    ("jsonschema", json.dumps({"card": SECRET}).encode()),
    ("jsonschema", json.dumps({"card": "x", "kind": SECRET}).encode()),
    ("jsonschema", json.dumps({"card": "x", SECRET: 1}).encode()),
    ("jsonschema", json.dumps({"card": "x", "more": {SECRET: "xxxx"}}).encode()),
    ("jsonschema", json.dumps({"kind": SECRET}).encode()),
    ("jsonschema", SECRET.encode()),
    ("protobuf", b"\0" + SECRET.encode()),
    ("protobuf", b"\0\x0a\x14\xff\xff" + SECRET.encode()),
    ("protobuf", SECRET.encode()),
]


@pytest.mark.parametrize(("name", "value"), REGISTERED, ids=range(len(REGISTERED)))
def test_an_error_of_a_registered_schema_shows_nothing_of_the_record(tmp_path, name, value):
    kind, text = {"jsonschema": ("JSON", json.dumps(JSON_SCHEMA)), "protobuf": ("PROTOBUF", PROTO)}[name]
    open_registry(str(tmp_path)).register("orders-value", Schema(kind, text))
    options = {"value.format": name, "schema.registry": str(tmp_path)}
    if name == "jsonschema":
        options["json.fail.invalid.schema"] = "true"
    decoder = decoders(column_formats(options), "orders")[0]
    with pytest.raises(SegmentsError) as caught:
        decoder.decode(pa.array([b"\0\0\0\0\x01" + value], pa.binary()))
    assert is_hidden(caught.value), shown(caught.value)


WRITE = [
    ("short", None, pa.array([int(SECRET)])),
    ("int", None, pa.array([SECRET])),
    ("uuid", None, pa.array([SECRET])),
    ("json", None, pa.array([f"{{{SECRET}"])),
    ("json", "card tinyint", pa.array([{"card": int(SECRET)}])),
    ("json", "card tinyint", pa.array([{"card": SECRET}])),
    ("json", "card decimal(5,2)", pa.array([{"card": decimal.Decimal(SECRET)}])),
    ("csv", "card tinyint", pa.array([{"card": SECRET}])),
    ("connect-json", "card tinyint", pa.array([{"card": SECRET}])),
    ("connect-json", None, pa.array([datetime.datetime.fromtimestamp(int(SECRET) / 1e6, datetime.UTC)])),
    ("avro", '"int"', pa.array([int(SECRET)])),
    ("avro", '{"type":"enum","name":"E","symbols":["A"]}', pa.array([SECRET])),
    ("avro", '{"type":"fixed","name":"F","size":3}', pa.array([SECRET.encode()])),
    ("avro", '{"type":"fixed","name":"F","size":16,"logicalType":"uuid"}', pa.array([SECRET])),
]


@pytest.mark.parametrize(("name", "schema", "array"), WRITE, ids=range(len(WRITE)))
def test_an_error_of_a_write_shows_nothing_of_the_record(name, schema, array):
    options = {"value.format": name} | ({} if schema is None else {"value.schema": schema})
    with pytest.raises(SegmentsError) as caught:
        encoders(column_formats(options), "orders", {"value": array.type})[0].encode(array)
    assert is_hidden(caught.value), shown(caught.value)


ROWS: list[dict[str, Any]] = [
    {"value": int(SECRET)},
    {"key": SECRET},
    {"value": b"x", "partition": SECRET},
    {"value": b"x", "timestamp": SECRET},
    {"value": b"x", "headers": [{"name": SECRET}]},
    {"value": b"x", "headers": {SECRET: 7}},
    {"value": b"x", "headers": SECRET},
    {"value": b"x", "headers": {7: SECRET}},
    {"value": b"x", "partition": int(SECRET)},
    {"value": SECRET + "\ud800"},
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_rows_that_are_no_records_are_not_shown(tmp_path, row):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    with pytest.raises(SegmentsError) as caught:
        log.topic("orders").append([row])
    assert is_hidden(caught.value), shown(caught.value)


LINES = [
    ("json", (), f'{{"value": {SECRET}'),
    ("json", (), f'{{"value": "x"}}\n{{"key": "{SECRET}", "headers": [{{"key": "h", "value": null}}]}}'),
    ("json", (), f'{{"value": "{SECRET}", "partition": "x"}}'),
    ("json", (), f'{{"value": "x", "partition": {SECRET}}}'),
    ("json", (), f'{{"value": "x", "headers": [{{"{SECRET}": 1}}]}}'),
    ("json", (), f'{{"value_base64": "?{SECRET}"}}'),
    ("text", ("parse.key=true",), SECRET),
    ("text", ("parse.headers=true",), SECRET),
    ("text", ("parse.headers=true",), f"\xff{SECRET}:1\tx"),
]


@pytest.mark.parametrize(("form", "properties", "line"), LINES, ids=range(len(LINES)))
def test_lines_that_are_no_records_are_not_shown(tmp_path, form, properties, line):
    file = tmp_path / "lines"
    file.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(SegmentsError) as caught:
        list(Input.of([str(file)], Format(form), [], {}, Properties.of(properties)).batches(lambda done, total: None))
    assert is_hidden(caught.value), shown(caught.value)
