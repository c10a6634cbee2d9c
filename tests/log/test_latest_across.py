"""The view latest of topics to which partitions were added, against a dict by the order of commits."""

from __future__ import annotations

import shutil
from itertools import count

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.log.reading.across import AcrossPart, read_across
from spark_segments.maintenance import compact, erase, mirror, restore, roll
from spark_segments.polars import scan_topic
from tests.examples import examples
from verification.rebuild.lost import again, rebuild_manifest
from verification.world.topics import DAY_MS, append, column, later

COLUMNS = ["partition", "offset", "key", "value"]
FOREVER_MS = str(10**12)
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": FOREVER_MS}
KEYS = [b"k%d" % number for number in range(8)]
FILLERS = [b"f%d" % number for number in range(5)]


def latest(log, **options):
    return log.topic("orders").scan(columns=COLUMNS, view="latest", **options).to_table()


def values(log, **options):
    """{key: value}; each key has one row."""
    rows = latest(log, **options).to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}


def cleaned(log, days=30):
    later_ms = log.storage.now_ms() + days * DAY_MS
    roll(log, now_ms=later_ms)
    compact(log, now_ms=later_ms)


def fill(log):
    """Gives each of five partitions records to clean."""
    append(log, *[(key, b"1") for key in FILLERS * 2], partitions=[*range(5)] * 2)


@pytest.fixture
def grown(log):
    """Eight keys in two partitions, then five partitions."""
    log.create_topic("orders", partitions=2, config=CONFIG)
    append(log, *[(key, b"old") for key in KEYS])
    log.topic("orders").alter(partitions=5)
    return log


def test_new_values_take_the_place_of_old_ones_in_other_partitions(grown):
    assert values(grown) == dict.fromkeys(KEYS, b"old")
    append(grown, *[(key, b"new") for key in KEYS])
    assert values(grown) == dict.fromkeys(KEYS, b"new")
    cleaned(grown)
    assert values(grown) == dict.fromkeys(KEYS, b"new")


def test_tombstones_hide_values_of_other_partitions(grown):
    append(grown, *[(key, None) for key in KEYS[:6]])
    assert values(grown, include_tombstones=False) == dict.fromkeys(KEYS[6:], b"old")
    assert values(grown) == dict.fromkeys(KEYS[6:], b"old") | dict.fromkeys(KEYS[:6])
    cleaned(grown)
    assert values(grown, include_tombstones=False) == dict.fromkeys(KEYS[6:], b"old")


def test_later_timestamps_of_before_do_not_come_back(grown):
    """Commits decide, whatever the records say of their times."""
    append(grown, *[(key, b"new") for key in KEYS], time_ms=0)
    assert values(grown) == dict.fromkeys(KEYS, b"new")


def test_a_tombstone_outlives_older_values_of_its_key_in_other_partitions(log):
    config = CONFIG | {"delete.retention.ms": "0", "cleanup.policy": "compact,delete"}
    log.create_topic("orders", partitions=2, config=config)
    append(log, *[(key, b"old") for key in KEYS])
    log.topic("orders").alter(partitions=5)
    append(log, *[(key, None) for key in [*KEYS[:6], b"x"]])
    for days in (30, 60, 90):
        fill(log)
        cleaned(log, days)
        there = values(log, include_tombstones=False)
        assert {key for key in there if key not in FILLERS} == {*KEYS[6:]}
    held = {row["key"] for row in latest(log).to_pylist() if row["value"] is None}
    assert held and held < {*KEYS[:6]}  # x has no value anywhere, nor have keys whose partition is still the same
    log.topic("orders").delete_records({0: -1, 1: -1})
    fill(log)
    cleaned(log, 120)
    assert values(log).keys() == {*FILLERS}


