"""Copying record batches into a new segment: only base offsets and leader epochs are rewritten."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.config import SegmentLimits
from spark_segments.errors import RESTORE, CorruptBatchError
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import See, SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.rebase import rebased, trimmed
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.log.segment.writer import SegmentWriter, count_tombstones
from spark_segments.storage import Storage


def copy_batches(
    storage: Storage,
    topic: str,
    sources: Sequence[Segment],
    base_offset: int,
    next_offset: int,
    *,
    sealed: bool,
    leader_epochs: LeaderEpochs | None,
    limits: SegmentLimits,
    target: Storage | None = None,
    stem: str | None = None,
    see: See | None = None,
) -> Segment:
    """Writes the batches of `sources` with log offsets in [base_offset, next_offset) as one segment with absolute
    offsets.

    Every batch's CRC is checked on the way. Batches without an epoch (a writer's, as a producer's, say -1) get that of
    their offset, where `leader_epochs` are given. `see` gets each window as it was read. Returns the new file's row;
    raises CorruptBatchError where the sources hold fewer records than their rows say.
    """
    first = sources[0]
    with SegmentWriter(target or storage, topic, first.partition, base_offset, limits=limits, stem=stem) as writer:
        _Copies(storage, writer, leader_epochs, see).add(sources, base_offset, next_offset)
        created_ms = _created_ms(sources, sealed)
        row = writer.close(
            topic_id=first.topic_id, created_ms=created_ms, state=Segment.SEALED if sealed else Segment.CHUNK
        )
    return dataclasses.replace(row, next_offset=next_offset)


def copy_run(
    storage: Storage,
    writer: SharedObjectWriter,
    sources: Sequence[Segment],
    base_offset: int,
    next_offset: int,
    *,
    leader_epochs: LeaderEpochs | None,
) -> None:
    """As `copy_batches`, but into a run of a shared object: an active segment's batches, with offsets from 0."""
    writer.begin(sources[0].partition, _created_ms(sources, sealed=False))
    moved = [source.at(source.base_offset - base_offset) for source in sources]
    moved_epochs = None if leader_epochs is None else leader_epochs.counted_from(base_offset)
    _Copies(storage, writer, moved_epochs).add(moved, 0, next_offset - base_offset)


def _created_ms(sources: Sequence[Segment], sealed: bool) -> int:
    """The creation time of a copy, in ms. Retention goes by it where no record has a timestamp.

    A sealed copy is as old as its newest source. An active copy is as old as its first chunk, or, where chunks have no
    timestamp, as the newest of these. Otherwise merging would put off the roll of an idle partition.
    """
    untimed = [source.created_ms for source in sources if source.max_timestamp_ms < 0]
    created = [source.created_ms for source in sources]
    if sealed:
        return max(created)
    return max(untimed) if untimed else min(created)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Batches of files on their way into a writer."""

    storage: Storage
    writer: SegmentWriter | SharedObjectWriter
    leader_epochs: LeaderEpochs | None
    see: See | None = None

    def add(self, sources: Sequence[Segment], base_offset: int, next_offset: int) -> None:
        for source in sources:
            # Of the first and the last source only a part may be copied:
            #
            #   sources    |-----------|-----------|-----------|
            #   copied            |base_offset    next_offset|
            #
            # The counts of a row hold for a whole source alone. Taken for a part, the copy would claim records, or
            # tombstones, that it does not have.
            start = max(source.base_offset, base_offset)
            end = min(source.next_offset, next_offset)
            is_counted = source.tombstones >= 0
            is_whole = (start, end) == (source.base_offset, source.next_offset)
            records = self._batches(source, start, end, with_tombstones=not (is_whole and is_counted))
            if is_whole and records != source.records and source.file_base_offset == source.name_offset:
                raise CorruptBatchError(
                    "The file does not hold the records of its row",
                    path=source.path,
                    expected=f"{source.records} records",
                    found=f"{records} records",
                    hint=RESTORE,
                )
            if is_whole and is_counted:
                self.writer.add_tombstones(source.tombstones)
            self.writer.add_aborted(SegmentFile(self.storage, source).aborted_in(start, end))

    def _batches(self, source: Segment, start: int, end: int, *, with_tombstones: bool) -> int:
        """Copies the batches of one file that lie in [start, end) and returns how many records they hold."""
        file = SegmentFile(self.storage, source)
        writer = self.writer
        from_start = start == source.base_offset and source.file_base_offset == source.name_offset
        begin = 0 if from_start else file.locate(start)
        records = 0
        # Nearly all bytes of a window are wanted, and nobody else uses the window: it may be writable.
        for window in file.windows(begin, first_window_bytes=WINDOW_BYTES, writable=True):
            if self.see is not None:
                self.see(window)
            past_end = len(window.batches) and int(window.batches.base_offset[-1]) + source.offset_shift >= end
            for piece in trimmed(window.between(start, end), start):
                data, batches = rebased(piece, self.leader_epochs)
                writer.append(data, batches, source.min_timestamp_ms)
                if with_tombstones:
                    writer.add_tombstones(count_tombstones(pa.py_buffer(data), batches))
                records += int(batches.count.sum())
            if past_end:
                break
        return records
