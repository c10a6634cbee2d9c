"""A clock that jumps, forth and back: offsets and records stay, jobs do their work, time-outs last longer at worst."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, restore, retain, roll, vacuum
from verification.faults.scenes import PARTITIONS, assert_clean, contents
from verification.world.opened import created
from verification.world.stores.played_files import Go, PlayedFiles
from verification.world.topics import DAY_MS, later, records

JUMPS = {"forth and back": (400, -400), "back and forth": (-400, 400), "further and further": (30, 3000)}


class MovedClock(PlayedFiles):
    """The clock of this machine, and the files that it stamps: a jump leaves the files of before it their times."""

    def __init__(self, root: str) -> None:
        super().__init__(list=self._stamped)
        self._root, self.moved_ms = root, 0
        self._moved_ms: dict[tuple[str, int], int] = {}  # by path and the kernel's stamp: how far the clock was moved

    def jump(self, days: int) -> None:
        self.list(self._root, recursive=True)
        self.moved_ms += days * DAY_MS

    def _stamped(self, directory: str, go: Go) -> Any:
        found = []
        for name, size, mtime_ms, version in go():
            moved_ms = self._moved_ms.setdefault((f"{directory}/{name}", mtime_ms), self.moved_ms)
            found.append((name, size, mtime_ms + moved_ms, version))
        return found


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[MovedClock]:
    clock, real = MovedClock(str(tmp_path / "log")), time.time_ns
    with mock.patch.object(time, "time_ns", lambda: real() + clock.moved_ms * 1_000_000):
        yield clock


@pytest.fixture
def orders(tmp_path: Path, clock: MovedClock) -> LogDir:
    log = created(tmp_path / "log", clock)
    config = {"segment.bytes": "20000", "compression.type": "uncompressed", "retention.ms": "-1"}
    log.create_topic("orders", PARTITIONS, config)
    log.create_topic("prices", 1, config | {"cleanup.policy": "compact"})
    return log


def append_to_both(log: LogDir, first: int) -> None:
    for topic, partitions in (("orders", range(PARTITIONS)), ("prices", None)):
        log.topic(topic).append(records(240, first=first, time_ms=log.storage.now_ms(), partitions=partitions))


@pytest.mark.proof
@pytest.mark.parametrize("days", JUMPS.values(), ids=JUMPS)
def test_appends_and_jobs_between_jumps_keep_every_record(orders, clock, days):
    expected: dict[tuple[int, int], bytes] = {}
    for turn, by in enumerate((0, *days, 0)):
        clock.jump(by)
        append_to_both(orders, 240 * turn)
        expected |= contents(orders)["orders"]
        for job in (roll, retain, compact, vacuum):
            assert not job(orders).failed
        assert contents(orders)["orders"] == expected
        assert_clean(orders)
    assert len(expected) == 4 * 240
    newest = {value.split()[0] for value in contents(orders)["prices"].values()}
    assert {b"%d" % number for number in range(4 * 240 - 7, 4 * 240)} <= newest  # of each of seven keys


@pytest.mark.proof
def test_a_clock_that_jumps_while_a_job_writes_costs_a_run_and_no_record(orders, clock):
    """Vacuum elsewhere goes by that clock: it may take the files before the commit names them."""
    append_to_both(orders, 0)
    expected = contents(orders)
    days = [8]

    def asleep(path: str, go: Go) -> Any:
        """The machine sleeps between its last file of a segment and the version that it commits on."""
        if days and "/orders/_delta_log/" in path and clock.calls[-2][0] == "stream":
            clock.jump(days.pop())
        return go()

    clock.happenings["read"] = asleep
    failed = roll(orders, now_ms=later(orders, 10)).failed
    assert {line["topic"] for line in failed} == {"orders"} and "too old to be committed" in failed[0]["error"]
    vacuum(orders)
    assert contents(orders) == expected
    assert not roll(orders).failed
    assert contents(orders) == expected
    assert_clean(orders)


def test_what_retention_took_under_a_clock_that_ran_ahead_comes_back(orders, clock):
    """Files of rows that left the log in the future stay until then: there is time to restore."""
    orders.topic("orders").alter({"retention.ms": str(7 * DAY_MS)})
    append_to_both(orders, 0)
    roll(orders, now_ms=later(orders, 10))
    before, version = contents(orders)["orders"], orders.topic("orders").snapshot.version
    clock.jump(400)
    retain(orders)
    assert contents(orders)["orders"] == {}
    clock.jump(-400)
    vacuum(orders, now_ms=later(orders, 3))
    restore(orders, topics=["orders"], version=version)
    assert contents(orders)["orders"] == before
    assert_clean(orders)


def test_a_follower_of_time_finds_the_records_of_a_clock_that_went_back(orders, clock):
    """A look-up by time goes by the records' own times, which fall here."""
    append_to_both(orders, 0)
    began = orders.storage.now_ms()
    clock.jump(-100)
    append_to_both(orders, 240)
    clock.jump(100)
    found = orders.topic("prices").offsets_for_times(began - 50 * DAY_MS)[0]
    assert found is not None and found[0] == 0
    found = orders.topic("prices").offsets_for_times(began - 150 * DAY_MS)[0]
    assert found is not None and found[0] == 0
