"""Commits that the store fails: tried again, or an error that says what is sure."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError, UnknownOutcomeError
from spark_segments.log.manifest.commit import committing as commit_module
from spark_segments.storage import Storage, local
from spark_segments.storage.filesystem import WritableFile
from tests.log.commits.whole_log import assert_log_is_whole
from verification.world.chunk_rows import TOPIC, new_chunk, new_manifest
from verification.world.manifest_rows import Manifest, commit_append
from verification.world.opened import LocalFiles
from verification.world.stores.played_log import CommitFailedError, Late, lost_race, store_failed


class FullDisk(LocalFiles):
    """Local files where a test decides when the disk is full. `before` is called first."""

    full = False

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def stream(self, path: str, *, unique: bool = False) -> WritableFile:
        if self.full:
            self._before()
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().stream(path)


def test_a_creator_that_the_store_fails_makes_no_topic(tmp_path, play):
    def refused(topic, go) -> None:
        raise CommitFailedError("\x1b[31m↳\x1b[0m connection\n refused")

    play.always("create", refused)
    with pytest.raises(UnknownOutcomeError, match=r"may have been made, or may be made yet: .*connection refused"):
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


@pytest.mark.parametrize("flush", [{}, {"flush.messages": "1"}], ids=["not forced", "forced"])
def test_a_commit_that_a_full_disk_refuses_did_not_happen(tmp_path, monkeypatch, flush):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config=flush)
    log.topic("orders").append([{"value": "a"}])
    with monkeypatch.context() as full:
        full.setattr(local.LocalFiles, "create", no_space)
        with pytest.raises(StorageError, match=r"No space left.*Nothing was committed"):
            log.topic("orders").append([{"value": "b"}])
    assert log.topic("orders").append([{"value": "b"}]) == {0: (1, 1)}


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


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
    with pytest.raises(
        UnknownOutcomeError, match=r"append may have happened.*No space left.*with once or a txn"
    ) as raised:
        commit_append(manifest, [new_chunk()])
    assert "nothing was committed" not in str(raised.value)


def test_an_error_of_writing_before_anything_was_sent_is_sure(tmp_path, play):
    disk = FullDisk()
    manifest = new_manifest(tmp_path, open_delta_log=play, filesystem=disk)
    disk.full = True
    with pytest.raises(StorageError, match="No space left"):
        commit_append(manifest, [new_chunk()])
    assert play.calls["commit_on"] == 0


def test_a_creator_that_cannot_write_again_after_a_lost_request_does_not_call_it_a_failure(tmp_path, play):
    disk = FullDisk()

    def lost_while_the_disk_fills_up(go) -> None:
        disk.full = True
        raise CommitFailedError("timed out")

    play.next("create", lost_while_the_disk_fills_up)
    with pytest.raises(UnknownOutcomeError, match="may have been made"):
        new_manifest(tmp_path, open_delta_log=play, filesystem=disk)
