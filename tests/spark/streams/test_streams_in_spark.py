"""Streams as Spark runs them: triggers, restarts, joins and unions, watermarks, and how errors reach the user."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from spark_segments import lag
from spark_segments.spark import PYSPARK
from tests.spark.streams.conftest import T0, rows
from verification.spark.queries import ran
from verification.spark.topic_to_topic import committed_batches
from verification.world.clock import PATIENCE_SECONDS

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def stream(spark, t):
    """stream(**options): the topic t as a streaming DataFrame, its values as numbers n."""

    def load(**options):
        given = {"subscribe": "t"} | {name: str(value) for name, value in options.items()}
        return spark.readStream.format("segments").options(**given).load(t.uri).selectExpr("*", "int(string(value)) n")

    return load


class Sink:
    """Runs queries to the end of what is there. A batch that is run again replaces its rows."""

    def __init__(self, checkpoints):
        self.checkpoints = checkpoints
        self.batches = {}

    def run(self, frame, name="query", **trigger):
        def write(rows, batch):
            self.batches[name, batch] = rows.collect()

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoints / name))
        first = None
        while True:
            there = committed_batches(self.checkpoints / name)
            query = ran(writer.trigger(**(trigger or {"availableNow": True})).start)
            if trigger or PYSPARK >= (4, 2) or committed_batches(self.checkpoints / name) == there:
                return first or query
            first = query

    def rows(self, name="query"):
        return [row for (query, _), rows in self.batches.items() if query == name for row in rows]

    def numbers(self, name="query"):
        return sorted(row.n for row in self.rows(name))


@pytest.fixture
def sink(tmp_path):
    return Sink(tmp_path)


def offset_log(tmp_path, name, batch):
    """The sources' offsets of a batch, as they stand in the checkpoint."""
    return (tmp_path / name / "offsets" / str(batch)).read_text().splitlines()[2:]


@pytest.mark.proof
def test_available_now_in_batches_of_the_limit_over_a_restart(spark, t, add, stream, sink):
    """Cases 2, 5, 10, 34 and 35: limits, restarts, numInputRows and lag, all as Spark reports them."""
    for partition in range(3):
        add(range(3 * partition, 3 * partition + 3), partition)
    query = sink.run(stream(**EARLIEST, maxOffsetsPerTrigger=3), "limited")
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [3, 3, 3]
    assert lag(query) == {"t": {0: 0, 1: 0, 2: 0}}
    assert lag_after_each(query) == [6, 3, 0]
    assert sink.numbers("limited") == list(range(9))


def lag_after_each(query):
    class At:
        def __init__(self, progress):
            self.lastProgress = progress

    done = [progress for progress in query.recentProgress if progress.numInputRows]
    return [sum(lag(At(progress))["t"].values()) for progress in done]


@pytest.mark.proof
def test_case_10_input_row_metrics(t, add, stream, sink):
    add(range(3))
    query = sink.run(stream(**EARLIEST).select("n"))
    assert sum(progress.numInputRows for progress in query.recentProgress) == 3
    assert sink.numbers() == [0, 1, 2]


@pytest.mark.proof
def test_case_18_a_watermark_on_the_timestamp(spark, t, stream, sink):
    for minute in range(4):
        t.topic("t").append(rows([minute], 0, T0 + minute * 60_000))
    windows = stream(**EARLIEST).withWatermark("timestamp", "10 seconds").selectExpr("window(timestamp, '1 minute') w")
    sink.run(windows.groupBy("w").count(), "watermark")
    assert len(sink.rows("watermark")) >= 2


@pytest.mark.proof
def test_case_20_a_union_goes_on_where_one_of_its_topics_has_nothing_new(spark, t, add, stream, sink):
    t.create_topic("u")
    t.topic("u").append(rows([100], 0))
    add([1])

    def both():
        one, other = stream(**EARLIEST), stream(**EARLIEST, subscribe="u", maxOffsetsPerTrigger=5)
        return one.select("n").union(other.select("n"))

    sink.run(both(), "union")
    add([2, 3])
    sink.run(both(), "union", once=True)
    assert sink.numbers("union") == [1, 2, 3, 100]


