"""Commits that race, fail, get lost or come late: nothing is lost, nothing is there twice."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_segments.errors import (
    CommitConflictError,
    LogDirError,
    SegmentsError,
    StorageError,
    TopicExistsError,
    UnknownOutcomeError,
)
from spark_segments.log.appending.offset_assignment import commit_append
from spark_segments.log.manifest import commit as commit_module
from spark_segments.log.manifest import row_files
from spark_segments.log.manifest.delta_log import CommitFailedError, CommitNote, VersionTakenError
from spark_segments.log.manifest.delta_rs import DeltaRsLog
from spark_segments.log.manifest.manifest import Change, Manifest
from spark_segments.log.manifest.row_files import FileChange
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.storage import Storage
from spark_segments.storage.filesystem import WritableFile
from spark_segments.storage.local import LocalFiles
from tests.log.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_manifest, new_partitions
from tests.log.played_log import Late, Play, committed_but_reply_lost, lost_race, store_failed

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
        results.put((writer, version, commit_append(manifest, [chunk], ("app", version))))


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
    reports = [results.get(timeout=120) for _ in range(writers * count)]
    for process in started:
        process.join()
    return reports


def assert_log_is_whole(manifest: Manifest) -> dict[int, list[Segment]]:
    """Offsets are dense from 0 to the log end, and no file is there twice."""
    snapshot = manifest.snapshot()
    found = {}
    for partition in snapshot.partitions.to_pylist():
        rows = snapshot.live_of(partition["partition"])
        ends = [0, *(row.next_offset for row in rows)]
        assert [row.base_offset for row in rows] == ends[:-1]
        assert ends[-1] == partition["log_end_offset"]
        found[partition["partition"]] = rows
    paths = [row.path for rows in found.values() for row in rows]
    assert len(paths) == len(set(paths))
    return found


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def manifest(tmp_path, play) -> Manifest:
    """A topic of three partitions at version 0."""
    return new_manifest(tmp_path, open_delta_log=play)


class FullDisk(LocalFiles):
    """Local files where a test decides when the disk is full. `before` is called first."""

    full = False

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def create(self, path: str) -> WritableFile:
        if self.full:
            self._before()
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)


@pytest.mark.slow
def test_racing_processes_get_dense_offsets_and_every_reply_is_true(tmp_path):
    manifest = new_manifest(tmp_path)
    reports = race(append_many, tmp_path, writers=4, count=50)
    log = assert_log_is_whole(manifest)
    assert len(log[0]) == 200
    there = {(row.partition, row.path): (row.base_offset, row.next_offset - 1) for rows in log.values() for row in rows}
    replied = {
        (partition, new_chunk(partition, unique=f"{writer:02x}{number:06x}").path): offsets
        for writer, number, given in reports
        for partition, offsets in given.items()
    }
    assert replied == there
    # 201 commits, and compactions on the way.
    assert len([file for file in manifest.log.state().files if file.kind == "segment"]) < 100


@pytest.mark.slow
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
            manifest.create(f"id-{number}", {"creator": str(number)}, new_partitions(2, f"id-{number}"))
        except TopicExistsError:
            return None
        return f"id-{number}"

    with ThreadPoolExecutor(6) as pool:
        [winner] = [name for name in pool.map(create, range(6)) if name is not None]
    snapshot = Manifest(Storage(str(tmp_path)), TOPIC).snapshot()
    assert snapshot.topic_id == winner
    assert snapshot.config == {"creator": winner.removeprefix("id-")}
    assert snapshot.version == 0


def test_a_creator_whose_reply_is_lost_has_made_the_topic(tmp_path, play):
    play.next("create", committed_but_reply_lost)
    assert new_manifest(tmp_path, open_delta_log=play).snapshot().topic_id == TOPIC_ID


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
        manifest.commit(lambda snapshot: Change("retain", replace=[chunk.removed(1)]))
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
        manifest.create("second", {}, new_partitions(3, "second"))
        go()

    play.commits(made_again)
    with pytest.raises(CommitConflictError, match="made again"):
        commit_append(manifest, [new_chunk()])
    assert assert_log_is_whole(manifest)[0] == []


def test_a_creator_that_the_store_fails_makes_no_topic(tmp_path, play):
    def refused(topic, go) -> None:
        raise CommitFailedError("\x1b[31m↳\x1b[0m connection\n refused")

    play.always("create", refused)
    with pytest.raises(UnknownOutcomeError, match="may have been made, or may be made yet: connection refused"):
        new_manifest(tmp_path, open_delta_log=play)
    assert not Manifest(Storage(str(tmp_path)), TOPIC).exists()


def test_a_store_that_fails_for_a_moment_is_tried_again(manifest, play):
    play.commits(store_failed, lost_race, store_failed)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}
    assert len(assert_log_is_whole(manifest)[0]) == 1


def test_a_store_that_keeps_failing_is_an_error_that_promises_nothing(manifest, play):
    play.commits(*[store_failed] * 100)
    with pytest.raises(UnknownOutcomeError, match=r"may happen yet.*connection refused"):
        commit_append(manifest, [new_chunk()])
    assert play.calls["commit_on"] == commit_module.FAILURES
    assert manifest.snapshot().version == 0


def test_a_commit_that_always_comes_second_gives_up_in_the_end(manifest, play, monkeypatch):
    monkeypatch.setattr(commit_module, "TRIES", 4)
    rival = DeltaRsLog(manifest.storage, TOPIC)

    def overtaken(go) -> None:
        rival.commit_on(rival.open(), FileChange([], []), CommitNote("rival", 0, "test"), {})
        go()

    play.commits(*[overtaken] * 100)
    with pytest.raises(CommitConflictError, match="4 times"):
        commit_append(manifest, [new_chunk()])
    assert play.calls["commit_on"] == 4
    assert assert_log_is_whole(manifest)[0] == []


def test_a_log_that_cannot_be_read_after_a_failure_is_not_taken_for_a_failure(manifest, play):
    def down(topic, go) -> None:
        raise StorageError("the network is down")

    def committed_and_cut_off(go) -> None:
        play.always("open", down)
        play.always("log_files", down)
        committed_but_reply_lost(go)

    play.commits(committed_and_cut_off)
    with pytest.raises(UnknownOutcomeError, match=r"may have happened.*added once"):
        commit_append(manifest, [new_chunk()], ("app", 1))
    play.always("open", None)
    play.always("log_files", None)
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


@pytest.mark.parametrize("lands", [True, False])
def test_an_error_of_writing_after_a_try_of_unknown_outcome_is_told_apart(tmp_path, play, lands):
    late = Late()
    disk = FullDisk(before=late.land if lands else lambda: None)
    manifest = new_manifest(tmp_path, open_delta_log=play, filesystem=disk)

    def late_while_the_disk_fills_up(go) -> None:
        disk.full = True
        late(go)

    play.commits(late_while_the_disk_fills_up)
    if lands:
        assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}
        assert manifest.snapshot().version == 1
        return
    with pytest.raises(UnknownOutcomeError, match=r"append may have happened.*No space left.*with a txn") as raised:
        commit_append(manifest, [new_chunk()])
    assert "nothing was committed" not in str(raised.value)


def test_an_error_of_writing_before_anything_was_sent_is_sure(tmp_path, play):
    disk = FullDisk()
    manifest = new_manifest(tmp_path, open_delta_log=play, filesystem=disk)
    disk.full = True
    with pytest.raises(StorageError, match="No space left"):
        commit_append(manifest, [new_chunk()])
    assert play.calls["commit_on"] == 0


def test_a_topic_that_is_made_newer_meanwhile_does_not_hide_the_commit(manifest, play):
    """The log can be listed and looked through although this version cannot open it any more."""

    def newer(topic, go) -> None:
        raise LogDirError("Topic orders was written by a newer version of this package")

    def committed_then_upgraded(go) -> None:
        play.always("open", newer)
        committed_but_reply_lost(go)

    play.commits(committed_then_upgraded)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}


def test_a_creator_that_cannot_write_again_after_a_lost_request_does_not_call_it_a_failure(tmp_path, play):
    disk = FullDisk()

    def lost_while_the_disk_fills_up(go) -> None:
        disk.full = True
        raise CommitFailedError("timed out")

    play.next("create", lost_while_the_disk_fills_up)
    with pytest.raises(UnknownOutcomeError, match="may have been made"):
        new_manifest(tmp_path, open_delta_log=play, filesystem=disk)


@pytest.mark.slow
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


def test_what_a_try_wrote_for_unchanged_files_serves_the_next_try(tmp_path, play, monkeypatch):
    monkeypatch.setitem(row_files.ROWS_A_FILE, "segment", 100)
    manifest = Manifest(Storage(str(tmp_path)), TOPIC, play)
    segments = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]
    ends = [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)]
    manifest.create(TOPIC_ID, {}, ends, segments)

    def overtaken(go) -> None:
        commit_append(manifest, [new_chunk()])
        go()

    play.commits(overtaken)
    manifest.commit(lambda snapshot: Change("retain", replace=[snapshot.live_of(n)[0].removed(1) for n in range(4)]))
    written = manifest.storage.list(f"{manifest.log.directory}/kind=segment")
    assert len(written) == 4 + 1 + 4
    assert manifest.snapshot().live.num_rows == 397
