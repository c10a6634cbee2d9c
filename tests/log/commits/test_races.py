"""Commits that race: nothing is lost, nothing is there twice."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_segments.errors import CommitConflictError, TopicExistsError, TransactionOrderError
from spark_segments.storage import Storage
from tests.log.commits.whole_log import assert_log_is_whole
from verification.world.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_manifest, new_partitions
from verification.world.clock import PATIENCE_SECONDS
from verification.world.manifest_rows import Change, Manifest, Partition, TopicRow, commit_append, removed_by_retention
from verification.world.opened import DeltaLog
from verification.world.stores.played_log import CommitNote, FileChange, Play

_processes = multiprocessing.get_context("spawn")


def append_many(root: Path, writer: int, commits: int, barrier, results) -> None:
    """A process that appends `commits` times, to partition 0 and to one that changes."""
    manifest = Manifest(Storage(str(root)), TOPIC)
    barrier.wait()
    for number in range(commits):
        chunks = [
            new_chunk(0, 1 + number % 3, unique=f"{writer:02x}{number:06x}"),
            new_chunk(1 + number % 2, 2, unique=f"{writer:02x}{number:06x}"),
        ]
        results.put((writer, number, commit_append(manifest, chunks)))


def append_transactions(root: Path, writer: int, versions: int, barrier, results) -> None:
    """A process that appends transactions which another process appends as well."""
    manifest = Manifest(Storage(str(root)), TOPIC)
    barrier.wait()
    for version in range(versions):
        chunk = new_chunk(0, unique=f"{writer:02x}{version:06x}")
        try:
            results.put((writer, version, commit_append(manifest, [chunk], ("app", version))))
        except TransactionOrderError:  # the other process is further, and has added it
            results.put((writer, version, {}))


def die_before_commit(root: Path) -> None:
    """A process that is gone after it wrote the manifest's files and before it commits them."""
    play = Play()
    play.commits(lambda go: os._exit(9))
    commit_append(Manifest(Storage(str(root)), TOPIC, play), [new_chunk(0, unique="dead")])


def race(target, root: Path, writers: int, count: int) -> list[tuple[int, int, dict[int, tuple[int, int]]]]:
    """Runs processes that all start at the same moment, and collects what they report."""
    barrier, results = _processes.Barrier(writers), _processes.Queue()
    started = [
        _processes.Process(target=target, args=(root, writer, count, barrier, results)) for writer in range(writers)
    ]
    for process in started:
        process.start()
    reports = [results.get(timeout=PATIENCE_SECONDS) for _ in range(writers * count)]
    for process in started:
        process.join()
    return reports


@pytest.mark.proof
def test_racing_processes_get_dense_offsets_and_every_reply_is_true(tmp_path):
    manifest = new_manifest(tmp_path)
    reports = race(append_many, tmp_path, writers=4, count=25)
    log = assert_log_is_whole(manifest)
    assert len(log[0]) == 100
    there = {(row.partition, row.path): (row.base_offset, row.next_offset - 1) for rows in log.values() for row in rows}
    replied = {
        (partition, new_chunk(partition, unique=f"{writer:02x}{number:06x}").path): offsets
        for writer, number, given in reports
        for partition, offsets in given.items()
    }
    assert replied == there
    # 201 commits, and compactions on the way.
    assert len([file for file in manifest.log.state().files if file.kind == "segment"]) < 100


@pytest.mark.proof
def test_a_transaction_that_two_processes_send_at_once_is_added_once(tmp_path):
    manifest = new_manifest(tmp_path)
    reports = race(append_transactions, tmp_path, writers=2, count=25)
    rows = assert_log_is_whole(manifest)[0]
    assert len(rows) == 25
    given = {version: offsets for _, version, offsets in reports if offsets}
    assert given == {version: {0: (10 * version, 10 * version + 9)} for version in range(25)}
    assert len([offsets for _, _, offsets in reports if offsets]) == 25


def test_one_of_many_creators_wins(tmp_path):
    barrier = threading.Barrier(6)

    def create(number: int) -> str | None:
        manifest = Manifest(Storage(str(tmp_path)), TOPIC)
        barrier.wait()
        try:
            manifest.create(TopicRow(f"id-{number}", {"creator": str(number)}), new_partitions(2, f"id-{number}"))
        except TopicExistsError:
            return None
        return f"id-{number}"

    with ThreadPoolExecutor(6) as pool:
        [winner] = [name for name in pool.map(create, range(6)) if name is not None]
    snapshot = Manifest(Storage(str(tmp_path)), TOPIC).snapshot()
    assert snapshot.topic_id == winner
    assert snapshot.config == {"creator": winner.removeprefix("id-")}
    assert snapshot.version == 0


