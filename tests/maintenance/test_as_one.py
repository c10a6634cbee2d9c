"""A topic and its table as one: the union has the records of the log, in each door, or the log alone is read."""

from __future__ import annotations

import errno
import json
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.errors import QueryError, SegmentsError
from spark_segments.lake.as_one import OpenTables, as_one
from spark_segments.lake.noted import TABLES, NotedTable
from spark_segments.lake.table import MANY_SMALL_FILES
from spark_segments.lake.table_plan import Reason
from spark_segments.maintenance import compact, erase, mirror, restore, retain, roll, table
from spark_segments.polars import scan_topic
from spark_segments.storage import Storage
from verification.kills.as_one_beside import Beside
from verification.kills.as_one_rows import check_duckdb, check_polars, in_order
from verification.kills.table_histories import rewrite
from verification.kills.table_rows import iceberg_table, update, with_orders
from verification.world.clock import PATIENCE_SECONDS
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.opened import LocalFiles
from verification.world.stores.s3_server import BUCKET
from verification.world.topics import append, append_batches, golden_batches

DAY_MS = 86_400_000
KINDS = {"plain": {}, "latest": {"view": "latest"}, "archive": {"archive": True}, "by day": {"partition_by": "day"}}
TYPED = {"value.format": "json", "value.schema": "n int"}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


@pytest.fixture(params=["delta", "iceberg"])
def any_uri(tmp_path, request):
    return str(tmp_path / request.param / "table")


@pytest.fixture
def orders(log):
    return with_orders(log, partitions=2)


def halves(log, formats=None, *, is_below=False):
    """{what is read: whether rows of it come from a table}, of committed records, by the plans of every door.
    `is_below`: all rows of the table are below log starts, which DuckDB sees by their bounds before it opens the file.
    """
    plans = check_polars(log, formats=formats)
    by_duckdb = check_duckdb(log, formats=formats)
    assert not any(by_duckdb.values()) if is_below else by_duckdb == plans
    return {view: plans[view, "read_committed"] for view in (None, "latest")}


def half_of(log, view=None, formats=None, **options):
    scan = log.topic("orders").scan(view=view, isolation="read_committed", formats=formats, **options)
    return as_one(log, scan, formats)


def cleaned(log):
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    compact(log, now_ms=later_ms)


# What is read


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_and_the_tail_are_the_topic(orders, any_uri, kind):
    update(orders, any_uri, **KINDS[kind])
    append(orders, (b"a", b"2"), (b"d", b"1"), (b"b", None))
    assert halves(orders) == {None: kind != "latest", "latest": True}


def test_a_table_without_a_tail_is_read_alone(orders, uri):
    update(orders, uri)
    with TopicDatabase(orders) as database:
        (plan,) = database.sql("EXPLAIN SELECT max(value) FROM orders").to_table().column("explain_value").to_pylist()
    assert "READ_PARQUET" in plan and "ARROW_SCAN" not in plan
    assert halves(orders) == {None: True, "latest": True}


def test_explain_shows_the_files_and_the_tail_and_no_tables_is_the_log(orders, uri):
    update(orders, uri)
    append(orders, (b"a", b"2"))
    plans = []
    for tables in (True, False):
        with TopicDatabase(orders, tables=tables) as database:
            rows = database.sql("EXPLAIN SELECT * FROM orders").to_table()
            plans.append(rows.column("explain_value").to_pylist()[0])
    assert all(word in plans[0] for word in ("READ_PARQUET", "ARROW_SCAN", "Union"))
    assert "READ_PARQUET" not in plans[1]


def test_a_safe_database_reads_the_table_and_lets_no_statement_name_a_file(orders, uri):
    update(orders, uri)
    append(orders, (b"a", b"2"))
    with TopicDatabase(orders, safe=True) as database:
        assert database.sql("SELECT count(*) AS n FROM orders").to_table().to_pylist() == [{"n": 4}]
        assert database.sql('SELECT count(*) AS n FROM "orders$latest"').to_table().to_pylist() == [{"n": 3}]
        with pytest.raises(Exception, match="disabled"):
            database.sql(f"SELECT * FROM read_parquet('{uri}/*.parquet')")


