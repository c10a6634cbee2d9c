"""Appends, replaced and dropped rows; what would break an invariant is refused."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from spark_segments.errors import CommitConflictError, SegmentsError, TransactionOrderError, UnknownTopicError
from spark_segments.storage import Storage
from tests.log.manifest.files import offsets, segment_files
from verification.world.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_partitions
from verification.world.clock import OLDEST_CHUNK_MS
from verification.world.manifest_rows import Change, Manifest, Partition, TopicRow, commit_append, removed_by_retention

# Appending


@pytest.mark.rule("W9")
def test_chunks_get_the_next_offsets_of_their_partitions_in_the_order_given(manifest):
    chunks = [new_chunk(0, 5), new_chunk(2, 7), new_chunk(0, 1), new_chunk(2, 3)]
    assert commit_append(manifest, chunks[:3]) == {0: (0, 5), 2: (0, 6)}
    assert commit_append(manifest, chunks[3:]) == {2: (7, 9)}
    snapshot = manifest.snapshot()
    assert [(one.path, one.base_offset, one.next_offset) for one in snapshot.live_of(0)] == [
        (chunks[0].path, 0, 5),
        (chunks[2].path, 5, 6),
    ]
    assert [one.base_offset for one in snapshot.live_of(2)] == [0, 7]
    assert [one.file_base_offset for one in snapshot.live_of(2)] == [0, 0]
    assert snapshot.live_of(1) == []
    assert snapshot.partition(2).last_stable_offset == 10


def test_an_open_transaction_of_an_import_holds_the_last_stable_offset(tmp_path):
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    manifest.create(TopicRow(TOPIC_ID, {}), [Partition(TOPIC_ID, 0, log_end_offset=20, last_stable_offset=12)])
    assert commit_append(manifest, [new_chunk()]) == {0: (20, 29)}
    assert manifest.snapshot().partition(0).last_stable_offset == 12


def test_an_append_to_a_partition_that_is_not_there_adds_nothing_at_all(manifest):
    with pytest.raises(UnknownTopicError, match="no partition 3"):
        commit_append(manifest, [new_chunk(0), new_chunk(3)])
    assert offsets(manifest)[0] == (0, 0)


def test_an_append_of_nothing_makes_no_version(manifest):
    assert commit_append(manifest, []) == {}
    assert commit_append(manifest, [dataclasses.replace(new_chunk(), records=0, next_offset=0)]) == {}
    assert manifest.snapshot().version == 0


@pytest.mark.rule("W10")
def test_a_repeated_transaction_adds_nothing_and_an_older_one_is_an_error(manifest):
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {0: (0, 9)}
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {}
    with pytest.raises(TransactionOrderError, match="version 7 again, or a later version, found version 6"):
        commit_append(manifest, [new_chunk()], ("app", 6))
    assert commit_append(manifest, [new_chunk()], ("other", 6)) == {0: (10, 19)}
    assert commit_append(manifest, [new_chunk()], ("app", 8)) == {0: (20, 29)}


def test_transactions_outlive_a_checkpoint_but_not_their_topic(manifest):
    commit_append(manifest, [new_chunk()], ("app", 7))
    manifest.merge_files()
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {}
    manifest.delete()
    manifest.create(TopicRow("second", {}), new_partitions(1, "second"))
    assert commit_append(manifest, [new_chunk(topic_id="second")], ("app", 7)) == {0: (0, 9)}


@pytest.mark.rule("W14")
def test_a_chunk_that_vacuum_might_have_taken_is_refused(manifest, tmp_path):
    chunk = dataclasses.replace(new_chunk(), created_ms=1_700_000_000_000)
    with pytest.raises(CommitConflictError, match="too old"):
        commit_append(manifest, [chunk])
    manifest.storage.write(chunk.path, b"")
    assert commit_append(manifest, [chunk]) == {0: (0, 9)}  # an odd clock wrote it, but the store says it is new

    old = dataclasses.replace(new_chunk(), created_ms=time.time_ns() // 1_000_000 - OLDEST_CHUNK_MS - 1)
    manifest.storage.write(old.path, b"")
    os.utime(tmp_path / old.path, (old.created_ms / 1000, old.created_ms / 1000))
    with pytest.raises(CommitConflictError, match="too old"):
        commit_append(manifest, [old])


@pytest.mark.rule("W14")
def test_old_files_are_refused_whatever_the_commit_and_those_that_another_row_names_are_not(manifest, tmp_path):
    old_ms = time.time_ns() // 1_000_000 - OLDEST_CHUNK_MS - 1
    path = new_chunk().path.replace(f"{TOPIC}-0", f"{TOPIC}-shared")
    first = dataclasses.replace(new_chunk(), path=path, index_position=900)
    commit_append(manifest, [first])
    second = dataclasses.replace(first, byte_position=500, base_offset=10, next_offset=20, created_ms=old_ms)
    other = dataclasses.replace(second, path=path.replace(".log", "a.log"))
    for row in (first, other):
        manifest.storage.write(row.path, b"")
        os.utime(tmp_path / row.path, (old_ms / 1000, old_ms / 1000))

    def grown(row):
        partition = dataclasses.replace(manifest.snapshot().partition(0), log_end_offset=20)
        return lambda _: Change("mirror", add=[row], partitions=[partition])

    with pytest.raises(CommitConflictError, match="too old"):
        manifest.commit(grown(other))
    manifest.commit(grown(second))
    assert manifest.snapshot().live_of(0)[1] == second


# Replacing and dropping


def test_replaced_and_dropped_rows_change_and_all_others_stay(manifest):
    chunks = [new_chunk(0), new_chunk(0), new_chunk(1)]
    for chunk in chunks:
        commit_append(manifest, [chunk])
    first, second = manifest.snapshot().live_of(0)
    sealed = dataclasses.replace(new_chunk(0, 10), state="sealed")
    manifest.commit(lambda snapshot: Change("roll", add=[sealed], replace=[first.removed(5)]))
    snapshot = manifest.snapshot()
    assert snapshot.live_of(0) == [sealed, second]
    assert snapshot.segments.num_rows == 4
    manifest.commit(lambda snapshot: Change("vacuum", drop=[first]))
    snapshot = manifest.snapshot()
    assert snapshot.live_of(0) == [sealed, second]
    assert len(snapshot.live_of(1)) == 1
    assert snapshot.segments.num_rows == 3


def test_only_the_files_that_hold_a_row_are_written_again(tmp_path, limits):
    limits(SEGMENT_ROWS_A_FILE=100)
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    segments = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]
    ends = [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)]
    manifest.create(TopicRow(TOPIC_ID, {}), ends, segments)
    before = segment_files(manifest)
    assert len(before) == 4
    manifest.commit(lambda snapshot: removed_by_retention(snapshot, snapshot.live_of(2)[:1], 1))
    assert len(before - segment_files(manifest)) == 1
    assert [manifest.snapshot().live_table(number).num_rows for number in range(4)] == [100, 100, 99, 100]


def test_rows_that_are_not_there_cannot_be_replaced(manifest):
    commit_append(manifest, [new_chunk()])
    with pytest.raises(CommitConflictError, match="not in the manifest"):
        manifest.commit(lambda snapshot: Change("roll", replace=[new_chunk().removed(1)]))
    with pytest.raises(CommitConflictError, match="not in the manifest"):
        manifest.commit(lambda snapshot: Change("vacuum", drop=[new_chunk()]))


def test_a_plan_with_nothing_to_do_makes_no_version(manifest):
    done = manifest.commit(lambda snapshot: None)
    assert (done.version, done.change, done.repeated) == (0, None, False)
    assert manifest.snapshot().version == 0


@pytest.mark.rule("W8")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"partitions": [Partition(TOPIC_ID, 0, 5, log_end_offset=9)]}, "go back"),
        ({"partitions": [Partition(TOPIC_ID, 0, log_start_offset=4, log_end_offset=10)]}, "go back"),
        ({"partitions": [Partition(TOPIC_ID, 0, log_start_offset=11, log_end_offset=10)]}, "cross"),
        ({"partitions": [Partition(TOPIC_ID, 0, 5, 10, first_dirty_offset=11)]}, "cross"),
        ({"partitions": [Partition(TOPIC_ID, 5)]}, "gaps"),
        ({"add": [new_chunk(0).at(5)]}, "beyond the log end"),
        ({"add": [new_chunk(0, 6).at(0), new_chunk(0, 5).at(5)]}, "overlap"),
        ({"add": [new_chunk(7)]}, "no partition 7"),
        ({"add": [new_chunk(0, unique="once")]}, "once only"),
        ({"add": [new_chunk(1, 0, unique="twice"), new_chunk(1, 0, unique="twice")]}, "twice"),
    ],
)
def test_a_change_that_breaks_an_invariant_is_refused(manifest, rows, message):
    commit_append(manifest, [new_chunk(0, unique="once")])
    start = Partition(TOPIC_ID, 0, log_start_offset=5, log_end_offset=10)
    manifest.commit(lambda snapshot: Change("delete-records", partitions=[start]))
    with pytest.raises(SegmentsError, match=message):
        manifest.commit(lambda snapshot: Change("wrong", **rows))
    assert manifest.snapshot().version == 2
