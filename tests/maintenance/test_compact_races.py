"""What compaction commits after somebody else has changed the partition that it was cleaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, restore, retain, roll, verify
from verification.world.clock import OLDEST_CHUNK_MS, store_clock
from verification.world.manifest_rows import Change
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.topics import DAY_MS, GOLDEN_MS, append, contents, later, live, topic_with

CONFIG = {"cleanup.policy": "compact,delete", "retention.ms": -1, "min.cleanable.dirty.ratio": 0}


def seal(log: LogDir) -> None:
    roll(log, now_ms=later(log))


def left(log: LogDir) -> list[str]:
    rows = contents(log, "orders")
    return [f"{row['offset']}:{row['key'].decode()} {(row['value'] or b'').decode()}" for row in rows]


def bounds(log: LogDir) -> list[tuple[int, int]]:
    return [(one.base_offset, one.next_offset) for one in live(log, "orders")]


def compact_while(log: LogDir, work: Callable[[], object]) -> dict:
    """The report's line of a compaction that meets what `work` did when it comes to commit."""
    (line,) = compact(opened(log, open_delta_log=Play().before_commits(work)), now_ms=GOLDEN_MS).partitions
    return line


@pytest.fixture
def sealed(log) -> LogDir:
    """A topic of two sealed segments of 4 records each, and one record in the active segment."""
    topic_with(log, "orders", CONFIG)
    append(log, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), time_ms=GOLDEN_MS)
    seal(log)
    append(log, ("b", "2"), ("d", "1"), ("b", None), ("c", "2"), time_ms=GOLDEN_MS)
    seal(log)
    append(log, ("a", "9"), time_ms=GOLDEN_MS)
    return log


def test_what_another_compaction_has_done_is_left_to_it(sealed):
    line = compact_while(sealed, lambda: compact(sealed, now_ms=GOLDEN_MS))
    assert (line["action"], line["records_in"], line["rounds"]) == ("lost to another job", 0, 0)
    rows = live(sealed, "orders")
    assert left(sealed) == ["2:a 2", "5:d 1", "6:b ", "7:c 2", "8:a 9"]
    assert compact(sealed, now_ms=GOLDEN_MS, force=True).partitions == []
    assert live(sealed, "orders") == rows
    assert verify(sealed, deep=True).errors == 0


def test_a_later_round_that_another_compaction_was_quicker_with_is_left_to_it(sealed):
    play = Play().before_commits(None, lambda: compact(sealed, now_ms=GOLDEN_MS))
    small = opened(sealed.storage, open_delta_log=play, defaults={"log.cleaner.dedupe.buffer.size": "72"})
    (line,) = compact(small, now_ms=GOLDEN_MS).partitions
    assert (line["action"], line["rounds"]) == ("lost to another job", 1)
    assert line["records_in"] == line["records_out"] + sum(line["dropped"].values())
    assert left(sealed) == ["2:a 2", "5:d 1", "6:b ", "7:c 2", "8:a 9"]


def test_the_first_dirty_offset_does_not_go_back_where_another_compaction_left_the_segments_as_they_were(log):
    topic_with(log, "orders", CONFIG)
    append(log, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), time_ms=GOLDEN_MS)
    seal(log)
    small = LogDir.open(log.uri, defaults={"log.cleaner.dedupe.buffer.size": "72"})
    line = compact_while(small, lambda: compact(log, now_ms=GOLDEN_MS))
    assert (line["action"], line["rounds"]) == ("lost to another job", 0)
    assert log.topic("orders").describe()["partitions"][0]["first_dirty_offset"] == 4


def test_a_segment_that_is_another_one_by_the_commit_is_left_as_it_is(sealed):
    first, *others = live(sealed, "orders")
    changed = dataclasses.replace(first, created_ms=first.created_ms + 1)

    def other_job() -> None:
        sealed.topic("orders").manifest.commit(lambda _: Change("test", replace=[changed]))

    assert compact_while(sealed, other_job)["action"] == "lost to another job"
    assert live(sealed, "orders") == [changed, *others]


def test_segments_that_retention_took_meanwhile_stay_gone_and_the_rest_is_cleaned(sealed):
    def retention() -> None:
        sealed.topic("orders").delete_records({0: 4})
        retain(sealed)

    line = compact_while(sealed, retention)
    assert line["action"] == "compact"
    assert left(sealed) == ["5:d 1", "6:b ", "7:c 2", "8:a 9"]
    assert bounds(sealed) == [(4, 8), (8, 9)]
    assert sealed.topic("orders").describe()["partitions"][0]["first_dirty_offset"] == 8
    assert sealed.topic("orders").offsets() == {0: (4, 9)}
    assert verify(sealed, deep=True).ok


def test_what_retention_took_as_a_whole_does_not_come_back_cleaned(sealed):
    sealed.topic("orders").alter({"segment.bytes": "100"})  # so that each segment is a group by itself

    def retention() -> None:
        sealed.topic("orders").delete_records({0: 8})
        retain(sealed)

    compact_while(sealed, retention)
    assert left(sealed) == ["8:a 9"]
    assert bounds(sealed) == [(8, 9)]
    assert sealed.topic("orders").describe()["partitions"][0]["first_dirty_offset"] == 8
    assert verify(sealed, deep=True).errors == 0


