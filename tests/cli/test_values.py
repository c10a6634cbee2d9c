"""`segments append` and `consume` with formats, and what `consume` guesses."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from spark_segments import LogDir
from tests.cli.conftest import Segments
from tests.values.registry_server import RegistryServer


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    LogDir.create(uri).create_topic("orders")
    return uri


@pytest.fixture
def avro(segments: Segments, uri: str, tmp_path: Path) -> list[str]:
    """A topic of two Avro records with keys that are longs; the arguments that read them."""
    registry = ["--schema-registry", str(tmp_path / "registry")]
    segments(
        *("append", uri, "orders", "--property", "parse.key=true", "--key-format", "long", "--value-format", "avro"),
        *("--value-schema", "id bigint, name string", *registry),
        stdin=b'7\t{"id": 7, "name": "Ann"}\n8\t{"id": 8}\n',
    )
    return registry


def test_text_is_written_in_a_format_and_read_back(segments, uri, avro):
    arguments = ["--key-format", "long", "--value-format", "avro", "--property", "print.key=true", *avro]
    ran = segments("consume", uri, "orders", *arguments)
    assert ran.lines == ['7\t{"id":7,"name":"Ann"}', '8\t{"id":8,"name":null}']
    assert ran.error == ""


def test_json_output_has_typed_values_and_can_be_appended(segments, uri, avro):
    formats = ["--key-format", "long", "--value-format", "avro", *avro]
    ran = segments("consume", uri, "orders", "--output", "json", *formats)
    assert [(row["key"], row["value"]) for row in map(json.loads, ran.lines)] == [
        (7, {"id": 7, "name": "Ann"}),
        (8, {"id": 8, "name": None}),
    ]
    LogDir.open(uri).create_topic("copy")
    formats += ["--property", "value.subject=orders-value"]
    segments("append", uri, "copy", "--format", "json", "--value-column", "value", *formats, stdin=ran.output)
    again = segments("consume", uri, "copy", "--output", "json", *formats).lines
    assert [json.loads(line)["value"] for line in again] == [json.loads(line)["value"] for line in ran.lines]


def test_consume_guesses_and_says_what_it_guessed(segments, uri, avro):
    ran = segments("consume", uri, "orders", "--property", "print.key=true", *avro)
    assert ran.lines == ['7\t{"id":7,"name":"Ann"}', '8\t{"id":8,"name":null}']
    assert "keys look like 8 bytes, such as a long or a double has: read as long" in ran.error
    assert "values look like Confluent's wire format, schema id 1: read as avro" in ran.error


def test_json_output_without_formats_is_a_copy_of_the_bytes(segments, uri):
    log = LogDir.open(uri)
    log.topic("orders").append(_values([b"\0\0\0\x07"], [b"\0\0\0\0\0\0\0\x05"]))
    log.create_topic("copy")
    ran = segments("consume", uri, "orders", "--output", "json")
    segments("append", uri, "copy", "--format", "json", stdin=ran.output)
    first, second = (
        log.topic(name).scan(columns=["key", "value"]).to_table().to_pylist() for name in ("orders", "copy")
    )
    assert first == second and ran.error == ""


def test_a_guess_holds_for_a_template_and_for_a_reader_that_follows(segments, uri, avro):
    for more in ([], ["--follow"], ["--tail", "2"]):
        ran = segments("consume", uri, "orders", "-f", "%k %s\\n", "-n", 2, *more, *avro)
        assert ran.lines == ['7 {"id":7,"name":"Ann"}', '8 {"id":8,"name":null}']
        assert "keys look like 8 bytes, such as a long or a double has: read as long" in ran.error
        assert "values look like Confluent's wire format, schema id 1: read as avro" in ran.error


def test_consume_says_what_is_missing_to_read_a_value(segments, uri, avro):
    ran = segments("consume", uri, "orders")
    assert "Confluent's wire format, schema id 1. Set --schema-registry" in ran.error
    assert ran.output.startswith(b"\0\0\0\0\x01")


def test_a_guess_never_hides_what_is_something_else(segments, uri):
    log = LogDir.open(uri)
    log.topic("orders").append(_values([b"\0\0\0\0\0\0\0\x07", b"neither", None]))
    log.topic("orders").append(_values([b"\0\0\0\0\0\0\0\x08", b"\xff"]))
    first = segments("consume", uri, "orders")
    assert first.output == b"\0\0\0\0\0\0\0\x07\nneither\nnull\n\0\0\0\0\0\0\0\x08\n\xff\n"  # they differ: no guess
    log.create_topic("numbers")
    log.topic("numbers").append(_values([b"\0\0\0\0\0\0\0\x07"] * 200 + [b"\xff"]))
    assert segments("consume", uri, "numbers").output == b"7\n" * 200 + b"\xff\n"
    assert segments("consume", uri, "numbers", "--value-format", "binary", "-n", 1).error == ""


def test_text_and_json_are_printed_as_they_are(segments, uri):
    segments("append", uri, "orders", stdin=b'{"id": 1}\nplain\n')
    ran = segments("consume", uri, "orders")
    assert (ran.lines, ran.error) == (['{"id": 1}', "plain"], "")


def test_the_topic_of_schemas_is_used_where_it_is_there(segments, uri):
    server = RegistryServer()
    server.register("orders-value", {"schema": '"string"'})
    log = LogDir.open(uri)
    log.create_topic("_schemas")
    keys, values = zip(*server.records, strict=True)
    log.topic("_schemas").append(_values(list(values), list(keys)))
    log.topic("orders").append(_values([b"\0\0\0\0\x01\x04hi"]))
    ran = segments("consume", uri, "orders")
    assert ran.lines == ["hi"]
    assert "read as avro" in ran.error


def test_a_wrong_format_says_what_was_found_and_what_to_set(run, uri, avro):
    ran = run("consume", uri, "orders", "--value-format", "json", "--value-schema", "id bigint")
    assert ran.code == 1
    for part in ("schema id 1", "read as json", "partition 0, offset 0", "Set value.format=avro"):
        assert part in ran.error
    ran = run("consume", uri, "orders", "--value-format", "json", "--value-schema", "id bigint", *avro)
    assert "found Confluent Avro, schema id 1" in ran.error


def test_a_line_that_is_not_of_the_format_appends_nothing(run, uri, tmp_path):
    ran = run("append", uri, "orders", "--value-format", "long", stdin=b"7\nseven\n")
    assert ran.code == 1
    assert "row 1 of its batch: found text that is no int64" in ran.error and "seven" not in ran.error
    assert LogDir.open(uri).topic("orders").offsets() == {0: (0, 0)}


def _values(values: list[bytes | None], keys: list[bytes] | None = None) -> object:
    import pyarrow as pa

    columns = {"value": pa.array(values, pa.binary())}
    return pa.table(columns if keys is None else columns | {"key": pa.array(keys, pa.binary())})


_MOMENT = datetime.datetime(1950, 5, 6, 7, 8, 9, 123456)
_BORN = {
    "day": ("int", "date", _MOMENT.date()),
    "at_ms": ("long", "timestamp-millis", _MOMENT.replace(microsecond=123000, tzinfo=datetime.UTC)),
    "at_us": ("long", "timestamp-micros", _MOMENT.replace(tzinfo=datetime.UTC)),
    "local_ms": ("long", "local-timestamp-millis", _MOMENT.replace(microsecond=123000)),
    "time": ("int", "time-millis", datetime.time(7, 8, 9, 123000)),
}


@pytest.mark.parametrize("form", ["lines", "rows"])
def test_dates_and_times_before_1970_are_printed_and_taken_back(segments, uri, form):
    fields = [
        {"name": name, "type": {"type": kind, "logicalType": logical}} for name, (kind, logical, _) in _BORN.items()
    ]
    schema = json.dumps({"type": "record", "name": "Person", "fields": fields})
    formats = {"value.format": "avro", "value.schema": schema}
    log = LogDir.open(uri)
    for topic in ("born", "copy"):
        log.create_topic(topic)
    log.topic("born").append([{"value": {name: moment for name, (_, _, moment) in _BORN.items()}}], formats=formats)
    options = ["--value-format", "avro", "--value-schema", schema]
    shown = segments("consume", uri, "born", *options).output
    assert b'"at_us":"1950-05-06T07:08:09.123456Z"' in shown
    segments("append", uri, "copy", *options, *(["--format", "json"] if form == "rows" else []), stdin=shown)
    copy, born = (log.topic(topic).scan().to_table()["value"] for topic in ("copy", "born"))
    assert copy == born
