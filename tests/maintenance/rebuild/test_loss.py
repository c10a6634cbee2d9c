"""A manifest is lost where its bytes are, and only there."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import shutil
import tempfile

import pytest

from spark_segments import LogDir
from spark_segments.errors import FormatVersionError, LogDirError, SegmentsError, StorageError
from spark_segments.storage.scratch import scratch_directory
from verification.faults.scenes import file_size_limit
from verification.rebuild.lost import (
    TOPIC,
    again,
    all_files,
    append,
    commit_file,
    copy,
    lose_manifest,
    new_log,
    rebuild_manifest,
)
from verification.world.manifest_rows import Change, of_format
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play


def test_a_manifest_that_can_be_read_is_left_alone(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    before = all_files(log)
    with pytest.raises(LogDirError, match="nothing to rebuild"):
        rebuild_manifest(log, TOPIC)
    assert all_files(log) == before


def test_a_deleted_topic_is_not_rebuilt(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    log.delete_topic(TOPIC)
    copy_of_deleted = log.topic(TOPIC).manifest
    copy_of_deleted.merge_files()
    lose_manifest(log)
    with pytest.raises(LogDirError, match="was deleted"):
        rebuild_manifest(again(log), TOPIC)


def test_a_topic_that_was_deleted_by_force_is_not_rebuilt(tmp_path):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    for path in (tmp_path / "_manifest" / TOPIC).glob("kind=*/*.parquet"):
        path.write_bytes(b"no Parquet")
    log = again(log)
    log.topic(TOPIC).manifest.delete_by_force()
    with pytest.raises(LogDirError, match="deleted by force"):
        rebuild_manifest(log, TOPIC)


@pytest.mark.parametrize("part", ["_delta_log/", "kind=segment/"])
def test_a_store_that_fails_has_lost_nothing(tmp_path, part):
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    log = again(log)
    before = all_files(log)

    def failing(path, go):
        if part in path and "/_manifest/" in path:
            raise OSError("SLOW_DOWN")
        return go()

    with pytest.raises(StorageError, match="SLOW_DOWN"):
        rebuild_manifest(opened(log, PlayedFiles(read=failing)), TOPIC)
    assert all_files(log) == before


def test_a_store_that_fails_for_delta_rs_alone_has_lost_nothing(tmp_path):
    """It has other clients and other retries: files that a plain read gives are judged by their bytes."""
    log = new_log(tmp_path)
    append(log, 0)
    copy(log)
    log = again(log)
    before, play = all_files(log), Play()

    def failing(topic, go):
        raise StorageError("The manifest cannot be opened: connection reset", path=log.uri)

    play.always("open", failing)
    with pytest.raises(StorageError, match="connection reset"):
        rebuild_manifest(opened(log, open_delta_log=play), TOPIC)
    assert all_files(log) == before


def of_another_format_since_the_copy(root, version):
    """A topic that another package writes since the only recovery copy."""
    log = new_log(root, partitions=1)
    append(log, 0)
    copied = copy(log)
    with of_format(version):
        log.topic(TOPIC).manifest.commit(lambda at: Change("alter", topic=at.topic_row))
        append(log, 10)
    return again(log), copied


@pytest.mark.parametrize("version", [1, 3])
def test_a_manifest_of_another_format_is_not_rebuilt(tmp_path, version):
    log, _ = of_another_format_since_the_copy(tmp_path, version)
    before = all_files(log)
    with pytest.raises(FormatVersionError):
        rebuild_manifest(log, TOPIC)
    assert all_files(log) == before


@pytest.mark.parametrize("version", [1, 3])
def test_a_damaged_manifest_of_another_format_is_not_cut_back_to_this_one(tmp_path, version):
    log, copied = of_another_format_since_the_copy(tmp_path, version)
    for commit in range(copied + 1):
        commit_file(log, commit).unlink(missing_ok=True)
    for checkpoint in (tmp_path / "_manifest" / TOPIC / "_delta_log").glob("*.parquet"):
        checkpoint.write_bytes(b"no Parquet")
    log = again(log)
    before = all_files(log)
    with pytest.raises(FormatVersionError):
        rebuild_manifest(log, TOPIC)
    assert all_files(log) == before


def test_a_full_directory_for_temporary_files_is_named_and_not_the_logs_disk(tmp_path):
    log = new_log(tmp_path / "log")
    append(log, 0)
    commit_file(log, log.topic(TOPIC).snapshot.version).write_bytes(b"damage")
    before = all_files(log)
    with file_size_limit(10), pytest.raises(StorageError, match=r"\$TMPDIR") as found:
        rebuild_manifest(log, TOPIC)
    assert os.path.dirname(found.value.path) == tempfile.gettempdir()
    assert all_files(log) == before


def test_what_others_say_of_a_full_directory_for_temporary_files_is_not_told():
    with pytest.raises(StorageError, match=r"\$TMPDIR"), file_size_limit(10), scratch_directory():
        raise ValueError("Generic LocalFileSystem error")
    with pytest.raises(ValueError, match="of its own"), scratch_directory():
        raise ValueError("of its own")


def _limit(spare: int) -> int:
    """The limit by which so many more files can be open: it is one of their numbers, and other tests have left gaps."""
    gc.collect()
    taken = {number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")}
    return next(itertools.islice((n for n in itertools.count() if str(n) not in taken), spare, None))


@pytest.mark.proof
def test_a_rebuild_at_the_limit_of_open_files_is_done_or_says_so(tmp_path):
    log = new_log(tmp_path / "log", flush_messages="1")
    append(log, 0)
    copy(log)
    append(log, 10)
    commit_file(log, log.topic(TOPIC).snapshot.version).write_bytes(b"damage")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = []
    for spare in range(7):
        again = LogDir.open(shutil.copytree(log.uri, tmp_path / f"copy{spare}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (_limit(spare), limits[1]))
        try:
            rebuild_manifest(again, TOPIC)
        except SegmentsError as error:
            found.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found
    assert all("ulimit -n" in error for error in found), found


@pytest.mark.proof
def test_a_manifest_that_cannot_be_read_at_the_limit_of_open_files_is_not_lost(tmp_path):
    log = new_log(tmp_path / "log")
    append(log, 0)
    copy(log)
    before = all_files(log)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(13):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_limit(spare), limits[1]))
        try:
            with pytest.raises((LogDirError, StorageError), match=r"nothing to rebuild|ulimit -n"):
                rebuild_manifest(log, TOPIC)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all_files(log) == before
