"""Iceberg tables: what is Iceberg's alone. What tables of both formats do is in test_table.py."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.transforms import DayTransform
from pyiceberg.types import StringType
from pyiceberg.utils.config import Config

from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.lake.iceberg_table import IcebergTable, IcebergTables
from spark_segments.lake.table_format import TableSettings
from spark_segments.lake.table_plan import Reason
from spark_segments.maintenance import erase, table
from spark_segments.storage import Storage
from verification.kills.table_histories import rewrite
from verification.kills.table_rows import COLUMNS, content, failure, iceberg_table, readable, update, with_orders
from verification.world.topics import append

DAY_MS = 24 * 3_600_000


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "iceberg" / "table")


@pytest.fixture
def orders(log):
    return with_orders(log)


def test_days_are_partitions_and_columns_follow_the_topic(log, uri):
    log.create_topic("orders")
    times = pa.array([0, DAY_MS, None], pa.timestamp("ms", "UTC"))
    append(log, (b"1", b'{"n": 1}'), (b"2", b'{"n": 2}'), timestamp=times[:2])
    update(log, uri, formats={"value.format": "json", "value.schema": "n int"}, partition_by="day")
    append(log, (b"3", b'{"n": 5000000000, "m": "x"}'), timestamp=times[1:2])
    update(log, uri, formats={"value.format": "json", "value.schema": "n bigint, m string"})
    there = iceberg_table(uri)
    assert [field.name for field in there.spec().fields] == ["timestamp_day"]
    assert [file.file.partition[0] for file in there.scan("timestamp < '1970-01-02T00:00:00+00:00'").plan_files()] == [
        0
    ]
    rows = there.scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["value"] for row in rows] == [
        {"n": 1, "m": None}, {"n": 2, "m": None}, {"n": 5_000_000_000, "m": "x"},
    ]  # fmt: skip
    ids = {field.name: field.field_id for field in there.schema().fields}
    for file in there.scan().plan_files():  # names are by id, in each file
        columns = pq.read_schema(file.file.file_path)
        assert {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in columns} == ids


def test_a_type_that_iceberg_has_no_way_to_is_an_error_that_names_the_column(log, uri):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1}'))
    update(log, uri, formats={"value.format": "json", "value.schema": "n smallint"})  # int, in Iceberg
    with pytest.raises(InvalidOptionError, match=r"n: int -> double"):
        table(log, topics=["orders"], table_uri=uri, formats={"value.schema": "n double"})
    assert content(uri)[0]["value"] == {"n": 1}


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("n int, at timestamp_ntz", r"value.at: its type is timestamp\[us\]"),
        ("n int, at struct<>", "value.at: it is a struct without fields"),
        ("n int, N int", "value.N: value.n differs in case alone"),
    ],
)
def test_a_new_column_that_no_table_can_have_is_an_error_that_names_column_and_table(log, uri, ddl, words):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1}'))
    update(log, uri, formats={"value.format": "json", "value.schema": "n int"})
    with pytest.raises(InvalidOptionError, match=f"{words}.*(?s:.*){uri}"):
        table(log, topics=["orders"], table_uri=uri, formats={"value.schema": ddl})
    assert content(uri)[0]["value"] == {"n": 1}


def test_a_table_is_in_the_catalog_that_is_named(orders, tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__HOUSE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__HOUSE__URI", f"sqlite:///{tmp_path}/house.sqlite")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    uri = str(tmp_path / "sales" / "orders")
    report = table(orders, topics=["orders"], table_uri=uri, catalog="house")
    assert not report.failed
    append(orders, (b"d", b"1"))
    orders.maintain(table_uri=str(tmp_path / "sales" / "{topic}"), catalog="house")
    assert load_catalog("house").load_table("sales.orders").scan().count() == 4
    assert not (tmp_path / "sales" / "iceberg.sqlite").exists()


def test_a_lost_reply_neither_doubles_nor_skips(orders, uri, monkeypatch):
    update(orders, uri)
    append(orders, (b"d", b"1"))
    real = SqlCatalog.commit_table

    def lost(*arguments):
        real(*arguments)
        monkeypatch.undo()
        raise CommitStateUnknownException("gone")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    assert update(orders, uri)["version"] == 2
    assert content(uri) == readable(orders)


def test_a_catalog_that_fails_shows_none_of_its_configuration(orders, uri, monkeypatch):
    update(orders, uri)
    append(orders, (b"d", b"1"))

    def fails(self, *_):
        raise OSError(f"no way to {self.properties['uri']}")

    monkeypatch.setattr(SqlCatalog, "commit_table", fails)
    text = failure(orders, uri)
    assert "OSError: no way to ***" in text and "sqlite:" not in text
    monkeypatch.undo()
    update(orders, uri)
    assert content(uri) == readable(orders)


def expire(uri, metadata=True):
    """Expires all snapshots but the last, with pyiceberg, which takes the id of an expired parent, too. Without
    `metadata` the table's earlier metadata files are deleted.
    """
    there = iceberg_table(uri)
    there.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in there.snapshots()[:-1]]).commit()
    for entry in [] if metadata else there.metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink(missing_ok=True)


def test_maintenance_by_others_leaves_an_archive_in_step(orders, uri):
    update(orders, uri, archive=True)
    for _ in range(2):
        rewrite(uri)
    expire(uri)
    (last,) = iceberg_table(uri).snapshots()
    assert last.parent_snapshot_id is None and "segments.position" not in last.summary.additional_properties
    append(orders, (b"d", b"1"))
    assert update(orders, uri)["why"] is None
    assert content(uri) == readable(orders)


def test_a_run_with_nothing_to_add_says_the_positions_where_the_newest_snapshot_does_not(orders, uri):
    update(orders, uri, archive=True)
    rewrite(uri)
    version = update(orders, uri)["version"]
    assert update(orders, uri)["version"] == version == 3
    expire(uri, metadata=False)
    append(orders, (b"d", b"1"))
    assert update(orders, uri)["why"] is None
    assert content(uri) == readable(orders)


def test_a_rollback_stays_one_after_others_have_rewritten_and_expired(orders, uri):
    update(orders, uri, archive=True)
    first = iceberg_table(uri).current_snapshot().snapshot_id
    append(orders, (b"d", b"1"))
    update(orders, uri)
    iceberg_table(uri).manage_snapshots().rollback_to_snapshot(first).commit()
    rewrite(uri)
    expire(uri)
    assert len(content(uri)) == 3
    update(orders, uri)
    assert content(uri) == readable(orders) and len(content(uri)) == 4


def test_a_key_that_was_erased_is_forgotten_after_others_have_expired_the_snapshots_of_before(orders, uri):
    update(orders, uri, archive=True)
    for key in (b"a", b"b"):
        erase(orders, topics=["orders"], keys=[key])
    update(orders, uri, keys=[b"a"])
    expire(uri)
    update(orders, uri, keys=[b"b"])
    assert [row["key"] for row in content(uri) if row["value"] is not None] == [b"c"]  # a and b have tombstones


def test_a_table_whose_positions_are_gone_is_rebuilt(orders, uri):
    update(orders, uri)
    rewrite(uri)
    expire(uri, metadata=False)
    append(orders, (b"d", b"1"))
    assert update(orders, uri)["why"] == Reason.NO_POSITION
    assert content(uri) == readable(orders)


def test_a_first_snapshot_of_another_program_is_no_hindrance(orders, uri):
    schema = IcebergTables().fitting(orders.topic("orders").scan(columns=COLUMNS).schema)
    IcebergTables().create(Storage(uri), schema, None, TableSettings("orders"))
    iceberg_table(uri).append(iceberg_table(uri).scan().to_arrow())
    assert [*IcebergTables().open(Storage(uri)).positions()] == []
    update(orders, uri, formats={})
    assert content(uri) == readable(orders)


def test_a_table_that_was_rolled_back_gets_what_came_after(orders, uri):
    update(orders, uri)
    first = iceberg_table(uri).current_snapshot().snapshot_id
    append(orders, (b"d", b"1"))
    update(orders, uri)
    iceberg_table(uri).manage_snapshots().rollback_to_snapshot(first).commit()
    assert len(content(uri)) == 3
    assert update(orders, uri)["why"] is None
    assert content(uri) == readable(orders)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "change",
    [
        lambda there: there.delete("offset = 1"),
        lambda there: there.append(there.scan().to_arrow()),
        lambda there: there.overwrite(there.scan().to_arrow().slice(1)),
    ],
    ids=["delete", "append", "overwrite"],
)
def test_rows_that_others_changed_are_an_error_until_the_table_is_rolled_back(orders, uri, change):
    update(orders, uri)
    ours = iceberg_table(uri).current_snapshot().snapshot_id
    change(iceberg_table(uri))
    assert f"Roll the table back to snapshot {ours}" in failure(orders, uri)
    iceberg_table(uri).manage_snapshots().rollback_to_snapshot(ours).commit()
    append(orders, (b"d", b"1"))
    update(orders, uri)
    assert content(uri) == readable(orders)


def test_a_table_of_the_other_format_is_left_alone(orders, tmp_path, uri):
    delta = str(tmp_path / "table")
    update(orders, delta)
    update(orders, uri)
    for place, other in ((delta, "iceberg"), (uri, "delta")):
        with pytest.raises(InvalidOptionError, match="another one"):
            table(orders, topics=["orders"], table_uri=place, table_format=other)
    assert DeltaTable(delta).version() == 1
    for wrong in ({"table_format": "hudi"}, {"table_format": "delta", "catalog": "house"}):
        with pytest.raises(InvalidOptionError, match="table_format"):
            table(orders, topics=["orders"], table_uri=uri, **wrong)


def test_a_table_in_an_object_store_needs_a_catalog(orders):
    with pytest.raises(InvalidOptionError, match="needs a catalog"):
        table(orders, topics=["orders"], table_uri="s3://none/orders", table_options={}, table_format="iceberg")


def test_a_file_outside_the_table_is_an_error_that_names_it(orders, uri, tmp_path):
    update(orders, uri)
    there = IcebergTables().open(Storage(uri))
    assert isinstance(there, IcebergTable) and len(there.files()) == 1
    with pytest.raises(LogDirError, match="outside"):
        there._path(str(tmp_path / "other" / "file.parquet"))


def test_bounds_and_days_of_files_are_read_as_they_were_written(log, uri):
    log.create_topic("orders")
    append(log, (b"1", b"x"), (b"2", b"y"), timestamp=pa.array([DAY_MS, DAY_MS + 5], pa.timestamp("ms", "UTC")))
    update(log, uri, partition_by="day")
    (file,) = IcebergTables().open(Storage(uri)).files()
    assert (file.day, file.rows) == (str(dt.date(1970, 1, 2)), 2)
    assert file.bounds == {"partition": (0, 0), "offset": (0, 1)}


@pytest.mark.proof
def test_commands_of_a_process_keep_a_table_in_step(orders, uri, python_environment):
    def segments(*words):
        command = [sys.executable, "-m", "spark_segments", *words]
        subprocess.run(command, env=python_environment, check=True, capture_output=True)

    segments("table", orders.uri, "orders", uri, "--table-format", "iceberg")
    append(orders, (b"d", b"1"))
    segments("maintain", orders.uri, "--table", f"{Path(uri).parent}/table")
    assert content(uri) == readable(orders) and len(content(uri)) == 4


def _renamed(update):
    update.rename_column("value", "wert")


def _dropped(update):
    update.delete_column("offset")


def _required(update):
    update.add_column("shop", StringType(), required=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [(_renamed, "value became wert"), (_dropped, "offset is gone"), (_required, "shop wants a value")],
    ids=["renamed", "dropped", "required"],
)
def test_columns_that_others_changed_are_an_error_that_names_them(orders, uri, change, words):
    update(orders, uri)
    with iceberg_table(uri).update_schema(allow_incompatible_changes=True) as schema:
        change(schema)
    append(orders, (b"z", b"9"))
    assert words in failure(orders, uri)


def test_a_column_that_was_renamed_back_goes_on(orders, uri):
    update(orders, uri)
    for names in (("value", "wert"), ("wert", "value")):
        with iceberg_table(uri).update_schema() as schema:
            schema.rename_column(*names)
    append(orders, (b"z", b"9"))
    update(orders, uri)
    assert content(uri) == readable(orders)


def test_partitions_that_others_added_are_an_error_that_names_a_file(orders, uri):
    update(orders, uri)
    with iceberg_table(uri).update_spec() as spec:
        spec.add_field("timestamp", DayTransform(), "timestamp_day")
    append(orders, (b"z", b"9"))
    assert "has changed the table's partitions" in failure(orders, uri)
