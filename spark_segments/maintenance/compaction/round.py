"""The parts of a round of cleaning a partition: what it reads, its map, its groups, and what it makes.

A round puts the keys of the dirty head into the map of latest offsets, then rewrites the segments below the map's end
in groups: round_tasks.py shares that out. Nothing is visible before the commit, which partition_cleaner.py makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.format.cleaner.live_records import NO_LIVE_RECORDS, LiveRecords
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.producer_state import ProducerState, parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.appending.record_rules import compression
from spark_segments.log.manifest.delta.delta_log import DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.segment.file import SegmentFile, read_txn_index
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.compaction.group_rewrite import GroupRewrite, RewrittenGroup, named
from spark_segments.maintenance.compaction.noted_batches import NotedBatches, memory_for_notes
from spark_segments.maintenance.compaction.plan import groups
from spark_segments.maintenance.compaction.second_pass import clean_group
from spark_segments.storage import Storage


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """What the job says about every partition of a topic. `map_bytes` bounds the offset map's memory.

    `open_delta_log`: as of `LogDir`. `held`: the keys whose tombstones stay (`held_keys`); None: all stay.
    `defaults`: configuration values for what the topic does not set itself. The topic's own values are not here: the
    topic may be altered while the job runs, so each round takes them from the snapshot that it begins with.
    """

    topic: str
    topic_id: str
    defaults: Mapping[str, str]
    now_ms: int
    map_bytes: int
    load_factor: float
    open_delta_log: OpenDeltaLog = DeltaLog
    held: pa.Array | None = field(default_factory=lambda: pa.array([], pa.binary()))


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round cleans: a partition, its live segments and the topic's configuration, all of one snapshot.

    Offsets in [first_dirty_offset, first_uncleanable_offset) are dirty. Nothing from `first_uncleanable_offset` on is
    touched.
    """

    settings: CleanerSettings
    config: TopicConfig
    partition: Partition
    live: Sequence[Segment]
    first_dirty_offset: int
    first_uncleanable_offset: int

    @property
    def segments(self) -> list[Segment]:
        """The segments that may be cleaned."""
        return [
            one for one in self.live if one.state == Segment.SEALED and one.base_offset < self.first_uncleanable_offset
        ]

    def groups(self, map_end_offset: int) -> list[list[Segment]]:
        """The neighbouring segments that become one each, among those that a map up to `map_end_offset` covers."""
        return groups(self.segments, map_end_offset, self.first_uncleanable_offset, self.config)

    @property
    def active_producers(self) -> ActiveProducers:
        """The producers whose last batch is kept."""
        snapshot = self.partition.producer_snapshot
        producers = ProducerState(parse_producer_snapshot(snapshot) if snapshot else ())
        producers.expire(self.settings.now_ms)
        return ActiveProducers.of(producers.entries())

    @property
    def notes_bytes(self) -> int:
        """The most memory for the notes of the first pass, and once more for the bits of the live records."""
        return memory_for_notes(self.settings.map_bytes)

    def record_filter(self, offset_map: OffsetMap) -> RecordFilter:
        """The rules by which records are kept or dropped."""
        settings = self.settings
        codec, level = None, None
        if self.config.compression_type != "producer":
            codec, level = compression(self.config, None)
        return RecordFilter(
            map=offset_map,
            now_ms=settings.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            first_uncleanable_offset=self.first_uncleanable_offset,
            producers=self.active_producers,
            codec=codec,
            level=level,
            live=LiveRecords.of(offset_map, self.notes_bytes) or NO_LIVE_RECORDS,
            held=None if not settings.held else LatestKeys.of(settings.held, seed=offset_map.seed),
            keeps_tombstones=settings.held is None,
        )


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round made: the partition is clean up to `end_offset` once this is committed.

    `indexed`: how many records went into the map.
    """

    groups: Sequence[RewrittenGroup]
    stats: CleanerStats
    indexed: int
    end_offset: int

    @classmethod
    def of(
        cls, work: RoundPlan, offset_map: OffsetMap, indexed: int, done: Sequence[tuple[RewrittenGroup, CleanerStats]]
    ) -> RoundResult:
        """The result of a round that made `offset_map` and rewrote its groups."""
        stats = sum((each for _, each in done), CleanerStats())
        end_offset = min(offset_map.end_offset, work.first_uncleanable_offset)
        return cls([group for group, _ in done], stats, indexed, end_offset)


def build_map(
    storage: Storage, work: RoundPlan, transactions: CleanedTransactions
) -> tuple[OffsetMap, int, NotedBatches]:
    """The latest offsets of the keys in the dirty head, as far as the map's memory goes.

    Also returned: how many records the map took, and the notes for the second pass.
    """
    settings, first, bound = work.settings, work.first_dirty_offset, work.first_uncleanable_offset
    offset_map = OffsetMap(settings.map_bytes, start_offset=first, load_factor=settings.load_factor)
    notes = MapNotes.of(work)
    indexed = 0
    for segment in work.segments:
        if segment.next_offset <= first:
            continue
        begin = SegmentFile(storage, segment).locate(first) if first > segment.base_offset else 0
        indexed += put_windows(storage, offset_map, ByteRange(segment, begin, segment.log_bytes), notes, transactions)
        if offset_map.full:
            break
        offset_map.advance(min(segment.next_offset, bound))
    return offset_map, indexed, notes.noted


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The batches of a segment that begin in [start_position, end_position) of its .log."""

    segment: Segment
    start_position: int
    end_position: int


