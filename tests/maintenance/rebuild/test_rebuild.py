"""A manifest that is lost is made anew: exact up to what is known, and what is not known is said."""

from __future__ import annotations

import dataclasses
import os
import shutil

import pytest

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    SegmentsError,
    UnknownOutcomeError,
)
from spark_segments.log.manifest.files.delta.delta_log import FENCED
from spark_segments.maintenance import verify
from verification.rebuild.lost import (
    TOPIC,
    again,
    all_files,
    append,
    copy,
    files_of_the_log,
    forget_notes,
    is_usable,
    lose_delta_log,
    lose_manifest,
    new_log,
    numbers,
    open_damaged,
    rebuild_manifest,
    records,
)
from verification.world.group_readers import check_position, moved
from verification.world.manifest_rows import Change, forget_rows
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.s3_server import BUCKET


@pytest.mark.cases(1)
@pytest.mark.parametrize("lose", [lose_manifest, lose_delta_log])
def test_a_topic_is_what_its_copy_says(tmp_path, lose):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    before, version = log.topic(TOPIC).snapshot, copy(log)
    expected = records(log)
    lose(log)
    log = again(log)
    files = files_of_the_log(log)

    report = rebuild_manifest(log, TOPIC)

    found = again(log).topic(TOPIC).snapshot
    assert (report.details["copy_version"], report.details["known_version"], report.details["unnamed_files"]) == (
        version,
        version,
        [],
    )
    assert found.version == report.details["version"] == version + FENCED + 2
    assert (
        found.topic_id == report.details["topic_id"] == before.topic_id
    )  # a commit after the copy would have left a note
    assert found.config == before.config
    assert records(log) == expected
    assert files_of_the_log(log) == files
    assert report.details["not_known"] == []
    is_usable(log)


