"""Vacuum: which files go and when, what a crash leaves, and whom it must not take anything from."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError, LogDirError, SegmentsError, StorageError, UnknownTopicError
from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.log.manifest.state.recovery_copy import read_recovery_copy
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from spark_segments.storage import Storage
from verification.world.clock import ORPHAN_AGE_MS, store_clock
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play
from verification.world.topics import (
    DAY_MS,
    GOLDEN_MS,
    Appender,
    append_one_by_one,
    contents,
    later,
    live,
    records,
    topic_with,
)

VACUUM = sys.modules["spark_segments.maintenance.removal.vacuum"]
DELAY_MS = 60_000
REMOVED = 33  # of 40 chunks, eleven of which fill a segment; seven stay


def rolled_topic(log: LogDir, topic: str = "orders", partitions: int = 1) -> None:
    """A topic whose chunks were removed at GOLDEN_MS, by the store's clock."""
    topic_with(log, topic, {"segment.bytes": 2000, "file.delete.delay.ms": DELAY_MS}, partitions)
    for number in range(partitions):
        append_one_by_one(log, topic, records(40), partition=number)
    with store_clock(GOLDEN_MS):
        roll(log, topics=[topic], now_ms=GOLDEN_MS)


def files(log: LogDir, directory: str = "orders-0") -> set[str]:
    return {file.path for file in log.storage.list(directory)}


def named(log: LogDir, topic: str = "orders") -> set[str]:
    found = set()
    for segment in live(log, topic):
        found |= {segment.path, segment.index_path, segment.time_index_path}
    return found


def make_old(log: LogDir, path: str, age_ms: int) -> None:
    seconds = (log.storage.now_ms() - age_ms) / 1000
    os.utime(Path(log.uri.removeprefix("file://")) / path, (seconds, seconds))


@pytest.mark.rule("W18")
def test_removed_files_go_after_the_delay_and_then_their_rows(log):
    rolled_topic(log)
    before, all_files = contents(log, "orders"), files(log)
    assert vacuum(log, now_ms=GOLDEN_MS + DELAY_MS).partitions == []
    assert files(log) == all_files
    (line,) = vacuum(log, now_ms=GOLDEN_MS + DELAY_MS + 1).partitions
    assert (line["action"], line["removed_segments"], line["orphan_files"]) == ("vacuum", REMOVED, 0)
    assert files(log) == named(log)
    assert log.topic("orders").snapshot.segments.num_rows == len(live(log, "orders"))
    assert contents(log, "orders") == before
    assert vacuum(log, now_ms=GOLDEN_MS + DELAY_MS + 1).partitions == []
    assert verify(log, deep=True).ok


@pytest.mark.parametrize("job", [retain, compact])
def test_producer_snapshots_go_with_their_segments(log, job):
    config = {"cleanup.policy": "compact,delete", "retention.ms": 1, "file.delete.delay.ms": DELAY_MS}
    log.import_kafka(str(golden_dir("txn-compact/dirty/txnc-0")), config=config)

    def snapshots() -> set[str]:
        return {path for path in files(log, "txnc-0") if path.endswith(".snapshot")}

    def of_live() -> set[str]:
        return {f"{segment.stem}.snapshot" for segment in live(log, "txnc")}

    before = snapshots()
    assert before <= of_live() and len(before) > 2
    later_ms = GOLDEN_MS + 365 * DAY_MS
    with store_clock(later_ms):
        job(log, now_ms=later_ms)
    assert snapshots() == before and not before <= of_live()
    vacuum(log, now_ms=later_ms + DELAY_MS + 1)
    assert snapshots() == before & of_live()


