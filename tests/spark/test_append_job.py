"""jobs/append.py: files into a topic."""

from __future__ import annotations

import datetime
import json
import os
import runpy
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_segments import LogDir
from spark_segments.cli.records.append import ends_after
from spark_segments.errors import InvalidOptionError, LogDirError, StorageError
from spark_segments.spark.delta_input import delta_packages, read_delta
from spark_segments.spark.frames import as_records
from tests.conftest import ROOT
from tests.log.played_log import Play

SCRIPT = str(ROOT / "jobs" / "segments.py")
ORDERS = [
    {"id": 7, "item": "a", "at": 1_700_000_000_000},
    {"id": 8, "item": None, "at": 1_700_000_001_000},
]


@pytest.fixture
def orders_json(tmp_path):
    path = tmp_path / "orders.json"
    path.write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    return str(path)


@pytest.fixture
def append(spark, monkeypatch, capsys):
    """Runs the script with this process's session and returns its report."""

    def run(*arguments):
        monkeypatch.setattr(
            sys, "argv", [SCRIPT, "append", *map(str, arguments), "--master", "local[2]", "--output", "json"]
        )
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(SCRIPT, run_name="__main__")
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return json.loads(printed.out)

    return run


def records(log, topic="orders"):
    """(partition, key, value) of all records, sorted."""
    rows = [row for batch in log.read(topic) for row in batch.to_pylist()]
    return sorted(((row["partition"], row["key"], row["value"]) for row in rows), key=str)


def test_json_lines_become_records_in_a_topic_that_is_made(append, tmp_path, orders_json):
    uri = tmp_path / "log"
    columns = ["--key-column", "id", "--timestamp-column", "at"]
    topic = ["--partitions", "2", "--config", "retention.ms=-1"]
    report = append(uri, "orders", "--input", orders_json, *columns, *topic)
    log = LogDir.open(str(uri))
    rows = [row for batch in log.read("orders") for row in batch.to_pylist()]
    assert sorted((row["key"], json.loads(row["value"])) for row in rows) == [
        (b"7", {"id": 7, "item": "a", "at": 1_700_000_000_000}),
        (b"8", {"id": 8, "at": 1_700_000_001_000}),
    ]
    assert {row["timestamp"].timestamp() for row in rows} == {1_700_000_000, 1_700_000_001}
    assert log.config("orders").retention_ms == -1
    assert report["job"] == "append" and report["topic"] == "orders"
    assert [line["partition"] for line in report["partitions"]] == [0, 1]
    assert sum(line["log_end_offset"] - line["log_end_offset_before"] for line in report["partitions"]) == 2


def test_a_repeated_run_adds_nothing(append, log, orders_json):
    log.create_topic("orders")
    arguments = (log.uri, "orders", "--input", orders_json, "--txn-app-id", "landing", "--txn-version", "1")
    assert append(*arguments)["partitions"][0]["log_end_offset"] == 2
    assert append(*arguments)["partitions"][0] == {"partition": 0, "log_end_offset_before": 2, "log_end_offset": 2}


def test_a_run_without_rows_counts_as_a_run(append, log, tmp_path, orders_json):
    log.create_topic("orders")
    (tmp_path / "empty.json").write_text("")
    transaction = ("--txn-app-id", "landing", "--txn-version", "1")
    append(log.uri, "orders", "--input", tmp_path / "empty.json", "--schema", "id long", *transaction)
    append(log.uri, "orders", "--input", orders_json, *transaction)
    assert log.offsets("orders") == {0: (0, 0)}
    append(log.uri, "orders", "--input", orders_json, *transaction[:-1], "2")
    assert log.offsets("orders") == {0: (0, 2)}


def test_csv_with_columns_to_choose_from(append, log, tmp_path):
    log.create_topic("orders", partitions=3)
    (tmp_path / "orders.csv").write_text("id;item;target\n1;apple;2\n2;;0\n")
    csv = ["--input", tmp_path / "orders.csv", "--format", "csv", "--option", "header=true", "--option", "sep=;"]
    columns = ["--key-column", "id", "--value-column", "item", "--partition-column", "target"]
    append(log.uri, "orders", *csv, *columns)
    assert records(log) == [(0, b"2", None), (2, b"1", b"apple")]


def test_lines_of_text_are_values(append, log, tmp_path):
    log.create_topic("orders")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    append(log.uri, "orders", "--input", tmp_path / "a.txt", "--input", tmp_path / "b.txt", "--format", "text")
    assert sorted(value for _, _, value in records(log)) == [b"one", b"three", b"two"]


def test_parquet_of_a_topic_read_before_becomes_the_same_records(append, spark, log, tmp_path):
    log.create_topic("orders", partitions=2)
    log.create_topic("copy", partitions=2)
    frame = spark.range(100).selectExpr(
        "concat('k', id) as key", "concat('v', id) as value", "timestamp_millis(1700000000000 + id) as timestamp"
    )
    frame.write.format("segments").mode("append").option("topic", "orders").save(log.uri)
    read = spark.read.format("segments").options(subscribe="orders", includeHeaders="true").load(log.uri)
    read.write.parquet(str(tmp_path / "parquet"))
    append(log.uri, "copy", "--input", tmp_path / "parquet", "--format", "parquet")
    assert records(log, "copy") == records(log, "orders")


