"""The newest commit is lost, and its mark is left: a directory that was copied while it was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.maintenance import compact, vacuum, verify
from verification.rebuild.lost import (
    TOPIC,
    WEEKS_MS,
    again,
    all_files,
    append,
    commit_file,
    copy,
    is_usable,
    new_log,
    notes,
    numbers,
    rebuild_manifest,
)
from verification.world.manifest_rows import Change
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles

HINT = f"verify LOG_DIR {TOPIC} --repair"


@pytest.fixture
def lost(tmp_path: Path) -> LogDir:
    return without_the_last_commit(tmp_path)


def without_the_last_commit(root: Path, **config: str) -> LogDir:
    log = new_log(root, **config)
    append(log, 0)
    append(log, 10)
    commit_file(log, log.topic(TOPIC).snapshot.version).unlink()
    return again(log)


def test_verify_finds_a_mark_without_its_commit(lost):
    for topics in (None, [TOPIC]):
        [finding] = verify(lost, topics=topics).findings
        assert HINT in finding.message and finding.path == f"_manifest/{TOPIC}"
        assert "version 2" in str(finding.expected) and finding.found == "version 1"


def test_no_append_gives_its_offsets_again(lost):
    before = all_files(lost)
    with pytest.raises(LogDirError, match="were made that its manifest does not have") as refused:
        append(lost, 20)
    assert HINT in refused.value.hint and refused.value.path.endswith(f"_manifest/{TOPIC}")
    manifest = {path: digest for path, digest in all_files(lost).items() if path.startswith(("_manifest", "_recovery"))}
    assert manifest == {path: digest for path, digest in before.items() if path in manifest}


def test_no_job_commits_on_top_of_it(tmp_path):
    log = without_the_last_commit(tmp_path, cleanup_policy="compact")
    last = sorted(Path(tmp_path, f"{TOPIC}-0").glob("*.log"))
    for job in (compact, vacuum):
        report = job(log, topics=[TOPIC], now_ms=log.storage.now_ms() + WEEKS_MS)
        assert log.topic(TOPIC).snapshot.version == 1, report
    assert sorted(Path(tmp_path, f"{TOPIC}-0").glob("*.log")) == last
    with pytest.raises(LogDirError, match="were made that"):
        log.topic(TOPIC).alter({"retention.ms": "5"})


def test_files_of_rows_are_not_merged_on_top_of_it(tmp_path):
    """That is a commit of its own, by another way."""
    log = new_log(tmp_path)
    for number in range(3):
        append(log, 10 * number)
    commit_file(log, 3).unlink()
    log = again(log)
    with pytest.raises(LogDirError, match="were made that"):
        copy(log)
    assert log.topic(TOPIC).snapshot.version == 2


def test_a_rebuild_brings_it_back(lost):
    report = rebuild_manifest(lost, TOPIC)
    assert report.details["is_exact"] and numbers(again(lost)) == [*range(20)]
    is_usable(lost)


def test_a_rebuild_without_its_note_gives_the_topic_a_new_id(lost):
    notes(lost)[-1].unlink()
    with pytest.raises(LogDirError):
        append(lost, 20)
    report = rebuild_manifest(lost, TOPIC)
    assert not report.details["is_exact"] and report.details["lost_versions"] == 1
    assert report.details["topic_id"] != report.details["topic_id_before"]
    assert numbers(again(lost)) == [*range(10)]
    is_usable(lost)


def test_a_writer_that_read_an_older_version_takes_no_commit_for_lost(tmp_path):
    """Between its look at the manifest and its look at the marks another writer has committed."""
    log, other = new_log(tmp_path), LogDir.open(str(tmp_path))
    append(log, 0)
    manifest = log.topic(TOPIC).manifest
    state = manifest.state()
    append(other, 10)
    seen = []

    def plan(snapshot):
        seen.append(snapshot.version)
        return Change("alter", config={"retention.ms": "5"})

    manifest.commit(plan, state=state)
    assert seen == [1, 2] and numbers(log) == [*range(20)]


def test_a_commit_that_a_cache_hides_is_not_lost(tmp_path):
    """A network file system may believe for a while that a file is missing. Its listing does not."""
    log = new_log(tmp_path)
    append(log, 0)
    hidden = {str(commit_file(log, 2))}

    def read(path, go):
        if str(path) in hidden:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return go()

    def create(path, go):
        hidden.clear()  # the server is asked
        return go()

    stale = opened(log, PlayedFiles(read=read, create=create))
    assert stale.topic(TOPIC).snapshot.version == 1
    append(log, 10)
    append(stale, 20)
    assert numbers(log) == [*range(30)] and not hidden


def test_a_commit_alone_without_a_mark_is_no_loss(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    append(log, 10)
    notes(log, "made")[-1].unlink()
    commit_file(log, 2).unlink()
    log = again(log)
    assert verify(log).findings == []
    append(log, 20)
    assert numbers(log) == [*range(10), *range(20, 30)]
