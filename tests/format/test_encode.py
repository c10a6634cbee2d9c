"""Encoding against Kafka's own batches, against the plain twin, and against two other clients' decoders."""

from __future__ import annotations

import base64
from collections import defaultdict

import aiokafka.record.default_records
import kafka.record.default_records
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import InvalidOptionError, RecordTooLargeError
from spark_segments.format.batches import scan_batches
from spark_segments.format.encoding import encode
from spark_segments.format.encoding.encode import Encoded, encode_records
from spark_segments.format.layout import CODECS, CREATE_TIME, HEADERS_TYPE, LOG_APPEND_TIME
from tests.format import twin_encode as twin
from tests.format.twin_encode import Record
from tests.golden_files import expected_batches, expected_records, golden_dir

NOW = 1_700_000_000_000
OTHER_CLIENTS = [
    kafka.record.default_records.DefaultRecordBatch,
    aiokafka.record.default_records.DefaultRecordBatch,
    aiokafka.record.default_records._DefaultRecordBatchPy,
]


def columns(records: list[Record], timestamp=None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in records], timestamp or pa.int64()),
            "headers": pa.array(
                [[{"key": name, "value": value} for name, value in record.headers] for record in records], HEADERS_TYPE
            ),
        }
    )


def encoded(records, rows=None, *, codec="none", level=None, batch_bytes=131072, limit=1 << 30, **options) -> Encoded:
    return encode_records(
        records, rows, codec=CODECS[codec], level=level, batch_bytes=batch_bytes, max_message_bytes=limit, **options
    )


def decoded(data: bytes, client=OTHER_CLIENTS[0]) -> list[tuple]:
    """(offset, timestamp, key, value, headers) of all records of batches, as another client reads them."""
    rows = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        batch = client(bytes(data[position : position + size]))
        assert batch.validate_crc()
        for record in batch:
            rows.append((record.offset, record.timestamp, record.key, record.value, list(record.headers)))
        position += size
    return rows


def expected_of(records: list[Record]) -> list[tuple]:
    return [
        (offset, record.timestamp, record.key, record.value, list(record.headers))
        for offset, record in enumerate(records)
    ]


def assorted(count: int) -> list[Record]:
    """Records with nulls, empty fields, 0 to 3 headers, timestamps out of order, and lengths of one to three bytes."""
    generator = np.random.default_rng(count)
    sizes = [None, 0, 1, 63, 64, 100, 8191, 8192, 20_000]
    chances = [0.1, 0.1, 0.2, 0.2, 0.2, 0.17, 0.01, 0.01, 0.01]

    def some_bytes():
        size = sizes[generator.choice(len(sizes), p=chances)]
        return None if size is None else generator.bytes(size)

    names = ["", "trace-id", "größe", "n" * 70]
    return [
        Record(
            value=some_bytes(),
            key=some_bytes(),
            timestamp=NOW + int(generator.integers(-5000, 5000)),
            headers=[(names[generator.integers(4)], some_bytes()) for _ in range(max(0, generator.integers(-3, 4)))],
        )
        for _ in range(count)
    ]


def golden_batches(name: str):
    """(what Kafka's dump says of a batch, its records, its bytes) for each batch of a golden directory."""
    records = defaultdict(list)
    for record in expected_records(name):
        records[record["segment"], record["batchBaseOffset"]].append(
            Record(
                value=None if record["value"] is None else base64.b64decode(record["value"]),
                key=None if record["key"] is None else base64.b64decode(record["key"]),
                timestamp=record["timestamp"],
                headers=[
                    (header, None if value is None else base64.b64decode(value)) for header, value in record["headers"]
                ],
                offset=record["offset"],
            )
        )
    files: dict[int, bytes] = {}
    for batch in expected_batches(name):
        segment = batch["segment"]
        if segment not in files:
            files[segment] = (golden_dir(name) / f"{segment:020d}.log").read_bytes()
        data = files[segment][batch["position"] : batch["position"] + batch["size"]]
        yield batch, records[segment, batch["baseOffset"]], data


@pytest.mark.parametrize("name", ["plain-0", "mixed-0", "canary-0", "outoforder-0", "multiappend-0", "retention"])
def test_kafkas_batches_come_out_byte_for_byte(name):
    compared = 0
    for batch, records, data in golden_batches("broker-data/retention-0" if name == "retention" else name):
        if batch["compression"] == "none" and batch["producerId"] == -1:
            ours = encoded(
                columns(records),
                batch_bytes=1 << 20,
                base_offset=batch["baseOffset"],
                leader_epoch=batch["leaderEpoch"],
            )
            assert ours.buffer.to_pybytes() == data
            compared += 1
    assert compared >= (3 if name == "retention" else 30)


