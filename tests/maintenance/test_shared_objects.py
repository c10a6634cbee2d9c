"""What jobs do to shared objects: roll copies their runs, few rows keep none of them, vacuum takes an object once."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.maintenance import compact, restore, retain, roll, vacuum
from spark_segments.maintenance.rolling.roll_plan import MERGE_CHUNKS, SHARED_OBJECT
from tests.conftest import ROOT
from verification.world.clock import ORPHAN_AGE_MS, store_clock
from verification.world.kafka_bytes.golden_files import log_files
from verification.world.kafka_bytes.segment_bytes import batches_of, rebase
from verification.world.manifest_rows import Change, Partition, Segment, commit_append, live_rows
from verification.world.small_limits import small_limits
from verification.world.topics import (
    DAY_MS,
    GOLDEN_MS,
    Appender,
    SegmentLimits,
    append_batches,
    append_one_by_one,
    assert_sound,
    contents,
    file_bytes,
    golden_batches,
    later,
    live,
    records,
    topic_with,
)

PARTITIONS = 12
OWN_FILES = 1 << 30
"""So many runs as no append has."""


def append_to_each(
    log: LogDir, *, first: int = 0, count: int = 3, partitions: int = PARTITIONS, topic: str = "orders"
) -> None:
    """`count` records to each of the first partitions, in one append."""
    numbers = np.tile(np.arange(partitions, dtype=np.int32), count)
    table = records(len(numbers), first=first, time_ms=GOLDEN_MS)
    log.topic(topic).append(table.append_column("partition", pa.array(numbers)))


def objects(log: LogDir) -> set[str]:
    """The shared objects that are there as files."""
    return {info.path for info in log.storage.list("orders-shared")}


def named_objects(log: LogDir) -> set[str]:
    return {row.path for row in live_rows(log, "orders") if row.is_shared}


@pytest.fixture
def orders(log) -> LogDir:
    topic_with(log, "orders", {"segment.bytes": 100_000, "retention.ms": -1}, PARTITIONS)
    return log


# Rolling


@pytest.mark.proof
@pytest.mark.parametrize("name", ["plain-0", "outoforder-0"])
def test_runs_of_kafkas_batches_roll_to_kafkas_files_byte_for_byte(log, name):
    """Every batch of a golden directory is a run of each of two partitions, an object a batch."""
    topic_with(log, "orders", {"segment.bytes": 1 << 30, "index.interval.bytes": 4096}, 2)
    limits, topic_id = SegmentLimits.of(log.topic("orders").config), log.topic("orders").snapshot.topic_id
    topic_with(log, "alone", {"segment.bytes": 1 << 30, "index.interval.bytes": 4096})
    append_batches(log, "alone", golden_batches(name))
    for data in golden_batches(name):
        buffer = np.frombuffer(data, np.uint8).copy()
        rebase(buffer, batches_of(buffer), -int.from_bytes(data[:8]), None)
        with SharedObjectWriter(log.storage, "orders", topic_id, limits) as writer:
            for number in range(2):
                writer.begin(number, log.storage.now_ms())
                writer.append(buffer, batches_of(buffer))
            chunks = writer.close()
        commit_append(log.topic("orders").manifest, chunks)
    roll(log, now_ms=later(log, 30))
    (alone,) = [file_bytes(log, segment) for segment in live(log, "alone")]
    for number in range(2):
        (segment,) = live(log, "orders", number)
        assert segment.state == Segment.SEALED and segment.path.startswith(f"orders-{number}/")
        assert file_bytes(log, segment) == alone
    kafka = b"".join(path.read_bytes() for path in log_files(name))
    assert alone[0] == kafka or int.from_bytes(kafka[:8]) != 0


@pytest.mark.proof
def test_a_merge_of_a_run_leaves_the_partitions_other_run_in_the_same_object(orders):
    """A roll merges eight large chunks, and eight small ones, into one object; the next merges the second run only."""
    with store_clock(GOLDEN_MS):
        for count in (30, 3):
            for turn in range(8):
                append_to_each(orders, first=1000 * turn, count=count)
        roll(orders)
        for number in range(PARTITIONS):
            first, second = live(orders, "orders", number)
            assert first.path == second.path and first.is_shared
        for turn in range(8):
            append_to_each(orders, first=1000 * turn)
        before = contents(orders, "orders")
        roll(orders)
    assert [len(live(orders, "orders", number)) for number in range(PARTITIONS)] == [2] * PARTITIONS
    assert contents(orders, "orders") == before
    assert_sound(orders)


@pytest.mark.proof
def test_an_export_is_the_same_with_and_without_shared_objects(orders, tmp_path):
    """Runs, merged runs and sealed copies of them, against chunks with files of their own."""
    topic_with(orders, "plain", {"segment.bytes": 100_000, "retention.ms": -1}, PARTITIONS)
    with store_clock(GOLDEN_MS):
        for turn in range(12):
            append_to_each(orders, first=100 * turn)
            with small_limits(FEWEST_RUNS=OWN_FILES):
                append_to_each(orders, first=100 * turn, topic="plain")
        assert named_objects(orders) and not any(row.is_shared for row in live(orders, "plain"))
        roll(orders)
        append_to_each(orders, first=5000)
        with small_limits(FEWEST_RUNS=OWN_FILES):
            append_to_each(orders, first=5000, topic="plain")
    roll(orders, now_ms=GOLDEN_MS + 30 * DAY_MS)
    assert {row.state for row in live_rows(orders, "orders")} == {Segment.SEALED}
    orders.export_kafka(str(tmp_path / "kafka"))
    for number in range(PARTITIONS):
        files = sorted(path.name for path in (tmp_path / f"kafka/plain-{number}").iterdir())
        assert files == sorted(path.name for path in (tmp_path / f"kafka/orders-{number}").iterdir())
        for file in files:
            if file != "partition.metadata":
                both = [(tmp_path / f"kafka/{topic}-{number}/{file}").read_bytes() for topic in ("plain", "orders")]
                assert both[0] == both[1], (number, file)


def test_a_run_of_a_partition_without_epochs_is_exported_alone(orders, tmp_path):
    """No batch gets an epoch there, so the only chunk of a partition could be exported as its file is."""
    append_to_each(orders)
    rows = orders.topic("orders").snapshot.partitions
    without = [dataclasses.replace(row, leader_epoch=-1, leader_epochs=()) for row in Partition.of_table(rows)]
    orders.topic("orders").manifest.commit(lambda _: Change("test", partitions=without))
    orders.export_kafka(str(tmp_path / "kafka"))
    kafka = LogDir.open(str(tmp_path / "kafka"))
    assert contents(kafka, "orders") == contents(orders, "orders")


def test_merged_chunks_of_many_partitions_are_one_object(orders):
    for turn in range(MERGE_CHUNKS):
        append_to_each(orders, first=100 * turn)
    before = contents(orders, "orders")
    assert len(named_objects(orders)) == MERGE_CHUNKS
    roll(orders, now_ms=GOLDEN_MS)
    assert len(live_rows(orders, "orders")) == PARTITIONS and len(named_objects(orders)) == 1
    assert contents(orders, "orders") == before
    assert_sound(orders)


def test_idle_partitions_do_not_keep_an_object(orders):
    """Four partitions of twelve go on; the others' runs move out of the first object once little of it is left."""
    append_to_each(orders, count=1)
    (first,) = named_objects(orders)
    for number in range(PARTITIONS - 3):
        append_one_by_one(orders, "orders", records(MERGE_CHUNKS), partition=number)
    before = contents(orders, "orders")
    report = roll(orders, now_ms=GOLDEN_MS)
    assert first in named_objects(orders)  # the runs of three partitions are in it
    assert not any(SHARED_OBJECT in line["reasons"] for line in report.partitions)
    report = roll(orders, now_ms=GOLDEN_MS)
    assert [line["reasons"] for line in report.partitions] == [[SHARED_OBJECT]] * 3
    assert first not in named_objects(orders)
    assert roll(orders, now_ms=GOLDEN_MS).partitions == []
    assert contents(orders, "orders") == before
    assert_sound(orders)


