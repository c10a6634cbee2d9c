"""What the manifest holds, gives back, refuses and cleans up. Races are in test_commit_races.py."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    SegmentsError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_segments.log.appending.offset_assignment import OLDEST_CHUNK_MS, commit_append
from spark_segments.log.manifest import manifest as manifest_module
from spark_segments.log.manifest import row_files
from spark_segments.log.manifest.delta_log import openable
from spark_segments.log.manifest.manifest import Change, Manifest
from spark_segments.log.manifest.rows import SEGMENT_SCHEMA, Partition, Topic, segments_of, segments_table
from spark_segments.storage import Storage
from tests.clock import store_clock
from tests.log.chunk_rows import TOPIC, TOPIC_ID, new_chunk, new_manifest, new_partitions

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    return new_manifest(tmp_path)


def offsets(manifest: Manifest) -> dict[int, tuple[int, int]]:
    rows = manifest.snapshot().partitions.to_pylist()
    return {row["partition"]: (row["log_start_offset"], row["log_end_offset"]) for row in rows}


def segment_files(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.log.state().files if file.kind == "segment"}


def make_older(manifest: Manifest, age_ms: int, paths: list[str] | None = None) -> None:
    """Moves the modification times of files of the table, which is what the store's clock is compared with."""
    storage = manifest.storage
    for info in storage.list(manifest.log.directory, recursive=True):
        if paths is None or info.path in paths:
            seconds = (info.mtime_ms - age_ms) / 1000
            os.utime(storage.location(info.path), (seconds, seconds))


def forget_cached_rows(monkeypatch) -> None:
    """Rows that are still in memory would prove nothing about files."""
    monkeypatch.setattr(row_files, "_cache", row_files._RowCache(row_files.CACHE_BYTES))


# Topics


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
        manifest.create("another", {}, new_partitions(1, "another"))
    assert manifest.snapshot().topic_id == TOPIC_ID


def test_an_import_makes_topic_and_segments_in_one_commit(tmp_path):
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    partition = Partition(TOPIC_ID, 0, 5, 30, 10, 25, leader_epochs=((0, 0), (3, 20)))
    segment = dataclasses.replace(new_chunk().at(20), state="sealed")
    manifest.create(TOPIC_ID, {}, [partition], [segment])
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
    assert segments_of(deleted.segments) == [chunk.removed(77)]
    assert deleted.live.num_rows == 0


def test_a_topic_made_again_starts_anew_and_still_shows_vacuum_the_old_rows(manifest):
    chunk = new_chunk()
    commit_append(manifest, [chunk])
    with store_clock(77):
        manifest.delete()
    manifest.create("second", {}, new_partitions(2, "second"))
    snapshot = manifest.snapshot()
    assert (snapshot.topic_id, snapshot.config) == ("second", {})
    assert offsets(manifest) == {0: (0, 0), 1: (0, 0)}
    assert snapshot.segments.num_rows == 0
    assert segments_of(snapshot.leftovers) == [chunk.removed(77)]
    marked = dataclasses.replace(chunk.removed(77), removed_ms=-1)
    manifest.commit(lambda snapshot: Change("vacuum", replace=[marked]))
    assert segments_of(manifest.snapshot().leftovers) == [marked]
    manifest.commit(lambda snapshot: Change("vacuum", drop=[chunk.path]))
    assert manifest.snapshot().leftovers.num_rows == 0


def test_a_topic_made_again_refuses_what_was_written_for_the_old_one(manifest):
    chunk = new_chunk()
    with store_clock(77):
        manifest.delete()
    manifest.create("second", {}, new_partitions(3, "second"))
    with pytest.raises(CommitConflictError, match="made again"):
        commit_append(manifest, [chunk])
    with pytest.raises(CommitConflictError, match="made again"):
        manifest.commit(lambda snapshot: Change("roll", add=[chunk]))
    assert offsets(manifest)[0] == (0, 0)


def test_a_newer_format_is_refused(manifest):
    newer = Topic(TOPIC_ID, {}, format_version=2)
    manifest.commit(lambda snapshot: Change("upgrade", topic=newer))
    with pytest.raises(LogDirError, match="newer version"):
        manifest.snapshot()
    with pytest.raises(LogDirError, match="newer version"):
        manifest.exists()


