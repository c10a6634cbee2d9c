"""The scan of a .log that Kafka wrote: its examination up to the first bytes that are no log, and that of its sidecars.

The scan collects the figures of the segment's row and of its partition; recovery.py decides about the partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from spark_segments.format.layout import COUNT_UNKNOWN, NO_PRODUCER_ID
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.check import OffsetIndexCheck, TimeIndexCheck
from spark_segments.format.sidecars.checkpoints import leader_epochs_of
from spark_segments.format.sidecars.index import parse_offset_index, parse_time_index
from spark_segments.format.sidecars.producer_state import CompletedTransaction, ProducerState, aborted_transactions
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.format.walk import CUT, walk
from spark_segments.format.window import Window
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.recovered_log import CUT_SHORT, Note, PartitionFiles, RecoveredLog
from spark_segments.log import Examination, Segment
from spark_segments.storage import FileInfo, Storage, WriteStream
from spark_segments.storage.fetch import fetch_ahead

STAND_IN_INTERVAL_BYTES = 256 << 10
"""Bytes between entries of an index in memory: upper bound on the bytes a look-up scans before its target."""

UNKNOWN_TOMBSTONES = -1

Check = TypeVar("Check", OffsetIndexCheck, TimeIndexCheck)

_MISSING = "missing; the log is read instead"


def _reason(fault: CorruptBatchError) -> str:
    if fault.message == CUT:
        return CUT_SHORT
    text = fault.message[:1].lower() + fault.message[1:]
    if fault.expected is not None or fault.found is not None:
        text += f" (expected {fault.expected}, found {fault.found})"
    return text


def span_of(storage: Storage, info: FileInfo, base_offset: int) -> tuple[int, int, str | None]:
    """(first offset, offset after the last, problem) of the good batches of a .log, in any order."""
    first_offset = base_offset
    next_offset = base_offset
    with fetch_ahead(storage, info.path, info.size) as read:
        for step in walk(read, info.path, info.size):
            batches = step.window.batches
            if len(batches):
                first_offset = int(batches.base_offset[0]) if step.window.byte_position == 0 else first_offset
                next_offset = int(batches.last_offset[-1]) + 1
            fault = step.fault(info.size)
            if fault is not None:
                return first_offset, next_offset, _reason(fault)
    return first_offset, next_offset, None


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What of a .log is in the log: the batches that have offsets at or above `start_offset` and end below `end_offset`
    and `limit`. What follows the batches below `limit` is not looked at: a broker may be writing it.
    """

    start_offset: int
    end_offset: int | None = None
    limit: int | None = None


