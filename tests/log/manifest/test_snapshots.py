"""Snapshots stay what they were, travel, and are read from the files that may hold their rows."""

from __future__ import annotations

import pickle
import time
from itertools import permutations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_segments.errors import InvalidOptionError
from spark_segments.log.reading.scan_plan import EVERYTHING, Part
from spark_segments.storage import Storage
from tests.log.manifest.files import DAY_MS
from tests.maintenance.rows import row, table
from verification.world.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_manifest
from verification.world.manifest_rows import (
    SEGMENT_SCHEMA,
    Manifest,
    Partition,
    Segment,
    TopicRow,
    commit_append,
    forget_rows,
    removed_by_retention,
)
from verification.world.stores.played_files import PlayedFiles


def test_a_snapshot_stays_what_it_was_whatever_comes_after(manifest):
    chunk = new_chunk()
    commit_append(manifest, [chunk])
    snapshot = manifest.snapshot()
    commit_append(manifest, [new_chunk()])
    manifest.merge_files()
    manifest.delete()
    manifest.drop_old_versions(retention_ms=DAY_MS, now_ms=time.time_ns() // 1_000_000)
    assert snapshot.live_of(0) == [chunk]
    assert snapshot.partition(0).log_end_offset == 10


def test_a_snapshot_travels_by_pickle_without_its_rows(manifest):
    chunk = new_chunk()
    commit_append(manifest, [chunk])
    snapshot = manifest.snapshot()
    assert snapshot.live.num_rows == 1
    content = pickle.dumps(snapshot)
    assert chunk.path.encode() not in content
    assert pickle.loads(content).live_of(0) == [chunk]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_rows_in_any_order_come_in_the_order_of_the_log(order):
    """An import leaves a segment without offsets where the next one begins: it comes first."""
    rows = [row(0, 9), row(9, 9), row(9, 10), row(0, 4, partition=1)]
    assert Segment.of_table(table([rows[number] for number in order])) == rows


def test_earlier_versions_can_be_read(manifest):
    for _ in range(3):
        commit_append(manifest, [new_chunk()])
    assert [manifest.snapshot(version).live.num_rows for version in range(4)] == [0, 1, 2, 3]
    assert [entry["operation"] for entry in manifest.history()] == ["create", "append", "append", "append"]
    for version in (4, 99, -1):
        with pytest.raises(InvalidOptionError, match="Version"):
            manifest.snapshot(version)


@pytest.fixture
def many_files(tmp_path, limits, files) -> Manifest:
    """Four partitions whose rows lie in a file each, none of which was read."""
    limits(SEGMENT_ROWS_A_FILE=100)
    manifest = Manifest(Storage(str(tmp_path), filesystem=files), TOPIC)
    manifest.create(
        TopicRow(TOPIC_ID, {}), [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)], ROWS
    )
    return manifest


ROWS = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]


@pytest.fixture
def files() -> PlayedFiles:
    return PlayedFiles()


def reads(files: PlayedFiles) -> list[str]:
    """The paths that were read."""
    return [path for call, path in files.calls if call == "read"]


def test_some_partitions_are_read_from_the_files_that_may_hold_them(many_files, files):
    snapshot = many_files.snapshot()
    forget_rows()
    files.calls.clear()
    assert Segment.of_table(snapshot.load_segments([2])) == ROWS[200:300]
    assert len(reads(files)) == 1


def test_a_read_of_a_partition_takes_the_rows_of_that_partition_alone(many_files, files):
    snapshot = many_files.snapshot()
    forget_rows()
    files.calls.clear()
    assert [one.segment for one in Part.planned(snapshot, {2: ((500, 530),)}, EVERYTHING)] == ROWS[250:253]
    assert len(reads(files)) == 1


def test_a_snapshot_that_has_its_rows_reads_none_of_them_again(many_files, files):
    snapshot = many_files.snapshot()
    assert snapshot.live.num_rows == len(ROWS)
    forget_rows()
    files.calls.clear()
    assert [one.segment for one in Part.planned(snapshot, {2: ((500, 530),)}, EVERYTHING)] == ROWS[250:253]
    assert snapshot.narrowed({2}) is snapshot
    assert reads(files) == []


def test_rows_come_in_the_order_of_the_log_whatever_the_order_of_commits(tmp_path):
    manifest = new_manifest(tmp_path)
    for number in (2, 0, 1, 0, 2):
        commit_append(manifest, [new_chunk(number)])
    rows = manifest.snapshot().segments
    assert [(row.partition, row.base_offset) for row in Segment.of_table(rows)] == [
        (0, 0),
        (0, 10),
        (1, 0),
        (2, 0),
        (2, 10),
    ]


def test_delta_rs_reads_the_same_rows(manifest):
    commit_append(manifest, [new_chunk(0), new_chunk(1)])
    commit_append(manifest, [new_chunk(0)])
    manifest.commit(lambda snapshot: removed_by_retention(snapshot, snapshot.live_of(0)[:1], 5))
    snapshot = manifest.snapshot()
    uri, _ = manifest.storage.delta_uri(f"_manifest/{TOPIC}")
    for _ in range(2):
        table = pa.table(DeltaTable(uri).to_pyarrow_table())
        segments = table.filter(pa.compute.equal(table["kind"], "segment")).select(SEGMENT_SCHEMA.names)
        assert segments.sort_by([("partition", "ascending"), ("base_offset", "ascending")]).cast(
            SEGMENT_SCHEMA
        ) == Segment.table(Segment.of_table(snapshot.segments))
        ends = table.filter(pa.compute.equal(table["kind"], "partition")).sort_by("partition")
        assert ends["log_end_offset"].to_pylist() == [20, 10, 0]
        assert dict(table.filter(pa.compute.equal(table["kind"], "topic"))["properties"][0].as_py()) == {
            "retention.ms": "1000",
            "format.version": "2",
        }
        manifest.merge_files()
