"""Commits whose reply is lost or that land late: each counts once, and what is not known is said."""

from __future__ import annotations

import pytest

from spark_segments.errors import LogDirError, SegmentsError, StorageError, UnknownOutcomeError
from tests.log.commits.whole_log import assert_log_is_whole
from verification.world.chunk_rows import TOPIC_ID, new_chunk, new_manifest
from verification.world.manifest_rows import Change, commit_append
from verification.world.stores.played_log import CommitFailedError, Late, VersionTakenError, committed_but_reply_lost


def test_a_creator_whose_reply_is_lost_has_made_the_topic(tmp_path, play):
    play.next("create", committed_but_reply_lost)
    assert new_manifest(tmp_path, open_delta_log=play).snapshot().topic_id == TOPIC_ID


@pytest.mark.rule("W5")
def test_a_commit_whose_reply_is_lost_is_not_repeated(manifest, play):
    play.commits(committed_but_reply_lost)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}
    assert play.calls["commit_on"] == 1
    assert manifest.snapshot().version == 1
    assert len(assert_log_is_whole(manifest)[0]) == 1


def test_a_lost_reply_is_found_below_later_commits(manifest, play):

    def overtaken(go) -> None:
        go()
        for _ in range(3):
            commit_append(manifest, [new_chunk()])
        raise CommitFailedError("connection reset by peer")

    play.commits(overtaken)
    done = manifest.commit(lambda snapshot: Change("alter", config={"version": str(snapshot.version)}))
    assert (done.version, done.snapshot_before.version) == (1, 0)
    assert done.change is not None
    assert done.change.config == {"version": "0"}
    assert manifest.snapshot().version == 4


def test_a_commit_that_lands_late_counts_as_the_try_that_it_was(manifest, play):
    late = Late()

    def overtaken_by_the_first_try(go) -> None:
        late.land()
        go()

    play.commits(late, overtaken_by_the_first_try)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}
    assert manifest.snapshot().version == 1
    assert len(assert_log_is_whole(manifest)[0]) == 1


def test_a_log_that_cannot_be_read_after_a_failure_is_not_taken_for_a_failure(manifest, play):
    def down(topic, go) -> None:
        raise StorageError("the network is down")

    def committed_and_cut_off(go) -> None:
        play.always("following", down)
        committed_but_reply_lost(go)

    play.commits(committed_and_cut_off)
    with pytest.raises(UnknownOutcomeError, match=r"may have happened.*added once"):
        commit_append(manifest, [new_chunk()], ("app", 1))
    play.always("following", None)
    assert commit_append(manifest, [new_chunk()], ("app", 1)) == {}


def at_the_second_call(plan, happening):
    """`plan`, but for its second call, where `happening` raises or answers instead."""
    calls = []

    def called(snapshot):
        calls.append(snapshot)
        return happening(snapshot) if len(calls) == 2 else plan(snapshot)

    return called


def alter(snapshot) -> Change:
    return Change("alter", config={"retention.ms": "5"})


def test_an_error_of_the_plan_after_a_try_that_happened_late_is_no_failure(manifest, play):
    late = Late()

    def late_then_refused(snapshot):
        late.land()
        raise SegmentsError("the plan does not hold")

    play.commits(late)
    done = manifest.commit(at_the_second_call(alter, late_then_refused))
    assert done.version == 1 and done.change == alter(None)
    assert manifest.snapshot().config == {"retention.ms": "5"}


def test_an_error_of_the_plan_while_a_try_may_still_happen_says_so(manifest, play):
    late = Late()

    def refused(snapshot):
        raise SegmentsError("the plan does not hold", hint="run it again: nothing was committed")

    play.commits(late)
    with pytest.raises(UnknownOutcomeError, match=r"alter may have happened.*does not hold") as raised:
        manifest.commit(at_the_second_call(alter, refused))
    assert not isinstance(raised.value, StorageError)
    assert "nothing was committed" not in str(raised.value)
    late.land()
    assert manifest.snapshot().config == {"retention.ms": "5"}


def test_an_error_of_the_plan_after_another_commit_took_the_version_is_itself(manifest, play):
    late = Late()

    def overtaken(go) -> None:
        commit_append(manifest, [new_chunk()])
        late(go)

    def refused(snapshot):
        raise SegmentsError("the plan does not hold")

    play.commits(overtaken)
    with pytest.raises(SegmentsError, match="the plan does not hold") as raised:
        manifest.commit(at_the_second_call(alter, refused))
    assert not isinstance(raised.value, UnknownOutcomeError)
    with pytest.raises(VersionTakenError):  # the version is taken: it comes too late
        late.land()


def test_a_plan_with_nothing_to_do_while_a_try_may_still_happen_is_not_believed(manifest, play):
    late = Late()

    def nothing_to_do(snapshot):
        late.land()
        return None

    play.commits(late)
    done = manifest.commit(at_the_second_call(alter, nothing_to_do))
    assert done.version == 1 and done.change == alter(None)


def test_a_topic_that_is_made_newer_meanwhile_does_not_hide_the_commit(manifest, play):
    """The log can be listed and looked through although this version cannot open it any more."""

    def newer(topic, go) -> None:
        raise LogDirError("Topic orders was written by a newer version of this package")

    def committed_then_upgraded(go) -> None:
        play.always("open", newer)
        committed_but_reply_lost(go)

    play.commits(committed_then_upgraded)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}
