"""Rows of chunks without files: what tests of the manifest append."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.storage import FileSystem, Storage
from verification.world.manifest_rows import Manifest, Partition, Segment, Snapshot, TopicRow
from verification.world.opened import DeltaLog, OpenDeltaLog

TOPIC = "orders"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

_numbers = itertools.count()


def new_chunk(partition: int = 0, records: int = 10, *, topic_id: str = TOPIC_ID, unique: str | None = None) -> Segment:
    """A chunk of a path of its own, as a task hands it over. Its age counts from now: old ones are refused."""
    unique = unique or f"{next(_numbers):08x}"
    return Segment(
        topic_id=topic_id,
        partition=partition,
        base_offset=0,
        next_offset=records,
        path=f"{TOPIC}-{partition}/{0:020d}.{unique}.log",
        file_base_offset=0,
        log_bytes=100 * records,
        index_bytes=0,
        time_index_bytes=12,
        txn_index_bytes=0,
        records=records,
        batches=1,
        first_batch_max_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_700_000_000_000,
        offset_of_max_timestamp=records - 1,
        tombstones=0,
        delete_horizon_ms=None,
        created_ms=time.time_ns() // 1_000_000,
        state="chunk",
    )


def new_partitions(count: int, topic_id: str = TOPIC_ID) -> list[Partition]:
    return [Partition(topic_id, number) for number in range(count)]


def new_manifest(
    root: Path,
    partitions: int = 3,
    open_delta_log: OpenDeltaLog = DeltaLog,
    filesystem: FileSystem | None = None,
) -> Manifest:
    manifest = Manifest(Storage(str(root), filesystem=filesystem), TOPIC, open_delta_log)
    manifest.create(TopicRow(TOPIC_ID, {"retention.ms": "1000"}), new_partitions(partitions))
    return manifest


def leftovers(snapshot: Snapshot) -> pa.Table:
    """Rows of deleted topics that had this name."""
    rows = snapshot.source.read(None)
    return rows.filter(pc.not_equal(rows.column("topic_id"), snapshot.topic_id))
