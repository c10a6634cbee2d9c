"""A table follows the columns of its topic, or names the column that it cannot follow."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError
from spark_segments.maintenance import compact, table
from verification.kills.table_rows import by_place, update

FIRST = "id int, name string, at struct<x:int>, tags array<int>, price decimal(6,2)"
NEXT = "id bigint, city string, name string, at struct<y:string,x:bigint>, tags array<bigint>, price decimal(8,3)"
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}


def formats(ddl: str) -> dict[str, str]:
    return {"value.format": "json", "value.schema": ddl}


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 2, CONFIG)
    return log


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "table")


def append(log: LogDir, *values: dict | None, key: str = "k", topic: str = "orders", **columns) -> None:
    rows = [{"key": f"{key}{number}", "value": value and json.dumps(value)} for number, value in enumerate(values)]
    log.topic(topic).append(pa.Table.from_pylist(rows, pa.schema([("key", pa.string()), ("value", pa.string())])))


def values(uri: str) -> list[dict | None]:
    """By place, as three readers have them."""
    found = DeltaTable(uri).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    rows = found["value"].to_pylist()
    frame = pl.scan_delta(uri).sort("partition", "offset").select("value").collect()
    assert frame["value"].to_list() == rows
    return rows


def readable(log: LogDir, ddl: str, view: str | None) -> list[dict]:
    columns = ["value", "partition", "offset"]
    scan = log.topic("orders").scan(columns=columns, view=view, include_tombstones=view is None, formats=formats(ddl))
    return [row["value"] for row in by_place(scan.to_table().to_pylist())]


@pytest.mark.cases(2)
@pytest.mark.parametrize("view", [None, "latest"])
@pytest.mark.parametrize("partition_by", [None, "day"])
def test_a_table_gets_the_fields_and_the_wider_types_of_its_topic(log, uri, view, partition_by):
    append(log, {"id": 1, "name": "a", "at": {"x": 1}, "tags": [1, 2], "price": 1.25}, None, {"id": 3})
    update(log, uri, view=view, formats=formats(FIRST), partition_by=partition_by)
    files = DeltaTable(uri).file_uris()
    append(log, {"id": 2**40, "city": "Ulm", "at": {"x": 2**40, "y": "z"}, "tags": [2**40], "price": 12345.678})
    said = update(log, uri, formats=formats(NEXT))
    assert "wider" in said["why"] and not set(files) & set(DeltaTable(uri).file_uris())
    both = "id bigint, name string, at struct<x:bigint,y:string>, tags array<bigint>, price decimal(8,3), city string"
    assert values(uri) == readable(log, both, view)
    append(log, {"id": 9, "name": "c", "city": "Bonn"})
    assert update(log, uri)["why"] is None  # the table remembers the newer schema
    assert values(uri) == readable(log, both, view)


def test_a_new_field_alone_leaves_the_files_as_they_are(log, uri):
    append(log, {"id": 1})
    update(log, uri, formats=formats("id int"))
    files = DeltaTable(uri).file_uris()
    append(log, {"id": 2, "name": "b"})
    update(log, uri, formats=formats("id int, name string"))
    assert set(files) < set(DeltaTable(uri).file_uris())
    assert values(uri) == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_options_under_which_a_field_of_the_table_is_not_read_are_refused(log, uri):
    append(log, {"id": 1, "at": {"x": 1, "y": "a"}})
    update(log, uri, formats=formats("id int, at struct<x:int,y:string>"))
    append(log, {"id": 2, "at": {"x": 2, "y": "b"}})
    for ddl, field in [("id int", "value.at"), ("id int, at struct<x:bigint>", "value.at.y")]:
        with pytest.raises(InvalidOptionError, match=f"a table with the field {field}"):
            table(log, topics=["orders"], table_uri=uri, formats=formats(ddl))
    update(log, uri)
    assert [value["at"]["y"] for value in values(uri)] == ["a", "b"]


def test_a_subject_that_gains_a_field_is_followed_without_a_word(log, uri, tmp_path):
    said = {"value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    log.topic("orders").append(pa.table({"key": ["a"], "value": [{"id": 1}]}), formats=said)
    log.maintain(table_uri=uri)  # there is none yet
    update(log, uri, formats=said)
    rows = pa.table({"key": ["b"], "value": pa.array([{"id": 2, "city": "Ulm"}])})
    fields = [
        {"name": name, "type": ["null", kind], "default": None} for name, kind in [("id", "long"), ("city", "string")]
    ]
    newer = json.dumps({"type": "record", "name": "Value", "fields": fields})
    log.topic("orders").append(rows, formats={**said, "value.schema": newer})
    reports = log.maintain(table_uri=uri)
    assert all(not report.failed for report in reports)
    assert sorted(values(uri), key=str) == [{"id": 1, "city": None}, {"id": 2, "city": "Ulm"}]


@pytest.mark.parametrize(
    ("before", "after", "column"),
    [
        ("id int", "id string", "value.id"),
        ("id string", "id int", "value.id"),
        ("at struct<x:int>", "at struct<x:boolean>", "value.at.x"),
        ("tags array<int>", "tags array<string>", "value.tags.element"),
        ("price decimal(38,0)", "price decimal(38,10)", "value.price"),
    ],
)
def test_a_column_that_cannot_be_followed_is_named(log, uri, before, after, column):
    update(log, uri, formats=formats(before))
    version = DeltaTable(uri).version()
    with pytest.raises(InvalidOptionError, match=f"column {column} cannot take what the topic has"):
        update(log, uri, formats=formats(after))
    assert DeltaTable(uri).version() == version
    update(log, uri)


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("id int, Id int", "value.Id: value.id differs in case alone"),
        ("id int, at struct<>", "value.at: it is a struct without fields"),
    ],
)
def test_a_column_that_no_table_can_have_is_named_and_no_table_is_made(log, uri, ddl, words):
    with pytest.raises(InvalidOptionError, match=words):
        update(log, uri, formats=formats(ddl))
    assert not Path(uri).exists()


def test_a_record_that_has_no_date_is_named_and_other_topics_go_on(log, tmp_path):
    log.create_topic("others")
    rows = {"value": ["a", "b"], "timestamp": pa.array([0, 1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))}
    log.topic("orders").append(pa.table({**rows, "key": ["a", "b"]}))
    log.topic("others").append(pa.table({"value": ["c"]}))
    report = table(log, table_uri=f"{tmp_path}/{{topic}}")
    [failed] = report.failed
    assert failed["topic"] == "orders" and "outside the years 1 to 9999" in failed["error"]
    [(partition, offset)] = [
        (row["partition"], row["offset"])
        for row in log.topic("orders").scan(columns=["partition", "offset", "value"]).to_table().to_pylist()
        if row["value"] == b"b"
    ]
    assert f"topic orders, partition {partition}, offset {offset}" in failed["error"]
    assert not (tmp_path / "orders").exists()
    assert DeltaTable(str(tmp_path / "others")).to_pyarrow_table()["value"].to_pylist() == [b"c"]


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_a_record_that_has_no_date_is_null_where_the_table_was_told_so(log, uri, partition_by):
    times = pa.array([0, 1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    log.topic("orders").append(pa.table({"value": ["a", "b"], "key": ["k", "k"], "timestamp": times}))
    options = {"partition_by": partition_by, "formats": {"timestamp.errors": "null"}}
    (warning,) = table(log, topics=["orders"], table_uri=uri, **options).warnings
    assert "the timestamps of 1 records are outside" in warning
    log.topic("orders").append(pa.table({"value": ["c"], "key": ["k"], "timestamp": times[1:]}))
    assert "of 1 records" in table(log, topics=["orders"], table_uri=uri).warnings[0]  # the table keeps the option
    rows = DeltaTable(uri).to_pyarrow_table(columns=["value", "timestamp"]).to_pylist()
    assert sorted((row["value"], row["timestamp"] is None) for row in rows) == [
        (b"a", False),
        (b"b", True),
        (b"c", True),
    ]


def test_a_table_that_stopped_at_a_record_without_a_date_goes_on_and_keeps_the_option(log, uri):
    append(log, {"id": 1})
    update(log, uri)
    times = pa.array([1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    log.topic("orders").append(pa.table({"value": ["b"], "key": ["k"], "timestamp": times}))
    (line,) = table(log, topics=["orders"], table_uri=uri).failed
    assert "timestamp.errors=null" in line["error"]
    update(log, uri, formats={"timestamp.errors": "null"})
    log.topic("orders").append(pa.table({"value": ["c"], "key": ["k"], "timestamp": times}))
    update(log, uri)
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 3
    with pytest.raises(InvalidOptionError, match=r"timestamp\.errors"):
        table(log, topics=["orders"], table_uri=uri, formats={"timestamp.errors": "ignore"})


def test_an_archive_keeps_what_left_the_topic_when_its_types_get_wider(log, uri):
    append(log, {"id": 1}, {"id": 2})
    update(log, uri, archive=True, formats=formats("id int"))
    append(log, {"id": 3}, {"id": 4})
    log.topic("orders").alter({"segment.ms": "1"})
    log.maintain()
    compact(log, force=True)
    append(log, {"id": 2**40})
    update(log, uri, formats=formats("id bigint"))
    found = sorted(row["id"] for row in values(uri))
    assert {1, 2, 2**40} <= set(found)


def test_day_of_every_row_is_that_of_its_timestamp(log, uri):
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    rows = {"key": ["a"], "value": ['{"id": 1}'], "timestamp": pa.array([at], pa.timestamp("us", "UTC"))}
    log.topic("orders").append(pa.table(rows))
    update(log, uri, partition_by="day", formats=formats("id int"))
    update(log, uri, formats=formats("id bigint"))
    assert DeltaTable(uri).to_pyarrow_table()["day"].to_pylist() == [dt.date(2026, 1, 2)]
