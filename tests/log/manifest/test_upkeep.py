"""The table merges its files, and vacuum leaves what readers and commits may need."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.log.manifest import manifest as manifest_module
from spark_segments.log.manifest.files.delta.delta_log import openable
from spark_segments.log.manifest.manifest import CHECKPOINT_VERSIONS
from tests.log.manifest.files import DAY_MS, make_older, segment_files
from verification.world.chunk_rows import new_chunk, new_manifest
from verification.world.manifest_rows import Change, Manifest, Segment, commit_append, forget_rows, write_rows


def test_the_table_merges_its_files_and_keeps_its_content(manifest, limits):
    limits(MERGE_VERSIONS=10)
    chunks = [new_chunk(number % 3) for number in range(23)]
    for chunk in chunks:
        commit_append(manifest, [chunk])
    assert len(segment_files(manifest)) < 10
    assert (manifest.storage.list("_manifest/orders/_delta_log")[-1].path).endswith("_last_checkpoint")
    snapshot = manifest.snapshot()
    for number in range(3):
        mine = [chunk for chunk in chunks if chunk.partition == number]
        assert snapshot.live_of(number) == [chunk.at(10 * place) for place, chunk in enumerate(mine)]


def test_a_merge_that_fails_does_not_fail_the_commit(manifest, monkeypatch, limits):
    limits(MERGE_VERSIONS=1)

    def fail(log):
        raise OSError("no space left")

    monkeypatch.setattr(manifest_module, "merge_files", fail)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}


def test_overlapping_files_are_sorted_into_one_order_when_asked(tmp_path, limits):
    limits(SEGMENT_ROWS_A_FILE=4)
    manifest = new_manifest(tmp_path, partitions=4)
    for _ in range(4):
        commit_append(manifest, [new_chunk(number) for number in range(4)])
    before = manifest.snapshot().segments
    assert not manifest.merge_files()
    manifest.drop_old_versions(DAY_MS, time.time_ns() // 1_000_000)
    files = [file for file in manifest.log.state().files if file.kind == "segment"]
    assert sorted(file.bounds["partition"] for file in files) == [(number, number) for number in range(4)]
    assert manifest.snapshot().segments == before


def test_vacuum_keeps_what_readers_of_the_last_day_may_need(manifest):
    for _ in range(3):
        commit_append(manifest, [new_chunk()])
    now_ms = time.time_ns() // 1_000_000
    for dry_run in (False, True):
        assert manifest.drop_old_versions(DAY_MS, now_ms, dry_run=dry_run).paths == []
    assert [manifest.snapshot(version).live.num_rows for version in range(4)] == [0, 1, 2, 3]


def test_vacuum_takes_versions_that_were_superseded_before_the_retention(manifest):
    for _ in range(3):
        commit_append(manifest, [new_chunk()])
    manifest.merge_files()
    commit_append(manifest, [new_chunk()])
    make_older(manifest, 2 * DAY_MS)
    kept = manifest.snapshot().version
    last = commit_append(manifest, [new_chunk()])
    dry = manifest.drop_old_versions(DAY_MS, time.time_ns() // 1_000_000, dry_run=True)
    assert manifest.snapshot(1).live.num_rows == 1
    done = manifest.drop_old_versions(DAY_MS, time.time_ns() // 1_000_000)
    assert done == dry
    assert done.size_bytes > 0
    assert all(not manifest.storage.exists(path) for path in done.paths)
    assert any("_delta_log" in path for path in done.paths)
    # The latest version of two days ago was still the latest one yesterday.
    assert manifest.snapshot(kept).live.num_rows == 4
    with pytest.raises(InvalidOptionError, match="not there"):
        manifest.snapshot(1)
    forget_rows()
    assert last == {0: (40, 49)}
    assert manifest.snapshot().live.num_rows == 5
    assert commit_append(manifest, [new_chunk()], ("app", 1)) == {0: (50, 59)}


def test_vacuum_takes_files_of_lost_tries_by_the_clock_of_the_store_alone(manifest):
    write_rows(manifest.log.store, "segment", Segment.table([new_chunk()]))
    [lost] = [info.path for info in manifest.storage.list(f"{manifest.log.directory}/kind=segment")]
    far_ms = time.time_ns() // 1_000_000 + 1000 * DAY_MS
    assert manifest.drop_old_versions(DAY_MS, far_ms).paths == []
    make_older(manifest, 8 * DAY_MS, [lost])
    assert manifest.drop_old_versions(DAY_MS, 0).paths == [lost]


def test_vacuum_keeps_old_files_that_are_still_named(manifest):
    commit_append(manifest, [new_chunk()])
    make_older(manifest, 100 * DAY_MS)
    manifest.drop_old_versions(0, time.time_ns() // 1_000_000)
    forget_rows()
    assert manifest.snapshot().live.num_rows == 1


def versions_since_a_checkpoint(manifest: Manifest, count: int) -> None:
    for number in range(count):
        manifest.commit(lambda snapshot, number=number: Change("alter", config={"retention.ms": str(number)}))


@pytest.mark.proof
def test_every_version_that_vacuum_leaves_in_the_list_can_be_opened(manifest):
    """Delta's log is kept for an hour, whatever the retention: a part of what lies before a checkpoint may be older."""
    versions_since_a_checkpoint(manifest, 45)
    log = manifest.log
    make_older(manifest, 2 * 60 * 60 * 1000, [f"{log.directory}/_delta_log/{n:020d}.json" for n in range(31)])
    assert manifest.drop_old_versions(60_000, time.time_ns() // 1_000_000 + DAY_MS).paths
    listed = [entry["version"] for entry in manifest.history()]
    # The checkpoint of version 20 is the last one with nothing younger than an hour before it.
    assert listed[0] == 20 and listed[-1] >= 45
    for version in listed:
        assert log.open(version).version == version


def test_vacuum_goes_on_where_an_earlier_one_has_cut_the_log_between_checkpoints(manifest):
    versions_since_a_checkpoint(manifest, 45)
    log = manifest.log
    log.storage.delete(f"{log.directory}/_delta_log/{n:020d}.json" for n in range(31))
    log.storage.delete(info.path for info in log.delta.log_files().checkpoints[20])
    now_ms = time.time_ns() // 1_000_000
    manifest.drop_old_versions(DAY_MS, now_ms)
    assert manifest.log.versions()[0] == manifest.history()[0]["version"] == 40
    with pytest.raises(InvalidOptionError, match="not there"):
        manifest.snapshot(35)
    assert manifest.snapshot(41).config == {"retention.ms": "40"}


@pytest.mark.rule("W19")
@pytest.mark.parametrize(
    ("commits", "checkpoints", "expected"),
    [
        (range(5), [], [0, 1, 2, 3, 4]),
        (range(5), [2], [0, 1, 2, 3, 4]),
        ([3, 4, 5, 6], [5], [5, 6]),
        ([3, 4, 5], [2], [3, 4, 5]),
        ([3, 4, 5], [1], []),
        ([0, 1, 4, 5], [4], [4, 5]),
        ([], [], []),
    ],
)
def test_a_version_is_open_to_commits_from_the_start_or_a_checkpoint(commits, checkpoints, expected):
    assert openable(list(commits), checkpoints) == expected


@pytest.mark.proof
def test_a_checkpoint_does_not_grow_with_the_versions_before_it(tmp_path):
    """Each commit replaces files of rows; a checkpoint that listed them all would make opens slower and slower."""
    manifest = new_manifest(tmp_path)
    for number in range(2 * CHECKPOINT_VERSIONS):
        commit_append(manifest, [new_chunk()], ("q", number))
    (checkpoint,) = manifest.log.delta.log_files().checkpoints[2 * CHECKPOINT_VERSIONS]
    actions = pq.read_table(pa.BufferReader(manifest.storage.read(checkpoint.path)))
    assert actions.column("remove").null_count == actions.num_rows
    assert actions.column("add").null_count < actions.num_rows
