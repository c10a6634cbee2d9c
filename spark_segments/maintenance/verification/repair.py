"""Repair of sidecars: a segment whose indexes are missing or untrue gets a new file set, its .log copied byte for byte.

A file never changes under its name. So the new files get new names, and a commit replaces the old row by the row of the
new files. Records are never changed, and a damaged .log is left alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.config import SegmentLimits
from spark_segments.format.file_names import PRODUCER_SNAPSHOT_SUFFIX
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.swap import RowSwap
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.writer import SegmentWriter
from spark_segments.storage import Storage
from spark_segments.storage.fetch import copy_file

REPAIR = "repair"  # the operation of the commits


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A task: the segment, and the transactions (offsets of the log) that its markers abort."""

    topic: str
    segment: Segment
    aborted: AbortedTransactions
    limits: SegmentLimits


def rebuild_sidecars(storage: Storage, task: Rebuild) -> Segment:
    """Task function: writes the new files and returns their row.

    Raises CorruptBatchError for a damaged .log, and then leaves no new file.
    """
    segment = task.segment
    with SegmentWriter(
        storage,
        task.topic,
        segment.partition,
        segment.name_offset,
        limits=task.limits,
    ) as writer:
        for window in SegmentFile(storage, segment).windows(as_written=True):
            end = int(window.batches.byte_position[-1] + window.batches.size[-1]) - window.byte_position
            writer.append(np.frombuffer(window.data, np.uint8, count=end), window.batches)
        writer.add_aborted(task.aborted.shifted(-segment.offset_shift))
        new = writer.close(topic_id=segment.topic_id, created_ms=segment.created_ms, state=segment.state)
        assert new.log_bytes == segment.log_bytes, (new, segment)
        producers = segment.stem + PRODUCER_SNAPSHOT_SUFFIX  # of an import
        if storage.exists(producers):
            copied = new.stem + PRODUCER_SNAPSHOT_SUFFIX
            copy_file(storage, producers, storage, copied, storage.size(producers))
    fields = ("path", "byte_position", "index_position", "index_bytes", "time_index_bytes", "txn_index_bytes")
    return dataclasses.replace(segment, **{name: getattr(new, name) for name in fields})


def commit_repairs(manifest: Manifest, old: Sequence[Segment], new: Sequence[Segment]) -> list[Segment]:
    """Replaces old rows by new rows and returns the new ones that are there: the log may have changed meanwhile."""
    if not old:
        return []
    swaps = [RowSwap([before], [after]) for before, after in zip(old, new, strict=True)]
    return [swap.new[0] for swap in manifest.swap_rows(REPAIR, swaps, topic_id=old[0].topic_id)]
