"""Which offsets are cleanable and which partition comes first, from rows alone: Kafka's LogCleanerManager."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest

from spark_segments.config import topic_config
from tests.maintenance.rows import chunk, partition_row, row, run, table
from verification.world.manifest_rows import Partition, Segment
from verification.world.rounds import NOT_DIRTY, CompactionCandidate, groups, plan_compaction

NOW_MS = 1_700_000_000_000
LAG_MS = 3_600_000


def plan(
    rows: Sequence[Segment], partitions: Sequence[Partition], *, now_ms: int = NOW_MS, force: bool = False, **config
) -> list[CompactionCandidate]:
    overrides = {name.replace("_", "."): str(value) for name, value in config.items()} | {"cleanup.policy": "compact"}
    return plan_compaction(table(rows), Partition.table(partitions), topic_config(overrides), now_ms, force=force)


def plan_one(
    rows: Sequence[Segment], *, start: int = 0, dirty: int = 0, stable: int | None = None, **options
) -> CompactionCandidate:
    end = rows[-1].next_offset
    of_all = dataclasses.replace(partition_row(0, end), log_start_offset=start, first_dirty_offset=dirty,
                                 last_stable_offset=end if stable is None else stable)  # fmt: skip
    (found,) = plan(rows, [of_all], **options)
    return found


def test_the_filthiest_partition_comes_first():
    rows, partitions = [], []
    for number, cleanable in enumerate((50, 500, 200)):
        rows += [row(0, 10, partition=number, log_bytes=100), row(10, 20, partition=number, log_bytes=cleanable)]
        rows.append(chunk(20, 21, partition=number))
        partitions.append(dataclasses.replace(partition_row(0, 21, number), first_dirty_offset=10))
    found = plan(rows, partitions, min_cleanable_dirty_ratio=0)
    assert [one.partition for one in found] == [1, 2, 0]
    assert [one.ratio for one in found] == [500 / 600, 200 / 300, 50 / 150]


def test_clean_cleanable_and_uncleanable_bytes_are_counted_apart():
    rows = [row(10 * number, 10 * number + 10, log_bytes=size, max_timestamp_ms=NOW_MS - age)
            for number, (size, age) in enumerate([(100, 9), (20, 9), (3, 9), (1000, 0)])]  # fmt: skip
    found = plan_one([*rows, chunk(40, 50)], dirty=10, min_compaction_lag_ms=5)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (10, 30)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (100, 23, 23 / 123)
    found = plan_one([*rows, chunk(40, 50)], dirty=10)
    assert (found.clean_bytes, found.cleanable_bytes) == (100, 1023)


def test_a_dirty_offset_below_the_log_start_counts_from_there():
    rows = [*run([100, 100, 100]), chunk(30, 40)]
    found = plan_one(rows, start=10, dirty=0)
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (10, 100, 200)


@pytest.mark.parametrize(("start", "dirty"), [(35, 0), (0, 35), (30, 30)])
def test_nothing_is_cleanable_where_the_log_start_or_the_dirty_offset_has_reached_the_active_segment(start, dirty):
    found = plan_one([*run([100, 100, 100]), chunk(30, 40)], start=start, dirty=dirty, force=True)
    assert (found.picked, found.reason, found.cleanable_bytes) == (False, NOT_DIRTY, 0)
    assert found.first_dirty_offset == found.first_uncleanable_offset == max(start, dirty)


@pytest.mark.parametrize(("age_ms", "cleanable"), [(LAG_MS - 1, 0), (LAG_MS, 10), (2 * LAG_MS, 10)])
def test_the_lag_protects_the_first_young_segment_and_all_behind_it(age_ms, cleanable):
    rows = [row(0, 10, max_timestamp_ms=NOW_MS - age_ms), row(10, 20, max_timestamp_ms=NOW_MS - 1),
            row(20, 30, max_timestamp_ms=NOW_MS - 9 * LAG_MS), chunk(30, 40)]  # fmt: skip
    assert plan_one(rows, min_compaction_lag_ms=LAG_MS).first_uncleanable_offset == cleanable


def test_a_lag_that_all_sealed_segments_have_behind_them_leaves_the_active_one_uncleanable():
    rows = [row(0, 10, max_timestamp_ms=NOW_MS - 50), row(10, 20, max_timestamp_ms=NOW_MS - 50)]
    active = chunk(20, 30, max_timestamp_ms=NOW_MS - 50)
    assert plan_one([*rows, active], min_compaction_lag_ms=50).first_uncleanable_offset == 20


def test_an_undecided_transaction_protects_what_follows_its_first_record_whatever_its_age():
    rows = [*run([100, 100, 100]), chunk(30, 40)]
    for stable, bound in ((0, 0), (10, 10), (15, 15), (33, 30)):
        found = plan_one(rows, stable=stable, min_compaction_lag_ms=1, max_compaction_lag_ms=2)
        assert found.first_uncleanable_offset == bound
        assert found.picked == (bound > 0)


def test_empty_segments_and_gaps_of_offsets_keep_a_group_within_an_int32():
    far = 2**31 - 1
    rows = [row(0, 10), row(10, far, log_bytes=0, records=0), row(far, far + 1, log_bytes=0, records=0),
            row(far + 1, far + 2), row(far + 2, far + 3)]  # fmt: skip
    found = groups(rows, far + 3, far + 3, topic_config({}))
    assert [[one.base_offset for one in group] for group in found] == [[0, 10, far], [far + 1, far + 2]]


@pytest.mark.parametrize("distance", [2**31, 2**33])
def test_few_records_over_many_offsets_are_never_one_group(distance):
    rows = [row(number * distance, number * distance + 1) for number in range(3)]
    end = rows[-1].next_offset
    assert [len(group) for group in groups(rows, end, end, topic_config({}))] == [1, 1, 1]


def test_a_group_goes_by_the_base_offset_of_the_next_segment_where_there_is_no_index():
    bounds = (0, 10, 2**31, 2**31 + 5)
    rows = [row(base, end, index_bytes=0, log_bytes=9) for base, end in itertools.pairwise(bounds)]
    end = rows[-1].next_offset
    assert [len(group) for group in groups(rows, end, end, topic_config({}))] == [2, 1]
