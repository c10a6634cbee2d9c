"""What the files of a topic's format hold, and topics of another format version: each is refused by name."""

from __future__ import annotations

import dataclasses

import pyarrow.parquet as pq
import pytest

from spark_segments.errors import FormatVersionError, NotLeaderError, SegmentsError
from verification.world.chunk_rows import TOPIC_ID, new_chunk, new_partitions
from verification.world.manifest_rows import (
    Change,
    Manifest,
    Segment,
    TopicRow,
    commit_append,
    of_format,
    of_version_1,
    removed_by_retention,
)

SEGMENT_COLUMNS = (
    *("topic_id", "partition", "base_offset", "next_offset", "path", "file_base_offset"),
    *("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes", "records", "batches"),
    *("first_batch_max_timestamp_ms", "max_timestamp_ms", "offset_of_max_timestamp", "tombstones"),
    *("delete_horizon_ms", "created_ms", "state", "removed_ms", "position", "index_position"),
    "min_timestamp_ms",
)

SHARED = {"path": f"orders-shared/{0:020d}.5e0c.log", "index_position": 5000}


def shared(position: int, partition: int = 0):
    return dataclasses.replace(new_chunk(partition), **SHARED, byte_position=position)


def columns(manifest: Manifest, kind: str) -> set[tuple[str, ...]]:
    """The columns of the files of a kind that the latest version names."""
    paths = [file.path for file in manifest.log.state().files if file.kind == kind]
    directory = manifest.storage.location(manifest.log.directory)
    return {tuple(pq.ParquetFile(f"{directory}/{path}").schema_arrow.names) for path in paths}


def test_files_have_the_columns_of_the_format(manifest):
    commit_append(manifest, [new_chunk()], ("app", 1))
    assert columns(manifest, "segment") == {SEGMENT_COLUMNS}
    assert columns(manifest, "topic") == {("topic_id", "properties", "deleted_topics", "states")}
    assert columns(manifest, "transaction") == {("topic_id", "application_id", "version", "query_id", "committed_ms")}


def test_a_newer_format_is_refused(manifest):
    with of_format(3):
        manifest.commit(lambda at: Change("alter", topic=at.topic_row))
    for asks in (manifest.snapshot, manifest.exists, lambda: commit_append(manifest, [new_chunk()])):
        with pytest.raises(FormatVersionError, match=r"newer version.*orders.*Use a newer") as refused:
            asks()
        assert (refused.value.expected, refused.value.found) == ("format.version 2", 3)


def test_version_1_is_refused_by_name(manifest):
    commit_append(manifest, [new_chunk()])
    of_version_1(manifest)
    for asks in (manifest.snapshot, manifest.exists, lambda: commit_append(manifest, [new_chunk()])):
        with pytest.raises(FormatVersionError, match=r"format version 1, .*orders.*segments export.*segments import"):
            asks()


def test_rows_of_version_1_in_a_topic_of_version_2_are_refused_too(manifest):
    """Before the first release an upgrade left files of rows as they were."""
    commit_append(manifest, [new_chunk()])
    of_version_1(manifest, "segment")
    with pytest.raises(FormatVersionError, match="format version 1"):
        manifest.snapshot().live  # noqa: B018


def test_a_topic_made_again_by_its_old_id_starts_without_transactions(manifest):
    commit_append(manifest, [new_chunk()], ("app", 7))
    manifest.delete()
    manifest.create(TopicRow(TOPIC_ID, {}), new_partitions(1))
    assert manifest.state().last_transactions() == []
    assert commit_append(manifest, [new_chunk()], ("app", 7)) != {}


def test_rows_of_a_shared_file_change_one_by_one(manifest):
    chunks = [shared(0), shared(100), shared(0, 1), new_chunk(1)]
    commit_append(manifest, chunks)
    first, second = manifest.snapshot().live_of(0)
    manifest.commit(lambda snapshot: removed_by_retention(snapshot, [first], 5))
    assert manifest.snapshot().live_of(0) == [second]
    assert [row.path for row in manifest.snapshot().live_of(1)] == [chunks[2].path, chunks[3].path]
    manifest.commit(lambda _: Change("vacuum", drop=[first]))
    assert [row.byte_position for row in Segment.of_table(manifest.snapshot().segments)] == [100, 0, 0]
    with pytest.raises(SegmentsError, match="once only"):
        commit_append(manifest, [chunks[1]])
    with pytest.raises(SegmentsError, match="twice"):
        manifest.commit(lambda _: Change("roll", replace=[second, second]))


@pytest.mark.parametrize(
    ("role", "taken"),
    [
        ("leader", {"append", "roll", "alter", "vacuum", "mirror", "promote"}),
        ("follower", {"vacuum", "mirror", "promote"}),
        ("fenced", {"vacuum"}),
        ("of a later package", set()),
    ],
)
def test_a_role_says_who_may_commit(manifest, role, taken):
    states = {"role": role}
    if role == "follower":
        states |= {
            "source_uri": "elsewhere", "source_version": "1", "source_commit_id": "c", "source_committed_ms": "1",
        }  # fmt: skip
    manifest.commit(lambda at: Change("promote", topic=dataclasses.replace(at.topic_row, states=states)))
    version = manifest.snapshot().version
    for operation in ("append", "roll", "alter", "vacuum", "mirror", "promote"):
        commit = lambda operation=operation: manifest.commit(lambda at: Change(operation, config=at.config))  # noqa: E731
        if operation in taken:
            version = commit().version
        else:
            with pytest.raises(NotLeaderError, match=f"takes no {operation}.*{role}"):
                commit()
    assert manifest.snapshot().version == version
    assert dict(manifest.snapshot().states) == states


def test_states_outlive_alterations_deletion_and_restore(manifest):
    states = {"role": "leader", "role_epoch": "3", "of a later package": "x"}
    manifest.commit(lambda at: Change("promote", topic=dataclasses.replace(at.topic_row, states=states)))
    manifest.commit(lambda _: Change("alter", config={"retention.ms": "9"}))
    manifest.delete()
    assert dict(manifest.snapshot(deleted=True).states) == states
