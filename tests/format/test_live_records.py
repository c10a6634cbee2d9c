"""Live records: a bit for each offset of a map says whether the latest record of a key is there."""

from __future__ import annotations

import numpy as np

from spark_segments.format.cleaner.live_records import LiveRecords
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.window import Window
from tests.format.cleaned import scanned
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes


def mapped(*batches: bytes, start_offset: int = 0) -> OffsetMap:
    offset_map = OffsetMap(1 << 16, start_offset=start_offset)
    for data in batches:
        offset_map.put_batches(Window(data, scanned(data)))
    return offset_map


def counts(live: LiveRecords, ranges: list[tuple[int, int]]) -> list[int]:
    return live.counts_between(*(np.array(column, np.int64) for column in zip(*ranges, strict=True))).tolist()


def test_the_latest_records_of_each_range_are_counted():
    keys = [b"%d" % (number * number % 23) for number in range(100)]
    live = LiveRecords.of(mapped(batch_bytes([Record(b"v", key) for key in keys])), 1 << 10)
    assert live is not None
    latest = {key: offset for offset, key in enumerate(keys)}
    ranges = [(first, last) for first in range(0, 100, 7) for last in range(first, 100, 3)]
    assert counts(live, ranges) == [sum(a <= offset <= b for offset in latest.values()) for a, b in ranges]


def test_the_share_of_live_records_is_that_of_the_eights_around_a_range():
    keys = [b"%d" % (number * number % 23) for number in range(100)]
    live = LiveRecords.of(mapped(batch_bytes([Record(b"v", key) for key in keys])), 1 << 10)
    assert live is not None
    latest = {key: offset for offset, key in enumerate(keys)}
    ranges = [(16, 96, 16, 96), (17, 95, 16, 96), (64, 65, 64, 72)]
    for first, end, low, high in ranges:
        assert live.share(first, end) == sum(low <= offset < high for offset in latest.values()) / (high - low)
    assert live.share(90, 101) == live.share(5, 5) == 1


def test_a_range_that_is_not_wholly_in_the_map_is_not_known():
    data = batch_bytes([Record(b"v", b"a"), Record(b"v", b"b")], base_offset=10)
    live = LiveRecords.of(mapped(data, start_offset=10), 1 << 10)
    assert live is not None
    assert counts(live, [(9, 11), (10, 11), (10, 12)]) == [-1, 2, -1]


def test_bits_that_take_too_much_memory_are_not_made():
    offset_map = mapped(batch_bytes([Record(b"v", b"a")], last_offset=8_000))
    assert LiveRecords.of(offset_map, 1000) is None
    assert LiveRecords.of(offset_map, 1001) is not None


def test_an_offset_beyond_the_map_that_a_damaged_batch_states_sets_no_bit():
    offset_map = mapped(batch_bytes([Record(b"v", b"a", offset=4)], last_offset=0))
    assert (offset_map.end_offset, offset_map.get(b"a")) == (1, 4)
    live = LiveRecords.of(offset_map, 1 << 10)
    assert live is not None and live.bits.tolist() == [0]
