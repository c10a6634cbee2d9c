"""Decoding: Kafka's own reader, other clients' writers and a plain twin are the judges; damage is always one error."""

from __future__ import annotations

import base64
import dataclasses
import struct

import aiokafka.record.default_records
import crc32c
import kafka.record.default_records
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding import record_kernels as kernels
from spark_segments.format.decoding.batch_groups import OPENED_BYTES
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.kernels.jit import COPY_SLACK
from spark_segments.format.layout import CODECS, RECORD_SCHEMA
from spark_segments.format.window import Window
from tests.format.guarded import Guarded
from tests.format.twin import DamageError, decode
from tests.format.twin_encode import Record, batch_bytes, empty_batch, marker_batch, record_bytes, varint
from tests.golden_files import CLEAN_DIRECTORIES, expected_records, golden_dir, log_files

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
NAMES = RECORD_SCHEMA.names
START = 1_700_000_000_000

FUZZ = settings(max_examples=400, deadline=None)


def decoded(data, *, batches=None, path="x.log", file_position=0, offset_shift=0, **options) -> pa.Table:
    """All records of `data` in one table; what is given for them is checked by Arrow itself."""
    if batches is None:
        scan = scan_batches(data, path=path, file_position=file_position)
        if scan.error is not None:
            raise scan.error
        batches = scan.batches
    options = {"topic": "orders", "partition": 3, "include_control": True, **options}
    parts = list(decode_batches(Window(data, batches, file_position, path, offset_shift), **options))
    for part in parts:
        part.validate(full=True)
        assert part.num_rows > 0
    columns = options.get("columns", NAMES)
    return pa.Table.from_batches(parts, schema=pa.schema([RECORD_SCHEMA.field(name) for name in columns]))


