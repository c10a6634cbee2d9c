"""Fences: what is committed to a former leader comes before the fence, and so to the new leader, or fails."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from spark_segments.errors import DivergedLogError, NotLeaderError, TopicExistsError, UnknownTopicError
from spark_segments.log.appending.append import append_target
from spark_segments.maintenance import compact, erase, restore, retain, roll, vacuum, verify
from verification.world import kafka_side
from verification.world.kafka_side import KafkaSide
from verification.world.promoted_copies import LATER_MS, TOPIC, add, followed, numbers, played, promote_topic
from verification.world.stores.played_log import Late, Play, committed_but_reply_lost

OPERATIONS = {
    "append": lambda log: add(log, [1]),
    "alter": lambda log: log.topic(TOPIC).alter({"retention.ms": "5"}),
    "delete": lambda log: log.delete_topic(TOPIC),
    "delete-records": lambda log: log.topic(TOPIC).delete_records({0: 3}),
    "restore": lambda log: restore(log, topics=[TOPIC], version=1),
    "erase": lambda log: erase(log, topics=[TOPIC], keys=[b"key"]),
    "repair": lambda log: verify(log, topics=[TOPIC], repair=True),
    "target of a writer": lambda log: append_target(log, TOPIC),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fenced_leader_takes_nothing_and_says_who_does(leader, follower, operation):
    promote_topic(follower, TOPIC)
    before = leader.topic(TOPIC).snapshot.version
    with pytest.raises(NotLeaderError, match=rf"found fenced.*{follower.uri} was promoted in its place: write there"):
        OPERATIONS[operation](leader)
    assert leader.topic(TOPIC).snapshot.version == before


@pytest.mark.cases(1)
@pytest.mark.parametrize("job", [roll, retain, compact], ids=lambda job: job.__name__)
def test_jobs_fail_at_a_fenced_leader_and_vacuum_runs(leader, follower, job):
    leader.topic(TOPIC).alter({"cleanup.policy": "compact,delete"})
    promote_topic(follower, TOPIC)
    [failed] = job(leader, now_ms=LATER_MS).failed
    assert f"takes no {job.__name__}" in failed["error"] and follower.uri in failed["error"]
    assert not vacuum(leader, now_ms=LATER_MS).failed


def test_a_writer_in_mid_commit_meets_the_fence_at_its_next_try(leader, follower):
    """It had read the topic, and written its files, before the fence."""
    play = Play()
    play.commits(lambda go: (promote_topic(follower, TOPIC), go()))
    with pytest.raises(NotLeaderError, match=r"takes no append"):
        add(played(leader, play), [10])
    assert play.calls["commit_on"] == 1  # the second try was not sent
    assert numbers(leader) == numbers(follower) == list(range(10))


def test_a_fence_that_comes_second_copies_the_append_that_came_first(leader, follower):
    play = Play()
    play.commits(lambda go: (add(leader, [10]), go()))
    promote_topic(follower, TOPIC, played(leader, play))
    assert numbers(follower) == list(range(11))


def test_an_append_before_the_fence_whose_reply_was_lost_is_no_error(leader, follower):
    play = Play()
    play.commits(lambda go: committed_but_reply_lost(lambda: (go(), promote_topic(follower, TOPIC))))
    add(played(leader, play), [10])
    assert numbers(follower) == list(range(11))


def test_a_request_that_the_store_carries_out_late_comes_too_late(leader, follower):
    play, late = Play(), Late()
    play.commits(lambda go: (promote_topic(follower, TOPIC), late(go)))
    with pytest.raises(NotLeaderError):
        add(played(leader, play), [10])
    with pytest.raises(Exception, match=r"already exists|conflict|Failed to commit|version"):
        late.land()
    assert numbers(leader) == list(range(10))


def test_a_fence_whose_reply_was_lost_is_found(leader, follower):
    play = Play()
    play.commits(committed_but_reply_lost)
    promote_topic(follower, TOPIC, played(leader, play))
    assert leader.topic(TOPIC).snapshot.states["fence_version"] == str(leader.topic(TOPIC).snapshot.version)
    add(follower, [10])
    assert numbers(follower) == list(range(11))


def test_a_topic_that_was_made_anew_is_another_topic(leader, follower):
    """The follower's is the old one: neither is promoted over the other, before the fence or while it is set."""

    def made_anew(go=lambda: None):
        leader.delete_topic(TOPIC)
        leader.create_topic(TOPIC, 2)
        go()

    play = Play()
    play.commits(made_anew)
    for former in (played(leader, play), leader):
        with pytest.raises(DivergedLogError, match=r"not copies of one topic.*expected topic id"):
            promote_topic(follower, TOPIC, former)
    add(leader, [7])
    assert numbers(leader) == [7]


