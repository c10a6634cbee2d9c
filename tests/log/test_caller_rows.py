"""Rows to append as people have them: dicts, data frames, anything that gives Arrow."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, InvalidRecordError, SegmentsError

MOMENT = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", partitions=2)
    return log


def appended(log: LogDir, columns=("partition", "key", "value", "timestamp", "headers")) -> list[dict]:
    return [row for batch in log.topic("orders").scan(columns=columns).batches() for row in batch.to_pylist()]


def test_dicts_are_records(log):
    rows = [
        {"partition": 1, "key": "a", "value": b"1", "timestamp": MOMENT_MS, "headers": {"h": "x", "i": None}},
        {"partition": 1, "key": None, "value": "zwölf", "timestamp": MOMENT, "headers": [("h", b"1"), ("h", b"2")]},
        {"partition": 1, "key": b"a", "value": None, "timestamp": MOMENT, "offset": 7},
    ]
    assert log.topic("orders").append(rows) == {1: (0, 2)}
    assert appended(log) == [
        {
            "partition": 1,
            "key": b"a",
            "value": b"1",
            "timestamp": MOMENT,
            "headers": [{"key": "h", "value": b"x"}, {"key": "i", "value": None}],
        },
        {
            "partition": 1,
            "key": None,
            "value": "zwölf".encode(),
            "timestamp": MOMENT,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
        },
        {"partition": 1, "key": b"a", "value": None, "timestamp": MOMENT, "headers": []},
    ]


def test_a_generator_of_dicts_is_rows_in_parts(log):
    rows = ({"partition": 0, "value": str(number), **({} if number % 2 else {"key": "k"})} for number in range(25_001))
    assert log.topic("orders").append(rows, once="numbers") == {0: (0, 25_000)}
    read = log.topic("orders").scan(partition=0, columns=["key", "value"]).to_table()
    assert read.column("value").to_pylist() == [str(number).encode() for number in range(25_001)]
    assert read.column("key").null_count == 12_500

    def spoilt():
        yield from ({"value": "a"} for _ in range(20_000))
        yield {"key": "no value"}

    with pytest.raises(InvalidRecordError, match="Row 20000 is no record: it has no value"):
        log.topic("orders").append(spoilt())
    assert log.topic("orders").offsets() == {0: (0, 25_001), 1: (0, 0)}


def test_a_generator_of_typed_dicts_has_the_type_of_all(log):
    values = ({"value": value} for value in ({"a": 1}, {"b": 2.5}))
    log.topic("orders").append(values, formats={"value.format": "json"})
    assert sorted(row["value"] for row in appended(log)) == [b'{"a":1,"b":null}', b'{"a":null,"b":2.5}']


@pytest.mark.parametrize(
    "text", ["2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-14T23:13:20.000+01:00", "2023-11-14T22:13:20"]
)
def test_a_timestamp_may_be_iso_text(log, text):
    log.topic("orders").append([{"value": "a", "timestamp": text}])
    moment = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    assert [row["timestamp"] for row in appended(log)] == [moment]


def test_a_log_directory_equals_itself_opened_again(tmp_path):
    log = LogDir.create(str(tmp_path / "a"))
    assert log == LogDir.open(log.uri) and hash(log) == hash(LogDir.open(log.uri))
    assert log != LogDir.create(str(tmp_path / "b"))
    assert log != LogDir.open(log.uri, defaults={"retention.ms": "1"}) and log != log.uri


def test_a_topic_that_is_made_is_returned(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    assert log.create_topic("orders", partitions=3).append([{"partition": 2, "value": "a"}]) == {2: (0, 0)}


def test_what_was_read_can_be_appended_as_dicts(log):
    log.topic("orders").append(
        [{"partition": 0, "key": "a", "value": "1", "timestamp": MOMENT, "headers": {"h": b"1"}}]
    )
    [row] = appended(log)
    log.topic("orders").append([row])
    assert appended(log) == [row, row]


def test_batches_with_other_columns_keep_their_order(log):
    first = pa.record_batch({"value": ["1", "2"], "partition": [0, 0], "offset": [7, 8]})
    second = pa.record_batch({"partition": [0], "key": ["k"], "value": [b"3"]})
    log.topic("orders").append([first, second, second.slice(0, 0), first])
    assert [(row["key"], row["value"]) for row in appended(log, ("key", "value"))] == [
        (None, b"1"),
        (None, b"2"),
        (b"k", b"3"),
        (None, b"1"),
        (None, b"2"),
    ]


def test_a_number_of_numpy_is_a_time_in_ms_too(log):
    log.topic("orders").append([{"partition": 0, "value": "1", "timestamp": np.int64(MOMENT_MS)}])
    assert [row["timestamp"] for row in appended(log)] == [MOMENT]


def test_dicts_have_typed_values_where_there_is_a_format(log):
    log.topic("orders").append([{"value": {"id": 7}}, {"value": {"id": 8}}], formats={"value.format": "json"})
    assert sorted(row["value"] for row in appended(log)) == [b'{"id":7}', b'{"id":8}']


@pytest.mark.parametrize(
    "row, message",
    [
        ({"key": "a"}, "Row 1 is no record: it has no value"),
        ({"kye": "a", "value": "b"}, r"Row 1 is no record: a record has no column 'kye'. Did you mean key\?"),
        ({"Key": "a", "value": "b"}, r"Row 1 is no record: a record has no column 'Key'. Did you mean key\?"),
        ({"key": "a", "Value": "b"}, r"Row 1 is no record: a record has no column 'Value'. Did you mean value\?"),
        ({"value": 7}, "Row 1 is no record: int is neither text nor bytes"),
        ({"value": "a", "headers": 7}, "Row 1 is no record"),
        ({"value": "a", "partition": 2**40}, "The rows are no records"),
        ({"value": "a", "timestamp": "yesterday"}, "Row 1 is no record: the text of its timestamp is no ISO time"),
        ({"value": "a", "timestamp": MOMENT_MS + 0.5}, "Row 1 is no record"),
        ({"value": "a", "timestamp": np.datetime64(MOMENT_MS, "ms")}, "Row 1 is no record"),
        ({"value": "a", "partition": 0.5}, "Row 1 is no record"),
    ],
)
def test_a_dict_that_is_no_record_is_an_error_and_nothing_is_appended(log, row, message):
    with pytest.raises(InvalidRecordError, match=message):
        log.topic("orders").append([{"value": "fine"}, row])
    assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}


@pytest.mark.parametrize(("name", "hint"), [("Key", r"Did you mean key\?"), ("amount", "A writer takes value")])
@pytest.mark.parametrize("of", [pa.table, pd.DataFrame, lambda rows: iter(pa.table(rows).to_batches())])
def test_a_column_that_no_record_has_is_an_error_and_nothing_is_appended(log, of, name, hint):
    with pytest.raises(InvalidOptionError, match=f"A record has no column '{name}'. {hint}"):
        log.topic("orders").append(of({"value": ["a"], name: ["b"]}))
    assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}


def test_what_is_read_of_a_topic_can_be_appended_whole(log):
    log.topic("orders").append([{"key": "a", "value": "b"}])
    for rows in (log.topic("orders").scan().to_table(), log.topic("orders").scan().to_table().to_pylist()):
        log.topic("orders").append(rows)
    assert len(appended(log)) == 3


def test_a_pandas_frame_is_rows(log):
    frame = pd.DataFrame(
        {"partition": [1, 1], "key": ["a", None], "value": [b"1", b"2"], "timestamp": pd.to_datetime([MOMENT, MOMENT])}
    )
    assert log.topic("orders").append(frame) == {1: (0, 1)}
    assert [(row["key"], row["value"], row["timestamp"]) for row in appended(log)] == [
        (b"a", b"1", MOMENT),
        (None, b"2", MOMENT),
    ]


def test_what_gives_a_stream_of_arrow_is_rows(log):
    class Frame:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"value": ["a", "b"], "partition": [0, 0]}).__arrow_c_stream__(requested_schema)

    assert log.topic("orders").append(Frame()) == {0: (0, 1)}


def test_a_polars_frame_is_rows(log):
    frame = pl.DataFrame(
        {
            "partition": [1, 1],
            "key": pl.Series(["a", None], dtype=pl.Categorical),
            "value": [b"1", b"more than twelve bytes"],
            "timestamp": [MOMENT, MOMENT],
            "headers": [[{"key": "h", "value": b"x"}], []],
        }
    )
    log.topic("orders").append(frame)
    headers = [[{"key": "h", "value": b"x"}], []]
    assert [tuple(row.values()) for row in appended(log)] == [
        (1, b"a", b"1", MOMENT, headers[0]),
        (1, None, b"more than twelve bytes", MOMENT, headers[1]),
    ]


def test_views_of_values_can_be_appended(log):
    log.topic("orders").append([{"partition": 0, "key": "k", "value": b"more than twelve bytes"}])
    log.topic("orders").append(log.topic("orders").scan(value_type="binary_view").to_reader())
    assert [row["value"] for row in appended(log)] == [b"more than twelve bytes"] * 2


@pytest.mark.parametrize(
    "rows",
    [{"value": "a"}, b"a", ["a"], iter(["a"]), 7],
    ids=["dict", "bytes", "text", "iterator", "number"],
)
def test_what_is_no_rows_is_an_error(log, rows):
    with pytest.raises(InvalidRecordError, match="Rows come as Arrow"):
        log.topic("orders").append(rows)


@pytest.mark.parametrize(
    "rows, message",
    [
        (pa.table({"value": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}), "timestamp cannot be written"),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, names=["value", "value"]), "two columns of the same name"),
        (pd.DataFrame({"value": ["a", b"b", 1]}), "The rows are no records"),
    ],
    ids=["a time beyond 64 bits", "two columns", "values of several types"],
)
def test_columns_that_are_no_records_are_an_error(log, rows, message):
    with pytest.raises(SegmentsError, match=message):
        log.topic("orders").append(rows)
    assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}


def test_no_rows_are_an_append_of_nothing(log):
    assert log.topic("orders").append([]) == {}
