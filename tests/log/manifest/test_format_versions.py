"""Format versions of a topic: what version 1 stays, what needs version 2, and the explicit step between them."""

from __future__ import annotations

import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from spark_segments.errors import FormatVersionError, NotLeaderError, SegmentsError
from spark_segments.log.manifest.manifest import Upgrade
from tests.log.chunk_rows import TOPIC_ID, leftovers, new_chunk, new_manifest, new_partitions
from tests.manifest_rows import Change, Manifest, Transaction, commit_append, forget_rows, segments_of

OLD_COLUMNS = (
    *("topic_id", "partition", "base_offset", "next_offset", "path", "file_base_offset"),
    *("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes", "records", "batches"),
    *("first_batch_max_timestamp_ms", "max_timestamp_ms", "offset_of_max_timestamp", "tombstones"),
    *("delete_horizon_ms", "created_ms", "state", "removed_ms"),
)
"""The columns of segment rows of version 1, which never change."""

SHARED = {"path": f"orders-shared/{0:020d}.5e0c.log", "index_position": 5000}


@pytest.fixture
def old(tmp_path) -> Manifest:
    return new_manifest(tmp_path, format_version=1)


def shared(position: int, partition: int = 0):
    return dataclasses.replace(new_chunk(partition), **SHARED, byte_position=position)


def columns(manifest: Manifest, kind: str) -> set[tuple[str, ...]]:
    """The columns of the files of a kind that the latest version names."""
    paths = [file.path for file in manifest.log.state().files if file.kind == kind]
    directory = manifest.storage.location(manifest.log.directory)
    return {tuple(pq.ParquetFile(f"{directory}/{path}").schema_arrow.names) for path in paths}


def table_columns(manifest: Manifest) -> list[str]:
    """The columns of the Delta table, as its log says them last."""
    found = []
    for version in manifest.log.versions():
        for action in manifest.log.delta.actions(version):
            if "metaData" in action:
                found = [field["name"] for field in json.loads(action["metaData"]["schemaString"])["fields"]]
    return found


def test_topics_are_made_in_version_2(manifest):
    commit_append(manifest, [new_chunk()], ("app", 1))
    assert manifest.snapshot().format_version == 2
    assert columns(manifest, "segment") == {(*OLD_COLUMNS, "position", "index_position")}
    assert columns(manifest, "topic") == {("topic_id", "properties", "deleted_topics", "states")}
    assert columns(manifest, "transaction") == {("topic_id", "application_id", "version", "query_id", "committed_ms")}


def test_a_topic_of_version_1_is_written_as_version_1(old):
    commit_append(old, [new_chunk(0), new_chunk(1)], ("app", 1))
    old.commit(lambda snapshot: Change("retain", replace=[snapshot.live_of(0)[0].removed(5)]))
    old.commit(lambda snapshot: Change("alter", config={"retention.ms": "7"}))
    old.merge_files()
    assert old.snapshot().format_version == 1
    assert columns(old, "segment") == {OLD_COLUMNS} and columns(old, "topic") == {("topic_id", "properties")}
    assert columns(old, "transaction") == set()
    assert not {"position", "index_position", "states", "application_id"} & set(table_columns(old))


def test_vacuum_marks_rows_of_version_1_in_the_old_way(old):
    commit_append(old, [new_chunk()])
    old.commit(lambda snapshot: Change("retain", replace=[snapshot.live_of(0)[0].removed(5)]))
    old.commit(
        lambda snapshot: Change(
            "vacuum", replace=[dataclasses.replace(row, state="deleting") for row in segments_of(snapshot.segments)]
        )
    )
    forget_rows()
    [row] = segments_of(old.snapshot().segments)
    assert (row.state, row.removed_ms) == ("deleting", -1)
    [file] = [file for file in old.log.state().files if file.kind == "segment"]
    in_file = pq.ParquetFile(f"{old.storage.location(old.log.directory)}/{file.path}").read()
    assert (in_file["state"].to_pylist(), in_file["removed_ms"].to_pylist()) == (["removed"], [-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda _: Change("append", add=[shared(0)], partitions=[]),
        lambda _: Change("append", add=[dataclasses.replace(new_chunk(), byte_position=3)]),
        lambda snapshot: Change("mirror", topic=dataclasses.replace(snapshot.topic_row, states={"role": "follower"})),
    ],
    ids=["shared object", "position", "states"],
)
def test_what_needs_version_2_is_refused_below_it(old, change):
    with pytest.raises(FormatVersionError, match=r"segments topic upgrade LOG_DIR orders") as refused:
        old.commit(change)
    assert (refused.value.expected, refused.value.found) == ("format.version 2", 1)
    assert old.snapshot().version == 0


def test_the_format_version_never_falls(manifest):
    with pytest.raises(SegmentsError, match="would fall"):
        manifest.commit(
            lambda snapshot: Change("alter", topic=dataclasses.replace(snapshot.topic_row, format_version=1))
        )


@pytest.mark.rule("M31")
def test_an_upgrade_is_a_single_commit_that_changes_no_row_of_the_log(old):
    commit_append(old, [new_chunk(0), new_chunk(1)], ("app", 3))
    before, topic = old.snapshot(), old.snapshot().topic_row
    assert old.upgrade(dry_run=True) == Upgrade(1, 2, 1)
    assert old.snapshot().version == before.version
    assert old.upgrade() == Upgrade(1, 2, 1)
    after = old.snapshot()
    assert (after.version, after.topic_row) == (before.version + 1, dataclasses.replace(topic, format_version=2))
    assert after.segments.equals(before.segments) and after.partitions.equals(before.partitions)
    assert {"position", "index_position", "states", "application_id", "query_id"} <= set(table_columns(old))
    assert columns(old, "segment") == {OLD_COLUMNS}  # files that no commit rewrites stay as they are
    assert old.upgrade() == Upgrade(2, 2, 0)
    assert old.snapshot().version == after.version


