"""What is known of a lost manifest: a recovery copy, and the commits after it that something proves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.log.manifest.files.delta.delta_log import FENCED
from spark_segments.maintenance import vacuum
from verification.rebuild.lost import (
    TOPIC,
    WEEKS_MS,
    again,
    append,
    commit_file,
    copy,
    forget_notes,
    is_usable,
    lose_manifest,
    new_log,
    notes,
    numbers,
    rebuild_manifest,
    records,
)
from verification.world.group_readers import check_position, moved
from verification.world.manifest_rows import Change
from verification.world.opened import LocalFiles, opened


@pytest.mark.cases(1)
@pytest.mark.parametrize("damage", [b"", b"PAR1 no Parquet", None])
def test_commits_after_a_damaged_checkpoint_are_known(tmp_path, damage):
    """With every commit known, the topic is the same topic: groups and transactions go on."""
    log = new_log(tmp_path)
    append(log, 0, txn=("app", 1))
    version = copy(log)
    append(log, 10, txn=("app", 2))
    log.topic(TOPIC).alter({"retention.ms": "77"}, partitions=3)
    moved(log, "readers", {TOPIC: {0: 10}})
    expected, before = records(log), log.topic(TOPIC).snapshot
    [checkpoint] = Path(tmp_path, "_manifest", TOPIC, "_delta_log").glob("*.checkpoint*.parquet")
    for commit in range(version):  # else Delta needs no checkpoint
        commit_file(log, commit).unlink(missing_ok=True)
    checkpoint.unlink() if damage is None else checkpoint.write_bytes(damage)
    log = again(log)

    report = rebuild_manifest(log, TOPIC)

    log = again(log)
    after = log.topic(TOPIC).snapshot
    assert report.details["is_exact"] and report.details["not_known"] == []
    assert report.details["known_version"] == before.version > version
    assert (after.topic_id, after.config) == (before.topic_id, before.config)
    assert after.partitions.equals(before.partitions)
    assert records(log) == expected
    append(log, 10, txn=("app", 2))
    assert records(log) == expected
    position = log.group("readers").positions()[TOPIC, 0]
    check_position(after, 0, position, "readers")
    is_usable(log)


def test_a_manifest_that_is_lost_whole_is_played_from_notes_alone(tmp_path):
    """Before its first recovery copy, and with everything that a topic remembers."""
    log = new_log(tmp_path)
    append(log, 0, txn=("app", 1))
    log.topic(TOPIC).alter({"retention.ms": "77"}, partitions=3)
    append(log, 10, txn=("app", 2))
    expected, before = records(log), log.topic(TOPIC).snapshot
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    after = again(log).topic(TOPIC).snapshot
    assert (report.details["copy_version"], report.details["known_version"], report.details["is_exact"]) == (
        -1,
        before.version,
        True,
    )
    assert (after.topic_id, after.config) == (before.topic_id, before.config)
    assert after.partitions.equals(before.partitions) and records(log) == expected
    append(log, 10, txn=("app", 2))
    assert records(log) == expected
    is_usable(log)


@pytest.mark.rule("D10")
def test_a_last_note_without_its_mark_is_not_played_and_its_files_are_listed(tmp_path):
    """Its writer died before its commit, or right after: nothing tells."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    append(log, 10)
    last, version = log.topic(TOPIC).snapshot.live_of(0)[-1], log.topic(TOPIC).snapshot.version
    notes(log, "made")[-1].unlink()
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert (report.details["known_version"], report.details["is_exact"]) == (version - 1, False)
    assert report.details["unproven"] == [{"version": version, "operation": "append", "files": [last.path]}]
    [file] = report.details["unnamed_files"]
    assert (file["path"], file["bytes"], file["note"]) == (last.path, last.log_bytes, version)
    assert any("append of version 2" in sentence for sentence in report.details["not_known"])
    assert report.details["topic_id"] != report.details["topic_id_before"] and numbers(log) == [*range(10)]
    is_usable(log)


