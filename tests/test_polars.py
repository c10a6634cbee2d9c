"""Topics as lazy frames of Polars: whatever is pushed down, the rows are those of a full scan."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import UnknownTopicError
from spark_segments.polars import scan_topic
from tests.examples import examples
from verification.world.kafka_bytes.segment_bytes import RECORD_SCHEMA

ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Two partitions of several chunks; timestamps that do not rise; keys that repeat, and tombstones."""
    log = LogDir.create(str(tmp_path_factory.mktemp("polars") / "log"))
    log.create_topic("t", 2, {"index.interval.bytes": "100"})
    for step in range(4):
        numbers = range(step * 50, step * 50 + 50)
        rows = pa.table(
            {
                "key": [b"%d" % (number % 17) for number in numbers],
                "value": [None if number % 11 == 0 else b"v" * (number % 40) for number in numbers],
                "partition": pa.array([number % 2 for number in numbers], pa.int32()),
                "timestamp": pa.array([number * 7 % 60 * 1000 for number in numbers], pa.timestamp("us", "UTC")),
            }
        )
        log.topic("t").append(rows, options=ProducerOptions(("none", "zstd")[step % 2], 300))
    return log


def whole(log: LogDir, **options) -> pl.DataFrame:
    return pl.DataFrame(pa.Table.from_batches(list(log.topic("t").scan(**options).batches()), RECORD_SCHEMA))


offsets, times = st.integers(-3, 110), st.integers(-3, 70)
compare = st.sampled_from(["__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__ne__"])


def compared(name, values, literal=lambda value: value):
    ordinary = st.builds(lambda op, value: getattr(pl.col(name), op)(literal(value)), compare, values)
    flipped = st.builds(lambda op, value: getattr(pl.lit(literal(value)), op)(pl.col(name)), compare, values)
    between = st.builds(
        lambda low, high, closed: pl.col(name).is_between(literal(low), literal(high), closed=closed),
        values,
        values,
        st.sampled_from(["both", "left", "right", "none"]),
    )
    return ordinary | flipped | between


def moment(ms: int) -> dt.datetime:
    return ZERO + dt.timedelta(microseconds=ms * 1000 + (ms % 3) * 300)


simple = st.one_of(
    compared("offset", offsets),
    compared("partition", st.integers(-1, 3)),
    compared("timestamp", times, moment),
    st.lists(st.integers(0, 3), max_size=3).map(lambda numbers: pl.col("partition").is_in(numbers)),
    st.just(pl.col("value").is_null()),
    st.builds(lambda key: pl.col("key") == key, st.sampled_from([b"3", b"16", b"", b"none"])),
    st.builds(lambda key: pl.lit(key) != pl.col("key"), st.sampled_from([b"3", b"16"])),
    st.lists(st.sampled_from([b"1", b"5", b"none", None]), max_size=3).map(lambda keys: pl.col("key").is_in(keys)),
)
predicates = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=5,
)


@pytest.mark.cases(1)
@examples(50)
@given(predicate=predicates, columns=st.sampled_from([None, ["offset"], ["value", "key"], ["timestamp"]]))
@pytest.mark.parametrize("view", [None, "latest"])
def test_a_filtered_scan_has_the_rows_of_a_full_scan(log, view, predicate, columns):
    expected, found = whole(log, view=view).filter(predicate), scan_topic(log.uri, "t", view=view).filter(predicate)
    if columns is not None:
        expected, found = expected.select(columns), found.select(columns)
    assert found.collect().equals(expected)


@examples(30)
@given(predicate=predicates, first=st.integers(0, 220))
def test_the_first_rows_are_cut_before_or_after_the_filter_as_the_query_says(log, predicate, first):
    frame, rows = scan_topic(log.uri, "t"), whole(log)
    assert frame.head(first).filter(predicate).collect().equals(rows.head(first).filter(predicate))
    assert frame.filter(predicate).head(first).collect().equals(rows.filter(predicate).head(first))


def test_conditions_choose_what_is_read(log, reads):
    frame = scan_topic(log.uri, "t")
    frame.filter((pl.col("partition") == 1) & (pl.col("offset") >= 90) & (pl.col("key") == b"1")).select(
        "value"
    ).collect()
    assert reads[-1].offsets == {1: ((90, 100),)} and reads[-1].selection.keys == (b"1",)
    assert set(reads[-1].schema.names) == {"value", "partition", "offset", "key"}