def test_a_dry_run_says_what_would_go(log):
    rolled_topic(log)
    make_orphan(log, "orders-0/lost.log", ORPHAN_AGE_MS + 60_000)
    version, all_files = log.topic("orders").snapshot.version, files(log)
    dry = vacuum(log, now_ms=GOLDEN_MS + 2 * DELAY_MS, dry_run=True).to_dict()
    assert (log.topic("orders").snapshot.version, files(log)) == (version, all_files)
    done = vacuum(log, now_ms=GOLDEN_MS + 2 * DELAY_MS).to_dict()
    assert done["partitions"] == dry["partitions"]
    assert done["partitions"][0]["removed_segments"] == REMOVED and done["partitions"][0]["orphan_files"] == 1


def make_orphan(log: LogDir, path: str, age_ms: int) -> None:
    log.storage.write(path, b"orphan")
    make_old(log, path, age_ms)


def test_files_that_no_row_names_go_by_the_stores_clock_alone(log):
    rolled_topic(log)
    lost = "orders-0/00000000000000000000.0123456789abcdef0123456789abcdef"
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        make_orphan(log, lost + suffix, ORPHAN_AGE_MS + 60_000)
    make_orphan(log, "orders-0/00000000000000000001.young.log", ORPHAN_AGE_MS - 60_000)
    make_orphan(log, "orders-extra-0/of-another-topic.log", ORPHAN_AGE_MS + 60_000)
    make_orphan(log, "orders/in-no-partition.log", ORPHAN_AGE_MS + 60_000)
    for segment in live(log, "orders"):  # what is named stays, however old it is
        make_old(log, segment.path, 100 * ORPHAN_AGE_MS)
    before = contents(log, "orders")
    vacuum(log, topics=["orders"], now_ms=GOLDEN_MS)
    assert "orders-0/00000000000000000001.young.log" in files(log)
    assert not any(path.startswith(lost) for path in files(log))
    # A clock that is far ahead moves nobody's files.
    vacuum(log, topics=["orders"], now_ms=GOLDEN_MS + 1000 * ORPHAN_AGE_MS)
    assert "orders-0/00000000000000000001.young.log" in files(log)
    assert log.storage.exists("orders-extra-0/of-another-topic.log")
    assert log.storage.exists("orders/in-no-partition.log")
    assert contents(log, "orders") == before


def test_files_beside_a_removed_row_that_is_still_there_are_not_orphans(log):
    rolled_topic(log)
    for path in files(log):
        make_old(log, path, ORPHAN_AGE_MS + 60_000)
    all_files = files(log)
    assert vacuum(log, now_ms=GOLDEN_MS).partitions == []
    assert files(log) == all_files


def test_a_file_that_is_committed_after_the_listing_stays(log, monkeypatch):
    """The manifest is read after the listing, so it names whatever a commit between the two has added."""
    rolled_topic(log)
    run_tasks = VACUUM.run_tasks

    def then_append(function, tasks, spark=None, **options):
        done = run_tasks(function, tasks, spark, **options)
        if getattr(function, "func", None) is VACUUM._list_old_files:
            append_one_by_one(log, "orders", records(3, first=40))
            added = [segment.path for segment in live(log, "orders")[-3:]]
            return [*done, [file for file in log.storage.list("orders-0") if file.path in added]]
        return done

    monkeypatch.setattr(VACUUM, "run_tasks", then_append)
    assert vacuum(log, now_ms=GOLDEN_MS).partitions == []
    assert len(contents(log, "orders")) == 43


class Crash(BaseException):
    """The process died."""


@pytest.mark.parametrize("step", ["before the files", "before the rows"])
def test_a_crash_leaves_rows_that_say_what_is_to_be_done(log, step):
    rolled_topic(log)
    before = contents(log, "orders")

    def crash(*_):
        raise Crash

    if step == "before the files":
        dying = opened(log, PlayedFiles(delete=crash))
    else:
        dying = opened(log, open_delta_log=Play().before_commits(None, crash))
    with pytest.raises(Crash):
        vacuum(dying, now_ms=GOLDEN_MS + DELAY_MS + 1)
    assert contents(log, "orders") == before
    # Even when the clock says that it is too early: the files may be gone already.
    (line,) = vacuum(log, now_ms=GOLDEN_MS).partitions
    assert line["removed_segments"] == REMOVED
    assert files(log) == named(log)
    assert contents(log, "orders") == before