@pytest.mark.proof
def test_a_topic_has_no_more_chunks_than_the_bound_after_a_roll(orders, limits):
    limits(MOST_CHUNKS=4 * PARTITIONS)
    for turn in range(40):
        append_to_each(orders, first=1000 * turn, count=1 + turn % 3)
        if turn % 5 == 4:
            roll(orders, now_ms=GOLDEN_MS)
            assert len(live_rows(orders, "orders")) <= 4 * PARTITIONS
    assert_sound(orders)


@pytest.mark.cases(1)
@pytest.mark.parametrize("step", [2, 9, 20, 30])
def test_what_a_killed_task_leaves_of_an_object_is_seen_by_nobody_and_goes(orders, step):
    append_to_each(orders)
    before, whole = contents(orders, "orders"), objects(orders)
    command = [sys.executable, "-m", "verification.kills.killed_append", orders.uri, "orders", str(step)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    [begun] = objects(orders) - whole
    assert contents(orders, "orders") == before
    assert_sound(orders)
    vacuum(orders)
    assert objects(orders) == {begun, *whole}, "a writer may still be at it"
    old_s = time.time() - ORPHAN_AGE_MS / 1000 - 60
    os.utime(orders.storage.location(begun), (old_s, old_s))
    vacuum(orders)
    assert objects(orders) == whole
    append_to_each(orders, first=3)
    assert len(contents(orders, "orders")) == 2 * len(before)
    assert_sound(orders)


@pytest.mark.proof
def test_ten_thousand_chunks_are_the_bound_that_users_get(log):
    topic_with(log, "wide", {"retention.ms": -1}, 1000)
    for turn in range(11):
        append_to_each(log, topic="wide", first=1000 * turn, count=1, partitions=1000)
    assert log.topic("wide").snapshot.live.num_rows == 11_000
    before = contents(log, "wide")
    roll(log, now_ms=GOLDEN_MS)
    assert log.topic("wide").snapshot.live.num_rows <= 10_000
    assert contents(log, "wide") == before


def test_a_damaged_run_stops_the_roll_of_its_partition_alone(orders):
    for turn in range(MERGE_CHUNKS):
        append_to_each(orders, first=100 * turn)
    row = live(orders, "orders", 5)[3]
    with open(orders.storage.location(row.path), "r+b") as file:
        file.seek(row.byte_position + 70)
        file.write(b"\xff\xff\xff")
    report = roll(orders, now_ms=GOLDEN_MS)
    assert [line["partition"] for line in report.failed] == [5]
    assert [len(live(orders, "orders", number)) for number in range(PARTITIONS)] == [1] * 5 + [8] + [1] * 6


def test_keys_are_compacted_after_their_runs_were_rolled(log):
    topic_with(log, "orders", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}, PARTITIONS)
    for turn in range(3):
        append_to_each(log, first=7 * 12 * turn, count=7)
    before = contents(log, "orders")
    roll(log, now_ms=later(log, 30))
    append_to_each(log, count=1)
    compact(log, now_ms=later(log, 30))
    newest = {(row["partition"], row["key"]): row["offset"] for row in before}
    kept = {(row["partition"], row["key"]): row["offset"] for row in contents(log, "orders", offsets=(None, 21))}
    assert kept == newest
    assert_sound(log)


