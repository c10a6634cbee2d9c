"""Shared objects: a file with the runs of many partitions of a topic, one request where each had been three.

A run is a segment whose batches lie at a position of the file, with its index entries behind all runs.
docs/format/shared-objects.md has the layout; the footer's bytes are format.shared_object's.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_segments.config import SegmentLimits
from spark_segments.errors import SegmentsError
from spark_segments.format.batches import BatchTable
from spark_segments.format.file_names import BASE_OFFSET_DIGITS, LOG_SUFFIX
from spark_segments.format.shared_object import (
    RUN_DTYPE,
    TRAILER_BYTES,
    Footer,
    footer_bytes,
    footer_size,
    parse_footer,
)
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.rows import Segment, shared_directory
from spark_segments.log.segment.figures import figures_of_runs, least_timestamp
from spark_segments.storage import Storage, WriteStream
from spark_segments.storage.fetch import read_file

_FOOTER_READ_BYTES = 128 << 10


@dataclass(slots=True)
class _Run:
    partition: int
    byte_position: int
    created_ms: int
    tombstones: int = 0
    batches: list[BatchTable] = field(default_factory=list)
    min_timestamps: list[int | None] = field(default_factory=list)


class SharedObjectWriter:
    """Writes runs of record batches, each partition's one after another, into a file of a new name.

    A run's offsets begin at 0, as a chunk's do. Readers see nothing before a commit names the runs. As a context
    manager it deletes the file where an error comes before `close` has returned.
    """

    def __init__(self, storage: Storage, topic: str, topic_id: str, limits: SegmentLimits) -> None:
        self._storage = storage
        self._topic_id = topic_id
        self._limits = limits
        self._path = f"{shared_directory(topic)}/{0:0{BASE_OFFSET_DIGITS}d}.{uuid.uuid4().hex}{LOG_SUFFIX}"
        self._stream: WriteStream | None = None
        self._runs: list[_Run] = []

    def __enter__(self) -> SharedObjectWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._stream is not None:
            self._stream.__exit__(kind, error, trace)
            if kind is not None:
                with contextlib.suppress(SegmentsError, OSError):  # the first error is the one to show
                    self._storage.delete(self._path)

    @property
    def log_bytes(self) -> int:
        """Bytes of all runs so far."""
        return 0 if self._stream is None else self._stream.bytes_written

    def begin(self, partition: int, created_ms: int) -> None:
        """Begins the run of a partition; what is appended from now on is its. `created_ms`: the time in its row."""
        if self._stream is None:
            self._stream = self._storage.stream(self._path, unique=True)
        self._runs.append(_Run(partition, self.log_bytes, created_ms))

    def append(self, data: pa.Buffer | np.ndarray, batches: BatchTable, min_timestamp_ms: int | None = None) -> None:
        """As `SegmentWriter.append`, to the run."""
        if len(batches):
            assert self._stream is not None, "a run was begun"
            self._stream.write(data)
            self._runs[-1].batches.append(batches)
            self._runs[-1].min_timestamps.append(min_timestamp_ms)

    def add_tombstones(self, count: int) -> None:
        """Counts `count` of the run's records as tombstones (null values)."""
        self._runs[-1].tombstones += count

    def add_aborted(self, aborted: AbortedTransactions) -> None:
        """A run has no .txnindex: segments with aborted transactions have separate files."""
        assert not len(aborted)

    def close(self) -> list[Segment]:
        """Ends the file and returns a row for each run, at the offsets in the file's bytes."""
        if self._stream is None:
            return []
        figures, indexes = figures_of_runs([run.batches for run in self._runs], self._limits)
        byte_position = self.log_bytes
        rows = []
        for run, run_figures, (index, time_index) in zip(self._runs, figures, indexes, strict=True):
            run_figures.tombstones = run.tombstones
            run_figures.min_timestamp_ms = least_timestamp(run.min_timestamps)
            rows.append(
                run_figures.row(
                    topic_id=self._topic_id,
                    partition=run.partition,
                    path=self._path,
                    index_bytes=len(index),
                    time_index_bytes=len(time_index),
                    txn_index_bytes=0,
                    created_ms=run.created_ms,
                    state=Segment.CHUNK,
                    byte_position=run.byte_position,
                    index_position=byte_position,
                )
            )
            byte_position += len(index) + len(time_index)
        self._stream.write(b"".join(part for both in indexes for part in both))
        created_ms = max(run.created_ms for run in self._runs)
        self._stream.write(footer_bytes(self._topic_id, created_ms, footer_runs(rows)))
        self._stream.close()
        if self._limits.forced:
            self._storage.force([self._path])
        return rows


def footer_runs(rows: Sequence[Segment]) -> np.ndarray:
    """RUN_DTYPE[n]: what the footer of an object says of these rows, which are all its runs in order."""
    return np.array(
        [
            (
                row.partition,
                row.byte_position,
                row.log_bytes,
                row.index_position,
                row.index_bytes,
                row.time_index_bytes,
                row.next_offset - row.base_offset,
                row.records,
                row.batches,
            )
            for row in rows
        ],
        RUN_DTYPE,
    )


def read_footer(storage: Storage, path: str, object_bytes: int) -> Footer:
    """The footer of an object of this size. Raises CorruptBatchError where it is damaged, MissingFileError."""
    begin = max(0, object_bytes - _FOOTER_READ_BYTES)
    data = read_file(storage, path, begin, object_bytes - begin)
    size = footer_size(bytes(data[max(0, data.size - TRAILER_BYTES) :]), object_bytes, path=path)
    if size > data.size:
        data = read_file(storage, path, object_bytes - size, size)
    return parse_footer(data[data.size - size :], object_bytes, path=path)