def test_a_key_that_was_erased_leaves_with_its_tombstones(log):
    log.create_topic("orders", partitions=2, config=CONFIG | {"delete.retention.ms": "0"})
    append(log, *[(key, b"old") for key in KEYS])
    log.topic("orders").alter(partitions=5)
    append(log, *[(key, b"new") for key in KEYS])
    roll(log, now_ms=later(log, 30))
    erase(log, topics=["orders"], keys=KEYS[:4])
    for days in (30, 60, 90):
        fill(log)
        cleaned(log, days)
    rows = column(log, "orders", "key")
    assert not {*KEYS[:4]} & {*rows}


@pytest.mark.proof
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"v"])), min_size=1, max_size=6),
            st.integers(1, 3),
            st.sampled_from(["delete", "expire", "roll", "compact", "restore"]),
        ),
        min_size=4,
        max_size=12,
    ),
    st.sampled_from([FOREVER_MS, "0"]),
)
@example([[(key, b"v") for key in KEYS], 3, "delete", "expire", 2, "delete", "expire"], "0")
def test_the_view_is_the_dict_of_all_commits(tmp_path_factory, steps, delete_retention_ms):
    log = LogDir.create(str(tmp_path_factory.mktemp("log") / "log"))
    log.create_topic("orders", partitions=2, config=CONFIG | {"delete.retention.ms": delete_retention_ms})
    partitions, newest, number = 2, {}, count()
    for step in steps:
        if isinstance(step, list):
            pairs = [(key, value and b"%d" % next(number)) for key, value in step]
            append(log, *pairs)
            newest |= dict(pairs)
        elif isinstance(step, int):
            partitions += step
            log.topic("orders").alter(partitions=partitions)
        elif step == "roll":
            roll(log, now_ms=later(log, 30))
        elif step == "delete":
            append(log, *[(key, None) for key in KEYS])
            newest |= dict.fromkeys(KEYS)
        elif step == "compact":
            cleaned(log, days=30 * (1 + next(number)))
        elif step == "expire":  # tombstones get their time with the first cleaning, and go with the second
            for _ in range(2):
                fillers = [b"f%d" % partition for partition in range(partitions)] * 2
                append(log, *[(key, b"1") for key in fillers], partitions=[*range(partitions)] * 2)
                newest |= dict.fromkeys(fillers, b"1")
                cleaned(log, days=30 * (1 + next(number)))
        elif newest:
            version = log.topic("orders").version
            append(log, (KEYS[0], b"taken back"))
            restore(log, topics=["orders"], version=version)
        # Without an addition of partitions each partition has its keys: the same dict.
        if delete_retention_ms == FOREVER_MS:
            assert values(log) == newest
        assert values(log, include_tombstones=False) == {key: value for key, value in newest.items() if value}


def ranked(rows):
    """The newest of each key of (key, value, partition, offset, timestamp, era), by the rule of the documentation."""
    by_partition = {(row[0], row[2]): row for row in rows}
    newest = {}
    for row in sorted(by_partition.values(), key=lambda row: (row[5], row[4], row[3], row[2])):
        newest[row[0]] = row[1]
    return newest


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.sampled_from(KEYS[:3]), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=5
            ),
            st.sampled_from(["alter", "compact"]),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_partitions_that_writers_choose_are_decided_by_time_within_an_era(tmp_path_factory, steps):
    log = LogDir.create(str(tmp_path_factory.mktemp("log") / "log"))
    log.create_topic("orders", partitions=2, config=CONFIG)
    append(log, (b"first", b"1"))
    log.topic("orders").alter(partitions=3)
    era, rows, number = 0, [(b"first", b"1", 0, 0, 0, -1)], count()
    for step in steps:
        if isinstance(step, list):
            ends = {partition: end for partition, (_, end) in log.topic("orders").offsets().items()}
            pairs = [(key, b"%d" % next(number)) for key, _, _ in step]
            append(log, *pairs, partitions=[one[1] for one in step], time_ms=[one[2] for one in step])
            for (key, value), (_, partition, time_ms) in zip(pairs, step, strict=True):
                rows.append((key, value, partition, ends[partition], time_ms, era))
                ends[partition] += 1
        elif step == "alter":
            log.topic("orders").alter(partitions=len(log.topic("orders").offsets()) + 1)
            era += 1
        else:
            cleaned(log)
        assert values(log) == ranked(rows)