# Removal


def test_an_object_goes_when_the_last_row_that_names_it_goes(orders):
    orders.topic("orders").alter({"file.delete.delay.ms": "1000"})
    now_ms = orders.storage.now_ms()
    append_to_each(orders)
    (path,) = objects(orders)
    append_one_by_one(orders, "orders", records(MERGE_CHUNKS), partition=0)
    roll(orders, now_ms=GOLDEN_MS)
    assert len(live(orders, "orders", 0)) == 1
    vacuum(orders, now_ms=now_ms + DAY_MS)
    assert path in objects(orders) and len(contents(orders, "orders")) == 3 * PARTITIONS + MERGE_CHUNKS
    assert_sound(orders)
    roll(orders, now_ms=now_ms + 30 * DAY_MS)
    vacuum(orders, now_ms=now_ms + DAY_MS)
    assert objects(orders) == set() and len(contents(orders, "orders")) == 3 * PARTITIONS + MERGE_CHUNKS
    assert_sound(orders)


def test_a_restore_between_two_vacuums_gets_the_rows_whose_object_is_there(orders):
    """One object: some of its rows leave the log early, all of them late; the restore wants the late ones."""
    orders.topic("orders").alter({"file.delete.delay.ms": str(DAY_MS)})
    now_ms = orders.storage.now_ms()
    append_to_each(orders)
    (path,) = objects(orders)
    whole = orders.topic("orders").snapshot.version
    with store_clock(now_ms - 2 * DAY_MS):  # partition 0 loses its row then; all versions are of now, and stay
        append_one_by_one(orders, "orders", records(MERGE_CHUNKS), partition=0)
        roll(orders, now_ms=GOLDEN_MS)
    partly, before = orders.topic("orders").snapshot.version, contents(orders, "orders")
    with store_clock(now_ms + 10 * DAY_MS):
        roll(orders)  # the run of each other partition is sealed
    vacuum(orders, now_ms=now_ms)  # takes the row of partition 0, not the object
    assert path in objects(orders)
    with pytest.raises(LogDirError, match="vacuum has deleted"):
        restore(orders, topics=["orders"], version=whole)
    with pytest.raises(LogDirError, match="cannot be restored"):
        restore(orders, topics=["orders"], version=whole)
    restore(orders, topics=["orders"], version=partly)
    assert contents(orders, "orders") == before and path in named_objects(orders)
    vacuum(orders, now_ms=now_ms + 30 * DAY_MS)
    assert path in objects(orders) and contents(orders, "orders") == before
    assert_sound(orders)


