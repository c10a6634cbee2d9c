"""Tables of both formats beside topics against what a read of the topic says, row by row."""

from __future__ import annotations

import gc
import random
from datetime import date
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable

from spark_segments import LogDir, Position
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.lake.table_format import TablePositions
from spark_segments.lake.table_plan import Reason
from spark_segments.maintenance import compact, erase, mirror, promote, restore, retain, roll, table
from spark_segments.storage import Storage
from verification.kills.table_histories import DeltaSide, History, IcebergSide
from verification.kills.table_kills import killed_and_ended, two_writers_killed
from verification.kills.table_rows import (
    COLUMNS,
    by_place,
    content,
    failure,
    iceberg_table,
    is_iceberg,
    readable,
    update,
    with_orders,
)
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.kafka_side import TOPIC, KafkaSide
from verification.world.stores.s3_server import BUCKET
from verification.world.topics import append

KINDS = (None, "latest")
DAY_MS = 24 * 3_600_000


@pytest.fixture(params=["delta", "iceberg"])
def uri(tmp_path, request):
    return str(tmp_path / request.param / "table")


@pytest.fixture
def delta(tmp_path):
    """The address of a table that the test knows as one of Delta."""
    return str(tmp_path / "table")


@pytest.fixture(params=KINDS, ids=["plain", "latest"])
def view(request):
    return request.param


@pytest.fixture
def orders(log):
    return with_orders(log)


def cleaned(log):
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    compact(log)


def emptied(log):
    """All records leave the topic, with their files."""
    later_ms = log.storage.now_ms() + 30 * DAY_MS
    roll(log, now_ms=later_ms)
    retain(log, now_ms=later_ms)
    assert not readable(log) and not log.topic("orders").snapshot.live.num_rows


# In step


def test_files_are_compressed_by_zstd(log, delta):
    with_orders(log)
    update(log, delta)
    append(log, (b"d", b"1"))
    update(log, delta, optimize_from=2)
    files = list(Path(delta).glob("rows-*.zstd.parquet"))
    groups = [pq.read_metadata(file).row_group(0) for file in files]
    codecs = {group.column(number).compression for group in groups for number in range(group.num_columns)}
    assert (len(files), codecs) == (3, {"ZSTD"})


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_tables_follow_random_histories(tmp_path, table_format, seed):
    """The short form of python -m verification.kills.table_histories."""
    assert History(tmp_path, table_format, seed).run()["commits"]


@pytest.mark.cases(2)
def test_nothing_new_is_no_commit(orders, uri, view):
    assert update(orders, uri, view=view)["version"] == 1
    assert update(orders, uri)["version"] == 1
    append(orders, (b"a", b"2"))
    assert [update(orders, uri)[name] for name in ("version", "why")] == [2, None]
    assert content(uri) == readable(orders, view=view)


def test_a_report_says_which_offsets_came_in(orders, uri):
    report = table(orders, topics=["orders"], table_uri=uri)
    (line,) = report.partitions
    assert (line["action"], line["start"], line["end"], line["records_in"]) == ("append", 0, 3, 3)
    assert report.details["orders"] == {
        "version": 1, "rows": 3, "why": Reason.NO_POSITION, "rows_removed": 0, "rows_added": 3, "files_added": 1,
        "files_removed": 0,
    }  # fmt: skip


