"""Why a record is still here and when it goes: known answers."""

from __future__ import annotations

from spark_segments.maintenance.explanation.record_explanation import RecordState, TimeBounds, Wait
from tests.maintenance.explained import DELAY_MS, EVERY_MS, NEVER, NOW_MS, after, explained, rules
from tests.maintenance.rows import chunk, row


def test_an_offset_that_is_not_given_out_yet_is_not_written():
    one = explained([row(0, 10), chunk(10, 20)], 20)
    assert (one.state, one.steps, one.leaves_log, one.files_deleted) == (RecordState.NOT_WRITTEN, (), None, None)


def test_an_offset_that_no_file_has_is_gone():
    one = explained([chunk(10, 20)], 9, log_start=10)
    assert (one.state, one.steps, one.leaves_log, one.files_deleted) == (RecordState.GONE, (), None, None)


def test_what_has_left_the_log_waits_for_the_delay_of_its_last_file():
    rows = [
        row(0, 10, state="removed", removed_ms=NOW_MS - 10, path="orders-0/0.rolled.log"),
        row(0, 20, state="removed", removed_ms=NOW_MS - 5, path="orders-0/0.retained.log"),
        row(0, 5, state="removed", removed_ms=NOW_MS, path="orders-0/0.other.log"),
    ]
    one = explained([*rows, chunk(20, 30)], 5, log_start=20)
    freed_ms = NOW_MS - 5 + DELAY_MS + 1
    assert (one.state, one.leaves_log, one.kept_by) == (RecordState.REMOVED, None, ["file.delete.delay.ms"])
    assert one.files_deleted == TimeBounds(freed_ms, freed_ms + EVERY_MS)
    assert one.segment == rows[1]


def test_a_file_that_vacuum_has_begun_to_delete_may_be_gone_any_moment():
    one = explained([row(0, 10, state="removed", removed_ms=-1), chunk(10, 20)], 5, log_start=10)
    assert one.files_deleted == TimeBounds(NOW_MS, NOW_MS + EVERY_MS)


def test_retention_ms_count_from_the_largest_timestamp_of_the_segment():
    one = explained([row(0, 10, max_timestamp_ms=NOW_MS - 300), chunk(10, 20)], retention_ms=1000)
    assert (one.state, one.kept_by, one.waits_for) == (RecordState.SEALED, ["retention.ms"], [])
    assert one.leaves_log == TimeBounds(NOW_MS + 701, NOW_MS + 701 + EVERY_MS)
    assert one.files_deleted == after(NOW_MS + 701, NOW_MS + 701 + EVERY_MS)
    assert rules(one) == [("retain", "retention.ms"), ("vacuum", "file.delete.delay.ms")]
    assert dict(one.steps[0].facts) == {"largest_timestamp_ms": NOW_MS - 300, "segment_base_offset": 0}


def test_a_younger_segment_before_it_holds_a_record_back():
    rows = [row(0, 10, max_timestamp_ms=NOW_MS + 50), row(10, 20, max_timestamp_ms=NOW_MS), chunk(20, 30)]
    one = explained(rows, 15, retention_ms=1000)
    assert one.leaves_log.earliest_ms == NOW_MS + 50 + 1001
    assert one.steps[0].facts["segment_base_offset"] == 0


def test_what_retention_takes_now_goes_with_its_next_run():
    one = explained([row(0, 10, max_timestamp_ms=0), chunk(10, 20)], retention_ms=1000)
    assert (one.leaves_log, one.kept_by) == (TimeBounds(NOW_MS, NOW_MS + EVERY_MS), ["retention.ms"])


def test_retention_bytes_wait_for_so_many_to_be_appended():
    rows = [row(0, 10), row(10, 20), chunk(20, 30, log_bytes=300)]
    one = explained(rows, 15, retention_ms=-1, retention_bytes=1000)
    assert (one.kept_by, one.waits_for, one.leaves_log) == (
        ["retention.bytes"],
        [Wait.RECORDS],
        TimeBounds(NOW_MS, None),
    )
    assert one.files_deleted == after(NOW_MS, None)
    assert one.steps[0].facts["more_bytes"] == 700
    one = explained(rows, 15, retention_ms=-1, retention_bytes=300)
    assert (one.waits_for, one.leaves_log) == ([], TimeBounds(NOW_MS, NOW_MS + EVERY_MS))