def test_records_of_one_run_are_deleted_and_no_others(orders):
    append_to_each(orders, count=10)
    (path,) = objects(orders)
    orders.topic("orders").delete_records({3: 4, 5: -1})
    assert [len(contents(orders, "orders", partition=number)) for number in (2, 3, 4, 5)] == [10, 6, 10, 0]
    assert_sound(orders)
    roll(orders, now_ms=later(orders, 30))
    retain(orders, now_ms=GOLDEN_MS)
    assert [len(contents(orders, "orders", partition=number)) for number in (2, 3, 4, 5)] == [10, 6, 10, 0]
    assert_sound(orders)
    vacuum(orders, now_ms=later(orders, 2))
    assert path not in objects(orders)


def test_a_topic_made_again_has_objects_of_its_own(orders):
    append_to_each(orders)
    (old,) = objects(orders)
    orders.delete_topic("orders")
    topic_with(orders, "orders", {"segment.bytes": 100_000, "retention.ms": -1}, PARTITIONS)
    append_to_each(orders, first=500)
    (new,) = named_objects(orders)
    before = contents(orders, "orders")
    vacuum(orders)
    assert objects(orders) == {old, new}
    vacuum(orders, now_ms=later(orders, 2))
    assert objects(orders) == {new} and contents(orders, "orders") == before
    assert_sound(orders)


def test_a_replayed_commit_whose_run_was_vacuumed_adds_nothing(orders):
    """The object is still there for other runs, but the rows of the replay were in the log before."""
    orders.topic("orders").alter({"file.delete.delay.ms": "0"})
    target = append_target(orders, "orders")
    with Appender(orders.storage, lambda _: target, topic="orders") as appender:
        numbers = pa.array(np.arange(PARTITIONS, dtype=np.int32))
        appender.write(records(PARTITIONS).append_column("partition", numbers).to_batches()[0])
        written = appender.close()
    commit_chunks(orders, "orders", written)
    append_one_by_one(orders, "orders", records(MERGE_CHUNKS), partition=0)
    roll(orders, now_ms=GOLDEN_MS)
    vacuum(orders, now_ms=later(orders, 1))
    before = contents(orders, "orders")
    with pytest.raises(SegmentsError, match="once only"):
        commit_chunks(orders, "orders", written)
    assert contents(orders, "orders") == before