# Appending


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
    manifest.create(TOPIC_ID, {}, [Partition(TOPIC_ID, 0, log_end_offset=20, last_stable_offset=12)])
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


def test_a_repeated_or_older_transaction_adds_nothing(manifest):
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {0: (0, 9)}
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {}
    assert commit_append(manifest, [new_chunk()], ("app", 6)) == {}
    assert commit_append(manifest, [new_chunk()], ("other", 6)) == {0: (10, 19)}
    assert commit_append(manifest, [new_chunk()], ("app", 8)) == {0: (20, 29)}


def test_transactions_outlive_a_checkpoint_but_not_their_topic(manifest):
    commit_append(manifest, [new_chunk()], ("app", 7))
    manifest.merge_files()
    assert commit_append(manifest, [new_chunk()], ("app", 7)) == {}
    manifest.delete()
    manifest.create("second", {}, new_partitions(1, "second"))
    assert commit_append(manifest, [new_chunk(topic_id="second")], ("app", 7)) == {0: (0, 9)}


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
    manifest.commit(lambda snapshot: Change("vacuum", drop=[first.path]))
    snapshot = manifest.snapshot()
    assert snapshot.live_of(0) == [sealed, second]
    assert len(snapshot.live_of(1)) == 1
    assert snapshot.segments.num_rows == 3


def test_only_the_files_that_hold_a_row_are_written_again(tmp_path, monkeypatch):
    monkeypatch.setitem(row_files.ROWS_A_FILE, "segment", 100)
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    segments = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]
    ends = [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)]
    manifest.create(TOPIC_ID, {}, ends, segments)
    before = segment_files(manifest)
    assert len(before) == 4
    manifest.commit(lambda snapshot: Change("retain", replace=[snapshot.live_of(2)[0].removed(1)]))
    assert len(before - segment_files(manifest)) == 1
    assert [manifest.snapshot().live_table(number).num_rows for number in range(4)] == [100, 100, 99, 100]


def test_rows_that_are_not_there_cannot_be_replaced(manifest):
    commit_append(manifest, [new_chunk()])
    with pytest.raises(CommitConflictError, match="not in the manifest"):
        manifest.commit(lambda snapshot: Change("roll", replace=[new_chunk().removed(1)]))
    with pytest.raises(CommitConflictError, match="not in the manifest"):
        manifest.commit(lambda snapshot: Change("vacuum", drop=["elsewhere/00000000000000000000.log"]))


def test_a_plan_with_nothing_to_do_makes_no_version(manifest):
    done = manifest.commit(lambda snapshot: None)
    assert (done.version, done.change, done.repeated) == (0, None, False)
    assert manifest.snapshot().version == 0


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


# Snapshots


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


def test_earlier_versions_can_be_read(manifest):
    for _ in range(3):
        commit_append(manifest, [new_chunk()])
    assert [manifest.snapshot(version).live.num_rows for version in range(4)] == [0, 1, 2, 3]
    assert [entry["operation"] for entry in manifest.history()] == ["create", "append", "append", "append"]
    for version in (4, 99, -1):
        with pytest.raises(InvalidOptionError, match="Version"):
            manifest.snapshot(version)


def test_some_partitions_are_read_from_the_files_that_may_hold_them(tmp_path, monkeypatch):
    monkeypatch.setitem(row_files.ROWS_A_FILE, "segment", 100)
    manifest = Manifest(Storage(str(tmp_path)), TOPIC)
    segments = [new_chunk(number, 10).at(base) for number in range(4) for base in range(0, 1000, 10)]
    manifest.create(TOPIC_ID, {}, [Partition(TOPIC_ID, number, log_end_offset=1000) for number in range(4)], segments)
    snapshot = manifest.snapshot()
    forget_cached_rows(monkeypatch)
    reads = []
    original = Storage.read

    def read(storage, path, *rest, **options):
        reads.append(path)
        return original(storage, path, *rest, **options)

    monkeypatch.setattr(Storage, "read", read)
    assert segments_of(snapshot.load_segments([2])) == segments[200:300]
    assert len(reads) == 1


