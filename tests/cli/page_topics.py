"""Topics for the page, as snapshots from rows: what a log directory would say, without one."""

from __future__ import annotations

from collections.abc import Sequence

from spark_segments.config import TopicConfig
from tests.maintenance.rows import TOPIC_ID, row, snapshot
from verification.world.manifest_rows import Partition, Segment, Snapshot

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC


def partition(
    number: int, sizes: Sequence[int], chunks: Sequence[int] = (), *, clean: int = 0, first_ms: int, step_ms: int
) -> tuple[list[Segment], Partition]:
    """Sealed segments and chunks of so many bytes, a record a 100 bytes; a segment is `step_ms` of time.

    The first `clean` segments are the clean tail.
    """
    rows, offset = [], 0
    for place, size in enumerate([*sizes, *chunks]):
        began = first_ms + place * step_ms
        rows.append(
            row(
                offset,
                offset + max(size // 100, 1),
                partition=number,
                state="sealed" if place < len(sizes) else "chunk",
                log_bytes=size,
                first_batch_max_timestamp_ms=began,
                max_timestamp_ms=began + step_ms - 1,
                created_ms=began,
            )
        )
        offset = rows[-1].next_offset
    first_dirty = rows[clean].base_offset if clean < len(rows) else offset
    return rows, Partition(TOPIC_ID, number, 0, offset, first_dirty, offset)


def thousand_partitions() -> list[tuple[Snapshot, TopicConfig]]:
    """Twenty topics of fifty partitions, with up to 400 segments each, every third topic compacted."""
    made = []
    for number in range(20):
        compacted = number % 3 == 0
        config = {"cleanup.policy": "compact"} if compacted else {"retention.ms": str((number + 1) * DAY_MS)}
        rows, partitions = [], []
        for place in range(50):
            count = 2 + (number * 37 + place * 101) % 400 if place % 5 == 0 else 3 + (number * 7 + place * 3) % 30
            sizes = [1 + ((number + 1) * (place + 3) * (n + 7) * 7919) % 1_000_000 for n in range(count)]
            chunks = [50_000 * (1 + (place + n) % 7) for n in range(1 + place % 4)]
            clean = count * (place % 4) // 4 if compacted else 0
            first_ms = NOW_MS - (count + len(chunks)) * HOUR_MS
            found, last = partition(place, sizes, chunks, clean=clean, first_ms=first_ms, step_ms=HOUR_MS)
            rows += found
            partitions.append(last)
        made.append(snapshot(f"topic.{number:02}", config, rows, partitions))
    return made
