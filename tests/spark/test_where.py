"""Option where of the Spark reader: the rows are those that a filter of a full read leaves."""

from __future__ import annotations

import json

import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from spark_segments.keys.job import index
from spark_segments.spark.options import read_options, stream_options

JSON = {"value.format": "json", "value.schema": "id bigint, price decimal(6,2)"}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Topics with indexes on a header and a field, and without."""
    log = LogDir.create(str(tmp_path_factory.mktemp("where")))
    for name in ("indexed", "bare"):
        log.create_topic(name, 2)
        rows = [
            {
                "key": f"k{number % 4}",
                "value": json.dumps({"id": number % 6, "price": f"{number % 6}.50"}) if number % 7 else "{",
                "headers": [("trace", b"%d" % (number % 5)), ("trace", b"\xff")] if number % 2 else [],
            }
            for number in range(60)
        ]
        log.topic(name).append(rows)
    index(log, topics=["indexed"], on=["header.trace", "value.id"], formats=JSON)
    log.topic("indexed").append([{"key": "k1", "value": '{"id": 3}', "headers": [("trace", b"3")]}])
    return log


def places(frame):
    return sorted(
        (row.topic, row.partition, row.offset) for row in frame.select("topic", "partition", "offset").collect()
    )


@pytest.mark.parametrize("options", [{}, {"view": "latest"}, {"minPartitions": "4"}])
def test_the_records_of_fields_are_those_of_a_filter(spark, log, options):
    reader = spark.read.format("segments").options(subscribe="indexed,bare", includeHeaders="true", **options)
    rows = reader.load(log.uri).collect()

    def has_trace(row, *values):
        return any(header.key == "trace" and bytes(header.value) in values for header in row.headers or ())

    def has_id(row, value):
        return bytes(row.value) != b"{" and json.loads(row.value)["id"] == value

    for where, has in [
        ({"header.trace": "3"}, lambda row: has_trace(row, b"3")),
        ({"header.trace": ["1", {"base64": "/w=="}]}, lambda row: has_trace(row, b"1", b"\xff")),
        ({"value.id": 3}, lambda row: has_id(row, 3)),
        ({"value.id": ["3"], "header.trace": "3"}, lambda row: has_id(row, 3) and has_trace(row, b"3")),
        ({"value.price": 3.5}, lambda row: has_id(row, 3) and b"price" in bytes(row.value)),
        ({"header.trace": []}, lambda row: False),
    ]:
        found = places(reader.options(where=json.dumps(where), **JSON | {"value.errors": "null"}).load(log.uri))
        assert found == sorted((row.topic, row.partition, row.offset) for row in rows if has(row)), where


def test_what_is_no_object_of_fields_is_refused():
    options = {"path": "log", "subscribe": "t", "where": '{"header.a": "b"}'}
    assert read_options(options).where == {"header.a": ("b",)}
    with pytest.raises(InvalidOptionError, match="where is not valid in streams"):
        stream_options(options)
    twice = '{"header.a": "b", "header.a": "c"}'
    for text in ("[]", '{"header.a": null}', '{"header.a": {"base64": "?"}}', "{", twice):
        with pytest.raises(InvalidOptionError, match="Option where cannot be used"):
            read_options(options | {"where": text})


def test_an_empty_list_of_keys_is_not_the_absence_of_one():
    options = {"path": "log", "subscribe": "t"}
    assert read_options(options).keys is None and read_options(options | {"keys": "[]"}).keys == ()


def test_an_empty_option_is_an_absent_one():
    options = {"path": "log", "subscribe": "t", "where": ""}
    assert read_options(options).where == {}