def test_a_range_has_the_newest_of_its_own_records(grown):
    ends = {number: end for number, (_, end) in grown.topic("orders").offsets().items()}
    append(grown, *[(key, b"new") for key in KEYS])
    assert values(grown, offsets={number: (0, end) for number, end in ends.items()}) == dict.fromkeys(KEYS, b"old")
    rows = grown.topic("orders").scan(partition=0, columns=COLUMNS, view="latest").to_table().to_pylist()
    assert rows and {row["partition"] for row in rows} == {0}


def test_rows_come_by_partition_and_offset_in_any_columns(grown):
    append(grown, *[(key, b"new") for key in KEYS[:5]])
    places = [(row["partition"], row["offset"]) for row in latest(grown).to_pylist()]
    assert places == sorted(places)
    for options in ({"columns": ["value"]}, {"columns": ["value"], "value_type": "binary_view"}):
        table = grown.topic("orders").scan(view="latest", **options).to_table()
        assert (
            table.column_names == ["value"] and sorted(table.column("value").to_pylist()) == [b"new"] * 5 + [b"old"] * 3
        )


@pytest.mark.proof
def test_keys_that_fit_no_memory_are_looked_at_share_by_share(log):
    log.create_topic("orders", partitions=2, config=CONFIG)
    keys = [b"%d" % number for number in range(60)]
    append(log, *[(key, b"old") for key in keys])
    log.topic("orders").alter(partitions=3)
    append(log, *[(key, b"new") for key in keys[::2]])
    (part,) = log.topic("orders").scan(columns=["key", "value"], view="latest").parts()
    for map_bytes in (300, 2_000, 1 << 20):
        table = pa.Table.from_batches(read_across(log.storage, part, map_bytes=map_bytes))
        assert table.num_rows == 60 and table.column("value").to_pylist().count(b"new") == 30


def test_a_topic_that_was_never_altered_is_read_partition_by_partition(log):
    log.create_topic("orders", partitions=3, config=CONFIG)
    append(log, (b"a", b"0"), (b"a", b"1"), partitions=[0, 1])
    assert not any(isinstance(part, AcrossPart) for part in log.topic("orders").scan(view="latest").parts())
    assert latest(log).column("value").to_pylist() == [b"0", b"1"]


def test_partitions_that_are_added_before_any_record_change_nothing(log):
    log.create_topic("orders", partitions=2, config=CONFIG)
    log.topic("orders").alter(partitions=4)
    append(log, *[(key, b"1") for key in KEYS])
    assert log.topic("orders").snapshot.states == {}


def test_an_alteration_without_appends_since_the_last_is_none(grown):
    noted = grown.topic("orders").snapshot.states
    grown.topic("orders").alter(partitions=6)
    assert grown.topic("orders").snapshot.states == noted


@pytest.mark.proof
def test_many_alterations_are_remembered_up_to_a_hundred(log):
    log.create_topic("orders", config=CONFIG)
    for number in range(1, 104):
        append(log, (b"a", b"%d" % number), (b"b", b"%d" % number))
        log.topic("orders").alter(partitions=number + 1)
    assert log.topic("orders").snapshot.states["partitions_added"].count("]") == 101
    assert values(log) == {b"a": b"103", b"b": b"103"}


def test_a_mirror_decides_as_its_leader(grown, tmp_path):
    append(grown, *[(key, b"new") for key in KEYS[:6]])
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=grown)
    assert values(follower) == values(grown) == dict.fromkeys(KEYS, b"old") | dict.fromkeys(KEYS[:6], b"new")


