"""Positions of groups at followers."""

from __future__ import annotations

from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.maintenance.mirroring import mirror as mirroring
from spark_segments.maintenance.mirroring.mirror import mirror
from tests.maintenance.mirroring.followers import TOPIC, appended, followers_of, led, mirrored


@pytest.fixture
def leader(log) -> LogDir:
    led(log)
    appended(log, 10)
    log.commit_offsets("audit", {TOPIC: {0: 4}})
    return log


@pytest.fixture
def follower(leader) -> LogDir:
    return followers_of(leader)


def test_positions_are_the_leaders_with_all_that_they_carry(leader, follower):
    mirrored(leader, follower, groups=True)
    assert follower.committed("audit").positions == leader.committed("audit").positions
    leader.commit_offsets("audit", {TOPIC: {0: 10}})
    leader.commit_offsets("other", {TOPIC: {1: 0}})
    assert mirrored(leader, follower, groups=True)["groups"] == 2
    assert follower.groups() == ["audit", "other"] and dict(follower.committed("audit")) == {TOPIC: {0: 10}}
    leader.delete_group("audit")
    mirrored(leader, follower, groups=True)
    assert follower.groups() == ["other"]
    assert mirrored(leader, follower, groups=True)["groups"] == 0


def test_without_being_asked_for_positions_stay(leader, follower):
    mirrored(leader, follower)
    assert follower.groups() == []
    follower.commit_offsets("mine", {TOPIC: {0: 3}})
    mirrored(leader, follower)
    assert dict(follower.committed("mine")) == {TOPIC: {0: 3}}


def test_a_position_is_never_beyond_what_the_follower_has(leader, follower):
    mirrored(leader, follower, groups=True)
    run = mirroring.TopicMirror.run

    def later(one):
        done = run(one)
        appended(leader, 5)
        leader.commit_offsets("audit", {TOPIC: {0: 15}})
        return done

    with mock.patch.object(mirroring.TopicMirror, "run", later):
        mirrored(leader, follower, groups=True)
    assert dict(follower.committed("audit")) == {TOPIC: {0: 4}} and follower.offsets(TOPIC)[0] == (0, 10)
    mirrored(leader, follower, groups=True)
    assert dict(follower.committed("audit")) == {TOPIC: {0: 15}}


def test_positions_in_topics_that_are_not_mirrored_stay(leader, follower):
    follower.create_topic("prices")
    follower.append("prices", [{"value": b"x"}])
    follower.commit_offsets("audit", {"prices": {0: 1}})
    leader.create_topic("prices")
    assert [line["topic"] for line in mirror(leader, follower, groups=True).failed] == ["prices"]
    assert dict(follower.committed("audit")) == {TOPIC: {0: 4}, "prices": {0: 1}}