def test_rows_come_in_the_order_of_the_log_whatever_the_order_of_commits(tmp_path):
    manifest = new_manifest(tmp_path)
    for number in (2, 0, 1, 0, 2):
        commit_append(manifest, [new_chunk(number)])
    rows = manifest.snapshot().segments
    assert [(row.partition, row.base_offset) for row in segments_of(rows)] == [(0, 0), (0, 10), (1, 0), (2, 0), (2, 10)]


def test_delta_rs_reads_the_same_rows(manifest):
    commit_append(manifest, [new_chunk(0), new_chunk(1)])
    commit_append(manifest, [new_chunk(0)])
    manifest.commit(lambda snapshot: Change("retain", replace=[snapshot.live_of(0)[0].removed(5)]))
    snapshot = manifest.snapshot()
    uri, _ = manifest.storage.delta_uri(f"_manifest/{TOPIC}")
    for _ in range(2):
        table = pa.table(DeltaTable(uri).to_pyarrow_table())
        segments = table.filter(pa.compute.equal(table["kind"], "segment")).select(SEGMENT_SCHEMA.names)
        assert segments.sort_by([("partition", "ascending"), ("base_offset", "ascending")]).cast(
            SEGMENT_SCHEMA
        ) == segments_table(segments_of(snapshot.segments))
        ends = table.filter(pa.compute.equal(table["kind"], "partition")).sort_by("partition")
        assert ends["log_end_offset"].to_pylist() == [20, 10, 0]
        assert dict(table.filter(pa.compute.equal(table["kind"], "topic"))["properties"][0].as_py()) == {
            "retention.ms": "1000",
            "format.version": "1",
        }
        manifest.merge_files()


# Upkeep


def test_the_table_merges_its_files_and_keeps_its_content(manifest, monkeypatch):
    monkeypatch.setattr(manifest_module, "MERGE_VERSIONS", 10)
    chunks = [new_chunk(number % 3) for number in range(23)]
    for chunk in chunks:
        commit_append(manifest, [chunk])
    assert len(segment_files(manifest)) < 10
    assert (manifest.storage.list("_manifest/orders/_delta_log")[-1].path).endswith("_last_checkpoint")
    snapshot = manifest.snapshot()
    for number in range(3):
        mine = [chunk for chunk in chunks if chunk.partition == number]
        assert snapshot.live_of(number) == [chunk.at(10 * place) for place, chunk in enumerate(mine)]


def test_a_merge_that_fails_does_not_fail_the_commit(manifest, monkeypatch):
    monkeypatch.setattr(manifest_module, "MERGE_VERSIONS", 1)

    def fail(log):
        raise OSError("no space left")

    monkeypatch.setattr(manifest_module, "merge_files", fail)
    assert commit_append(manifest, [new_chunk()]) == {0: (0, 9)}


def test_overlapping_files_are_sorted_into_one_order_when_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(row_files.ROWS_A_FILE, "segment", 4)
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


def test_vacuum_takes_versions_that_were_superseded_before_the_retention(manifest, monkeypatch):
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
    forget_cached_rows(monkeypatch)
    assert last == {0: (40, 49)}
    assert manifest.snapshot().live.num_rows == 5
    assert commit_append(manifest, [new_chunk()], ("app", 1)) == {0: (50, 59)}


def test_vacuum_takes_files_of_lost_tries_by_the_clock_of_the_store_alone(manifest):
    manifest.log.store.write("segment", segments_table([new_chunk()]))
    [lost] = [info.path for info in manifest.storage.list(f"{manifest.log.directory}/kind=segment")]
    far_ms = time.time_ns() // 1_000_000 + 1000 * DAY_MS
    assert manifest.drop_old_versions(DAY_MS, far_ms).paths == []
    make_older(manifest, 8 * DAY_MS, [lost])
    assert manifest.drop_old_versions(DAY_MS, 0).paths == [lost]


def test_vacuum_keeps_old_files_that_are_still_named(manifest, monkeypatch):
    commit_append(manifest, [new_chunk()])
    make_older(manifest, 100 * DAY_MS)
    manifest.drop_old_versions(0, time.time_ns() // 1_000_000)
    forget_cached_rows(monkeypatch)
    assert manifest.snapshot().live.num_rows == 1


def versions_since_a_checkpoint(manifest: Manifest, count: int) -> None:
    for number in range(count):
        manifest.commit(lambda snapshot, number=number: Change("alter", config={"retention.ms": str(number)}))


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
