"""Positions of groups at followers."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import mirror
from spark_segments.replicas import mirror as mirroring
from verification.world.followers import TOPIC, appended, led, mirrored
from verification.world.group_readers import Group, moved
from verification.world.promoted_copies import TopicMirror, promote_topic


@pytest.fixture
def leader(log) -> LogDir:
    led(log)
    appended(log, 10)
    moved(log, "audit", {TOPIC: {0: 4}})
    return log


def test_positions_are_the_leaders_with_all_that_they_carry(leader, follower):
    mirrored(leader, follower, groups=True)
    assert follower.group("audit").positions() == leader.group("audit").positions()
    moved(leader, "audit", {TOPIC: {0: 10}})
    moved(leader, "other", {TOPIC: {1: 0}})
    assert mirrored(leader, follower, groups=True)["details"]["groups"] == 2
    assert follower.groups() == ["audit", "other"] and follower.group("audit").positions().offsets == {TOPIC: {0: 10}}
    leader.group("audit").delete()
    mirrored(leader, follower, groups=True)
    assert follower.groups() == ["other"]
    assert mirrored(leader, follower, groups=True)["details"]["groups"] == 0


def test_a_group_of_a_servers_clients_is_theirs_at_the_follower(leader, follower):
    leader.group("served").update(lambda rows: dict(leader.group("audit").positions()), made_by="serve")
    mirrored(leader, follower, groups=True)
    made_by = {name: follower.group(name).positions().made_by for name in follower.groups()}
    assert made_by == {"audit": "", "served": "serve"}


def test_without_being_asked_for_positions_stay(leader, follower):
    mirrored(leader, follower)
    assert follower.groups() == []
    moved(follower, "mine", {TOPIC: {0: 3}})
    mirrored(leader, follower)
    assert follower.group("mine").positions().offsets == {TOPIC: {0: 3}}


def test_a_position_is_never_beyond_what_the_follower_has(leader, follower):
    mirrored(leader, follower, groups=True)
    run = mirroring.TopicMirror.run

    def later(one):
        done = run(one)
        appended(leader, 5)
        moved(leader, "audit", {TOPIC: {0: 15}})
        return done

    with mock.patch.object(mirroring.TopicMirror, "run", later):
        mirrored(leader, follower, groups=True)
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 4}} and follower.topic(TOPIC).offsets()[0] == (
        0,
        10,
    )
    mirrored(leader, follower, groups=True)
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 15}}


@pytest.mark.parametrize("moment", ["before the positions", "while they are written"])
def test_the_positions_in_a_topic_that_is_promoted_meanwhile_are_its_readers(leader, follower, monkeypatch, moment):
    mirrored(leader, follower, groups=True)
    moved(leader, "audit", {TOPIC: {0: 6}})
    owner, name = (TopicMirror, "run") if moment == "before the positions" else (Group, "update")
    step = getattr(owner, name)

    def promoted(one, *arguments, **named):
        monkeypatch.undo()
        done = step(one, *arguments, **named) if owner is TopicMirror else None
        promote_topic(follower, TOPIC, leader)
        moved(follower, "audit", {TOPIC: {0: 9}})
        return done if owner is TopicMirror else step(one, *arguments, **named)

    monkeypatch.setattr(owner, name, promoted)
    mirrored(leader, follower, groups=True)
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 9}}


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_group_whose_positions_are_damaged_keeps_nothing_else_from_being_mirrored(leader, follower, side):
    moved(leader, "other", {TOPIC: {0: 5}})
    if side == "follower":
        mirrored(leader, follower, groups=True)
        moved(leader, "other", {TOPIC: {0: 6}})
    for file in Path((leader if side == "leader" else follower).uri, "_groups", "audit").glob("*.json"):
        file.write_bytes(b"damaged")
    appended(leader, 3)
    report = mirrored(leader, follower, groups=True)
    [warning] = report["warnings"]
    assert "positions of group audit were not mirrored" in warning
    assert (
        report["details"]["groups"] == 1
        and follower.group("other").positions().offsets == leader.group("other").positions().offsets
    )
    assert follower.topic(TOPIC).offsets() == leader.topic(TOPIC).offsets()


def test_positions_in_topics_that_are_not_mirrored_stay(leader, follower):
    follower.create_topic("prices")
    follower.topic("prices").append([{"value": b"x"}])
    moved(follower, "audit", {"prices": {0: 1}})
    leader.create_topic("prices")
    assert [line["topic"] for line in mirror(follower, leader=leader, groups=True).failed] == ["prices"]
    assert follower.group("audit").positions().offsets == {TOPIC: {0: 4}, "prices": {0: 1}}
