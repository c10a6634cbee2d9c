"""Segment rows without files: what tests of plans look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_segments.config import TopicConfig, topic_config
from verification.world.manifest_rows import Partition, Segment, SegmentRows, Snapshot, in_log_order

TOPIC = "orders"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def row(base: int, next_offset: int, *, partition: int = 0, state: str = Segment.SEALED, **values: Any) -> Segment:
    """A row of [base, next_offset); 100 bytes a record and times 0 unless said otherwise."""
    records = values.pop("records", next_offset - base)
    fields: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "partition": partition,
        "base_offset": base,
        "next_offset": next_offset,
        "path": f"{TOPIC}-{partition}/{base:020d}.{next_offset:032x}.log",
        "file_base_offset": base,
        "log_bytes": 100 * records,
        "index_bytes": 0,
        "time_index_bytes": 12,
        "txn_index_bytes": 0,
        "records": records,
        "batches": records,
        "first_batch_max_timestamp_ms": values.get("max_timestamp_ms", 0),
        "max_timestamp_ms": 0,
        "offset_of_max_timestamp": base,
        "tombstones": 0,
        "delete_horizon_ms": None,
        "created_ms": 0,
        "state": state,
    }
    return Segment(**fields | values)


def chunk(base: int, next_offset: int, **values: Any) -> Segment:
    return row(base, next_offset, state=Segment.CHUNK, **values)


def run(
    sizes: Sequence[int], *, state: str = Segment.SEALED, start: int = 0, partition: int = 0, **values: Any
) -> list[Segment]:
    """Neighbouring rows with so many bytes, ten records each."""
    return [
        row(start + 10 * n, start + 10 * n + 10, state=state, log_bytes=size, partition=partition, **values)
        for n, size in enumerate(sizes)
    ]


def table(rows: Iterable[Segment]) -> pa.Table:
    return in_log_order(Segment.table(list(rows)))


def partition_row(start: int, end: int, number: int = 0) -> Partition:
    return Partition(
        TOPIC_ID, number, log_start_offset=start, log_end_offset=end, first_dirty_offset=start, last_stable_offset=end
    )


def snapshot(
    topic: str, config: Mapping[str, str], segments: Iterable[Segment], partitions: Sequence[Partition]
) -> tuple[Snapshot, TopicConfig]:
    """A topic with these rows, and its configuration."""
    source = SegmentRows(Segment.table(list(segments)))
    made = Snapshot(topic, 17, TOPIC_ID, dict(config), 0, Partition.table(partitions), source)
    return made, topic_config(config)
