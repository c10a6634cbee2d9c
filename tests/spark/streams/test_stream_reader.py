"""What a stream reads over kills, restarts, retention and topics that change. Run as Spark runs it, without a JVM."""

from __future__ import annotations

import dataclasses
import json

import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, UnknownTopicError
from spark_segments.log import Snapshot
from spark_segments.maintenance import compact, roll
from tests.spark import in_process
from tests.spark.streams.conftest import T0, numbers, rows
from tests.spark.streams.in_process_query import Killed, PlainQuery, Query
from verification.world.manifest_rows import Change

HOUR_MS = 3_600_000
STARTS = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {"startingOffsets": "latest"},
    "offsets": {"startingOffsets": '{"t":{"0":1,"1":0,"2":-2}}'},
    "latest of a partition": {"startingOffsets": '{"t":{"0":1,"1":-1,"2":-2}}'},
    "latest of the topic": {"startingOffsets": '{"t":"latest"}'},
    "a time": {"startingTimestamp": T0 + HOUR_MS},
    "a time that nothing reaches": {
        "startingTimestamp": T0 + 9 * HOUR_MS,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times": {"startingOffsetsByTimestamp": json.dumps({"t": dict.fromkeys("012", T0 + HOUR_MS)})},
}


def query(log, kind=Query, **options):
    return kind(log.uri, {"subscribe": "t", "startingOffsets": "earliest"} | options)


# Starts, and kills in the first batch


@pytest.mark.cases(1)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("kind", "kill"), [(Query, "planned"), (Query, "written"), (PlainQuery, "planned")])
def test_a_kill_in_batch_0_loses_nothing_that_came_after_the_query_began(t, add, start, kind, kill):
    """Spark keeps no initial offset: the replay resolves the start again, when the topic has grown."""
    for partition in range(3):
        add(range(10 * partition, 10 * partition + 3), partition, T0)
        add(range(10 * partition + 3, 10 * partition + 5), partition, T0 + HOUR_MS)
    old = {
        "earliest": {*range(5), *range(10, 15), *range(20, 25)},
        "latest": set(),
        "offsets": {*range(1, 5), *range(10, 15), *range(20, 25)},
        "latest of a partition": {*range(1, 5), *range(20, 25)},
        "latest of the topic": set(),
        "a time": {3, 4, 13, 14, 23, 24},
        "a time that nothing reaches": set(),
        "times": {3, 4, 13, 14, 23, 24},
    }[start]
    stream = query(t, kind, **STARTS[start]).start()
    stream.meanwhile = lambda: add([90], 1, T0 + 2 * HOUR_MS)
    with pytest.raises(Killed):
        stream.trigger(kill)
    new = {90}
    for partition in range(3):
        add([100 + partition, 200 + partition], partition, T0 + 10 * HOUR_MS)
        new |= {100 + partition, 200 + partition}
    t.topic("t").alter(partitions=4)
    add([300], 3, T0 + 10 * HOUR_MS)
    new.add(300)
    stream.start().run()
    assert numbers(stream.rows) == sorted(old | new)


def test_a_start_at_the_latest_offset_is_kept_over_a_restart_with_available_now(t, add):
    add(range(3))
    stream = query(t, startingOffsets="latest").start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    add([7])
    stream.start(available_now=True)
    assert numbers(stream.run()) == [7]


def test_available_now_reads_a_start_by_time_to_the_end_in_its_first_run(t, add):
    add(range(3))
    add(range(3, 6), timestamp_ms=T0 + HOUR_MS)
    options = {"startingTimestamp": T0 + HOUR_MS, "startingOffsetsByTimestampStrategy": "latest"}
    stream = query(t, **options, maxOffsetsPerTrigger=2).start(available_now=True)
    assert numbers(stream.run()) == [3, 4, 5]


def test_the_initial_offset_is_the_same_as_long_as_the_process_lives(t, add):
    reader = query(t, startingOffsets="latest").start().reader
    first = reader.initialOffset()
    add(range(5))
    assert reader.initialOffset() == first


def test_a_start_in_the_future_of_the_end_is_an_empty_replay(t, add):
    add(range(3))
    stream = query(t, startingOffsets="latest").start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    add(range(3, 9))
    stream.start()
    assert stream.trigger() == []
    assert numbers(stream.trigger()) == list(range(3, 9))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingOffsets": '{"t":{"0":1}}'}, InvalidOptionError, "must name all partitions.*t-1, t-2 left out"),
        ({"startingOffsets": '{"t":{"0":99,"1":0,"2":0}}'}, OffsetOutOfRangeError, "that t-0 does not have"),
        ({"startingTimestamp": T0 + 9 * HOUR_MS}, OffsetOutOfRangeError, "No record of t-0 is as late"),
        ({"startingOffsets": '{"u":"earliest"}'}, InvalidOptionError, "topic u, of which no partition is read"),
    ],
)
def test_a_start_that_a_new_stream_cannot_have_is_an_error_of_its_first_trigger(t, add, options, error, message):
    add(range(3))
    for kind in (Query, PlainQuery):
        for available_now in (False, True):
            with pytest.raises(error, match=message):
                query(t, kind, **options).start(available_now=available_now).trigger()


