"""A Delta table kept as the latest view of a topic, without Spark where delta-rs merges."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError
from spark_segments.log.positions import Position
from spark_segments.maintenance import compact, mirror, restore, roll
from spark_segments.maintenance.erasure.erase import erase
from spark_segments.spark import latest_table
from spark_segments.spark.latest_table import (
    LATE,
    LOG_START,
    NO_POSITION,
    OTHER_TOPIC,
    REWRITTEN,
    TablePositions,
    update_table,
)
from tests.golden_files import GOLDEN
from tests.log.test_latest import COLUMNS, Histories, newest, rows
from tests.spark.changelog_kills import killed_and_ended


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


def content(uri):
    table = DeltaTable(uri).to_pyarrow_table(columns=COLUMNS)
    return sorted(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True), key=lambda row: row[:2])


def alive(log, topic="orders"):
    return rows(log.topic(topic).scan(columns=COLUMNS, view="latest", include_tombstones=False).batches())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_table_follows_random_histories(log, uri, seed):
    histories = Histories(log, "orders", seed, partitions=5)
    whole = []
    for _ in range(6):
        histories.run(steps=2)
        whole.append(update_table(log, "orders", uri).whole)
        assert content(uri) == [record for record in newest(histories.appended) if record[3] is not None]
    assert whole == [NO_POSITION] + [None] * 5


def append(log, *pairs, topic="orders"):
    keys, values = zip(*pairs, strict=True)
    log.topic(topic).append(pa.table({"key": keys, "value": pa.array(values, pa.binary())}))


@pytest.fixture
def orders(log):
    log.create_topic("orders", config={"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"})
    append(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    return log


def test_nothing_new_is_no_commit(orders, uri):
    assert update_table(orders, "orders", uri).version == 1
    assert update_table(orders, "orders", uri).version is None
    append(orders, (b"a", b"2"))
    update = update_table(orders, "orders", uri)
    assert (update.version, update.whole) == (2, None)


def test_a_tombstone_takes_its_row_and_an_unknown_one_takes_none(orders, uri):
    update_table(orders, "orders", uri)
    append(orders, (b"a", None), (b"z", None), (b"b", b"2"), (b"b", None), (b"b", b"3"))
    update_table(orders, "orders", uri)
    assert [record[2:] for record in content(uri)] == [(b"c", b"1"), (b"b", b"3")]


def test_a_commit_of_somebody_else_does_not_hide_the_position(orders, uri):
    update_table(orders, "orders", uri)
    for number in range(12):
        properties = {"delta.checkpointInterval": str(10 + number)}
        tidy = CommitProperties(custom_metadata={"userMetadata": "tidy"})
        DeltaTable(uri).alter.set_table_properties(properties, commit_properties=tidy)
    append(orders, (b"d", b"1"))
    assert update_table(orders, "orders", uri).whole is None
    assert content(uri) == alive(orders)


def test_a_log_that_lost_its_start_is_compared_whole(orders, uri):
    update_table(orders, "orders", uri)
    orders.topic("orders").delete_records({0: 2})
    assert update_table(orders, "orders", uri).whole == LOG_START
    assert content(uri) == alive(orders) and len(alive(orders)) == 1


def test_a_log_whose_last_records_a_restore_took_is_compared_whole(orders, uri):
    version = orders.topic("orders").snapshot.version
    append(orders, (b"a", b"2"), (b"d", b"2"))
    update_table(orders, "orders", uri)
    restore(orders, topics=["orders"], version=version)
    assert update_table(orders, "orders", uri).whole == REWRITTEN
    assert content(uri) == alive(orders) and b"2" not in [record[3] for record in content(uri)]
    assert update_table(orders, "orders", uri).whole is None


def test_a_table_of_a_follower_loses_what_a_restore_of_the_leader_took(orders, uri, tmp_path):
    version = orders.topic("orders").snapshot.version
    append(orders, (b"a", b"2"), (b"d", b"2"))
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=orders)
    update_table(follower, "orders", uri)
    restore(orders, topics=["orders"], version=version)
    mirror(follower, leader=orders)
    assert update_table(follower, "orders", uri).whole == REWRITTEN
    assert content(uri) == alive(orders) and b"2" not in [record[3] for record in content(uri)]
    assert update_table(follower, "orders", uri).version is None


def test_keys_that_were_erased_leave_the_table(log, uri):
    log.create_topic("orders")
    append(log, (b"a", b"1"), (b"b", b"1"))
    update_table(log, "orders", uri)
    erase(log, topics=["orders"], keys=[b"a"])
    assert update_table(log, "orders", uri).whole == REWRITTEN
    assert content(uri) == alive(log) and len(content(uri)) == 1


def test_commits_that_are_not_known_any_more_may_have_been_a_restore(orders, uri):
    update_table(orders, "orders", uri)
    append(orders, (b"d", b"1"))
    append(orders, (b"d", b"2"))
    commit = orders.topic("orders").snapshot.version - 1
    orders.topic("orders").manifest.keep_for_rebuild()  # a checkpoint, before which vacuum takes commits
    (Path(orders.uri) / f"_manifest/orders/_delta_log/{commit:020d}.json").rename(Path(uri) / "away")
    assert update_table(orders, "orders", uri).whole == REWRITTEN
    assert content(uri) == alive(orders)


def test_a_topic_made_anew_is_compared_whole(orders, uri):
    update_table(orders, "orders", uri)
    orders.delete_topic("orders")
    orders.create_topic("orders", partitions=2)
    append(orders, (b"a", b"new"))
    assert update_table(orders, "orders", uri).whole == OTHER_TOPIC
    assert content(uri) == alive(orders) == [record for record in alive(orders) if record[3] == b"new"]


@pytest.mark.slow
def test_an_update_after_tombstones_may_be_gone_compares_whole(orders, uri):
    update_table(orders, "orders", uri)
    orders.topic("orders").alter(config={"delete.retention.ms": "0"})
    append(orders, (b"a", None), (b"d", b"1"))
    now_ms = orders.storage.now_ms() + 30 * 24 * 3_600_000
    for later_ms in (now_ms, now_ms + 1):
        roll(orders, now_ms=later_ms)
        compact(orders, now_ms=later_ms)
        append(orders, (b"d", b"2"))
    assert (b"a", None) not in [record[2:] for record in rows(orders.topic("orders").scan(columns=COLUMNS).batches())]
    assert update_table(orders, "orders", uri).whole == LATE
    assert content(uri) == alive(orders) and b"a" not in [record[2] for record in content(uri)]


def test_another_commit_in_between_is_begun_again(orders, uri, monkeypatch):
    """Two updates from one position: the second commits nothing on top of the first."""
    update_table(orders, "orders", uri)
    append(orders, (b"d", b"1"))
    merge, tries = latest_table._merge_by_delta_rs, []

    def merge_second(table, *arguments):
        monkeypatch.setattr(latest_table, "_merge_by_delta_rs", merge)
        update_table(orders, "orders", uri)
        tries.append(table.version())
        merge(table, *arguments)

    monkeypatch.setattr(latest_table, "_merge_by_delta_rs", merge_second)
    assert update_table(orders, "orders", uri).version is None
    assert tries == [1] and DeltaTable(uri).version() == 2
    assert content(uri) == alive(orders)


def test_a_table_that_others_commit_to_all_the_time_is_an_error(orders, uri, monkeypatch):
    def lose(*arguments):
        raise CommitFailedError("another")

    monkeypatch.setattr(latest_table, "_merge_by_delta_rs", lose)
    with pytest.raises(CommitConflictError, match="Run the update again"):
        update_table(orders, "orders", uri)


def test_a_position_is_the_same_after_json():
    for version in (None, 7):
        positions = {0: Position(5, "id"), 12: Position(7, "id", 3)}
        position = TablePositions("id", positions, {0: 1, 12: 0}, 99, version)
        assert TablePositions.from_json(position.to_json()) == position
    of_old_versions = '{"segments": {"topic_id": "id", "offsets": {"0": [1, 5]}, "at_ms": 1}}'
    assert TablePositions.from_json(of_old_versions) == TablePositions("id", {0: Position(5, "id")}, {0: 1}, 1)
    assert TablePositions.from_json("") is None and TablePositions.from_json('{"other": 1}') is None


def test_a_table_of_a_broker_directory_leaves_out_what_is_not_committed(uri):
    log = LogDir.open(str(GOLDEN / "txn-0"))
    update_table(log, "txn", uri)
    committed = log.topic("txn").scan(columns=COLUMNS, isolation="read_committed").batches()
    assert content(uri) == [record for record in newest(rows(committed)) if record[3] is not None]


@pytest.mark.slow
def test_the_example_killed_at_random_ends_with_the_latest_view(tmp_path, python_environment):
    """The short form of python -m tests.spark.changelog_kills."""
    runs, _ = killed_and_ended(tmp_path, kills=3, seed=1, environment=python_environment)
    assert runs > 3


def test_the_changes_that_spark_merges_are_those_that_delta_rs_merges(spark, log):
    histories = Histories(log, "orders", 5, partitions=4)
    histories.run(steps=4)
    snapshot = log.topic("orders").snapshot
    some = {number: (min(3, end), end) for number, end in enumerate(histories.ends)}
    for offsets in (latest_table.offset_bounds(snapshot), some):
        frame = latest_table._frame(spark, log, snapshot, offsets, include_tombstones=True)
        inside = [record for record in histories.appended if record[1] >= offsets[record[0]][0]]
        found = frame.select(COLUMNS).toArrow()
        assert sorted(zip(*(found.column(name).to_pylist() for name in COLUMNS), strict=True)) == newest(inside)


def test_a_session_without_delta_is_seen_as_such(spark):
    assert not latest_table.has_delta(spark)
    assert latest_table.delta_settings()["spark.jars.packages"].startswith("io.delta:delta-spark_4.")