class SegmentScan:
    """Scans the .log of number `number` among the files and checks its sidecars; adds its findings about the partition
    to `recovered`. `copies` get the bytes of the log, if these can be the copy's: the indexes must be there, and
    batches of magic 2.
    """

    def __init__(
        self,
        storage: Storage,
        files: PartitionFiles,
        number: int,
        scan_range: ScanRange,
        state: ProducerState,
        recovered: RecoveredLog,
        copies: EarlyCopies | None = None,
    ) -> None:
        base_offset, info = files.logs[number]
        start_offset = scan_range.start_offset
        self._storage = storage
        self._copies = copies
        self._files = files
        self._info = info
        self._state = state
        self._found = recovered
        self._completed: list[CompletedTransaction] = []
        self._sparse: list[tuple[np.ndarray, np.ndarray]] = []
        self._base_offset = base_offset
        self._start_offset = start_offset
        self._end_offset = scan_range.end_offset
        self._limit = scan_range.limit
        self.first_offset = start_offset  # of the file's batches, whether or not they are in the log
        self._reached = start_offset  # the first offset that the scan has not come to, or `limit`
        self.log_bytes = 0  # up to there
        self.ended = False  # whether batches at `end_offset` or above were left out
        self.problem: str | None = None
        self._examination = Examination(
            storage, info.path, info.size, name_offset=base_offset, start_offset=start_offset
        )
        self._row = self._examination.figures.row(
            topic_id=files.topic_id,
            partition=files.partition,
            path=info.path,
            index_bytes=0,
            time_index_bytes=0,
            txn_index_bytes=0,
            created_ms=info.mtime_ms,
            state=Segment.SEALED,
        )
        sidecars = self._row.sidecars()
        self._index = self._open(sidecars[INDEX_SUFFIX].path, parse_offset_index, OffsetIndexCheck)
        self._time_index = self._open(sidecars[TIME_INDEX_SUFFIX].path, parse_time_index, TimeIndexCheck)

    def run(self) -> Segment:
        """Scans the file and returns its row. Where the log ends before the file does, `problem` then says why."""
        with contextlib.ExitStack() as stack:
            copy: WriteStream | None = None
            for window in () if self._is_at_limit else self._examination.windows(self._ends_log):
                begin = self.log_bytes
                self._add(window)
                if begin == 0:
                    copy = self._begun_copy(window, stack)
                if copy is not None:
                    low = begin - window.byte_position
                    high = self.log_bytes - window.byte_position
                    copy.write(memoryview(window.data)[low:high])
                if self.problem is not None or self.ended or self._is_at_limit:
                    break
        self._row = replace(self._row, **asdict(self._examination.figures) | {"tombstones": UNKNOWN_TOMBSTONES})
        self._check_indexes()
        self._check_transactions()
        return self._row

    @property
    def next_offset(self) -> int:
        """The offset after the file's last good batch."""
        return self._examination.next_offset

    def _ends_log(self, fault: CorruptBatchError, _: str) -> bool:
        """The first fault ends the log, as in a broker that starts."""
        self.problem = self.problem or _reason(fault)
        return False

    def _begun_copy(self, first: Window, stack: contextlib.ExitStack) -> WriteStream | None:
        has_indexes = self._index is not None and self._time_index is not None
        if self._copies is None or not has_indexes or not self.log_bytes or first.batches.magic[0] < 2:
            return None
        return stack.enter_context(self._copies.copy(self._files.partition, self._base_offset, self._info))

    @property
    def _is_at_limit(self) -> bool:
        return self._limit is not None and self._reached >= self._limit

    def _add(self, window: Window) -> None:
        batches = self._take_producers(window, self._before_end(self._below_limit(window)))
        if not len(batches):
            return
        if self.log_bytes == 0:
            self.first_offset = int(batches.base_offset[0])
        in_log = self._examination.add(batches, partial(self._records, window))
        self._reached = max(self._reached, self.next_offset)
        self.log_bytes = int(batches.byte_position[-1] + batches.size[-1])
        self._found.was_cleaned |= batches.has_cleaned()
        if self._index is not None:
            self._index.add(batches)
        if self._time_index is not None:
            self._time_index.add(batches)
        self._add_sparse(batches)
        if len(in_log):
            self._found.leader_epochs = leader_epochs_of(in_log, self._found.leader_epochs)
            self._examination.figures.log_bytes = self.log_bytes  # also of batches before the log

    def _below_limit(self, window: Window) -> BatchTable:
        """The good batches of a window that end below `limit`.

        A file that a cleaner wrote lies below the high watermark as a whole, though the broker may have noted a lower
        one; the limit does not cut it, since what it lacks may be superseded by what lies behind the limit.
        """
        if self._limit is not None:
            below = window.batches.last_offset < self._limit
            seen = window.batches.take(slice(0, int(below.sum()) + 1))
            if self._files.is_sealed and _shows_cleaner(seen, self.next_offset):
                self._limit = None
                return window.batches
            if not below.all():
                self._reached = self._limit
                window = window.take(below)
        return window.batches

    def _before_end(self, batches: BatchTable) -> BatchTable:
        """The batches that end below `end_offset`."""
        if self._end_offset is None:
            return batches
        before = batches.last_offset < self._end_offset
        self.ended = not before.all()
        return batches.take(before) if self.ended else batches

    def _take_producers(self, window: Window, batches: BatchTable) -> BatchTable:
        """Adds batches to the producer state; returns the batches before the first malformed control batch."""
        producers = batches.from_offset(self._start_offset)
        if not (producers.producer_id > NO_PRODUCER_ID).any():
            return batches
        try:
            self._completed += self._state.add(window.with_batches(producers))
        except CorruptBatchError as error:
            self.problem = _reason(error)
            batches = batches.take(batches.byte_position < error.byte_position)
            producers = batches.from_offset(self._start_offset)
            self._completed += self._state.add(window.with_batches(producers))
        return batches

    def _records(self, window: Window, batches: BatchTable) -> int:
        """The number of records in the batches.

        A batch must be decoded for that where its header does not say it, or where it begins before `start_offset`.
        """
        is_counted = (batches.count != COUNT_UNKNOWN) & (batches.base_offset >= self._start_offset)
        records = int(batches.count[is_counted].sum(dtype=np.int64))
        if is_counted.all():
            return records
        try:
            for part in opened(window.with_batches(batches.take(~is_counted))):
                decoded = decode_batches(
                    part,
                    topic=self._files.topic,
                    partition=self._files.partition,
                    start_offset=self._start_offset,
                    columns=("offset",),
                    include_control=True,
                )
                records += sum(batch.num_rows for batch in decoded)
            return records
        except CorruptBatchError as error:
            self._note(self._info.path, f"record counts are too low: {error}")
            return records

    def _add_sparse(self, batches: BatchTable) -> None:
        slot = batches.byte_position // STAND_IN_INTERVAL_BYTES
        first = np.flatnonzero(np.diff(slot, prepend=slot[0] if batches.byte_position[0] == 0 else -1))
        self._sparse.append((batches.base_offset[first] - self._base_offset, batches.byte_position[first]))

    def _check_indexes(self) -> None:
        row = self._row
        if row.log_bytes == 0:
            return
        goes_on = self._goes_on()
        index_bytes = None if self._index is None else self._index.usable_bytes(row.log_bytes, goes_on=goes_on)
        if index_bytes is None and self._index is not None:
            self._note(row.sidecars()[INDEX_SUFFIX].path, "an entry is not true; the index is left aside")
        if not index_bytes:  # an index of zeros, as a crash may leave it, is as good as none
            relative_offsets, positions = map(np.concatenate, zip(*self._sparse, strict=True))
            if len(positions):
                self._found.offset_indexes[row.path] = (relative_offsets, positions)
        time_index_bytes = None if self._time_index is None else self._time_index.usable_bytes(goes_on=goes_on)
        if time_index_bytes is None and self._time_index is not None:
            self._note(row.sidecars()[TIME_INDEX_SUFFIX].path, "an entry is not true; the index is left aside")
        self._row = replace(row, index_bytes=index_bytes or 0, time_index_bytes=time_index_bytes or 0)

    def _goes_on(self) -> bool:
        """Whether there is, or was, more of the log than the scan covers: indexes may have entries for that part."""
        return (
            self.problem is not None
            or self.ended
            or self._is_at_limit
            or self._storage.size(self._info.path) > self._info.size
        )

    def _check_transactions(self) -> None:
        """Uses the .txnindex only if it agrees with the scan."""
        aborted = aborted_transactions(self._completed)
        path = self._row.sidecars()[TXN_INDEX_SUFFIX].path
        info = self._sidecar(path)
        listed = None if info is None else self._listed_aborted(info)
        if info is not None and listed is not None and _agrees(listed, aborted):
            self._row = replace(self._row, txn_index_bytes=info.size)
        elif len(aborted):
            self._found.aborted[self._row.path] = aborted
            if listed is None or not _agrees(listed.take(listed.last_offset >= self._start_offset), aborted):
                self._note(path, "says what the log does not; the log is read instead" if info else _MISSING)

    def _listed_aborted(self, info: FileInfo) -> AbortedTransactions | None:
        try:
            return parse_txn_index(self._storage.read(info.path, 0, info.size), path=info.path)
        except CorruptBatchError as error:
            self._note(info.path, str(error))
            return None

    def _open(
        self,
        path: str,
        parse: Callable[..., tuple[np.ndarray, np.ndarray]],
        check: Callable[[tuple[np.ndarray, np.ndarray], int], Check],
    ) -> Check | None:
        """The check of an index; None where it is missing or cannot be read."""
        info = self._sidecar(path)
        if info is None:
            self._note(path, _MISSING)
            return None
        try:
            return check(parse(self._storage.read(path, 0, info.size), path=path), self._base_offset)
        except CorruptBatchError as error:
            self._note(path, f"{error.message}; the index is left aside")
            return None

    def _sidecar(self, path: str) -> FileInfo | None:
        return self._files.sidecars.get(path)

    def _note(self, path: str, message: str) -> None:
        self._found.notes.append(Note(self._files.topic, self._files.partition, path, message))


def _shows_cleaner(batches: BatchTable, next_offset: int) -> bool:
    """Whether batches that are to begin at `next_offset` show that a cleaner was here: it leaves gaps."""
    if not len(batches) or (batches.count == COUNT_UNKNOWN).any():
        return False
    before = np.append(next_offset - 1, batches.last_offset[:-1])
    return batches.has_cleaned() or bool((batches.base_offset > before + 1).any())


def _agrees(listed: AbortedTransactions, aborted: AbortedTransactions) -> bool:
    """Whether a .txnindex agrees with the scan of its .log."""
    # A transaction may have begun before the first segment that is still there, so earlier first offsets are right.
    return (
        len(listed) == len(aborted)
        and bool((listed.producer_id == aborted.producer_id).all())
        and bool((listed.last_offset == aborted.last_offset).all())
        and bool((listed.first_offset <= aborted.first_offset).all())
        and bool((listed.last_stable_offset <= aborted.last_stable_offset).all())
    )
