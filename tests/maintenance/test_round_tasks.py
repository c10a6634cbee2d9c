"""A partition cleaned by many tasks ends as one that a single task has cleaned."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance import compact, roll, vacuum, verify
from spark_segments.maintenance.compaction import round as round_module
from spark_segments.maintenance.compaction.first_pass import MapFile
from tests.maintenance.rows import run
from verification.world.clock import ORPHAN_AGE_MS
from verification.world.kafka_bytes import golden_files
from verification.world.kafka_bytes.segment_bytes import Window
from verification.world.rounds import (
    ONE_TASK,
    CleanerSettings,
    PartitionResult,
    RoundPlan,
    RoundTasks,
    clean_partition,
    count_large,
    rewriting_tasks,
    slices,
)
from verification.world.topics import contents, live, under_policy

NOW_MS = 1_700_000_000_000
MIB = 1 << 20
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def prices(log) -> LogDir:
    """Some 20 segments, with tombstones and records without key."""
    log.create_topic("prices", config=CONFIG)
    for turn in range(10):
        keys = [None if number % 29 == turn else f"k{number % 83}" for number in range(turn, turn + 100)]
        values = [None if number % 17 == turn else f"{turn}-{number}" * 5 for number in range(100)]
        times = pa.array([NOW_MS] * 100, pa.timestamp("ms"))
        with under_policy(log, "prices", "delete"):
            log.topic("prices").append(pa.table({"key": keys, "value": values, "timestamp": times}))
    roll(log, now_ms=log.storage.now_ms() + 10 * 86_400_000)
    log.topic("prices").append(pa.table({"key": ["k0"], "value": ["last"]}))
    return log


def settings_of(log: LogDir, topic: str, map_bytes: int = MIB) -> CleanerSettings:
    return CleanerSettings(topic, log.topic(topic).snapshot.topic_id, log.defaults, NOW_MS, map_bytes, 0.9)


def clean_by(
    log: LogDir, tasks: int, *, map_bytes: int = MIB, slice_bytes: int | None = None, merged_bytes: int | None = None
) -> PartitionResult:
    clean_round = RoundTasks(tasks, slice_bytes or map_bytes, merged_bytes or map_bytes)
    return clean_partition(log.storage, settings_of(log, "prices", map_bytes), 0, 1000, clean_round=clean_round)


@pytest.mark.cases(1)
@pytest.mark.parametrize("tasks", [2, 7, 100])
def test_many_tasks_do_what_one_does(prices, tmp_path, limits, tasks):
    limits(MIN_SLICE_BYTES=1)
    copy = LogDir.open(str(shutil.copytree(tmp_path / "log", tmp_path / "copy")))
    found = clean_by(prices, tasks)
    (expected,) = compact(copy, now_ms=NOW_MS).partitions
    assert (found.rounds, found.indexed, found.first_dirty_offset) == (1, 1000, 1000)
    assert found.stats.records_kept == expected["records_out"] < found.stats.records_read == expected["records_in"]
    assert contents(prices, "prices") == contents(copy, "prices")
    sizes = [
        [(row.base_offset, row.next_offset, row.log_bytes) for row in live(log, "prices")] for log in (prices, copy)
    ]
    assert sizes[0] == sizes[1]
    assert verify(prices, deep=True).ok


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("map_entries", "slice_entries", "merged_entries", "in_one_round"),
    [
        (100, 100, 100, True),
        (100, 20, 40, True),  # one map with all the memory is made anew
        (100, 90, 82, True),
        (60, 60, 60, False),
        (60, 5, 10, False),
        (100, 20, 100, False),
    ],
)
def test_what_does_not_fit_the_maps_is_read_by_one_task_or_left_to_a_further_round(
    prices, limits, map_entries, slice_entries, merged_entries, in_one_round
):
    """There are 83 keys in the dirty head."""
    limits(MIN_SLICE_BYTES=1)
    before = contents(prices, "prices")
    newest = {row["key"]: row for row in before if row["key"] is not None and row["offset"] < 1000}
    map_bytes, slice_bytes, merged_bytes = [
        -(-entries * 10 // 9 + 1) * BYTES_PER_SLOT for entries in (map_entries, slice_entries, merged_entries)
    ]
    found = clean_by(prices, 3, map_bytes=map_bytes, slice_bytes=slice_bytes, merged_bytes=merged_bytes)
    assert (found.rounds == 1) == in_one_round
    assert found.first_dirty_offset == 1000
    kept = sorted(newest.values(), key=lambda row: row["offset"])
    assert contents(prices, "prices") == kept + [row for row in before if row["offset"] == 1000]


@pytest.fixture
def transactions(tmp_path) -> LogDir:
    """A partition that Kafka wrote, with transactions that were committed and aborted; a segment for every few."""
    log = LogDir.create(str(tmp_path / "log"), defaults={"log.cleaner.threads": "3"})
    log.import_kafka(str(golden_files.GOLDEN / "txn-compact" / "dirty"), config=CONFIG)
    assert any(row.txn_index_bytes for row in live(log, "txnc"))
    return log


def files(log: LogDir) -> list[tuple[int, bytes, bytes | None]]:
    """What the files of the partition hold: base offset, .log and .txnindex of each segment."""
    rows = live(log, "txnc")
    return [
        (
            row.base_offset,
            log.storage.read(row.path).to_pybytes(),
            log.storage.read(row.txn_index_path).to_pybytes() if row.txn_index_bytes else None,
        )
        for row in rows
    ]


@pytest.mark.proof
@pytest.mark.parametrize("tasks", [2, 3, 100])
def test_many_tasks_leave_the_same_bytes_of_transactions_as_one(transactions, tmp_path, limits, tasks):
    """Also in a second cleaning, whose dirty head has none, and in which markers go whose transactions are gone."""
    limits(MIN_SLICE_BYTES=1)
    copy = LogDir.open(str(shutil.copytree(tmp_path / "log", tmp_path / "copy")))
    day_ms = 86_400_000
    for turn, now_ms in enumerate((NOW_MS, NOW_MS + 2 * day_ms, NOW_MS + 4 * day_ms)):
        found = []
        for log, clean_round in ((transactions, RoundTasks(tasks, MIB, MIB)), (copy, ONE_TASK)):
            bound = live(log, "txnc")[-1].base_offset
            settings = replace(settings_of(log, "txnc"), now_ms=now_ms)
            result = clean_partition(log.storage, settings, 0, bound, clean_round=clean_round)
            assert (result.rounds, result.error) == (1, None)
            found.append((result.stats, result.first_dirty_offset, files(log)))
            times = pa.array([NOW_MS] * 40, pa.timestamp("ms"))
            keys = [f"new-{number % 7}" for number in range(40)]
            log.topic("txnc").append(pa.table({"key": keys, "value": [str(turn)] * 40, "timestamp": times}))
            roll(log, now_ms=log.storage.now_ms() + 10 * day_ms)
            log.topic("txnc").append(pa.table({"key": ["last"], "value": ["last"], "timestamp": times[:1]}))
        assert found[0] == found[1]
        assert found[0][0].control > 0 or turn == 0
    assert verify(transactions, deep=True).ok


def test_markers_that_only_the_clean_tail_has_are_followed_from_the_start_of_the_log(transactions, limits):
    limits(MIN_SLICE_BYTES=1)
    first_dirty = transactions.topic("txnc").offsets()[0][1]
    transactions.topic("txnc").append(
        pa.table({"key": [f"new-{number % 7}" for number in range(40)], "value": ["v"] * 40})
    )
    roll(transactions, now_ms=transactions.storage.now_ms() + 10 * 86_400_000)
    snapshot = transactions.topic("txnc").snapshot
    work = RoundPlan(
        settings_of(transactions, "txnc"),
        transactions.topic("txnc").config,
        snapshot.partition(0),
        [replace(row, txn_index_bytes=0) for row in snapshot.live_of(0)],
        first_dirty,
        transactions.topic("txnc").offsets()[0][1],
    )
    by_many, by_one = (clean(transactions.storage, work) for clean in (RoundTasks(3, MIB, MIB), ONE_TASK))
    assert (by_many.stats, by_many.indexed, by_many.end_offset) == (by_one.stats, by_one.indexed, by_one.end_offset)
    assert by_many.indexed == 40
    found = [
        [transactions.storage.read(row.path).to_pybytes() for group in done.groups for row in group.outputs]
        for done in (by_many, by_one)
    ]
    assert found[0] == found[1] != []


def test_more_about_transactions_than_memory_holds_is_left_to_one_task(transactions, monkeypatch, limits):
    limits(LARGE_PARTITION_BYTES=0)
    before = live(transactions, "txnc")
    work = RoundPlan(
        settings_of(transactions, "txnc"),
        transactions.topic("txnc").config,
        transactions.topic("txnc").snapshot.partition(0),
        before,
        0,
        before[-1].base_offset,
    )
    with monkeypatch.context() as patched:
        patched.setattr(round_module, "memory_for_notes", lambda map_bytes: 100)
        by_many, by_one = (clean(transactions.storage, work) for clean in (RoundTasks(2, MIB, MIB), ONE_TASK))
        assert (by_many.stats, by_many.end_offset) == (by_one.stats, by_one.end_offset)
        assert live(transactions, "txnc") == before
        (line,) = compact(transactions, now_ms=NOW_MS).partitions
    assert (line["action"], line["rounds"]) == ("compact", 1)
    assert line["dropped"]["aborted"] > 0


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8), data=st.data())
def test_slices_are_all_bytes_once_in_order_and_of_one_size(sizes, data):
    start = data.draw(st.integers(0, sizes[0]))
    count = data.draw(st.integers(1, 12))
    rows = run(sizes)
    found = slices(rows, start, count)
    assert len(found) <= count
    spans = [
        (rows.index(one.segment), at)
        for one in itertools.chain(*found)
        for at in range(one.start_position, one.end_position)
    ]
    expected = [(number, at) for number, size in enumerate(sizes) for at in range(start if number == 0 else 0, size)]
    assert spans == expected
    share = len(expected) / count
    assert all(abs(sum(one.end_position - one.start_position for one in each) - share) <= 1 for each in found)


@pytest.mark.parametrize(
    ("least_bytes", "sizes"),
    [
        (0, [[5], [1], [1], [9], [2]]),
        (1, [[5], [1], [1], [9], [2]]),
        (6, [[5, 1], [1, 9], [2]]),
        (99, [[5, 1, 1, 9, 2]]),
    ],
)
def test_groups_are_done_in_runs_of_some_size(least_bytes, sizes):
    groups = [[one] for one in run([5, 1, 1, 9, 2])]
    found = rewriting_tasks(groups, least_bytes)
    assert [[group[0].log_bytes for group in each] for each in found] == sizes
    assert list(itertools.chain(*found)) == groups


@pytest.mark.parametrize(
    ("mib", "slots", "large"),
    [
        ([1000], 1, 0),
        ([1000], 2, 1),
        ([255], 2, 0),
        ([1000, 1000], 2, 0),
        ([1000, 900], 2, 0),
        ([1000, 300], 2, 2),
        ([1000, 300, 200], 2, 1),
        ([1000] * 10, 64, 10),
        ([1024, 512], 4, 2),
        ([1000] * 3, 2, 0),
        ([], 2, 0),
    ],
)
def test_partitions_that_the_other_slots_would_wait_for_are_done_by_many_tasks(mib, slots, large):
    assert count_large([size << 20 for size in mib], slots) == large


def test_a_map_in_a_file_is_the_same_map_and_what_is_left_of_it_goes_with_vacuum(prices):
    offset_map = OffsetMap(MIB, start_offset=3, seed=7)
    for row in prices.topic("prices").snapshot.live_of(0):
        for window in SegmentFile(prices.storage, row).windows():
            assert offset_map.put_batches(Window(window.data, window.batches, byte_position=window.byte_position))
    file = MapFile.written(prices.storage, "prices", 0, offset_map)
    assert prices.storage.size(file.path) == len(offset_map) * BYTES_PER_SLOT
    copy = file.read(prices.storage, MIB, 0.9)
    assert [copy.get(b"k%d" % number) for number in range(90)] == [
        offset_map.get(b"k%d" % number) for number in range(90)
    ]
    assert (copy.start_offset, copy.end_offset, len(copy)) == (3, offset_map.end_offset, len(offset_map))
    week_ago = (prices.storage.now_ms() - ORPHAN_AGE_MS) / 1000 - 1
    os.utime(Path(prices.uri) / file.path, (week_ago, week_ago))
    vacuum(prices)
    assert not prices.storage.exists(file.path)


def test_a_damaged_segment_leaves_the_partition_as_it_was(prices, limits):
    limits(MIN_SLICE_BYTES=1, LARGE_PARTITION_BYTES=0)
    log = LogDir.open(prices.uri, defaults={"log.cleaner.threads": "2"})
    before = live(log, "prices")
    path = Path(log.uri) / before[3].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (line,) = compact(log, now_ms=NOW_MS).failed
    assert before[3].path in line["error"]
    assert live(log, "prices") == before
