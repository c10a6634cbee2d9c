"""Streams over a failover: readers of a leader go on at the follower that was promoted in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from spark_segments import LogDir
from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.maintenance import roll
from tests.spark.streams.conftest import numbers
from tests.spark.streams.in_process_query import Killed, Query
from verification.spark.queries import ran
from verification.world.promoted_copies import (
    LATER_MS,
    TOPIC,
    add,
    followed,
    led,
    promote_topic,
)


@pytest.fixture
def leader(tmp_path) -> LogDir:
    return led(tmp_path)


@pytest.fixture
def follower(leader) -> LogDir:
    return followed(leader)


def promoted_by_force(leader: LogDir, follower: LogDir) -> None:
    """The leader is lost. The new one takes 88 to 90, and so is longer than the leader was."""
    Path(leader.uri).rename(Path(leader.uri).with_name("lost"))
    promote_topic(follower, TOPIC, force=True)
    add(follower, [88, 89, 90])


def begun(log: LogDir) -> Query:
    return Query(log.uri, {"subscribe": TOPIC, "startingOffsets": "earliest"}).start()


def moved(stream: Query, log: LogDir) -> Query:
    """The query with its checkpoint, started again at another log directory."""
    stream.given["path"] = log.uri
    return stream.start()


def test_a_stream_goes_on_over_a_planned_failover(leader, follower):
    stream = begun(leader)
    add(leader, [10])
    stream.run()
    promote_topic(follower, TOPIC)
    add(follower, [11])
    assert numbers(moved(stream, follower).run()) == [11]


def test_a_stream_that_had_not_read_what_is_lost_goes_on_over_a_forced_failover(leader, follower):
    stream = begun(leader)
    stream.run()
    add(leader, [10, 11])
    promoted_by_force(leader, follower)
    assert numbers(moved(stream, follower).run()) == [88, 89, 90]


def test_a_stream_that_has_read_what_is_lost_learns_of_it(leader, follower):
    stream = begun(leader)
    add(leader, [10, 11])
    stream.run()
    promoted_by_force(leader, follower)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0 is another one from offset 10 on"):
        moved(stream, follower).trigger()


def test_a_batch_that_was_planned_over_what_is_lost_is_not_read_from_another_log(leader, follower):
    stream = begun(leader)
    stream.run()
    add(leader, [10, 11])
    with pytest.raises(Killed):
        stream.trigger("planned")
    promoted_by_force(leader, follower)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0 is another one from offset 10 on"):
        moved(stream, follower).trigger()
    stream.given["failOnDataLoss"] = "false"
    assert numbers(moved(stream, follower).run()) == [88, 89, 90]


@pytest.mark.proof
def test_a_query_of_spark_ahead_of_a_forced_failover_fails_and_goes_on_where_the_logs_part(
    spark, tmp_path, leader, follower
):
    def run(log: LogDir, **options: str) -> list[int]:
        found: list[int] = []
        frame = spark.readStream.format("segments").options(subscribe=TOPIC, startingOffsets="earliest", **options)
        values = frame.load(log.uri).selectExpr("int(string(value)) n")
        writer = values.writeStream.foreachBatch(lambda rows, _: found.extend(row.n for row in rows.collect()))
        ran(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start)
        return sorted(found)

    add(leader, [77])
    assert 77 in run(leader)
    promoted_by_force(leader, follower)
    with pytest.raises(StreamingQueryException, match="orders-0 is another one from offset 10 on"):
        run(follower)
    assert run(follower, failOnDataLoss="false") == [88, 89, 90]

    # The lost leader comes back. Comparing is tasks of Spark.
    Path(leader.uri).with_name("lost").rename(leader.uri)
    roll(leader, now_ms=LATER_MS)
    assert [tail.first_offset for tail in promote_topic(follower, TOPIC, leader, spark=spark).left_behind] == [10]
