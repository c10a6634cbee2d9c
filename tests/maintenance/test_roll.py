"""The rolling job: what it commits, whom it lets pass, and what a run that was cut short leaves."""

from __future__ import annotations

import dataclasses
import shutil
import sys

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.log.segment.copying import copy_batches
from spark_segments.maintenance import restore, roll
from verification.world.clock import store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.topics import (
    DAY_MS,
    GOLDEN_MS,
    SegmentLimits,
    append_in_batches,
    append_one_by_one,
    assert_sound,
    contents,
    later,
    live,
    records,
    topic_with,
)

ROLL = sys.modules["spark_segments.maintenance.rolling.roll"]


def states(log: LogDir, partition: int = 0) -> list[str]:
    return [segment.state for segment in live(log, "orders", partition)]


def test_small_chunks_become_one_and_stay_active(log):
    topic_with(log, "orders", {})
    append_one_by_one(log, "orders", records(20))
    before = contents(log, "orders")
    (line,) = roll(log, now_ms=GOLDEN_MS).partitions
    assert (line["reasons"], line["chunks"], line["sealed"], line["merged"]) == (["merge"], 20, [], 1)
    assert states(log) == ["chunk"]
    assert contents(log, "orders") == before
    assert roll(log, now_ms=GOLDEN_MS).partitions == []
    assert_sound(log)


def test_what_is_sealed_and_merged_in_one_run_is_whole(log):
    topic_with(log, "orders", {"segment.bytes": 8000})
    append_one_by_one(log, "orders", records(30))
    append_in_batches(log, "orders", records(200, first=30), 2000)
    append_one_by_one(log, "orders", records(30, first=230))
    before = contents(log, "orders")
    report = roll(log, now_ms=GOLDEN_MS)
    assert contents(log, "orders") == before
    assert report.records_in == report.records_out == sum(line["records_out"] for line in report.partitions) == 260
    assert states(log) == sorted(states(log), reverse=True)
    assert_sound(log)
    roll(log, now_ms=later(log))
    assert set(states(log)) == {"sealed"}
    assert contents(log, "orders") == before
    assert_sound(log)


def test_tombstones_are_counted_also_where_a_chunk_is_cut(log):
    topic_with(log, "orders", {"segment.bytes": 3000, "cleanup.policy": "compact"})
    table = records(100)
    nulls = [n % 3 == 0 for n in range(100)]
    values = pa.array([None if null else b"v" * 50 for null in nulls], pa.binary())
    append_in_batches(log, "orders", table.set_column(1, "value", values), 300)
    log.topic("orders").alter({"segment.bytes": "1000"})
    roll(log, now_ms=later(log))
    rows = live(log, "orders")
    assert len(rows) > 4
    assert [row.tombstones for row in rows] == [sum(nulls[row.base_offset : row.next_offset]) for row in rows]


def test_a_rolled_segment_is_as_old_as_its_newest_chunk(log):
    topic_with(log, "orders", {})
    append_one_by_one(log, "orders", records(3))
    chunks = [dataclasses.replace(one, created_ms=GOLDEN_MS + n) for n, one in enumerate(live(log, "orders"))]
    limits = SegmentLimits(1 << 30, index_interval_bytes=4096, segment_index_bytes=1 << 20)
    row = copy_batches(log.storage, "orders", chunks, 0, 3, sealed=True, leader_epochs=None, limits=limits)
    assert row.created_ms == GOLDEN_MS + 2


@pytest.mark.parametrize("timed", [True, False])
def test_merging_puts_off_no_roll_by_the_clock_but_of_records_without_timestamps(log, timed):
    start_ms = log.storage.now_ms()
    topic_with(log, "orders", {"segment.ms": DAY_MS})
    for hour in range(8):
        now_ms = start_ms + hour * 3_600_000
        with store_clock(now_ms):
            append_one_by_one(log, "orders", records(1, time_ms=now_ms if timed else -1))
    roll(log, now_ms=now_ms)
    assert states(log) == ["chunk"]
    # Retention goes by the moment of the last append where there are no timestamps: so that is what is kept there.
    opened_ms = start_ms if timed else now_ms
    roll(log, now_ms=opened_ms + DAY_MS)
    assert states(log) == ["chunk"]
    roll(log, now_ms=opened_ms + DAY_MS + 1)
    assert states(log) == ["sealed"]


def test_a_dry_run_opens_no_segment_and_says_why(log, monkeypatch):
    topic_with(log, "orders", {"segment.bytes": 2000}, partitions=2)
    append_one_by_one(log, "orders", records(40), partition=1)
    version = log.topic("orders").snapshot.version
    monkeypatch.setattr(ROLL, "try_tasks", None)
    dry = roll(log, now_ms=GOLDEN_MS, dry_run=True).to_dict()
    assert dry["partitions"] == [
        {
            "topic": "orders", "partition": 1, "action": "roll",
            "records_in": 40, "records_out": 40, "bytes_in": dry["bytes_in"], "bytes_out": dry["bytes_in"],
            "reasons": ["segment.bytes"], "chunks": 40,
        }
    ]  # fmt: skip
    assert (dry["job"], dry["dry_run"], dry["dropped"]) == ("roll", True, {})
    assert log.topic("orders").snapshot.version == version


def roll_meanwhile(log: LogDir, work, now_ms: int = GOLDEN_MS) -> list[dict]:
    """The report's lines of a roll that has `work` done after it has copied, before it commits."""
    return roll(opened(log, open_delta_log=Play().before_commits(work)), now_ms=now_ms).partitions


