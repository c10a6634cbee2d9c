"""An append that fails before its commit is sent leaves no file; after that its files stay: it may have happened."""

from __future__ import annotations

import errno
import os

import pytest

from spark_segments import LogDir
from spark_segments.errors import StorageError, UnknownOutcomeError
from spark_segments.log.manifest.commit import committing as commit_module
from spark_segments.storage.filesystem import WritableFile
from verification.world.opened import LocalFiles, opened
from verification.world.stores.played_log import Play, store_failed
from verification.world.topics import records

PARTITIONS = 10


class FullAfter(LocalFiles):
    """Local files: the disk is full, or a quota used up, once so many files of partitions were made."""

    def __init__(self, left: int, number: int) -> None:
        self.left, self.number = left, number

    def stream(self, path: str, *, unique: bool = False) -> WritableFile:
        if "orders-" in path:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number))
        return super().stream(path)


@pytest.fixture
def log(tmp_path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", PARTITIONS, {"segment.bytes": "20000", "compression.type": "uncompressed"})
    log.topic("orders").append(records(10))
    return log


def files(log: LogDir) -> list[str]:
    return [info.path for info in log.storage.list(recursive=True) if info.path.startswith("orders-")]


@pytest.mark.cases(8)
@pytest.mark.parametrize("partitions", [1, PARTITIONS])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["full", "quota"])
@pytest.mark.parametrize("left", [0, 1, 2, 3, 7, 20])
def test_an_append_that_the_disk_has_no_room_for_leaves_no_file(log, partitions, left, number):
    before = files(log)
    full = opened(log, FullAfter(left, number))
    with pytest.raises(StorageError, match=rf"{os.strerror(number)}.*Free space there, or raise the quota"):
        full.topic("orders").append(records(4000, partitions=range(partitions)))
    assert files(log) == before
    assert log.topic("orders").append(records(10, partitions=range(partitions)))


def test_an_object_that_was_finished_goes_too(log, limits):
    """The rows are wrong after an object was written for those before them."""
    limits(WAITING_BYTES=10_000)
    before = files(log)
    bad = records(400, partitions=[PARTITIONS])
    with pytest.raises(ValueError, match="no such partition"):
        log.topic("orders").append([*records(400, partitions=range(PARTITIONS)).to_batches(), *bad.to_batches()])
    assert files(log) == before


def test_the_files_of_a_commit_whose_outcome_is_unknown_stay(log):
    before = files(log)
    play = Play()
    play.commits(*[store_failed] * commit_module.FAILURES)
    with pytest.raises(UnknownOutcomeError):
        opened(log, open_delta_log=play).topic("orders").append(records(400, partitions=range(PARTITIONS)))
    assert len(files(log)) > len(before)
