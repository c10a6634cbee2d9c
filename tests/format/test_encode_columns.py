"""Encoding takes rows and columns of many types, and refuses others with one clear error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import HEADERS_TYPE
from tests.format.encoded import NOW, assorted, columns, decoded, encoded, expected_of
from verification.world.kafka_bytes import twin_encode as twin
from verification.world.kafka_bytes.twin_encode import Record


def test_rows_say_which_and_in_which_order():
    records = assorted(300)
    rows = np.random.default_rng(0).permutation(300)[:100]
    chosen = [records[row] for row in rows]
    ours = encoded(columns(records), rows, batch_bytes=3000)
    assert ours.buffer.to_pybytes() == b"".join(twin.encode(chosen, cut_bytes=3000))
    assert ours.tombstones == sum(record.value is None for record in chosen)
    repeated = encoded(columns(records), np.array([7, 7], np.int32))
    assert [row[2:] for row in decoded(repeated.buffer.to_pybytes())] == [expected_of(records)[7][2:]] * 2


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_row_that_is_not_there_is_an_error(wrong):
    with pytest.raises(IndexError, match="the 3 rows"):
        encoded(columns(assorted(3)), np.array([0, wrong]))


@pytest.mark.parametrize("rows", [None, np.empty(0, np.int64)])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_no_rows_make_no_batches(codec, rows):
    ours = encoded(columns(assorted(3 if rows is not None else 0)), rows, codec=codec)
    assert (len(ours.buffer), len(ours.batches), ours.tombstones) == (0, 0, 0)


def test_arrays_of_every_binary_type_slices_and_chunks_are_the_same_records():
    records = [Record(value=b"v%d" % n if n % 5 else None, key=b"k" * n if n % 3 else None) for n in range(50)]
    records[13:14] = [Record(value=b"13", key=b"13", headers=[("a", b"1"), ("b", None)])]
    plain = columns(records)
    wanted = encoded(plain).buffer.to_pybytes()
    large_headers = pa.large_list(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))
    large = {
        "key": plain["key"].cast(pa.large_binary()),
        "value": plain["value"].cast(pa.string()).cast(pa.large_string()),
        "timestamp": plain["timestamp"],
        "headers": pa.array([h or None for h in plain["headers"].to_pylist()], large_headers),
    }
    padded = pa.concat_batches([plain.slice(0, 11), plain, plain.slice(3, 9)])
    chunked = pa.Table.from_batches([plain.slice(0, 17), plain.slice(17)])
    strings = {**{name: plain[name] for name in plain.schema.names}, "value": plain["value"].cast(pa.string())}
    views = {**strings, "key": plain["key"].cast(pa.binary_view())}
    dictionary = {**strings, "value": plain["value"].dictionary_encode()}
    for other in (large, padded.slice(11, 50), chunked, strings, views, dictionary):
        assert encoded(other).buffer.to_pybytes() == wanted


def test_key_and_headers_may_be_left_out():
    records = [Record(value=b"a"), Record(value=None)]
    plain = columns(records)
    bare = {"value": plain["value"], "timestamp": plain["timestamp"]}
    wanted = encoded(plain).buffer.to_pybytes()
    assert encoded(bare).buffer.to_pybytes() == wanted
    assert encoded({**bare, "key": pa.nulls(2), "headers": pa.nulls(2)}).buffer.to_pybytes() == wanted
    assert encoded({**bare, "headers": pa.nulls(2, HEADERS_TYPE)}).buffer.to_pybytes() == wanted


def test_a_null_header_list_hides_what_lies_under_it():
    headers = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS_TYPE)
    masked = pa.ListArray.from_arrays(headers.offsets, headers.values, HEADERS_TYPE, mask=pa.array([True, False]))
    ours = encoded({"value": pa.array([b"x", b"y"]), "timestamp": pa.array([0, 0]), "headers": masked})
    assert [row[4] for row in decoded(ours.buffer.to_pybytes())] == [[], [("b", b"2")]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_are_rounded_down_to_ms(unit):
    ticks_per_second = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    ticks = [1_700_000_000 * ticks_per_second + extra for extra in (0, ticks_per_second - 1)] + [0]
    for zone in (None, "UTC", "Europe/Berlin"):
        ours = encoded({"value": pa.nulls(3), "timestamp": pa.array(ticks, pa.timestamp(unit, zone))})
        found = [row[1] for row in decoded(ours.buffer.to_pybytes())]
        assert found == [tick * 1000 // ticks_per_second for tick in ticks]


def test_the_millisecond_before_1970_is_kafkas_none():
    ours = encoded({"value": pa.nulls(1), "timestamp": pa.array([-1000], pa.timestamp("us", "UTC"))})
    assert (ours.batches.base_timestamp[0], ours.batches.max_timestamp[0]) == (-1, -1)


def header_column(*lists) -> dict:
    element = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return {
        "value": pa.nulls(len(lists)),
        "timestamp": pa.array([NOW] * len(lists)),
        "headers": pa.array(lists, pa.list_(element)),
    }


@pytest.mark.parametrize("header", [{"key": None, "value": b"x"}, None], ids=["no key", "null as a whole"])
def test_a_header_without_a_key_is_refused(header):
    with pytest.raises(InvalidOptionError, match="header of row 1 has no key"):
        encoded(header_column([], [{"key": "a", "value": None}, header]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"value": pa.array([1])}, "column value cannot be written.*expected binary or string, found int64"),
        ({"key": pa.array([1.5])}, "column key cannot be written"),
        ({"timestamp": pa.array(["now"])}, "column timestamp cannot be written.*found string"),
        ({"timestamp": pa.array([None], pa.timestamp("us"))}, "Row 0 has no timestamp"),
        ({"timestamp": pa.array([-1001], pa.timestamp("us"))}, "row 0 is before 1970.*found -2 ms"),
        ({"headers": pa.array([{"a": 1}])}, "column headers cannot be written"),
        ({"headers": pa.array([[{"name": "a", "value": b""}]])}, "column headers cannot be written"),
        ({"key": pa.nulls(2)}, "differ in length"),
    ],
)
def test_columns_that_cannot_be_written_are_one_clear_error(changed, message):
    good = {"value": pa.array([b"x"]), "timestamp": pa.array([NOW])}
    with pytest.raises(InvalidOptionError, match=message):
        encoded({**good, **changed})


@pytest.mark.parametrize("name", ["value", "timestamp"])
def test_value_and_timestamp_must_be_there(name):
    good = {"value": pa.array([b"x"]), "timestamp": pa.array([NOW])}
    del good[name]
    with pytest.raises(InvalidOptionError, match=f"need a column {name}"):
        encoded(good)
