"""From a time to an offset: the first record of a partition that is not older than the time.

Timestamps of a log need not rise. A segment whose largest timestamp is below the target cannot hold the answer. The
first segment whose largest timestamp is not below the target holds it, unless the record with that timestamp lies
outside the part of the file that is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config.values import LONG_MAX
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.clip import OffsetRanges, Offsets, within
from spark_segments.log.segment.file import SegmentFile
from spark_segments.storage import Storage


def offsets_for_times(
    storage: Storage, snapshot: Snapshot, targets_ms: Mapping[int, int]
) -> dict[int, tuple[int, int] | None]:
    """{partition: (offset, timestamp in ms)} of the first offset whose timestamp is ≥ the partition's target, None
    where there is none.

    The rule of Kafka's `offsetsForTimes`: the first by offset, also where timestamps do not rise.
    """
    bounds = snapshot.offset_bounds()
    snapshot = snapshot.narrowed(targets_ms)
    offsets = {}
    for partition, target_ms in targets_ms.items():
        snapshot.check_partition(partition)
        target_ms = min(max(target_ms, -LONG_MAX), LONG_MAX)  # beyond is no time that a record can have
        start, end = bounds[partition]
        candidates = _candidates(snapshot, partition, start, target_ms)
        offsets[partition] = _first(storage, snapshot.topic, candidates, target_ms, start, end)
    return offsets


def offsets_before_time(
    storage: Storage, snapshot: Snapshot, offsets: Offsets, target_ms: int
) -> dict[int, OffsetRanges]:
    """These offsets of partitions, without some whose records are all older than the time: what manifest and indexes
    know, for no log is read. A partition without a record that is as young is left out.
    """
    younger = {}
    for partition, ranges in offsets.items():
        assert ranges, "a partition without ranges is left out before"
        candidates = _candidates(snapshot, partition, ranges[0][0], target_ms)
        for segment in Segment.of_table(candidates.slice(0, 1)):
            first = SegmentFile(storage, segment).offset_before_time(target_ms)
            younger[partition] = within(ranges, first, LONG_MAX)
    return younger


def _candidates(snapshot: Snapshot, partition: int, start: int, target_ms: int) -> pa.Table:
    """The rows from an offset on that may have a record not older than a time."""
    table = snapshot.live_table(partition)
    is_late = pc.greater_equal(table.column("max_timestamp_ms"), target_ms)
    return table.filter(pc.and_(is_late, pc.greater(table.column("next_offset"), start)))


def _first(
    storage: Storage, topic: str, candidates: pa.Table, target_ms: int, start: int, end: int
) -> tuple[int, int] | None:
    for row in range(candidates.num_rows):  # mostly the first row has the answer, of however many
        (segment,) = Segment.of_table(candidates.slice(row, 1))
        answer = _first_in_segment(storage, topic, segment, target_ms, start, end)
        if answer is not None:
            return answer
    return None


def _first_in_segment(
    storage: Storage, topic: str, segment: Segment, target_ms: int, start: int, end: int
) -> tuple[int, int] | None:
    # The file of a clipped row has records outside of the row. One of them may have the time; it is not in the log.
    start = max(start, segment.base_offset)
    end = min(end, segment.next_offset)
    byte_position, size = SegmentFile(storage, segment).seek_time(target_ms)
    for window in SegmentFile(storage, segment).windows(byte_position, first_window_bytes=size):
        late_enough = (window.batches.max_timestamp >= target_ms) & window.overlaps(start, end)
        for batch in np.flatnonzero(late_enough):
            decoded = decode_batches(
                window.take(slice(batch, batch + 1)),
                topic=topic,
                partition=segment.partition,
                start_offset=start,
                end_offset=end,
                columns=("offset", "timestamp"),
                include_control=True,
            )
            for records in decoded:
                timestamps_ms = records.column("timestamp").cast("int64").to_numpy() // 1000
                match = np.flatnonzero(timestamps_ms >= target_ms)
                if len(match):
                    return records.column("offset")[int(match[0])].as_py(), int(timestamps_ms[match[0]])
    return None
