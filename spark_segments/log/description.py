"""The description of a topic, from its snapshot's rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.captures import Captured
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole, Undecided


def describe(snapshot: Snapshot, config: TopicConfig) -> dict[str, Any]:
    """The topic's id, version and effective configuration; its partitions' offsets, segments, bytes and dirty ratio.

    `shared`: how many shared objects the log has a part of, and the .log bytes of that part. `holes`: offsets that are
    missing though no policy took them. `undecided`: transactions whose end was gone before it was captured. `captured`:
    of partitions that come from a running cluster, when all was here last, the cluster's high watermark as seen last,
    how many offsets of it are missing here, whether one came too late. A partition's `last_stable_offset_lag`: offsets
    that committed reads do not get, for a transaction is open.
    """
    partitions = snapshot.partitions.to_pylist()
    count = len(partitions)
    live = snapshot.live
    owner = _owner_rows(snapshot, live)
    state = live.column("state").to_numpy(zero_copy_only=False)
    log_bytes = live.column("log_bytes").to_numpy()
    is_shared = pc.is_valid(live.column("index_position"))

    def by_row(weights: np.ndarray) -> list[int]:
        return [int(n) for n in np.bincount(owner, weights=weights, minlength=count)]

    sealed = by_row(state == Segment.SEALED)
    chunks = by_row(state == Segment.CHUNK)
    records = by_row(live.column("records").to_numpy())
    size_bytes = by_row(log_bytes)
    compacted = "compact" in config.cleanup_policy
    ratios = dirty_ratios(snapshot) if compacted else {}
    stable = [max(row["last_stable_offset"], row["log_start_offset"]) for row in partitions]
    return {
        "topic": snapshot.topic,
        "topic_id": snapshot.topic_id,
        "version": snapshot.version,
        "config": config.effective(),
        "shared": {
            "objects": pc.count_distinct(live.column("path").filter(is_shared)).as_py(),
            "size_bytes": int(log_bytes[is_shared.to_numpy()].sum()),
        },
        "holes": [hole.to_dict() for hole in Hole.of(snapshot.states)],
        "undecided": [transaction.to_dict() for transaction in Undecided.of(snapshot.states)],
        "captured": [
            {
                "partition": number,
                "at_ms": capture.at_ms,
                "high_watermark": capture.high_watermark,
                "lag": capture.lag(snapshot.partition(number).log_end_offset),
                "late": capture.late,
            }
            for number, capture in sorted(Captured.of(snapshot.states).items())
        ],
        "partitions": [
            {
                "partition": row["partition"],
                "log_start_offset": row["log_start_offset"],
                "log_end_offset": row["log_end_offset"],
                "segments": sealed[number],
                "chunks": chunks[number],
                "records": records[number],
                "size_bytes": size_bytes[number],
                "dirty_ratio": ratios.get(row["partition"], 0.0) if compacted else None,
                "first_dirty_offset": row["first_dirty_offset"],
                "last_stable_offset": stable[number],
                "last_stable_offset_lag": row["log_end_offset"] - stable[number],
            }
            for number, row in enumerate(partitions)
        ],
    }


def dirty_ratios(snapshot: Snapshot) -> dict[int, float]:
    """{partition: cleanable bytes / (clean + cleanable bytes)} over sealed segments; compaction lags are ignored.

    The first dirty offset splits the bytes of its segment in proportion to the offsets on each side. 0.0 where no
    segment is sealed.
    """
    live = snapshot.live
    sealed = live.filter(np.asarray(live.column("state").to_numpy(zero_copy_only=False) == Segment.SEALED))
    owner = _owner_rows(snapshot, sealed)
    base = sealed.column("base_offset").to_numpy()
    end = sealed.column("next_offset").to_numpy()
    log_bytes = sealed.column("log_bytes").to_numpy()
    first_dirty = snapshot.partitions.column("first_dirty_offset").to_numpy()
    count = len(first_dirty)
    clean_share = np.clip((first_dirty[owner] - base) / np.maximum(end - base, 1), 0.0, 1.0)
    clean = np.bincount(owner, weights=log_bytes * clean_share, minlength=count)
    total = np.bincount(owner, weights=log_bytes, minlength=count)
    ratio = np.divide(total - clean, total, out=np.zeros(count), where=total > 0)
    return dict(zip(snapshot.partitions.column("partition").to_pylist(), ratio.tolist(), strict=True))


def _owner_rows(snapshot: Snapshot, segments: pa.Table) -> np.ndarray:
    """int64[]: the row of `snapshot.partitions` that each segment belongs to. Partition numbers may have gaps."""
    values: np.ndarray = np.searchsorted(
        snapshot.partitions.column("partition").to_numpy(), segments.column("partition").to_numpy()
    )
    return values
