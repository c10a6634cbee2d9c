"""A topic that is made in the place of a deleted one can be rebuilt from its first commit on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.maintenance import vacuum, verify
from verification.rebuild.lost import (
    TOPIC,
    WEEKS_MS,
    again,
    append,
    copy,
    is_usable,
    lose_manifest,
    new_log,
    numbers,
    rebuild_manifest,
)


def made_again(root: Path, *, vacuumed: bool, empty: bool = False) -> LogDir:
    log = new_log(root)
    if not empty:
        append(log, 0, txn=("app", 1))
        copy(log)
    log.delete_topic(TOPIC)
    if vacuumed:
        vacuum(log, now_ms=log.storage.now_ms() + WEEKS_MS)
        vacuum(log, now_ms=log.storage.now_ms() + 2 * WEEKS_MS)
    log.create_topic(TOPIC, partitions=2, config={"retention.ms": "-1"})
    return log


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("vacuumed", [False, True])
@pytest.mark.parametrize("appends", [0, 1, 2])
def test_a_topic_that_was_made_again_is_rebuilt_whole(tmp_path, vacuumed, empty, appends):
    log = made_again(tmp_path, vacuumed=vacuumed, empty=empty)
    for number in range(appends):
        append(log, 100 + 10 * number, txn=("app", number + 1))
    before = log.topic(TOPIC).snapshot
    lose_manifest(log)
    log = again(log)
    report = rebuild_manifest(log, TOPIC)
    after = again(log).topic(TOPIC).snapshot
    assert report.details["is_exact"] and after.topic_id == before.topic_id
    assert (after.config, numbers(log)) == (before.config, [*range(100, 100 + 10 * appends)])
    is_usable(log)


def test_a_vacuum_that_looked_before_a_creation_leaves_its_note(tmp_path):
    """It has listed the note of a commit that is not made yet, and then reads that nothing is left of the topic."""
    log = new_log(tmp_path)
    log.delete_topic(TOPIC)
    vacuum(log, now_ms=log.storage.now_ms() + WEEKS_MS)
    manifest = log.topic(TOPIC).manifest
    version = manifest.state(deleted=True).version
    note = tmp_path / "_recovery" / TOPIC / f"{version + 2:020d}.{'a' * 32}-0.note"
    note.write_bytes(b"on its way")
    vacuum(log, now_ms=log.storage.now_ms() + WEEKS_MS)
    assert note.exists()
    eight_days_ago = note.stat().st_mtime - 8 * 24 * 60 * 60
    os.utime(note, (eight_days_ago, eight_days_ago))
    vacuum(log, now_ms=log.storage.now_ms() + WEEKS_MS)
    assert not note.exists()


def aged(log: LogDir) -> None:
    for file in Path(log.uri, "_recovery", TOPIC).rglob("*.*"):
        os.utime(file, (file.stat().st_mtime - 61,) * 2)


def test_where_nothing_begins_a_rebuild_everything_says_so(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    first = sorted(Path(log.uri, "_recovery", TOPIC).glob("*.note"))[0]
    first.unlink()
    lose_manifest(log)
    aged(log)
    [finding] = verify(log).findings
    assert "nothing is left that a rebuild could begin with" in finding.message
    with pytest.raises(LogDirError, match="nothing is left that a rebuild could begin with") as refused:
        log.create_topic(TOPIC)
    assert f"delete _recovery/{TOPIC}" in refused.value.hint
    with pytest.raises(LogDirError, match="There is no recovery copy"):
        rebuild_manifest(log, TOPIC)


def test_where_the_topic_was_deleted_before_its_manifest_was_lost_everything_says_so(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    log.delete_topic(TOPIC)
    lose_manifest(log)
    aged(log)
    log = again(log)
    [finding] = verify(log).findings
    assert "the topic was deleted" in finding.message
    with pytest.raises(LogDirError, match="the topic was deleted") as refused:
        log.create_topic(TOPIC)
    assert f"delete _recovery/{TOPIC}" in refused.value.hint
    with pytest.raises(LogDirError, match="was deleted"):
        rebuild_manifest(log, TOPIC)