@dataclass(frozen=True, slots=True)
class MapNotes:
    """What the first pass notes, and which records it puts: those with offsets in [first_dirty_offset, end_offset)."""

    noted: NotedBatches
    producers: ActiveProducers
    first_dirty_offset: int
    end_offset: int

    @classmethod
    def of(cls, work: RoundPlan, *, slots: int = 1) -> MapNotes:
        """No notes yet of a round whose first pass is done by `slots` tasks at a time, which share the memory."""
        return cls(
            NotedBatches(work.notes_bytes // slots),
            work.active_producers,
            work.first_dirty_offset,
            work.first_uncleanable_offset,
        )

    def takes(self, segment: Segment) -> bool:
        """Whether a segment may be noted: all of it goes into the map, if the map has room."""
        return segment.base_offset >= self.first_dirty_offset and segment.next_offset <= self.end_offset


def put_windows(
    storage: Storage,
    offset_map: OffsetMap,
    part: ByteRange,
    notes: MapNotes,
    transactions: CleanedTransactions,
    *,
    begin: int | None = None,
) -> int:
    """Puts the records of a part of a segment into a map until it is full, and returns how many records were read.

    `begin`: the position of a batch at or before the part, where the part may begin within a batch. The CRCs of all
    batches are checked, here and in the second pass: a store can give wrong bytes once, and the keys of the one reading
    or the records of the other would then be wrong for good.
    """
    segment, is_noted = part.segment, notes.takes(part.segment)
    first = part.start_position if begin is None else begin
    indexed = 0
    for window in SegmentFile(storage, segment).windows(first, part.end_position, wanted_position=part.start_position):
        window = named(window, segment)
        undone, _ = transactions.read(window)
        exclude = undone & ~window.batches.is_control
        plain = np.zeros(len(window.batches), np.bool_)
        fits = offset_map.put_batches(window, end_offset=notes.end_offset, exclude=exclude, plain=plain)
        read = window.overlaps(offset_map.start_offset, offset_map.end_offset)
        indexed += int(window.batches.count[read].sum())
        if not fits:
            break
        if is_noted and len(window.batches) and window.is_as_written:
            notes.noted.add(segment, window, plain, notes.producers, notes.end_offset)
    return indexed


def rewrite_groups(
    storage: Storage,
    work: RoundPlan,
    groups: Iterable[Sequence[Segment]],
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    noted: NotedBatches,
    threads: int = 1,
) -> list[tuple[RewrittenGroup, CleanerStats]]:
    """`rewrite_group` of each group. If one fails, the files of the others are deleted: no commit can name them."""
    done: list[tuple[RewrittenGroup, CleanerStats]] = []
    try:
        for group in groups:
            done.append(rewrite_group(storage, work, group, record_filter, transactions, noted, threads))
    except BaseException:
        discard_groups(storage, done)
        raise
    return done


def discard_groups(storage: Storage, done: Iterable[tuple[RewrittenGroup, CleanerStats]]) -> None:
    """Deletes the outputs of groups that will not be committed, so that a partition that fails in every run does not
    pile up files.
    """
    discard(storage, [segment for group, _ in done for segment in group.outputs])


def rewrite_group(
    storage: Storage,
    work: RoundPlan,
    group: Sequence[Segment],
    record_filter: RecordFilter,
    transactions: CleanedTransactions,
    noted: NotedBatches,
    threads: int = 1,
) -> tuple[RewrittenGroup, CleanerStats]:
    """Writes what cleaning leaves of a group, which `threads` threads clean. Returns its new files and what became of
    its records.
    """
    settings = work.settings
    stats = CleanerStats()
    with (
        GroupRewrite(storage, settings.topic, work.config, group, LeaderEpochs.of(work.partition)) as rewrite,
        contextlib.closing(clean_group(storage, group, record_filter, transactions, noted, threads=threads)) as parts,
    ):
        for part in parts:
            if part.cleaned is None:
                rewrite.drop()
            else:
                rewrite.add(part.segment, part.cleaned)
            stats += part.stats
        return rewrite.close(), stats


def aborted_transactions(storage: Storage, segments: Sequence[Segment]) -> AbortedTransactions:
    """All aborted transactions of a partition, with the log's offsets."""
    return AbortedTransactions.concatenate(
        [
            read_txn_index(storage, segment.txn_index_path, segment.txn_index_bytes, segment.offset_shift)
            for segment in segments
        ]
    )
