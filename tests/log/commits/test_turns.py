"""Turns: a writer that appends without a pause leaves others the time to read the log and commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_segments.log.manifest.commit.committing import BETWEEN_TURNS_SECONDS, LONGEST_TURN_SECONDS
from verification.world.clock import played_time
from verification.world.topics import records


class PlayedTime:
    """`time` as the module of commits sees it. `waited`: the seconds of each wait."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return self.now_seconds

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now_seconds += seconds


@pytest.fixture
def time() -> Iterator[PlayedTime]:
    played = PlayedTime()
    with played_time("commits", played):
        yield played


def append_every(log, time: PlayedTime, seconds: float, count: int) -> None:
    for _ in range(count):
        log.topic("orders").append(records(1))
        time.now_seconds += seconds


def test_a_writer_without_pause_waits_once_a_turn(log, time):
    log.create_topic("orders")
    append_every(log, time, BETWEEN_TURNS_SECONDS / 2, 50)
    turns = 50 * BETWEEN_TURNS_SECONDS / 2 / LONGEST_TURN_SECONDS
    assert time.waited == [BETWEEN_TURNS_SECONDS] * int(turns)


@pytest.mark.proof
def test_a_writer_that_pauses_by_itself_never_waits(log, time):
    log.create_topic("orders")
    append_every(log, time, BETWEEN_TURNS_SECONDS, 50)
    assert time.waited == []
