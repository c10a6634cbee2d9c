"""A topic that is altered while a job runs: what has not landed yet goes by the configuration of now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import Report, compact, roll, verify
from spark_segments.maintenance.compaction import partition_cleaner
from verification.world.opened import opened
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, GOLDEN_MS, append_one_by_one, later, live, offsets, records, topic_with

ROLL = sys.modules["spark_segments.maintenance.rolling.roll"]
ONE_THREAD = {"log.cleaner.threads": "1"}
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
NOW_MS = GOLDEN_MS + DAY_MS
TO_KEEP = [
    {"cleanup.policy": "delete"},
    {"min.compaction.lag.ms": str(DAY_MS)},
    {"delete.retention.ms": str(1000 * DAY_MS)},
]
"""What a topic can be altered to while a round is being done that must not land then."""


@pytest.fixture
def orders(log) -> LogDir:
    """Two partitions of sealed segments, most of whose records are superseded."""
    topic_with(log, "orders", CONFIG, partitions=2)
    for number in range(2):
        append_one_by_one(log, "orders", records(40), partition=number)
    roll(log, now_ms=later(log))
    return log


def opened_to_meet(
    log: LogDir, work: Callable[[], object], *, number: int = 1, defaults: Mapping[str, str] | None = None
) -> LogDir:
    """The log directory for a job that meets what `work` does before its commit of this number."""
    play = Play().before_commits(*[None] * (number - 1), work)
    return opened(log.storage, open_delta_log=play, defaults=defaults)


def actions(report: Report) -> dict[int | None, str]:
    return {line["partition"]: line["action"] for line in report.partitions}


@pytest.mark.cases(1)
@pytest.mark.parametrize("config", TO_KEEP)
def test_a_round_that_the_topic_does_not_allow_any_more_does_not_land(orders, config):
    orders.topic("orders").alter({"delete.retention.ms": "0"})
    altered = opened_to_meet(orders, lambda: orders.topic("orders").alter(config), defaults=ONE_THREAD)
    report = compact(altered, now_ms=NOW_MS)
    assert actions(report)[0] == "lost to another job"
    assert offsets(orders, partition=0) == [*range(40)]
    assert orders.topic("orders").snapshot.partition(0).first_dirty_offset == 0


@pytest.mark.parametrize("config", TO_KEEP[:2])
def test_a_partition_whose_turn_comes_after_the_topic_was_altered_is_left_as_it_is(orders, config):
    clean_partition = partition_cleaner.clean_partition
    turns = []

    def altered_before_the_second(*arguments, **options):
        turns.append(1)
        if len(turns) == 2:
            orders.topic("orders").alter(config)
        return clean_partition(*arguments, **options)

    one_thread = LogDir.open(orders.uri, defaults=ONE_THREAD)
    with mock.patch.object(
        sys.modules["spark_segments.maintenance.compaction.compact"], "clean_partition", altered_before_the_second
    ):
        compact(one_thread, now_ms=NOW_MS)
    cleaned = [number for number in range(2) if len(offsets(orders, partition=number)) < 40]
    assert len(turns) == 2 and len(cleaned) == 1
    (other,) = {0, 1} - set(cleaned)
    assert offsets(orders, partition=other) == [*range(40)]
    assert orders.topic("orders").snapshot.partition(other).first_dirty_offset == 0


def test_a_later_round_goes_by_the_configuration_that_it_begins_with(orders):
    small = ONE_THREAD | {"log.cleaner.dedupe.buffer.size": "72"}
    to_delete = partial(orders.topic("orders").alter, {"cleanup.policy": "delete"})
    altered = opened_to_meet(orders, to_delete, number=2, defaults=small)
    report = compact(altered, now_ms=NOW_MS, max_partitions=1)
    (line,) = report.partitions
    assert (line["action"], line["rounds"]) == ("lost to another job", 1)
    first_dirty = orders.topic("orders").snapshot.partition(line["partition"]).first_dirty_offset
    assert 0 < first_dirty == line["first_dirty_offset"] < 40


@pytest.mark.cases(1)
@pytest.mark.parametrize("config", [{"retention.ms": "1000"}, {"delete.retention.ms": "0"}, {"segment.bytes": "5000"}])
def test_a_change_that_takes_no_right_away_undoes_no_round(orders, config):
    report = compact(opened_to_meet(orders, lambda: orders.topic("orders").alter(config)), now_ms=NOW_MS)
    assert actions(report) == {0: "compact", 1: "compact"}
    assert offsets(orders, partition=0) == offsets(orders, partition=1) == [*range(33, 40)]
    assert verify(orders, deep=True).ok


def test_a_later_wave_rolls_by_the_configuration_that_it_begins_with(log, limits):
    topic_with(log, "orders", {"segment.bytes": 2000}, partitions=3)
    for number in range(3):
        append_one_by_one(log, "orders", records(40), partition=number)
    limits(ROLL_WAVE_PARTITIONS=1)
    report = roll(opened_to_meet(log, lambda: log.topic("orders").alter({"segment.bytes": "3000"})), now_ms=GOLDEN_MS)
    assert actions(report) == {0: "roll", 1: "roll", 2: "roll"}
    for number, limit in ((0, 2000), (1, 3000), (2, 3000)):
        sealed = [row.log_bytes for row in live(log, "orders", number) if row.state == "sealed"]
        assert limit - 200 < max(sealed) <= limit
    assert verify(log, deep=True).ok


def test_a_topic_that_is_to_keep_its_segments_whole_is_rolled_no_further(log, limits):
    topic_with(log, "orders", {"segment.bytes": 2000}, partitions=2)
    for number in range(2):
        append_one_by_one(log, "orders", records(40), partition=number)
    limits(ROLL_WAVE_PARTITIONS=1, MERGE_CHUNKS=100)
    altered = opened_to_meet(log, lambda: log.topic("orders").alter({"segment.bytes": str(1 << 30)}))
    report = roll(altered, now_ms=GOLDEN_MS)
    assert actions(report) == {0: "roll"}
    assert {row.state for row in live(log, "orders", 1)} == {"chunk"}
