"""An erasure at the leader takes the bytes at its followers as soon as there, and nobody restores them unasked."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import ErasedRecordsError
from spark_segments.keys.index_list import IndexFiles
from spark_segments.keys.look_up import KeyIndexes
from spark_segments.log.manifest.state.states import Erasure
from spark_segments.maintenance import compact, erase, index, restore, roll, vacuum
from spark_segments.maintenance.erasure.copies import key_account
from verification.world.clock import store_clock
from verification.world.followers import TOPIC, appended, assert_in_step, followers_of, led, mirrored
from verification.world.opened import LocalFiles, opened
from verification.world.promoted_copies import promote_topic
from verification.world.topics import DAY_MS, later

SECRET = b"a secret of ada"


def appended_secret(leader: LogDir) -> None:
    columns = {"key": pa.array([b"ada", b"bob"], pa.binary()), "value": pa.array([SECRET, b"bobs own"], pa.binary())}
    leader.topic(TOPIC).append(pa.table(columns | {"partition": pa.array([0, 0], pa.int32())}))


def files_with(log: LogDir, data: bytes) -> list[str]:
    return sorted(str(path) for path in Path(log.uri).rglob("*") if path.is_file() and data in path.read_bytes())


@pytest.fixture
def leader(log) -> LogDir:
    led(log, **{"file.delete.delay.ms": DAY_MS})
    appended(log, 3)
    appended_secret(log)
    return log


@pytest.fixture
def follower(leader) -> LogDir:
    follower = followers_of(leader)
    mirrored(leader, follower)
    assert len(files_with(follower, SECRET)) == 1
    return follower


@pytest.fixture(params=[False, True], ids=["step by step", "in a jump"])
def jumps(request, limits) -> bool:
    if request.param:
        limits(MOST_STEPS=0)
    return request.param


@pytest.mark.cases(1)
def test_what_the_leader_deleted_at_once_is_deleted_at_the_follower_by_the_mirror(leader, follower, jumps):
    roll(leader, now_ms=later(leader, 30))  # the chunks are removed files from now on
    mirrored(leader, follower)
    assert len(files_with(follower, SECRET)) == 2
    appended(leader, 2, first=10)
    erase(leader, topics=[TOPIC], keys=[b"ada"], history=True)
    appended(leader, 2, first=12)
    assert files_with(leader, SECRET) == []
    mirrored(leader, follower)
    assert files_with(follower, SECRET) == []
    assert len(files_with(follower, b"bobs own")) == len(files_with(leader, b"bobs own"))
    assert_in_step(leader, follower)


def test_a_late_follower_deletes_erased_bytes_when_the_leader_does(leader, follower, jumps):
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    erased_ms = leader.storage.now_ms()
    with store_clock(erased_ms + DAY_MS // 2):
        mirrored(leader, follower)
    vacuum(follower, now_ms=erased_ms + DAY_MS - 60_000)
    assert len(files_with(follower, SECRET)) == 1
    vacuum(follower, now_ms=erased_ms + DAY_MS + 1)
    assert files_with(follower, SECRET) == []


def test_a_follower_that_comes_after_the_leaders_vacuum_needs_one_vacuum_and_no_time(leader, follower, jumps):
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    later_ms = later(leader, 1) + 60_000
    vacuum(leader, now_ms=later_ms)
    assert files_with(leader, SECRET) == []
    with store_clock(later_ms):
        mirrored(leader, follower)
        vacuum(follower)
    assert files_with(follower, SECRET) == []
    assert_in_step(leader, follower, same_paths=False)  # who knows the leader's old rows no more takes own paths


def test_the_account_at_the_leader_names_its_followers_and_theirs_names_their_files(leader, follower):
    assert key_account(leader, TOPIC, b"ada").followers == (follower.uri,)
    appended(leader, 3)
    mirrored(leader, follower)
    assert key_account(leader, TOPIC, b"ada").followers == (follower.uri,)
    account = key_account(follower, TOPIC, b"ada")
    assert [f"{follower.uri}/{copy.path}" for copy in account.copies] == files_with(follower, SECRET)
    assert account.followers == ()


def test_a_leader_that_takes_no_note_is_mirrored_with_a_warning(leader):
    source = opened(leader.uri, NoNotes())
    follower = followers_of(leader)
    report = mirrored(source, follower)
    assert_in_step(leader, follower)
    [warning] = report["warnings"]
    assert f"do not name the follower {follower.uri} of topic {TOPIC}" in warning


class NoNotes(LocalFiles):
    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        if "_followers" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        super().create(path, data, is_forced=is_forced)


def test_a_promoted_follower_refuses_to_restore_what_its_leader_erased(leader, follower, jumps):
    before = follower.topic(TOPIC).snapshot.version
    erase(leader, topics=[TOPIC], keys=[b"ada", b"cyd"])
    mirrored(leader, follower)
    [erasure] = Erasure.of(follower.topic(TOPIC).snapshot)
    assert (erasure.version, erasure.keys) == (follower.topic(TOPIC).snapshot.version, 2)
    promote_topic(follower, TOPIC, leader)
    with pytest.raises(ErasedRecordsError, match=rf"version {erasure.version} of .*2 keys"):
        restore(follower, topics=[TOPIC], version=before)


def test_commits_without_an_erasure_leave_readers_of_the_follower_their_time(leader, follower):
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    mirrored(leader, follower)
    roll(leader, now_ms=later(leader, 30))
    vacuum(leader, now_ms=later(leader, 2))
    mirrored(leader, follower)
    vacuum(follower)
    assert len(files_with(leader, b"bobs own")) == 1
    assert len(files_with(follower, b"bobs own")) > 1


def test_an_erased_key_leaves_the_followers_index_of_keys_with_the_mirror(leader, follower, jumps):
    index(follower)
    before = live_runs(follower)
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    mirrored(leader, follower)
    assert live_runs(follower) < before
    follower_index = IndexFiles(follower.storage, TOPIC)
    number = follower_index.newest_list().number
    mirrored(leader, follower)
    assert follower_index.newest_list().number == number


def test_a_key_that_compaction_took_before_leaves_the_followers_index_with_the_mirror(leader, follower, jumps):
    leader.topic(TOPIC).append([{"key": b"bob", "value": b"other", "partition": 0}])
    index(leader)
    mirrored(leader, follower)
    index(follower)
    before = live_runs(follower)
    leader.topic(TOPIC).alter({"cleanup.policy": "compact"})
    leader.topic(TOPIC).append([{"key": b"ada", "partition": 0, "value": None}])
    roll(leader, now_ms=later(leader, 30))
    compact(leader, force=True, now_ms=later(leader, 90))
    compact(leader, force=True, now_ms=later(leader, 120))
    mirrored(leader, follower)
    assert b"ada" not in leader.topic(TOPIC).scan(0).to_table().column("key").to_pylist()
    assert live_runs(follower) == before
    version = leader.topic(TOPIC).version
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    assert leader.topic(TOPIC).version == version + 1
    mirrored(leader, follower)
    assert not before & live_runs(follower)
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    assert leader.topic(TOPIC).version == version + 1, "the index has the key no more"


def test_a_mirror_that_was_killed_before_the_index_forgot_is_made_good_by_the_next(leader, follower, monkeypatch):
    index(follower)
    before = live_runs(follower)
    erase(leader, topics=[TOPIC], keys=[b"ada"])
    with monkeypatch.context() as patched:
        patched.setattr(KeyIndexes, "forget_erased", lambda *_, **__: None)
        mirrored(leader, follower)
    assert live_runs(follower) == before
    mirrored(leader, follower)
    assert live_runs(follower) < before


def live_runs(log: LogDir) -> set[str]:
    return {run.path for run in IndexFiles(log.storage, TOPIC).newest_list().runs}