def test_either_rule_of_retention_is_enough():
    rows = [row(0, 10, max_timestamp_ms=NOW_MS), chunk(10, 20)]
    one = explained(rows, retention_ms=1000, retention_bytes=5000)
    assert one.kept_by == ["retention.bytes", "retention.ms"]
    assert one.leaves_log == TimeBounds(NOW_MS, NOW_MS + 1001 + EVERY_MS)


def test_nothing_takes_what_nothing_limits():
    for rows in ([row(0, 10), chunk(10, 20)], [chunk(0, 10)]):
        one = explained(rows, retention_ms=-1)
        assert (one.leaves_log, one.files_deleted) == (NEVER, NEVER)
    assert one.kept_by == ["active segment"]
    assert explained([row(0, 10)], retention_ms=2**63 - 1).leaves_log == NEVER


def test_the_active_segment_has_to_be_rolled_first():
    chunks = [chunk(0, 10, max_timestamp_ms=NOW_MS - 50, created_ms=NOW_MS - 20)]
    one = explained(chunks, retention_ms=1000, segment_ms=200)
    assert rules(one) == [("roll", "active segment"), ("retain", "retention.ms"), ("vacuum", "file.delete.delay.ms")]
    assert (one.state, one.kept_by) == (RecordState.ACTIVE, ["active segment"])
    rolled_ms = NOW_MS - 20 + 201 + EVERY_MS
    assert one.steps[0].window == TimeBounds(NOW_MS, rolled_ms)
    # No record joins the segment that is more than segment.ms after its first one.
    assert one.leaves_log == TimeBounds(NOW_MS - 50 + 1001, NOW_MS - 50 + 200 + 1001 + EVERY_MS)
    one = explained(chunks, retention_ms=0, segment_ms=200)
    assert one.leaves_log == TimeBounds(NOW_MS, rolled_ms + EVERY_MS)


def test_a_record_goes_with_the_first_of_its_segment_and_those_that_joined():
    chunks = [
        chunk(0, 10, max_timestamp_ms=NOW_MS - 150, created_ms=NOW_MS - 150),
        chunk(10, 20, max_timestamp_ms=NOW_MS, created_ms=NOW_MS),
        chunk(20, 30, max_timestamp_ms=NOW_MS - 100, created_ms=NOW_MS),
    ]
    for offset, least_ms in ((5, NOW_MS - 150), (15, NOW_MS), (25, NOW_MS)):
        one = explained(chunks, offset, retention_ms=1000, segment_ms=200)
        assert one.leaves_log == TimeBounds(least_ms + 1001, NOW_MS - 150 + 200 + 1001 + EVERY_MS)


def test_what_is_before_the_active_segment_goes_first():
    rows = [row(0, 10, max_timestamp_ms=NOW_MS + 5000), chunk(10, 20, max_timestamp_ms=NOW_MS, created_ms=NOW_MS)]
    one = explained(rows, 15, retention_ms=1000, segment_ms=200)
    assert one.leaves_log == TimeBounds(NOW_MS + 5000 + 1001, NOW_MS + 5000 + 1001 + EVERY_MS)
    assert one.steps[1].facts["segment_base_offset"] == 0


def test_what_is_full_is_rolled_by_the_next_run():
    chunks = [chunk(0, 10, log_bytes=600), chunk(10, 20, log_bytes=600)]
    one = explained(chunks, 5, retention_ms=-1, segment_bytes=1000)
    assert one.steps[0].window == TimeBounds(NOW_MS, NOW_MS + EVERY_MS)
    assert one.steps[0].facts["due"] == ["segment.bytes"]
    # Of the last one nobody can tell without a look whether there is a cut behind it.
    young = [chunk(n, n + 10, log_bytes=600, max_timestamp_ms=NOW_MS, created_ms=NOW_MS) for n in (0, 10)]
    one = explained(young, 15, retention_ms=-1, segment_bytes=1000, segment_ms=200)
    assert one.steps[0].window.latest_ms == NOW_MS + 201 + EVERY_MS
    assert explained(young, 5, retention_ms=-1, segment_bytes=1000).steps[0].window.latest_ms == NOW_MS + EVERY_MS