def test_deleted_topics_lose_their_files(log):
    rolled_topic(log, partitions=2)
    rolled_topic(log, "payments")
    log.delete_topic("orders")
    now_ms = log.storage.now_ms()
    assert {line["topic"] for line in vacuum(log, now_ms=GOLDEN_MS).partitions} == set()
    lines = vacuum(log, topics=["orders"], now_ms=now_ms + DELAY_MS + 60_000).partitions
    assert [line["partition"] for line in lines] == [0, 1]
    assert files(log, "orders-0") == files(log, "orders-1") == set()
    assert contents(log, "payments") and log.topics() == ["payments"]


@pytest.mark.proof
def test_a_deleted_topics_recovery_copies_go_with_its_last_rows(log):
    rolled_topic(log)
    log.topic("orders").manifest.merge_files()
    log.delete_topic("orders")
    now_ms = log.storage.now_ms()
    vacuum(log, now_ms=now_ms)
    assert log.storage.list("_recovery/orders", recursive=True)
    for _ in range(2):  # the second vacuum leaves no new copy
        vacuum(log, now_ms=now_ms + DELAY_MS + 60_000)
        assert not log.storage.list("_recovery/orders", recursive=True)
    topic_with(log, "orders", {})
    append_one_by_one(log, "orders", records(3))
    log.topic("orders").manifest.merge_files()
    assert read_recovery_copy(log.storage, "orders").snapshot.segments.num_rows == 3


def test_a_topic_made_again_keeps_its_files(log):
    rolled_topic(log)
    old = files(log)
    log.delete_topic("orders")
    topic_with(log, "orders", {"file.delete.delay.ms": DELAY_MS})
    append_one_by_one(log, "orders", records(3))
    vacuum(log, now_ms=log.storage.now_ms() + DELAY_MS + 60_000)
    assert not files(log) & old
    assert files(log) == named(log)
    assert len(contents(log, "orders")) == 3
    assert verify(log, deep=True).ok


