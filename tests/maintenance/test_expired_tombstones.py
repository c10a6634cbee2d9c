"""Tombstones whose delete horizon has passed: a forced compaction removes them, any compaction those of erasures."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.face.in_order import jobs_in_order
from spark_segments.log.manifest.state.states import MOST_ERASURES, ErasedTombstones
from spark_segments.maintenance import compact, erase, roll
from spark_segments.maintenance.compaction.compaction_plan import ERASED, FORCED
from verification.world.topics import DAY_MS, append, assert_sound, contents, under_policy

ADA, BOB = b"ada", b"bob"
CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS), "min.cleanable.dirty.ratio": "0.9"}


@pytest.fixture
def orders(log) -> LogDir:
    log.create_topic("orders", config=CONFIG)
    append(log, *[(b"k%d" % number, b"v" * 100) for number in range(50)], (ADA, b"London"), (BOB, b"Paris"))
    return log


def forced(log: LogDir, days: int, **options: object):
    now_ms = log.storage.now_ms() + days * DAY_MS
    roll(log, now_ms=now_ms)
    return compact(log, now_ms=now_ms, force=True, **options)


def keys(log: LogDir) -> set[bytes]:
    return {row["key"] for row in contents(log, "orders")}


def version(log: LogDir) -> int:
    return log.topic("orders").snapshot.version


def test_two_forced_runs_remove_the_tombstone_of_an_erased_key(orders):
    erase(orders, topics=["orders"], keys=[ADA])
    forced(orders, 8)
    assert ADA in keys(orders)
    assert forced(orders, 8).partitions == [] and ADA in keys(orders)  # its time has not come
    dry = forced(orders, 10, dry_run=True)
    assert [(line["action"], line["reason"]) for line in dry.partitions] == [("compact", FORCED)]
    done = forced(orders, 10)
    assert dict(done.dropped) == {"tombstone": 1}
    assert ADA not in keys(orders) and len(keys(orders)) == 51
    before = version(orders)
    assert not forced(orders, 30).dropped and version(orders) == before
    assert_sound(orders)


def test_two_forced_runs_remove_an_ordinary_tombstone(orders):
    append(orders, (BOB, None))
    forced(orders, 8)
    assert compact(orders, now_ms=orders.storage.now_ms() + 10 * DAY_MS).records_in == 0  # as Kafka: it is not dirty
    assert BOB in keys(orders)
    assert dict(forced(orders, 10).dropped) == {"tombstone": 1}
    assert BOB not in keys(orders)


def test_a_horizon_that_has_passed_makes_an_erased_keys_partition_due_by_itself(orders):
    erase(orders, topics=["orders"], keys=[ADA])
    forced(orders, 8)
    for days, expected in ((8, True), (10, False)):
        now_ms = orders.storage.now_ms() + days * DAY_MS
        dry = [job(orders, now_ms=now_ms, dry_run=True) for job in jobs_in_order()][2]
        picked = [line["reason"] for line in dry.partitions if line["action"] == "compact"]
        assert picked == ([] if expected else [ERASED])
        for job in jobs_in_order():
            job(orders, now_ms=now_ms)
        assert (ADA in keys(orders)) == expected
    assert ErasedTombstones.of(orders.topic("orders").snapshot.states) == []
    before = version(orders)
    assert compact(orders, now_ms=orders.storage.now_ms() + 40 * DAY_MS).records_in == 0 and version(orders) == before


def test_a_strangers_tombstone_beside_it_is_no_reason(orders):
    """Ordinary tombstones have Kafka's rule, in a topic with erasures, too."""
    erase(orders, topics=["orders"], keys=[ADA])
    forced(orders, 8)
    append(orders, (BOB, None))
    forced(orders, 18)  # removes ada's, sets the horizon of bob's
    assert keys(orders) & {ADA, BOB} == {BOB}
    assert compact(orders, now_ms=orders.storage.now_ms() + 40 * DAY_MS).records_in == 0
    assert BOB in keys(orders)


def test_every_partition_has_its_own_time(log):
    log.create_topic("orders", partitions=3, config=CONFIG)
    append(log, *[(ADA, b"%d" % number) for number in range(3)], partitions=range(3))
    append(log, *[(BOB, b"x" * 100) for number in range(3)], partitions=range(3))
    erase(log, topics=["orders"], keys=[ADA])
    states = log.topic("orders").snapshot.states
    assert [
        (one.partition, one.start_offset, one.end_offset, one.horizon_ms) for one in ErasedTombstones.of(states)
    ] == [(number, 2, 3, None) for number in range(3)]
    forced(log, 8, max_partitions=1)
    horizons = [one.horizon_ms for one in ErasedTombstones.of(log.topic("orders").snapshot.states)]
    assert sum(horizon is not None for horizon in horizons) == 1
    forced(log, 12)
    compact(log, now_ms=log.storage.now_ms() + 14 * DAY_MS)
    assert ErasedTombstones.of(log.topic("orders").snapshot.states) == [] and ADA not in keys(log)


def test_a_horizon_is_the_one_that_the_batch_has(orders):
    erase(orders, topics=["orders"], keys=[ADA])
    forced(orders, 8)
    [noted] = ErasedTombstones.of(orders.topic("orders").snapshot.states)
    [row] = [row for row in orders.topic("orders").snapshot.live.to_pylist() if row["tombstones"]]
    assert noted.horizon_ms == row["delete_horizon_ms"]


def test_what_retention_takes_is_forgotten(orders):
    erase(orders, topics=["orders"], keys=[ADA])
    forced(orders, 8)
    with under_policy(orders, "orders", "compact,delete"):
        orders.topic("orders").delete_records({0: -1})
    append(orders, (BOB, b"1"), (BOB, b"2"))
    forced(orders, 9)
    assert ErasedTombstones.of(orders.topic("orders").snapshot.states) == []


def test_many_erasures_are_remembered_up_to_a_bound():
    from spark_segments.log.manifest.topic_row import TopicRow

    row = TopicRow("AAAAAAAAAAAAAAAAAAAAAQ", {})
    for number in range(MOST_ERASURES + 10):
        row = ErasedTombstones.topic_row(row, [ErasedTombstones(0, 2 * number, 2 * number + 1)])
    kept = ErasedTombstones.of(row.states)
    assert len(kept) == MOST_ERASURES and (kept[0].start_offset, kept[0].end_offset) == (0, 21)