def test_a_writer_that_began_before_the_addition_is_an_era_of_its_own(grown):
    """Its keys went by five partitions, those of the commits before and after it by nine."""
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("ms", "UTC")})

    def rows():
        yield pa.RecordBatch.from_pylist([{"key": key, "value": b"2", "timestamp": 5} for key in KEYS], schema)
        grown.topic("orders").alter(partitions=9)
        append(grown, *[(key, b"1") for key in KEYS], time_ms=9)

    grown.topic("orders").append(pa.RecordBatchReader.from_batches(schema, rows()))
    assert values(grown) == dict.fromkeys(KEYS, b"2")
    append(grown, *[(key, b"3") for key in KEYS], time_ms=1)
    assert values(grown) == dict.fromkeys(KEYS, b"3")


@pytest.fixture
def broker_directory(log, tmp_path):
    """Of a broker. Key a is in three partitions, its newest record in the middle one; b has two records of one time."""
    log.create_topic("orders", partitions=3, config=CONFIG)
    append(log, (b"a", b"0"), (b"a", b"1"), (b"a", b"2"), partitions=[0, 1, 2], time_ms=[5, 7, 6])
    append(log, (b"c", b"0"), (b"b", b"0"), (b"b", b"1"), partitions=[0, 0, 1], time_ms=[1, 9, 9])
    assert latest(log).num_rows == 6
    log.export_kafka(str(tmp_path / "kafka"), "orders")
    return str(tmp_path / "kafka")


def test_topics_of_a_broker_are_decided_by_timestamp_then_offset(broker_directory, tmp_path):
    newest = {b"a": b"1", b"b": b"0", b"c": b"0"}
    assert values(LogDir.open(broker_directory)) == newest
    copy = LogDir.create(str(tmp_path / "copy"))
    copy.import_kafka(broker_directory)
    assert values(copy) == newest
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=copy)
    assert values(follower) == newest
    copy.topic("orders").alter(partitions=4)
    append(copy, (b"a", b"3"), time_ms=0)
    assert values(copy) == newest | {b"a": b"3"}


def test_a_rebuilt_topic_decides_as_before(grown):
    append(grown, *[(key, b"new") for key in KEYS[:6]])
    before = values(grown)
    shutil.rmtree(f"{grown.uri}/_manifest/orders")
    rebuild_manifest(again(grown), "orders")
    assert values(again(grown)) == before


def test_conditions_of_polars_do_not_hide_what_is_newer(grown):
    append(grown, *[(key, b"new") for key in KEYS])
    frame = scan_topic(grown.uri, "orders", view="latest")
    wanted = latest(grown).to_pylist()
    for partition in range(5):
        rows = frame.filter(pl.col("partition") == partition).select(COLUMNS).collect().to_dicts()
        assert rows == [row for row in wanted if row["partition"] == partition]
    rows = frame.filter(pl.col("offset") >= 2).select(COLUMNS).collect().to_dicts()
    assert rows == [row for row in wanted if row["offset"] >= 2]


@pytest.mark.proof
@pytest.mark.spark
def test_engines_have_the_same_rows(spark, grown):
    append(grown, *[(key, None if number % 2 else b"new") for number, key in enumerate(KEYS[:5])])
    wanted = sorted(latest(grown, include_tombstones=False).select(["key", "value"]).to_pylist(), key=str)
    assert len(wanted) == 6
    polars = scan_topic(grown.uri, "orders", view="latest", include_tombstones=False).select("key", "value").collect()
    assert sorted(polars.to_dicts(), key=str) == wanted
    with TopicDatabase(grown) as database:
        query = 'SELECT key, value FROM "orders$latest" WHERE value IS NOT NULL'
        rows = database.sql(query).to_table().select(["key", "value"]).to_pylist()
    assert sorted(rows, key=str) == wanted
    for options in ({}, {"minPartitions": "4", "maxRecordsPerPartition": "4"}):
        frame = (
            spark.read.format("segments").options(
                subscribe="orders", view="latest", includeTombstones="false", **options
            )
        ).load(grown.uri)
        rows = frame.select("key", "value").toArrow().to_pylist()
        assert sorted(rows, key=str) == wanted