def test_records_appended_meanwhile_follow_what_was_rolled(log):
    topic_with(log, "orders", {"segment.bytes": 2000})
    append_one_by_one(log, "orders", records(40))
    (line,) = roll_meanwhile(log, lambda: append_one_by_one(log, "orders", records(5, first=40)))
    assert line["action"] == "roll" and line["records_in"] == line["records_out"]
    assert [int(one["value"].split()[0]) for one in contents(log, "orders")] == list(range(45))
    assert_sound(log)


def test_a_partition_that_another_job_rolled_meanwhile_is_left_to_it(log):
    topic_with(log, "orders", {"segment.bytes": 2000}, partitions=2)
    append_one_by_one(log, "orders", records(40), partition=0)
    before = contents(log, "orders")

    def other():
        roll(log, now_ms=GOLDEN_MS)
        append_one_by_one(log, "orders", records(40), partition=1)

    (line,) = roll_meanwhile(log, other)
    assert (line["action"], line["records_in"]) == ("lost to another job", 0)
    assert contents(log, "orders", partition=0) == before
    assert_sound(log)


def test_chunks_that_a_restore_brings_back_meanwhile_do_not_come_below_a_sealed_segment(log):
    topic_with(log, "orders", {"segment.bytes": 2000})
    log.topic("orders").append(records(14))
    log.topic("orders").append(records(6, first=14))
    before, wanted = contents(log, "orders"), log.topic("orders").snapshot.version
    roll(log, now_ms=GOLDEN_MS)
    assert states(log) == ["sealed", "chunk"]
    later_ms = later(log)
    (line,) = roll_meanwhile(log, lambda: restore(log, topics=["orders"], version=wanted), later_ms)
    assert line["action"] == "lost to another job"
    assert states(log) == ["chunk", "chunk"]
    log.topic("orders").append(records(2, first=20))
    roll(log, now_ms=later_ms)
    assert contents(log, "orders")[:20] == before
    assert_sound(log)


def test_a_topic_made_again_meanwhile_is_not_touched(log):
    topic_with(log, "orders", {"segment.bytes": 2000})
    append_one_by_one(log, "orders", records(40))

    def other():
        log.delete_topic("orders")
        topic_with(log, "orders", {})
        append_one_by_one(log, "orders", records(3))

    (line,) = roll_meanwhile(log, other)
    assert line["action"] == "lost to another job"
    assert len(contents(log, "orders")) == 3 and states(log) == ["chunk"] * 3


@pytest.mark.proof
def test_a_job_that_is_stopped_keeps_the_waves_that_it_has_done(log, limits):
    topic_with(log, "orders", {"segment.bytes": 2000}, partitions=5)
    for number in range(5):
        append_one_by_one(log, "orders", records(40), partition=number)
    before = contents(log, "orders")
    limits(ROLL_WAVE_PARTITIONS=2)

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        assert total == 5
        if done == 4:
            raise Stopped

    with pytest.raises(Stopped):
        roll(log, now_ms=GOLDEN_MS, progress=stop)
    assert ["sealed" in states(log, number) for number in range(5)] == [True, True, False, False, False]
    assert contents(log, "orders") == before
    steps: list[tuple[int, int]] = []
    roll(log, now_ms=GOLDEN_MS, progress=lambda done, total: steps.append((done, total)))
    assert all("sealed" in states(log, number) for number in range(5))
    assert steps == sorted(steps) and steps[-1][0] == steps[-1][1]
    assert contents(log, "orders") == before
    assert_sound(log)


def test_files_that_are_too_old_are_not_committed(log):
    """The machine was asleep between copying and committing, and vacuum elsewhere was not."""
    topic_with(log, "orders", {"segment.bytes": 2000})
    append_one_by_one(log, "orders", records(40))
    clock = [log.storage.now_ms()]

    def asleep(_: str, go):
        clock[0] += 8 * DAY_MS
        return go()

    with store_clock(lambda: clock[0]):
        (line,) = roll(opened(log, PlayedFiles(stream=asleep)), now_ms=GOLDEN_MS).failed
    assert "too old" in line["error"]
    assert states(log) == ["chunk"] * 40


def test_an_empty_imported_active_segment_makes_room(log, tmp_path):
    kafka = tmp_path / "kafka" / "canary-0"
    shutil.copytree(golden_dir("canary-0"), kafka)
    for path in kafka.glob("00000000000000000981.*"):
        path.write_bytes(b"")
    (kafka / "00000000000000001000.snapshot").unlink()
    log.import_kafka(str(kafka.parent), config={"segment.bytes": "2000"})
    assert live(log, "canary")[-1].log_bytes == 0 and live(log, "canary")[-1].state == "chunk"
    append_one_by_one(log, "canary", records(30))
    before = contents(log, "canary")
    roll(log, now_ms=GOLDEN_MS)
    assert all(segment.log_bytes for segment in live(log, "canary"))
    assert contents(log, "canary") == before
    assert_sound(log)


def test_a_report_has_the_count_and_the_first_and_last_of_many_sealed_segments(log):
    topic_with(log, "orders", {"segment.bytes": 300})
    append_one_by_one(log, "orders", records(40))
    (line,) = roll(log, now_ms=GOLDEN_MS).to_dict()["partitions"]
    sealed = [row.base_offset for row in live(log, "orders") if row.state == "sealed"]
    assert line["sealed_segments"] == len(sealed) > 20
    assert line["sealed"] == [*sealed[:5], *sealed[-5:]]