def test_a_fence_outlives_a_deletion_that_comes_after_it(leader, follower):
    """And so no topic of the name is made there behind the new leader's back."""
    promote_topic(follower, TOPIC)
    with pytest.raises(NotLeaderError, match=r"takes no delete"):
        leader.delete_topic(TOPIC)
    with pytest.raises(TopicExistsError):
        leader.create_topic(TOPIC)


def test_a_topic_that_its_leader_deleted_is_promoted_by_force_alone(leader, follower):
    leader.delete_topic(TOPIC)
    with pytest.raises(UnknownTopicError, match=r"leader of topic orders has deleted it.*--force"):
        promote_topic(follower, TOPIC)
    promote_topic(follower, TOPIC, force=True)
    add(follower, [10])
    assert numbers(follower) == list(range(11))
    with pytest.raises(NotLeaderError, match=r"takes no create"):
        leader.create_topic(TOPIC)


def test_a_restore_just_before_the_fence_is_what_the_new_leader_has(leader, follower):
    play = Play()
    play.commits(lambda go: (restore(leader, topics=[TOPIC], version=1), go()))
    promote_topic(follower, TOPIC, played(leader, play))
    assert numbers(follower) == numbers(leader) == list(range(6))
    assert follower.topic(TOPIC).offsets() == leader.topic(TOPIC).offsets()


def test_a_restore_of_a_version_before_the_fence_does_not_lift_it(leader, follower):
    before = leader.topic(TOPIC).snapshot.version
    promote_topic(follower, TOPIC)
    for version in (1, before):
        with pytest.raises(NotLeaderError, match=r"takes no restore"):
            restore(leader, topics=[TOPIC], version=version)


def test_an_import_in_its_midst_ends_at_the_fence(tmp_path, monkeypatch, limits):
    """What it had committed before is at the new leader; the rest is nowhere."""
    limits(IMPORT_WAVE_BYTES=1)  # a commit for each segment
    kafka = KafkaSide(tmp_path / "kafka")
    for _ in range(3):
        kafka.append([(b"a", True)] * 4)
        kafka.roll()
    source = kafka.write()
    leader = LogDir.create(str(tmp_path / "leader"))
    leader.create_topic("other")
    leader.import_kafka(source)
    kafka.append([(b"b", True)] * 4)
    kafka.roll()
    kafka.append([(b"c", True)] * 4)
    source = kafka.write()
    monkeypatch.setattr("verification.world.promoted_copies.TOPIC", kafka_side.TOPIC)
    follower = followed(leader)
    play = Play()
    play.commits(lambda go: go(), lambda go: (promote_topic(follower, kafka_side.TOPIC), go()))
    with pytest.raises(NotLeaderError, match=r"takes no import"):
        played(leader, play).import_kafka(source)
    ends = {
        name: log.topic(kafka_side.TOPIC).offsets()[0][1] for name, log in (("leader", leader), ("follower", follower))
    }
    assert ends["leader"] == ends["follower"] < 20
    with pytest.raises(NotLeaderError, match=r"takes no import"):
        leader.import_kafka(source)