def test_a_lost_race_gives_out_offsets_anew(manifest, play):

    def overtaken(go) -> None:
        commit_append(manifest, [new_chunk(0, 5)])
        go()  # delta-rs itself refuses it

    play.commits(overtaken)
    assert commit_append(manifest, [new_chunk(0, 3)]) == {0: (5, 7)}
    assert [row.records for row in assert_log_is_whole(manifest)[0]] == [5, 3]


def test_a_transaction_that_another_process_commits_meanwhile_adds_nothing(manifest, play):

    def overtaken(go) -> None:
        assert commit_append(manifest, [new_chunk(0, 5)], ("app", 1)) == {0: (0, 4)}
        go()

    play.commits(overtaken)
    assert commit_append(manifest, [new_chunk(0, 3)], ("app", 1)) == {}
    assert [row.records for row in assert_log_is_whole(manifest)[0]] == [5]


def test_a_plan_that_does_not_hold_any_more_is_dropped(manifest, play):
    commit_append(manifest, [new_chunk()])
    [chunk] = manifest.snapshot().live_of(0)
    sealed = new_chunk()

    def taken_by_retention(go) -> None:
        manifest.commit(lambda snapshot: removed_by_retention(snapshot, [chunk], 1))
        go()

    def roll(snapshot) -> Change | None:
        holds = chunk in snapshot.live_of(0)
        return Change("roll", add=[sealed], replace=[chunk.removed(2)]) if holds else None

    play.commits(taken_by_retention)
    assert manifest.commit(roll).change is None
    assert manifest.snapshot().live.num_rows == 0


def test_a_topic_made_again_between_two_tries_refuses_the_append(manifest, play):

    def made_again(go) -> None:
        manifest.delete()
        manifest.create(TopicRow("second", {}), new_partitions(3, "second"))
        go()

    play.commits(made_again)
    with pytest.raises(CommitConflictError, match="made again"):
        commit_append(manifest, [new_chunk()])
    assert assert_log_is_whole(manifest)[0] == []


def test_a_commit_that_always_comes_second_gives_up_in_the_end(manifest, play, limits):
    limits(COMMIT_TRIES=4)
    rival = DeltaLog(manifest.storage, TOPIC)

    def overtaken(go) -> None:
        rival.commit_on(rival.open(), FileChange([], []), CommitNote("rival", 0, "test"), {})
        go()

    play.commits(*[overtaken] * 100)
    with pytest.raises(CommitConflictError, match="4 times"):
        commit_append(manifest, [new_chunk()])
    assert play.calls["commit_on"] == 4
    assert assert_log_is_whole(manifest)[0] == []


@pytest.mark.rule("W1")
def test_a_writer_killed_between_files_and_commit_leaves_the_log_as_it_was(tmp_path):
    manifest = new_manifest(tmp_path)
    commit_append(manifest, [new_chunk()])
    before = manifest.snapshot()
    process = _processes.Process(target=die_before_commit, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 9
    after = manifest.snapshot()
    assert after.version == before.version
    assert after.segments == before.segments
    assert after.partitions == before.partitions
    written = {info.path for info in manifest.storage.list(f"{manifest.log.directory}/kind=segment")}
    assert len(written) == 2  # one is nobody's, for vacuum
    assert commit_append(manifest, [new_chunk()]) == {0: (10, 19)}


def test_what_a_try_wrote_for_unchanged_files_serves_the_next_try(tmp_path, play, limits):
    limits(SEGMENT_ROWS_A_FILE=100)
    manifest = Manifest(Storage(str(tmp_path)), TOPIC, play)
    segments = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]
    ends = [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)]
    manifest.create(TopicRow(TOPIC_ID, {}), ends, segments)

    def overtaken(go) -> None:
        commit_append(manifest, [new_chunk()])
        go()

    play.commits(overtaken)
    manifest.commit(lambda at: removed_by_retention(at, [at.live_of(number)[0] for number in range(4)], 1))
    written = manifest.storage.list(f"{manifest.log.directory}/kind=segment")
    assert len(written) == 4 + 1 + 4
    assert manifest.snapshot().live.num_rows == 397