def test_merging_small_chunks_rolls_nothing():
    one = explained([chunk(n, n + 1, max_timestamp_ms=NOW_MS, created_ms=NOW_MS) for n in range(8)], retention_ms=1000)
    assert one.steps[0].facts["due"] == []


def test_moving_a_run_out_of_a_shared_object_rolls_nothing():
    """Nor can the rows of one partition tell whether that is due."""
    run = chunk(0, 10, max_timestamp_ms=NOW_MS, created_ms=NOW_MS, index_position=1_000_000)
    assert explained([run], 5, retention_ms=1000).steps[0].facts["due"] == []


def test_where_a_look_is_needed_the_segment_may_begin_with_any_record():
    chunks = [
        chunk(0, 10, log_bytes=1500, max_timestamp_ms=NOW_MS, first_batch_max_timestamp_ms=0),
        chunk(10, 20, log_bytes=10, max_timestamp_ms=NOW_MS + 30),
    ]
    one = explained(chunks, 5, retention_ms=1000, segment_bytes=1000, segment_ms=200)
    assert one.steps[0].window.latest_ms == NOW_MS + 201 + EVERY_MS
    assert one.leaves_log == TimeBounds(NOW_MS, NOW_MS + 200 + 1001 + EVERY_MS)
    known = explained(chunks, 5, retention_ms=1000, segment_bytes=1000, segment_ms=200, timestamp_ms=NOW_MS - 100)
    assert known.leaves_log.earliest_ms == NOW_MS - 100 + 1001
    assert explained(chunks, 15, retention_ms=1000, segment_bytes=1000).leaves_log.earliest_ms == NOW_MS + 1001


def test_a_full_chunk_is_a_segment_of_its_own_so_that_later_ones_begin_anew():
    """As they begin anew where merging makes a full one behind a chunk that is too large to be merged."""
    for first_bytes, last_ms in ((950, NOW_MS), (70, NOW_MS), (50, NOW_MS - 150)):
        chunks = [
            chunk(0, 10, log_bytes=first_bytes, max_timestamp_ms=NOW_MS - 150, created_ms=NOW_MS - 150, batches=10),
            chunk(10, 20, log_bytes=10, max_timestamp_ms=NOW_MS, created_ms=NOW_MS),
        ]
        one = explained(chunks, 15, retention_ms=1000, segment_bytes=1000, segment_ms=200)
        assert one.steps[0].window.latest_ms == last_ms + 201 + EVERY_MS
        assert one.leaves_log.latest_ms == last_ms + 200 + 1001 + EVERY_MS


def test_a_cut_behind_a_full_chunk_seals_nothing_that_comes_after_it():
    times = {"max_timestamp_ms": NOW_MS, "created_ms": NOW_MS}
    chunks = [chunk(n, n + 10, log_bytes=size, **times) for n, size in ((0, 950), (10, 10), (20, 100))]
    first, second = (explained(chunks, n, retention_ms=-1, segment_bytes=1000, segment_ms=200) for n in (5, 15))
    assert first.steps[0].window.latest_ms == NOW_MS + EVERY_MS
    assert second.steps[0].window.latest_ms == NOW_MS + 201 + EVERY_MS


def test_records_without_timestamps_leave_the_latest_moment_open():
    untimed = {"max_timestamp_ms": -1, "first_batch_max_timestamp_ms": -1, "created_ms": NOW_MS}
    one = explained([chunk(0, 10, **untimed)], retention_ms=1000, segment_ms=200)
    assert (one.leaves_log, one.waits_for) == (TimeBounds(NOW_MS, None), [Wait.TIMESTAMPS])
    one = explained([chunk(0, 10, **untimed)], retention_ms=1000, segment_ms=200, now_ms=NOW_MS + 201)
    assert one.steps[0].window.latest_ms == NOW_MS + 201 + EVERY_MS
    one = explained([row(0, 10, **untimed), chunk(10, 20)], retention_ms=1000)
    assert one.leaves_log == TimeBounds(NOW_MS + 1001, NOW_MS + 1001 + EVERY_MS)