def test_records_deleted_meanwhile_stay_deleted_though_their_segment_is_there(sealed):
    compact_while(sealed, lambda: sealed.topic("orders").delete_records({0: 6}))
    assert left(sealed) == ["6:b ", "7:c 2", "8:a 9"]
    assert sealed.topic("orders").describe()["partitions"][0]["first_dirty_offset"] == 8
    assert verify(sealed, deep=True).ok


def test_records_appended_and_rolled_meanwhile_follow_what_was_cleaned(sealed):
    def others() -> None:
        append(sealed, ("c", "9"), time_ms=GOLDEN_MS)
        seal(sealed)

    compact_while(sealed, others)
    assert left(sealed) == ["2:a 2", "5:d 1", "6:b ", "7:c 2", "8:a 9", "9:c 9"]
    assert bounds(sealed) == [(0, 8), (8, 10)]
    assert sealed.topic("orders").describe()["partitions"][0]["first_dirty_offset"] == 8


def test_a_topic_made_again_meanwhile_is_not_touched(sealed):
    def others() -> None:
        sealed.delete_topic("orders")
        topic_with(sealed, "orders", CONFIG)
        append(sealed, ("x", "1"), ("x", "2"), time_ms=GOLDEN_MS)

    assert compact_while(sealed, others)["action"] == "lost to another job"
    assert left(sealed) == ["0:x 1", "1:x 2"]


def test_files_that_are_too_old_by_the_commit_are_not_named(sealed):
    rows, now_ms = live(sealed, "orders"), sealed.storage.now_ms()
    clock = [now_ms]

    def asleep(_: str, go):
        clock[0] = now_ms + OLDEST_CHUNK_MS + 60_000  # the file is some ms younger than the job
        return go()

    with store_clock(lambda: clock[0]):
        (line,) = compact(opened(sealed, PlayedFiles(stream=asleep)), now_ms=GOLDEN_MS).partitions
    assert line["action"] == "failed" and "too old" in line["error"]
    assert live(sealed, "orders") == rows


def values(log: LogDir) -> dict[str, str]:
    """What a consumer of the topic ends up with: the newest value of each key that has any."""
    newest = {one["key"].decode(): one["value"] for one in contents(log, "orders")}
    return {key: value.decode() for key, value in newest.items() if value is not None}


@pytest.fixture
def retained(log) -> tuple[LogDir, int]:
    """A topic whose first segment is clean and has left the log, and the version that had it still.

    It holds the value of a key that the next segment, which is dirty, has the tombstone of.
    """
    topic_with(log, "orders", CONFIG | {"delete.retention.ms": 0})
    append(log, ("a", "1"), ("b", "1"), time_ms=GOLDEN_MS)
    seal(log)
    compact(log, now_ms=GOLDEN_MS)
    append(log, ("b", None), ("c", "1"), time_ms=GOLDEN_MS)
    seal(log)
    version = log.topic("orders").snapshot.version
    log.topic("orders").delete_records({0: 2})
    retain(log)
    assert bounds(log) == [(2, 4)]
    return log, version


def test_a_restore_during_a_compaction_brings_no_deleted_value_back(retained):
    log, version = retained
    line = compact_while(log, lambda: restore(log, topics=["orders"], version=version))
    assert line["action"] == "lost to another job"
    assert log.topic("orders").snapshot.partition(0).first_dirty_offset == 2
    for value in ("1", "2"):  # the tombstone gets its horizon, then it goes
        append(log, ("d", value), time_ms=GOLDEN_MS)
        seal(log)
        compact(log, now_ms=GOLDEN_MS + DAY_MS)
    assert left(log) == ["0:a 1", "3:c 1", "5:d 2"]
    assert values(log) == {"a": "1", "c": "1", "d": "2"}
    assert verify(log, deep=True).ok


def test_a_restore_that_takes_a_deletion_of_records_back_undoes_the_round(sealed):
    version = sealed.topic("orders").snapshot.version
    sealed.topic("orders").delete_records({0: 6})
    line = compact_while(sealed, lambda: restore(sealed, topics=["orders"], version=version))
    assert (line["action"], bounds(sealed)) == ("lost to another job", [(0, 4), (4, 8), (8, 9)])
    assert sealed.topic("orders").snapshot.partition(0).first_dirty_offset == 0
    compact(sealed, now_ms=GOLDEN_MS)
    assert left(sealed) == ["2:a 2", "5:d 1", "6:b ", "7:c 2", "8:a 9"]


def test_a_segment_that_comes_back_into_a_gap_undoes_the_round(sealed):
    first, *others = live(sealed, "orders")
    manifest = sealed.topic("orders").manifest
    manifest.commit(lambda _: Change("restore", drop=[first]))

    def comes_back() -> None:
        manifest.commit(lambda _: Change("restore", add=[first]))

    assert compact_while(sealed, comes_back)["action"] == "lost to another job"
    assert live(sealed, "orders") == [first, *others]
    compact(sealed, now_ms=GOLDEN_MS)
    assert left(sealed) == ["2:a 2", "5:d 1", "6:b ", "7:c 2", "8:a 9"]


def test_a_last_stable_offset_that_goes_back_undoes_the_round(sealed):
    before = live(sealed, "orders")
    row = sealed.topic("orders").snapshot.partition(0)

    def reopen() -> None:
        back = dataclasses.replace(row, last_stable_offset=5)
        sealed.topic("orders").manifest.commit(lambda _: Change("test", partitions=[back]))

    assert compact_while(sealed, reopen)["action"] == "lost to another job"
    assert live(sealed, "orders") == before
