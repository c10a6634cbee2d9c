"""Logs that parted: the first differing offset is named, nothing is cut unasked, and what is cut waits for vacuum."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import DivergedLogError, NotLeaderError, OffsetOutOfRangeError
from spark_segments.log.divergence import Tail
from spark_segments.maintenance import roll, vacuum, verify
from spark_segments.maintenance.promotion.role_changes import cut_off
from tests.log.groups.readers import check_position, moved
from tests.log.played_log import Play
from tests.maintenance.promotion.copies import (
    LATER_MS,
    TOPIC,
    add,
    assert_equal,
    demote_topic,
    epochs,
    followed,
    in_step,
    mirrored_again,
    numbers,
    played,
    promote_topic,
    taken_away,
)
from tests.maintenance.slow_vacuum import SlowVacuum
from tests.manifest_rows import segments_of


@pytest.fixture
def parted(leader, follower) -> tuple[LogDir, LogDir]:
    """A leader that took 77, 78 and 79 after a follower was promoted over it by force, and that follower, with 88."""
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    add(leader, [77, 78])
    add(leader, [79], txn=("app", 7))
    add(follower, [88])
    return leader, follower


def test_a_former_leader_that_lost_nothing_becomes_a_follower(leader, follower):
    """A planned failover, and back again."""
    add(leader, [10])
    promote_topic(follower, TOPIC)
    add(follower, [11])
    assert "segments demote" in mirrored_again(follower, leader)
    assert demote_topic(leader, TOPIC, follower).cut == ()
    in_step(follower, leader)
    assert_equal(follower, leader)
    promote_topic(leader, TOPIC)
    add(leader, [12])
    demote_topic(follower, TOPIC, leader)
    in_step(leader, follower)
    assert_equal(leader, follower)
    assert numbers(follower) == list(range(13))
    assert epochs(follower) == ((0, 0), (1, 11), (2, 12))


def test_a_diverged_leader_is_refused_and_the_first_differing_offset_named(parted):
    leader, new = parted
    with pytest.raises(DivergedLogError, match=r"from offset 10 of orders-0 on.*at most 10, found 13.*--cut"):
        demote_topic(leader, TOPIC, new)
    assert numbers(leader) == [*range(10), 77, 78, 79]
    with pytest.raises(NotLeaderError, match=new.uri):  # it was fenced at the first contact
        add(leader, [80])
    assert "from offset 10 of orders-0 on" in mirrored_again(new, leader)
    assert "from offset 10 of orders-0 on" in mirrored_again(leader, new)
    assert numbers(leader) == [*range(10), 77, 78, 79]
    assert numbers(new) == [*range(10), 88]


def test_a_dry_run_lists_what_would_be_cut(parted):
    leader, new = parted
    version = leader.topic(TOPIC).snapshot.version
    done = demote_topic(leader, TOPIC, new, dry_run=True)
    [tail] = done.cut
    assert (tail.partition, tail.first_offset, tail.log_end_offset, tail.segments) == (0, 10, 13, 2)
    assert tail.bytes == sum(row.log_bytes for row in leader.topic(TOPIC).snapshot.live_of(0)[-2:])
    assert [dataclasses.astuple(one) for one in done.transactions] == [("app", 7, None)]
    assert leader.topic(TOPIC).snapshot.version == version


def test_the_side_that_is_cut_becomes_the_other(parted):
    leader, new = parted
    done = demote_topic(leader, TOPIC, new, cut=True)
    assert numbers(leader) == list(range(10))
    assert numbers(leader, version=done.version_before) == [*range(10), 77, 78, 79]
    in_step(new, leader)
    assert_equal(new, leader)
    assert numbers(leader) == [*range(10), 88]


def test_no_file_of_what_is_cut_goes_before_vacuums_delay(parted):
    leader, new = parted
    cut = leader.topic(TOPIC).snapshot.live_of(0)[-2:]
    demote_topic(leader, TOPIC, new, cut=True)
    now_ms = leader.storage.now_ms()
    vacuum(leader, now_ms=now_ms + 60_000)
    assert all(leader.storage.exists(row.path) for row in cut)
    vacuum(leader, now_ms=now_ms + 2 * 86_400_000)
    assert not any(leader.storage.exists(row.path) for row in cut)


def test_the_old_leader_can_be_the_side_that_stays(parted):
    leader, new = parted
    promote_topic(leader, TOPIC, new.uri, force=True)
    with pytest.raises(DivergedLogError, match=r"from offset 10 of orders-0 on"):
        demote_topic(new, TOPIC, leader)
    demote_topic(new, TOPIC, leader, cut=True)
    in_step(leader, new)
    assert_equal(leader, new)
    assert numbers(new) == [*range(10), 77, 78, 79]
    promote_topic(new, TOPIC)
    assert epochs(new) == ((0, 0), (3, 13))


def test_two_leaders_that_took_the_same_records_have_parted_all_the_same(leader, follower):
    """The bytes may even be equal. Which readers saw which is told by the epochs alone."""
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    for log in (leader, follower):
        add(log, [10])
    with pytest.raises(DivergedLogError, match=r"from offset 10 of orders-0 on"):
        demote_topic(leader, TOPIC, follower)


def test_a_segment_that_reaches_into_the_tail_keeps_what_lies_below_it(parted):
    """A roll put records of both sides of the parting into one file."""
    leader, new = parted
    roll(leader, now_ms=LATER_MS)
    assert len(leader.topic(TOPIC).snapshot.live_of(0)) == 1
    demote_topic(leader, TOPIC, new, cut=True)
    assert numbers(leader) == list(range(10))
    assert leader.topic(TOPIC).offsets()[0] == (0, 10)
    report = verify(leader, topics=[TOPIC], deep=True)
    assert report.ok, report.findings
    in_step(new, leader)
    assert_equal(new, leader)


def test_transactions_that_are_cut_can_be_sent_again(parted):
    """Or a writer that repeats what it lost would be told that it is there."""
    leader, new = parted
    demote_topic(leader, TOPIC, new, cut=True)
    in_step(new, leader)
    promote_topic(leader, TOPIC)
    add(leader, [79], txn=("app", 7))
    assert numbers(leader) == [*range(10), 88, 79]


def test_another_follower_that_is_ahead_of_the_new_leader_is_cut_like_a_leader(leader, follower):
    add(leader, [10])
    ahead = followed(leader, "ahead")
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    assert away.exists()
    add(follower, [88])
    assert mirrored_again(follower, ahead) is not None
    with pytest.raises(DivergedLogError, match=r"from offset 10 of orders-0 on"):
        demote_topic(ahead, TOPIC, follower)
    demote_topic(ahead, TOPIC, follower, cut=True)
    in_step(follower, ahead)
    assert_equal(follower, ahead)
    assert numbers(ahead) == [*range(10), 88]


def test_a_follower_of_a_leader_that_was_cut_is_refused_until_it_is_cut_too(parted):
    leader, new = parted
    further = followed(leader, "further")
    demote_topic(leader, TOPIC, new, cut=True)
    in_step(new, leader)
    assert "from offset 10 of orders-0 on" in mirrored_again(leader, further)
    demote_topic(further, TOPIC, new, cut=True)
    in_step(new, further)
    assert_equal(new, further)
    assert demote_topic(further, TOPIC, new).cut == ()  # there is nothing more to do


@pytest.mark.parametrize("jump", [False, True], ids=["steps", "jump"])
def test_the_records_of_a_follower_are_kept_though_its_leader_was_cut_and_has_grown_beyond_them(parted, limits, jump):
    leader, new = parted
    further = followed(leader, "further")
    demote_topic(leader, TOPIC, new, cut=True)
    add(new, range(89, 99))
    in_step(new, leader)
    assert leader.topic(TOPIC).offsets()[0][1] > further.topic(TOPIC).offsets()[0][1]
    if jump:
        limits(MOST_STEPS=0)
    assert "from offset 10 of orders-0 on" in mirrored_again(leader, further)
    assert numbers(further) == [*range(10), 77, 78, 79]


def test_a_jump_keeps_records_that_two_leaders_took_in_the_same_epoch(leader, follower, limits):
    """Each was promoted by force, and neither could know of the other."""
    other = followed(leader, "other")
    taken_away(leader)
    for new in (follower, other):
        promote_topic(new, TOPIC, force=True)
    add(follower, [88, 89])
    add(other, range(90, 99))
    further = followed(follower, "further")
    promote_topic(other, TOPIC, follower, force=True)
    demote_topic(follower, TOPIC, other, cut=True)
    in_step(other, follower)
    limits(MOST_STEPS=0)
    assert "from offset 10 of orders-0 on" in mirrored_again(follower, further)
    assert numbers(further) == [*range(10), 88, 89]


def test_a_follower_that_has_parted_from_its_leader_is_not_promoted_and_nothing_is_fenced(parted):
    leader, new = parted
    further = followed(leader, "further")
    demote_topic(leader, TOPIC, new, cut=True)
    promote_topic(leader, TOPIC)
    add(leader, range(90, 99))
    with pytest.raises(DivergedLogError, match=rf"from offset 10 of orders-0 on.*demote {further.uri} .*--force"):
        promote_topic(further, TOPIC)
    add(leader, [99])
    assert [tail.first_offset for tail in promote_topic(further, TOPIC, force=True, dry_run=True).left_behind] == [10]
    done = promote_topic(further, TOPIC, force=True)
    assert done.is_fenced and [tail.first_offset for tail in done.left_behind] == [10]
    assert numbers(further) == [*range(10), 77, 78, 79]
    with pytest.raises(NotLeaderError):
        add(leader, [100])


def test_a_follower_that_lags_goes_along_with_a_leader_that_was_cut_above_it(leader, follower, limits):
    lagging = followed(leader, "lagging")
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    add(leader, [77])
    add(follower, [88, 89])
    demote_topic(leader, TOPIC, follower, cut=True)
    in_step(follower, leader)
    limits(MOST_STEPS=0)
    assert mirrored_again(leader, lagging) is None
    assert_equal(leader, lagging)
    assert numbers(lagging) == [*range(10), 88, 89]


def test_a_mirror_of_the_old_leader_ends_where_its_follower_is_demoted_meanwhile(leader, follower):
    other = followed(leader, "other")
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    add(leader, [77])
    add(leader, [78])
    play = Play()
    play.commits(lambda go: (go(), demote_topic(other, TOPIC, follower, cut=True))[0])
    assert "not the log that the follower has mirrored" in mirrored_again(leader, played(other, play))
    assert numbers(other) == list(range(10))
    in_step(follower, other)
    assert_equal(follower, other)


def test_a_slow_vacuum_does_not_delete_what_comes_back_after_a_demotion(parted):
    """What was cut lives on in another follower, which becomes the leader: under the paths that are being deleted."""
    leader, new = parted
    further = followed(leader, "further")
    demote_topic(leader, TOPIC, new, cut=True)
    later_ms = leader.storage.now_ms() + 2 * 86_400_000
    slow = SlowVacuum(leader, later_ms)
    assert not vacuum(leader, now_ms=later_ms).failed
    promote_topic(further, TOPIC, new, force=True)
    demote_topic(leader, TOPIC, further)
    in_step(further, leader)
    slow.goes_on()
    assert numbers(leader) == [*range(10), 77, 78, 79]
    assert_equal(further, leader)
    add(further, [80])
    in_step(further, leader)
    assert (
        leader.topic(TOPIC).snapshot.live_of(0)[-1] == further.topic(TOPIC).snapshot.live_of(0)[-1]
    )  # its path is the leader's


def test_a_leader_is_demoted_for_one_that_was_promoted_over_it_only(leader, follower):
    with pytest.raises(NotLeaderError, match=r"is no leader there.*found follower"):
        demote_topic(leader, TOPIC, follower)
    promote_topic(follower, TOPIC)
    with pytest.raises(NotLeaderError, match=r"is no leader there.*found fenced"):
        demote_topic(follower, TOPIC, leader)


def test_partitions_that_the_leader_lacks_are_no_reason_to_lose_them(parted):
    leader, new = parted
    leader.topic(TOPIC).alter(partitions=3)
    with pytest.raises(DivergedLogError, match=r"has more partitions than its leader.*--partitions 3"):
        demote_topic(leader, TOPIC, new, cut=True)
    new.topic(TOPIC).alter(partitions=3)
    demote_topic(leader, TOPIC, new, cut=True)
    in_step(new, leader)
    assert_equal(new, leader)


def test_a_reader_in_a_group_that_read_what_was_cut_learns_of_it(parted):
    """Its position is within the log again by the time that it comes back."""
    leader, new = parted
    position = moved(leader, "audit", {TOPIC: {0: 12}})[TOPIC, 0]
    demote_topic(leader, TOPIC, new, cut=True)
    add(new, [89, 90, 91])
    in_step(new, leader)
    with pytest.raises(OffsetOutOfRangeError, match=r"another one from offset 10 on.*--to 10"):
        check_position(leader.topic(TOPIC).snapshot, 0, position, "audit")


def test_runs_of_a_shared_object_are_cut_by_their_partitions(leader, follower):
    """What an append brought to many partitions is one file."""
    leader.topic(TOPIC).alter(partitions=12)
    in_step(leader, follower)
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    few = pa.table({"value": [b"77"] * 24, "partition": pa.array([*range(12)] * 2, pa.int32())})
    leader.topic(TOPIC).append(few)
    assert leader.topic(TOPIC).snapshot.live_of(3)[-1].is_shared
    add(follower, [88], partition=3)
    cut = demote_topic(leader, TOPIC, follower, cut=True).cut
    assert [(tail.partition, tail.log_end_offset - tail.first_offset) for tail in cut] == [(n, 2) for n in range(12)]
    in_step(follower, leader)
    assert_equal(follower, leader)


def test_a_tail_that_begins_within_a_batch_takes_the_whole_batch(leader):
    """As Kafka's truncation does: what the batch held below is the leader's to bring."""
    live = leader.topic(TOPIC).snapshot
    cut = cut_off(live, leader.storage, leader.topic(TOPIC).config, [Tail(0, 8, 10)])
    assert [row.base_offset for row in segments_of(cut.leaving)] == [6]
    assert cut.shortened == ()  # its only batch holds 6 to 9
    roll(leader, now_ms=LATER_MS)
    cut = cut_off(leader.topic(TOPIC).snapshot, leader.storage, leader.topic(TOPIC).config, [Tail(0, 8, 10)])
    [row] = cut.shortened
    assert (row.base_offset, row.next_offset, row.records) == (0, 8, 6)
