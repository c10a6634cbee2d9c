"""Offsets between segments that no record has, though nothing took any: records that were never copied here.

A log without compaction has every offset from its log start to its end: retention takes from the front, and an erasure
leaves the headers of batches. Only where Kafka's cleaner was there before are offsets empty, and batches beside such a
gap, or the partition's first dirty offset, show that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import holes_in
from spark_segments.maintenance.verification.segments import SegmentFacts

MESSAGE = "Offsets between segments are missing, and no hole of the topic explains them"


def check_gaps(snapshot: Snapshot, row: Partition, facts: Sequence[SegmentFacts], findings: Findings) -> None:
    """Adds a finding for each gap of a partition that is not compacted here. `facts`: of its segments, in order."""
    there = [one for one in facts if one.offsets is not None]
    if any(one.damaged for one in facts):
        return
    for one, following in itertools.pairwise(there):
        assert one.offsets is not None and following.offsets is not None
        start, end = max(one.offsets[1], row.first_dirty_offset, row.log_start_offset), following.offsets[0]
        if start >= end or one.was_cleaned or following.was_cleaned:
            continue
        holes = holes_in(snapshot, row.partition, start, end)
        if not any(hole.start_offset <= start and end <= hole.end_offset for hole in holes):
            findings.add(
                MESSAGE,
                rule="M27",
                partition=row.partition,
                path=following.segment.path,
                byte_position=following.segment.byte_position,
                expected=f"a batch at offset {start}",
                found=f"offset {end}; if its source still has them, import the partition anew: segments import into "
                f"another log directory, or into this one after segments topic delete {snapshot.topic}",
            )