def test_an_upgraded_topic_takes_what_needs_version_2(old):
    commit_append(old, [new_chunk(0)])
    old.upgrade()
    assert commit_append(old, [shared(0), shared(100), shared(0, 1)]) == {0: (10, 29), 1: (0, 9)}
    assert columns(old, "segment") == {OLD_COLUMNS, (*OLD_COLUMNS, "position", "index_position")}
    old.merge_files()
    assert columns(old, "segment") == {(*OLD_COLUMNS, "position", "index_position")}
    [first, *others] = old.snapshot().live_of(0)
    assert (first.byte_position, first.is_shared, [row.byte_position for row in others]) == (0, False, [0, 100])


def test_transactions_of_version_1_are_known_after_the_upgrade(old):
    commit_append(old, [new_chunk()], ("app", 7))
    old.merge_files()  # a checkpoint, which has the transactions of the commits before it
    commit_append(old, [new_chunk()], ("later", 3))
    old.commit(lambda _: Change("restore", transactions=[Transaction("forgotten", -1)]))
    old.upgrade()
    forget_rows()
    state = old.state()
    assert {one.application: one.version for one in state.last_transactions()} == {
        "app": 7,
        "later": 3,
        "forgotten": -1,
    }
    assert commit_append(old, [new_chunk()], ("app", 7)) == {}
    assert commit_append(old, [new_chunk()], ("later", 3)) == {}
    assert commit_append(old, [new_chunk()], ("forgotten", 0)) != {}


def test_a_version_before_the_upgrade_reads_as_it_was(old):
    commit_append(old, [new_chunk()], ("app", 7))
    version = old.snapshot().version
    old.upgrade()
    commit_append(old, [shared(0)], ("app", 8))
    earlier = old.state(version)
    assert (earlier.snapshot.format_version, earlier.snapshot.live.num_rows) == (1, 1)
    assert earlier.last_transaction("app") == Transaction("app", 7)


def test_a_deleted_topic_of_version_1_is_made_again_in_version_2(old):
    commit_append(old, [new_chunk()], ("app", 7))
    old.delete()
    assert old.snapshot(deleted=True).format_version == 1
    old.create("second", {}, new_partitions(2, "second"))
    snapshot = old.snapshot()
    assert (snapshot.format_version, leftovers(snapshot).num_rows, snapshot.partitions.num_rows) == (2, 1, 2)
    assert dict(snapshot.deleted_topics) == {TOPIC_ID: ""}
    assert "position" in table_columns(old)
    assert commit_append(old, [new_chunk(topic_id="second")], ("app", 7)) != {}


def test_a_topic_made_again_by_its_old_id_starts_without_transactions(manifest):
    commit_append(manifest, [new_chunk()], ("app", 7))
    manifest.delete()
    manifest.create(TOPIC_ID, {}, new_partitions(1))
    assert manifest.state().last_transactions() == []
    assert commit_append(manifest, [new_chunk()], ("app", 7)) != {}


def test_rows_of_a_shared_file_change_one_by_one(manifest):
    chunks = [shared(0), shared(100), shared(0, 1), new_chunk(1)]
    commit_append(manifest, chunks)
    first, second = manifest.snapshot().live_of(0)
    manifest.commit(lambda _: Change("roll", replace=[first.removed(5)]))
    assert manifest.snapshot().live_of(0) == [second]
    assert [row.path for row in manifest.snapshot().live_of(1)] == [chunks[2].path, chunks[3].path]
    manifest.commit(lambda _: Change("vacuum", drop=[first]))
    assert [row.byte_position for row in segments_of(manifest.snapshot().segments)] == [100, 0, 0]
    with pytest.raises(SegmentsError, match="once only"):
        commit_append(manifest, [chunks[1]])
    with pytest.raises(SegmentsError, match="twice"):
        manifest.commit(lambda _: Change("roll", replace=[second, second]))


def test_an_alteration_never_raises_the_version(old):
    old.commit(lambda _: Change("alter", config={"retention.ms": "9"}, partitions=new_partitions(4)[3:]))
    old.delete()
    assert old.snapshot(deleted=True).format_version == 1


@pytest.mark.parametrize(
    ("role", "taken"),
    [
        ("leader", {"append", "roll", "alter", "vacuum", "mirror", "promote"}),
        ("follower", {"vacuum", "mirror", "promote"}),
        ("fenced", {"vacuum", "promote"}),
        ("of a later package", set()),
    ],
)
def test_a_role_says_who_may_commit(manifest, role, taken):
    manifest.commit(lambda at: Change("promote", topic=dataclasses.replace(at.topic_row, states={"role": role})))
    version = manifest.snapshot().version
    for operation in ("append", "roll", "alter", "vacuum", "mirror", "promote"):
        commit = lambda operation=operation: manifest.commit(lambda at: Change(operation, config=at.config))  # noqa: E731
        if operation in taken:
            version = commit().version
        else:
            with pytest.raises(NotLeaderError, match=f"takes no {operation}.*{role}"):
                commit()
    assert manifest.snapshot().version == version
    assert dict(manifest.snapshot().states) == {"role": role}


def test_states_outlive_alterations_deletion_and_restore(manifest):
    states = {"role": "leader", "role_epoch": "3", "of a later package": "x"}
    manifest.commit(lambda at: Change("promote", topic=dataclasses.replace(at.topic_row, states=states)))
    manifest.commit(lambda _: Change("alter", config={"retention.ms": "9"}))
    manifest.delete()
    assert dict(manifest.snapshot(deleted=True).states) == states