@pytest.mark.parametrize(
    "name",
    [
        "mixed-0",
        "txn-0",
        "latest-price/after-clean-2/latest-price-0",
        "bigcompact-none/clean-1/bigcompact-0",
        "txn-compact/clean-2/txnc-0",
        "txn-compact/clean-3/txnc-0",
        "broker-data/payments-0",
    ],
)
def test_the_twin_writes_kafkas_bytes_too(name):
    compared = 0
    for batch, records, data in golden_batches(name):
        if batch["compression"] != "none":
            continue
        theirs = twin.batch_bytes(
            records,
            base_offset=batch["baseOffset"],
            last_offset=batch["lastOffset"],
            leader_epoch=batch["leaderEpoch"],
            transactional=batch["isTransactional"],
            control=batch["isControl"],
            delete_horizon_ms=batch["deleteHorizonMs"],
            max_timestamp=batch["maxTimestamp"],
            base_timestamp=None if records else batch["baseTimestamp"],
            producer_id=batch["producerId"],
            producer_epoch=batch["producerEpoch"],
            base_sequence=batch["baseSequence"],
        )
        assert theirs == data
        compared += 1
    assert compared >= 9


def test_the_twin_writes_markers_and_empty_batches():
    marker = next((b, d) for b, _, d in golden_batches("broker-data/payments-0") if b["isControl"])
    (_, timestamp, key, value, _) = decoded(marker[1])[0]
    assert (
        twin.marker_batch(
            int.from_bytes(key[2:4], "big"),
            base_offset=marker[0]["baseOffset"],
            producer_id=marker[0]["producerId"],
            producer_epoch=marker[0]["producerEpoch"],
            coordinator_epoch=int.from_bytes(value[2:6], "big"),
            leader_epoch=marker[0]["leaderEpoch"],
            timestamp=timestamp,
        )
        == marker[1]
    )
    empty = scan_batches(twin.empty_batch(5, 9, producer_id=7, producer_epoch=1, base_sequence=3)).batches
    assert (empty.base_offset[0], empty.last_offset[0], empty.count[0]) == (5, 9, 0)


@pytest.mark.parametrize("client", OTHER_CLIENTS, ids=["kafka-python", "aiokafka", "aiokafka in Python"])
@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_what_is_encoded(codec, client):
    records = assorted(600)
    ours = encoded(columns(records), codec=codec, batch_bytes=16_384)
    assert len(ours.batches) > 10
    assert decoded(ours.buffer.to_pybytes(), client) == expected_of(records)


@pytest.mark.parametrize("batch_bytes", [1, 200, 4096, 131_072])
def test_batches_are_cut_and_written_as_the_twin_does(batch_bytes):
    records = assorted(800)
    ours = encoded(columns(records), batch_bytes=batch_bytes, base_offset=5_000_000_000, leader_epoch=3)
    theirs = list(twin.encode(records, cut_bytes=batch_bytes, base_offset=5_000_000_000, leader_epoch=3))
    assert ours.buffer.to_pybytes() == b"".join(theirs)
    assert ours.batches.size.tolist() == [len(batch) for batch in theirs]
    assert ours.tombstones == sum(record.value is None for record in records)


