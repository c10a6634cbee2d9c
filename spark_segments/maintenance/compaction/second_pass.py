"""The second pass over a group of segments: what cleaning leaves of their batches, in the order of the log.

Several threads can clean a large group. They are given the windows that a single thread would read, each with the state
of the transactions before it. So what they leave is what a single thread leaves, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from spark_segments.errors import RESTORE
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.clean import CleanedBatches, CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.live_records import LiveRecords
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.reading.ahead import read_ahead
from spark_segments.log.segment.reader import windows, windows_in
from spark_segments.log.segment.walk import WINDOW_BYTES
from spark_segments.maintenance.compaction.group_rewrite import named
from spark_segments.maintenance.compaction.noted_batches import (
    LEAST_GAP_BYTES,
    LEAST_STORE_GAP_BYTES,
    NotedBatches,
    plain_batches,
    ranges_to_read,
)
from spark_segments.storage import Storage

WAITING_BYTES = 2 * WINDOW_BYTES
"""Bytes of cleaned windows that wait to be written, at most, for each of several threads."""


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
    """The windows of a group. `in_threads`: what takes time, CRCs too, is left to the thread that cleans a window."""
    for segment in group:
        for window, plain, passed in _steps(storage, segment, record_filter.live, noted, check_crc=not in_threads):
            if passed.records_read:
                yield partial(iter, [CleanedPart(segment, None, passed)])
            if window is None:
                continue
            before = transactions
            if in_threads:
                before = transactions.copy()
                transactions.read(named(window, segment))
            yield partial(_clean, segment, window, plain, record_filter, before, check_crc=in_threads)


def _clean(
    segment: Segment,
    window: Window,
    plain: np.ndarray | None,
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    *,
    check_crc: bool,
) -> Iterator[CleanedPart]:
    if check_crc:
        _check_crcs(window)
    for cleaned in clean_batches(named(window, segment), record_filter, transactions, plain):
        yield CleanedPart(segment, cleaned, cleaned.stats, window.data.size)


def _check_crcs(window: Window) -> None:
    batches, starts = window.batches, window.starts
    scan = scan_batches(window.data, path=window.path, limit_bytes=int(starts[-1] + batches.size[-1]))
    if scan.error is not None:
        scan.error.byte_position = int(batches.byte_position[len(scan.batches)])
        scan.error.hint = RESTORE
        raise scan.error


def _steps(
    storage: Storage, segment: Segment, live: LiveRecords, noted: NotedBatches, *, check_crc: bool
) -> Iterator[tuple[Window | None, np.ndarray | None, CleanerStats]]:
    """(a window of a segment, its plain batches, batches that are passed over), in order. What is passed over comes
    first: the other batches must be written then.
    """
    notes = noted.whole(segment) if live.end_offset >= segment.next_offset else None
    if notes is None:
        for window in windows(storage, segment, check_crc=check_crc):
            yield window, None, CleanerStats()
        return
    ranges, passed = ranges_to_read(notes, live, LEAST_GAP_BYTES if storage.is_local else LEAST_STORE_GAP_BYTES)
    if passed.records_read:
        yield None, None, passed
    if ranges is not None:
        for window in windows_in(storage, segment, ranges, check_crc=check_crc):
            yield window, plain_batches(notes, window.batches), CleanerStats()
