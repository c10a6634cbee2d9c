"""Erasure where partitions were added: a value that is written after an erasure is seen, whatever its time."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.log.eras import MOST_ADDITIONS, Eras
from spark_segments.maintenance import compact, erase, mirror, restore, roll, table
from tests.examples import examples
from tests.log.test_latest_across import CONFIG, cleaned, values
from verification.world.topics import DAY_MS, append

ADA, BOB = b"ada", b"bob"


def seen(log: LogDir) -> dict[bytes, bytes]:
    """{key: value} of the view without tombstones."""
    return values(log, include_tombstones=False)


def erased(log: LogDir, *keys: bytes) -> None:
    erase(log, topics=["orders"], keys=list(keys))


def partition_of(log: LogDir, key: bytes) -> int:
    found = log.topic("orders").scan(columns=["key", "partition"]).to_table().to_pylist()
    return [row["partition"] for row in found if row["key"] == key][-1]


@pytest.fixture
def grown(log) -> LogDir:
    """Ada in the one partition, then four; her new records go to another one."""
    log.create_topic("orders", config=CONFIG)
    append(log, (ADA, b"London"), (BOB, b"Paris"), time_ms=log.storage.now_ms())
    log.topic("orders").alter(partitions=4)
    return log


@pytest.mark.parametrize("ago_ms", [-DAY_MS, 0, 600_000, 400 * DAY_MS])
def test_a_value_that_is_written_after_an_erasure_is_seen_whatever_its_time(grown, ago_ms):
    now_ms = grown.storage.now_ms()
    erased(grown, ADA)
    append(grown, (ADA, b"Turin"), time_ms=now_ms - ago_ms)
    assert partition_of(grown, ADA) != 0
    assert seen(grown) == {ADA: b"Turin", BOB: b"Paris"}
    cleaned(grown)
    assert seen(grown) == {ADA: b"Turin", BOB: b"Paris"}


def test_the_table_of_newest_values_has_it_too(grown, tmp_path):
    uri = str(tmp_path / "table")
    table(grown, topics=["orders"], table_uri=uri, view="latest")
    erased(grown, ADA)
    table(grown, topics=["orders"], table_uri=uri, view="latest")
    append(grown, (ADA, b"Turin"), time_ms=grown.storage.now_ms() - 600_000)
    table(grown, topics=["orders"], table_uri=uri, view="latest")
    rows = DeltaTable(uri).to_pyarrow_table(columns=["key", "value"]).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {ADA: b"Turin", BOB: b"Paris"}


@pytest.mark.spark
def test_spark_has_it_too(grown, spark):
    erased(grown, ADA)
    append(grown, (ADA, b"Turin"), time_ms=grown.storage.now_ms() - 600_000)
    read = spark.read.format("segments").option("subscribe", "orders").option("view", "latest")
    rows = read.option("includeTombstones", "false").load(grown.uri).select("key", "value").collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == {ADA: b"Turin", BOB: b"Paris"}


def test_a_tombstone_in_the_new_partition_hides_nothing_later_either(grown):
    append(grown, (ADA, b"Rome"))
    new = partition_of(grown, ADA)
    erased(grown, ADA)
    assert seen(grown) == {BOB: b"Paris"}
    append(grown, (ADA, b"Turin"), time_ms=0)
    assert seen(grown)[ADA] == b"Turin"
    append(grown, (ADA, b"Oslo"), time_ms=0, partitions=[(new + 1) % 4])
    assert seen(grown)[ADA] in (b"Turin", b"Oslo")  # a writer that chose the partition: the same era and time


def test_a_writer_that_chooses_partitions_is_seen_after_an_erasure(grown):
    for partition in (3, 0, 2, 1):
        erased(grown, ADA)
        append(grown, (ADA, b"%d" % partition), time_ms=0, partitions=[partition])
        assert seen(grown) == {ADA: b"%d" % partition, BOB: b"Paris"}


def test_two_erasures_and_a_compaction_in_between(grown):
    erased(grown, ADA)
    append(grown, (ADA, b"Turin"), time_ms=0)
    cleaned(grown)
    erased(grown, ADA)
    assert seen(grown) == {BOB: b"Paris"}
    cleaned(grown)
    append(grown, (ADA, b"Oslo"), time_ms=0)
    assert seen(grown) == {ADA: b"Oslo", BOB: b"Paris"}
    erased(grown, BOB)
    assert seen(grown) == {ADA: b"Oslo"}


def test_an_erasure_of_another_key_moves_nothing(grown):
    append(grown, (ADA, b"Turin"), time_ms=0)
    erased(grown, BOB)
    assert seen(grown) == {ADA: b"Turin"}
    log_start = grown.topic("orders").snapshot.states
    erased(grown, BOB)  # nothing to do
    assert grown.topic("orders").snapshot.states == log_start


def test_a_restore_brings_the_values_of_its_version_back(grown):
    version = grown.topic("orders").snapshot.version
    erased(grown, ADA)
    append(grown, (ADA, b"Turin"), time_ms=0)
    restore(grown, topics=["orders"], version=version, including_erased=True)
    assert seen(grown) == {ADA: b"London", BOB: b"Paris"}
    append(grown, (ADA, b"Oslo"), time_ms=0)
    assert seen(grown) == {ADA: b"Oslo", BOB: b"Paris"}


def test_a_follower_has_the_same(grown, tmp_path):
    erased(grown, ADA)
    append(grown, (ADA, b"Turin"), time_ms=0)
    follower = LogDir.create(str(tmp_path / "follower"))
    mirror(follower, leader=grown)
    assert values(follower) == values(grown)


def test_a_topic_whose_keys_have_one_partition_each_gets_no_era(log):
    log.create_topic("orders", partitions=3, config=CONFIG)
    append(log, (ADA, b"London"))
    erased(log, ADA)
    assert Eras.of(log.topic("orders").snapshot) is None


@pytest.mark.proof
def test_many_erasures_forget_no_addition(grown):
    for number in range(MOST_ADDITIONS + 5):
        append(grown, (ADA, b"%d" % number), time_ms=0)
        erased(grown, ADA)
    eras = Eras.of(grown.topic("orders").snapshot)
    assert len(eras.ends) == MOST_ADDITIONS and len(eras.ends[0]) == 1
    append(grown, (BOB, b"Rome"), time_ms=0)
    assert seen(grown) == {BOB: b"Rome"}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([ADA, BOB]), st.integers(0, 3) | st.just(10**13)),
        st.tuples(st.just("erase"), st.sampled_from([ADA, BOB])),
        st.tuples(st.just("grow")),
        st.tuples(st.just("clean")),
    ),
    max_size=9,
)


@examples(60)
@given(steps)
def test_any_history_has_the_newest_value_by_the_order_of_commits(tmp_path_factory, steps):
    log, expected, clock = LogDir.create(str(tmp_path_factory.mktemp("log"))), {}, 0
    log.create_topic("orders", config=CONFIG)
    for number, (step, *more) in enumerate(steps):
        if step == "append":
            key, time_ms = more
            expected[key] = b"%d" % number
            append(log, (key, expected[key]), time_ms=time_ms)
        elif step == "erase":
            erased(log, *more)
            expected.pop(more[0], None)
        elif step == "grow":
            log.topic("orders").alter(partitions=len(log.topic("orders").offsets()) + 1)
        else:
            clock += 30 * DAY_MS
            roll(log, now_ms=log.storage.now_ms() + clock)
            compact(log, now_ms=log.storage.now_ms() + clock)
        assert seen(log) == expected
