"""A partition under way: what is here of it, what a pass has copied, and why the pass stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_segments.errors import SegmentsError
from spark_segments.format.sidecars.producer_state import ProducerEntry, ProducerState, parse_producer_snapshot
from spark_segments.log import (
    Captured,
    CapturedBatch,
    CopiedEnd,
    Erasure,
    Hole,
    Operation,
    Partition,
    Segment,
    Snapshot,
    Undecided,
)

CAPTURE = Operation.CAPTURE
"""The operation of a capture's commits."""


@dataclass(frozen=True, slots=True)
class CaptureNotes:
    """What the commits of a topic have noted of its partitions, by number. `copied_ends`: where an import left the log
    end, or the log began.
    """

    passes: Mapping[int, Captured]
    last_batches: Mapping[int, CapturedBatch]
    appends: Mapping[int, Sequence[tuple[int, int]]]
    holes: Sequence[Hole]
    copied_ends: Mapping[int, int]

    @classmethod
    def of(cls, states: Mapping[str, str]) -> CaptureNotes:
        """The notes in the states of a topic's row."""
        return cls(
            Captured.of(states),
            CapturedBatch.of(states),
            Erasure.appends(states),
            Hole.of(states),
            CopiedEnd.of(states),
        )

    def holes_of(self, number: int) -> list[tuple[int, int]]:
        """The offsets [start, end) that the cluster had removed of a partition before they were captured."""
        return [(hole.start_offset, hole.end_offset) for hole in self.holes if hole.partition == number]


@dataclass(slots=True)
class CapturedPartition:
    """A partition under way. `row`, `noted`: as committed; `next_offset`: of the next fetch; `goal`: the high watermark
    that the pass reaches, None before the first answer; `high_watermark`: the newest seen; `hole_start`: the first
    offset that the cluster has removed; `problem`: why the capture stops. `markers_ms`: for how long the cluster keeps
    markers at least, None for ever; `markers_at_ms`: when it had the markers of all transactions open here. `ends`:
    {offset of an abort marker to write: its producer}; `undecided`: the transactions so ended. `last_batch`: as it
    was captured; `last_segment`: the row that has its offset; `is_proved`: whether this pass has found the batch in the
    cluster's log. `appends`: the offsets [start, end) here that are no record of the cluster's: erasures gave them to
    tombstones. `known_holes`: the offsets [start, end) that the cluster had removed before they were captured.
    `copied_end`: where an import left the log end, or the log began, if no capture has brought a batch since.
    """

    row: Partition
    noted: Captured
    producers: ProducerState
    next_offset: int
    epochs: tuple[tuple[int, int], ...]
    markers_ms: int | None
    markers_at_ms: int
    goal: int | None = None
    high_watermark: int | None = None
    hole_start: int | None = None
    chunks: list[Segment] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    ends: dict[int, ProducerEntry] = field(default_factory=dict)
    undecided: list[Undecided] = field(default_factory=list)
    last_batch: CapturedBatch | None = None
    last_segment: Segment | None = None
    is_proved: bool = False
    appends: Sequence[tuple[int, int]] = ()
    known_holes: Sequence[tuple[int, int]] = ()
    copied_end: int | None = None
    problem: SegmentsError | None = None

    @classmethod
    def of(
        cls, current: Snapshot, row: Partition, notes: CaptureNotes, markers_ms: int | None, now_ms: int
    ) -> CapturedPartition:
        """A partition whose row was committed, at the beginning of a pass."""
        number = row.partition
        noted = notes.passes.get(number, Captured(now_ms, row.log_end_offset))
        entries = parse_producer_snapshot(row.producer_snapshot) if row.producer_snapshot else ()
        last_batch = notes.last_batches.get(number)
        return cls(
            row,
            noted,
            ProducerState(entries),
            row.log_end_offset,
            # Epochs of a log without an offset are of records that have gone: a broker compares none with them.
            row.leader_epochs if row.log_end_offset > row.log_start_offset else (),
            markers_ms,
            noted.at_ms,
            last_batch=last_batch,
            last_segment=None if last_batch is None else _segment_with(current, number, last_batch.base_offset),
            appends=notes.appends.get(number, ()),
            known_holes=notes.holes_of(number),
            copied_end=notes.copied_ends.get(number) if last_batch is None else None,
        )

    @property
    def number(self) -> int:
        return self.row.partition

    @property
    def is_done(self) -> bool:
        """Whether the pass has all of it."""
        return self.goal is not None and self.next_offset >= self.goal

    @property
    def is_due(self) -> bool:
        """Whether there is more to be fetched."""
        return not self.is_done and self.problem is None

    @property
    def place(self) -> tuple[int, int]:
        """The offset of the fetch that is due, and the epoch of the record before. A pass begins with the last batch
        that is here.
        """
        if self.last_batch is not None and not self.is_proved:
            return self.last_batch.base_offset, self.epoch_before(self.last_batch.base_offset)
        return self.next_offset, self.last_epoch

    @property
    def last_epoch(self) -> int:
        """The epoch of the record before `next_offset`; -1 where it is not here."""
        return self.epoch_before(self.next_offset) if self.hole_start is None else -1

    @property
    def floor(self) -> int:
        """The first offset that is not here: where the hole under way begins, or the next fetch."""
        return self.next_offset if self.hole_start is None else self.hole_start

    def take_back(self) -> None:
        """Forgets what was copied."""
        self.chunks = []
        self.holes = []
        self.undecided = []

    def note_hole(self, end: int, now_ms: int) -> None:
        """Notes that the offsets from `floor` to `end` were removed in the cluster before they were copied."""
        self.holes.append(Hole(self.number, self.floor, end, now_ms, Hole.REMOVED_BEFORE))
        self.hole_start = None

    def note_ends(self, last_offset: int, now_ms: int) -> None:
        """Notes the transactions as undecided whose abort markers were written, up to an offset."""
        for offset in [offset for offset in self.ends if offset <= last_offset]:
            entry = self.ends.pop(offset)
            first = entry.current_txn_first_offset
            end = entry.last_offset + 1
            self.undecided.append(Undecided(self.number, first, end, now_ms, entry.producer_id, offset))

    def may_miss_ends(self, now_ms: int) -> bool:
        """Whether the end of a transaction that is open here may have left the cluster's log."""
        is_late = self.markers_ms is not None and now_ms - self.markers_at_ms > self.markers_ms
        ended = {producer.producer_id for producer in self.ends.values()}
        return is_late and bool(self.producers.open_transactions().keys() - ended)

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before an offset; -1 where it is not known."""
        epochs = [epoch for epoch, start in self.epochs if start < offset]
        return epochs[-1] if epochs else -1


def _segment_with(current: Snapshot, number: int, offset: int) -> Segment | None:
    live = current.live_of(number)
    return next((segment for segment in live if segment.base_offset <= offset < segment.next_offset), None)
