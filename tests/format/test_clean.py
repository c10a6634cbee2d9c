"""Cleaning keeps the latest record of each key, tombstones for their time, and the batches that producers need."""

from __future__ import annotations

import numpy as np
import pytest

from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import REBUILT_BYTES, CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.producer_state import ProducerEntry
from spark_segments.format.window import Window
from tests.format.cleaned import LARGEST_INT64, NOW_MS, RETENTION_MS, clean, left, offsets, scanned
from tests.format.plain_decode import plain_batches
from verification.world.kafka_bytes.twin_encode import COMMIT, Record, batch_bytes, empty_batch, marker_batch


def test_only_the_latest_record_of_each_key_stays():
    data = batch_bytes([Record(b"1", b"a"), Record(b"2", b"b"), Record(b"3", b"a")])
    data += batch_bytes([Record(b"4", b"b"), Record(b"5", b"c")], base_offset=3)
    cleaned = clean(data)
    assert offsets(cleaned) == [2, 3, 4]
    assert (cleaned.stats.records_read, cleaned.stats.records_kept, cleaned.stats.superseded) == (5, 3, 2)


def test_records_without_key_are_dropped():
    cleaned = clean(batch_bytes([Record(b"1"), Record(b"2", b"a"), Record(b"3", b"")]))
    assert offsets(cleaned) == [1, 2]
    assert cleaned.stats.no_key == 1


def test_what_lies_past_the_map_stays_whatever_it_is():
    data = batch_bytes([Record(b"1", b"a"), Record(b"2", b"a"), Record(b"3", b"a"), Record(b"4"), Record(None, b"b")])
    assert offsets(clean(data, map_end_offset=2)) == [1, 2, 3, 4]


def test_a_key_that_the_map_does_not_know_stays():
    data = batch_bytes([Record(b"1", b"a")])
    cleaning = RecordFilter(OffsetMap(1000, start_offset=1), NOW_MS, RETENTION_MS, 9, ActiveProducers.of())
    (cleaned,) = clean_batches(Window(data, scanned(data)), cleaning, CleanedTransactions())
    assert not cleaned.changed


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_that_lose_nothing_are_the_same_memory(codec):
    data = batch_bytes([Record(b"1", b"a"), Record(b"2", b"b")], codec=codec)
    data += batch_bytes([Record(b"3", b"c")], base_offset=2, codec=codec)
    cleaned = clean(data)
    assert not cleaned.changed
    assert cleaned.data.tobytes() == data
    assert np.shares_memory(cleaned.data, np.frombuffer(data, np.uint8))
    assert cleaned.stats.batches_unchanged == cleaned.stats.batches_read == 2


def test_kept_batches_are_copied_byte_for_byte_beside_rebuilt_ones():
    first = batch_bytes([Record(b"1", b"a")], leader_epoch=3)
    second = batch_bytes([Record(b"2", b"b"), Record(b"3", b"c")], base_offset=1)
    third = batch_bytes([Record(b"4", b"b")], base_offset=3, codec="gzip", leader_epoch=4)
    cleaned = clean(first + second + third)
    assert cleaned.changed
    batches = cleaned.data.tobytes()
    assert batches.startswith(first)
    assert batches.endswith(third)
    assert [batch.base_offset for batch in left(cleaned)] == [0, 1, 3]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_rebuilt_batch_keeps_its_header_and_counts_from_its_first_record(codec):
    records = [
        Record(b"1", b"a", 1000),
        Record(b"2", b"b", 1500, [("h", None)]),
        Record(b"3", b"c", 1200),
        Record(b"4", b"a", 9),
    ]
    producer = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 31}
    data = batch_bytes(records, base_offset=70, last_offset=99, codec=codec, leader_epoch=5, **producer)
    (batch,) = left(clean(data, newer=batch_bytes([Record(b"5", b"a")], base_offset=100)))
    (original,) = plain_batches(data)
    assert batch.records == original.records[1:3]
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (70, 99, 5)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 31)
    assert (batch.base_timestamp, batch.max_timestamp, batch.codec) == (1500, 1500, original.codec)
    assert batch.delete_horizon_ms is None


def test_records_are_copied_as_they_are_when_the_first_one_stays():
    data = batch_bytes([Record(b"1", b"a", 1000), Record(b"2", b"b", 5000), Record(b"3", b"c", 900)])
    (batch,) = left(clean(data, newer=batch_bytes([Record(b"", b"b")], base_offset=3)))
    assert [record.timestamp for record in batch.records] == [1000, 900]
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1000)


