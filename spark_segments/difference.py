"""The first difference between two logs of a partition: by their leader epochs, their files and their batches.

An import compares logs before it adds to a topic. So does a job that makes a leader the follower of another leader.

Logs differ where their leader epochs do, even if two leaders took the same record at the same offset. Files that both
sides name are the same. Other record batches are compared by their headers (offsets, CRC, leader epoch), so batches
that were never cleaned are not decoded. A cleaner keeps a batch's offsets and removes records from it. Where a cleaner
ran, the records that both sides still have must be equal, and a batch that only one side has must be of the other
side's leader epoch at its offset. So must a batch without records, which a restore puts where several were. Batches
that were converted from magic 0 or 1 may have other bounds on either side: then their records are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_segments.format.batches import BatchTable
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.walk import WINDOW_BYTES
from spark_segments.format.window import Window
from spark_segments.log import LeaderEpochs, Partition, Segment, SegmentFile, Snapshot
from spark_segments.storage import Storage

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
# <base offset>.log is Kafka's name, which many directories have; only <base offset>.<unique>.log names one file.
_NAME_PARTS = 3


@dataclass(frozen=True, slots=True)
class History:
    """One side: a partition's row, its live segments by offset, and the storage that their paths lead to."""

    storage: Storage
    topic: str
    partition: Partition
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, storage: Storage, number: int) -> History:
        """A partition as a snapshot has it."""
        return cls(storage, snapshot.topic, snapshot.partition(number), tuple(snapshot.live_of(number)))

    def compare(self, other: History) -> Comparison:
        """Compares two histories of a partition, reading both once from the higher log start to the lower log end.

        Files that both sides name are not read: a file that this package wrote never changes. Memory is bounded by the
        records of a window on either side. Raises CorruptBatchError where a file is damaged.
        """
        start = max(self.partition.log_start_offset, other.partition.log_start_offset)
        end = min(self.partition.log_end_offset, other.partition.log_end_offset)
        epochs = LeaderEpochs(self.partition.leader_epochs), LeaderEpochs(other.partition.leader_epochs)
        other_leader = epoch_difference(epochs[0], epochs[1], start, end)
        end = end if other_leader is None else other_leader
        shared = {_identity(row) for row in self.segments} & {_identity(row) for row in other.segments}
        sides = (_Side(self, shared, start, end), _Side(other, shared, start, end))
        identical = True
        offset = start
        while offset < end:
            limit = min(side.advance(offset) for side in sides)
            parts = (sides[0].part(offset, limit), sides[1].part(offset, limit))
            difference, alike = _compare_parts(*parts, end)
            identical &= alike
            if difference is not None:
                return Comparison(difference, False)
            offset = limit
        return Comparison(other_leader, identical and other_leader is None)

    def first_foreign_offset(self, leader: History) -> int | None:
        """The first offset from which on a copy holds what its leader does not, None where it is a part of the leader's
        log. Reads as `compare` does.

        The leader's epochs also count below its log start: retention there does not make the copy's records the
        leader's.
        """
        ours = self.partition
        theirs = leader.partition
        end = min(ours.log_end_offset, theirs.log_end_offset)
        offsets = [
            epoch_difference(
                LeaderEpochs(ours.leader_epochs), LeaderEpochs(theirs.leader_epochs), ours.log_start_offset, end
            ),
            self.compare(leader).first_difference,
            theirs.log_end_offset if ours.log_end_offset > theirs.log_end_offset else None,
        ]
        return min((offset for offset in offsets if offset is not None), default=None)


