"""The offsets of a stream as Spark keeps them: canonical JSON, with what tells a topic from another of its name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import InvalidOptionError
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.spark.streams.stream_offsets import Position, begin_of, from_json, to_json
from spark_segments.spark.streams.stream_reader import PartitionState

OFFSETS = st.integers(0, 2**63 - 1)
NAMES = st.sampled_from(["a", "orders", "-x", ".y", "0", "version", "topics", "id", "Z"])


@st.composite
def positions(draw):
    ids = draw(st.dictionaries(NAMES, st.sampled_from(["id-1", "id-2"]), max_size=4))
    pairs = [(name, number) for name in ids for number in draw(st.sets(st.integers(0, 120), min_size=1, max_size=4))]
    epochs = st.integers(0, 9)
    return {(name, number): Position(draw(OFFSETS), ids[name], draw(epochs)) for name, number in pairs}


@given(positions(), st.randoms())
def test_equal_positions_give_equal_text_with_sorted_keys_and_come_back(found, random):
    shuffled = list(found.items())
    random.shuffle(shuffled)
    text = json.dumps(to_json(dict(shuffled)))
    assert text == json.dumps(to_json(found)) == json.dumps(json.loads(text), sort_keys=True)
    assert from_json(json.loads(text)) == found


@given(positions(), positions())
def test_the_end_of_a_first_batch_says_where_it_begins(found, first):
    offset = json.loads(json.dumps(to_json(found, to_json(first))))
    assert from_json(offset) == found and from_json(begin_of(offset)) == first
    assert json.dumps(offset) == json.dumps(offset, sort_keys=True)
    assert begin_of(to_json(found)) is None and begin_of({"t": {"0": 1}}) is None


def test_topic_id_and_leader_epoch_stand_under_a_key_that_is_no_topic():
    found = {("orders", 0): Position(23, "abc"), ("orders", 1): Position(8, "abc", 4)}
    assert to_json(found) == {
        "/": {"topics": {"orders": {"id": "abc", "leader_epochs": {"1": 4}}}, "version": 1},
        "orders": {"0": 23, "1": 8},
    }


@pytest.mark.parametrize("case", ["200 basic serialization - deserialization", "201 as in the checkpoint"])
def test_serialization_and_deserialization(case):
    found = {("t", 0): Position(1, "abc")}
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_case_202_offsets_of_the_kafka_connector_are_read():
    given = {"topic1": {"0": 456, "1": 789}, "topic2": {"0": 0}}
    assert from_json(given) == {("topic1", 0): Position(456), ("topic1", 1): Position(789), ("topic2", 0): Position(0)}


def test_case_17_offsets_of_a_newer_version_are_refused():
    with pytest.raises(InvalidOptionError, match=r"newer version.*at most version 1, found version 2"):
        from_json({"/": {"topics": {}, "version": 2}, "t": {"0": 1}})


@pytest.mark.parametrize("given", [{"t": 5}, {"t": {"zero": 1}}, {"/": 3}, {"t": {"0": None}}])
def test_what_are_no_offsets_is_refused(given):
    with pytest.raises(InvalidOptionError, match=r"cannot be read.*another source"):
        from_json(given)


def test_the_epoch_of_a_position_is_that_of_the_record_before_it():
    state = PartitionState("abc", 0, 40, 40, LeaderEpochs(((2, 0), (5, 10), (6, 30))))
    assert [state.position(offset).leader_epoch for offset in (0, 1, 10, 11, 30, 31, 40)] == [0, 2, 2, 5, 5, 6, 6]
