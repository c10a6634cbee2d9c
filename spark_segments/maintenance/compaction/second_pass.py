"""The second pass over groups of segments: what cleaning leaves of their batches becomes the segments in their place.

Several threads can clean a large group. They are given the windows that a single thread would read, each with the state
of the transactions before it. So what they leave is what a single thread leaves, to the byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from spark_segments.ahead import read_ahead
from spark_segments.errors import RESTORE
from spark_segments.format.batches import scan_batches
from spark_segments.format.cleaner.clean import CleanedBatches, CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.live_records import LiveRecords
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.compaction.first_pass import MapFile
from spark_segments.maintenance.compaction.group_rewrite import GroupRewrite, RewrittenGroup, discard_groups, named
from spark_segments.maintenance.compaction.noted_batches import (
    LEAST_GAP_BYTES,
    LEAST_STORE_GAP_BYTES,
    BatchNotes,
    NotedBatches,
    plain_batches,
    windows_to_read,
)
from spark_segments.maintenance.compaction.round import RoundPlan
from spark_segments.storage import Storage

WAITING_BYTES = 2 * WINDOW_BYTES
"""Bytes of cleaned windows that wait to be written, at most, for each of several threads."""


@dataclass(frozen=True, slots=True)
class GroupsTask:
    """Neighbouring groups, the notes of their segments, and the state of the transactions before the first of them.

    `first`: the number of the first group. `threads`: how many threads clean them.
    """

    first: int
    groups: Sequence[Sequence[Segment]]
    noted: NotedBatches
    transactions: CleanedTransactions
    threads: int

    def live_bytes(self, live: LiveRecords) -> float:
        """About how many bytes stay of what is noted, and all bytes of what is not: those take the time."""
        return sum(
            row.log_bytes * (live.share(row.base_offset, row.next_offset) if row in self.noted else 1)
            for group in self.groups
            for row in group
        )


@dataclass(frozen=True, slots=True)
class SecondPass:
    """Task function: writes what cleaning leaves of some groups. `record_filter`: on Spark the map of it, in a file."""

    storage: Storage
    work: RoundPlan
    record_filter: RecordFilter | MapFile

    def __call__(self, task: GroupsTask) -> list[RewrittenGroup]:
        """If a group fails, the files of the others are deleted: no commit can name them."""
        record_filter = self.record_filter
        work = self.work
        if isinstance(record_filter, MapFile):
            offset_map = record_filter.read(self.storage, work.settings.map_bytes, work.settings.load_factor)
            record_filter = work.record_filter(offset_map)
        transactions = task.transactions.copy()  # threads share the task's own
        cleaner = _GroupCleaner(self.storage, record_filter, transactions, task.noted, task.threads)
        epochs = LeaderEpochs.of(work.partition)
        done: list[RewrittenGroup] = []
        try:
            for group in task.groups:
                with (
                    GroupRewrite(
                        self.storage,
                        work.settings.topic,
                        work.config,
                        group,
                        epochs,
                        counts_only=work.settings.counts_only,
                    ) as rewrite,
                    contextlib.closing(cleaner.parts(group)) as parts,
                ):
                    for part in parts:
                        part.write(rewrite)
                    done.append(rewrite.close())
        except BaseException:
            discard_groups(self.storage, done)
            raise
        return done


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

    def write(self, rewrite: GroupRewrite) -> None:
        """Hands it to the group's rewrite."""
        if self.cleaned is None:
            rewrite.drop(self.stats)
        else:
            rewrite.add(self.segment, self.cleaned)


@dataclass(frozen=True, slots=True)
class _GroupCleaner:
    """Cleans one group after the other. `transactions`: the state before the next group. `threads` threads clean a
    group; 1 is the caller's own.
    """

    storage: Storage
    record_filter: RecordFilter
    transactions: CleanedTransactions
    noted: NotedBatches
    threads: int

    def parts(self, group: Sequence[Segment]) -> Generator[CleanedPart, None, None]:
        """What becomes of the batches of a group, in their order. Raises CorruptBatchError for damaged bytes."""
        return read_ahead(self._pieces(group), self.threads, most_bytes=WAITING_BYTES * self.threads)

    def _pieces(self, group: Sequence[Segment]) -> Iterator[Callable[[], Iterator[CleanedPart]]]:
        """The windows of a group. With several threads, what takes time, CRCs too, is left to the thread that cleans a
        window.

        So is the read of a window, where it is known before what it begins and ends with, and that nothing in it has to
        do with a transaction.
        """
        live = self.record_filter.live
        is_local = self.storage.is_local
        for segment in group:
            file = SegmentFile(self.storage, segment)
            notes = self.noted.whole(segment) if live.end_offset >= segment.next_offset else None
            if notes is None:
                yield from self._in_order(file.windows, segment, None)
                continue
            gap_bytes = LEAST_GAP_BYTES if is_local else LEAST_STORE_GAP_BYTES
            most_bytes = WINDOW_BYTES if is_local else segment.log_bytes  # a store's windows are fetched ahead
            windows, passed = windows_to_read(notes, live, gap_bytes, most_bytes)
            if passed.records_read:  # what is passed over comes first: the other batches must be written then
                yield partial(iter, [CleanedPart(segment, None, passed)])
            is_in_order = not is_local or notes.transactional.any()
            for ranges in windows:
                read = partial(file.windows_in, ranges)
                if is_in_order:
                    yield from self._in_order(read, segment, notes)
                else:
                    yield partial(self._read_and_clean, read, segment, notes, self.transactions.copy())

    def _in_order(
        self, read: ReadWindows, segment: Segment, notes: BatchNotes | None
    ) -> Iterator[Callable[[], Iterator[CleanedPart]]]:
        """Windows that are read one after the other, for the state of the transactions before each."""
        in_threads = self.threads > 1
        for window in read(check_crc=not in_threads):
            before = self.transactions
            if in_threads:
                before = self.transactions.copy()
                self.transactions.read(named(window, segment))
            yield partial(self._clean, window, segment, notes, before, check_crc=in_threads)

    def _read_and_clean(
        self, read: ReadWindows, segment: Segment, notes: BatchNotes, transactions: CleanedTransactions
    ) -> Iterator[CleanedPart]:
        for window in read(check_crc=True):
            yield from self._clean(window, segment, notes, transactions, check_crc=False)

    def _clean(
        self,
        window: Window,
        segment: Segment,
        notes: BatchNotes | None,
        transactions: CleanedTransactions,
        *,
        check_crc: bool,
    ) -> Iterator[CleanedPart]:
        if check_crc:
            _check_crcs(window)
        window = named(window, segment)
        plain = None if notes is None else plain_batches(notes, window.batches)
        for cleaned in clean_batches(window, self.record_filter, transactions, plain):
            yield CleanedPart(segment, cleaned, cleaned.stats, window.data.size)


def _check_crcs(window: Window) -> None:
    batches = window.batches
    starts = window.starts
    scan = scan_batches(window.data, path=window.path, limit_bytes=int(starts[-1] + batches.size[-1]))
    if scan.error is not None:
        scan.error.byte_position = int(batches.byte_position[len(scan.batches)])
        scan.error.hint = RESTORE
        raise scan.error