def test_without_a_clock_that_rolls_it_takes_more_records():
    one = explained([chunk(0, 10, max_timestamp_ms=NOW_MS)], retention_ms=1000, segment_ms=2**63 - 1)
    assert one.steps[0].window == TimeBounds(NOW_MS, None)
    assert one.leaves_log == TimeBounds(NOW_MS + 1001, None)


def test_jitter_only_brings_the_roll_forward():
    chunks = [chunk(0, 10, max_timestamp_ms=NOW_MS, created_ms=NOW_MS)]
    one = explained(chunks, retention_ms=1000, segment_ms=10_000, segment_jitter_ms=10_000)
    latest_ms = one.steps[0].window.latest_ms
    assert NOW_MS + 1 + EVERY_MS <= latest_ms < NOW_MS + 10_001 + EVERY_MS
    assert one.leaves_log.latest_ms == max(latest_ms, latest_ms - EVERY_MS + 1000) + EVERY_MS


def test_what_lies_below_the_log_start_is_read_by_nobody_and_goes_with_its_segment():
    rows = [row(0, 10), row(10, 20), chunk(20, 30)]
    one = explained(rows, 5, log_start=15, retention_ms=-1)
    assert (one.state, one.leaves_log, one.kept_by) == (RecordState.SEALED, None, ["log_start_offset"])
    assert one.files_deleted == after(NOW_MS, NOW_MS + EVERY_MS)
    assert explained(rows, 12, log_start=15, retention_ms=-1).files_deleted == NEVER
    one = explained(rows, 22, log_start=25, retention_ms=-1)
    assert (one.state, one.leaves_log) == (RecordState.ACTIVE, None)
    assert (one.files_deleted, one.waits_for) == (after(NOW_MS, None), [Wait.LOG_START])


def test_older_files_with_the_record_are_counted():
    removed = row(0, 10, state="removed", removed_ms=NOW_MS + 40, path="orders-0/0.rolled.log")
    one = explained([removed, row(0, 10, max_timestamp_ms=0), chunk(10, 20)], retention_ms=1000)
    assert one.files_deleted.earliest_ms == NOW_MS + 40 + DELAY_MS + 1


def test_the_newest_of_a_key_stays_in_a_compacted_topic():
    rows = [row(0, 10, tombstones=2, delete_horizon_ms=NOW_MS + 7), row(10, 20), chunk(20, 30)]
    for offset, first_dirty, is_dirty in ((5, 10, False), (15, 10, True)):
        one = explained(rows, offset, first_dirty=first_dirty, cleanup_policy="compact", retention_ms=1)
        assert (one.kept_by, one.waits_for, one.leaves_log) == (
            ["newest of its key"],
            [Wait.KEYS],
            TimeBounds(NOW_MS, None),
        )
        assert one.steps[0].facts["dirty"] is is_dirty
    facts = explained(rows, 5, first_dirty=10, cleanup_policy="compact").steps[0].facts
    assert (facts["tombstones"], facts["delete_horizon_ms"], facts["cleaned_by_ms"]) == (2, NOW_MS + 7, None)


def test_a_partition_that_is_due_is_cleaned_by_the_next_run():
    rows = [row(0, 10), row(10, 20), chunk(20, 30)]
    by_ms = [
        explained(rows, 15, first_dirty=10, cleanup_policy="compact", min_cleanable_dirty_ratio=ratio)
        .steps[0]
        .facts["cleaned_by_ms"]
        for ratio in (0.49, 0.5)
    ]
    assert by_ms == [NOW_MS + EVERY_MS, None]


