"""Streams of PySpark 4.0 and 4.1, which look for the end of a batch without saying where the stream is."""

from __future__ import annotations

import pytest

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError
from spark_segments.spark.options import stream_options
from spark_segments.spark.streams.stream_reader import refuse_limits
from tests.spark.streams.conftest import numbers
from tests.spark.streams.in_process_query import Killed, PlainQuery
from tests.spark.streams.test_stream_reader import lead_anew


def stream_of(log, **options):
    return PlainQuery(log.uri, {"subscribe": "t", "startingOffsets": "earliest"} | options).start()


def deleted(t, add):
    t.topic("t").delete_records({0: 7})


def made_anew(t, add):
    t.delete_topic("t")
    t.create_topic("t", partitions=3)
    add(range(5, 9))


def parted(t, add):
    lead_anew(t, (0, 0), (1, 3))
    add([8])


def cut(t, add):
    made_anew(t, add)
    t.delete_topic("t")
    t.create_topic("t", partitions=1)


LOSSES = {
    deleted: ("offsets 5 to 6 are gone", [7, 8]),
    made_anew: ("deleted and made again", [5, 6, 7, 8]),
    parted: ("another one from offset 3 on", [3, 4, 5, 6, 7, 8, 8]),
    cut: ("deleted and made again|is gone", []),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("how", ["goes on", "is started again", "is started with available now"])
def test_records_that_were_lost_are_an_error_at_every_start(t, add, loss, how):
    message, there = LOSSES[loss]
    stream = stream_of(t)
    add(range(5))
    assert numbers(stream.run()) == list(range(5))
    add(range(5, 9))
    loss(t, add)
    for _ in range(2):
        if how != "goes on":
            stream.start(available_now="available" in how)
        with pytest.raises(OffsetOutOfRangeError, match=message):
            stream.trigger()
    stream.given["failOnDataLoss"] = "false"
    assert numbers(stream.start().run()) == there


def test_a_topic_that_went_away_is_an_error_also_with_available_now(t, add):
    t.create_topic("u")
    stream = stream_of(t, subscribePattern="t|u", subscribe="")
    del stream.given["subscribe"]
    add(range(5))
    stream.start().run()
    t.delete_topic("u")
    for available_now in (True, False):
        with pytest.raises(OffsetOutOfRangeError, match="Partition u-0 is gone"):
            stream.start(available_now=available_now).trigger()


def test_available_now_reads_what_was_there_when_it_began_in_one_batch(t, add):
    add(range(5))
    stream = stream_of(t).start(available_now=True)
    add([5])
    assert numbers(stream.trigger()) == list(range(5))
    assert stream.trigger() is None
    add([6])
    assert numbers(stream.start(available_now=True).run()) == [5, 6]
    assert stream.start(available_now=True).trigger() is None


def test_an_end_that_went_to_the_checkpoint_is_read_after_a_kill(t, add):
    add(range(5))
    stream = stream_of(t)
    with pytest.raises(Killed):
        stream.trigger("planned")
    add([5])
    assert [numbers(stream.start().trigger()), numbers(stream.trigger())] == [list(range(5)), [5]]
    add([6])
    with pytest.raises(Killed):
        stream.trigger("written")
    stream.start().run()
    assert numbers(stream.rows) == list(range(7))


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_a_limit_that_cannot_hold_is_refused(t, name):
    with pytest.raises(InvalidOptionError, match=f"{name} needs PySpark 4.2 or newer.*Leave it out"):
        refuse_limits(stream_options({"path": t.uri, "subscribe": "t", name: "5"}))
