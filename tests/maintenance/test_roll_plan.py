"""Which partitions are due to roll, from rows alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_segments.config import topic_config
from spark_segments.maintenance.rolling.roll_plan import (
    IDLE,
    MERGE,
    OFFSET_OVERFLOW,
    SEGMENT_BYTES,
    SEGMENT_INDEX_BYTES,
    SEGMENT_MS,
    RollRules,
    plan_roll,
    runs_to_merge,
)
from tests.maintenance.rows import TOPIC_ID, chunk, row, run, table

HOUR_MS = 3_600_000


def rules(**config: object) -> RollRules:
    return RollRules.of(TOPIC_ID, topic_config({name.replace("_", "."): value for name, value in config.items()}))


def due(rows: list, now_ms: int = 0, **config: object) -> dict[int, tuple[str, ...]]:
    return {one.partition: one.reasons for one in plan_roll(table(rows), rules(**config), now_ms).partitions}


def test_nothing_is_due_in_a_young_small_active_segment():
    assert due([row(0, 10), chunk(10, 20)]) == {}
    assert due([row(0, 10)], now_ms=10**15) == {}
    assert due([]) == {}


def test_bytes_above_segment_bytes_are_due():
    assert due(run([500, 500], state="chunk"), segment_bytes=1000) == {}
    assert due(run([500, 501], state="chunk"), segment_bytes=1000) == {0: (SEGMENT_BYTES,)}


def test_sealed_segments_count_for_nothing():
    assert due(run([900] * 9) + run([900], state="chunk", start=90), segment_bytes=1000) == {}


def test_record_time_counts_from_the_first_batch():
    chunks = [
        chunk(0, 1, first_batch_max_timestamp_ms=1000, max_timestamp_ms=9999),
        chunk(1, 2, max_timestamp_ms=1000 + HOUR_MS),
    ]
    assert due(chunks, segment_ms=HOUR_MS) == {}
    assert due(chunks, segment_ms=HOUR_MS - 1) == {0: (SEGMENT_MS,)}


def test_without_a_first_timestamp_the_files_times_count():
    chunks = [
        chunk(0, 1, max_timestamp_ms=-1, first_batch_max_timestamp_ms=-1, created_ms=5000),
        chunk(1, 2, max_timestamp_ms=10**12, created_ms=5000 + HOUR_MS),
    ]
    assert due(chunks, segment_ms=HOUR_MS) == {}
    assert due(chunks, segment_ms=HOUR_MS - 1) == {0: (SEGMENT_MS,)}


@pytest.mark.parametrize("first_ms, created_ms", [(1000, 0), (0, 1000), (-1, 1000)])
def test_an_idle_partition_is_due_by_the_clock(first_ms, created_ms):
    chunks = [chunk(0, 1, first_batch_max_timestamp_ms=first_ms, created_ms=created_ms)]
    assert due(chunks, now_ms=1000 + HOUR_MS, segment_ms=HOUR_MS) == {}
    assert due(chunks, now_ms=1001 + HOUR_MS, segment_ms=HOUR_MS) == {0: (IDLE,)}


def test_a_compacted_topic_is_idle_sooner():
    chunks = [chunk(0, 1)]
    compacted = {"cleanup_policy": "compact", "max_compaction_lag_ms": HOUR_MS}
    assert due(chunks, now_ms=HOUR_MS, **compacted) == {}
    assert due(chunks, now_ms=HOUR_MS + 1, **compacted) == {0: (IDLE,)}
    assert due(chunks, now_ms=HOUR_MS + 1, **compacted | {"cleanup_policy": "delete"}) == {}


def test_jitter_takes_off_some_of_the_time_and_always_the_same():
    chunks = [chunk(0, 1, partition=number) for number in range(200)]
    at = 7 * 24 * HOUR_MS - HOUR_MS // 2
    found = due(chunks, now_ms=at, segment_jitter_ms=HOUR_MS)
    assert 60 < len(found) < 140
    assert due(chunks, now_ms=at, segment_jitter_ms=HOUR_MS) == found
    assert due(chunks, now_ms=at) == {}
    assert len(due(chunks, now_ms=at + HOUR_MS, segment_jitter_ms=HOUR_MS)) == 200


def test_an_index_that_may_be_full_is_due():
    # 37 slots of 8 bytes, 25 of 12, one of which is kept: 24 entries of more than 4096 bytes.
    assert due(run([24 * 4097 - 1], state="chunk"), segment_index_bytes=300) == {}
    assert due(run([24 * 4097], state="chunk"), segment_index_bytes=300) == {0: (SEGMENT_INDEX_BYTES,)}


def test_an_offset_that_no_index_entry_can_hold_is_due():
    assert due([chunk(7, 7 + 2**31, records=5)]) == {}
    assert due([chunk(7, 8 + 2**31, records=5)]) == {0: (OFFSET_OVERFLOW,)}


def test_an_empty_active_segment_is_never_due():
    empty = chunk(0, 0, log_bytes=0, max_timestamp_ms=-1)
    assert due([empty], now_ms=10**15, segment_index_bytes=4) == {}
    # An import brought the empty file; what was appended since says how old the segment is.
    later = chunk(0, 1, created_ms=HOUR_MS)
    assert due([empty, later], now_ms=2 * HOUR_MS, segment_ms=HOUR_MS) == {}
    assert due([empty, later], now_ms=2 * HOUR_MS + 1, segment_ms=HOUR_MS) == {0: (IDLE,)}


def test_many_small_chunks_are_due_to_be_merged():
    assert due(run([10] * 7, state="chunk")) == {}
    assert due(run([10] * 8, state="chunk")) == {0: (MERGE,)}


def test_the_plan_gives_each_partition_its_chunks():
    rows = [row(0, 10), chunk(10, 20), *run([600, 600], state="chunk", partition=1), chunk(0, 5, partition=2)]
    plan = plan_roll(table(rows), rules(segment_bytes=1000), 0)
    (one,) = plan.partitions
    assert (one.partition, one.rows, one.records, one.log_bytes, one.needs_headers) == (1, 2, 20, 1200, True)
    assert list(plan.chunks_of(one)) == run([600, 600], state="chunk", partition=1)
    assert isinstance(plan.chunks, pa.Table)


def test_eight_small_neighbours_become_one_and_larger_ones_are_left():
    large = 1 << 30
    assert runs_to_merge([10] * 8, large) == [(0, 8)]
    assert runs_to_merge([10] * 100, large) == [(0, 100)]
    assert runs_to_merge([large // 10, *[10] * 8], large) == [(1, 9)]
    assert runs_to_merge([*[10] * 8, large // 10, *[10] * 8], large) == [(0, 8), (9, 17)]
    assert runs_to_merge([10] * 7, large) == []


def test_a_chunk_is_not_copied_for_less_than_itself():
    assert runs_to_merge([1000, *[10] * 7], 1 << 30) == []
    assert runs_to_merge([1000, *[10] * 8], 1 << 30) == [(1, 9)]
    assert runs_to_merge([80, *[10] * 8], 1 << 30) == [(0, 9)]


def test_merging_over_and_over_copies_a_byte_a_logarithmic_number_of_times():
    sizes: list[int] = []
    copied = 0
    for _ in range(5000):
        sizes.append(1)
        for start, end in reversed(runs_to_merge(sizes, 1 << 30)):
            copied += sum(sizes[start:end])
            sizes[start:end] = [sum(sizes[start:end])]
    assert len(sizes) < 60
    assert copied < 8 * 5000
