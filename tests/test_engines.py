"""Every engine in this process gives the same rows: on each golden directory, and on random histories of a topic.

Here there are 40 histories. `python -m tests.test_engines N [spark] [sail]` compares N, with Spark and Sail, too, whose
golden directories have tests of their own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions, spark_session
from spark_segments.duckdb import TopicDatabase
from spark_segments.maintenance import compact, retain, roll
from spark_segments.polars import scan_topic
from verification.spark.sail_server import sail_session
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.kafka_bytes.segment_bytes import RECORD_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def plain(log: LogDir, topic: str, threads: int | None = None, **options) -> pa.Table:
    return pa.Table.from_batches(list(log.topic(topic).scan(**options).batches(threads)), RECORD_SCHEMA)


def by_duckdb(log: LogDir, topic: str, view: str | None, isolation_level: str) -> pa.Table:
    name = topic if view is None else f"{topic}${view}"
    with TopicDatabase(log, isolation=isolation_level, threads=2) as database:
        found = database.sql(f'SELECT * FROM "{name}" ORDER BY partition, "offset"').to_table()
    return in_schema(found)


def by_polars(log: LogDir, topic: str, view: str | None, isolation_level: str) -> pa.Table:
    frame = scan_topic(log.uri, topic, view=view, isolation=isolation_level, threads=2)
    return in_schema(frame.collect().to_arrow())


def in_schema(table: pa.Table) -> pa.Table:
    """The rows in the types of a read: DuckDB's timestamps have the zone of its session, Polars has large lists."""
    return table.cast(RECORD_SCHEMA)


def assert_same(log: LogDir, topic: str, view: str | None, isolation_level: str) -> None:
    expected = plain(log, topic, view=view, isolation=isolation_level)
    threads = plain(log, topic, threads=2, view=view, isolation=isolation_level)
    streamed = (
        log.topic(topic).scan(view=view, isolation=isolation_level, value_type="binary_view").to_reader().read_all()
    )
    assert threads == expected
    assert in_schema(streamed) == expected
    assert by_duckdb(log, topic, view, isolation_level) == expected
    assert by_polars(log, topic, view, isolation_level) == expected


@pytest.mark.cases(1)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_engines_agree_on_golden_directories(isolation_level):
    log = LogDir.open(str(GOLDEN))
    topics = log.topics()
    assert len(topics) > 15
    for topic in topics:
        assert_same(log, topic, None, isolation_level)


def by_session(session: SparkSession, log: LogDir, topic: str, view: str | None) -> pa.Table:
    reader = session.read.format("segments").option("subscribe", topic).option("includeHeaders", "true")
    if view is not None:
        reader = reader.option("view", view)
    found = reader.load(log.uri).toArrow()
    return in_schema(found.sort_by([("partition", "ascending"), ("offset", "ascending")]))


def compare_history(seed: int, sessions: Sequence[SparkSession] = ()) -> None:
    """A random history: appends of all codecs and sizes, deletions of records, rolls, compactions, retentions."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(f"{directory}/log")
        config = {"cleanup.policy": "compact,delete", "segment.bytes": "3000", "index.interval.bytes": "200"}
        log.create_topic("t", choose.randint(1, 3), config | {"min.cleanable.dirty.ratio": "0", "retention.ms": "-1"})
        for _ in range(choose.randint(1, 6)):
            rows = choose.randint(1, 80)
            times = [choose.randint(0, 10**9) * 1000 for _ in range(rows)]
            table = {
                "key": [b"%d" % choose.randint(0, 20) for _ in range(rows)],
                "value": [choose.choice([None, b"", choose.randbytes(choose.randint(1, 90))]) for _ in range(rows)],
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
                "headers": pa.array(
                    [[{"key": "h", "value": b"x"}] * choose.randint(0, 2) for _ in range(rows)],
                    RECORD_SCHEMA.field("headers").type,
                ),
            }
            options = ProducerOptions(choose.choice(CODECS), choose.choice([200, 2000, 100_000]))
            log.topic("t").append(pa.table(table), options=options)
            job = choose.choice([None, roll, compact, retain, "delete"])
            if job == "delete":
                log.topic("t").delete_records({0: choose.randint(0, log.topic("t").offsets()[0][1])})
            elif job is not None:
                job(log)
        for view in (None, "latest"):
            assert_same(log, "t", view, "read_uncommitted")
            for session in sessions:
                assert by_session(session, log, "t", view) == plain(log, "t", view=view)


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_engines_agree_on_random_histories(first):
    for seed in range(first, first + 10):
        compare_history(seed)


def main(count: int, engines: Sequence[str]) -> None:
    """Compares histories in this process' engines and in those named: spark, sail."""
    with contextlib.ExitStack() as stack:
        sessions = []
        if "sail" in engines:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            sessions.append(stack.enter_context(sail_session(Path(directory))))
        if "spark" in engines:
            spark = spark_session("engines", master="local[2]")
            stack.callback(spark.stop)
            sessions.append(spark)
        for number in range(count):
            compare_history(number, sessions)
    print(f"{count} histories: {', '.join(['Arrow', 'threads', 'DuckDB', 'Polars', *engines])} agree")


@pytest.mark.proof
def test_engines_read_a_topic_as_it_was_by_version_and_by_time(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    for number in range(3):
        log.topic("t").append([{"value": str(number)}])
    commits = {commit["version"]: commit["committed_ms"] for commit in log.topic("t").history()}
    for version, at_ms in commits.items():
        newest = max(number for number, committed_ms in commits.items() if committed_ms <= at_ms)
        moment = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
        for count, polars, duckdb in (
            (version, {"version": version}, {"versions": {"t": version}}),
            (newest, {"timestamp": at_ms}, {"timestamp": at_ms}),
            (newest, {"timestamp": moment}, {"timestamp": moment}),
        ):
            values = [b"0", b"1", b"2"][:count]
            assert scan_topic(log.uri, "t", **polars).collect()["value"].to_list() == values
            with TopicDatabase(log, **duckdb) as database:
                assert database.sql("SELECT value FROM t").to_table()["value"].to_pylist() == values


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
