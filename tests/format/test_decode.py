"""Decoding: the records of Kafka's batches, of other clients' and of batches of every kind."""

from __future__ import annotations

import base64
import struct

import aiokafka.record.default_records
import kafka.record.default_records
import numpy as np
import pyarrow as pa
import pytest

from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import CODECS
from spark_segments.format.window import Window
from tests.format.decoded import START, batch_of, decoded, milliseconds, rows_of
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, expected_records, log_files
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes, empty_batch, marker_batch, varint

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


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


# What other clients write


@pytest.mark.cases(4)
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