def milliseconds(table: pa.Table) -> list[int]:
    return [value // 1000 for value in table["timestamp"].cast("int64").to_pylist()]


def rows_of(table: pa.Table) -> list[tuple]:
    """(offset, milliseconds, timestampType, key, value, headers), as the twin's rows begin."""
    headers = [[(header["key"], header["value"]) for header in row] for row in table["headers"].to_pylist()]
    columns = (table["offset"], table["timestampType"], table["key"], table["value"])
    offset, timestamp_type, key, value = (column.to_pylist() for column in columns)
    return list(zip(offset, milliseconds(table), timestamp_type, key, value, headers, strict=True))


def sealed(batch: bytes) -> bytes:
    """The batch with its CRC and length put right."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


def batch_of(section: bytes, *, count=1, last_offset_delta=None, attributes=0) -> bytes:
    """A batch whose records are any bytes."""
    last_offset_delta = max(count - 1, 0) if last_offset_delta is None else last_offset_delta
    return sealed(
        struct.pack(">qiibIhiqqqhii", 0, 0, 0, 2, 0, attributes, last_offset_delta, START, START, -1, -1, -1, count)
        + section
    )


# What Kafka wrote


@pytest.mark.parametrize("name", [*CLEAN_DIRECTORIES, "live-0"])
def test_every_record_is_what_kafkas_reader_gives(name):
    def text(data):
        return None if data is None else base64.b64encode(data).decode()

    expected = iter(expected_records(name))
    for file in log_files(name):
        table = decoded(file.read_bytes(), path=file.name)
        assert table["topic"].to_pylist() == ["orders"] * len(table)
        assert table["partition"].to_pylist() == [3] * len(table)
        for offset, timestamp, timestamp_type, key, value, headers in rows_of(table):
            record = next(expected)
            assert offset == record["offset"]
            assert timestamp == record["timestamp"]
            assert timestamp_type == TIMESTAMP_TYPES[record["timestampType"]]
            assert text(key) == record["key"]
            assert text(value) == record["value"]
            assert [[name, text(value)] for name, value in headers] == record["headers"]
    assert next(expected, None) is None


@pytest.mark.parametrize("name", ["mixed-0", "zstd-0", "txn-compact/clean-2/txnc-0", "logappend-0"])
def test_offsets_and_timestamps_alone_are_the_same(name):
    for file in log_files(name):
        data = file.read_bytes()
        assert decoded(data, columns=["offset", "timestamp"]) == decoded(data).select(["offset", "timestamp"])


def test_control_records_are_given_only_when_asked_for():
    expected = expected_records("txn-0")
    found = [decoded(file.read_bytes(), include_control=False) for file in log_files("txn-0")]
    offsets = pa.concat_tables(found)["offset"].to_pylist()
    assert offsets == [record["offset"] for record in expected if not record["isControl"]]
    assert len(offsets) < len(expected)


def test_entries_of_older_magic_are_decoded_in_their_place():
    old = (golden_dir("legacy-v1-0") / "00000000000000000000.log").read_bytes()
    new = batch_bytes([Record(b"new", offset=10_000)], base_offset=10_000)
    table = decoded(old + new, columns=["offset", "value"])
    assert table["offset"].to_pylist() == [*decoded(old, columns=["offset"])["offset"].to_pylist(), 10_000]


# What other clients write


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", [aiokafka, kafka], ids=["aiokafka", "kafka-python"])
def test_other_clients_batches_decode(client, codec):
    builder = client.record.default_records.DefaultRecordBatchBuilder(
        2, CODECS[codec], is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
    )
    expected = []
    for index in range(500):
        key = (None, b"", b"k%d" % index)[index % 3]
        value = (b"v" * index, b"", None)[index % 5 % 3]
        headers = [("name", b"x" * (index % 70)), ("ключ", None), ("", b"")][: index % 4]
        assert builder.append(index, START + index * 97 % 50, key, value, headers) is not None
        expected.append((index, START + index * 97 % 50, 0, key, value, headers))
    assert rows_of(decoded(bytes(builder.build()))) == expected


# Batches of every kind


def test_log_append_time_is_the_batchs_max_timestamp():
    data = batch_bytes([Record(b"a"), Record(b"b")], log_append_time=True, max_timestamp=START + 5)
    data += batch_bytes([Record(b"c", offset=2, timestamp=START)], base_offset=2)
    table = decoded(data)
    assert milliseconds(table) == [START + 5, START + 5, START]
    assert table["timestampType"].to_pylist() == [1, 1, 0]


def test_timestamps_count_from_the_delete_horizon_where_there_is_one():
    data = batch_bytes([Record(None, b"k", START), Record(b"v", b"l", START + 9)], delete_horizon_ms=START + 270_000)
    assert milliseconds(decoded(data)) == [START, START + 9]


def test_batches_without_records_give_none():
    record = batch_bytes([Record(b"v", offset=7)], base_offset=7)
    data = empty_batch(0, 6) + record + empty_batch(8, 8)
    assert decoded(data)["offset"].to_pylist() == [7]
    assert list(decode_batches(Window(data, scan_batches(data).batches.take([0, 2])), topic="t", partition=0)) == []


def test_markers_are_records_of_control_batches():
    data = marker_batch(1, base_offset=4, producer_id=9, coordinator_epoch=2)
    assert decoded(data)["key"].to_pylist() == [struct.pack(">hh", 0, 1)]
    assert decoded(data, include_control=False).num_rows == 0


def test_excluded_batches_are_left_out():
    data = b"".join(batch_bytes([Record(b"%d" % index)], base_offset=index) for index in range(5))
    exclude = np.array([False, True, False, True, False])
    assert decoded(data, exclude=exclude)["value"].to_pylist() == [b"0", b"2", b"4"]
    with pytest.raises(ValueError, match="5 batches"):
        decoded(data, exclude=exclude[:4])


@pytest.mark.parametrize("milliseconds_in", [-1, 0, -(2**40), 2**50])
def test_timestamps_that_fit_microseconds_are_exact(milliseconds_in):
    data = batch_bytes([Record(timestamp=milliseconds_in)])
    assert decoded(data)["timestamp"].cast("int64").to_pylist() == [milliseconds_in * 1000]


def test_timestamps_that_do_not_fit_are_the_nearest_that_do():
    data = batch_bytes([Record(timestamp=2**63 - 1)]) + batch_bytes([Record(timestamp=-(2**63))])
    assert decoded(data)["timestamp"].cast("int64").to_pylist() == [9223372036854775000, -9223372036854775000]


def test_header_names_that_are_not_utf_8_are_replaced_as_java_does():
    record = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(2)
    record += varint(3) + b"a\xffb" + varint(-1) + varint(2) + "é".encode() + varint(1) + b"\xff"
    headers = decoded(batch_of(varint(len(record)) + record))["headers"].to_pylist()
    assert headers == [[{"key": "a�b", "value": None}, {"key": "é", "value": b"\xff"}]]


# What is asked for


LOG = b"".join(
    batch_bytes(
        [
            Record(b"value %d" % offset, b"key %d" % (offset % 7), START + offset, [("h", b"%d" % offset)], offset)
            for offset in range(base, base + 8)
            if offset % 3
        ],
        base_offset=base,
        last_offset=base + 7,
        codec=codec,
        log_append_time=appended,
    )
    for base, codec, appended in zip(
        range(0, 80, 8),
        ["none", "none", "gzip", "zstd", "none", "lz4", "snappy", "snappy", "none", "none"],
        [False, True, True, False, False, False, False, True, True, False],
        strict=True,
    )
)


@pytest.mark.parametrize(
    "columns",
    [["value"], ["offset"], ["headers", "key"], ["topic", "partition"], ["timestampType"], NAMES[::-1], ["key", "key"]],
)
def test_columns_come_as_asked_for(columns):
    everything = decoded(LOG)
    table = decoded(LOG, columns=columns)
    assert table.column_names == columns
    for index, name in enumerate(columns):
        assert table.column(index) == everything[name]


def test_an_unknown_column_is_refused():
    with pytest.raises(InvalidOptionError, match="offsets"):
        decoded(LOG, columns=["offsets"])


@pytest.mark.parametrize("columns", [NAMES, ["offset"]])
def test_records_are_clipped_to_the_offsets_asked_for(columns):
    offsets = decoded(LOG)["offset"].to_pylist()
    for shift in (0, 1000):
        for start in (None, -5, 0, 1, 9, 10, 40, 79, 80, 2**70):
            for end in (None, 0, 1, 8, 11, 41, 79, 80, 81, 2**70):
                first = None if start is None else start + shift
                last = None if end is None else end + shift
                table = decoded(LOG, start_offset=first, end_offset=last, offset_shift=shift, columns=columns)
                expected = [
                    offset + shift
                    for offset in offsets
                    if (start is None or offset >= start) and (end is None or offset < end)
                ]
                assert table["offset"].to_pylist() == expected


@pytest.mark.parametrize("target_bytes", [0, 1, 300, 1000, 10_000])
def test_groups_of_any_size_hold_the_same_records(target_bytes):
    parts = list(
        decode_batches(Window(LOG, scan_batches(LOG).batches), topic="t", partition=0, target_bytes=target_bytes)
    )
    assert pa.Table.from_batches(parts) == decoded(LOG, topic="t", partition=0)
    assert len(parts) >= (10 if target_bytes <= 1 else 5)  # at the changes of the timestamp type at least
    largest_batch = 6 * 200
    assert max(part.nbytes for part in parts) < target_bytes * 2 + largest_batch


def test_many_small_batches_are_put_together():
    data = b"".join(batch_bytes([Record(b"x" * 100)], base_offset=offset) for offset in range(3000))
    parts = list(
        decode_batches(Window(data, scan_batches(data).batches), topic="t", partition=0, columns=["offset", "value"])
    )
    assert [part.num_rows for part in parts] == [3000]
    assert parts[0]["offset"].to_pylist() == list(range(3000))


def test_many_tiny_records_of_one_batch_become_several_parts():
    section = b"".join(record_bytes(Record(b""), 0, index) for index in range(270_000))
    data = batch_of(section, count=270_000)
    parts = list(decode_batches(Window(data, scan_batches(data).batches), topic="t" * 249, partition=0))
    assert max(part.num_rows for part in parts) <= 1 << 18
    assert np.array_equal(np.concatenate([part["offset"].to_numpy() for part in parts]), np.arange(270_000))
    assert parts[-1]["topic"][-1].as_py() == "t" * 249


def test_parts_do_not_hold_more_memory_than_they_show():
    data = batch_bytes([Record(b"v" * 100, b"k" * 8, offset=offset) for offset in range(5000)])
    before = pa.total_allocated_bytes()
    parts = list(
        decode_batches(Window(data, scan_batches(data).batches), topic="t", partition=0, columns=["key", "offset"])
    )
    assert pa.total_allocated_bytes() - before < 2 * sum(part.nbytes for part in parts)


def test_positions_are_those_of_the_file():
    data = b"".join(batch_bytes([Record(b"%d" % index)], base_offset=index) for index in range(3))
    scan = scan_batches(data, file_position=5000)
    table = decoded(data, file_position=5000, batches=scan.batches.take(slice(1, 3)))
    assert table["value"].to_pylist() == [b"1", b"2"]
    with pytest.raises(ValueError, match="not of this buffer"):
        decoded(data, batches=scan.batches)


# Damage


GOOD = batch_bytes([Record(b"good")])


def the_error(batch: bytes, **options) -> CorruptBatchError:
    """The error of a bad batch behind a good one."""
    with pytest.raises(CorruptBatchError) as caught:
        decoded(GOOD + batch, file_position=1000, **options)
    assert (caught.value.path, caught.value.position) == ("x.log", 1000 + len(GOOD))
    return caught.value


ZERO, NULL = varint(0), varint(-1)


def record(*, timestamp=ZERO, offset=ZERO, key=NULL, value=NULL, headers=ZERO, length=None) -> bytes:
    body = b"\0" + timestamp + offset + key + value + headers
    return (varint(len(body)) if length is None else length) + body


BAD_SECTIONS = {
    "record longer than the batch": record(length=varint(7)),
    "record shorter than its content": record(value=varint(3) + b"abc", length=varint(8)) + b"\0",
    "record of less than its fields": varint(5) + bytes(5),
    "negative record length": record(length=varint(-1)),
    "record length of five bytes": record(length=b"\xff\xff\xff\xff\x0f"),
    "record length that does not end": b"\xff" * 12,
    "timestamp delta that does not end": record(timestamp=b"\x80" * 11),
    "offset delta below 0": record(offset=varint(-1)),
    "offset delta above the last": record(offset=varint(1)),
    "offset delta of more than an int32": record(offset=b"\xff\xff\xff\xff\xff\x01"),
    "key beyond the record": record(key=varint(9) + b"key"),
    "key length below -1": record(key=varint(-2)),
    "key of 2 GiB": record(key=varint(2**31 - 1)),
    "value beyond the record": record(value=varint(9) + b"value"),
    "value length below -1": record(value=varint(-5)),
    "value of 2 GiB": record(value=varint(2**31 - 1)),
    "value length cut": record(value=b"\xff", headers=b""),
    "negative header count": record(headers=varint(-1)),
    "more headers than bytes": record(headers=varint(2**31 - 1)),
    "more headers than there are": record(headers=varint(2) + varint(0) + varint(0) + b"\0"),
    "header without name": record(headers=varint(1) + varint(-1) + varint(0)),
    "header name beyond the record": record(headers=varint(1) + varint(5) + b"a" + varint(0)),
    "header value beyond the record": record(headers=varint(1) + varint(1) + b"a" + varint(5)),
    "header value length below -1": record(headers=varint(1) + varint(1) + b"a" + varint(-2)),
    "bytes behind the headers": record(headers=varint(0) + b"more"),
    "bytes behind the last record": record() + b"\0",
    "a second record that is not counted": record() + record(),
}


@pytest.mark.parametrize("section", BAD_SECTIONS.values(), ids=BAD_SECTIONS)
def test_damaged_records_are_an_error_at_their_batch(section):
    batch = batch_of(section)
    with pytest.raises(DamageError):
        decode(batch)
    error = the_error(batch)
    assert error.expected is not None
    assert error.found is not None


def test_offset_deltas_must_rise():
    batch = batch_of(record(offset=varint(1)) + record(offset=varint(1)), count=2)
    error = the_error(batch)
    assert error.found == 1
    assert "Record 1 of a batch" in error.message
    the_error(batch, columns=["offset"])


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_count_that_the_bytes_cannot_hold_takes_no_memory(codec):
    section = batch_bytes([Record()], codec=[*CODECS][codec])[61:]
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    batch = batch_of(section, count=2**31 - 1, last_offset_delta=2**31 - 1, attributes=codec)
    error = the_error(batch, target_bytes=1 << 16)  # of the RecordBatch that the good batch before it has begun
    assert error.found == 2**31 - 1
    assert pa.default_memory_pool().max_memory() <= max(peak, before + 4 * OPENED_BYTES)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 6, 7])
def test_records_that_do_not_decompress_are_an_error_at_their_batch(codec):
    assert the_error(batch_of(b"this is not compressed", attributes=codec)).message


def test_offsets_that_do_not_fit_the_log_are_an_error():
    batches = scan_batches(GOOD, file_position=7).batches
    for shift, base in ((-1, 0), (1, 2**63 - 1)):
        table = dataclasses.replace(batches, base_offset=np.array([base]), last_offset=np.array([base]))
        with pytest.raises(CorruptBatchError) as caught:
            decoded(GOOD, batches=table, file_position=7, offset_shift=shift)
        assert caught.value.position == 7


def test_what_is_not_wanted_of_a_damaged_record_is_not_looked_at():
    batch = batch_of(BAD_SECTIONS["value beyond the record"])
    assert decoded(batch, columns=["offset"])["offset"].to_pylist() == [0]
    the_error(batch, columns=["key"])


# Any bytes at all: the twin says what they are


def nearest(timestamp_ms: int) -> int:
    """The nearest timestamp that microseconds in an int64 can say."""
    limit_ms = (2**63 - 1) // 1000
    return max(-limit_ms, min(timestamp_ms, limit_ms))


def same_as_twin(data) -> bool:
    """Whether both read `data`, the same records; False where both refuse it."""
    answers = []
    for heads_only, columns in ((False, NAMES), (True, ["offset", "timestamp", "timestampType"])):
        try:
            expected = decode(bytes(data), heads_only=heads_only)
        except DamageError:
            with pytest.raises(CorruptBatchError):
                decoded(data, columns=columns)
            answers.append(False)
            continue
        answers.append(True)
        rows = [
            (row.offset, nearest(row.timestamp), row.timestamp_type, row.key, row.value, row.headers)
            for row in expected
        ]
        table = decoded(data, columns=columns)
        if heads_only:
            columns_read = (table["offset"].to_pylist(), milliseconds(table), table["timestampType"].to_pylist())
            assert list(zip(*columns_read, strict=True)) == [row[:3] for row in rows]
        else:
            assert rows_of(table) == rows
    return answers[0]


INPUT = Guarded(1 << 16)

texts = st.text(max_size=5)
small = st.binary(max_size=6) | st.binary(min_size=60, max_size=140)
a_record = st.builds(
    Record,
    value=st.none() | small,
    key=st.none() | small,
    timestamp=st.integers(START - 70, START + 70) | st.integers(-(2**52), 2**52),
    headers=st.lists(st.tuples(texts, st.none() | small), max_size=3),
)
some_records = st.lists(a_record, min_size=1, max_size=6)


@settings(FUZZ, max_examples=200)
@given(st.lists(some_records, min_size=1, max_size=4), st.sampled_from([*CODECS]), st.booleans())
def test_what_the_twin_writes_decodes_as_the_twin_decodes(batches, codec, appended):
    data, base_offset = b"", 0
    for batch in batches:
        data += batch_bytes(batch, base_offset=base_offset, codec=codec, log_append_time=appended)
        base_offset += len(batch)
    assert same_as_twin(INPUT.hold(data))


@FUZZ
@given(some_records, st.data())
def test_flipped_bits_under_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(21, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    same_as_twin(INPUT.hold(GOOD + sealed(bytes(damaged))))


@FUZZ
@given(some_records, st.data())
def test_flipped_bits_and_cuts_without_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch) + GOOD)
    flipped = data.draw(st.integers(0, len(damaged) - 1).filter(lambda at: at != 16))
    damaged[flipped] ^= 1 << data.draw(st.integers(0, 7))
    same_as_twin(INPUT.hold(bytes(damaged[: data.draw(st.integers(0, len(damaged)))])))


@pytest.mark.slow
@FUZZ
@given(some_records, st.data())
def test_bytes_put_in_and_taken_out_under_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch))
    at = data.draw(st.integers(61, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    same_as_twin(INPUT.hold(sealed(bytes(damaged))))


@FUZZ
@given(st.binary(max_size=120), st.integers(0, 6), st.integers(0, 10))
def test_random_records_under_a_right_crc(section, count, last_offset_delta):
    same_as_twin(INPUT.hold(batch_of(section, count=count, last_offset_delta=last_offset_delta)))


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes(data):
    same_as_twin(INPUT.hold(data[:16] + b"\2" + data[17:] if len(data) > 16 else data))


@FUZZ
@given(some_records, st.sampled_from(["gzip", "snappy", "lz4", "zstd"]), st.data())
def test_flipped_bits_of_compressed_records_give_records_or_one_error(batch, codec, data):
    """Not the twin's answer: decoders of one codec differ in what damage they see."""
    damaged = bytearray(batch_bytes(batch, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(61, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert decoded(sealed(bytes(damaged)))["offset"].to_pylist() == list(range(len(batch)))
    except CorruptBatchError as error:
        assert error.position == 0


OUTPUTS = {
    name: Guarded(1 << 14) for name in ("offsets", "timestamps", "key", "keys", "key_nulls", "value", "values", "nulls")
}


@FUZZ
@given(some_records, st.data())
def test_kernels_write_only_into_the_room_they_were_given(batch, data):
    """Every column ends at a guarded page, with just the room that its upper bound says."""
    section = bytearray(batch_bytes(batch)[61:])
    for _ in range(data.draw(st.integers(0, 2))):
        section[data.draw(st.integers(0, len(section) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    count = min(len(batch), len(section) // kernels.SMALLEST_RECORD)
    place = INPUT.hold(bytes(section)).__array_interface__["data"][0]
    sections = np.array([[place, place + len(section), count, 0, len(batch) - 1, START, 1]], np.int64)

    def room(name: str, size: int) -> int:
        return OUTPUTS[name].end - size

    def binary(offsets: str, nulls: str, content: str) -> kernels.Binary:
        size = len(section) + COPY_SLACK
        return kernels.Binary(
            True, count, room(offsets, 4 * count + 4), room(nulls, (count + 7) // 8), room(content, size)
        )

    outcome = kernels.Outcome(
        *kernels.decode_records(
            sections,
            0,
            2**62,
            tuple(kernels.Filled(0, 0, 0, 0, 0, 0, 0)),
            room("offsets", 8 * count),
            room("timestamps", 8 * count),
            binary("keys", "key_nulls", "key"),
            binary("values", "nulls", "value"),
            kernels.HeaderPlaces(False, 0, 0, 0),
        )
    )
    assert outcome.problem or outcome.rows == count
