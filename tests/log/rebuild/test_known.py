"""What is known of a lost manifest: the recovery copy, and the commits after it that can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.groups.group import check_position
from spark_segments.log.manifest.delta.delta_log import FENCED
from spark_segments.log.rebuild.rebuild import rebuild_manifest
from tests.log.chunk_rows import new_partitions
from tests.log.groups.readers import moved
from tests.log.rebuild.lost import (
    TOPIC,
    again,
    append,
    commit_file,
    copy,
    is_usable,
    lose_manifest,
    new_log,
    numbers,
    records,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("damage", [b"", b"PAR1 no Parquet", None])
def test_commits_after_a_damaged_checkpoint_are_known(tmp_path, monkeypatch, damage):
    """With every commit known, the topic is the same topic: groups and transactions go on."""
    log = new_log(tmp_path)
    append(log, 0, txn=("app", 1))
    version = copy(log)
    append(log, 10, txn=("app", 2))
    log.alter_topic(TOPIC, {"retention.ms": "77"}, partitions=3)
    moved(log, "readers", {TOPIC: {0: 10}})
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
    position = log.group("readers").positions()[TOPIC, 0]
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


def test_without_a_recovery_copy_there_is_an_error_that_says_so(tmp_path, monkeypatch):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    with pytest.raises(LogDirError, match="no recovery copy"):
        rebuild_manifest(again(log, monkeypatch), TOPIC)


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


@pytest.mark.parametrize("change", ["delete-records", "alter", "append"])
def test_a_last_commit_that_is_lost_is_told_of_by_its_rows(tmp_path, monkeypatch, change):
    """Delta's log ends before it as if it had never been: the topic must not go on as the same."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    before = log.snapshot(TOPIC)
    if change == "delete-records":
        log.delete_records(TOPIC, {0: 15})
    elif change == "alter":
        log.alter_topic(TOPIC, {"retention.ms": "77"})
    else:
        append(log, 20)
    last = log.snapshot(TOPIC).version
    for path in (tmp_path / "_manifest" / TOPIC / "_delta_log").glob("*.parquet"):
        path.unlink()
    for commit in [*range(before.version - 1), last]:
        commit_file(log, commit).unlink(missing_ok=True)
    log = again(log, monkeypatch)
    report = rebuild_manifest(log, TOPIC)
    assert (report.known_version, report.is_exact) == (before.version, False)
    assert log.snapshot(TOPIC).topic_id != before.topic_id
    assert numbers(log) == [*range(20)]
