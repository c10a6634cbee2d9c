"""What a follower refuses, before any work is done; and what a mirror refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, NotLeaderError
from spark_segments.log.appending.append import append_target
from spark_segments.maintenance import compact, erase, mirror, restore, retain, roll, vacuum, verify
from verification.world.followers import (
    TOPIC,
    appended,
    assert_in_step,
    followers_of,
    led,
    mirrored,
)
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.log_copies import copy_of
from verification.world.opened import opened
from verification.world.small_limits import small_limits
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, later


@pytest.fixture
def leader(log) -> LogDir:
    led(log, **{"cleanup.policy": "compact,delete", "retention.bytes": 0})
    for number in range(3):
        appended(log, 30, first=30 * number)
    return log


@pytest.fixture
def follower(leader) -> LogDir:
    follower = followers_of(leader)
    mirrored(leader, follower)
    return follower


def files(log: LogDir) -> set[str]:
    return {str(file) for file in Path(log.uri).rglob("*") if file.is_file()}


REFUSED = {
    "append": lambda log: log.topic(TOPIC).append(pa.table({"key": [b"k"], "value": [b"x"]})),
    "a writer of Spark": lambda log: append_target(log, TOPIC),
    "alter": lambda log: log.topic(TOPIC).alter({"retention.ms": "5"}),
    "delete": lambda log: log.delete_topic(TOPIC),
    "delete by force": lambda log: log.delete_topic(TOPIC, force=True),
    "delete-records": lambda log: log.topic(TOPIC).delete_records({0: 5}),
    "restore": lambda log: restore(log, topics=[TOPIC], version=0),
    "erase": lambda log: erase(log, topics=[TOPIC], keys=[b"3"]),
    "repair": lambda log: verify(log, topics=[TOPIC], repair=True),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("work", REFUSED.values(), ids=REFUSED.keys())
def test_a_follower_refuses_changes_before_anything_is_written(leader, follower, work):
    before, version = files(follower), follower.topic(TOPIC).snapshot.version
    with pytest.raises(NotLeaderError, match="it is no leader") as refused:
        work(follower)
    assert leader.uri in str(refused.value)
    assert (files(follower), follower.topic(TOPIC).snapshot.version) == (before, version)


@pytest.mark.parametrize("job", [roll, retain, compact])
def test_a_follower_refuses_jobs_before_anything_is_written(leader, follower, job):
    before = files(follower)
    report = job(follower, topics=[TOPIC], now_ms=later(follower))
    (line,) = report.failed
    assert line["topic"] == TOPIC and "it is no leader" in line["error"] and leader.uri in line["error"]
    assert files(follower) == before


@pytest.mark.parametrize("topics", [None, ["*"]], ids=["all topics", "a pattern"])
def test_the_upkeep_of_all_topics_leaves_followers_to_their_mirror(leader, follower, topics):
    """A follower gets what its leader's jobs do. Vacuum alone has work at both."""
    own = follower.create_topic("own", config={"cleanup.policy": "compact,delete"})
    own.append([{"key": "a", "value": "1"}])
    version = follower.topic(TOPIC).snapshot.version
    for job in (roll, retain, compact):
        report = job(follower, topics=topics, now_ms=later(follower))
        assert report.failed == [] and {line["topic"] for line in report.partitions} <= {"own"}
    assert list(own.snapshot.live_of(0)) == []
    assert follower.topic(TOPIC).snapshot.version == version
    reports = follower.maintain(topics)
    assert [report.failed for report in reports] == [[]] * 4
    mirrored(leader, follower)
    assert_in_step(leader, follower, TOPIC)


def test_an_erasure_in_all_topics_fails_at_a_follower(leader, follower):
    with pytest.raises(NotLeaderError, match=leader.uri):
        erase(follower, topics=["*"], keys=[b"no such key"])


