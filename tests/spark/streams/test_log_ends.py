"""Streams and reads of logs whose last offsets are a hole: a query comes to the log end, and goes on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_segments import LogDir, lag
from spark_segments.errors import OffsetOutOfRangeError
from tests.log_ends import ENDS, LOG_END, TOPIC, append_new
from tests.spark.in_process import load
from tests.spark.streams.in_process_query import PlainQuery, Query
from tests.spark.streams.test_streams_in_spark import Sink

# A captured hole is recorded, and its records are lost to this log: who asks for all of them is told.
OPTIONS = {"subscribe": TOPIC, "startingOffsets": "earliest", "failOnDataLoss": "false"}

Ended = tuple[LogDir, list[int]]


@pytest.fixture(params=ENDS)
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Ended:
    """A log that ends with a hole, and the offsets that its topic has."""
    make, offsets = ENDS[request.param]
    return make(str(tmp_path / "log")), [*offsets]


def reached(query: Query) -> int:
    """Where the query's checkpoint says that the next batch begins."""
    return json.loads(query.offsets[-1])[TOPIC]["0"]


@pytest.mark.cases(6)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (Query, {}),
        (Query, {"maxOffsetsPerTrigger": 30}),
        (Query, {"minPartitions": 7, "isolation.level": "read_committed"}),
        (PlainQuery, {}),
    ],
    ids=["all", "limited", "committed", "PySpark 4.0"],
)
def test_a_stream_comes_to_the_log_end_and_goes_on_there(ended, kind, more):
    log, offsets = ended
    query = kind(log.uri, OPTIONS | more).start(available_now=True)
    query.run()
    assert ([row["offset"] for row in query.rows], reached(query)) == (offsets, LOG_END)
    assert query.start(available_now=True).run() == []
    append_new(log)
    query.start(available_now=True).run()
    assert ([row["offset"] for row in query.rows], reached(query)) == ([*offsets, LOG_END], LOG_END + 1)


@pytest.mark.cases(2)
def test_a_read_to_the_log_end_ends_there(ended):
    log, offsets = ended
    for end in ("latest", json.dumps({TOPIC: {"0": LOG_END}})):
        for more in ({}, {"minPartitions": 7}, {"isolation.level": "read_committed"}):
            assert [row["offset"] for row in load(log.uri, OPTIONS | {"endingOffsets": end} | more)] == offsets
    behind = {"startingOffsets": json.dumps({TOPIC: {"0": LOG_END}})}
    assert load(log.uri, OPTIONS | behind) == []
    append_new(log)
    assert [row["offset"] for row in load(log.uri, OPTIONS | behind)] == [LOG_END]


@pytest.mark.parametrize("start", ["earliest", json.dumps({TOPIC: {"0": 150}})])
def test_a_hole_at_the_log_end_that_is_recorded_ends_a_stream_that_must_lose_nothing(tmp_path, start):
    log = ENDS["captured"][0](str(tmp_path / "log"))
    strict = {"subscribe": TOPIC, "startingOffsets": start, "failOnDataLoss": "true"}
    with pytest.raises(OffsetOutOfRangeError, match="offsets 100 to 199 are missing"):
        Query(log.uri, strict).start().run()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 100 to 199 are missing"):
        load(log.uri, strict)


@pytest.mark.proof
@pytest.mark.parametrize("ended", ["captured"], indirect=True)
def test_spark_comes_to_the_log_end(spark, ended, tmp_path):
    log, offsets = ended
    sink, frame = Sink(tmp_path), spark.readStream.format("segments").options(**OPTIONS).load(log.uri)
    query = sink.run(frame)
    assert ([row.offset for row in sink.rows()], lag(query)) == (offsets, {TOPIC: {0: 0}})
    append_new(log)
    sink.run(frame)
    assert [row.offset for row in sink.rows()] == [*offsets, LOG_END]