def epoch_difference(ours: LeaderEpochs, theirs: LeaderEpochs, start: int, end: int) -> int | None:
    """The first offset in [start, end) that two logs give different epochs, None where they give none.

    An offset below all entries of a log is of no known epoch, and so no difference.
    """
    starts = {start, *(offset for _, offset in (*ours.entries, *theirs.entries))}
    for offset in sorted(offset for offset in starts if start <= offset < end):
        our_epoch = ours.epoch_of(offset)
        their_epoch = theirs.epoch_of(offset)
        if our_epoch is not None and their_epoch is not None and our_epoch != their_epoch:
            return offset
    return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two histories from the higher log start to the lower log end.

    `first_difference`: the first offset at which the sides differ, None where they agree; the lower log end itself
    where a batch reaches across it. `identical`: both sides have exactly the same batches. Where that is False without
    a difference, a cleaner removed records on either side, or batches were converted.
    """

    first_difference: int | None
    identical: bool


SAME = Comparison(None, True)
"""Two sides that have the same."""


def _identity(row: Segment) -> tuple[str, int, int, int] | None:
    """Identity of the file part that a row names: equal identity, equal bytes. None for a file that Kafka named."""
    if len(row.path.rpartition("/")[2].split(".")) < _NAME_PARTS:
        return None
    return row.path, row.base_offset, row.next_offset, row.file_base_offset


@dataclass(frozen=True, slots=True)
class _Part:
    """Batches of a window. `first` and `last` are offsets of the log, cut to the file part that the row names."""

    side: _Side
    segment: Segment | None
    window: Window | None
    batches: BatchTable
    first: np.ndarray  # int64
    last: np.ndarray  # int64: not cut at the end of the comparison
    is_cut: np.ndarray  # bool: the row, the start of the comparison, or a conversion gave the batch its bounds
    limits: tuple[int, int]  # offsets of the log that are compared

    def take(self, rows: np.ndarray) -> _Part:
        return replace(
            self,
            batches=self.batches.take(rows),
            first=self.first[rows],
            last=self.last[rows],
            is_cut=self.is_cut[rows],
        )

    @property
    def is_converted(self) -> bool:
        """Whether the batches were converted from magic 0 or 1: their bounds are of no file."""
        return self.window is not None and not self.window.is_as_written

    def records(self) -> pa.Table:
        """The records of the batches, control batches included."""
        if self.segment is None or self.window is None:
            return pa.table([])
        decoded = decode_batches(
            self.window.with_batches(self.batches),
            topic=self.side.history.topic,
            partition=self.segment.partition,
            start_offset=max(self.limits[0], self.segment.base_offset),
            end_offset=min(self.limits[1], self.segment.next_offset),
            columns=_COLUMNS,
            include_control=True,
        )
        batches = list(decoded)
        return pa.Table.from_batches(batches) if batches else pa.table({"offset": pa.array([], pa.int64())})


class _Side:
    """Walks one history window by window."""

    def __init__(self, history: History, shared: set[tuple[str, int, int, int] | None], start: int, end: int) -> None:
        self.history = history
        self._start, self._end = start, end
        self._segments = [
            row
            for row in history.segments
            if row.next_offset > start and row.base_offset < end and (_identity(row) or row.path) not in shared
        ]
        self._parts = self._walk()
        self._current = self._empty()
        self._is_over = False
        self.epochs = LeaderEpochs(history.partition.leader_epochs)

    def advance(self, offset: int) -> int:
        """Reads on where memory holds nothing from `offset` on. Returns the offset up to which the side is known."""
        while not self._is_over and not (len(self._current.last) and self._current.last[-1] >= offset):
            self._current = next(self._parts, self._empty())
            self._is_over = self._current.window is None
        return self._end if self._is_over else min(int(self._current.last[-1]) + 1, self._end)

    def part(self, offset: int, limit: int) -> _Part:
        """The batches that have offsets in [position, limit)."""
        current = self._current
        part = current.take(np.flatnonzero((current.last >= offset) & (current.first < limit)))
        return replace(part, limits=(offset, limit))

    def _walk(self) -> Iterator[_Part]:
        for segment in self._segments:
            low = max(self._start, segment.base_offset)
            high = min(segment.next_offset, self._end)
            begin = SegmentFile(self.history.storage, segment).locate(low) if low > segment.base_offset else 0
            for window in SegmentFile(self.history.storage, segment).windows(
                begin, first_window_bytes=WINDOW_BYTES, check_crc=False
            ):
                window = window.between(low, high)
                batches = window.batches
                if not len(batches):
                    continue
                # A batch that reaches over an end counts with the offsets between: a reader gets no others of it.
                #
                #       low                      next_offset
                #   |====|=======|=======|==========|=====|
                #    cut                              cut
                first = batches.base_offset + window.offset_shift
                last = batches.last_offset + window.offset_shift
                is_cut = (first < low) | (last >= segment.next_offset) | (not window.is_as_written)
                first = np.maximum(first, low)
                last = np.minimum(last, segment.next_offset - 1)
                yield _Part(self, segment, window, batches, first, last, is_cut, (low, self._end))

    def _empty(self) -> _Part:
        none = np.empty(0, np.int64)
        return _Part(self, None, None, BatchTable.empty(), none, none, np.empty(0, bool), (0, 0))


def _compare_parts(own: _Part, other: _Part, end: int) -> tuple[int | None, bool]:
    """(the first offset that differs, or None; whether both have the same batches)"""
    differing: list[int] = []
    partner = np.searchsorted(other.first, own.first)
    paired = partner < len(other.first)
    partner = np.minimum(partner, max(len(other.first) - 1, 0))
    if len(other.first):
        paired &= (other.first[partner] == own.first) & (other.last[partner] == own.last)
    same = paired.copy()
    if paired.any():
        theirs = other.batches.take(partner)
        have_epochs = (own.batches.leader_epoch >= 0) & (theirs.leader_epoch >= 0)
        other_epoch = paired & have_epochs & (own.batches.leader_epoch != theirs.leader_epoch)
        differing += own.first[other_epoch][:1].tolist()
        same &= (own.batches.crc == theirs.crc) & ~other_epoch
    rest_of_other = np.ones(len(other.first), bool)
    rest_of_other[partner[same]] = False
    if same.all() and not rest_of_other.any():
        return (min(differing) if differing else None), True

    mine, theirs_left = own.take(np.flatnonzero(~same)), other.take(np.flatnonzero(rest_of_other))
    for part, against in ((mine, theirs_left), (theirs_left, mine)):
        has_records = part.batches.count != 0
        across = has_records & (part.first < end) & (part.last >= end)
        differing += [end] if across.any() and not part.is_converted else []
        against = against.take(np.flatnonzero(against.batches.count != 0))
        at, meets = _meeting(part, against)
        meets &= has_records
        alone = part.take(np.flatnonzero(~meets))
        epochs = against.side.epochs.epochs_of(alone.first)
        foreign = (alone.batches.leader_epoch >= 0) & (epochs >= 0) & (alone.batches.leader_epoch != epochs)
        differing += alone.first[foreign][:1].tolist()
        differing += _uneven(part.take(np.flatnonzero(meets)), against.take(at[meets]))
    differing += _other_records(mine, theirs_left)
    return (min(differing) if differing else None), False


def _meeting(part: _Part, against: _Part) -> tuple[np.ndarray, np.ndarray]:
    """For each batch of `part`: (the first batch of `against` that shares offsets with it, whether there is any)."""
    at = np.searchsorted(against.last, part.first, side="left")
    meets = at < len(against.last)
    at = np.minimum(at, max(len(against.last) - 1, 0))
    if len(against.last):
        meets &= against.first[at] <= part.last
    return at, meets


def _uneven(part: _Part, partner: _Part) -> list[int]:
    """Offsets where batches overlap but begin or end apart: a cleaner keeps both offsets of a batch."""
    is_uncut = ~part.is_cut & ~partner.is_cut
    wrong = np.flatnonzero(is_uncut & ((part.first != partner.first) | (part.last != partner.last)))
    if not len(wrong):
        return []
    row = wrong[0]
    if part.first[row] == partner.first[row]:
        return [int(min(part.last[row], partner.last[row])) + 1]
    return [int(max(part.first[row], partner.first[row]))]


def _other_records(part: _Part, other: _Part) -> list[int]:
    """The first offset at which both sides have a record and the records differ."""
    mine = part.take(np.flatnonzero(_meeting(part, other)[1])).records()
    theirs = other.take(np.flatnonzero(_meeting(other, part)[1])).records()
    if not mine.num_rows or not theirs.num_rows:
        return []
    offsets, mine_at, theirs_at = np.intersect1d(
        mine.column("offset").to_numpy(), theirs.column("offset").to_numpy(), assume_unique=True, return_indices=True
    )
    mine = mine.take(pa.array(mine_at))
    theirs = theirs.take(pa.array(theirs_at))
    # The first `equal` rows are equal, and at most the first `rows` are. Row by row would be a Python step per record.
    equal = 0
    rows = len(offsets)
    while equal < rows:
        middle = (equal + rows + 1) // 2
        if mine.slice(equal, middle - equal).equals(theirs.slice(equal, middle - equal)):
            equal = middle
        else:
            rows = middle - 1
    return [int(offsets[equal])] if equal < len(offsets) else []
