"""The index entries and the figures of segments, from the headers of their batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.config import SegmentLimits
from spark_segments.format.batches import BatchTable
from spark_segments.format.sidecars.fields import MAX_TIMESTAMP, OFFSET_OF_MAX
from spark_segments.format.sidecars.index import IndexBuilder, indexes_of_runs
from spark_segments.log.manifest.rows import Segment


@dataclass(slots=True)
class SegmentFigures:
    """All that a row says of a segment's batches, at the offsets in the file's bytes. See `Segment`."""

    base_offset: int
    next_offset: int
    log_bytes: int = 0
    records: int = 0
    batches: int = 0
    tombstones: int = 0
    first_batch_max_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    offset_of_max_timestamp: int = -1
    delete_horizon_ms: int | None = None
    min_timestamp_ms: int | None = None

    def add(self, batches: BatchTable, records: int | None = None, min_timestamp_ms: int | None = None) -> None:
        """Adds batches (one at least) behind those before; their positions are ignored. `records`: how many they hold,
        where their headers do not say. `min_timestamp_ms`: as in `Segment`.
        """
        if not self.batches:
            self.first_batch_max_timestamp_ms = int(batches.max_timestamp[0])
            self.min_timestamp_ms = min_timestamp_ms
        self.min_timestamp_ms = least_timestamp([self.min_timestamp_ms, min_timestamp_ms])
        self.next_offset = int(batches.last_offset[-1]) + 1
        self.log_bytes += int(batches.size.sum())
        self.records += int(batches.count.sum(dtype=np.int64)) if records is None else records
        self.batches += len(batches)
        largest = int(np.argmax(batches.max_timestamp))
        if batches.max_timestamp[largest] > self.max_timestamp_ms:
            self.max_timestamp_ms = int(batches.max_timestamp[largest])
            self.offset_of_max_timestamp = int(batches.last_offset[largest])
        earliest = _earliest_horizon(batches)
        if earliest is not None:
            horizon = self.delete_horizon_ms
            self.delete_horizon_ms = earliest if horizon is None else min(earliest, horizon)

    def row(self, **place: Any) -> Segment:
        """The segment's row. `place`: the fields of `Segment` that its batches do not give."""
        return Segment(file_base_offset=self.base_offset, **dataclasses.asdict(self), **place)


class SegmentBuilder:
    """The figures and the index entries of a segment, gathered while its batches are written."""

    def __init__(self, base_offset: int, limits: SegmentLimits) -> None:
        self.figures = SegmentFigures(base_offset, base_offset)
        self._index = IndexBuilder(
            base_offset, interval_bytes=limits.index_interval_bytes, index_bytes=limits.segment_index_bytes
        )

    def add(self, batches: BatchTable, min_timestamp_ms: int | None = None) -> None:
        """Adds batches (one at least) behind those before; their positions are ignored."""
        positions = self.figures.log_bytes + np.cumsum(batches.size) - batches.size
        self._index.add(dataclasses.replace(batches, byte_position=positions))
        self.figures.add(batches, min_timestamp_ms=min_timestamp_ms)

    def finish(self) -> tuple[bytes, bytes]:
        """(.index, .timeindex) of all batches."""
        return self._index.finish()


def figures_of_runs(
    runs: Sequence[Sequence[BatchTable]], limits: SegmentLimits
) -> tuple[list[SegmentFigures], list[tuple[bytes, bytes]]]:
    """The figures, and (.index, .timeindex), of each run: as a SegmentBuilder of base offset 0 has them.

    There is one run at least. A run has its batches in tables one after another; their positions are ignored. All runs
    together take little more time than one.
    """
    batches = BatchTable.concatenate([table for run in runs for table in run])
    ends = np.cumsum([sum(map(len, run)) for run in runs])
    starts = ends - np.diff(ends, prepend=0)
    bytes_before = _sums(batches.size)
    records_before = _sums(batches.count)
    lengths = np.diff(np.append(starts, len(batches)))
    # Of each batch the position in its run: the bytes of all batches before it, less those of the runs before.
    positions = bytes_before[:-1] - np.repeat(bytes_before[starts], lengths)
    indexes, states = indexes_of_runs(
        dataclasses.replace(batches, byte_position=positions),
        ends,
        interval_bytes=limits.index_interval_bytes,
        index_bytes=limits.segment_index_bytes,
    )
    has_horizons = bool(batches.has_delete_horizon.any())
    log_bytes = (bytes_before[ends] - bytes_before[starts]).tolist()
    records = (records_before[ends] - records_before[starts]).tolist()
    max_timestamps_ms = states[:, MAX_TIMESTAMP].tolist()
    offsets_of_max = states[:, OFFSET_OF_MAX].tolist()
    figures_of_run = []
    for run, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        figures = SegmentFigures(0, 0, log_bytes[run], records[run], end - start)
        if start < end:
            figures.next_offset = int(batches.last_offset[end - 1]) + 1
            figures.first_batch_max_timestamp_ms = int(batches.max_timestamp[start])
            figures.max_timestamp_ms = max_timestamps_ms[run]
            figures.offset_of_max_timestamp = offsets_of_max[run]
            if has_horizons:
                figures.delete_horizon_ms = _earliest_horizon(batches.take(slice(start, end)))
        figures_of_run.append(figures)
    return figures_of_run, indexes


def least_timestamp(values: Sequence[int | None]) -> int | None:
    """The `min_timestamp_ms` of a segment whose parts have these."""
    timestamps = [value for value in values if value is not None]
    return min(timestamps) if timestamps and len(timestamps) == len(values) else None


def _earliest_horizon(batches: BatchTable) -> int | None:
    """The earliest delete horizon of the batches in ms; None where no batch has a horizon."""
    horizons = batches.base_timestamp[batches.has_delete_horizon]
    return int(horizons.min()) if len(horizons) else None


def _sums(values: np.ndarray) -> np.ndarray:
    """int64[n + 1]: the sum of the values before each."""
    return np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