@pytest.mark.proof
def test_case_23_a_self_join_reads_the_same_offsets_on_both_sides(t, add, stream, sink, tmp_path):
    """Spark 4.2 makes two sources of a Python source that a query names twice: both plan the same batch."""
    add(range(2))
    frame = stream(**EARLIEST).select("n")
    sink.run(frame.join(frame, "n"), "joined")
    assert len(set(offset_log(tmp_path, "joined", 0))) == 1
    assert sink.numbers("joined") == [0, 1]


@pytest.mark.proof
def test_case_38_a_stream_stops_and_says_what_it_read_while_it_ran(t, add, stream, tmp_path):
    """Case 39: the start at latest, with records that come while the query runs and while it is stopped."""
    seen = []

    def start():
        writer = stream(startingOffsets="latest").select("n").writeStream
        writer = writer.foreachBatch(lambda frame, _: seen.extend(row.n for row in frame.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / "running"))
        return ran(writer.start, StreamingQuery.processAllAvailable)

    def wait_for(count):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < count and time.monotonic() < deadline:
            query.processAllAvailable()

    add([-1])
    query = start()
    add([1, 2])
    wait_for(2)
    query.stop()
    add([3])
    query = start()
    wait_for(3)
    query.stop()
    assert (seen, query.isActive) == ([1, 2, 3], False)


@pytest.mark.parametrize("start", ["latest", "earliest", '{"t":{"0":1,"1":-1,"2":0}}'])
def test_a_crash_between_plan_and_commit_of_batch_0_loses_nothing(spark, t, add, stream, sink, tmp_path, start):
    """As after a kill that Spark's checkpoint shows: batch 0 is planned, and not committed."""
    add(range(4))
    sink.run(stream(startingOffsets=start).select("n"), "killed", once=True)
    for path in (tmp_path / "killed" / "commits").iterdir():
        path.unlink()
    add([10, 11], 1)
    sink.run(stream(startingOffsets=start).select("n"), "killed")
    expected = {"latest": [10, 11], "earliest": [0, 1, 2, 3, 10, 11]}.get(start, [1, 2, 3, 10, 11])
    assert sink.numbers("killed") == expected


@pytest.mark.proof
def test_trigger_once_reads_all_that_is_there(spark, t, add, stream, sink):
    add(range(9))
    sink.run(stream(**EARLIEST, maxOffsetsPerTrigger=2, minOffsetsPerTrigger=2).select("n"), "once", once=True)
    assert sink.numbers("once") == list(range(9))


@pytest.mark.proof
def test_offsets_stand_in_the_checkpoint_as_canonical_json(t, add, stream, sink, tmp_path):
    add(range(2))
    sink.run(stream(**EARLIEST).select("n"), "canonical")
    (text,) = offset_log(tmp_path, "canonical", 0)
    assert json.loads(text)["t"] == {"0": 2, "1": 0, "2": 0}
    assert text == json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [{"endingOffsets": "latest"}, {"startingOffsets": '{"t":{"0":9,"1":0,"2":0}}'}])
def test_an_error_of_the_source_reaches_the_user_as_itself(t, stream, sink, options):
    with pytest.raises(StreamingQueryException) as caught:
        sink.run(stream(**options).select("n"), "refused")
    message = str(caught.value)
    assert "UnboundLocalError" not in message and "During handling" not in message
    errors = [line for line in message.splitlines() if line.startswith("spark_segments.errors.")]
    assert len(errors) == 1
    assert next(iter(options)) in errors[0]


def test_typed_values_in_a_stream(spark, t, sink):
    t.topic("t").append(rows(['{"n":1,"who":"anna"}'], 0))
    options = {"subscribe": "t", "value.format": "json", "value.schema": "n long, who string"} | EARLIEST
    frame = spark.readStream.format("segments").options(**options).load(t.uri).select("value.who")
    sink.run(frame, "typed")
    assert [row.who for row in sink.rows("typed")] == ["anna"]