def test_columns_whose_values_repeat_have_a_dictionary(log, uri):
    log.create_topic("orders")
    log.topic("orders").append(
        [{"key": b"%d" % number, "value": b'{"id":%d,"city":"%d"}' % (number, number % 2)} for number in range(100)]
    )
    update(log, uri, formats={"value.format": "json", "value.schema": "id int, city string"})
    (file,) = Path(uri).glob("*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = map(group.column, range(group.num_columns))
    has_dictionary = {column.path_in_schema: "RLE_DICTIONARY" in column.encodings for column in columns}
    assert not any(has_dictionary[name] for name in ("key", "value.id", "offset", "timestamp"))
    assert has_dictionary["value.city"] and has_dictionary["partition"]


def test_a_dry_run_makes_no_table(orders, uri):
    (line,) = table(orders, topics=["orders"], table_uri=uri, dry_run=True).partitions
    assert (line["start"], line["end"], line["records_in"]) == (0, 3, 0)
    assert not Path(uri).exists()


def test_a_tombstone_takes_its_row_of_a_latest_table_and_an_unknown_one_takes_none(orders, uri):
    update(orders, uri, view="latest")
    append(orders, (b"a", None), (b"z", None), (b"b", b"2"), (b"b", None), (b"b", b"3"))
    update(orders, uri)
    assert [(row["key"], row["value"]) for row in content(uri)] == [(b"c", b"1"), (b"b", b"3")]


def test_values_are_columns_and_days_are_partitions(log, delta):
    log.create_topic("orders")
    times = pa.array([0, 1, DAY_MS], pa.timestamp("ms", "UTC"))
    append(log, (b"1", b'{"n": 1}'), (b"2", b'{"n": 2}'), (b"3", None), timestamp=times)
    formats = {"value.format": "json", "value.schema": "n int", "key.format": "string"}
    update(log, delta, formats=formats, partition_by="day")
    append(log, (b"4", b'{"n": 4}'), timestamp=times[2:])
    update(log, delta)  # the table remembers its formats
    rows = by_place(DeltaTable(delta).to_pyarrow_table().to_pylist())
    assert [(row["key"], row["value"], str(row["day"])) for row in rows] == [
        ("1", {"n": 1}, "1970-01-01"),
        ("2", {"n": 2}, "1970-01-01"),
        ("3", None, "1970-01-02"),
        ("4", {"n": 4}, "1970-01-02"),
    ]
    first = DeltaTable(delta).to_pyarrow_table(filters=[("day", "=", date(1970, 1, 1))])
    assert first.num_rows == 2


@pytest.mark.cases(1)
def test_a_latest_table_with_typed_keys_goes_by_their_bytes(log, uri):
    log.create_topic("orders")
    formats = {"key.format": "json", "key.schema": "n int"}
    append(log, (b'{"n": 1}', b"x"), (b'{"n":1}', b"y"), (b'{"n": 2}', b"z"))
    update(log, uri, view="latest", formats=formats)
    append(log, (b'{"n":1}', b"newer"))
    update(log, uri)
    assert [(row["key"], row["value"]) for row in content(uri)] == [
        ({"n": 1}, b"x"),
        ({"n": 2}, b"z"),
        ({"n": 1}, b"newer"),
    ]


def test_several_topics_have_a_table_each(log, tmp_path):
    for name in ("orders", "prices"):
        log.create_topic(name)
        append(log, (b"a", b"1"), topic=name)
    place = str(tmp_path / "{topic}")
    table(log, topics=["orders"], table_uri=place)
    append(log, (b"b", b"1"))
    assert [*table(log, table_uri=place, existing=True).details] == ["orders"]
    assert [*table(log, table_uri=place).details] == ["orders", "prices"]
    assert content(str(tmp_path / "orders")) == readable(log)
    with pytest.raises(InvalidOptionError, match="of one topic"):
        table(log, table_uri=str(tmp_path / "one"))


def test_an_archive_has_what_the_jobs_of_maintain_take(log, tmp_path):
    for name in ("orders", "prices"):
        log.create_topic(name, config={"segment.ms": "1"})
        append(log, (b"a", b"1"), topic=name)
    place = str(tmp_path / "{topic}")
    table(log, topics=["orders"], table_uri=place, archive=True)
    append(log, (b"b", b"1"))
    log.topic("orders").delete_records({0: 1})
    reports = log.maintain(table_uri=place)
    assert [report.job for report in reports] == ["table", "roll", "retain", "compact", "table", "vacuum"]
    assert [row["key"] for row in content(str(tmp_path / "orders"))] == [b"a", b"b"]
    assert not (tmp_path / "prices").exists()


@pytest.mark.cases(2)
def test_a_table_of_a_broker_directory_leaves_out_what_is_not_committed(uri, view):
    log = LogDir.open(str(GOLDEN / "txn-0"))
    update(log, uri, topic="txn", view=view)
    assert content(uri) == readable(log, "txn", view) != []


# What leaves the topic


@pytest.mark.cases(2)
@pytest.mark.parametrize("by_import", [True, False])
def test_a_brokers_cleaner_reaches_a_plain_table(log, uri, tmp_path, by_import):
    kafka = KafkaSide(tmp_path / "kafka")

    def followed():
        directory = kafka.write()
        if by_import:
            log.import_kafka(directory, config={"cleanup.policy": "compact"})
        place = log if by_import else LogDir.open(directory)
        why = update(place, uri, TOPIC)["why"]
        assert content(uri) == readable(place, TOPIC)
        return why, len(content(uri))

    kafka.append([(b"a", True), (b"b", True)])
    assert followed() == (Reason.NO_POSITION, 2)
    kafka.append([(b"a", False)])
    kafka.roll()
    for _ in range(2):  # the tombstone of a goes with the second
        kafka.clean(merge=False)
    assert followed() == (Reason.CLEANED, 1)


def test_compaction_reaches_a_plain_table(orders, uri):
    update(orders, uri)
    append(orders, (b"a", b"2"))
    cleaned(orders)
    assert update(orders, uri)["why"] == Reason.CLEANED
    assert content(uri) == readable(orders) and len(readable(orders)) == 3
    assert update(orders, uri)["why"] is None


def test_compaction_changes_no_latest_table(orders, uri):
    update(orders, uri, view="latest")
    cleaned(orders)
    assert update(orders, uri) == {"version": 1, "rows": 3, "why": None}


@pytest.mark.cases(2)
def test_retention_and_delete_records_reach_a_table(orders, uri, view):
    update(orders, uri, view=view)
    orders.topic("orders").delete_records({0: 2})
    assert update(orders, uri)["why"] == Reason.LOG_START
    assert content(uri) == readable(orders, view=view) and len(content(uri)) == 1
    orders.topic("orders").alter(config={"retention.ms": "1", "cleanup.policy": "delete"})
    roll(orders, now_ms=orders.storage.now_ms() + 30 * DAY_MS)
    retain(orders, now_ms=orders.storage.now_ms() + 60 * DAY_MS)
    assert update(orders, uri)["why"] == Reason.LOG_START
    assert content(uri) == [] == readable(orders)


@pytest.mark.cases(2)
def test_a_restore_reaches_a_table_both_ways(orders, uri, view):
    update(orders, uri, view=view)
    early = orders.topic("orders").snapshot.version
    append(orders, (b"a", b"2"), (b"d", b"2"))
    update(orders, uri)
    orders.topic("orders").delete_records({0: 4})
    update(orders, uri)
    restore(orders, topics=["orders"], version=early)
    assert update(orders, uri)["why"] == Reason.REWRITTEN
    assert content(uri) == readable(orders, view=view) and len(content(uri)) == 3
    assert update(orders, uri)["why"] is None


@pytest.mark.cases(2)
def test_a_table_of_a_follower_loses_what_a_restore_of_the_leader_took(orders, uri, view, tmp_path):
    version = orders.topic("orders").snapshot.version
    append(orders, (b"a", b"2"), (b"d", b"2"))
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=orders)
    update(follower, uri, view=view)
    restore(orders, topics=["orders"], version=version)
    mirror(follower, leader=orders)
    assert update(follower, uri)["why"] == Reason.REWRITTEN
    assert content(uri) == readable(orders, view=view) and len(content(uri)) == 3