def test_a_dry_run_changes_nothing(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    version = copy(log)
    append(log, 10)
    forget_notes(log)
    lose_manifest(log)
    log = again(log)
    before = all_files(log)
    report = rebuild_manifest(log, TOPIC, dry_run=True)
    assert all_files(log) == before
    assert (report.dry_run, report.details["known_version"], report.details["topic_id"]) == (True, version, None)
    assert len(report.details["unnamed_files"]) == 2 and all(
        one["bytes"] > 0 for one in report.details["unnamed_files"]
    )


def test_a_group_that_read_further_is_stopped(tmp_path):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    moved(log, "readers", {TOPIC: {0: 20}})
    forget_notes(log)
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert [(one["group"], one["partition"], one["offset"]) for one in report.details["groups"]] == [("readers", 0, 20)]
    assert any("groups have read" in sentence for sentence in report.details["not_known"])
    append(log, 500, 20)  # offsets 10 to 29 again, of other records
    with pytest.raises(OffsetOutOfRangeError, match="made again"):
        check_position(log.topic(TOPIC).snapshot, 0, log.group("readers").positions()[TOPIC, 0], "readers")


@pytest.mark.cases(1)
@pytest.mark.rule("W20")
@pytest.mark.parametrize("has_written", [True, False])
def test_a_writer_that_read_the_lost_manifest_adds_nothing_in_silence(tmp_path, has_written):
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    forget_notes(log)
    manifest = (log if has_written else again(log)).topic(TOPIC).manifest
    state = manifest.state()
    lose_manifest(log)
    rebuild_manifest(again(log), TOPIC)

    def alter(snapshot):
        return Change("alter", config={"retention.ms": "5"}) if snapshot.topic_id == state.snapshot.topic_id else None

    if has_written:  # it knows the commit that it builds upon: nothing is sent, and its plan sees the other topic
        assert manifest.commit(alter, state=state).change is None
    else:
        with pytest.raises((UnknownOutcomeError, CommitConflictError)):
            manifest.commit(alter, state=state)
    log = again(log)
    assert log.topic(TOPIC).snapshot.config == {}
    is_usable(log)


def test_a_log_directory_that_lost_all_manifests_is_rebuilt_topic_by_topic(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    shutil.rmtree(tmp_path / "_manifest")
    log = open_damaged(str(tmp_path))
    rebuild_manifest(log, TOPIC)
    log = again(log)  # opens: the marker is there again
    assert log.topics() == [TOPIC] and numbers(log) == [*range(10)]


def kill_a_rebuild(log) -> None:
    """Ends a rebuild before its checkpoint is there."""

    def killed(path, go):
        if path.endswith("checkpoint.parquet"):
            raise KeyboardInterrupt
        go()

    with pytest.raises(KeyboardInterrupt):
        rebuild_manifest(opened(log, PlayedFiles(create=killed)), TOPIC)


def log_with_a_killed_rebuild(tmp_path):
    """A log of ten records whose manifest is lost, and the version that was its last."""
    log = new_log(tmp_path)
    append(log, 0)
    version = copy(log)
    lose_manifest(log)
    log = again(log)
    kill_a_rebuild(log)
    return log, version


def test_a_rebuild_that_was_killed_is_done_again(tmp_path):
    log, version = log_with_a_killed_rebuild(tmp_path)
    log = again(log)
    with pytest.raises(SegmentsError):
        _ = log.topic(TOPIC).snapshot
    report = rebuild_manifest(log, TOPIC)
    assert report.details["version"] == version + 2 * (FENCED + 2)
    assert numbers(again(log)) == [*range(10)]


def test_a_follower_keeps_its_leaders_id(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    source = {"source_uri": "/leader", "source_version": "1", "source_commit_id": "a", "source_committed_ms": "1"}
    states = {"role": "follower", **source}

    def follow(snapshot):
        return Change("alter", topic=dataclasses.replace(snapshot.topic_row, states=states))

    log.topic(TOPIC).manifest.commit(follow)
    before = log.topic(TOPIC).snapshot.topic_id
    copy(log)
    forget_notes(log)
    lose_manifest(log)
    log = again(log)
    assert rebuild_manifest(log, TOPIC).details["topic_id"] == before == log.topic(TOPIC).snapshot.topic_id
    assert log.topic(TOPIC).snapshot.states == states


@pytest.mark.proof
@pytest.mark.parametrize("lost", ["manifest", "Delta's log"])
def test_a_manifest_on_an_object_store_is_made_anew(tmp_path, s3_options, lost):
    log = LogDir.create(f"s3://{BUCKET}/{tmp_path.name}/log", s3_options)
    log.create_topic(TOPIC, partitions=2)
    append(log, 0)
    version = copy(log)
    append(log, 10)
    prefix = f"_manifest/{TOPIC}" + ("/_delta_log" if lost == "Delta's log" else "")
    log.storage.delete([info.path for info in log.storage.list(prefix, recursive=True)])
    forget_rows()
    log = LogDir.open(log.uri, s3_options)
    report = rebuild_manifest(log, TOPIC)
    log = LogDir.open(log.uri, s3_options)
    assert log.topic(TOPIC).snapshot.version == report.details["version"] == version + 1 + FENCED + 2
    append(log, 20)
    assert numbers(log) == [*range(30)]
    assert verify(log, topics=[TOPIC], deep=True).findings == []


def test_a_cut_file_stays_in_the_log(tmp_path):
    """A file that is cut says nothing about retention: its records are missing, and the log begins where it did."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    copy(log)
    first = log.topic(TOPIC).snapshot.live_of(0)[0]
    os.truncate(tmp_path / first.path, first.log_bytes - 1)
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert log.topic(TOPIC).offsets() == {0: (0, 20)}
    assert report.details["missing_files"] == [
        {"path": first.path, "partition": 0, "base_offset": 0, "next_offset": 10}
    ]
    with pytest.raises(CorruptBatchError):
        numbers(log)
    assert any("gone or cut" in sentence for sentence in report.details["not_known"])


def test_versions_that_a_killed_rebuild_took_are_no_lost_commits(tmp_path):
    log, version = log_with_a_killed_rebuild(tmp_path)
    report = rebuild_manifest(again(log), TOPIC, dry_run=True)
    assert (report.details["known_version"], report.details["lost_versions"]) == (version, 0)