small = st.one_of(st.none(), st.binary(max_size=5), st.binary(min_size=60, max_size=130))
records_strategy = st.lists(
    st.builds(
        Record,
        value=small,
        key=small,
        timestamp=st.one_of(st.integers(-1, 200), st.integers(NOW, NOW + 10_000), st.just(2**62)),
        headers=st.lists(st.tuples(st.text(max_size=5), small), max_size=3),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(records_strategy, st.integers(62, 1000), st.integers(0, 2**40), st.booleans())
def test_any_records_are_encoded_as_the_twin_does(records, batch_bytes, base_offset, log_append_time):
    ours = encoded(
        columns(records),
        batch_bytes=batch_bytes,
        base_offset=base_offset,
        timestamp_type=LOG_APPEND_TIME if log_append_time else CREATE_TIME,
    )
    theirs = twin.encode(records, cut_bytes=batch_bytes, base_offset=base_offset, log_append_time=log_append_time)
    assert ours.buffer.to_pybytes() == b"".join(theirs)


@settings(max_examples=60, deadline=None)
@given(records_strategy, st.sampled_from(["gzip", "snappy", "lz4", "zstd"]), st.integers(62, 1000))
def test_any_records_come_back_from_every_codec(records, codec, batch_bytes):
    ours = encoded(columns(records), codec=codec, batch_bytes=batch_bytes)
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


@pytest.mark.parametrize("codec", CODECS)
def test_the_table_is_what_a_scan_finds(codec):
    ours = encoded(columns(assorted(500)), codec=codec, batch_bytes=5000, base_offset=77, leader_epoch=4)
    found = scan_batches(ours.buffer)
    assert (found.error, found.consumed, found.needed) == (None, len(ours.buffer), 0)
    for name in found.batches.__slots__:
        mine, theirs = getattr(ours.batches, name), getattr(found.batches, name)
        assert mine.dtype == theirs.dtype, name
        assert mine.tolist() == theirs.tolist(), name


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


def test_log_append_time_stamps_the_latest_timestamp_on_all_records():
    records = [Record(timestamp=NOW + delta) for delta in (5, 9, 0)]
    ours = encoded(columns(records), timestamp_type=LOG_APPEND_TIME)
    assert ours.batches.timestamp_type.tolist() == [LOG_APPEND_TIME]
    assert ours.batches.base_timestamp[0] == ours.batches.max_timestamp[0] == NOW + 9
    for client in OTHER_CLIENTS:
        assert [row[1] for row in decoded(ours.buffer.to_pybytes(), client)] == [NOW + 9] * 3


def test_a_batch_may_be_exactly_as_large_as_asked_for():
    records = [Record(value=b"x" * 100)] * 4
    two = len(twin.batch_bytes(records[:2]))
    assert encoded(columns(records), batch_bytes=two).batches.count.tolist() == [2, 2]
    assert encoded(columns(records), batch_bytes=two - 1).batches.count.tolist() == [1, 1, 1, 1]
    assert encoded(columns(records), limit=two).batches.count.tolist() == [2, 2]


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_larger_than_a_batch_stands_alone(codec):
    records = [Record(value=b"x"), Record(value=bytes(3_000_000)), Record(value=b"y"), Record(value=b"z")]
    ours = encoded(columns(records), codec=codec, batch_bytes=1000)
    assert ours.batches.count.tolist() == [1, 1, 2]
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_a_record_that_is_too_large_is_named():
    records = [Record(value=b"x"), Record(value=b"x" * 1000), Record(value=b"x" * 2000)]
    size = len(twin.batch_bytes([records[2]]))
    rows = np.array([0, 2])
    assert encoded(columns(records), rows, limit=size).batches.size.max() == size
    with pytest.raises(RecordTooLargeError, match=rf"row 2 .*at most {size - 1} bytes, found {size} bytes\. Raise"):
        encoded(columns(records), rows, limit=size - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_may_allow_no_bytes_at_all(codec):
    with pytest.raises(RecordTooLargeError, match=r"row 0 .*at most 0 bytes"):
        encoded(columns([Record(value=b"x")]), codec=codec, limit=0)
    assert len(encoded(columns([]), codec=codec, limit=0).buffer) == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_with_a_codec_a_record_is_too_large_only_if_it_stays_so(codec):
    generator = np.random.default_rng(0)
    records = [Record(value=b"small"), Record(value=bytes(100_000)), Record(value=generator.bytes(50_000))]
    shrinks = encoded(columns(records), np.array([0, 1]), codec=codec, limit=10_000)
    assert shrinks.batches.size.max() < 10_000
    with pytest.raises(RecordTooLargeError, match=r"row 2 .*at most 10000 bytes, found 5\d{4} bytes"):
        encoded(columns(records), codec=codec, limit=10_000)


def test_a_batch_that_a_codec_makes_too_large_is_stored_without():
    records = [Record(value=np.random.default_rng(0).bytes(1000))]
    size = len(twin.batch_bytes(records))
    ours = encoded(columns(records), codec="zstd", limit=size)
    assert ours.batches.codec.tolist() == [0]
    assert ours.buffer.to_pybytes() == twin.batch_bytes(records)
    assert encoded(columns(records), codec="zstd").batches.codec.tolist() == [CODECS["zstd"]]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_what_a_codec_makes_larger_has_room(codec):
    noise = np.random.default_rng(1).bytes(3 << 20)
    records = [Record(value=noise[:-1]), Record(value=noise)]
    ours = encoded(columns(records), codec=codec)
    assert ours.buffer.size > 2 * len(noise)
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_a_batch_that_a_reader_would_not_decompress_is_stored_without(monkeypatch):
    monkeypatch.setattr(encode, "decompressed_limit", lambda compressed_bytes: 100 * compressed_bytes)
    ours = encoded(columns([Record(value=bytes(100_000))]), codec="zstd")
    assert ours.batches.codec.tolist() == [0]
    with pytest.raises(RecordTooLargeError):
        encoded(columns([Record(value=bytes(100_000))]), codec="zstd", limit=50_000)


def test_more_batches_than_one_kernel_call_writes():
    records = [Record(value=b"%d" % number) for number in range(encode._TABLE_ROWS + 10)]
    for codec in ("none", "lz4"):
        ours = encoded(columns(records), codec=codec, batch_bytes=1)
        assert ours.batches.base_offset.tolist() == list(range(len(records)))
        assert [row[3] for row in decoded(ours.buffer.to_pybytes())] == [record.value for record in records]


@pytest.mark.parametrize("batch_bytes", [encode.STAGING_BYTES // 3, encode.STAGING_BYTES * 2])
def test_more_bytes_than_are_staged_at_once(batch_bytes):
    generator = np.random.default_rng(1)
    records = [Record(value=generator.bytes(100_000)) for _ in range(45)]
    ours = encoded(columns(records), codec="lz4", batch_bytes=batch_bytes)
    plain = encoded(columns(records), batch_bytes=batch_bytes)
    assert ours.batches.count.tolist() == plain.batches.count.tolist()
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_levels_reach_the_codec():
    value = b" ".join(b"%d" % (number * 7919 % 1000) for number in range(20_000))
    sizes = [len(encoded(columns([Record(value=value)]), codec="zstd", level=level).buffer) for level in (-50, 1, 19)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3


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