@pytest.mark.parametrize("kind", ["plain", "latest"])
def test_a_table_in_an_object_store_and_the_tail_are_the_topic(s3_options, tmp_path, kind):
    place = f"s3a://{BUCKET}/{tmp_path.name}"
    log = with_orders(LogDir.create(f"{place}/log", s3_options), partitions=2)
    update(log, f"{place}/table", **KINDS[kind])
    append(log, (b"a", b"2"), (b"d", b"1"), (b"b", None))
    check_duckdb(log)
    assert check_polars(log)["latest", "read_committed"]
    with TopicDatabase(log) as database:
        plan = str(database.sql('EXPLAIN SELECT * FROM "orders$latest"').fetchall())
        assert "UNION" in plan.upper() and plan.count("ARROW_SCAN") > 1  # Arrow reads files there
        result = database.sql('SELECT count(*) AS n FROM "orders$latest"')
        table_storage = Storage(f"{place}/table", s3_options)
        for info in table_storage.list("", recursive=True):
            if info.path.endswith(".parquet"):
                table_storage.delete(info.path)
        assert result.fetchall() == [(4,)]


def test_the_latest_view_has_the_newest_record_of_each_key_of_both_halves(log, uri):
    log.create_topic("orders")
    append(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"a", b"2"), (None, b"1"))
    update(log, uri)
    append(log, (b"b", None), (b"d", b"1"), (b"a", b"3"), (None, b"2"))
    newest = [(b"a", b"3", 7), (b"b", None, 5), (b"c", b"1", 2), (b"d", b"1", 6)]
    with TopicDatabase(log) as database:
        query = 'SELECT key, value, "offset" FROM "orders$latest" ORDER BY key'
        assert "READ_PARQUET" in str(database.sql(f"EXPLAIN {query}").fetchall())
        assert database.sql(query).fetchall() == newest
    frame = scan_topic(log.uri, "orders", view="latest").select("key", "value", "offset").sort("key")
    assert "Parquet SCAN" in frame.explain()
    assert frame.collect().rows() == newest


def test_files_are_no_patterns(tmp_path, log):
    uri = str(tmp_path / "a[1]*b" / "table")
    with_orders(log)
    update(log, uri)
    append(log, (b"a", b"2"))
    assert halves(log) == {None: True, "latest": True}


def test_typed_tables_serve_typed_queries_alone(log, any_uri):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1}'), (b"2", b'{"n": 2}'))
    update(log, any_uri, formats=TYPED)
    append(log, (b"1", b'{"n": 3}'), (b"3", None))
    assert halves(log, TYPED)[None]
    assert not halves(log)[None]
    assert "was made with value.format=json" in half_of(log).why
    assert not half_of(log, formats=TYPED | {"value.schema": "n bigint"}).half


def test_a_latest_table_of_typed_keys_goes_by_their_bytes(log, uri):
    log.create_topic("orders")
    formats = {"key.format": "json", "key.schema": "id int"}
    append(log, (b'{"id":1}', b"a"), (b'{"id":1,"x":1}', b"b"), (b'{"id":2}', b"c"))
    update(log, uri, view="latest", formats=formats)
    append(log, (b'{"id":1}', b"d"))
    assert halves(log, formats) == {None: False, "latest": True}


def test_json_is_json_in_both_halves(log, uri):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1}'))
    update(log, uri, formats={"value.format": "json"})
    append(log, (b"2", b'{"n": 2}'))
    with TopicDatabase(log, formats={"value.format": "json"}) as database:
        rows = database.sql("SELECT sum(value.n::INT) AS n FROM orders").to_table()
    assert rows.to_pylist() == [{"n": 3}]


def test_rows_that_came_before_the_columns_changed_are_read_from_the_log(log, uri):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1, "m": 5}'))
    update(log, uri, formats=TYPED)
    wider = TYPED | {"value.schema": "n int, m int"}
    update(log, uri, formats=wider)
    assert not halves(log, wider)[None]  # the table has null for m


def test_aborted_records_are_in_no_table_and_in_uncommitted_reads(log, uri):
    log.import_kafka(str(GOLDEN), "txn")
    update(log, uri, topic="txn")
    append(log, (b"a", b"1"), topic="txn")
    plans = check_duckdb(log, "txn")
    assert check_polars(log, "txn") == plans
    assert plans[None, "read_committed"] and not plans[None, "read_uncommitted"]