def test_the_lags_say_from_when_and_by_when_cleaning_looks_at_a_record():
    lags = {"cleanup_policy": "compact", "min_compaction_lag_ms": 1000, "max_compaction_lag_ms": 3000}
    rows = [row(0, 10, max_timestamp_ms=NOW_MS), row(10, 20, max_timestamp_ms=NOW_MS - 90)]
    times = {"max_timestamp_ms": NOW_MS - 80, "created_ms": NOW_MS - 80}
    one = explained([*rows, chunk(20, 30, **times)], 15, **lags)
    assert one.leaves_log.earliest_ms == NOW_MS + 1000
    assert one.steps[0].facts["cleaned_by_ms"] == NOW_MS - 90 + 3001 + EVERY_MS
    one = explained([*rows, chunk(20, 30, **times)], 25, segment_ms=200, **lags)
    assert one.leaves_log.earliest_ms == NOW_MS + 1000
    assert one.steps[1].facts["cleaned_by_ms"] == NOW_MS - 80 + 3001 + EVERY_MS
    # The active segment of a compacted topic is rolled after max.compaction.lag.ms.
    one = explained([*rows, chunk(20, 30, **times)], 25, **lags)
    assert one.steps[0].window.latest_ms == NOW_MS - 80 + 3001 + EVERY_MS
    # What joins it until then may be so much younger, and min.compaction.lag.ms count from that.
    assert one.steps[1].facts["cleaned_by_ms"] == NOW_MS - 80 + 3000 + 1000 + EVERY_MS


def test_a_segment_that_the_lag_protects_is_not_cleaned_with_those_before_it():
    lags = {"cleanup_policy": "compact", "min_compaction_lag_ms": 1000, "max_compaction_lag_ms": 3000}
    rows = [row(0, 10, max_timestamp_ms=0), row(10, 20, max_timestamp_ms=NOW_MS), chunk(20, 30)]
    by_ms = [explained(rows, offset, **lags).steps[0].facts["cleaned_by_ms"] for offset in (5, 15)]
    assert by_ms == [NOW_MS + EVERY_MS, NOW_MS + 3001 + EVERY_MS]


def test_cleaning_waits_for_the_roll():
    chunks = [chunk(0, 10, max_timestamp_ms=NOW_MS - 80, created_ms=NOW_MS)]
    one = explained(chunks, cleanup_policy="compact", max_compaction_lag_ms=3000)
    assert one.steps[1].facts["cleaned_by_ms"] == NOW_MS + 3001 + 2 * EVERY_MS


def test_where_retention_works_too_nothing_says_by_when_cleaning_has_looked():
    rows = [row(0, 10, max_timestamp_ms=NOW_MS), chunk(10, 20)]
    one = explained(rows, cleanup_policy="compact,delete", max_compaction_lag_ms=3000, retention_ms=5000)
    assert [step.facts["cleaned_by_ms"] for step in one.steps if step.job == "compact"] == [None]


def test_cleaning_may_join_segments_so_that_retention_waits_longer():
    rows = [row(0, 10, max_timestamp_ms=0), chunk(10, 20)]
    one = explained(rows, cleanup_policy="compact,delete", retention_ms=1000)
    assert (one.leaves_log, one.waits_for) == (TimeBounds(NOW_MS, None), [Wait.CLEANING, Wait.KEYS])
    one = explained(rows, cleanup_policy="compact,delete", retention_ms=1000, cleaner=False)
    assert (one.leaves_log, one.waits_for) == (TimeBounds(NOW_MS, NOW_MS + EVERY_MS), [])
    # What cleaning does to the first of these may let retention go on to the second.
    young = [row(0, 10, max_timestamp_ms=NOW_MS), row(10, 20, max_timestamp_ms=NOW_MS + 500), chunk(20, 30)]
    lags = {"cleanup_policy": "compact,delete", "min_compaction_lag_ms": 400, "retention_ms": 1000}
    for offset in (5, 15):
        assert explained(young, offset, **lags).leaves_log.earliest_ms == NOW_MS + 400


def test_without_a_cleaner_a_compacted_topic_keeps_everything():
    assert explained([row(0, 10), chunk(10, 20)], cleanup_policy="compact", cleaner=False).leaves_log == NEVER
