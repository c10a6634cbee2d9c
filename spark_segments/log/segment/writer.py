"""Writing chunks: segments that begin at offset 0 until a commit gives them their offsets in the log."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from spark_segments.config import SegmentLimits
from spark_segments.errors import SegmentsError
from spark_segments.format.batches import BatchTable, rebase
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.encoding.encode import Encoded
from spark_segments.format.file_names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.txn_index import AbortedTransactions, txn_index_bytes
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.figures import SegmentBuilder
from spark_segments.storage import Storage


class SegmentWriter:
    """Writes a .log and its sidecars, batch by batch, and returns the segment's row.

    Offsets of the batches given are the file's. Readers see nothing before a commit names the file. As a context
    manager it deletes its files where an error comes before `close` has returned: no commit can name them, for nobody
    else knows the name. With a `stem` that others know, the files stay.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        base_offset: int,
        *,
        limits: SegmentLimits,
        stem: str | None = None,
    ) -> None:
        """`stem`: the path of the files without suffix, where others know the name; else the name is new."""
        self._storage = storage
        self._partition = partition
        self.base_offset = base_offset
        self._stem = stem or Segment.new_stem(topic, partition, base_offset)
        self._name_is_shared = stem is not None
        self._built = SegmentBuilder(base_offset, limits)
        self._limits = limits
        self._log = storage.stream(self._stem + LOG_SUFFIX, unique=stem is None)
        self._aborted: list[AbortedTransactions] = []

    @property
    def log_bytes(self) -> int:
        """Bytes of the .log so far."""
        return self._built.figures.log_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last one appended, in the file's offsets."""
        return self._built.figures.next_offset

    def fitting(self, batches: BatchTable, start: int, shift: int = 0) -> int:
        """How many batches from row `start` on there is room for, if `shift` is added to their offsets: one at least in
        an empty segment.
        """
        sizes = np.cumsum(batches.size[start:])
        by_size = int(np.searchsorted(sizes, self._limits.segment_bytes - self.log_bytes, side="right"))
        ends = batches.last_offset[start : start + (by_size if self.log_bytes else max(by_size, 1))]
        return int(np.searchsorted(ends, self.base_offset + MAX_RELATIVE_OFFSET - shift, side="right"))

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._log.__exit__(kind, error, trace)
        if kind is not None and not self._name_is_shared:
            _delete(self._storage, [self._stem])

    def add_tombstones(self, count: int) -> None:
        """Counts `count` of the appended records as tombstones (null values)."""
        self._built.figures.tombstones += count

    def add_aborted(self, aborted: AbortedTransactions) -> None:
        """Adds entries to the .txnindex: transactions whose abort marker is in this segment."""
        if len(aborted):
            self._aborted.append(aborted)

    def append(self, data: pa.Buffer | np.ndarray, batches: BatchTable, min_timestamp_ms: int | None = None) -> None:
        """Appends whole batches. `data` holds exactly their bytes, in order; positions in `batches` are ignored.
        `min_timestamp_ms`: as in `Segment`.
        """
        if len(batches):
            self._log.write(data)
            self._built.add(batches, min_timestamp_ms)

    def close(self, *, topic_id: str, created_ms: int, state: str = Segment.CHUNK) -> Segment:
        """Finishes the files and returns their row, at the offsets in the file's bytes."""
        self._log.close()
        index, time_index = self._built.finish()
        txn_index = txn_index_bytes(AbortedTransactions.concatenate(self._aborted))
        sidecars = [(self._stem + INDEX_SUFFIX, index), (self._stem + TIME_INDEX_SUFFIX, time_index)]
        if txn_index:
            sidecars.append((self._stem + TXN_INDEX_SUFFIX, txn_index))
        self._storage.write_all(sidecars, unique=not self._name_is_shared)
        if self._limits.forced:
            self._storage.force([self._stem + LOG_SUFFIX, *(path for path, _ in sidecars)])
        return self._built.figures.row(
            topic_id=topic_id,
            partition=self._partition,
            path=self._stem + LOG_SUFFIX,
            index_bytes=len(index),
            time_index_bytes=len(time_index),
            txn_index_bytes=len(txn_index),
            created_ms=created_ms,
            state=state,
        )