def test_rows_of_both_types_of_timestamps_are_read_from_the_log(log, uri):
    log.create_topic("orders")
    append(log, (b"a", b"1"))
    append_batches(log, "orders", golden_batches("logappend-0"))
    update(log, uri)
    assert not halves(log)[None]


def test_a_query_of_control_records_or_of_an_earlier_version_reads_the_log(orders, uri):
    version = orders.topic("orders").version
    update(orders, uri)
    assert half_of(orders, include_control=True).half is None
    append(orders, (b"a", b"2"))
    with TopicDatabase(orders, versions={"orders": version}) as database:
        assert database.sql("SELECT count(*) AS n FROM orders").to_table().to_pylist() == [{"n": 3}]
    assert scan_topic(orders.uri, "orders", version=version).collect().height == 3


# What happens to the topic


def test_rows_below_the_log_start_do_not_count(orders, uri, tmp_path):
    latest = str(tmp_path / "latest")
    update(orders, uri)
    update(orders, latest, view="latest")
    orders.topic("orders").delete_records({0: 1})
    append(orders, (b"d", b"1"))
    assert halves(orders) == {None: True, "latest": True}


def test_a_latest_table_that_may_have_missed_a_tombstone_does_not_count_where_the_log_start_moved_too(orders, uri):
    update(orders, uri, view="latest")
    first = orders.topic("orders").scan(keys="a").to_table().to_pylist()[0]
    orders.topic("orders").alter(config={"delete.retention.ms": "0"})
    append(orders, (b"a", None), (b"d", b"1"))
    now_ms = orders.storage.now_ms() + 30 * DAY_MS
    for later_ms in (now_ms, now_ms + 1):
        roll(orders, now_ms=later_ms)
        compact(orders, now_ms=later_ms)
        append(orders, (b"d", b"2"))
    orders.topic("orders").delete_records({1 - first["partition"]: 1})
    assert halves(orders) == {None: False, "latest": False}
    assert Reason.LATE in half_of(orders, "latest").why


def test_records_that_left_before_the_table_had_them_are_no_rows(orders, uri):
    update(orders, uri)
    append(orders, *[(b"x", b"1")] * 10)
    orders.topic("orders").delete_records({0: -1, 1: -1})
    append(orders, (b"y", b"1"))
    assert halves(orders, is_below=True) == {None: True, "latest": True}


def test_after_a_compaction_a_latest_table_serves_and_others_wait_for_their_next_run(orders, uri, tmp_path):
    latest, archive = str(tmp_path / "latest"), str(tmp_path / "archive")
    append(orders, (b"a", b"2"))
    for address, kind in ((uri, "plain"), (latest, "latest"), (archive, "archive")):
        update(orders, address, **KINDS[kind])
    cleaned(orders)
    assert halves(orders) == {None: False, "latest": True}
    assert Reason.CLEANED in half_of(orders).why
    update(orders, archive)
    assert not halves(orders)[None]  # an archive keeps what is gone
    update(orders, uri)
    assert halves(orders) == {None: True, "latest": True}


@pytest.mark.parametrize("has_run", [False, True], ids=["before", "after"])
def test_what_retention_took_from_the_topic_is_in_the_archive_alone(log, any_uri, has_run):
    """Also when the archive has run since, and its positions name the log start of now."""
    log.create_topic("orders", config={"retention.ms": "3600000"})
    old_ms = log.storage.now_ms() - DAY_MS
    append(log, (b"a", b"1"), (b"b", b"1"), timestamp=pa.array([old_ms, old_ms], pa.timestamp("ms", "UTC")))
    update(log, any_uri, archive=True)
    assert not any(report.failed for report in log.maintain(["orders"]))
    append(log, (b"c", b"1"))
    if has_run:
        update(log, any_uri, archive=True)
    assert halves(log, is_below=not has_run)[None]
    assert scan_topic(log.uri, "orders").collect()["key"].to_list() == [b"c"]


@pytest.mark.parametrize("kind", ["plain", "latest", "archive"])
def test_after_an_erasure_or_a_restore_the_log_is_read(orders, uri, kind):
    update(orders, uri, **KINDS[kind])
    version = orders.topic("orders").version
    append(orders, (b"z", b"1"))
    restore(orders, topics=["orders"], version=version)
    assert halves(orders) == {None: False, "latest": False}
    update(orders, uri)
    assert any(halves(orders).values()) == (kind != "archive")
    erase(orders, topics=["orders"], keys=[b"a"])
    assert halves(orders) == {None: False, "latest": False}


