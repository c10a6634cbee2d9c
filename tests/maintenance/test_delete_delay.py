"""From when on file.delete.delay.ms is counted: the store's clock at the commit that takes files out of the log."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.log.segment.copying import copy_batches
from spark_segments.maintenance import compact, restore, retain, roll
from spark_segments.maintenance.verification.deep import commit_repairs
from verification.world.clock import store_clock
from verification.world.manifest_rows import Manifest
from verification.world.opened import opened
from verification.world.stores.played_log import CommitFailedError, Play
from verification.world.topics import DAY_MS, GOLDEN_MS, SegmentLimits, append_one_by_one, live, records, topic_with

HOUR_MS = 3_600_000
CONFIG = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0,
    "segment.bytes": 2000,
    "retention.ms": -1,
}


class Clock:
    """The store's clock, which goes on when a test says so."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


@pytest.fixture
def clock(log) -> Iterator[Clock]:
    clock = Clock(log.storage.now_ms())
    with store_clock(lambda: clock.now_ms):
        yield clock


@pytest.fixture
def orders(log, clock) -> LogDir:
    """A topic that the store has had for a day, sealed up to what the last append left."""
    topic_with(log, "orders", CONFIG)
    append_one_by_one(log, "orders", records(20))
    roll(log, now_ms=GOLDEN_MS)
    append_one_by_one(log, "orders", records(20, first=20))
    clock.now_ms += DAY_MS
    return log


def do_roll(log: LogDir, now_ms: int) -> None:
    roll(log, now_ms=now_ms)


def do_retain(log: LogDir, now_ms: int) -> None:
    log.topic("orders").alter({"retention.bytes": "0"})
    retain(log, now_ms=now_ms)


def do_compact(log: LogDir, now_ms: int) -> None:
    compact(log, now_ms=now_ms)


def do_delete_topic(log: LogDir, now_ms: int) -> None:
    log.delete_topic("orders")


def do_restore(log: LogDir, now_ms: int) -> None:
    restore(log, topics=["orders"], version=1)


def do_repair(log: LogDir, now_ms: int) -> None:
    old = live(log, "orders")[0]
    limits = SegmentLimits(1 << 30, index_interval_bytes=4096, segment_index_bytes=1 << 20)
    offsets = (old.base_offset, old.next_offset)
    new = copy_batches(log.storage, "orders", [old], *offsets, sealed=True, leader_epochs=None, limits=limits)
    assert commit_repairs(log.topic("orders").manifest, [old], [new]) == [new]


WORK = [do_roll, do_retain, do_compact, do_delete_topic, do_restore, do_repair]


def removed_times(log: LogDir, before: set[str]) -> set[int]:
    """When what left the log since then did, as its rows say."""
    rows = log.topic("orders").manifest.snapshot(deleted=True).segments.to_pylist()
    return {row["removed_ms"] for row in rows if row["state"] == "removed" and row["path"] in before}


@pytest.mark.cases(4)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("ago_ms", [1000 * DAY_MS, -1000 * DAY_MS])
def test_the_clock_that_a_job_plans_by_is_not_when_files_leave_the_log(orders, clock, work, ago_ms):
    before = {row.path for row in live(orders, "orders")}
    work(orders, clock.now_ms - ago_ms)
    assert removed_times(orders, before) == {clock.now_ms}


@pytest.mark.cases(3)
@pytest.mark.parametrize("work", WORK)
def test_a_job_that_takes_longer_than_the_delay_leaves_readers_all_of_it(orders, clock, work):
    before = {row.path for row in live(orders, "orders")}
    commit = Manifest.commit

    def commit_late(manifest: Manifest, *arguments, **options):
        clock.now_ms += 5 * HOUR_MS
        return commit(manifest, *arguments, **options)

    with mock.patch.object(Manifest, "commit", commit_late):
        work(orders, clock.now_ms)
    assert removed_times(orders, before) == {clock.now_ms}


@pytest.mark.cases(3)
@pytest.mark.parametrize("work", WORK)
def test_each_try_of_a_commit_looks_at_the_clock(orders, clock, work):
    before = {row.path for row in live(orders, "orders")}

    def fails(go):
        clock.now_ms += HOUR_MS
        raise CommitFailedError("no answer")

    play = Play()
    if work is do_retain:  # it is altered first
        play.commits(lambda go: go())
    play.commits(fails)
    work(opened(orders, open_delta_log=play), clock.now_ms)
    assert play.calls["commit_on"] > (2 if work is do_retain else 1)
    assert removed_times(orders, before) == {clock.now_ms}
