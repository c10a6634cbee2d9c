"""Logs that parted: the first differing offset is named, from both sides, and nothing is taken out of either.

A former leader, and whatever else is not to stay, is mirrored anew.
"""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, NotLeaderError, OffsetOutOfRangeError
from spark_segments.maintenance import vacuum
from tests.maintenance.slow_vacuum import SlowVacuum
from verification.world.group_readers import check_position, moved
from verification.world.manifest_rows import Change
from verification.world.promoted_copies import (
    TOPIC,
    add,
    assert_equal,
    epochs,
    followed,
    in_step,
    mirrored_again,
    numbers,
    promote_topic,
    taken_away,
)


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


def marked_demoted(log: LogDir) -> None:
    """Makes a follower what `segments demote` of an older version left behind."""
    log.topic(TOPIC).manifest.commit(
        lambda here: Change(
            "promote", topic=dataclasses.replace(here.topic_row, states={**here.states, "demoted": "yes"})
        )
    )


def test_a_former_leader_is_mirrored_anew_and_promoted_in_its_turn(leader, follower):
    """A planned failover, and another one."""
    add(leader, [10])
    promote_topic(follower, TOPIC)
    add(follower, [11])
    assert "an empty log directory" in mirrored_again(follower, leader)
    third = followed(follower, "third")
    promote_topic(third, TOPIC)
    add(third, [12])
    assert numbers(third) == list(range(13))
    assert epochs(third) == ((0, 0), (1, 11), (2, 12))
    assert_equal(third, followed(third, "fourth"))


def test_a_fenced_topic_is_never_promoted_again(leader, follower):
    promote_topic(follower, TOPIC)
    for force in (False, True):
        with pytest.raises(NotLeaderError, match=r"is fenced.*Mirror its leader into an empty log directory"):
            promote_topic(leader, TOPIC, force=force)
    add(follower, [10])


def test_logs_that_parted_are_refused_from_both_sides_and_the_first_differing_offset_named(parted):
    leader, new = parted
    for fenced in (False, True):
        if fenced:
            promote_topic(new, TOPIC)
            with pytest.raises(NotLeaderError, match=new.uri):
                add(leader, [80])
        assert "from offset 10 of orders-0 on" in mirrored_again(new, leader)
        assert "from offset 10 of orders-0 on" in mirrored_again(leader, new)
    assert numbers(leader) == [*range(10), 77, 78, 79]
    assert numbers(new) == [*range(10), 88]


def test_two_leaders_that_took_the_same_records_have_parted_all_the_same(leader, follower):
    """The bytes may even be equal. Which readers saw which is told by the epochs alone."""
    away = taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    away.rename(leader.uri)
    for log in (leader, follower):
        add(log, [10])
    assert "from offset 10 of orders-0 on" in mirrored_again(follower, leader)
    assert [tail.first_offset for tail in promote_topic(follower, TOPIC).left_behind] == [10]


def test_what_was_left_behind_is_read_where_it_is_and_can_be_appended_with_its_transaction(parted):
    leader, new = parted
    [tail] = promote_topic(new, TOPIC).left_behind
    batches = leader.topic(TOPIC).scan(partition=0, offsets=(tail.first_offset, None), columns=["value"]).batches()
    assert [int(value) for batch in batches for value in batch.column("value").to_pylist()] == [77, 78, 79]
    add(new, [79], txn=("app", 7))
    assert numbers(new) == [*range(10), 88, 79]


def test_another_follower_that_is_ahead_of_the_new_leader_is_refused_like_a_leader(leader, follower):
    add(leader, [10])
    ahead = followed(leader, "ahead")
    taken_away(leader)
    promote_topic(follower, TOPIC, force=True)
    add(follower, [88])
    assert "not the log that the follower has mirrored" in mirrored_again(follower, ahead)
    assert numbers(ahead) == list(range(11))


def test_the_side_that_is_not_to_stay_is_deleted_and_becomes_the_other(parted):
    """In the same directory: it was never fenced."""
    leader, new = parted
    new.delete_topic(TOPIC)
    assert mirrored_again(leader, new) is None
    assert_equal(leader, new)
    assert numbers(new) == [*range(10), 77, 78, 79]
    add(leader, [80])
    in_step(leader, new)
    promote_topic(new, TOPIC)
    assert epochs(new) == ((0, 0), (1, 14))


def test_a_slow_vacuum_does_not_delete_what_comes_back_to_a_topic_that_led_and_was_deleted(parted):
    """Its log was the same up to the parting: under the paths that are being deleted."""
    leader, new = parted
    new.delete_topic(TOPIC)
    later_ms = new.storage.now_ms() + 2 * 86_400_000
    slow = SlowVacuum(new, later_ms)
    assert not vacuum(new, now_ms=later_ms).failed
    assert mirrored_again(leader, new) is None
    slow.goes_on()
    assert_equal(leader, new)


def test_a_jump_keeps_records_though_their_leader_was_replaced_and_has_grown_beyond_them(parted, limits):
    leader, new = parted
    further = followed(leader, "further")
    leader.delete_topic(TOPIC)
    add(new, range(89, 99))
    assert mirrored_again(new, leader) is None
    assert leader.topic(TOPIC).offsets()[0][1] > further.topic(TOPIC).offsets()[0][1]
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
    follower.delete_topic(TOPIC)
    assert mirrored_again(other, follower) is None
    limits(MOST_STEPS=0)
    assert "from offset 10 of orders-0 on" in mirrored_again(follower, further)
    assert numbers(further) == [*range(10), 88, 89]


def test_a_follower_that_lags_goes_along_with_a_leader_that_was_replaced_above_it(parted, limits):
    leader, new = parted
    lagging = followed(leader, "lagging")
    further = followed(new, "further")
    new.delete_topic(TOPIC)
    add(leader, [80])
    assert mirrored_again(leader, new) is None
    limits(MOST_STEPS=0)
    assert mirrored_again(leader, lagging) is None
    assert_equal(leader, lagging)
    assert "from offset 10 of orders-0 on" in mirrored_again(new, further)


def test_a_reader_in_a_group_that_read_what_was_left_behind_learns_of_it(parted):
    """Its position is within the log again by the time that it comes."""
    leader, new = parted
    position = moved(leader, "audit", {TOPIC: {0: 12}})[TOPIC, 0]
    add(new, [89, 90, 91])
    with pytest.raises(OffsetOutOfRangeError, match=r"another one from offset 10 on.*--to 10"):
        check_position(new.topic(TOPIC).snapshot, 0, position, "audit")


def test_a_follower_that_an_older_version_demoted_is_mirrored_anew(leader, follower):
    """Vacuum may be deleting files of its log that a mirror would bring back under their paths."""
    marked_demoted(follower)
    add(leader, [10])
    assert "made a follower by an older version" in mirrored_again(leader, follower)
    with pytest.raises(LogDirError, match=r"made a follower by an older version.*empty log directory"):
        promote_topic(follower, TOPIC)
    add(leader, [11])  # it was not fenced
    assert numbers(follower) == list(range(10))
    promote_topic(follower, TOPIC, force=True)
    assert "demoted" not in follower.topic(TOPIC).snapshot.states
