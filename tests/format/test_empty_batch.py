from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords

from spark_segments.format.batches import scan_batches
from spark_segments.format.single_batch import LARGEST_BATCH_OFFSETS, empty_batches
from verification.world.kafka_bytes.golden_files import log_files


@pytest.mark.parametrize("base, last", [(0, 0), (40, 59), (2**40, 2**40 + LARGEST_BATCH_OFFSETS - 1)])
def test_an_empty_batch_is_one_to_every_reader_and_ends_where_it_says(base, last):
    [data] = empty_batches(base, last + 1, 7)
    batches = scan_batches(data).batches
    assert (len(data), len(batches)) == (61, 1)
    assert (batches.base_offset[0], batches.last_offset[0], batches.count[0], batches.leader_epoch[0]) == (
        base,
        last,
        0,
        7,
    )
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc() and batch.next_offset == last + 1 and list(batch) == []


def test_a_hole_of_more_offsets_than_a_batch_can_span_is_many_batches():
    end = 5 + 2 * LARGEST_BATCH_OFFSETS + 1
    batches = scan_batches(b"".join(empty_batches(5, end, 7))).batches
    assert batches.base_offset.tolist() == [5, 5 + LARGEST_BATCH_OFFSETS, end - 1]
    assert (batches.last_offset + 1).tolist() == [*batches.base_offset.tolist()[1:], end]
    assert not list(empty_batches(5, 5, 7))


def test_kafkas_own_empty_batches_differ_in_producer_and_time_only():
    found = 0
    for path in log_files("txn-compact/clean-3/txnc-0"):
        data = path.read_bytes()
        batches = scan_batches(data).batches
        for at in (batches.count == 0).nonzero()[0]:
            start = int(batches.byte_position[at])
            theirs = data[start : start + int(batches.size[at])]
            base_offset, end_offset = int(batches.base_offset[at]), int(batches.last_offset[at]) + 1
            [ours] = empty_batches(base_offset, end_offset, int(batches.leader_epoch[at]))
            # Around the CRC, the attributes, times, and producer fields.
            assert (ours[:17], ours[23:27], ours[57:]) == (theirs[:17], theirs[23:27], theirs[57:])
            found += 1
    assert found == 3
