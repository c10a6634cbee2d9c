"""Vacuum of files that hold the runs of several rows: a file goes when no row can need it any more, and not before."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError
from spark_segments.maintenance import restore, vacuum
from verification.world.chunk_rows import new_chunk
from verification.world.clock import ORPHAN_AGE_MS
from verification.world.manifest_rows import Manifest, Segment, commit_append, removed_by_retention
from verification.world.opened import opened
from verification.world.stores.played_files import PlayedFiles
from verification.world.stores.played_log import Play

VACUUM = sys.modules["spark_segments.maintenance.removal.vacuum"]
REMOVED_MS = 1_700_000_000_000
LATER_MS = REMOVED_MS + 61_000
FIRST, SECOND = (f"orders-shared/{0:020d}.{name}.log" for name in ("5e0c", "77aa"))


@pytest.fixture
def shared(log: LogDir) -> LogDir:
    """Topic orders: two shared objects, each with a run of either partition."""
    log.create_topic("orders", 2, {"file.delete.delay.ms": "60000"})
    topic_id = log.topic("orders").snapshot.topic_id
    chunks = []
    for path in (FIRST, SECOND):
        log.storage.write(path, b"runs of batches, their index entries, a footer")
        for partition in (0, 1):
            chunk = new_chunk(partition, topic_id=topic_id)
            chunks.append(dataclasses.replace(chunk, path=path, byte_position=1000 * partition, index_position=2000))
    commit_append(log.topic("orders").manifest, chunks)
    return log


def remove(manifest: Manifest, *rows: Segment) -> None:
    manifest.commit(lambda at: removed_by_retention(at, rows, REMOVED_MS))


def of(log: LogDir, path: str) -> list[Segment]:
    """All rows of the manifest that name a file, by partition."""
    return [row for row in Segment.of_table(log.topic("orders").snapshot.segments) if row.path == path]


def there(log: LogDir) -> set[str]:
    return {file.path for file in log.storage.list("orders-shared")}


def test_a_file_stays_while_a_row_in_the_log_names_it(shared):
    remove(shared.topic("orders").manifest, of(shared, FIRST)[0])
    vacuum(shared, now_ms=LATER_MS)
    assert there(shared) == {FIRST, SECOND}
    assert [row.partition for row in of(shared, FIRST)] == [1]  # the other row is gone: rows are what has to stay few


def test_a_file_stays_while_a_removed_row_may_be_read_or_restored(shared):
    version = shared.topic("orders").snapshot.version
    first, second = of(shared, FIRST)
    remove(shared.topic("orders").manifest, first)
    shared.topic("orders").manifest.commit(lambda at: removed_by_retention(at, [second], REMOVED_MS + 50_000))
    vacuum(shared, now_ms=LATER_MS)
    assert there(shared) == {FIRST, SECOND}
    with pytest.raises(LogDirError, match="cannot be restored: vacuum has deleted 1 of its files"):
        restore(shared, topics=["orders"], version=version)
    assert [row.identity for row in of(shared, FIRST)] == [second.identity]


def test_a_file_goes_with_the_last_row_that_names_it(shared):
    remove(shared.topic("orders").manifest, *of(shared, FIRST))
    report = vacuum(shared, now_ms=LATER_MS)
    assert there(shared) == {SECOND} and of(shared, FIRST) == []
    assert [(line["partition"], line["removed_segments"]) for line in report.partitions] == [(0, 1), (1, 1)]


def test_a_dry_run_deletes_nothing(shared):
    remove(shared.topic("orders").manifest, *of(shared, FIRST))
    version = shared.topic("orders").snapshot.version
    vacuum(shared, now_ms=LATER_MS, dry_run=True)
    assert there(shared) == {FIRST, SECOND} and shared.topic("orders").snapshot.version == version


@pytest.mark.parametrize("place", ["before the files", "before the rows"])
def test_of_two_vacuums_at_once_one_deletes_the_file(shared, place):
    """The rows of a file leave the log one after the other, and each vacuum claims one of them."""
    first, second = of(shared, FIRST)
    remove(shared.topic("orders").manifest, first)
    waiting = [second]

    def overtaken() -> None:
        if waiting:
            remove(shared.topic("orders").manifest, waiting.pop())
            vacuum(shared, now_ms=LATER_MS)

    if place == "before the files":
        vacuum(opened(shared, PlayedFiles(delete=lambda paths, go: (overtaken(), go())[1])), now_ms=LATER_MS)
    else:  # the first commit claims the rows, the second drops them
        vacuum(opened(shared, open_delta_log=Play().before_commits(None, overtaken)), now_ms=LATER_MS)
    assert not waiting
    assert there(shared) == {SECOND} and of(shared, FIRST) == []
    assert len(of(shared, SECOND)) == 2


def test_a_crash_between_file_and_rows_leaves_rows_that_the_next_vacuum_takes(shared):
    remove(shared.topic("orders").manifest, *of(shared, FIRST))

    def crash(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vacuum(opened(shared, open_delta_log=Play().before_commits(None, crash)), now_ms=LATER_MS)
    assert there(shared) == {SECOND}
    assert [(row.state, row.removed_ms) for row in of(shared, FIRST)] == [("deleting", REMOVED_MS)] * 2
    vacuum(shared, now_ms=LATER_MS)
    assert of(shared, FIRST) == []


def test_a_file_that_no_row_of_any_partition_names_goes_once_it_is_old(shared):
    stray = f"orders-shared/{0:020d}.dead.log"
    shared.storage.write(stray, b"of a task that was killed")
    for path in (FIRST, SECOND, stray):
        seconds = (shared.storage.now_ms() - ORPHAN_AGE_MS - 60_000) / 1000
        os.utime(shared.storage.location(path), (seconds, seconds))
    remove(shared.topic("orders").manifest, of(shared, FIRST)[0])
    report = vacuum(shared, now_ms=REMOVED_MS)
    assert there(shared) == {FIRST, SECOND}
    assert [(line["partition"], line["orphan_files"]) for line in report.partitions] == [(None, 1)]


def test_a_topic_made_again_leaves_the_files_of_the_old_one_until_their_delay_is_over(shared):
    shared.delete_topic("orders")
    shared.create_topic("orders", 1)
    now_ms = shared.storage.now_ms()
    vacuum(shared, now_ms=now_ms)
    assert there(shared) == {FIRST, SECOND}
    vacuum(shared, now_ms=now_ms + 120_000)
    assert there(shared) == set()