def test_records_without_timestamp_keep_having_none():
    data = batch_bytes([Record(b"1", b"a", 1000), Record(b"2", b"b", -1), Record(b"3", b"c", -1)])
    (batch,) = left(clean(data, newer=batch_bytes([Record(b"", b"a")], base_offset=3)))
    assert [record.timestamp for record in batch.records] == [-1, -1]
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, -1)


def test_a_batch_with_log_append_time_keeps_it_for_every_record():
    data = batch_bytes(
        [Record(b"1", b"a"), Record(None, b"b"), Record(b"3", b"c")],
        log_append_time=True,
        base_timestamp=NOW_MS - 1000,
        max_timestamp=NOW_MS - 10,
    )
    (batch,) = left(clean(data, newer=batch_bytes([Record(b"", b"a")], base_offset=3)))
    assert batch.log_append_time
    assert {record.timestamp for record in batch.records} == {batch.max_timestamp} == {NOW_MS - 10}
    assert batch.delete_horizon_ms == NOW_MS + RETENTION_MS


def test_the_first_cleaning_of_a_tombstone_sets_its_delete_horizon():
    data = batch_bytes([Record(b"1", b"a", 1000), Record(None, b"b", 2000)])
    cleaned = clean(data)
    (batch,) = left(cleaned)
    assert batch.delete_horizon_ms == NOW_MS + RETENTION_MS
    assert batch.records == next(plain_batches(data)).records
    assert (batch.max_timestamp, cleaned.stats.tombstones_kept, cleaned.changed) == (2000, 1, True)


def test_a_tombstone_outlives_delete_retention_and_no_more():
    marked = clean(batch_bytes([Record(b"1", b"a"), Record(None, b"b")])).data.tobytes()
    before = clean(marked, now_ms=NOW_MS + RETENTION_MS - 1)
    assert not before.changed
    after = clean(marked, now_ms=NOW_MS + RETENTION_MS)
    assert offsets(after) == [0]
    assert after.stats.tombstone == 1


def test_a_delete_horizon_is_never_moved_and_outlives_its_tombstone():
    marked = clean(batch_bytes([Record(b"1", b"a"), Record(None, b"b"), Record(b"2", b"c")])).data.tobytes()
    later_ms = NOW_MS + RETENTION_MS
    again = clean(marked, now_ms=later_ms - 1, newer=batch_bytes([Record(b"3", b"a")], base_offset=3))
    assert left(again)[0].delete_horizon_ms == later_ms
    gone = clean(again.data.tobytes(), now_ms=later_ms)
    (batch,) = left(gone)
    assert (batch.delete_horizon_ms, [record.offset for record in batch.records]) == (later_ms, [2])


def test_a_tombstone_past_its_horizon_stays_as_long_as_the_map_does_not_reach_it():
    marked = clean(batch_bytes([Record(None, b"a"), Record(None, b"b")])).data.tobytes()
    assert offsets(clean(marked, now_ms=NOW_MS + RETENTION_MS, map_end_offset=1)) == [1]


def test_tombstones_stay_for_ever_where_the_retention_is_beyond_all_time():
    data = batch_bytes([Record(None, b"a")])
    cleaned = clean(data, delete_retention_ms=LARGEST_INT64)
    assert not cleaned.changed
    assert left(cleaned)[0].delete_horizon_ms is None


def test_a_delete_horizon_may_make_a_batch_longer():
    data = batch_bytes([Record(None, b"%d" % number) for number in range(1000)])
    cleaned = clean(data, delete_retention_ms=1 << 60)
    assert len(cleaned.data) > len(data) + 7 * 1000
    assert left(cleaned)[0].records == next(plain_batches(data)).records


def test_the_last_batch_of_the_round_is_kept_though_empty():
    data = batch_bytes([Record(b"1", b"a", 1000)], base_offset=5, last_offset=9, codec="zstd", leader_epoch=2)
    newer = batch_bytes([Record(b"2", b"a")], base_offset=10)
    assert not left(clean(data, newer=newer))
    (batch,) = left(clean(data, newer=newer, first_uncleanable_offset=10))
    assert (batch.base_offset, batch.last_offset, batch.records) == (5, 9, ())
    assert (batch.codec, batch.base_timestamp, batch.max_timestamp, batch.leader_epoch) == (0, -1, 1000, 2)