def discard(storage: Storage, segments: Iterable[Segment], *, objects: bool = False) -> None:
    """Deletes files that the caller has made and whose rows were never given to a commit.

    Shared objects stay unless `objects` says that none of their runs was given to a commit: other runs may be in the
    log. Vacuum takes an object that no row names.
    A caller that is not sure (a commit that raised may have happened) must leave the files to vacuum. Files that cannot
    be deleted now are left to vacuum, too.
    """
    rows = list(segments)
    _delete(storage, [segment.stem for segment in rows if not segment.is_shared])
    if objects:
        with contextlib.suppress(SegmentsError, OSError):
            storage.delete(sorted({segment.path for segment in rows if segment.is_shared}))


def _delete(storage: Storage, stems: Sequence[str]) -> None:
    suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
    with contextlib.suppress(SegmentsError, OSError):  # the first error is the one to show
        storage.delete([stem + suffix for stem in stems for suffix in suffixes])


class ChunkWriter:
    """Writes one partition's encoded batches as chunks of at most segment.bytes each (a larger batch stands alone).

    As a context manager it leaves no file, open or finished, where an error comes before `close`.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        topic_id: str,
        partition: int,
        *,
        limits: SegmentLimits,
    ) -> None:
        self._storage = storage
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._limits = limits
        self._writer: SegmentWriter | None = None
        self._finished: list[Segment] = []

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        if kind is not None:
            discard(self._storage, self._finished)

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets, where the open chunk has room for it."""
        return 0 if self._writer is None else self._writer.next_offset

    def append(self, encoded: Encoded) -> None:
        """Appends batches. They are moved to the chunk's next offset unless they begin at `next_offset` already."""
        batches = encoded.batches
        start = 0
        while start < len(batches):
            if self._writer is None:
                self._writer = SegmentWriter(self._storage, self._topic, self._partition, 0, limits=self._limits)
            shift = self._writer.next_offset - int(batches.base_offset[start])
            fitting = self._writer.fitting(batches, start, shift)
            if fitting == 0:
                self._finished.append(self._writer.close(topic_id=self._topic_id, created_ms=self._storage.now_ms()))
                self._writer = None
                continue
            piece = batches.take(slice(start, start + fitting))
            data, moved = _rebased(encoded.buffer, piece, shift)
            self._writer.append(data, moved, int(encoded.min_timestamps[start : start + fitting].min()))
            if encoded.tombstones:
                is_whole = len(piece) == len(batches)
                count = encoded.tombstones if is_whole else count_tombstones(encoded.buffer, piece)
                self._writer.add_tombstones(count)
            start += len(piece)

    def close(self) -> list[Segment]:
        """Ends the open chunk. The rows of all chunks written, in order, each beginning at offset 0."""
        if self._writer is not None:
            self._finished.append(self._writer.close(topic_id=self._topic_id, created_ms=self._storage.now_ms()))
            self._writer = None
        return self._finished


def count_tombstones(data: pa.Buffer, batches: BatchTable) -> int:
    """How many records of `batches`, whose positions count from `data[0]`, have a null value."""
    values = decode_batches(Window(data, batches), topic="", partition=0, columns=("value",))
    return sum(records.column(0).null_count for records in values)


def _rebased(buffer: pa.Buffer, batches: BatchTable, shift: int) -> tuple[np.ndarray, BatchTable]:
    """The bytes of `batches` alone, with offsets moved by `shift`, and their table."""
    first = int(batches.byte_position[0])
    size = int(batches.byte_position[-1] + batches.size[-1]) - first
    data = np.frombuffer(buffer, np.uint8, count=size, offset=first)
    batches = dataclasses.replace(batches, byte_position=batches.byte_position - first)
    if shift == 0:
        return data, batches
    data = data.copy()
    rebase(data, batches, shift, None)
    return data, dataclasses.replace(
        batches, base_offset=batches.base_offset + shift, last_offset=batches.last_offset + shift
    )