def test_a_delta_table_is_appended_without_deltas_jar(append, log, tmp_path):
    """Partitioned, of several files and versions, with removed rows: deltalake's own reader says what is in it."""
    table, log_dir = str(tmp_path / "table"), log.uri
    log.create_topic("orders", partitions=2)
    for day in range(3):
        rows = {"id": list(range(day * 10, day * 10 + 10)), "item": [f"i{day}"] * 9 + [None], "day": [day] * 10}
        write_deltalake(table, pa.table(rows), mode="append", partition_by=["day"])
    DeltaTable(table).delete("id >= 25")
    columns = ["--key-column", "id", "--input", table, "--format", "delta"]
    append(log_dir, "orders", *columns)
    expected = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len(expected) == 25
    found = [json.loads(row["value"]) for batch in log.read("orders") for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == sorted(
        ({name: value for name, value in row.items() if value is not None} for row in expected),
        key=lambda row: row["id"],
    )

    log.create_topic("earlier")
    append(log_dir, "earlier", *columns, "--option", "versionAsOf=1")
    assert log.offsets("earlier") == {0: (0, 20)}


def test_a_delta_table_of_records_keeps_bytes_and_times(append, log, tmp_path):
    log.create_topic("orders")
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, datetime.UTC)
    rows = pa.table({"key": [b"k\xff"], "value": [b"\x00v"], "timestamp": pa.array([at], pa.timestamp("us", tz="UTC"))})
    write_deltalake(str(tmp_path / "table"), rows)
    append(log.uri, "orders", "--input", tmp_path / "table", "--format", "delta")
    [row] = [row for batch in log.read("orders") for row in batch.to_pylist()]
    assert (row["key"], row["value"], row["timestamp"]) == (b"k\xff", b"\x00v", at)


@pytest.mark.parametrize("options", [{}, {"versionAsOf": "7"}])
def test_a_delta_table_that_cannot_be_read_says_what_to_do(spark, tmp_path, options):
    if options:
        write_deltalake(str(tmp_path / "table"), pa.table({"id": [1]}))
    with pytest.raises(LogDirError, match=r"The Delta table cannot be read.*--packages io\.delta"):
        read_delta(spark, [str(tmp_path / "table")], options)


def test_packages_that_the_user_names_are_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages org.example:own:1\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert delta_packages("local[2]") == {}
    assert delta_packages("sc://server") == {}


def test_a_column_that_is_not_there_is_one_clear_error(spark):
    frame = spark.range(1).toDF("id")
    with pytest.raises(InvalidOptionError, match="no column key_ for the key: expected one of id"):
        as_records(frame, key_column="key_")
    with pytest.raises(InvalidOptionError, match="cannot be a timestamp"):
        as_records(spark.sql("select array(1) as at"), timestamp_column="at")


def test_values_of_any_type_become_bytes_or_text(spark):
    frame = spark.sql("select 1.5D as number, array(1, 2) as list, x'00ff' as raw, '2024-05-06T07:08:09Z' as at")
    assert as_records(frame, value_column="number", key_column="list").head().asDict() == {
        "value": "1.5",
        "key": "[1,2]",
    }
    row = as_records(frame, value_column="raw", timestamp_column="at").head()
    assert bytes(row.value) == b"\x00\xff"
    assert row.timestamp.astimezone(datetime.UTC) == datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    assert json.loads(as_records(spark.sql("select 2 as value, 3 as key")).head().value) == {"value": 2, "key": 3}


def test_a_report_that_cannot_be_made_does_not_ask_for_a_second_append(log, capsys):
    play = Play()
    log.create_topic("orders", partitions=2)

    def down(topic, go):
        raise StorageError("the network is down", hint="Run it again: nothing was committed")

    play.always("open", down)
    assert ends_after(LogDir(log.storage, open_delta_log=play), "orders", {0: 5, 1: 6}) == {0: None, 1: None}
    assert (
        capsys.readouterr().err
        == "warning: the rows are in orders, but its offsets cannot be read: the network is down\n"
    )


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_runs_it_on_executors_of_their_own(log, orders_json, python_environment):
    submit = os.path.join(os.path.dirname(sys.executable), "spark-submit")
    command = [
        submit,
        "--master",
        "local-cluster[2,1,1024]",
        "--conf",
        "spark.ui.enabled=false",
        SCRIPT,
        "append",
        log.uri,
        "orders",
    ]
    command += ["--input", orders_json, "--value-column", "item", "--partitions", "1", "--output", "json"]
    done = subprocess.run(command, env=python_environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = done.stdout.splitlines()[-1]  # spark-submit puts what Python prints on its stderr before it
    assert json.loads(report)["partitions"][0]["log_end_offset"] == 2
    assert [value for _, _, value in records(log)] == [None, b"a"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_topic_that_is_not_there_is_an_error_in_one_line(log, orders_json, python_environment):
    command = [sys.executable, SCRIPT, "append", log.uri, "orders", "--input", orders_json]
    done = subprocess.run(command, env=python_environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Unknown topic 'orders'")