def test_a_time_leaves_out_what_the_time_index_knows_to_be_older(reads, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2, {"index.interval.bytes": "100"})
    for first in (0, 100):
        rows = [{"value": "v" * 20, "partition": 0, "timestamp": number} for number in range(first, first + 100)]
        log.topic("t").append(rows, options=ProducerOptions("none", 300))
    log.topic("t").append([{"value": "old", "partition": 1, "timestamp": 3}])
    for from_ms in range(200):
        to_ms = max(from_ms, 130)
        first, last = (ZERO + dt.timedelta(milliseconds=ms) for ms in (from_ms, to_ms))
        rows = scan_topic(log.uri, "t").filter(pl.col("timestamp").is_between(first, last)).collect()
        assert rows.height == to_ms - from_ms + 1 + (from_ms <= 3)
        ((start, end),) = reads[-1].offsets[0]
        assert max(from_ms - 20, 0) <= start <= from_ms and end == 200
        assert (1 in reads[-1].offsets) == (from_ms <= 3)


@pytest.mark.parametrize(
    ("predicate", "offsets"),
    [
        (pl.col("offset") % 2 == 0, {0: (0, 100), 1: (0, 100)}),
        ((pl.col("offset") + 1 > 5) & (pl.col("partition") == 1), {1: (0, 100)}),
        ((pl.col("offset") > 5) | (pl.col("key") == b"x"), {0: (0, 100), 1: (0, 100)}),
        (pl.col("offset").is_between(7, 9) | (pl.col("offset") == 20), {0: (7, 21), 1: (7, 21)}),
        (pl.col("partition").is_in([1, 5]) & (pl.col("offset") < 2**70), {1: (0, 100)}),
    ],
)
def test_a_condition_reads_as_little_as_it_is_understood(log, reads, predicate, offsets):
    scan_topic(log.uri, "t").filter(predicate).collect()
    assert reads[-1].offsets == {number: (ends,) for number, ends in offsets.items()}


def test_a_plan_that_needs_no_column_has_the_rows(log):
    frame = scan_topic(log.uri, "t")
    assert frame.select(pl.len()).collect().item() == 200
    assert frame.with_row_index().select("index").collect()["index"].to_list() == list(range(200))
    assert frame.with_row_index().select("index").head(3).collect().height == 3
    numbered = frame.with_row_index().filter(pl.col("key") == b"3").select("index").collect()
    assert numbered.height == whole(log).filter(pl.col("key") == b"3").height


def test_a_frame_keeps_the_log_of_the_moment_it_was_made(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    log.topic("t").append(pa.table({"value": ["a"]}))
    frame = scan_topic(log.uri, "t")
    log.topic("t").append(pa.table({"value": ["b"]}))
    assert frame.collect()["value"].to_list() == [b"a"]
    assert scan_topic(log.uri, "t").collect()["value"].to_list() == [b"a", b"b"]
    with pytest.raises(UnknownTopicError):
        scan_topic(log.uri, "nothere")


def test_avro_has_the_columns_of_its_schema_in_a_directory(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    formats = {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    log.topic("t").append(pa.table({"key": [7, 8], "value": [{"id": 1, "at": at}, None]}), formats=formats)
    frame = scan_topic(log.uri, "t", formats=formats)
    assert frame.collect_schema()["key"] == pl.Int64
    value = pl.col("value").struct
    assert frame.select("key", value.field("id"), value.field("at")).collect().rows() == [(7, 1, at), (8, None, None)]


def test_values_are_typed(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    log.topic("t").append(pa.table({"key": ["a", "b"], "value": ['{"id": 7}', "no"]}))
    formats = {"value.format": "json", "value.schema": "id int", "value.errors": "null", "value.raw.column": "bad"}
    frame = scan_topic(log.uri, "t", formats=formats)
    assert frame.select(pl.col("value").struct.field("id"), "bad").collect().rows() == [(7, None), (None, b"no")]
    assert frame.select("bad").collect().rows() == [(None,), (b"no",)]
    assert frame.filter(pl.col("offset") == 0).select("key").collect().rows() == [(b"a",)]