def test_an_empty_batch_stays_as_it_is_while_it_must_and_then_goes():
    data = empty_batch(5, 9, max_timestamp=1000, base_timestamp=-1)
    assert not clean(data, first_uncleanable_offset=10).changed
    gone = clean(data)
    assert gone.changed
    assert len(gone.data) == len(gone.batches) == 0


def test_the_last_batch_of_a_live_producer_is_kept_for_its_sequence():
    options = {"producer_id": 7, "producer_epoch": 1}
    data = batch_bytes([Record(b"1", b"a")], base_sequence=0, **options)
    data += batch_bytes([Record(b"2", b"a")], base_offset=1, base_sequence=1, **options)
    newer = batch_bytes([Record(b"3", b"a")], base_offset=2)
    (batch,) = left(clean(data, newer=newer, producers=[ProducerEntry(7, 1, 1, last_offset=1)]))
    assert (batch.base_offset, batch.base_sequence, batch.producer_id, batch.records) == (1, 1, 7, ())
    assert not left(clean(data, newer=newer, producers=[ProducerEntry(8, 1, 1, last_offset=1)]))


def test_the_marker_of_a_live_producer_without_data_is_kept_for_its_epoch():
    data = marker_batch(COMMIT, base_offset=0, producer_id=7, producer_epoch=3, delete_horizon_ms=NOW_MS)
    (batch,) = left(clean(data, producers=[ProducerEntry(7, 3)]))
    assert (batch.control, batch.producer_epoch, batch.records) == (True, 3, ())
    assert not left(clean(data, producers=[ProducerEntry(7, 4)]))
    assert not left(clean(data))


def test_the_given_bytes_are_never_written_to():
    data = bytearray(
        batch_bytes([Record(b"1", b"a"), Record(b"2", b"b")]) + batch_bytes([Record(b"", b"a")], base_offset=2)
    )
    before = bytes(data)
    clean(data, offset_shift=77)
    assert bytes(data) == before


def test_a_portion_of_a_file_is_found_by_its_position():
    first, second = (
        batch_bytes([Record(b"1", b"a")]),
        batch_bytes([Record(b"2", b"b"), Record(b"3", b"b")], base_offset=1),
    )
    batches = scan_batches(second, file_position=len(first)).batches
    offset_map = OffsetMap(1000)
    offset_map.put_batches(Window(second, batches, byte_position=len(first)))
    cleaning = RecordFilter(offset_map, NOW_MS, RETENTION_MS, 99, ActiveProducers.of())
    (cleaned,) = clean_batches(Window(second, batches, byte_position=len(first)), cleaning, CleanedTransactions())
    assert offsets(cleaned) == [2]
    assert cleaned.batches.byte_position.tolist() == [0]


def test_nothing_in_nothing_out():
    cleaning = RecordFilter(OffsetMap(1000), NOW_MS, RETENTION_MS, 99, ActiveProducers.of())
    assert list(clean_batches(Window(b"", scanned(b"")), cleaning, CleanedTransactions())) == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("codec", [None, 0])
def test_batches_that_compress_well_are_cleaned_in_parts(codec):
    value = bytes(1 << 20)
    data = b"".join(
        batch_bytes([Record(value, b"a"), Record(value, b"%d" % number)], base_offset=2 * number, codec="zstd")
        for number in range(20)
    )
    offset_map = OffsetMap(1 << 16)
    offset_map.put_batches(Window(data, scanned(data)))
    cleaning = RecordFilter(offset_map, NOW_MS, RETENTION_MS, 99, ActiveProducers.of(), codec)
    parts = list(clean_batches(Window(data, scanned(data)), cleaning, CleanedTransactions()))
    assert [len(part.source) for part in parts] == [2] * 10  # of 4 MiB of records
    assert 4 * len(value) == REBUILT_BYTES
    assert [offset for part in parts for offset in offsets(part)] == [*range(1, 38, 2), 38, 39]
    assert (
        np.concatenate([part.source.byte_position for part in parts]).tolist() == scanned(data).byte_position.tolist()
    )
    counts = sum((part.stats for part in parts), CleanerStats())
    assert (counts.records_read, counts.records_kept, counts.superseded) == (40, 21, 19)
    assert (counts.bytes_read, counts.batches_unchanged) == (len(data), 1)
