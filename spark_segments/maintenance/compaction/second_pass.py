"""The second pass over a group of segments: what cleaning leaves of their batches, in the order of the log.

Several threads can clean a large group. They are given the windows that a single thread would read, each with the state
of the transactions before it. So what they leave is what a single thread leaves, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from spark_segments.ahead import read_ahead
from spark_segments.errors import RESTORE
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.clean import CleanedBatches, CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance.compaction.group_rewrite import named
from spark_segments.maintenance.compaction.noted_batches import (
    LEAST_GAP_BYTES,
    LEAST_STORE_GAP_BYTES,
    BatchNotes,
    NotedBatches,
    plain_batches,
    windows_to_read,
)
from spark_segments.storage import Storage

WAITING_BYTES = 2 * WINDOW_BYTES
"""Bytes of cleaned windows that wait to be written, at most, for each of several threads."""


class ReadWindows(Protocol):
    """Reads windows of a segment."""

    def __call__(self, *, check_crc: bool) -> Iterator[Window]: ...


@dataclass(frozen=True, slots=True)
class CleanedPart:
    """What became of the next batches of a segment. `cleaned` is None where they are left out without a look at them:
    none has a live record.
    """

    segment: Segment
    cleaned: CleanedBatches | None
    stats: CleanerStats
    window_bytes: int = 0

    def get_total_buffer_size(self) -> int:
        """The most bytes of memory that this keeps: what is left may point into the window."""
        return self.window_bytes + (len(self.cleaned.data) if self.cleaned is not None else 0)


def clean_group(
    storage: Storage,
    group: Sequence[Segment],
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    noted: NotedBatches,
    *,
    threads: int,
) -> Generator[CleanedPart, None, None]:
    """What becomes of the batches of a group, in their order. `threads` threads clean them; 1 is the caller's own.

    `transactions` has the state before the group, and then that behind it. Raises CorruptBatchError for damaged bytes.
    """
    pieces = _pieces(storage, group, record_filter, transactions, noted, in_threads=threads > 1)
    return read_ahead(pieces, threads, most_bytes=WAITING_BYTES * threads)


def _pieces(
    storage: Storage,
    group: Sequence[Segment],
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    noted: NotedBatches,
    *,
    in_threads: bool,
) -> Iterator[Callable[[], Iterator[CleanedPart]]]:
    """The windows of a group. `in_threads`: what takes time, CRCs too, is left to the thread that cleans a window.

    So is the read of a window, where it is known before what it begins and ends with, and that nothing in it has to do
    with a transaction.
    """
    for segment in group:
        notes = noted.whole(segment) if record_filter.live.end_offset >= segment.next_offset else None
        if notes is None:
            read: ReadWindows = SegmentFile(storage, segment).windows
            yield from _in_order(read, segment, None, record_filter, transactions, in_threads=in_threads)
            continue
        gap_bytes = LEAST_GAP_BYTES if storage.is_local else LEAST_STORE_GAP_BYTES
        most_bytes = WINDOW_BYTES if storage.is_local else segment.log_bytes  # a store's windows are fetched ahead
        wanted, passed = windows_to_read(notes, record_filter.live, gap_bytes, most_bytes)
        if passed.records_read:  # what is passed over comes first: the other batches must be written then
            yield partial(iter, [CleanedPart(segment, None, passed)])
        is_in_order = not storage.is_local or notes.transactional.any()
        for ranges in wanted:
            read = partial(SegmentFile(storage, segment).windows_in, ranges)
            if is_in_order:
                yield from _in_order(read, segment, notes, record_filter, transactions, in_threads=in_threads)
            else:
                yield partial(_read_and_clean, read, segment, notes, record_filter, transactions.copy())


def _in_order(
    read: ReadWindows,
    segment: Segment,
    notes: BatchNotes | None,
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    *,
    in_threads: bool,
) -> Iterator[Callable[[], Iterator[CleanedPart]]]:
    """Windows that are read one after the other, for the state of the transactions before each."""
    for window in read(check_crc=not in_threads):
        before = transactions
        if in_threads:
            before = transactions.copy()
            transactions.read(named(window, segment))
        yield partial(_clean, window, segment, notes, record_filter, before, check_crc=in_threads)


def _read_and_clean(
    read: ReadWindows,
    segment: Segment,
    notes: BatchNotes,
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
) -> Iterator[CleanedPart]:
    for window in read(check_crc=True):
        yield from _clean(window, segment, notes, record_filter, transactions, check_crc=False)


def _clean(
    window: Window,
    segment: Segment,
    notes: BatchNotes | None,
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    *,
    check_crc: bool,
) -> Iterator[CleanedPart]:
    if check_crc:
        _check_crcs(window)
    window = named(window, segment)
    plain = None if notes is None else plain_batches(notes, window.batches)
    for cleaned in clean_batches(window, record_filter, transactions, plain):
        yield CleanedPart(segment, cleaned, cleaned.stats, window.data.size)


def _check_crcs(window: Window) -> None:
    batches, starts = window.batches, window.starts
    scan = scan_batches(window.data, path=window.path, limit_bytes=int(starts[-1] + batches.size[-1]))
    if scan.error is not None:
        scan.error.byte_position = int(batches.byte_position[len(scan.batches)])
        scan.error.hint = RESTORE
        raise scan.error