def test_a_topic_that_was_made_again_knows_no_table(orders, uri):
    update(orders, uri)
    orders.delete_topic("orders")
    orders.create_topic("orders")
    append(orders, (b"q", b"1"))
    assert NotedTable.of(orders.topic("orders").snapshot) == []
    assert halves(orders) == {None: False, "latest": False}


@pytest.mark.parametrize("kind", ["plain", "latest"])
def test_a_partition_that_was_added_begins_at_its_log_start(orders, uri, kind):
    update(orders, uri, **KINDS[kind])
    orders.topic("orders").alter(partitions=5)
    append(orders, *[(b"%d" % number, b"1") for number in range(20)], (b"a", b"9"))
    halves(orders)
    update(orders, uri)
    append(orders, *[(b"%d" % number, b"2") for number in range(20)], (b"b", None))
    assert halves(orders) == {None: kind == "plain", "latest": kind == "latest"}


def test_a_record_of_the_table_that_outdoes_the_tail_in_another_partition_is_kept(orders, uri):
    orders.topic("orders").alter(partitions=3)
    place = {"timestamp": pa.array([DAY_MS], pa.timestamp("ms", "UTC")), "partition": pa.array([0], pa.int32())}
    append(orders, (b"k", b"new"), **place)
    update(orders, uri, view="latest")
    place = {"timestamp": pa.array([0], pa.timestamp("ms", "UTC")), "partition": pa.array([1], pa.int32())}
    append(orders, (b"k", b"old"), **place)
    assert not halves(orders)["latest"]


def test_a_copy_of_a_log_directory_takes_no_table_of_the_other(orders, uri, tmp_path):
    update(orders, uri)
    shutil.copytree(Path(orders.uri), tmp_path / "copy")
    append(orders, (b"a", b"here"))
    update(orders, uri)
    copy = LogDir.open(str(tmp_path / "copy"))
    append(copy, (b"a", b"there"), (b"b", b"there"))
    assert halves(copy) == {None: False, "latest": False}


# What others do to the table


@pytest.mark.parametrize(
    "change",
    [
        lambda uri: DeltaTable(uri).delete("offset = 1"),
        lambda uri: DeltaTable(uri).update(new_values={"value": "X'39'"}, predicate="offset = 0"),
        lambda uri: write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(1, 1), mode="append"),
        lambda uri: write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(1), mode="overwrite"),
    ],
    ids=["delete", "update", "append", "overwrite"],
)
def test_rows_that_others_changed_are_read_from_the_log(orders, uri, change):
    update(orders, uri)
    change(uri)
    append(orders, (b"a", b"2"))
    assert halves(orders) == {None: False, "latest": False}
    assert "Another program has changed the rows" in half_of(orders).why


def test_tables_that_others_optimize_or_restore_are_read(orders, uri):
    for value in (b"1", b"2"):
        update(orders, uri)
        append(orders, (b"a", value), (b"e", value))
    update(orders, uri)
    DeltaTable(uri).optimize.compact()
    assert halves(orders) == {None: True, "latest": True}
    DeltaTable(uri).optimize.z_order(["key"])
    assert halves(orders) == {None: True, "latest": True}
    DeltaTable(uri).restore(1)
    assert halves(orders) == {None: True, "latest": True}
    assert half_of(orders).has_tail


def test_iceberg_files_that_others_rewrite_are_read(orders, tmp_path):
    uri = str(tmp_path / "iceberg" / "table")
    update(orders, uri)
    append(orders, (b"a", b"2"))
    update(orders, uri)
    rewrite(uri)
    assert halves(orders) == {None: True, "latest": True}


def test_an_iceberg_column_that_others_made_again_is_not_read_by_its_name(orders, tmp_path):
    uri = str(tmp_path / "iceberg" / "table")
    update(orders, uri)
    for change in ("drop", "add"):
        with iceberg_table(uri).update_schema(allow_incompatible_changes=True) as schema:
            if change == "drop":
                schema.delete_column("value")
            else:
                from pyiceberg.types import BinaryType

                schema.add_column("value", BinaryType())
    assert halves(orders) == {None: False, "latest": False}


