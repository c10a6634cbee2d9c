"""Copies of files: whole, checked, and never in the way of another mirror or of vacuum."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.maintenance import mirror, roll, vacuum
from spark_segments.replicas.leader import Leader
from verification.world.followers import (
    TOPIC,
    appended,
    appended_often,
    assert_in_step,
    led,
    mirrored,
    source_version,
)
from verification.world.manifest_rows import live_rows
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, later


@pytest.fixture
def leader(log) -> LogDir:
    led(log)
    appended_often(log)
    roll(log, now_ms=later(log))
    return log


def copy_without_commit(leader: LogDir, follower: LogDir) -> None:
    """As a mirror that is killed before its commit."""
    play = Play()
    play.always("create", lambda topic, go: (_ for _ in ()).throw(StorageError("killed")))
    assert mirror(opened(follower, open_delta_log=play), leader=leader).failed


def logs(log: LogDir) -> list[Path]:
    return sorted(Path(log.uri).rglob("*.log"))


@pytest.mark.cases(1)
def test_what_a_killed_run_had_copied_is_not_copied_again(leader, follower):
    copy_without_commit(leader, follower)
    there = logs(follower)
    report = mirrored(leader, follower)
    assert report["bytes_in"] == 0 and report["bytes_out"] > 0
    assert logs(follower) == there
    assert_in_step(leader, follower)


@pytest.mark.cases(1)
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_what_a_killed_run_left_unfinished_stands_in_nobodys_way(leader, follower, suffix, damage):
    copy_without_commit(leader, follower)
    path = next(path for path in Path(follower.uri).rglob(f"*{suffix}") if path.stat().st_size)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    mirrored(leader, follower)
    assert_in_step(leader, follower, same_paths=False)
    assert path.exists() == (damage != "gone" or suffix == ".log")  # only vacuum deletes


def test_files_of_a_killed_run_that_vacuum_may_take_are_not_used(leader, follower):
    copy_without_commit(leader, follower)
    old = logs(follower)
    for path in old:
        seconds = path.stat().st_mtime - 6 * DAY_MS / 1000
        os.utime(path, (seconds, seconds))
    mirrored(leader, follower)
    assert not {str(path.relative_to(follower.uri)) for path in old} & {row.path for row in live_rows(follower, TOPIC)}


def test_a_damaged_batch_of_the_leader_stops_the_topic_and_not_the_others(leader, follower):
    leader.create_topic("prices")
    mirrored(leader, follower)
    appended(leader, 10)
    row = live_rows(leader, TOPIC)[-1]
    path = Path(leader.uri, row.path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    appended(leader, 1, topic="prices")
    version = follower.topic(TOPIC).snapshot.version
    (line,) = mirror(follower, leader=leader).failed
    assert leader.uri in line["error"] and "segments verify" in line["error"]
    assert follower.topic(TOPIC).snapshot.version == version
    assert_in_step(leader, follower, "prices")


def test_a_copy_that_is_not_what_was_read_is_found(leader, follower):
    class Zeros:
        """A file of as many bytes as are written to it, all of them zero."""

        def __init__(self, file) -> None:
            self._file = file

        def __getattr__(self, name: str):
            return getattr(self._file, name)

        def write(self, data) -> None:
            self._file.write(bytes(memoryview(data).nbytes))

    files = PlayedFiles(stream=lambda path, go: Zeros(go()) if path.endswith(".index") else go())
    (line,) = mirror(opened(follower, files), leader=leader).failed
    assert "A copy is not what was read" in line["error"]
    mirrored(leader, follower)
    assert_in_step(leader, follower, same_paths=False)


def test_of_two_mirrors_at_once_both_end_in_step(leader, follower):
    play = Play()
    play.next("create", lambda go: (mirrored(leader, follower), go())[1])
    mirrored(leader, opened(follower, open_delta_log=play))
    assert_in_step(leader, follower)
    assert follower.topic(TOPIC).snapshot.version == 0


def test_a_mirror_that_comes_late_does_not_bring_back_a_topic_that_was_made_again_since(leader, follower):
    mirrored(leader, follower)
    appended(leader, 5)
    latest = Leader.latest
    waiting = [1]

    def overtaken(one: Leader):
        found = latest(one)
        if waiting:
            waiting.pop()
            leader.delete_topic(TOPIC)
            leader.create_topic(TOPIC, 3)
            appended(leader, 4, partition=2)
            mirrored(leader, follower)
        return found

    with mock.patch.object(Leader, "latest", overtaken):
        mirrored(leader, follower)
    assert_in_step(leader, follower)


def test_files_that_go_at_the_leader_while_they_are_copied_make_it_jump(leader, follower):
    mirrored(leader, follower)
    for number in range(4):
        appended(leader, 5, first=5 * number)
    waiting = [1]

    def vacuumed(_, go):
        if waiting:
            waiting.pop()
            roll(leader, now_ms=later(leader))
            vacuum(leader, now_ms=later(leader))
        return go()

    report = mirrored(leader, opened(follower, PlayedFiles(stream=vacuumed)))
    assert report["details"]["jumps"] == 1
    assert_in_step(leader, follower, same_paths=False)  # who knows the leader's old rows no more takes own paths


def test_a_vacuum_of_the_follower_between_plan_and_commit_is_no_harm(leader, follower):
    mirrored(leader, follower)
    roll(leader, now_ms=later(leader))
    appended(leader, 5)
    later_ms = later(follower)
    play = Play().before_commits(*[lambda: vacuum(follower, now_ms=later_ms)] * 4)
    mirrored(leader, opened(follower, open_delta_log=play))
    assert play.calls["commit_on"]
    assert_in_step(leader, follower)
    assert source_version(follower.topic(TOPIC).snapshot) == leader.topic(TOPIC).snapshot.version