@pytest.mark.cases(2)
def test_keys_that_were_erased_leave_a_table(log, uri, view):
    log.create_topic("orders")
    append(log, (b"a", b"1"), (b"b", b"1"))
    update(log, uri, view=view)
    erase(log, topics=["orders"], keys=[b"a"])
    assert update(log, uri)["why"] == Reason.ERASED
    assert content(uri) == readable(log, view=view) and len(content(uri)) == 1


@pytest.mark.cases(1)
def test_an_archive_keeps_what_leaves_its_topic(orders, uri):
    update(orders, uri, archive=True)
    every = readable(orders)
    append(orders, (b"a", b"2"))
    every += readable(orders)[3:]
    update(orders, uri)
    cleaned(orders)
    update(orders, uri)
    orders.topic("orders").delete_records({0: 3})
    append(orders, (b"e", b"1"))
    every += readable(orders)[-1:]
    update(orders, uri)
    assert content(uri) == every and len(readable(orders)) == 2


@pytest.mark.cases(1)
def test_an_archive_asks_for_erased_keys_and_loses_them(orders, uri):
    append(orders, (b"a", b"2"))
    update(orders, uri, archive=True)
    cleaned(orders)
    erase(orders, topics=["orders"], keys=[b"a"])
    assert "Keys of the topic were erased" in failure(orders, uri)
    assert {row["key"] for row in content(uri)} == {b"a", b"b", b"c"}
    update(orders, uri, keys=[b"a"])
    assert [row["key"] for row in content(uri) if row["value"] is not None] == [b"b", b"c"]
    update(orders, uri)