def test_a_follower_refuses_an_import(tmp_path):
    leader = LogDir.create(str(tmp_path / "log"))
    leader.import_kafka(str(GOLDEN / "broker-data"))
    follower = followers_of(leader)
    mirrored(leader, follower)
    topic = leader.topics()[0]
    with pytest.raises(LogDirError, match="it is no leader"):
        follower.import_kafka(str(GOLDEN / "broker-data"))
    assert_in_step(leader, follower, topic)


def test_vacuum_runs_on_a_follower(follower):
    assert not vacuum(follower, now_ms=later(follower)).failed


def failure(source: LogDir, target: LogDir) -> str:
    (line,) = mirror(target, leader=source).failed
    return line["error"]


def test_a_topic_that_stands_alone_is_not_taken_over(leader):
    other = followers_of(leader, "other")
    other.create_topic(TOPIC)
    assert "follows no other" in failure(leader, other)
    assert other.topic(TOPIC).snapshot.states == {}


def test_another_log_directory_with_a_topic_of_the_name_is_refused(leader, follower, tmp_path):
    other = LogDir.create(str(tmp_path / "other"))
    other.create_topic(TOPIC)
    assert "not the log that the follower has mirrored" in failure(other, follower)
    assert_in_step(leader, follower)


def test_a_leader_that_went_back_to_a_copy_of_itself_is_refused(leader, follower, tmp_path):
    backup = copy_of(leader, tmp_path / "backup")
    appended(leader)
    mirrored(leader, follower)
    assert "no such version" in failure(backup, follower)
    appended(backup)
    assert "not the log that the follower has mirrored" in failure(backup, follower)
    assert_in_step(leader, follower)


def test_a_leader_that_went_back_is_refused_though_it_has_forgotten_which_commits_it_had(leader, follower, tmp_path):
    backup = copy_of(leader, tmp_path / "backup")
    appended(leader, 5, first=90)
    mirrored(leader, follower)
    shutil.rmtree(leader.uri)
    backup = copy_of(backup, Path(leader.uri))
    for number in range(25):
        appended(backup, 2, first=100 + 2 * number)
    roll(backup, now_ms=later(backup))
    with small_limits(COMMIT_LOG_MS=-DAY_MS):
        assert not vacuum(backup, now_ms=later(backup)).failed
    assert "from offset 90 of orders-0 on" in failure(backup, follower)
    assert follower.topic(TOPIC).offsets()[0] == (0, 95)


def test_a_leader_that_was_moved_is_followed_on(leader, follower, tmp_path):
    moved = copy_of(leader, tmp_path / "moved")
    appended(moved)
    mirrored(moved, follower)
    assert_in_step(moved, follower)


def test_a_mirror_ends_where_another_one_brings_the_follower_a_commit_of_a_copy_of_its_leader(
    leader, follower, tmp_path
):
    """The copy has gone on by itself: what follows at the leader does not follow on that commit."""
    other = copy_of(leader, tmp_path / "other")
    appended(other, 7, first=200)
    for number in range(2):
        appended(leader, 5, first=100 + 5 * number)
    play = Play()
    play.commits(lambda go: (mirrored(other, follower), go())[1])
    assert "not the log that the follower has mirrored" in failure(leader, opened(follower, open_delta_log=play))
    assert_in_step(other, follower)


def test_a_leader_without_the_topic_keeps_the_follower(leader, follower):
    for file in Path(leader.uri, "_manifest", TOPIC).rglob("*.json"):
        file.unlink()
    Path(leader.uri, "_manifest", TOPIC).rename(Path(leader.uri, "elsewhere"))
    report = mirror(follower, leader=leader)
    assert report.warnings and TOPIC in report.warnings[0] and follower.topics() == [TOPIC]


def test_places_that_cannot_be_mirrored_are_named(leader, tmp_path):
    with pytest.raises(LogDirError, match="cannot follow itself"):
        mirror(leader, leader=leader)
    kafka = LogDir.open(str(GOLDEN / "broker-data"))
    with pytest.raises(LogDirError, match="Kafka wrote"):
        mirror(followers_of(leader), leader=kafka)
