"""The index entries and the figures of a segment, gathered while its batches are written."""

from __future__ import annotations

import dataclasses

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.sidecars.index import IndexBuilder
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.limits import SegmentLimits


class SegmentFigures:
    """All that a row says of a segment's batches, whose offsets are the file's and whose positions count from 0."""

    def __init__(self, base_offset: int, limits: SegmentLimits) -> None:
        self._base_offset = base_offset
        self._index = IndexBuilder(
            base_offset, interval_bytes=limits.index_interval_bytes, index_bytes=limits.segment_index_bytes
        )
        self.log_bytes = 0
        self.next_offset = base_offset
        self.tombstones = 0
        self.records = 0
        self.batches = 0
        self._first_batch_max_timestamp_ms = -1
        self._delete_horizon_ms: int | None = None

    def add(self, batches: BatchTable) -> None:
        """Adds batches (one at least) behind those before; their positions are ignored."""
        if not self.batches:
            self._first_batch_max_timestamp_ms = int(batches.max_timestamp[0])
        positions = self.log_bytes + np.cumsum(batches.size) - batches.size
        self._index.add(dataclasses.replace(batches, position=positions))
        self.log_bytes += int(batches.size.sum())
        self.next_offset = int(batches.last_offset[-1]) + 1
        self.records += int(batches.count.sum())
        self.batches += len(batches)
        horizons = batches.base_timestamp[batches.has_delete_horizon]
        if len(horizons):
            earliest = int(horizons.min())
            self._delete_horizon_ms = (
                earliest if self._delete_horizon_ms is None else min(earliest, self._delete_horizon_ms)
            )

    def finish(self) -> tuple[bytes, bytes]:
        """(.index, .timeindex) of all batches."""
        return self._index.finish()

    def row(
        self,
        topic_id: str,
        partition: int,
        path: str,
        *,
        index_bytes: int,
        time_index_bytes: int,
        txn_index_bytes: int,
        created_ms: int,
        state: str,
        position: int = 0,
        index_position: int | None = None,
    ) -> Segment:
        """The segment's row, at the offsets in the file's bytes."""
        return Segment(
            topic_id=topic_id,
            partition=partition,
            base_offset=self._base_offset,
            next_offset=self.next_offset,
            path=path,
            file_base_offset=self._base_offset,
            log_bytes=self.log_bytes,
            index_bytes=index_bytes,
            time_index_bytes=time_index_bytes,
            txn_index_bytes=txn_index_bytes,
            records=self.records,
            batches=self.batches,
            first_batch_max_timestamp_ms=self._first_batch_max_timestamp_ms,
            max_timestamp_ms=self._index.max_timestamp,
            offset_of_max_timestamp=self._index.offset_of_max_timestamp,
            tombstones=self.tombstones,
            delete_horizon_ms=self._delete_horizon_ms,
            created_ms=created_ms,
            state=state,
            position=position,
            index_position=index_position,
        )
