"""A manifest that is lost is made anew: exact up to what is known, and what is not known is said."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from random import Random

import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    SegmentsError,
    UnknownOutcomeError,
)
from spark_segments.log.groups.positions import check_position
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.delta.delta_log import FENCED
from spark_segments.log.rebuild.rebuild import ALL, open_damaged, rebuild_manifest
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import roll, vacuum
from tests.log.chunk_rows import new_partitions
from tests.log.manifest.files import forget_cached_rows
from tests.log.rebuild.lost import (
    TOPIC,
    again,
    all_files,
    append,
    commit_file,
    copy,
    files_of_the_log,
    lose_delta_log,
    lose_manifest,
    new_log,
    numbers,
    records,
)
from tests.s3_server import BUCKET

pytestmark = pytest.mark.slow

WEEKS_MS = 60 * 24 * 60 * 60 * 1000


def is_usable(log: LogDir, monkeypatch) -> None:
    """Appends, reads, verifies, rolls and vacuums; then all records are still there."""
    log = again(log, monkeypatch)
    assert verify(log, TOPIC, deep=True).findings == []
    before = numbers(log)
    append(log, 900, 6)
    roll(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)
    assert not [line for line in vacuum(log, topic=TOPIC).to_dict()["partitions"] if "error" in line]
    vacuum(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)
    log = again(log, monkeypatch)
    assert numbers(log) == [*before, *range(900, 906)]
    assert verify(log, TOPIC, deep=True).findings == []


@pytest.mark.parametrize("lose", [lose_manifest, lose_delta_log])
def test_a_topic_is_what_its_copy_says(tmp_path, monkeypatch, lose):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    before, version = log.snapshot(TOPIC), copy(log)
    expected = records(log)
    lose(log)
    log = again(log, monkeypatch)
    files = files_of_the_log(log)

    report = rebuild_manifest(log, TOPIC)

    found = again(log, monkeypatch).snapshot(TOPIC)
    assert (report.copy_version, report.known_version, report.later_files) == (version, version, [])
    assert found.version == report.version == version + FENCED + 2
    assert found.topic_id == report.topic_id != before.topic_id  # commits after the copy may be lost
    assert found.config == before.config
    assert records(log) == expected
    assert files_of_the_log(log) == files
    assert any("Commits after version" in sentence for sentence in report.not_known)
    is_usable(log, monkeypatch)


def test_a_dry_run_changes_nothing(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    version = copy(log)
    append(log, 10)
    lose_manifest(log)
    log = again(log, monkeypatch)
    before = all_files(log)
    report = rebuild_manifest(log, TOPIC, dry_run=True)
    assert all_files(log) == before
    assert (report.dry_run, report.known_version, report.topic_id) == (True, version, None)
    assert {one["status"] for one in report.later_files} == {"can be added"}
    assert sum(one["records"] for one in report.later_files) == 10


def test_what_came_after_the_copy_is_listed_and_added_on_request(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    expected = records(log)
    lose_manifest(log)
    other = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-other")

    log = again(log, monkeypatch)
    assert len(rebuild_manifest(log, TOPIC).later_files) == 4
    assert numbers(log) == [*range(10)]
    is_usable(log, monkeypatch)

    log = again(LogDir.open(str(other)) if (other / "_manifest").exists() else open_damaged(str(other)), monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert {one["status"] for one in report.later_files} == {"added"}
    assert records(log) == expected  # written one after the other, so that their order is known
    is_usable(log, monkeypatch)


def test_a_single_file_can_be_added(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    lose_manifest(log)
    log = again(log, monkeypatch)
    first, second = rebuild_manifest(log, TOPIC, dry_run=True).later_files
    report = rebuild_manifest(log, TOPIC, add=[second["path"]])
    assert [one["status"] for one in report.later_files] == ["can be added", "added"]
    assert numbers(log) == [*range(10), *range(20, 30)]
    assert first["path"] != second["path"]


def test_a_path_that_is_no_such_file_is_refused(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    for path in ("orders-0/x.log", "../../etc/passwd", ""):
        with pytest.raises(InvalidOptionError, match="Not a file that can be added"):
            rebuild_manifest(log, TOPIC, add=[path])


@pytest.mark.parametrize("damage", [b"", b"PAR1 no Parquet", None])
def test_commits_after_a_damaged_checkpoint_are_known(tmp_path, monkeypatch, damage):
    """With every commit known, the topic is the same topic: groups and transactions go on."""
    log = new_log(tmp_path)
    append(log, 0, txn=("app", 1))
    version = copy(log)
    append(log, 10, txn=("app", 2))
    log.alter_topic(TOPIC, {"retention.ms": "77"}, partitions=3)
    log.commit_offsets("readers", {TOPIC: {0: 10}})
    expected, before = records(log), log.snapshot(TOPIC)
    [checkpoint] = Path(tmp_path, "_manifest", TOPIC, "_delta_log").glob("*.checkpoint*.parquet")
    for commit in range(version):  # else Delta needs no checkpoint
        commit_file(log, commit).unlink(missing_ok=True)
    checkpoint.unlink() if damage is None else checkpoint.write_bytes(damage)
    log = again(log, monkeypatch)

    report = rebuild_manifest(log, TOPIC)

    log = again(log, monkeypatch)
    after = log.snapshot(TOPIC)
    assert report.is_exact and report.not_known == []
    assert report.known_version == before.version > version
    assert (after.topic_id, after.config) == (before.topic_id, before.config)
    assert after.partitions.equals(before.partitions)
    assert records(log) == expected
    append(log, 10, txn=("app", 2))
    assert records(log) == expected
    position = log.committed("readers").positions[TOPIC, 0]
    check_position(after, 0, position, "readers")
    is_usable(log, monkeypatch)


def test_a_missing_commit_ends_what_is_known(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    version = copy(log)
    for number in range(1, 5):
        append(log, 10 * number)
    commit_file(log, version + 3).unlink()
    log = again(log, monkeypatch)
    with pytest.raises(SegmentsError):
        log.snapshot(TOPIC)
    report = rebuild_manifest(log, TOPIC)
    assert (report.known_version, report.lost_versions, report.is_exact) == (version + 2, 2, False)
    assert [one["status"] for one in report.later_files] == ["can be added"] * 2
    assert numbers(log) == [*range(30)]
    assert report.version == version + 4 + FENCED + 2
    is_usable(log, monkeypatch)


def test_a_lost_file_of_rows_is_read_from_the_copy(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    expected = records(log)
    for path in Path(tmp_path, "_manifest", TOPIC, "kind=segment").glob("*.parquet"):
        path.write_bytes(b"no Parquet")
    log = again(log, monkeypatch)
    assert rebuild_manifest(log, TOPIC).is_exact
    assert records(again(log, monkeypatch)) == expected
    is_usable(log, monkeypatch)


def test_transactions_of_the_copy_are_remembered(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0, txn=("nightly", 7))
    copy(log)
    append(log, 10, txn=("nightly", 8))
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC)
    assert report.transactions == [{"app_id": "nightly", "version": 7}]
    assert any("Transactions of writers" in sentence for sentence in report.not_known)
    append(log, 0, txn=("nightly", 7))
    assert numbers(log) == [*range(10)]
    append(log, 10, txn=("nightly", 8))
    assert numbers(log) == [*range(20)]


def test_a_group_that_read_further_is_stopped(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    log.commit_offsets("readers", {TOPIC: {0: 20}})
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC)
    assert [(one["group"], one["partition"], one["offset"]) for one in report.groups] == [("readers", 0, 20)]
    assert any("groups have read" in sentence for sentence in report.not_known)
    append(log, 500, 20)  # offsets 10 to 29 again, of other records
    with pytest.raises(OffsetOutOfRangeError, match="made again"):
        check_position(log.snapshot(TOPIC), 0, log.committed("readers").positions[TOPIC, 0], "readers")


def test_shared_objects_stay_shared(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=40)
    append(log, 0, 80)
    copy(log)
    append(log, 80, 80)
    assert log.storage.list(f"{TOPIC}-shared")
    expected = records(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert {one["status"] for one in report.later_files} == {"added"}
    assert len({one["path"] for one in report.later_files}) == 1
    assert records(log) == expected
    is_usable(log, monkeypatch)


def test_files_of_another_topic_of_the_name_are_not_taken(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=40)
    append(log, 0, 80)
    log.delete_topic(TOPIC)
    log.create_topic(TOPIC, partitions=40)
    append(log, 500, 80)
    copy(log)
    first = next(
        info.path for info in log.storage.list(f"{TOPIC}-shared") if _topic_id(log, info.path) != _current(log)
    )
    log.storage.write(f"{TOPIC}-shared/{0:020d}.{'ab' * 16}.log", log.storage.read(first))
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    [one] = report.later_files
    assert one["status"] == "left out" and "another topic of this name" in one["reason"]
    assert numbers(log) == [*range(500, 580)]
    is_usable(log, monkeypatch)


def _topic_id(log: LogDir, path: str) -> str:
    return read_footer(log.storage, path, log.storage.size(path)).topic_id


def _current(log: LogDir) -> str:
    return log.snapshot(TOPIC).topic_id


def test_what_a_roll_copied_is_not_there_twice(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    append(log, 20)
    roll(log, topic=TOPIC, now_ms=log.storage.now_ms() + WEEKS_MS)  # the old chunks stay for readers
    append(log, 30)
    expected = records(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert records(log) == expected
    assert sorted(one["status"] for one in report.later_files) == ["added", "added", "left out", "left out"]
    is_usable(log, monkeypatch)


def test_a_rolled_segment_stands_in_for_chunks_that_vacuum_took(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    copy(log)
    append(log, 20)
    later_ms = log.storage.now_ms() + WEEKS_MS
    roll(log, topic=TOPIC, now_ms=later_ms)
    vacuum(log, topic=TOPIC, now_ms=later_ms)
    append(log, 30)
    expected = records(log)
    shutil.rmtree(Path(tmp_path, "_manifest", TOPIC))
    for newer in Path(tmp_path, "_recovery", TOPIC).glob("*.json"):
        if int(newer.stem) > 3:
            newer.unlink()
    log = again(log, monkeypatch)
    planned = rebuild_manifest(log, TOPIC, dry_run=True)
    assert planned.partitions[0]["log_start_offset"] == 20  # all that is known is gone
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert records(log) == expected
    assert report.missing_files == []
    is_usable(log, monkeypatch)


def test_a_writer_that_read_the_lost_manifest_adds_nothing_in_silence(tmp_path, monkeypatch):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    manifest = log.manifest(TOPIC)
    state = manifest.state()
    lose_manifest(log)
    rebuild_manifest(again(log, monkeypatch), TOPIC)

    def add_nothing(snapshot):
        return Change("alter", config={"retention.ms": "5"}) if snapshot.topic_id == state.snapshot.topic_id else None

    with pytest.raises((UnknownOutcomeError, CommitConflictError)):
        manifest.commit(add_nothing, state=state)
    log = again(log, monkeypatch)
    assert log.snapshot(TOPIC).config == {}
    is_usable(log, monkeypatch)


def test_a_manifest_that_can_be_read_is_left_alone(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    before = all_files(log)
    with pytest.raises(LogDirError, match="nothing to rebuild"):
        rebuild_manifest(log, TOPIC)
    assert all_files(log) == before


def test_a_deleted_topic_is_not_rebuilt(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    log.delete_topic(TOPIC)
    copy_of_deleted = log.manifest(TOPIC)
    copy_of_deleted.merge_files()
    lose_manifest(log)
    with pytest.raises(LogDirError, match="was deleted"):
        rebuild_manifest(again(log, monkeypatch), TOPIC)


def test_without_a_recovery_copy_there_is_an_error_that_says_so(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    with pytest.raises(LogDirError, match="no recovery copy"):
        rebuild_manifest(again(log, monkeypatch), TOPIC)


def test_a_log_directory_that_lost_all_manifests_is_rebuilt_topic_by_topic(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    shutil.rmtree(tmp_path / "_manifest")
    log = open_damaged(str(tmp_path))
    rebuild_manifest(log, TOPIC)
    log = again(log, monkeypatch)  # opens: the marker is there again
    assert log.topics() == [TOPIC] and numbers(log) == [*range(10)]


def test_a_rebuild_that_was_killed_is_done_again(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    version = copy(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    publish = type(log.storage).publish

    def killed(storage, path, data):
        if path.endswith("checkpoint.parquet"):
            raise KeyboardInterrupt
        publish(storage, path, data)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(log.storage), "publish", killed)
        rebuild_manifest(log, TOPIC)
    log = again(log, monkeypatch)
    with pytest.raises(SegmentsError):
        log.snapshot(TOPIC)
    report = rebuild_manifest(log, TOPIC)
    assert report.version == version + 2 * (FENCED + 2)
    assert numbers(again(log, monkeypatch)) == [*range(10)]


def test_a_topic_of_format_version_1_keeps_its_version_and_transactions(tmp_path, monkeypatch):
    log = LogDir.create(str(tmp_path))
    log.manifest(TOPIC).create("AAAAAAAAAAAAAAAAAAAAAQ", {}, new_partitions(2), format_version=1)
    append(log, 0, txn=("app", 1))
    copy(log)
    append(log, 10, txn=("app", 2))
    lost = commit_file(log, 0)
    lost.unlink()
    shutil.rmtree(Path(tmp_path, "_manifest", TOPIC, "kind=topic"))
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC)
    log = again(log, monkeypatch)
    assert report.transactions == [{"app_id": "app", "version": 2}]
    assert log.snapshot(TOPIC).format_version == 1
    append(log, 10, txn=("app", 2))
    assert numbers(log) == [*range(20)]
    is_usable(log, monkeypatch)


@pytest.mark.parametrize("seed", range(9))
def test_whatever_jobs_did_later_each_record_is_there_once(tmp_path, monkeypatch, seed):
    """Appends, rolls and vacuums in any order after the copy: with all files added, no record is lost or doubled."""
    random = Random(seed)
    log = new_log(tmp_path, partitions=random.choice((1, 2, 30)), segment_bytes=str(random.choice((300, 1 << 20))))
    count, now_ms = 0, log.storage.now_ms()
    for step in range(12):
        if step == 3:
            copy(log)
            shutil.copytree(tmp_path / "_recovery", tmp_path.parent / f"{tmp_path.name}-copy")
        action = random.choice(("append", "append", "append", "roll", "vacuum"))
        if action == "append":
            append(log, count, size := random.randint(1, 60))
            count += size
        elif action == "roll":
            now_ms += WEEKS_MS
            roll(log, topic=TOPIC, now_ms=now_ms)
        else:
            vacuum(log, topic=TOPIC, now_ms=now_ms + 10)
    expected = records(log)
    lose_manifest(log)
    shutil.rmtree(tmp_path / "_recovery")  # vacuum and merges have left newer copies
    shutil.copytree(tmp_path.parent / f"{tmp_path.name}-copy", tmp_path / "_recovery")
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    assert report.missing_files == []
    assert numbers(log) == [*range(count)]
    by_partition = lambda rows: sorted((partition, value) for partition, _, value in rows)  # noqa: E731
    assert by_partition(records(log)) == by_partition(expected)
    assert verify(again(log, monkeypatch), TOPIC, deep=True).findings == []


def test_a_follower_keeps_its_leaders_id(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)

    def follow(snapshot):
        return Change("alter", topic=dataclasses.replace(snapshot.topic_row, states={"role": "follower"}))

    log.manifest(TOPIC).commit(follow)
    before = log.snapshot(TOPIC).topic_id
    copy(log)
    lose_manifest(log)
    log = again(log, monkeypatch)
    with pytest.raises(InvalidOptionError, match="mirror brings"):
        rebuild_manifest(log, TOPIC, add=[ALL])
    assert rebuild_manifest(log, TOPIC).topic_id == before == log.snapshot(TOPIC).topic_id
    assert log.snapshot(TOPIC).states == {"role": "follower"}


@pytest.mark.parametrize("lost", ["manifest", "Delta's log"])
def test_a_manifest_on_an_object_store_is_made_anew(tmp_path, s3_options, monkeypatch, lost):
    log = LogDir.create(f"s3://{BUCKET}/{tmp_path.name}/log", s3_options)
    log.create_topic(TOPIC, partitions=2)
    append(log, 0)
    version = copy(log)
    append(log, 10)
    prefix = f"_manifest/{TOPIC}" + ("/_delta_log" if lost == "Delta's log" else "")
    log.storage.delete([info.path for info in log.storage.list(prefix, recursive=True)])
    forget_cached_rows(monkeypatch)
    log = LogDir.open(log.uri, s3_options)
    report = rebuild_manifest(log, TOPIC, add=[ALL])
    log = LogDir.open(log.uri, s3_options)
    assert log.snapshot(TOPIC).version == report.version == version + FENCED + 2
    append(log, 20)
    assert numbers(log) == [*range(30)]
    assert verify(log, TOPIC, deep=True).findings == []