def test_a_deleted_topics_files_go_by_its_own_delay(log):
    def made(delay_ms: int | None) -> set[str]:
        topic_with(log, "orders", {} if delay_ms is None else {"file.delete.delay.ms": delay_ms})
        before = files(log)
        append_one_by_one(log, "orders", records(3))
        return files(log) - before

    long = made(10 * DAY_MS)
    log.delete_topic("orders")
    default = made(None)
    log.delete_topic("orders")
    live = made(DELAY_MS)
    log.topic("orders").alter({"retention.ms": "5"})  # a row that is written again forgets nothing
    now_ms = log.storage.now_ms()
    for later_ms, there in (
        (DAY_MS // 2, long | default | live),
        (2 * DAY_MS, long | live),
        (11 * DAY_MS, live),
    ):
        vacuum(log, now_ms=now_ms + later_ms)
        assert files(log) == there
    assert len(contents(log, "orders")) == 3
    assert len(log.topic("orders").snapshot.deleted_topics) == 2
    log.delete_topic("orders")
    made(None)
    assert len(log.topic("orders").snapshot.deleted_topics) == 1  # those without rows are forgotten


def test_a_topic_made_again_with_a_longer_delay_keeps_nothing_longer(log):
    topic_with(log, "orders", {"file.delete.delay.ms": DELAY_MS})
    append_one_by_one(log, "orders", records(3))
    log.delete_topic("orders")
    topic_with(log, "orders", {"file.delete.delay.ms": 10 * DAY_MS})
    vacuum(log, now_ms=log.storage.now_ms() + DELAY_MS + 60_000)
    assert files(log) == set()


def test_a_reader_of_an_old_snapshot_is_served_until_the_delay_has_passed(log):
    topic_with(log, "orders", {"segment.bytes": 2000, "retention.bytes": 2000, "file.delete.delay.ms": DELAY_MS})
    append_one_by_one(log, "orders", records(40))
    batches = log.topic("orders").scan().batches()
    with store_clock(GOLDEN_MS):
        roll(log, now_ms=GOLDEN_MS)
        retain(log, now_ms=GOLDEN_MS)
    vacuum(log, now_ms=GOLDEN_MS + DELAY_MS)
    assert sum(batch.num_rows for batch in batches) == 40
    assert log.topic("orders").offsets()[0][0] > 0


def test_old_manifest_files_go(log):
    rolled_topic(log)
    for n in range(30):
        log.topic("orders").alter({"retention.ms": str(n + 1)})
    manifest = [file.path for file in log.storage.list("_manifest/orders", recursive=True)]
    later_ms = later(log, 1)
    for path in manifest:
        make_old(log, path, 3 * DAY_MS)
    report = vacuum(log, now_ms=later_ms).to_dict()
    assert report["details"]["manifest_files"] > 30 and report["details"]["manifest_bytes"] > 0
    assert len(contents(log, "orders")) == 40
    assert log.topic("orders").config.retention_ms == 30


def test_topics_are_looked_up_and_kafkas_directories_refused(log):
    with pytest.raises(UnknownTopicError, match="orders"):
        vacuum(log, topics=["orders"])
    with pytest.raises(LogDirError, match="Import it"):
        vacuum(LogDir.open(str(golden_dir("broker-data"))))


@pytest.mark.proof
def test_many_files_go_in_waves_of_one_commit_each(log, limits):
    rolled_topic(log, partitions=3)
    limits(SEGMENTS_A_WAVE=50, SEGMENTS_A_TASK=7, DIRECTORIES_A_WAVE=2, DIRECTORIES_A_TASK=1)
    make_orphan(log, "orders-2/lost.log", ORPHAN_AGE_MS + 60_000)
    before = contents(log, "orders")
    lines = vacuum(log, now_ms=GOLDEN_MS + DELAY_MS + 1).partitions
    assert [(line["removed_segments"], line["orphan_files"]) for line in lines] == [
        (REMOVED, 0),
        (REMOVED, 0),
        (REMOVED, 1),
    ]
    drops = [one for one in log.topic("orders").manifest.history() if one["operation"] == "vacuum"]
    assert len(drops) == 1 + 2 + 1  # the mark, 99 rows in waves of 50, and the version before a file without a row goes
    assert contents(log, "orders") == before


def test_a_vacuum_that_fails_in_a_later_wave_reports_the_waves_before(log, limits):
    rolled_topic(log, partitions=3)
    limits(SEGMENTS_A_WAVE=REMOVED)

    def gone(*_):
        raise StorageError("The disk is gone")

    play = Play().before_commits(None, None, None)  # all rows are claimed, and those of two waves dropped
    play.always("commit_on", gone)
    limits(COMMIT_FAILURES=1, COMMIT_PAUSE_SECONDS=0.0)
    report = vacuum(opened(log, open_delta_log=play), now_ms=GOLDEN_MS + DELAY_MS + 1)
    assert [(line["partition"], line["removed_segments"]) for line in report.partitions[:-1]] == [
        (0, REMOVED),
        (1, REMOVED),
    ]
    assert [(line["topic"], line["partition"]) for line in report.failed] == [("orders", None)]
    (rest,) = vacuum(log, now_ms=GOLDEN_MS + DELAY_MS + 1).partitions
    assert (rest["partition"], rest["removed_segments"]) == (2, REMOVED)


def test_a_delay_that_is_raised_before_the_files_are_claimed_is_respected(log):
    rolled_topic(log)
    there = files(log)
    play = Play().before_commits(partial(log.topic("orders").alter, {"file.delete.delay.ms": str(DAY_MS)}))
    assert vacuum(opened(log, open_delta_log=play), now_ms=GOLDEN_MS + DELAY_MS + 1).partitions == []
    assert files(log) == there


def test_a_delay_that_is_raised_while_files_are_deleted_keeps_the_versions_of_the_manifest(log):
    rolled_topic(log)
    for n in range(5):
        log.topic("orders").alter({"retention.ms": str(n + 1)})
    now_ms = later(log, 1)

    def altered(done: int, total: int) -> None:
        log.topic("orders").alter({"file.delete.delay.ms": str(2 * DAY_MS)})

    assert vacuum(log, now_ms=now_ms, progress=altered).to_dict()["details"]["manifest_files"] == 0
    assert vacuum(log, now_ms=now_ms + 2 * DAY_MS).to_dict()["details"]["manifest_files"] > 0


def test_a_directory_of_no_topic_is_nobodys_business(log, tmp_path):
    rolled_topic(log)
    Storage(log.uri).write("_manifest/half-made/kind=topic/part-0.parquet", b"crashed while it was made")
    Storage(log.uri).write("notes-7/readme.txt", b"mine")
    make_old(log, "notes-7/readme.txt", 2 * ORPHAN_AGE_MS)
    vacuum(log, now_ms=GOLDEN_MS)
    assert log.storage.exists("notes-7/readme.txt")


@pytest.mark.proof
def test_another_vacuum_at_any_moment_leaves_nothing_undone(log, tmp_path):
    """A second vacuum runs from start to end between any two requests of the first."""
    for topic in ("orders", "payments"):
        rolled_topic(log, topic)
        for n in range(25):
            log.topic(topic).alter({"retention.ms": str(n + 1)})
    for file in log.storage.list("_manifest", recursive=True):
        make_old(log, file.path, 3 * DAY_MS)
    before, now_ms = contents(log, "orders"), later(log, 1)
    requests, moment = 0, 0

    def overlapped(_: object, go):
        nonlocal requests
        requests += 1
        if requests == moment:
            assert vacuum(LogDir.open(str(copy)), now_ms=now_ms).failed == []
        return go()

    files = PlayedFiles(read=overlapped, list=overlapped, delete=overlapped, stream=overlapped, create=overlapped)
    while requests >= moment:
        requests, moment = 0, moment + 7 if moment else 1
        copy = tmp_path / f"copy-{moment}"
        shutil.copytree(log.uri.removeprefix("file://"), copy)
        assert vacuum(opened(copy, files), now_ms=now_ms).failed == []
        mine = LogDir.open(str(copy))
        for topic in ("orders", "payments"):
            left = mine.storage.list(f"{topic}-0")
            assert {file.path for file in left} == named(mine, topic)
            assert contents(mine, topic) == [row | {"topic": topic} for row in before]
    assert moment > 50


@pytest.mark.rule("O4")
def test_chunks_that_have_left_the_log_are_not_committed_again(log):
    """A driver that is run again without a transaction has the same messages, but vacuum has taken the files."""
    topic_with(log, "orders", {"segment.bytes": 2000, "file.delete.delay.ms": DELAY_MS})
    target = append_target(log, "orders")
    chunks = []
    for batch in records(40).to_batches(max_chunksize=1):
        appender = Appender(log.storage, lambda _: target, topic="orders")
        appender.write(batch)
        chunks += appender.close()
    assert commit_chunks(log, "orders", chunks) == {0: (0, 39)}
    with pytest.raises(SegmentsError, match="once only"):
        commit_chunks(log, "orders", chunks)
    roll(log, now_ms=GOLDEN_MS)
    with pytest.raises(SegmentsError, match="once only"):
        commit_chunks(log, "orders", chunks)
    vacuum(log, now_ms=log.storage.now_ms() + 2 * DELAY_MS)
    gone = [one for one in chunks if not log.storage.exists(one.segments[0].path)]
    assert len(gone) == REMOVED
    with pytest.raises(CommitConflictError, match="gone: its records were appended"):
        commit_chunks(log, "orders", gone)
    assert log.topic("orders").offsets() == {0: (0, 40)}
    assert len(contents(log, "orders")) == 40
