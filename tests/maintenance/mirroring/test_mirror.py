"""A follower is what its leader is, after whatever the leader's writers, jobs and people have done."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, StorageError, UnknownTopicError
from spark_segments.maintenance import compact, erase, restore, retain, roll, vacuum
from spark_segments.replicas import mirror as mirroring
from spark_segments.replicas.leader import Leader, LeaderVersion
from spark_segments.replicas.mirror import lags
from spark_segments.replicas.role import role_of
from tests.maintenance.slow_vacuum import SlowVacuum
from verification.world.clock import store_clock
from verification.world.followers import (
    TOPIC,
    appended,
    appended_often,
    assert_in_step,
    followers_of,
    is_deleted,
    led,
    mirrored,
    past_state,
    source_version,
    transactions,
)
from verification.world.manifest_rows import Segment, live_rows
from verification.world.opened import opened
from verification.world.promoted_copies import TopicMirror, promote_topic
from verification.world.small_limits import small_limits
from verification.world.stores.played_files import PlayedFiles
from verification.world.topics import DAY_MS, later

VACUUM = sys.modules["spark_segments.maintenance.removal.vacuum"]


@pytest.fixture
def leader(log) -> LogDir:
    return led(log)


def test_a_new_follower_is_the_leader_as_it_is(leader, follower):
    appended(leader, 40)
    roll(leader, now_ms=later(leader))
    appended(leader, 5, first=40, partition=1)
    report = mirrored(leader, follower)
    assert_in_step(leader, follower)
    (line,) = report["partitions"]
    assert (line["action"], line["commits"], line["jumps"], line["lag_commits"]) == ("mirrored", 1, 1, 0)
    states = follower.topic(TOPIC).snapshot.states
    assert states["source_uri"] == leader.uri
    assert states["source_commit_id"] == leader.topic(TOPIC).manifest.history()[-1]["commit_id"]


def test_a_follower_loses_what_has_expired_when_its_leader_does(leader, follower):
    """All of the active segment has expired: a leader rolls it, and removes it. Jobs at the follower do neither."""
    leader.topic(TOPIC).alter({"cleanup.policy": "delete", "retention.ms": "3600000"})
    appended(leader, 5)
    mirrored(leader, follower)
    before = follower.topic(TOPIC).offsets()
    for job in (roll, retain):
        assert "it is no leader" in job(follower, topics=[TOPIC], now_ms=later(leader)).failed[0]["error"]
        assert not job(follower, now_ms=later(leader)).failed  # of all topics: its mirror does what is due
    assert follower.topic(TOPIC).offsets() == before and before[0][0] == 0
    for job in (roll, retain):
        assert not job(leader, now_ms=later(leader)).failed
    mirrored(leader, follower)
    assert_in_step(leader, follower)
    assert all(start == end for start, end in follower.topic(TOPIC).offsets().values())


def test_each_commit_of_the_leader_is_a_commit_of_the_follower(leader, follower):
    mirrored(leader, follower)
    for number in range(4):
        appended(leader, 3, first=3 * number, partition=number % 2)
    report = mirrored(leader, follower)
    assert (report["details"]["commits"], report["details"]["jumps"]) == (4, 0)
    found = [follower.topic(TOPIC, version).snapshot for version in range(follower.topic(TOPIC).snapshot.version + 1)]
    assert [source_version(one) for one in found] == [0, 1, 2, 3, 4]
    assert [sum(row.records for row in Segment.of_table(one.live)) for one in found] == [0, 3, 6, 9, 12]


def test_a_topic_that_is_promoted_beside_a_mirror_ends_no_mirror(leader, follower, monkeypatch):
    mirrored(leader, follower)
    run = TopicMirror.run

    def promoted_since(one):
        monkeypatch.undo()  # a promotion mirrors, too
        reached = run(one)
        promote_topic(follower, one.topic, leader)
        return reached

    monkeypatch.setattr(TopicMirror, "run", promoted_since)
    [line] = mirrored(leader, follower)["partitions"]
    assert line["action"] == "promoted"


def test_in_step_nothing_is_committed(leader, follower):
    appended(leader)
    mirrored(leader, follower)
    version = follower.topic(TOPIC).snapshot.version
    assert mirrored(leader, follower)["partitions"][0]["action"] == "in step"
    assert follower.topic(TOPIC).snapshot.version == version


def _roll(log: LogDir) -> None:
    roll(log, now_ms=later(log))


def _retain(log: LogDir) -> None:
    log.topic(TOPIC).alter({"retention.bytes": "3000"})
    retain(log)


def _compact(log: LogDir) -> None:
    log.topic(TOPIC).alter({"cleanup.policy": "compact,delete"})
    compact(log, force=True)


def _restore(log: LogDir) -> None:
    appended(log, 5, first=80)
    restore(log, topics=[TOPIC], version=log.topic(TOPIC).snapshot.version - 1)


def _make_again(log: LogDir) -> None:
    log.delete_topic(TOPIC)
    log.create_topic(TOPIC, 3, {"segment.bytes": "5000"})
    appended(log, 4, partition=2)


def _delete_and_restore(log: LogDir) -> None:
    version = log.topic(TOPIC).snapshot.version
    log.delete_topic(TOPIC)
    restore(log, topics=[TOPIC], version=version)


def _erase(log: LogDir) -> None:
    erase(log, topics=[TOPIC], keys=[b"3"])


CHANGES = {
    "an append with a transaction": lambda log: log.topic(TOPIC).append(pa.table({"value": [b"x"]}), txn=("app", 7)),
    "a roll": _roll,
    "retention": _retain,
    "compaction": _compact,
    "deleted records": lambda log: log.topic(TOPIC).delete_records({0: 20}),
    "a setting": lambda log: log.topic(TOPIC).alter({"retention.ms": "1000"}),
    "more partitions": lambda log: log.topic(TOPIC).alter(partitions=4),
    "a restore": _restore,
    "a deletion that was undone": _delete_and_restore,
    "a topic made again": _make_again,
    "erasure": _erase,
    "vacuum": lambda log: vacuum(log, now_ms=later(log)),
    "merged files of the manifest": lambda log: log.topic(TOPIC).manifest.merge_files(),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("jump", [False, True], ids=["steps", "jump"])
def test_what_happens_to_the_leader_happens_to_the_follower(leader, follower, change, jump, limits):
    for number in range(4):
        appended(leader, 20, first=20 * number)
    _roll(leader)
    appended(leader, 3, first=80, partition=1)
    mirrored(leader, follower)
    change(leader)
    if jump:
        limits(MOST_STEPS=0)
    mirrored(leader, follower)
    assert_in_step(leader, follower)
    appended(leader, 3, first=83)
    mirrored(leader, follower)
    assert_in_step(leader, follower)


def test_at_every_commit_the_follower_is_a_past_state_of_the_leader(leader, follower):
    for number, change in enumerate(CHANGES.values()):
        appended(leader, 10, first=10 * number)
        _roll(leader)
        change(leader)
        mirrored(leader, follower)
        assert past_state(leader, follower)


def test_a_deleted_topic_is_deleted_at_the_follower_and_its_files_wait_for_vacuum(leader, follower):
    appended(leader)
    mirrored(leader, follower)
    leader.delete_topic(TOPIC)
    mirrored(leader, follower)
    assert follower.topics() == []
    assert is_deleted(follower)
    rows = Segment.of_table(follower.topic(TOPIC).manifest.snapshot(deleted=True).segments)
    assert [row.state for row in rows] == ["removed"]
    assert all(follower.storage.exists(row.path) for row in rows)
    mirrored(leader, follower)


def test_a_topic_that_was_deleted_before_it_was_ever_mirrored_is_left_out(leader, follower):
    leader.delete_topic(TOPIC)
    assert mirrored(leader, follower)["partitions"] == []
    with pytest.raises(UnknownTopicError):
        _ = follower.topic(TOPIC).snapshot


def test_only_topics_of_the_patterns_are_mirrored(leader, follower):
    for name in ("orders-eu", "prices", "audit"):
        leader.create_topic(name)
    mirrored(leader, follower, "orders*", "audit")
    assert follower.topics() == ["audit", "orders", "orders-eu"]


def test_removed_files_stay_for_the_followers_own_delay(leader, follower):
    appended_often(leader)
    mirrored(leader, follower)
    before = live_rows(follower, TOPIC)
    _roll(leader)
    vacuum(leader, now_ms=later(leader))
    assert not any(leader.storage.exists(row.path) for row in before)
    mirrored(leader, follower)
    assert_in_step(leader, follower, same_paths=False)  # who knows the leader's old rows no more takes own paths
    vacuum(follower)
    assert all(follower.storage.exists(row.path) for row in before)
    vacuum(follower, now_ms=later(follower))
    assert not any(follower.storage.exists(row.path) for row in before)
    assert_in_step(leader, follower, same_paths=False)


@pytest.mark.cases(1)
@pytest.mark.parametrize("vacuumed", ["not at all", "in part", "whole"])
def test_what_a_restore_brings_back_is_there_though_the_followers_vacuum_took_it(leader, follower, vacuumed):
    leader.topic(TOPIC).alter({"file.delete.delay.ms": "0"})
    appended_often(leader)
    version = leader.topic(TOPIC).snapshot.version
    mirrored(leader, follower)
    before = live_rows(follower, TOPIC)
    _roll(leader)
    mirrored(leader, follower)
    if vacuumed == "in part":
        killed = PlayedFiles(delete=lambda paths, go: (_ for _ in ()).throw(OSError("killed")))
        assert vacuum(opened(follower, killed), now_ms=later(follower)).failed
    elif vacuumed == "whole":
        assert not vacuum(follower, now_ms=later(follower)).failed
    restore(leader, topics=[TOPIC], version=version)
    mirrored(leader, follower)
    assert_in_step(leader, follower, same_paths=vacuumed == "not at all")
    after = live_rows(follower, TOPIC)
    # A path that a vacuum may yet delete is not used again.
    assert {row.path for row in after}.isdisjoint(row.path for row in before) == (vacuumed != "not at all")
    assert not vacuum(follower, now_ms=later(follower)).failed
    assert_in_step(leader, follower, same_paths=vacuumed == "not at all")
    _roll(leader)
    mirrored(leader, follower)
    assert_in_step(leader, follower)


@pytest.mark.cases(1)
@pytest.mark.parametrize("jump", [False, True], ids=["steps", "jump"])
@pytest.mark.parametrize("through", ["a leader", "a follower"])
def test_a_slow_vacuum_does_not_delete_what_a_restore_has_brought_back(leader, follower, limits, jump, through):
    """Its row is gone by then: another vacuum has dropped it."""
    leader.topic(TOPIC).alter({"file.delete.delay.ms": "0"})
    source = leader if through == "a leader" else followers_of(leader, "between")

    def in_step() -> None:
        if source is not leader:
            mirrored(leader, source)
        mirrored(source, follower)

    appended_often(leader)
    version = leader.topic(TOPIC).snapshot.version
    in_step()
    _roll(leader)
    in_step()
    slow = SlowVacuum(follower, later(follower))
    assert not vacuum(follower, now_ms=later(follower)).failed
    restore(leader, topics=[TOPIC], version=version)
    if source is not leader:
        mirrored(leader, source)
    appended(leader, 3, first=36, partition=1)
    if source is not leader:
        mirrored(leader, source)
    if jump:
        limits(MOST_STEPS=0)
    mirrored(source, follower)
    slow.goes_on()
    assert_in_step(source, follower, same_paths=False)
    appended(leader, 3, first=39, partition=1)
    in_step()
    mine, theirs = (live_rows(log, TOPIC)[-1] for log in (follower, source))
    assert mine == theirs  # what was never here has its leader's path


def test_rows_that_a_vacuum_of_the_leader_takes_while_they_are_read_are_read_anew(leader, follower, monkeypatch):
    appended(leader)
    mirrored(leader, follower)
    appended(leader, first=10)
    read, vacuumed = Leader.latest, []

    def latest(one: Leader) -> LeaderVersion:
        if not vacuumed:
            vacuumed.append(True)
            raise FileNotFoundError(errno.ENOENT, "No such file", "_manifest/orders/kind=transaction/part-1.parquet")
        return read(one)

    monkeypatch.setattr(Leader, "latest", latest)
    mirrored(leader, follower)
    assert_in_step(leader, follower)


def test_the_versions_that_vacuum_took_at_the_leader_are_jumped_over(leader, follower):
    mirrored(leader, follower)
    for number in range(25):
        appended(leader, 2, first=2 * number)
    _roll(leader)
    with small_limits(COMMIT_LOG_MS=-DAY_MS):
        vacuum(leader, now_ms=later(leader))
    report = mirrored(leader, follower)
    assert (report["details"]["commits"], report["details"]["jumps"]) == (1, 1)
    assert_in_step(leader, follower)


def test_a_follower_has_the_leaders_idempotency_keys_and_forgets_them_by_itself(log):
    log.create_topic(TOPIC, config={"transactional.id.expiration.ms": str(DAY_MS)})
    follower = followers_of(log)
    begin_ms = log.storage.now_ms()
    for hour in range(4):
        with store_clock(begin_ms + hour * DAY_MS // 3):
            log.topic(TOPIC).append(pa.table({"value": [b"%d" % hour]}), once=f"hour {hour}")
            mirrored(log, follower)
    assert {name: ms - begin_ms for name, ms in transactions(follower, TOPIC).items()} == {
        f"@once/hour {hour}": hour * DAY_MS // 3 for hour in range(4)
    }
    with store_clock(begin_ms + 2 * DAY_MS):  # the follower writes its rows anew, those of the leader stay
        follower_version = follower.topic(TOPIC).version
        log.topic(TOPIC).append(pa.table({"value": [b"4"]}), txn=("app", 1))
        mirrored(log, follower)
        assert [*transactions(follower, TOPIC)] == ["@once/hour 3", "app"]
        mirrored(log, follower)
        assert follower.topic(TOPIC).version == follower_version + 1
        promote_topic(follower, TOPIC, log)
        assert follower.topic(TOPIC).append(pa.table({"value": [b"3"]}), once="hour 3") == {}
        assert follower.topic(TOPIC).append(pa.table({"value": [b"0"]}), once="hour 0") == {0: (5, 5)}


def test_runs_of_shared_objects_are_mirrored_with_their_objects(log):
    log.create_topic(TOPIC, 12)
    follower = followers_of(log)
    for number in range(3):
        values = pa.array([b"%d" % at for at in range(24)], pa.binary())
        log.topic(TOPIC).append(pa.table({"value": values, "partition": pa.array([*range(12)] * 2, pa.int32())}))
        if number == 1:
            mirrored(log, follower)
    assert all(row.is_shared for row in live_rows(log, TOPIC))
    mirrored(log, follower)
    assert_in_step(log, follower)
    _roll(log)
    mirrored(log, follower)
    assert_in_step(log, follower)


def test_a_follower_can_be_followed(leader, follower):
    appended(leader)
    mirrored(leader, follower)
    third = followers_of(leader, "third")
    mirrored(follower, third)
    assert_in_step(follower, third)
    assert role_of(third.topic(TOPIC).snapshot).source.uri == follower.uri


def test_the_lag_is_in_commits_records_and_time(leader, follower):
    appended(leader)
    mirrored(leader, follower)
    assert lags(leader, follower)[TOPIC].commits == 0
    appended(leader, 3)
    appended(leader, 4, partition=1)
    lag = lags(leader, follower)[TOPIC]
    assert (lag.commits, lag.records, lag.leader_version - lag.source_version) == (2, 7, 2)
    first = leader.topic(TOPIC).manifest.history()[-2]["committed_ms"]
    assert 0 <= leader.storage.now_ms() - first - lag.lag_ms < 60_000


def test_there_is_no_lag_behind_another_log(leader, follower, tmp_path):
    other = led(LogDir.create(str(tmp_path / "other")))
    for _ in range(2):
        appended(leader)
    mirrored(leader, follower)
    for _ in range(3):  # a lower version, the same and a higher one
        found = lags(other, follower)[TOPIC]
        assert isinstance(found, LogDirError) and "not the log that the follower has mirrored" in str(found)
        appended(other)


def test_the_lag_behind_a_topic_that_was_made_again_in_another_table_counts_all_of_it(leader, follower):
    for _ in range(3):
        appended(leader)
    mirrored(leader, follower)
    for directory in ("_manifest", "_recovery"):  # marks of commits that no manifest has would stop the new topic
        shutil.rmtree(Path(leader.uri, directory, TOPIC))
    leader.create_topic(TOPIC, 2)
    appended(leader, 4)
    lag = lags(leader, follower)[TOPIC]
    assert (lag.leader_version, lag.commits, lag.records) == (1, 2, 4)
    mirrored(leader, follower)
    assert_in_step(leader, follower)
    assert lags(leader, follower)[TOPIC].commits == 0


def test_a_lag_that_cannot_be_read_takes_nothing_from_the_report(leader, follower, monkeypatch):
    leader.create_topic("prices")
    appended(leader, 5)
    lag_of = mirroring.lag_of

    def away(one, *arguments):
        if one.topic == TOPIC:
            raise StorageError("The store does not answer", path=one.uri)
        return lag_of(one, *arguments)

    monkeypatch.setattr(mirroring, "lag_of", away)
    report = mirrored(leader, follower)
    lines = {line["topic"]: line for line in report["partitions"]}
    assert {name: line["action"] for name, line in lines.items()} == {TOPIC: "mirrored", "prices": "mirrored"}
    assert (lines[TOPIC]["records_out"], lines["prices"]["lag_commits"]) == (5, 0) and "lag_commits" not in lines[TOPIC]
    [warning] = report["warnings"]
    assert f"topic {TOPIC} is behind" in warning and "does not answer" in warning