def test_a_note_is_proven_by_the_next_one(tmp_path):
    log = new_log(tmp_path)
    for number in range(3):
        append(log, 10 * number)
    for path in notes(log, "made")[:-1]:
        path.unlink()
    lose_manifest(log)
    report = rebuild_manifest(again(log), TOPIC)
    assert report.details["is_exact"] and numbers(log) == [*range(30)]


def test_a_last_note_is_proven_by_its_commit(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    for path in notes(log, "made"):
        path.unlink()
    for path in Path(tmp_path, "_manifest", TOPIC).glob("kind=*/*.parquet"):
        path.unlink()
    report = rebuild_manifest(again(log), TOPIC)
    assert report.details["is_exact"] and numbers(log) == [*range(20)]


def test_of_two_notes_of_a_version_the_one_of_the_commit_is_played(tmp_path):
    """Two writers began at one version; the store refused one, who wrote its note all the same."""
    log, other = new_log(tmp_path, partitions=1), LogDir.open(str(tmp_path))
    append(log, 0)
    state = other.topic(TOPIC).manifest.state()
    append(log, 10)

    def late(snapshot):
        return Change("alter", config={"retention.ms": "5"}) if snapshot.config == {} else None

    other.topic(TOPIC).manifest.commit(late, state=state)
    assert len([path for path in notes(log) if path.name.startswith(f"{2:020d}")]) == 2
    expected = records(log)
    for path in notes(log, "made"):
        path.unlink() if path.name.startswith(f"{2:020d}") else None
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert report.details["is_exact"] and records(log) == expected
    assert log.topic(TOPIC).snapshot.config == {"retention.ms": "5"}


@pytest.mark.cases(2)
@pytest.mark.parametrize("damage", ["cut", "a byte of its rows", "a byte of its head", "empty"])
def test_a_note_that_is_damaged_ends_what_is_known(tmp_path, damage):
    log = new_log(tmp_path, partitions=1)
    for number in range(3):
        append(log, 10 * number)
    note = notes(log)[2]
    data = bytearray(note.read_bytes())
    if damage.startswith("a byte"):
        data[-1 if "rows" in damage else 40] ^= 1
    note.write_bytes({"cut": data[:-10], "empty": b""}.get(damage, data))
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert (report.details["known_version"], report.details["is_exact"]) == (1, False) and numbers(log) == [*range(10)]
    assert [one["version"] for one in report.details["unproven"]] == [2, 3]


def test_notes_before_the_first_copy_that_stays_are_gone_and_the_older_copy_has_its_own(tmp_path):
    log = new_log(tmp_path)
    for number in range(3):
        append(log, 10 * number)
        version = copy(log)
    append(log, 30)
    first, last = sorted(int(path.stem) for path in Path(tmp_path, "_recovery", TOPIC).glob("*.json"))
    assert [int(path.name[:20]) for path in notes(log)] == [*range(first + 1, log.topic(TOPIC).snapshot.version + 1)]
    assert last == version
    Path(tmp_path, "_recovery", TOPIC, f"{last:020d}.json").write_bytes(b"damaged")
    lose_manifest(log)
    report = rebuild_manifest(again(log), TOPIC)
    assert (report.details["copy_version"], report.details["is_exact"]) == (first, True) and numbers(log) == [
        *range(40)
    ]


class NoCopies(LocalFiles):
    """A disk that takes no recovery copy: upkeep goes on without."""

    def replace(self, path: str, data: Any) -> None:
        if "/_recovery/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().replace(path, data)


def test_notes_that_are_needed_outlive_vacuum_however_old_they_are(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    for path in Path(tmp_path, "_recovery", TOPIC).iterdir():
        os.utime(path, (0, 0))
    full = opened(tmp_path, NoCopies())
    vacuum(full, topics=[TOPIC], now_ms=log.storage.now_ms() + WEEKS_MS)
    lose_manifest(log)
    assert rebuild_manifest(again(log), TOPIC).details["is_exact"] and numbers(log) == [*range(10)]


def test_a_missing_commit_of_an_older_version_ends_what_is_known(tmp_path):
    """Older versions of this package wrote no notes."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    version = copy(log)
    for number in range(1, 5):
        append(log, 10 * number)
    forget_notes(log)
    commit_file(log, version + 3).unlink()
    log = again(log)
    with pytest.raises(SegmentsError):
        _ = log.topic(TOPIC).snapshot
    report = rebuild_manifest(log, TOPIC)
    assert (report.details["known_version"], report.details["lost_versions"], report.details["is_exact"]) == (
        version + 2,
        2,
        False,
    )
    assert len(report.details["unnamed_files"]) == 2 and numbers(log) == [*range(30)]
    assert report.details["version"] == version + 4 + FENCED + 2
    is_usable(log)


def test_a_copy_of_an_older_version_does_not_tell_that_nothing_came_after_it(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    version = copy(log)
    forget_notes(log)
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert (report.details["known_version"], report.details["is_exact"]) == (version, False)
    assert any("older version of this package" in sentence for sentence in report.details["not_known"])
    assert report.details["topic_id"] != report.details["topic_id_before"] and numbers(log) == [*range(10)]


def test_a_lost_file_of_rows_is_read_from_the_copy(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    expected = records(log)
    for path in Path(tmp_path, "_manifest", TOPIC, "kind=segment").glob("*.parquet"):
        path.write_bytes(b"no Parquet")
    log = again(log)
    assert rebuild_manifest(log, TOPIC).details["is_exact"]
    assert records(again(log)) == expected
    is_usable(log)


def test_transactions_of_a_copy_are_remembered(tmp_path):
    log = new_log(tmp_path)
    append(log, 0, txn=("nightly", 7))
    copy(log)
    append(log, 10, txn=("nightly", 8))
    forget_notes(log)
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert report.details["transactions"] == [{"app_id": "nightly", "version": 7}]
    assert any("Transactions of writers" in sentence for sentence in report.details["not_known"])
    append(log, 0, txn=("nightly", 7))
    assert numbers(log) == [*range(10)]
    append(log, 10, txn=("nightly", 8))
    assert numbers(log) == [*range(20)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("has_copy", [False, True])
def test_idempotency_keys_are_remembered(tmp_path, has_copy):
    log = new_log(tmp_path)
    append(log, 0, once="landing/2")
    if has_copy:
        copy(log)
    append(log, 10, once="landing/1")
    lose_manifest(log)
    log = again(log)
    rebuild_manifest(log, TOPIC)
    for number in (1, 2):
        append(log, 0, once=f"landing/{number}")
    assert numbers(log) == [*range(20)]
    is_usable(log)


def test_without_a_copy_or_the_first_note_there_is_an_error_that_says_so(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    lose_manifest(log)
    notes(log)[0].unlink()
    with pytest.raises(LogDirError, match="no recovery copy"):
        rebuild_manifest(again(log), TOPIC)


@pytest.mark.cases(2)
@pytest.mark.parametrize("change", ["delete-records", "alter", "append"])
def test_a_last_commit_that_is_lost_of_an_older_version_is_told_of_by_its_rows(tmp_path, change):
    """Delta's log ends before it as if it had never been: the topic must not go on as the same."""
    log = new_log(tmp_path, partitions=1)
    append(log, 0)
    copy(log)
    append(log, 10)
    before = log.topic(TOPIC).snapshot
    if change == "delete-records":
        log.topic(TOPIC).delete_records({0: 15})
    elif change == "alter":
        log.topic(TOPIC).alter({"retention.ms": "77"})
    else:
        append(log, 20)
    last = log.topic(TOPIC).snapshot.version
    forget_notes(log)
    for path in (tmp_path / "_manifest" / TOPIC / "_delta_log").glob("*.parquet"):
        path.unlink()
    for commit in [*range(before.version - 1), last]:
        commit_file(log, commit).unlink(missing_ok=True)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    assert (report.details["known_version"], report.details["is_exact"]) == (before.version, False)
    assert log.topic(TOPIC).snapshot.topic_id != before.topic_id
    assert numbers(log) == [*range(20)]
