"""Copying record batches as they are into a new segment: only base offsets and leader epochs are written anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from spark_segments.errors import RESTORE, CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.legacy import opened
from spark_segments.format.patch import rebase
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.single_batch import batch_from
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.fetch import fetch_ahead
from spark_segments.log.segment.files import read_txn_index
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.reader import locate, windows
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.log.segment.walk import WINDOW_BYTES, too_short
from spark_segments.log.segment.writer import SegmentWriter, count_tombstones
from spark_segments.storage import Storage

COPY_BYTES = 8 << 20

See = Callable[[Window], None]


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
    with SegmentWriter(
        target or storage,
        topic,
        first.partition,
        base_offset,
        limits=limits,
        stem=stem,
    ) as writer:
        _copy_all(storage, writer, sources, base_offset, next_offset, leader_epochs, see)
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
    _copy_all(storage, writer, moved, 0, next_offset - base_offset, moved_epochs)


def _copy_all(
    storage: Storage,
    writer: SegmentWriter | SharedObjectWriter,
    sources: Sequence[Segment],
    base_offset: int,
    next_offset: int,
    leader_epochs: LeaderEpochs | None,
    see: See | None = None,
) -> None:
    for source in sources:
        start, end = max(source.base_offset, base_offset), min(source.next_offset, next_offset)
        known = source.tombstones >= 0
        whole = (start, end) == (source.base_offset, source.next_offset)
        copied = _copy(storage, writer, source, start, end, leader_epochs, see, with_tombstones=not (whole and known))
        if whole and copied != source.records and source.file_base_offset == source.name_offset:
            raise CorruptBatchError(
                "The file does not hold the records of its row",
                path=source.path,
                expected=f"{source.records} records",
                found=f"{copied} records",
                hint=RESTORE,
            )
        if whole and known:
            writer.add_tombstones(source.tombstones)
        writer.add_aborted(aborted_in(storage, source, start, end))


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


def aborted_in(storage: Storage, source: Segment, start: int, end: int) -> AbortedTransactions:
    """The entries of a segment's .txnindex whose marker lies in [start, end); all offsets are the log's."""
    entries = read_txn_index(storage, source.txn_index_path, source.txn_index_bytes, source.offset_shift)
    return entries.take((entries.last_offset >= start) & (entries.last_offset < end))


def _copy(
    storage: Storage,
    writer: SegmentWriter | SharedObjectWriter,
    source: Segment,
    start: int,
    end: int,
    leader_epochs: LeaderEpochs | None,
    see: See | None,
    *,
    with_tombstones: bool,
) -> int:
    """Copies the batches of one file that lie in [start, end) and returns how many records they hold."""
    from_start = start == source.base_offset and source.file_base_offset == source.name_offset
    begin = 0 if from_start else locate(storage, source, start)
    records = 0
    # Nearly all bytes of a window are wanted, and nobody else uses the window: it may be writable.
    for window in windows(storage, source, begin, first_window_bytes=WINDOW_BYTES, writable=True):
        if see is not None:
            see(window)
        past_end = len(window.batches) and int(window.batches.base_offset[-1]) + source.offset_shift >= end
        for piece in trimmed(window.between(start, end), start):
            data, batches = rebased(piece, leader_epochs)
            writer.append(data, batches)
            if with_tombstones:
                writer.add_tombstones(count_tombstones(pa.py_buffer(data), batches))
            records += int(batches.count.sum())
        if past_end:
            break
    return records


def trimmed(window: Window, start_offset: int) -> list[Window]:
    """A window's batches without records below `start_offset`, an offset of the log.

    Batches that end below it are left out. A batch that begins below it and ends at or above it is encoded again, as a
    window of the records that are left.
    """
    start_offset -= window.offset_shift
    kept = window.batches.last_offset >= start_offset
    if not kept.any():
        return []
    window = window.take(kept)
    if int(window.batches.base_offset[0]) >= start_offset:
        return [window]
    first, rest = window.take(slice(0, 1)), window.take(slice(1, None))
    data = pa.py_buffer(batch_from(first, start_offset))
    batches = scan_batches(data, path=window.path).batches
    piece = dataclasses.replace(window, data=data, batches=batches, byte_position=0)
    return [piece, rest] if len(rest.batches) else [piece]


def rebased(window: Window, leader_epochs: LeaderEpochs | None = None) -> tuple[np.ndarray, BatchTable]:
    """The bytes of a window's batches at their log offsets, and their table with positions from 0.

    The batches must be neighbours. Where `leader_epochs` are given, a batch without an epoch gets that of its offset in
    the log, from their `stamped_from` on, and with their `stamps_all` every batch does. Where a header changes, a
    writable window is changed in place and any other window is copied; else the bytes are the window's.
    """
    batches, shift = window.batches, window.offset_shift
    low = int(batches.byte_position[0]) - window.byte_position
    high = int(batches.byte_position[-1] + batches.size[-1]) - window.byte_position
    data = np.frombuffer(window.data, np.uint8, count=high - low, offset=low)
    batches = dataclasses.replace(batches, byte_position=batches.byte_position - batches.byte_position[0])
    stamped = np.ones(len(batches), bool)
    if leader_epochs is not None:
        stamped &= leader_epochs.stamps_all | (batches.leader_epoch < 0)
        stamped &= batches.base_offset + shift >= leader_epochs.stamped_from
    if shift or (leader_epochs is not None and stamped.any()):
        if not data.flags.writeable:
            data = data.copy()
        if shift:
            rebase(data, batches, shift, None)
        if leader_epochs is not None:
            epochs = leader_epochs.at(batches.base_offset + shift)
            for epoch in np.unique(epochs[stamped]).tolist():
                rebase(data, batches.take(stamped & (epochs == epoch)), 0, epoch)
        batches = dataclasses.replace(
            batches, base_offset=batches.base_offset + shift, last_offset=batches.last_offset + shift
        )
    return data, batches


def copy_log(
    source: Storage, row: Segment, target: Storage, target_path: str, *, unique: bool = False, see: See | None = None
) -> None:
    """Copies the .log of a row that is its file's whole log: byte by byte as it is, up to the end of the row.

    Every batch's CRC is checked on the way: a byte that was read wrong does not become the copy's. Raises
    CorruptBatchError, also where there are fewer or more batches than the row says. `unique`: as in `copy_file`. `see`
    gets each window before it is written, without messages of magic 0 and 1.
    """
    batches = 0
    with target.stream(target_path, unique=unique) as stream:
        for window in windows(source, row, first_window_bytes=WINDOW_BYTES, as_written=True):
            if see is not None:
                for part in opened(window):
                    see(part)
            data, _ = rebased(window)
            stream.write(data)
            batches += len(window.batches)
    if batches != row.batches:
        raise CorruptBatchError(
            "The file does not hold the batches of its row",
            path=row.path,
            expected=f"{row.batches} batches",
            found=f"{batches} batches",
            hint=RESTORE,
        )


def copy_file(source: Storage, path: str, target: Storage, target_path: str, size: int, *, unique: bool = False) -> int:
    """Copies the first `size` bytes of a file, in pieces. Returns the CRC-32C of what was read.

    `unique`: no other file ever has the name of the copy (see `Storage.stream`). Raises CorruptBatchError where the
    file is shorter, MissingFileError where it is gone; then there is no copy.
    """
    crc = 0
    with fetch_ahead(source, path, size) as read:
        first = read(0, min(COPY_BYTES, size)) if size else b""
        with target.stream(target_path, unique=unique) as stream:
            for byte_position in range(0, size, COPY_BYTES):
                length = min(COPY_BYTES, size - byte_position)
                data = read(byte_position, length) if byte_position else first
                if len(data) != length:
                    raise too_short(path, size, byte_position + len(data))
                stream.write(data)
                crc = crc32c(data, crc)
    return crc
