"""The copy that an import makes of a segment: its .log and sidecars byte for byte where that can be, or its batches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from spark_segments.config import SegmentLimits
from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.layout import MAGIC_POSITION
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.kafka.import_plan import SegmentCopy
from spark_segments.log import Segment, SegmentFile, copy_batches
from spark_segments.storage import Storage
from spark_segments.storage.fetch import copy_file


@dataclass(frozen=True, slots=True)
class SegmentCopier:
    """Task function: copies a segment and returns its row here."""

    source: Storage
    target: Storage
    limits: SegmentLimits

    @property
    def at_a_time(self) -> int | None:
        return self.source.tasks_at_a_time or self.target.tasks_at_a_time

    def __call__(self, task: SegmentCopy) -> Segment:
        copied = self._copy(task)
        if self.limits.forced:
            sidecars = copied.sidecars()
            paths = [copied.path, sidecars[INDEX_SUFFIX].path, sidecars[TIME_INDEX_SUFFIX].path]
            others = (sidecars[TXN_INDEX_SUFFIX].path, copied.stem + PRODUCER_SNAPSHOT_SUFFIX)
            self.target.force([*paths, *(path for path in others if self.target.exists(path))])
        return copied

    def _copy(self, task: SegmentCopy) -> Segment:
        row = dataclasses.replace(task.row, topic_id=task.topic_id)
        is_legacy = task.log_copy is None and _is_legacy(self.source, row)
        is_rewritten = is_legacy or max(task.base_offset, row.base_offset) > row.name_offset
        if is_rewritten or not _has_indexes(self.source, row):
            # A part of a file, old messages, or a file without usable indexes: batches are copied, with new indexes.
            copied = copy_batches(
                self.source,
                task.topic,
                [row if is_rewritten else dataclasses.replace(row, txn_index_bytes=0)],
                max(task.base_offset, row.base_offset),
                row.next_offset,
                sealed=row.state != Segment.CHUNK,
                leader_epochs=None,
                target=self.target,
                limits=self.limits,
            )
            copied = dataclasses.replace(copied, created_ms=row.created_ms)
            if is_rewritten and task.aborted is None:
                return copied
            return _with_transactions(self.source, self.target, row, copied, task.aborted)
        return _copied(self.source, self.target, task, row)


def _copied(source: Storage, target: Storage, task: SegmentCopy, row: Segment) -> Segment:
    """Copies the segment byte by byte: its .log up to where recovery ends it, and its sidecars."""
    if task.log_copy is None:
        stem = Segment.new_stem(task.topic, row.partition, row.name_offset)
        SegmentFile(source, row).copy_log(target, stem + LOG_SUFFIX, unique=True)
    else:
        stem = task.log_copy.removesuffix(LOG_SUFFIX)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        index = row.sidecars()[suffix]
        copy_file(source, index.path, target, stem + suffix, index.size_bytes, unique=True)
    return _with_transactions(source, target, row, dataclasses.replace(row, path=stem + LOG_SUFFIX), task.aborted)


def _with_transactions(
    source: Storage, target: Storage, row: Segment, copied: Segment, aborted: AbortedTransactions | None
) -> Segment:
    """Copies a segment's .snapshot, where it can be read, and writes its .txnindex: `aborted`, or what Kafka's file
    says of the segment up to its end here. The row says what was written.
    """
    snapshot = _read(source, row.stem + PRODUCER_SNAPSHOT_SUFFIX)
    if copied.base_offset == row.name_offset and _is_producer_snapshot(snapshot):
        target.write(copied.stem + PRODUCER_SNAPSHOT_SUFFIX, snapshot)
    if aborted is None:
        aborted = _listed_aborted(source, row)
    else:
        aborted = aborted.overlapping(copied.base_offset, copied.next_offset)
    data = txn_index_bytes(aborted)
    if data:
        target.write(copied.sidecars()[TXN_INDEX_SUFFIX].path, data)
    return dataclasses.replace(copied, txn_index_bytes=len(data))


def _listed_aborted(source: Storage, row: Segment) -> AbortedTransactions:
    """The entries of Kafka's .txnindex whose markers are in the segment; none where it cannot be read."""
    txn_index = row.sidecars()[TXN_INDEX_SUFFIX]
    try:
        entries = parse_txn_index(_read(source, txn_index.path), path=txn_index.path)
    except CorruptBatchError:
        entries = AbortedTransactions.of()
    entries = entries.take(entries.last_offset < row.next_offset)
    if txn_index.size_bytes and len(txn_index_bytes(entries)) != txn_index.size_bytes:
        raise CorruptBatchError(
            "The transaction index is not what it was when its segment was scanned",
            path=txn_index.path,
            expected=f"{txn_index.size_bytes} bytes for offsets below {row.next_offset}",
            found=f"{len(txn_index_bytes(entries))} bytes",
        )
    return entries


def _read(source: Storage, path: str) -> bytes:
    """A small file; b"" where it is not there."""
    try:
        return bytes(source.read(path))
    except FileNotFoundError:
        return b""


def _is_producer_snapshot(data: bytes) -> bool:
    try:
        parse_producer_snapshot(data)
    except SegmentsError:
        return False
    return True


def _has_indexes(source: Storage, row: Segment) -> bool:
    """Whether both indexes are there and true: recovery uses them, or both are empty."""
    sidecars = row.sidecars()
    for index in (sidecars[INDEX_SUFFIX], sidecars[TIME_INDEX_SUFFIX]):
        if index.size_bytes == 0 and not (source.exists(index.path) and source.size(index.path) == 0):
            return False
    return True


def _is_legacy(source: Storage, row: Segment) -> bool:
    """Whether the segment begins with a message of magic 0 or 1."""
    header = source.read(row.path, 0, MAGIC_POSITION + 1).to_pybytes() if row.log_bytes else b""
    return len(header) > MAGIC_POSITION and header[MAGIC_POSITION] < 2
