"""What is left of a batch from an offset on, as aiokafka reads it."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.single_batch import batch_from
from spark_segments.format.window import Window

FIRST = 1000


def batch_of(offsets, timestamps, *, codec: int = 0, transactional: bool = False) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), 77, 3, 2**31 - 2, 1 << 20)
    for offset, timestamp in zip(offsets, timestamps, strict=True):
        key = None if offset % 3 == 0 else b"key %d" % offset
        value = None if offset % 4 == 0 else b"v" * (offset % 200)
        assert builder.append(offset, timestamp, key, value, [("h", b"%d" % offset), ("n", None)]) is not None
    data = builder.build()
    data[0:8] = FIRST.to_bytes(8, "big")
    return data


def fields(record) -> tuple:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@settings(deadline=None)
@given(
    deltas=st.sets(st.integers(0, 2000), min_size=1, max_size=40),
    times=st.lists(st.integers(0, 2**41), min_size=40, max_size=40),
    codec=st.sampled_from([0, 1, 2, 3, 4]),
    transactional=st.booleans(),
    data=st.data(),
)
def test_the_records_from_an_offset_on_stay_as_they_are(deltas, times, codec, transactional, data):
    offsets = sorted(deltas | {1})
    times = times[: len(offsets)] + [5] * (len(offsets) - 40)
    whole = batch_of(offsets, times, codec=codec, transactional=transactional)
    cut = FIRST + data.draw(st.integers(1, offsets[-1]))
    trimmed = batch_from(Window(whole, scan_batches(whole).batches), cut)
    scan = scan_batches(trimmed)  # checks the CRC
    assert scan.error is None and scan.consumed == len(trimmed)
    read, before = DefaultRecordBatch(bytearray(trimmed)), DefaultRecordBatch(bytearray(whole))
    assert read.validate_crc()
    expected = [fields(record) for record in before if record.offset >= cut]
    assert [fields(record) for record in read] == expected
    assert (read.base_offset, read.next_offset) == (cut, before.next_offset)
    assert read.attributes == before.attributes
    assert (read.producer_id, read.producer_epoch) == (before.producer_id, before.producer_epoch)
    assert read.base_sequence == (before.base_sequence + cut - FIRST) % 2**31
    assert read.max_timestamp == max(timestamp for _, timestamp, *_ in expected)


def test_a_batch_without_a_record_that_is_left_is_empty_and_holds_its_offsets():
    whole = batch_of([0, 5], [10, 20], codec=1)
    whole[23:27] = (9).to_bytes(4, "big")  # the last offset delta of a batch whose last records were cleaned away
    trimmed = batch_from(Window(whole, scan_batches(whole, check_crc=False).batches), FIRST + 6)
    [batch] = [scan_batches(trimmed).batches]
    assert (batch.base_offset[0], batch.last_offset[0], batch.count[0], len(trimmed)) == (FIRST + 6, FIRST + 9, 0, 61)
    assert batch.codec[0] == 0


@pytest.mark.parametrize(("position", "byte"), [(60, 2), (61, 0xFF), (61, 1)])
def test_records_that_are_not_what_the_batch_says_are_one_error(position, byte):
    whole = batch_of([0, 1, 2], [1, 2, 3])
    whole[position] = byte
    with pytest.raises(CorruptBatchError, match="record"):
        batch_from(Window(whole, scan_batches(whole, check_crc=False).batches, path="some.log"), FIRST + 1)
