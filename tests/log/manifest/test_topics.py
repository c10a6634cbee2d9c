"""The manifest makes topics, changes, deletes and makes them again."""

from __future__ import annotations

import dataclasses

import pytest

from spark_segments.errors import CommitConflictError, TopicExistsError, UnknownTopicError
from spark_segments.storage import Storage
from tests.log.manifest.files import offsets
from verification.world.chunk_rows import TOPIC, TOPIC_ID, leftovers, new_chunk, new_manifest, new_partitions
from verification.world.clock import store_clock
from verification.world.manifest_rows import (
    SEGMENT_SCHEMA,
    Change,
    Manifest,
    Partition,
    Segment,
    TopicRow,
    commit_append,
)


@pytest.mark.rule("W21")
def test_a_new_topic_is_there_with_its_settings_and_empty_partitions(manifest):
    snapshot = manifest.snapshot()
    assert manifest.exists()
    assert (snapshot.topic, snapshot.topic_id, snapshot.version) == (TOPIC, TOPIC_ID, 0)
    assert snapshot.config == {"retention.ms": "1000"}
    assert offsets(manifest) == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    assert snapshot.segments.schema == SEGMENT_SCHEMA
    assert snapshot.segments.num_rows == snapshot.live.num_rows == 0


def test_a_topic_that_nobody_made_is_unknown(tmp_path):
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    assert not manifest.exists()
    with pytest.raises(UnknownTopicError):
        manifest.snapshot()
    with pytest.raises(UnknownTopicError):
        manifest.commit(lambda snapshot: None)


def test_a_topic_is_made_once(manifest):
    with pytest.raises(TopicExistsError):
        manifest.create(TopicRow("another", {}), new_partitions(1, "another"))
    assert manifest.snapshot().topic_id == TOPIC_ID


def test_an_import_makes_topic_and_segments_in_one_commit(tmp_path):
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    partition = Partition(TOPIC_ID, 0, 5, 30, 10, 25, leader_epochs=((0, 0), (3, 20)))
    segment = dataclasses.replace(new_chunk().at(20), state="sealed")
    manifest.create(TopicRow(TOPIC_ID, {}), [partition], [segment])
    snapshot = manifest.snapshot()
    assert snapshot.version == 0
    assert snapshot.partition(0) == partition
    assert snapshot.live_of(0) == [segment]


def test_settings_and_partitions_change_in_one_commit(manifest):
    commit_append(manifest, [new_chunk(2)])
    added = [Partition(TOPIC_ID, number) for number in (3, 4)]
    manifest.commit(lambda snapshot: Change("alter", config={"retention.ms": "5"}, partitions=added))
    assert manifest.snapshot().config == {"retention.ms": "5"}
    assert offsets(manifest) == {0: (0, 0), 1: (0, 0), 2: (0, 10), 3: (0, 0), 4: (0, 0)}


def test_many_partitions_lie_in_files_of_which_an_append_rewrites_one(tmp_path):
    manifest = new_manifest(tmp_path, partitions=2500)
    before = {file.path for file in manifest.log.state().files if file.kind == "partition"}
    commit_append(manifest, [new_chunk(1200)])
    after = {file.path for file in manifest.log.state().files if file.kind == "partition"}
    assert len(before) == len(after) == 3
    assert len(before - after) == 1
    assert [number for number, (_, end) in offsets(manifest).items() if end] == [1200]


def test_a_deleted_topic_is_gone_and_leaves_its_rows_to_vacuum(manifest):
    chunk = new_chunk()
    commit_append(manifest, [chunk])
    with store_clock(77):
        manifest.delete()
    assert not manifest.exists()
    with pytest.raises(UnknownTopicError):
        manifest.snapshot()
    with pytest.raises(UnknownTopicError):
        commit_append(manifest, [new_chunk()])
    deleted = manifest.snapshot(deleted=True)
    assert deleted.deleted_ms == 77
    assert Segment.of_table(deleted.segments) == [chunk.removed(77)]
    assert deleted.live.num_rows == 0


def test_a_topic_made_again_starts_anew_and_still_shows_vacuum_the_old_rows(manifest):
    chunk = new_chunk()
    commit_append(manifest, [chunk])
    with store_clock(77):
        manifest.delete()
    manifest.create(TopicRow("second", {}), new_partitions(2, "second"))
    snapshot = manifest.snapshot()
    assert (snapshot.topic_id, snapshot.config) == ("second", {})
    assert offsets(manifest) == {0: (0, 0), 1: (0, 0)}
    assert snapshot.segments.num_rows == 0
    assert Segment.of_table(leftovers(snapshot)) == [chunk.removed(77)]
    marked = dataclasses.replace(chunk.removed(77), state="deleting")
    manifest.commit(lambda snapshot: Change("vacuum", replace=[marked]))
    assert Segment.of_table(leftovers(manifest.snapshot())) == [marked]
    manifest.commit(lambda snapshot: Change("vacuum", drop=[chunk]))
    assert leftovers(manifest.snapshot()).num_rows == 0


@pytest.mark.rule("W4")
def test_a_topic_made_again_refuses_what_was_written_for_the_old_one(manifest):
    chunk = new_chunk()
    with store_clock(77):
        manifest.delete()
    manifest.create(TopicRow("second", {}), new_partitions(3, "second"))
    with pytest.raises(CommitConflictError, match="made again"):
        commit_append(manifest, [chunk])
    with pytest.raises(CommitConflictError, match="made again"):
        manifest.commit(lambda snapshot: Change("roll", add=[chunk]))
    assert offsets(manifest)[0] == (0, 0)