@pytest.mark.parametrize("feature", ["delta.enableDeletionVectors", "delta.columnMapping.mode"])
def test_a_table_with_features_that_are_not_read_here_is_left_to_others(orders, uri, feature):
    update(orders, uri)
    log = Path(uri, "_delta_log")
    features = ["deletionVectors", "columnMapping"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    info = {"commitInfo": {"operation": "SET TBLPROPERTIES"}}
    lines = [json.dumps(info), json.dumps({"protocol": protocol})]
    (log / f"{DeltaTable(uri).version() + 1:020}.json").write_text("\n".join(lines))
    append(orders, (b"a", b"2"))
    assert halves(orders) == {None: False, "latest": False}


def test_a_file_that_is_deleted_in_the_midst_is_planned_again_and_then_the_log_is_read(orders, uri):
    update(orders, uri)
    with TopicDatabase(orders) as database:
        result = database.sql("SELECT count(*) AS n FROM orders")
        append(orders, (b"a", b"2"))
        update(orders, uri)
        DeltaTable(uri).optimize.compact()
        DeltaTable(uri).vacuum(0, enforce_retention_duration=False, dry_run=False)
        assert result.to_table().to_pylist() == [{"n": 4}]
        for file in Path(uri).glob("*.parquet"):
            file.unlink()
        assert result.to_table().to_pylist() == [{"n": 4}]
        assert database.sql('SELECT max("offset") AS n FROM orders').to_table().num_rows == 1


def test_a_frame_whose_file_is_deleted_ends_with_its_name_and_is_right_once_it_is_made_again(orders, uri):
    update(orders, uri)
    frame = scan_topic(orders.uri, "orders").select("value")
    (file,) = Path(uri).glob("*.parquet")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=file.name):
        frame.collect()
    shutil.rmtree(uri)
    assert scan_topic(orders.uri, "orders").select("value").collect().height == 3


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("cut", [0, 20, -9])
def test_a_damaged_file_of_a_table_is_not_read(orders, uri, cut, safe, caplog):
    caplog.set_level("WARNING", "spark_segments.duckdb.topic_database")
    update(orders, uri)
    append(orders, (b"a", b"2"))
    (file,) = Path(uri).glob("*.parquet")
    data = file.read_bytes()
    # Cut, or with a footer of other bytes.
    file.write_bytes(data[:cut] if cut >= 0 else data[:cut] + bytes(8) + data[cut + 8 :])
    with TopicDatabase(orders, safe=safe) as database:
        assert database.sql("SELECT count(*) AS n, max(value) AS m FROM orders").to_table().to_pylist() == [
            {"n": 4, "m": b"2"}
        ]
        assert database.sql('SELECT count(*) AS n FROM "orders$latest"').to_table().to_pylist() == [{"n": 3}]
    warnings = {message for message in caplog.messages if "a file of its table cannot be read: " in message}
    assert warnings and len(warnings) == len(caplog.messages)  # each once, and with its cause


def test_damage_that_shows_in_the_midst_of_a_query_is_read_from_the_log(orders, uri):
    update(orders, uri)
    (file,) = Path(uri).glob("*.parquet")
    data = file.read_bytes()
    with TopicDatabase(orders) as database:
        result = database.sql("SELECT value FROM orders")
        file.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
        assert result.to_table().num_rows == 3


def test_an_error_of_the_statement_is_the_statements_where_a_table_is_read(orders, uri):
    update(orders, uri)
    with TopicDatabase(orders) as database, pytest.raises(QueryError, match="does not fit"):
        database.sql("SELECT strptime(decode(key), '%Y') FROM orders").to_table()


def test_a_table_that_is_gone_is_no_error(orders, uri):
    update(orders, uri)
    shutil.rmtree(uri)
    assert halves(orders) == {None: False, "latest": False}
    assert "it is gone" in half_of(orders).why


def test_small_files_are_joined_and_the_table_goes_on(orders, uri):
    for number in range(5):
        append(orders, (b"k%d" % number, b"1"))
        update(orders, uri)
    assert update(orders, uri, optimize_from=99).get("files_joined") is None
    assert update(orders, uri, optimize_from=2)["files_joined"] == len(list(Path(uri).glob("*.parquet"))) - 1
    assert len(DeltaTable(uri).file_uris()) == 1
    append(orders, (b"a", b"2"))
    assert halves(orders) == {None: True, "latest": True}
    assert update(orders, uri)["why"] is None
    assert halves(orders) == {None: True, "latest": True}


