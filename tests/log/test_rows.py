"""Rows of the manifest as values and as Arrow columns."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.rows import PARTITION_SCHEMA
from spark_segments.log.manifest.schemas import TABLE_SCHEMA
from verification.world.manifest_rows import SEGMENT_SCHEMA, Partition, Segment, TopicRow, topic_of, topic_table

CHUNK = Segment(
    topic_id="t",
    partition=3,
    base_offset=0,
    next_offset=10,
    path="orders-3/00000000000000000000.7f3a9c1e.log",
    file_base_offset=0,
    log_bytes=1000,
    index_bytes=8,
    time_index_bytes=12,
    txn_index_bytes=0,
    records=10,
    batches=2,
    first_batch_max_timestamp_ms=5,
    max_timestamp_ms=9,
    offset_of_max_timestamp=7,
    tombstones=1,
    delete_horizon_ms=None,
    created_ms=100,
    state="chunk",
)


def test_columns_are_the_fields_in_order():
    names = [field.name for field in dataclasses.fields(Segment)]
    assert SEGMENT_SCHEMA.names == ["position" if name == "byte_position" else name for name in names]
    assert PARTITION_SCHEMA.names == [field.name for field in dataclasses.fields(Partition)]
    assert len(set(TABLE_SCHEMA.names)) == len(TABLE_SCHEMA.names)


def test_rows_survive_a_round_trip():
    segments = [CHUNK, CHUNK.at(40).removed(7), dataclasses.replace(CHUNK, delete_horizon_ms=5)]
    assert Segment.of_table(Segment.table(segments)) == segments
    partitions = [
        Partition("t", 0),
        Partition("t", 1, 5, 9, 6, 9, 4, ((0, 0), (4, 6)), b"\x00snapshot"),
        Partition("t", 2, leader_epochs=()),
    ]
    assert Partition.of_table(Partition.table(partitions)) == partitions


def test_a_topic_survives_a_round_trip_and_hides_its_own_keys():
    for topic in (
        TopicRow("t", {}),
        TopicRow("t", {"retention.ms": "-1"}, deleted_ms=5),
        TopicRow("t", {}, deleted_topics={"u": "5", "v": ""}),
        TopicRow("t", {}, states={"role": "follower"}),
    ):
        assert topic_of(topic_table(topic)) == topic
    assert topic_of(topic_table(TopicRow("t", {"a": "b"}))).config == {"a": "b"}


def test_a_whole_table_leaves_the_log_at_once():
    table = Segment.table([CHUNK, CHUNK.at(10)])
    assert Segment.of_table(row_tables.removed(table, 7)) == [CHUNK.removed(7), CHUNK.at(10).removed(7)]
    assert row_tables.removed(table, 7).schema == SEGMENT_SCHEMA


def test_no_rows_keep_the_schema():
    assert Segment.table([]).schema == SEGMENT_SCHEMA
    assert Segment.of_table(Segment.table([])) == []
    assert Partition.of_table(Partition.table([])) == []


def test_rows_of_several_chunks_of_memory_read_back():
    table = pa.concat_tables([Segment.table([CHUNK]), Segment.table([CHUNK.at(10)])])
    assert Segment.of_table(table) == [CHUNK, CHUNK.at(10)]


def test_a_chunk_gets_its_place_without_touching_its_bytes():
    placed = CHUNK.at(1000)
    assert (placed.base_offset, placed.next_offset, placed.offset_of_max_timestamp) == (1000, 1010, 1007)
    assert placed.file_base_offset == 0
    assert placed.offset_shift == 1000
    assert placed.path == CHUNK.path


def test_sidecars_are_named_after_the_log():
    assert CHUNK.index_path == "orders-3/00000000000000000000.7f3a9c1e.index"
    assert CHUNK.time_index_path == "orders-3/00000000000000000000.7f3a9c1e.timeindex"
    assert CHUNK.txn_index_path == "orders-3/00000000000000000000.7f3a9c1e.txnindex"
    assert dataclasses.replace(CHUNK, path="orders-3/00000000000000000109.log").name_offset == 109
    assert CHUNK.name_offset == 0


SHARED = dataclasses.replace(CHUNK, path="orders-shared/7f3a9c1e.log", byte_position=400, index_position=9000)


def test_a_row_is_told_from_all_others_by_path_partition_and_position():
    rows = [
        CHUNK,
        SHARED,
        dataclasses.replace(SHARED, partition=4),
        dataclasses.replace(SHARED, byte_position=0),
        dataclasses.replace(SHARED, partition=34, byte_position=0),
    ]
    assert (
        len({row.identity for row in rows}) == len(set(row_tables.keys(Segment.table(rows)).to_pylist())) == len(rows)
    )
    keys = row_tables.keys(Segment.table(rows)).to_pylist()
    assert [row_tables.keys(Segment.table([row])).to_pylist() for row in rows] == [[key] for key in keys]
    assert (CHUNK.is_shared, SHARED.is_shared, CHUNK.identity) == (False, True, (CHUNK.path, 3, 0))
