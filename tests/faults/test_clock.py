"""A clock that jumps, forth and back: offsets and records stay, jobs do their work, time-outs last longer at worst."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, restore, retain, roll, vacuum
from tests.faults.scenes import PARTITIONS, assert_clean, contents
from tests.topics import DAY_MS, records

JUMPS = {"forth and back": (400, -400), "back and forth": (-400, 400), "further and further": (30, 3000)}


@pytest.fixture
def jump() -> Iterator[Callable[[int], None]]:
    """Moves the clock of this machine by days. The kernel's own, which stamps files, stays."""
    real, moved_ns = time.time_ns, 0

    def by(days: int) -> None:
        nonlocal moved_ns
        moved_ns += days * DAY_MS * 1_000_000

    with mock.patch.object(time, "time_ns", lambda: real() + moved_ns):
        yield by


@pytest.fixture
def orders(log: LogDir) -> LogDir:
    config = {"segment.bytes": "20000", "compression.type": "uncompressed", "retention.ms": "-1"}
    log.create_topic("orders", PARTITIONS, config)
    log.create_topic("prices", 1, config | {"cleanup.policy": "compact"})
    return log


def append(log: LogDir, first: int) -> None:
    for topic, partitions in (("orders", range(PARTITIONS)), ("prices", None)):
        log.topic(topic).append(records(240, first=first, time_ms=log.storage.now_ms(), partitions=partitions))


@pytest.mark.slow
@pytest.mark.parametrize("days", JUMPS.values(), ids=JUMPS)
def test_appends_and_jobs_between_jumps_keep_every_record(orders: LogDir, jump, days: tuple[int, int]) -> None:
    expected: dict[tuple[int, int], bytes] = {}
    for turn, by in enumerate((0, *days, 0)):
        jump(by)
        append(orders, 240 * turn)
        expected |= contents(orders)["orders"]
        for job in (roll, retain, compact, vacuum):
            assert not job(orders).failed
        assert contents(orders)["orders"] == expected
        assert_clean(orders)
    assert len(expected) == 4 * 240
    newest = {value.split()[0] for value in contents(orders)["prices"].values()}
    assert {b"%d" % number for number in range(4 * 240 - 7, 4 * 240)} <= newest  # of each of seven keys


@pytest.mark.slow
def test_what_retention_took_under_a_clock_that_ran_ahead_comes_back(orders: LogDir, jump) -> None:
    """Files of rows that left the log in the future stay until then: there is time to restore."""
    orders.topic("orders").alter({"retention.ms": str(7 * DAY_MS)})
    append(orders, 0)
    roll(orders, now_ms=orders.storage.now_ms() + 10 * DAY_MS)
    before, version = contents(orders)["orders"], orders.topic("orders").snapshot.version
    jump(400)
    retain(orders)
    assert contents(orders)["orders"] == {}
    jump(-400)
    vacuum(orders, now_ms=orders.storage.now_ms() + 3 * DAY_MS)
    restore(orders, topics=["orders"], version=version)
    assert contents(orders)["orders"] == before
    assert_clean(orders)


@pytest.mark.slow
def test_a_follower_of_time_finds_the_records_of_a_clock_that_went_back(orders: LogDir, jump) -> None:
    """A look-up by time goes by the records' own times, which fall here."""
    append(orders, 0)
    began = orders.storage.now_ms()
    jump(-100)
    append(orders, 240)
    jump(100)
    found = orders.topic("prices").offsets_for_times(began - 50 * DAY_MS)[0]
    assert found is not None and found[0] == 0
    found = orders.topic("prices").offsets_for_times(began - 150 * DAY_MS)[0]
    assert found is not None and found[0] == 0