def test_maintain_joins_many_small_files_of_a_table(log, uri):
    log.create_topic("orders")
    for number in range(MANY_SMALL_FILES - 1):
        append(log, (b"k%d" % number, b"1"))
        update(log, uri)
    log.maintain(table_uri=uri)
    assert len(DeltaTable(uri).file_uris()) == MANY_SMALL_FILES - 1
    append(log, (b"z", b"1"))
    log.maintain(table_uri=uri)
    assert len(DeltaTable(uri).file_uris()) == 1
    assert halves(log) == {None: True, "latest": True}


@pytest.mark.proof
def test_every_answer_beside_writers_and_clean_ups_is_a_state_of_the_topic(tmp_path):
    """The short form of python -m verification.kills.as_one_beside."""
    Beside(tmp_path, time.monotonic() + PATIENCE_SECONDS, is_short=True).run()


# The note


def test_a_database_outlives_a_topic_that_had_a_table(orders, uri):
    update(orders, uri)
    with TopicDatabase(orders) as database:
        assert database.sql("SELECT count(*) FROM orders").fetchone() == (3,)
        orders.delete_topic("orders")
        assert database.sql("SELECT 1").fetchone() == (1,)
        with pytest.raises(SegmentsError, match="orders"):
            database.sql("SELECT count(*) FROM orders").fetchone()


def test_a_topic_notes_its_table_once_and_forgets_it(orders, uri):
    version = orders.topic("orders").version
    update(orders, uri)
    update(orders, uri)
    snapshot = orders.topic("orders").snapshot
    assert snapshot.version == version + 1
    (note,) = NotedTable.of(snapshot)
    assert (note.uri, note.table_format, note.view, note.archive) == (uri, "delta", None, False)
    assert note.columns["key"] == "binary"
    table(orders, topics=["orders"], table_uri=uri, forget_table=True)
    assert TABLES not in orders.topic("orders").snapshot.states
    assert DeltaTable(uri).version() == 1
    assert halves(orders) == {None: False, "latest": False}


def test_credentials_are_in_no_note(orders, uri):
    table(orders, topics=["orders"], table_uri=uri, table_options={"aws_secret_access_key": "very-secret-key"})
    assert "very-secret-key" not in str(orders.topic("orders").snapshot.states)


def test_a_follower_notes_nothing_and_has_its_table(orders, tmp_path, uri):
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=orders)
    update(follower, uri)
    assert TABLES not in follower.topic("orders").snapshot.states
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 3


def test_writers_keep_the_note(orders, uri):
    update(orders, uri)
    append(orders, (b"a", b"2"))
    cleaned(orders)
    retain(orders)
    orders.topic("orders").alter({"retention.ms": "-1"}, partitions=3)
    assert [note.uri for note in NotedTable.of(orders.topic("orders").snapshot)] == [uri]


def test_each_result_of_a_database_is_of_the_newest_log(orders, uri):
    update(orders, uri)
    with TopicDatabase(orders) as database:
        database.sql("CREATE VIEW counted AS SELECT count(*) AS n FROM orders")
        result = database.sql("SELECT n FROM counted")
        for expected in (3, 4):
            assert result.to_table().to_pylist() == [{"n": expected}]
            append(orders, (b"a", b"2"))
        update(orders, uri)
        assert result.to_table().to_pylist() == [{"n": 5}]
        assert in_order(database.sql("SELECT * FROM orders").to_table()) == in_order(
            orders.topic("orders").scan().to_table()
        )


def test_a_table_whose_store_does_not_answer_is_judged_again_and_the_log_is_read(orders, uri):
    class Silent(LocalFiles):
        def exists(self, path):
            raise PermissionError(errno.EACCES, "no answer", path)

    update(orders, uri)
    opened_tables = OpenTables()
    scan = orders.topic("orders").scan()
    before = as_one(orders, scan, None, opened_tables)
    assert opened_tables.still_has(before, scan)
    before.half.table.storage = Storage(uri, filesystem=Silent())
    assert not opened_tables.still_has(before, scan)
    after = as_one(orders, scan, None, opened_tables)
    assert after.half is None and "no answer" in after.why