def test_a_batch_that_fails_to_plan_leaves_no_offset_behind(t, add):
    stream = query(t, startingOffsets='{"t":{"0":99,"1":0,"2":0}}').start()
    with pytest.raises(OffsetOutOfRangeError):
        stream.trigger()
    assert stream.offsets == []


# Loss


def test_retention_that_passed_the_reader_is_an_error_that_names_the_offsets(t, add):
    add(range(10))
    stream = query(t, maxOffsetsPerTrigger=4).start()
    assert numbers(stream.trigger()) == [0, 1, 2, 3]
    t.topic("t").delete_records({0: 7})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"Records of t-0 were deleted.*offsets 4 to 6 are gone.*failOnDataLoss=false"
    ):
        stream.trigger()
    assert len(stream.offsets) == 1
    stream.given["failOnDataLoss"] = "false"
    assert numbers(stream.start().run()) == [7, 8, 9]


def test_a_replay_of_a_batch_whose_records_left_the_log_is_an_error(t, add):
    add(range(10))
    stream = query(t, maxOffsetsPerTrigger=4).start()
    stream.trigger()
    with pytest.raises(Killed):
        stream.trigger("planned")
    t.topic("t").delete_records({0: 7})
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 were deleted.*offsets 4 to 6 are gone"):
        stream.start().trigger()
    stream.given["failOnDataLoss"] = "false"
    assert numbers(stream.start().run()) == [7, 8, 9]


def test_a_replay_of_the_first_batch_knows_where_it_began(t, add):
    """The earliest offset of the replay is another: what lies between was planned, and never read."""
    add(range(10))
    stream = query(t).start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    t.topic("t").delete_records({0: 7})
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 were deleted.*offsets 0 to 6 are gone"):
        stream.start().trigger()
    stream.given["failOnDataLoss"] = "false"
    assert numbers(stream.start().run()) == [7, 8, 9]
    assert "begin" in stream.offsets[0]
    add([10])
    stream.run()
    assert "begin" not in stream.offsets[1]


def test_retention_between_plan_and_read_takes_nothing_from_a_batch(t, add):
    """The files of the snapshot that planned the batch stay for file.delete.delay.ms."""
    add(range(10))
    reader = query(t).start().reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    t.topic("t").delete_records({0: 10})
    found = [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]
    assert numbers(found) == list(range(10))


def test_available_now_reads_what_was_there_when_it_began_whatever_retention_takes_meanwhile(t, add):
    add(range(10))
    stream = query(t, maxOffsetsPerTrigger=4).start(available_now=True)
    stream.trigger()
    t.topic("t").delete_records({0: 7})
    assert numbers(stream.run()) == list(range(4, 10))


def test_gaps_that_compaction_left_are_no_loss(log):
    log.create_topic(
        "t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "400"}
    )
    stream = query(log).start()
    stream.run()
    for number in range(40):
        table = rows([number], 0)
        log.topic("t").append(table.append_column("key", [[b"same"]]))
    roll(log, now_ms=T0 + HOUR_MS)
    compact(log, now_ms=T0 + HOUR_MS)
    there = in_process.load(log.uri, {"subscribe": "t"})
    assert len(there) < 40
    assert numbers(stream.run()) == numbers(there)


def test_a_topic_made_anew_is_an_error_and_with_loss_allowed_begins_at_its_earliest(t, add):
    add(range(5))
    stream = query(t).start()
    stream.run()
    t.delete_topic("t")
    t.create_topic("t", partitions=2)
    add(range(50, 59))
    with pytest.raises(OffsetOutOfRangeError, match=r"Topic t was deleted and made again.*expected topic id .*found"):
        stream.trigger()
    stream.given["failOnDataLoss"] = "false"
    assert numbers(stream.start().run()) == list(range(50, 59))


def test_a_planned_batch_of_a_topic_that_was_made_anew_is_empty_where_loss_is_allowed(t, add):
    add(range(5))
    stream = query(t, failOnDataLoss="false").start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    add(range(50, 59))
    stream.start()
    assert stream.trigger() == []
    assert numbers(stream.run()) == list(range(50, 59))


def test_a_planned_batch_of_a_topic_that_was_made_anew_is_an_error_else(t, add):
    add(range(5))
    stream = query(t).start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    with pytest.raises(OffsetOutOfRangeError, match=r"made again"):
        stream.start().trigger()


def test_a_topic_that_went_away_is_an_error_and_with_loss_allowed_left_out(t, add):
    add(range(5))
    t.create_topic("u")
    stream = query(t, subscribe="t,u").start()
    stream.run()
    t.delete_topic("t")
    with pytest.raises(OffsetOutOfRangeError, match=r"Partition t-0 is gone"):
        stream.trigger()
    stream.given["failOnDataLoss"] = "false"
    stream.start()
    t.topic("u").append(rows([9], 0))
    assert numbers(stream.run()) == [9]
    assert "t" not in json.loads(stream.offsets[-1])


