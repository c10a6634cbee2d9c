"""Positions of groups go along with a promotion: the one that was committed last counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_segments.log.groups.group_files import GroupFiles
from spark_segments.replicas.groups import copy_positions
from verification.world.clock import played_time
from verification.world.group_readers import check_position, moved
from verification.world.promoted_copies import TOPIC, followed, promote_topic


class Clock:
    """The clock as the module of groups sees it: each commit of positions is a millisecond after the one before."""

    def __init__(self) -> None:
        self._now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self._now_ms += 1
        return self._now_ms


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with played_time("groups", Clock()):
        yield


def test_groups_go_on_at_the_new_leader(leader, follower):
    moved(leader, "audit", {TOPIC: {0: 4, 1: 1}})
    moved(leader, "billing", {TOPIC: {0: 7}})
    promote_topic(follower, TOPIC)
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 4, 1: 1}}
    assert follower.group("billing").positions().offsets == {TOPIC: {0: 7}}
    check_position(follower.topic(TOPIC).snapshot, 0, follower.group("audit").positions()[TOPIC, 0], "audit")


def test_the_position_that_a_group_committed_last_counts(leader, follower):
    """Also when a group has read at the follower."""
    third = followed(follower, "third")
    moved(third, "audit", {TOPIC: {0: 3}})
    moved(leader, "audit", {TOPIC: {0: 4, 1: 1}})
    promote_topic(follower, TOPIC)
    moved(follower, "audit", {TOPIC: {0: 2}})  # its reader went back
    moved(third, "audit", {TOPIC: {1: 0}})
    promote_topic(third, TOPIC)
    assert third.group("audit").positions().offsets == {TOPIC: {0: 2, 1: 0}}


def test_a_group_that_cannot_be_read_keeps_no_other_from_its_new_leader(leader, follower):
    moved(leader, "audit", {TOPIC: {0: 4}})
    moved(leader, "billing", {TOPIC: {0: 7}})
    for file in Path(leader.uri, "_groups", "audit").glob("*.json"):
        file.write_bytes(b"damaged")
    [warning] = promote_topic(follower, TOPIC).warnings
    assert "positions of group audit" in warning
    assert follower.group("billing").positions().offsets == {TOPIC: {0: 7}}


def test_a_group_is_read_once_on_either_side(leader, follower, monkeypatch):
    moved(follower, "audit", {TOPIC: {0: 2}})
    moved(leader, "audit", {TOPIC: {0: 4, 1: 1}})
    reads: Counter[str] = Counter()
    newest = GroupFiles.newest

    def counted(files, read):
        reads[files.location] += 1
        return newest(files, read)

    monkeypatch.setattr(GroupFiles, "newest", counted)
    assert copy_positions(leader, follower, TOPIC) == (2, {})
    assert sorted(reads.values()) == [1, 1]
    assert copy_positions(leader, follower, TOPIC) == (0, {})
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 4, 1: 1}}