def values(uri, key):
    return [row["value"] for row in content(uri) if row["key"] == key]


@pytest.mark.cases(2)
@pytest.mark.parametrize("has_left", [False, True])
def test_an_archive_keeps_what_came_after_the_erasure_of_its_key(orders, uri, has_left):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    erase(orders, topics=["orders"], keys=[b"a"])
    append(orders, (b"a", b"new"))
    update(orders, uri, keys=[b"a"])
    assert values(uri, b"a") == [b"new"]
    append(orders, (b"a", b"newer"))
    update(orders, uri)
    if has_left:
        orders.topic("orders").delete_records({0: -1})
    for _ in range(2):
        update(orders, uri, keys=[b"a"])
        assert values(uri, b"a") == [b"new", b"newer"]


@pytest.mark.cases(1)
def test_an_archive_loses_a_key_that_is_named_later_than_another(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    for key in (b"a", b"b"):
        erase(orders, topics=["orders"], keys=[key])
        append(orders, (key, b"new"))
    update(orders, uri, keys=[b"a"])
    append(orders, (b"b", b"newer"))
    update(orders, uri)
    assert (values(uri, b"a"), values(uri, b"b")) == ([b"new"], [b"1", b"new", b"newer"])
    update(orders, uri, keys=[b"b"])
    assert (values(uri, b"a"), values(uri, b"b")) == ([b"new"], [b"new", b"newer"])


@pytest.mark.parametrize("forget", [False, True])
def test_an_archive_wants_as_many_keys_as_an_erasure_had(orders, uri, forget):
    update(orders, uri, archive=True)
    erase(orders, topics=["orders"], keys=[b"a", b"b"])
    assert "1 keys named, erasures since" in failure(orders, uri, keys=[b"a", b"a"], forget=forget)
    assert (values(uri, b"a"), values(uri, b"b")) == ([b"1"], [b"1"])
    update(orders, uri, keys=[b"a", b"b"], forget=forget)
    assert (values(uri, b"a"), values(uri, b"b")) == ([None], [None])  # the tombstones of a compacted topic


def test_fewer_keys_than_all_erasures_had_are_a_warning(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    for key in (b"a", b"b"):
        erase(orders, topics=["orders"], keys=[key])
    (warning,) = table(orders, topics=["orders"], table_uri=uri, keys=[b"a"]).warnings
    assert "1 keys named, erasures since" in warning and values(uri, b"b") == [b"1"]
    assert "No keys of topic orders" in table(orders, topics=["orders"], table_uri=uri, keys=[b"b"]).warnings[0]
    assert [row["key"] for row in content(uri)] == [b"c"]


@pytest.mark.cases(1)
def test_a_key_that_was_erased_between_two_records_of_another_leaves_with_its_own_records_alone(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    erase(orders, topics=["orders"], keys=[b"a"])
    append(orders, (b"a", b"new"))
    update(orders, uri, keys=[b"a"])
    erase(orders, topics=["orders"], keys=[b"b"])
    update(orders, uri, keys=[b"a", b"b"])  # the topic still has the new record of a
    assert (values(uri, b"a"), values(uri, b"b")) == ([b"new"], [])


def test_an_archive_that_was_made_after_an_erasure_keeps_its_rows(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    erase(orders, topics=["orders"], keys=[b"a"])
    append(orders, (b"a", b"new"))
    update(orders, uri, archive=True)
    orders.topic("orders").delete_records({0: -1})
    update(orders, uri, keys=[b"a"])
    assert values(uri, b"a") == [b"new"]


def test_a_key_that_no_erasure_took_stays_in_an_archive_with_a_warning(orders, uri):
    update(orders, uri, archive=True)
    (warning,) = table(orders, topics=["orders"], table_uri=uri, keys=[b"a"]).warnings
    assert "No keys of topic orders were erased since the last run" in warning and "--forget" in warning
    assert values(uri, b"a") == [b"1"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("earlier", [False, True])
def test_an_archive_forgets_a_key_whose_records_left_the_topic_before_its_erasure(orders, uri, earlier):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    if earlier:
        erase(orders, topics=["orders"], keys=[b"b"])
        update(orders, uri, keys=[b"b"])
        append(orders, (b"a", b"2"))
        update(orders, uri)
    emptied(orders)
    erase(orders, topics=["orders"], keys=[b"a"])
    report = table(orders, topics=["orders"], table_uri=uri, keys=[b"a"])
    assert "--forget" in report.warnings[0] and values(uri, b"a")[-1:] == ([b"2"] if earlier else [b"1"])
    for _ in range(2):
        update(orders, uri, keys=[b"a"], forget=True)
        assert values(uri, b"a") == [] and values(uri, b"c") == [b"1"]


def test_an_archive_does_not_forget_what_its_topic_has(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    emptied(orders)
    append(orders, (b"a", b"new"))
    update(orders, uri)
    update(orders, uri, keys=[b"a"], forget=True)
    assert values(uri, b"a") == [b"new"]
    with pytest.raises(InvalidOptionError, match="Which keys"):
        update(orders, uri, forget=True)


def test_an_archive_with_typed_keys_forgets_by_their_bytes(log, uri):
    log.create_topic("orders")
    append(log, (b'{"id": 1}', b"x"), (b'{"id": 2}', b"y"))
    update(log, uri, archive=True, formats={"key.format": "json", "key.schema": "id int"})
    emptied(log)
    update(log, uri, keys=[b'{"id": 1}'], forget=True)
    assert [row["value"] for row in content(uri)] == [b"y"]


@pytest.mark.cases(1)
def test_an_archive_keeps_what_came_into_partitions_that_were_added_after_an_erasure(orders, uri):
    orders.topic("orders").alter(config={"cleanup.policy": "delete"})
    update(orders, uri, archive=True)
    orders.topic("orders").alter(partitions=2)
    erase(orders, topics=["orders"], keys=[b"a"])
    append(orders, (b"a", b"new"), partition=[1])
    update(orders, uri, keys=[b"a"])
    assert values(uri, b"a") == [b"new"]
    orders.topic("orders").delete_records({0: -1, 1: -1})
    update(orders, uri, keys=[b"a"])
    assert values(uri, b"a") == [b"new"]


def test_an_archive_says_what_left_the_topic_before_it_came(orders, uri):
    update(orders, uri, archive=True)
    append(orders, (b"d", b"1"), (b"e", b"1"))
    orders.topic("orders").delete_records({0: 4})
    (warning,) = table(orders, topics=["orders"], table_uri=uri).warnings
    assert warning == "orders-0: offsets 3 to 3 left the topic before the archive had them"


def test_an_archive_of_a_topic_made_anew_is_an_error(orders, uri):
    update(orders, uri, archive=True)
    orders.delete_topic("orders")
    orders.create_topic("orders")
    assert Reason.OTHER_TOPIC in failure(orders, uri)
    assert len(content(uri)) == 3


@pytest.mark.cases(2)
def test_a_topic_made_anew_is_another_table(orders, uri, view):
    update(orders, uri, view=view)
    orders.delete_topic("orders")
    orders.create_topic("orders", partitions=2)
    append(orders, (b"a", b"new"))
    assert update(orders, uri)["why"] == Reason.OTHER_TOPIC
    assert content(uri) == readable(orders, view=view) and len(content(uri)) == 1


@pytest.mark.cases(2)
def test_commits_that_are_not_known_any_more_may_have_been_a_restore(orders, uri, view):
    update(orders, uri, view=view)
    append(orders, (b"d", b"1"))
    append(orders, (b"d", b"2"))
    commit = orders.topic("orders").snapshot.version - 1
    orders.topic("orders").manifest.keep_for_rebuild()  # a checkpoint, before which vacuum takes commits
    (Path(orders.uri) / f"_manifest/orders/_delta_log/{commit:020d}.json").rename(Path(uri) / "away")
    assert update(orders, uri)["why"] == Reason.REWRITTEN
    assert content(uri) == readable(orders, view=view)


@pytest.mark.cases(1)
def test_a_latest_table_is_made_anew_where_tombstones_may_be_gone(orders, uri):
    update(orders, uri, view="latest")
    orders.topic("orders").alter(config={"delete.retention.ms": "0"})
    append(orders, (b"a", None), (b"d", b"1"))
    now_ms = orders.storage.now_ms() + 30 * DAY_MS
    for later_ms in (now_ms, now_ms + 1):
        roll(orders, now_ms=later_ms)
        compact(orders, now_ms=later_ms)
        append(orders, (b"d", b"2"))
    assert b"a" not in [row["key"] for row in readable(orders)]
    assert update(orders, uri)["why"] == Reason.LATE
    assert content(uri) == readable(orders, view="latest")


# Other commits


def test_a_commit_of_somebody_else_does_not_hide_the_position(orders, delta, view):
    update(orders, delta, view=view)
    for number in range(12):
        properties = {"delta.checkpointInterval": str(10 + number)}
        tidy = CommitProperties(custom_metadata={"userMetadata": "tidy"})
        DeltaTable(delta).alter.set_table_properties(properties, commit_properties=tidy)
    append(orders, (b"d", b"1"))
    assert update(orders, delta)["why"] is None
    assert content(delta) == readable(orders, view=view)


@pytest.mark.cases(2)
def test_an_update_in_between_is_not_done_again(orders, uri, view):
    update(orders, uri, view=view)
    append(orders, (b"d", b"1"))
    others = []

    def progress(done, tasks):  # tasks are done, and nothing is committed
        if not others:
            others.append(update(orders, uri))

    assert update(orders, uri, progress=progress)["version"] == others[0]["version"] == 2
    assert content(uri) == readable(orders, view=view)


def test_a_tidy_commit_in_between_is_no_hindrance(orders, delta, view):
    update(orders, delta, view=view)
    append(orders, (b"d", b"1"))
    read = []

    def progress(done, tasks):
        if not read:
            DeltaTable(delta).alter.set_table_properties({"delta.checkpointInterval": "20"})
        read.append(done)

    assert update(orders, delta, progress=progress)["version"] == 3
    assert content(delta) == readable(orders, view=view)


@pytest.mark.cases(1)
def test_a_table_that_others_bring_forward_all_the_time_is_an_error(orders, uri):
    def progress(done, tasks):
        update(orders, uri)
        append(orders, (b"d", b"1"))

    assert "Run the job again" in failure(orders, uri, progress=progress)
    assert content(uri) == readable(orders)[:-1]


@pytest.mark.cases(1)
def test_a_table_that_others_have_optimized_follows_on(orders, delta, view):
    for value in (b"1", b"2", b"3"):
        append(orders, (b"a", value), (b"d", value))
        update(orders, delta, view=view)
    DeltaTable(delta).optimize.compact()
    append(orders, (b"b", b"2"))
    cleaned(orders)
    update(orders, delta)
    assert content(delta) == readable(orders, view=view)


@pytest.mark.proof
def test_a_table_is_opened_from_its_checkpoint(orders, delta):
    for number in range(11):
        append(orders, (b"d", b"%d" % number))
        update(orders, delta)
    assert (Path(delta) / f"_delta_log/{10:020d}.checkpoint.parquet").exists()
    (Path(delta) / f"_delta_log/{3:020d}.json").unlink()
    append(orders, (b"e", b"1"))
    update(orders, delta)
    assert content(delta) == readable(orders)


# What is refused


def test_a_table_stays_what_it_was_made_as(orders, uri):
    update(orders, uri)
    for other in ({"view": "latest"}, {"archive": True}, {"partition_by": "day"}):
        with pytest.raises(InvalidOptionError, match="another one"):
            table(orders, topics=["orders"], table_uri=uri, **other)
    with pytest.raises(InvalidOptionError, match="column value cannot take what the topic has"):
        table(orders, topics=["orders"], table_uri=uri, formats={"value.format": "string"})
    orders.create_topic("prices")
    with pytest.raises(InvalidOptionError, match="another one"):
        table(orders, topics=["prices"], table_uri=uri)
    with pytest.raises(UnknownTopicError):
        table(orders, topics=["no"], table_uri=uri)
    with pytest.raises(InvalidOptionError, match="no archive"):
        table(orders, topics=["orders"], table_uri=uri, keys=[b"a"])


def test_a_damaged_table_is_an_error_that_names_it(orders, delta):
    update(orders, delta)
    (Path(delta) / f"_delta_log/{1:020d}.json").write_text("{")
    assert delta in failure(orders, delta)


def test_a_table_of_others_is_left_alone(orders, delta):
    DeltaTable.create(delta, pa.schema([("n", pa.int32())]))
    assert "beside a topic" in failure(orders, delta)
    with pytest.raises(LogDirError, match="inside a log directory"):
        table(orders, topics=["orders"], table_uri=f"{orders.uri}/table")


def test_a_table_that_others_have_partitioned_is_an_error_that_says_by_what(orders, delta):
    update(orders, delta)
    there = DeltaTable(delta)
    settings, columns = there.metadata().configuration, there.schema()
    DeltaTable.create(
        delta, columns, mode="overwrite", partition_by=["key"], configuration=settings, raise_if_key_not_exists=False
    )
    assert "The table is partitioned by key" in failure(orders, delta)


def test_a_position_is_the_same_after_json():
    for version in (None, 7):
        positions = {0: Position(5, "id"), 12: Position(7, "id", 3)}
        for erasures, commit_id in ((None, None), ({}, ""), ({"an erasure": 98}, "a commit")):
            more = {"erasures": erasures, "commit_id": commit_id}
            position = TablePositions("id", positions, {0: 1, 12: 0}, 99, version, **more)
            assert TablePositions.from_json(position.to_json()) == position
    assert TablePositions.from_json("") is None and TablePositions.from_json('{"other": 1}') is None


# Other readers, and Spark


@pytest.mark.cases(2)
def test_readers_read_the_same(orders, uri, view, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    append(orders, (b"a", b"2"))
    update(orders, uri, view=view)
    append(orders, (b"b", None))
    update(orders, uri)
    if is_iceberg(uri):
        there = iceberg_table(uri)
        files = [task.file.file_path for task in there.scan().plan_files()]
        frame, rows = pl.scan_iceberg(there).collect(), there.scan().to_arrow()
    else:
        files = DeltaTable(uri).file_uris()
        frame, rows = pl.scan_delta(uri).collect(), DeltaTable(uri).to_pyarrow_table()
    names = ["partition", "offset", "key", "value"]
    expected = [tuple(row[name] for name in names) for row in readable(orders, view=view)]
    # DuckDB's own readers of both formats are extensions, which its package does not have.
    assert (
        sorted(duckdb.sql(f'SELECT partition, "offset", key, value FROM read_parquet({files})').fetchall()) == expected
    )
    assert sorted(frame.select(names).rows()) == expected
    files_rows = pa.concat_tables([pq.read_table(file, columns=names) for file in files])
    for found in (rows, files_rows):
        assert sorted(tuple(row[name] for name in names) for row in found.to_pylist()) == expected


def test_a_group_of_rows_ends_with_its_partition_unless_it_is_small(log, tmp_path, limits):
    log.create_topic("orders", partitions=3, config={"compression.type": "zstd"})
    counts = {0: 6, 1: 1, 2: 6}
    log.topic("orders").append(
        [{"value": b"v", "partition": number} for number, count in counts.items() for _ in range(count)]
    )
    limits(LEAST_GROUP_ROWS=4)
    update(log, str(tmp_path / "table"))
    (file,) = (tmp_path / "table").glob("*.parquet")
    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # The second partition has too few rows for a group, and is in one with the third.
    assert [group.num_rows for group in groups] == [6, 7]


def test_a_table_on_an_object_store_follows_and_is_read_there(s3_options, tmp_path):
    place = f"s3a://{BUCKET}/{tmp_path.name}"
    log = LogDir.create(f"{place}/log", s3_options)
    log.create_topic("orders")
    append(log, (b"a", b"1"), (b"b", b"1"))
    update(log, f"{place}/table", partition_by="day")
    append(log, (b"a", b"2"))
    log.topic("orders").delete_records({0: 1})
    assert update(log, f"{place}/table")["version"] == 2
    uri, options = Storage(f"{place}/table", s3_options).delta_uri()
    there = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=COLUMNS)
    assert by_place(there.to_pylist()) == readable(log)
    found = pl.read_delta(uri, storage_options=options).sort("offset").select("key", "value").rows()
    assert found == [(b"b", b"1"), (b"a", b"2")]


@pytest.mark.cases(1)
@pytest.mark.spark
def test_a_session_does_the_work_and_spark_reads_the_files(spark, orders, delta, view):
    append(orders, (b"a", b"2"))
    update(orders, delta, view=view, spark=spark)
    append(orders, (b"b", None), (b"d", b"1"))
    cleaned(orders)
    update(orders, delta, spark=spark)
    frame = spark.read.parquet(*DeltaTable(delta).file_uris())
    assert by_place(frame.select(COLUMNS).toArrow().to_pylist()) == readable(orders, view=view)


@pytest.mark.proof
def test_updates_killed_at_random_end_with_the_records_of_the_topic(tmp_path, python_environment):
    """The short form of python -m verification.kills.table_kills."""
    runs, _ = killed_and_ended(tmp_path, kills=3, seed=1, environment=python_environment)
    assert runs > 3


@pytest.mark.proof
def test_two_writers_that_are_killed_leave_the_records_of_the_topic(orders, uri, view, python_environment):
    update(orders, uri, view=view)
    two_writers_killed(orders, uri, 20, random.Random(7), python_environment)
    assert content(uri) == readable(orders, view=view)


@pytest.mark.cases(2)
def test_versions_of_a_promoted_follower_are_not_those_of_its_leader(orders, uri, tmp_path, view):
    """The follower has the compaction at a lower version than the table has from the leader."""
    append(orders, (b"a", b"2"))
    for number in range(3):
        orders.topic("orders").alter(config={"segment.ms": str(10**9 + number)})
    update(orders, uri, view=view)
    cleaned(orders)
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=orders)
    promote(follower, former=orders)
    reached = table_version(uri)
    while follower.topic("orders").snapshot.version <= reached:
        append(follower, (b"d", b"1"))
    assert update(follower, uri)["why"] == Reason.REWRITTEN
    assert content(uri) == readable(follower, view=view)
    append(follower, (b"e", b"1"))
    assert update(follower, uri)["why"] is None


def table_version(uri):
    """The version of the topic that the newest commit of a table names."""
    side = (IcebergSide if is_iceberg(uri) else DeltaSide)(uri, "key")
    return side.commits()[-1][1].version


def test_a_run_that_ends_in_the_midst_of_a_file_leaves_no_file_and_prints_nothing_of_its_writer(
    log, tmp_path, monkeypatch
):
    """A group of rows is written before the record comes that cannot be decoded."""
    count = (1 << 17) + 1
    values = pa.array([b"\0\0\0\1"] * count, pa.binary())
    topic = log.create_topic("numbers")
    topic.append(pa.table({"value": values}))
    topic.append([{"value": b"no int"}])
    ignored: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: ignored.append(str(raised.exc_value)))
    report = table(log, topics=["numbers"], table_uri=str(tmp_path / "lake"), formats={"value.format": "int"})
    assert "expected int" in str(report.failed)
    del report
    gc.collect()
    assert ignored == []
    assert [*(tmp_path / "lake").rglob("*.parquet")] == []