def test_a_topic_that_is_not_there_is_an_error_of_the_load(t):
    with pytest.raises(UnknownTopicError, match=r"Unknown topic 'nope'"):
        Query(t.uri, {"subscribe": "nope"}).start()


def test_new_partitions_begin_at_their_earliest_offset_which_must_be_0(t, add):
    stream = query(t, startingOffsets="latest").start()
    stream.run()
    t.topic("t").alter(partitions=5)
    add(range(3), 3)
    assert numbers(stream.run()) == [0, 1, 2]
    t.topic("t").alter(partitions=6)
    add(range(3), 5)
    t.topic("t").delete_records({5: 2})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"New partition t-5 does not begin at offset 0: expected 0, found 2"
    ):
        stream.run()


def test_a_log_end_below_the_position_is_a_loss(t, add):
    add(range(5))
    stream = query(t).start()
    stream.run()
    stream.offsets[-1] = stream.offsets[-1].replace('"0": 5', '"0": 8')
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"t-0 is not the log that the stream read.*offset 8 of leader epoch 0, found a log end of 5",
    ):
        stream.start().trigger()


def test_a_log_of_another_leader_epoch_is_a_loss(t, add):
    add(range(5))
    stream = query(t).start()
    stream.run()
    about = json.loads(stream.offsets[-1])
    about["/"]["topics"]["t"]["leader_epochs"] = {"0": -1}
    stream.offsets[-1] = json.dumps(about)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 is another one from offset 0 on"):
        stream.start().trigger()


def lead_anew(t, *epochs):
    row = t.topic("t").snapshot.partition(0)
    row = dataclasses.replace(row, leader_epoch=epochs[-1][0], leader_epochs=epochs)
    t.topic("t").manifest.commit(lambda _: Change("promote", partitions=[row]))


def test_a_stream_ahead_of_a_leader_that_was_promoted_by_force_goes_on_where_the_logs_parted(t, add):
    """The new leader has taken as many records as the stream had read of the former, so that only its epoch tells."""
    add(range(5))
    stream = query(t).start()
    stream.run()
    tolerant = query(t, failOnDataLoss="false").start()
    tolerant.run()
    lead_anew(t, (0, 0), (1, 3))
    add([7])
    with pytest.raises(
        OffsetOutOfRangeError, match=r"t-0 is another one from offset 3 on.*found leader epoch 1 from offset 3"
    ):
        stream.start().trigger()
    assert numbers(tolerant.start().run()) == [3, 4, 7]


def test_a_stream_of_a_leader_whose_records_were_cut_learns_of_it(t, add):
    """The log skips the epoch that the stream read."""
    add(range(3))
    lead_anew(t, (0, 0), (1, 3))
    add(range(3, 6))
    stream = query(t).start()
    stream.run()
    lead_anew(t, (0, 0), (2, 6))
    add([7])
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"t-0 is not the log that.*expected offset 6 of leader epoch 1, found .*leader epoch 0",
    ):
        stream.start().trigger()


# Transactions


def test_a_batch_planned_at_another_isolation_level_is_not_cut_short(t, add, monkeypatch):
    add(range(5))
    stream = query(t).start()
    with pytest.raises(Killed):
        stream.trigger("planned")
    stream.given["isolation.level"] = "read_committed"
    bounds = Snapshot.offset_bounds

    def with_open_transactions(snapshot, isolation_level="read_uncommitted"):
        return dict.fromkeys(range(3), (0, 2)) if isolation_level == "read_committed" else bounds(snapshot)

    monkeypatch.setattr(Snapshot, "offset_bounds", with_open_transactions)
    with pytest.raises(OffsetOutOfRangeError, match=r"beyond the last stable offset of t-0.*read_uncommitted"):
        stream.start().trigger()


# Tasks


def test_an_idle_trigger_reads_no_segment_row(t, add, monkeypatch):
    add(range(5))
    stream = query(t).start()
    stream.run()
    monkeypatch.setattr("spark_segments.log.manifest.state.snapshot.SegmentFiles.read", None)
    assert stream.trigger() is None


def test_many_partitions_are_read_by_few_tasks(log):
    log.create_topic("t", partitions=200)
    log.topic("t").append(pa.concat_tables([rows([partition], partition) for partition in range(200)]))
    stream = query(log).start()
    assert numbers(stream.run()) == list(range(200))
    assert stream.tasks[0] < 100


def test_a_projection_and_headers_reach_a_stream(t, add):
    add(range(3))
    stream = query(t, includeHeaders="true").start()
    assert stream.run()[0]["headers"] == []


def test_values_have_their_format_in_a_stream_too_and_in_topics_that_come_later(t):
    t.topic("t").append(rows(['{"n":1}'], 0))
    options = {
        "subscribePattern": "t.*",
        "startingOffsets": "earliest",
        "value.format": "json",
        "value.schema": "n long",
    }
    stream = Query(t.uri, options).start()
    assert [row["value"] for row in stream.run()] == [{"n": 1}]
    t.create_topic("t2")
    t.topic("t2").append(rows(['{"n":2}'], 0))
    assert [row["value"] for row in stream.run()] == [{"n": 2}]
