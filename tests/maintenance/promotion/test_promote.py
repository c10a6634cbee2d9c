"""Promotion: resumable at each step, with nothing lost, and with the role in one place only."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    LogDirError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SegmentsError,
    StorageError,
)
from spark_segments.maintenance import roll
from spark_segments.replicas.role import role_of
from verification.rebuild.lost import rebuild_manifest
from verification.world.group_readers import check_position, moved
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.opened import opened
from verification.world.promoted_copies import (
    LATER_MS,
    STEPS,
    TOPIC,
    add,
    assert_equal,
    epochs,
    followed,
    in_step,
    mirrored_again,
    numbers,
    played,
    promote_topic,
    taken_away,
)
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.stores.s3_server import BUCKET


class Killed(BaseException):
    """The process died."""


def test_a_promoted_follower_has_all_that_its_leader_had_and_leads_in_a_new_epoch(leader, follower):
    add(leader, [10, 11])  # after the last mirror
    done = promote_topic(follower, TOPIC)
    assert (done.steps, done.is_fenced, done.left_behind) == (STEPS, True, ())
    assert done.leader_epochs == {0: (1, 12), 1: (1, 1)}
    add(follower, [12])
    assert numbers(follower) == list(range(13))
    assert epochs(follower) == ((0, 0), (1, 12))
    assert dict(follower.topic(TOPIC).snapshot.states)["role"] == "leader"


def test_batches_carry_the_epoch_of_the_leader_that_took_them(leader, follower):
    """Chunks of the former leader are rolled by the new one."""
    promote_topic(follower, TOPIC)
    add(follower, [10])
    roll(follower, now_ms=LATER_MS)
    [segment] = follower.topic(TOPIC).snapshot.live_of(0)
    batches = batches_of(follower.storage.read(segment.path))
    found = list(zip(batches.base_offset.tolist(), batches.leader_epoch.tolist(), strict=True))
    assert found == [(0, 0), (6, 0), (10, 1)]


def test_a_dry_run_says_what_a_promotion_would_do_and_changes_nothing(leader, follower):
    add(leader, [10])  # a promotion would copy it
    versions = [log.topic(TOPIC).snapshot.version for log in (leader, follower)]
    done = promote_topic(follower, TOPIC, dry_run=True)
    assert (done.steps, done.former_uri, done.leader_epochs[0]) == (STEPS, leader.uri, (1, 11))
    assert [log.topic(TOPIC).snapshot.version for log in (leader, follower)] == versions


def test_a_promotion_is_done_once(leader, follower):
    promote_topic(follower, TOPIC)
    add(follower, [10])
    version = follower.topic(TOPIC).snapshot.version
    again = promote_topic(follower, TOPIC)
    assert (again.steps, again.is_fenced, again.leader_epochs[0]) == ((), True, (1, 10))
    assert follower.topic(TOPIC).snapshot.version == version


@pytest.mark.cases(2)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", range(5))
def test_a_promotion_that_was_killed_at_any_commit_goes_on(leader, follower, commit, moment):
    """Commits: the token, the fence, two mirrored versions, the opening."""
    add(leader, [10, 11])
    play = Play()

    def killed(go):
        if moment == "after":
            go()
        raise Killed

    play.commits(*[lambda go: go()] * commit, killed)
    with pytest.raises(Killed):
        promote_topic(played(follower, play), TOPIC, played(leader, play))
    promote_topic(follower, TOPIC)
    add(follower, [12])
    assert numbers(follower) == list(range(13))
    assert epochs(follower) == ((0, 0), (1, 12))
    assert (
        follower.topic(TOPIC).snapshot.states["role_epoch"] == leader.topic(TOPIC).snapshot.states["role_epoch"] == "1"
    )
    with pytest.raises(NotLeaderError):
        add(leader, [99])


def test_a_follower_in_mid_promotion_says_so(leader, follower):
    play = Play()
    play.commits(lambda go: go(), lambda go: go(), lambda go: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        promote_topic(played(follower, play), TOPIC, played(leader, play))
    with pytest.raises(NotLeaderError, match=r"Its promotion has begun: finish it"):
        add(follower, [1])
    assert follower.topic(TOPIC).snapshot.role == "follower"


def test_of_two_followers_one_is_promoted(leader, follower):
    other = followed(leader, "other")
    promote_topic(follower, TOPIC)
    with pytest.raises(NotLeaderError, match=rf"no leader any more.*{follower.uri}.*--from"):
        promote_topic(other, TOPIC)
    with pytest.raises(NotLeaderError, match=r"takes no append"):
        add(other, [1])
    with pytest.raises(NotLeaderError, match=r"is a follower there, too"):
        promote_topic(other, TOPIC, followed(leader, "third").uri)


def test_a_follower_of_another_leader_does_not_fence_this_one(leader, follower):
    """What it has mirrored is counted by the versions of the leader before it: it can copy nothing from here."""
    other = followed(leader, "other")
    promote_topic(follower, TOPIC)
    with pytest.raises(LogDirError, match=r"not the log that the follower has mirrored.*into an empty log directory"):
        promote_topic(other, TOPIC, follower.uri)
    add(follower, [10])
    third = followed(follower, "third")
    promote_topic(third, TOPIC)
    assert numbers(third) == list(range(11))


def test_a_leader_that_went_back_to_a_backup_is_replaced_by_force(leader, follower):
    backup = shutil.copytree(leader.uri, f"{leader.uri}-backup")
    add(leader, [10])
    in_step(leader, follower)
    shutil.rmtree(leader.uri)
    Path(backup).rename(leader.uri)
    with pytest.raises(LogDirError, match="not the log that the follower has mirrored"):
        promote_topic(follower, TOPIC)
    add(leader, [77])  # it is not fenced
    done = promote_topic(follower, TOPIC, force=True)
    assert done.is_fenced and [tail.first_offset for tail in done.left_behind] == [10]
    assert numbers(follower) == list(range(11))
    with pytest.raises(NotLeaderError):
        add(leader, [78])


def test_a_leader_that_stands_alone_has_none_to_replace(leader):
    with pytest.raises(NotLeaderError, match=r"is a leader already, and was promoted over no other"):
        promote_topic(leader, TOPIC)
    with pytest.raises(NotLeaderError, match=r"over itself"):
        promote_topic(leader, TOPIC, leader.uri)


def test_a_mirror_of_the_former_leader_does_not_touch_the_new_one(leader, follower):
    promote_topic(follower, TOPIC)
    add(follower, [10])
    assert f"End this mirror. To have a copy of {follower.uri} again" in mirrored_again(leader, follower)
    assert numbers(follower) == list(range(11))


def test_a_mirror_of_the_former_leader_compares_no_files_again_and_again(leader, follower):
    promote_topic(follower, TOPIC)
    add(follower, [10])
    roll(follower, now_ms=LATER_MS)
    files = PlayedFiles()
    error = mirrored_again(opened(leader, files), opened(follower, files))
    assert "leads in epoch 1 from offset 10 of orders-0 on" in error
    assert files.calls and not [path for call, path in files.calls if call == "read" and f"/{TOPIC}-" in path]


def test_two_runs_of_a_promotion_are_one(leader, follower):
    add(leader, [10])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: promote_topic(LogDir.open(follower.uri), TOPIC), range(2)))
    add(follower, [11])
    assert numbers(follower) == list(range(12))
    assert epochs(follower) == ((0, 0), (1, 11))


@pytest.mark.parametrize("is_opened", [False, True], ids=["fenced", "opened"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_promotion_that_another_run_begins_between_two_reads_is_the_same_one(leader, follower, is_opened, dry_run):
    """The follower is read without a token. Then another run gives it one, and fences the leader by it."""
    add(leader, [10])
    killed = Play()
    killed.commits(lambda go: go(), lambda go: (_ for _ in ()).throw(Killed))  # the token, no mirrored version

    def other_run(go):
        if is_opened:
            promote_topic(follower, TOPIC)
        else:
            with pytest.raises(Killed):
                promote_topic(played(follower, killed), TOPIC)
        assert leader.topic(TOPIC).snapshot.role == "fenced"
        return go()

    between = Play()
    between.next("open", other_run)
    assert promote_topic(follower, TOPIC, played(leader, between), dry_run=dry_run).is_fenced
    if not dry_run:
        add(follower, [11])
        assert numbers(follower) == list(range(12))
        assert epochs(follower) == ((0, 0), (1, 11))


def test_a_mirror_into_a_topic_that_is_promoted_meanwhile_says_so(leader, follower):
    """It is about to copy versions of before the fence."""
    add(leader, [10])

    def promoted(go):
        promote_topic(follower, TOPIC)
        add(follower, [11])
        return go()

    between = Play()
    between.next("open", lambda go: (go(), promoted(lambda: None))[0])
    assert "was promoted over the topic in" in mirrored_again(played(leader, between), follower)


def test_writers_that_move_to_the_new_leader_lose_nothing_and_write_nothing_twice(leader, follower):
    """Three writers append until they are refused, then send what was refused to the other side."""

    def write(writer: int) -> list[int]:
        sent, log = [], LogDir.open(leader.uri)
        for number in range(1000 * writer, 1000 * writer + 12):
            try:
                add(log, [number], partition=1)
            except NotLeaderError as error:
                assert follower.uri in str(error)
                log = LogDir.open(follower.uri)
                while True:
                    try:
                        add(log, [number], partition=1)
                        break
                    except NotLeaderError:  # the promotion is under way
                        time.sleep(0.01)
            sent.append(number)
        return sent

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, writer) for writer in (1, 2, 3)]
        promote_topic(follower, TOPIC)
        sent = [number for writer in writers for number in writer.result()]
    assert sorted(numbers(follower, partition=1)) == sorted([50, *sent])
    before = epochs(follower, partition=1)[-1][1]
    assert numbers(leader, partition=1) == numbers(follower, partition=1)[:before]


def test_a_transaction_that_the_former_leader_took_is_a_repeat_at_the_new_one(leader, follower):
    """A writer that was killed before it knew sends it again."""
    add(leader, [10], txn=("app", 3))
    promote_topic(follower, TOPIC)
    add(follower, [10], txn=("app", 3))
    add(follower, [11], txn=("app", 4))
    assert numbers(follower) == list(range(12))


def test_a_manifest_that_is_made_anew_has_its_fence(leader, follower):
    """The recovery copy is of the fence, however few commits came before it."""
    promote_topic(follower, TOPIC)
    shutil.rmtree(Path(leader.uri, "_manifest", TOPIC))
    rebuild_manifest(leader, TOPIC)
    with pytest.raises(NotLeaderError, match=follower.uri):
        add(leader, [10])


@pytest.mark.proof
def test_a_leader_in_an_object_store_is_fenced_there(tmp_path, s3_options):
    leader = LogDir.create(f"s3a://{BUCKET}/{tmp_path.name}/leader", s3_options)
    leader.create_topic(TOPIC)
    add(leader, range(3))
    follower = LogDir.create(str(tmp_path / "follower"))
    in_step(leader, follower)
    add(leader, [3])
    play = Play()
    play.commits(lambda go: (promote_topic(follower, TOPIC, storage_options=s3_options), go()))
    with pytest.raises(NotLeaderError, match=follower.uri):
        add(opened(leader, open_delta_log=play), [4])
    add(follower, [5])
    assert numbers(follower) == [0, 1, 2, 3, 5]
    back = LogDir.create(f"s3a://{BUCKET}/{tmp_path.name}/back", s3_options)
    in_step(follower, back)
    assert_equal(follower, back)
    promote_topic(back, TOPIC)
    assert epochs(back) == ((0, 0), (1, 4), (2, 5))


# By force


def test_a_leader_out_of_reach_is_replaced_by_force_alone(leader, follower):
    away = taken_away(leader)
    with pytest.raises(LogDirError, match=r"Not a log directory.*"):
        promote_topic(follower, TOPIC)
    with pytest.raises(NotLeaderError):
        add(follower, [1])
    done = promote_topic(follower, TOPIC, force=True)
    assert (done.is_fenced, done.source_version) == (False, leader_version(away))
    assert "out of reach" in done.warnings[0]
    add(follower, [10])
    assert numbers(follower) == list(range(11))


def leader_version(path: Path) -> int:
    return LogDir.open(str(path)).topic(TOPIC).snapshot.version


def test_a_leader_that_was_out_of_reach_is_fenced_as_soon_as_it_is_met(leader, follower):
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    add(leader, [77])  # nobody has told it
    done = promote_topic(follower, TOPIC)
    assert (done.steps, done.is_fenced) == (("fence",), True)
    assert [dataclasses.astuple(tail) for tail in done.left_behind] == [(0, 10, 11)]
    with pytest.raises(NotLeaderError, match=follower.uri):
        add(leader, [78])


def test_force_is_no_leave_to_lose_what_can_be_copied(leader, follower):
    add(leader, [10])
    done = promote_topic(follower, TOPIC, force=True)
    assert done.is_fenced and not done.warnings
    assert numbers(follower) == list(range(11))


def test_a_leader_with_lost_files_is_replaced_by_force(leader, follower):
    add(leader, [10])
    moved(leader, "audit", {TOPIC: {0: 11}})
    lost = leader.topic(TOPIC).snapshot.live_of(0)[-1]
    Path(leader.uri, lost.path).unlink()
    with pytest.raises(SegmentsError, match=r"orders-0"):
        promote_topic(follower, TOPIC)
    done = promote_topic(follower, TOPIC, force=True)
    assert done.is_fenced and done.warnings
    add(follower, [99])
    assert numbers(follower) == [*range(10), 99]
    with pytest.raises(OffsetOutOfRangeError, match="another one from offset 10 on than the log that group audit read"):
        check_position(follower.topic(TOPIC).snapshot, 0, follower.group("audit").positions()[TOPIC, 0], "audit")


def test_force_is_no_leave_to_lose_what_the_place_here_has_no_room_for(leader, follower):
    """The former leader is in reach: an error of the disk here says nothing of it."""
    add(leader, [10])

    def no_room(path, go):
        if f"/{TOPIC}-0/" in path:
            raise OSError(errno.ENOSPC, "no space left")
        return go()

    full = opened(follower, PlayedFiles(stream=no_room))
    with pytest.raises(StorageError, match="no space left"):
        promote_topic(full, TOPIC, force=True)
    with pytest.raises(NotLeaderError, match=r"Its promotion has begun"):
        add(full, [99])
    assert not promote_topic(follower, TOPIC, force=True).warnings
    assert numbers(follower) == list(range(11))


def test_of_two_leaders_neither_is_promoted_over_the_other(leader, follower):
    """Both took records after they had parted: whose are to stay is for a human to say."""
    other = followed(leader, "other")
    away = taken_away(leader)
    for log in (follower, other):
        promote_topic(log, TOPIC, force=True)
    away.rename(leader.uri)
    for log, former in ((leader, follower), (other, follower)):
        with pytest.raises(NotLeaderError, match=r"is a leader already, and was not promoted over.*Delete the topic"):
            promote_topic(log, TOPIC, former.uri, force=True)
    for log in (leader, follower, other):
        add(log, [10])  # none was fenced


def test_where_a_promotion_ended_with_its_follower_lost_another_follower_is_promoted_by_force(leader, follower):
    """The fence stands, and nobody leads."""
    add(leader, [10])
    play = Play()
    play.commits(lambda go: go(), lambda go: go(), lambda go: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        promote_topic(played(follower, play), TOPIC, played(leader, play))
    shutil.rmtree(follower.uri)
    other = followed(leader, "other")
    with pytest.raises(NotLeaderError, match=rf"no leader any more.*leader_uri {follower.uri}.*--force"):
        promote_topic(other, TOPIC)
    done = promote_topic(other, TOPIC, force=True)
    assert (done.is_fenced, done.left_behind) == (True, ())
    assert numbers(other) == list(range(11))
    assert epochs(other) == ((0, 0), (2, 11))  # above the epoch of the leader that never was
    assert role_of(other.topic(TOPIC).snapshot).epoch == 2
