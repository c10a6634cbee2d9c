"""How far a query is behind, from the progress that Spark gives. No Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace

from spark_segments import lag
from spark_segments.spark.streams.stream_offsets import Position, to_json
from tests.spark.streams.conftest import numbers
from tests.spark.streams.in_process_query import Query


def offsets(**topics):
    found = {(topic, number): Position(at, "id") for topic, ats in topics.items() for number, at in enumerate(ats)}
    return json.dumps(to_json(found))


def progress(*sources):
    return SimpleNamespace(
        lastProgress=SimpleNamespace(
            sources=[SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
        )
    )


def test_case_36_offsets_behind_by_partition():
    found = lag(progress((offsets(t=[1, 2]), offsets(t=[3, 6]))))
    assert found == {"t": {0: 2, 1: 4}}
    behind = list(found["t"].values())
    assert (min(behind), max(behind), sum(behind) / len(behind)) == (2, 4, 3.0)


def test_case_37_a_query_without_progress_has_no_lag():
    assert lag(SimpleNamespace(lastProgress=None)) == {}
    assert lag(progress((None, None))) == {}
    assert lag(progress((offsets(t=[1]), None))) == {}


def test_sources_of_other_formats_are_left_out():
    assert lag(progress(('{"t":{"0":1}}', '{"t":{"0":5}}'), ("7", "9"), ("not json", "x"))) == {}


def test_the_source_that_is_furthest_behind_counts():
    both = progress((offsets(t=[1]), offsets(t=[9])), (offsets(t=[4], u=[2]), offsets(t=[9], u=[2])))
    assert lag(both) == {"t": {0: 8}, "u": {0: 0}}


def test_progress_as_plain_values_is_read_too():
    source = {"endOffset": json.loads(offsets(t=[1])), "latestOffset": json.loads(offsets(t=[3]))}
    assert lag(SimpleNamespace(lastProgress={"sources": [source]})) == {"t": {0: 2}}


def of(query: Query) -> dict[str, dict[int, int]]:
    return lag(progress((query.offsets[-1], json.dumps(query.latest))))


def test_case_34_behind_with_a_rate_limit(t, add):
    add(range(10))
    query = Query(t.uri, {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}).start()
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    assert of(query) == {"t": {0: 6, 1: 0, 2: 0}}


def test_case_35_not_behind_without_a_rate_limit(t, add):
    add(range(10))
    query = Query(t.uri, {"subscribe": "t", "startingOffsets": "earliest"}).start()
    assert numbers(query.run()) == list(range(10))
    assert of(query) == {"t": {0: 0, 1: 0, 2: 0}}
