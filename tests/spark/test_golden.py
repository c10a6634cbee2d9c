"""Kafka's own directories, read by Spark, against what Kafka's own reader says of them."""

from __future__ import annotations

import shutil

import pytest

from tests.spark.records import by_partition, expected
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, expected_records, golden_dir, queries

READABLE = [*CLEAN_DIRECTORIES, "live-0"]


def topic_of(name: str) -> tuple[str, int]:
    """A topic of its own for each golden directory, so that one log directory can hold them all."""
    stem, _, number = name.rpartition("-")
    return stem.replace("/", "."), int(number)


@pytest.fixture(scope="module")
def kafka_directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("golden") / "kafka"
    for name in READABLE:
        topic, number = topic_of(name)
        shutil.copytree(golden_dir(name), root / f"{topic}-{number}")
    return root


def read(spark, path, **options):
    return spark.read.format("segments").options(includeHeaders="true", **options).load(str(path))


def test_every_directory_reads_record_for_record(spark, kafka_directory):
    found = by_partition(read(spark, kafka_directory, subscribePattern=".*").toArrow())
    for name in READABLE:
        assert found.get(topic_of(name), []) == expected(expected_records(name)), name
    assert sum(map(len, found.values())) == sum(len(expected(expected_records(name))) for name in READABLE)


@pytest.mark.proof
def test_a_directory_split_into_many_tasks_reads_the_same(spark, kafka_directory):
    frame = read(spark, kafka_directory, subscribe="plain,zstd,canary", maxPartitionBytes="20k", minPartitions="12")
    assert frame.rdd.getNumPartitions() > 20
    found = by_partition(frame.toArrow())
    for name in ("plain-0", "zstd-0", "canary-0"):
        assert found[topic_of(name)] == expected(expected_records(name)), name


def test_read_committed_leaves_out_what_a_committed_reader_would_not_get(spark, kafka_directory):
    names = ["txn-0", "txn-compact/dirty/txnc-0", "txn-compact/clean-1/txnc-0"]
    topics = ",".join(topic_of(name)[0] for name in names)
    frame = read(spark, kafka_directory, subscribe=topics, **{"kafka.isolation.level": "read_committed"})
    found = by_partition(frame.toArrow())
    for name in names:
        committed = [record for record in expected_records(name) if record["committed"]]
        assert found[topic_of(name)] == expected(committed), name


def test_the_log_start_of_a_brokers_checkpoint_hides_what_lies_below_it(spark):
    found = by_partition(read(spark, golden_dir("broker-data"), subscribe="orders").toArrow())
    assert found["orders", 0] == [
        record for record in expected(expected_records("broker-data/orders-0")) if record[0] >= 500
    ]
    assert found["orders", 1] == expected(expected_records("broker-data/orders-1"))


@pytest.mark.parametrize("name", ["plain-0", "outoforder-0", "logappend-0"])
def test_a_start_by_time_is_kafkas_own_answer(spark, kafka_directory, name):
    answers = [
        (query["target"], query["offset"])
        for query in queries(name)
        if query["query"] == "offsetForTimestamp" and query["target"] >= 0 and (query["offset"] or -1) >= 0
    ]
    target, offset = answers[len(answers) // 2]
    topic, _ = topic_of(name)
    frame = read(spark, kafka_directory, subscribe=topic, startingTimestamp=str(target))
    assert frame.selectExpr("min(offset)").head()[0] == offset
