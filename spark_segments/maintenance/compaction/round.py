"""One round of cleaning a partition, in one task: the map of latest offsets of its dirty head, and the segments below
the map's end written anew in groups.

Nothing is visible before a commit, which partition_cleaner.py makes. parallel_round.py does the same by many tasks,
out of the functions here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_segments.config import TopicConfig
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanCounts, CleaningRound, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.producer_state import ProducerState, parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.appending.appender import compression
from spark_segments.log.manifest.rows import SEALED, Partition, Segment
from spark_segments.log.segment.files import read_txn_index
from spark_segments.log.segment.reader import locate, windows
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.compaction.group_rewrite import Group, GroupRewrite, named
from spark_segments.maintenance.compaction.plan import groups
from spark_segments.storage import Storage


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """What a task needs beside its partition. `map_bytes` bounds the offset map's memory.

    `defaults`: configuration values for what the topic does not set itself. The topic may be altered while the job
    runs: its own values are those of the snapshot that a round begins with.
    """

    topic: str
    topic_id: str
    defaults: Mapping[str, str]
    now_ms: int
    map_bytes: int
    load_factor: float


@dataclass(frozen=True, slots=True)
class Round:
    """What a round cleans: a partition as one of its snapshots has it, `live` being its live segments, `config` the
    topic's configuration then.

    Offsets in [first_dirty_offset, first_uncleanable_offset) are dirty; nothing from the latter on is touched.
    """

    settings: CleanSettings
    config: TopicConfig
    partition: Partition
    live: Sequence[Segment]
    first_dirty_offset: int
    first_uncleanable_offset: int

    @property
    def segments(self) -> list[Segment]:
        """The segments that may be cleaned."""
        return [one for one in self.live if one.state == SEALED and one.base_offset < self.first_uncleanable_offset]

    def groups(self, map_end_offset: int) -> list[list[Segment]]:
        """The neighbouring segments that become one each, of those that a map up to `map_end_offset` tells about."""
        return groups(self.segments, map_end_offset, self.first_uncleanable_offset, self.config)

    def cleaning(self, offset_map: OffsetMap) -> CleaningRound:
        """What holds for all batches."""
        settings, snapshot = self.settings, self.partition.producer_snapshot
        producers = ProducerState(parse_producer_snapshot(snapshot) if snapshot else ())
        producers.expire(settings.now_ms)
        codec, level = None, None
        if self.config.compression_type != "producer":
            codec, level = compression(self.config, None)
        return CleaningRound(
            map=offset_map,
            now_ms=settings.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            first_uncleanable_offset=self.first_uncleanable_offset,
            producers=ActiveProducers.of(producers.entries()),
            codec=codec,
            level=level,
        )


@dataclass(frozen=True, slots=True)
class CleanedRound:
    """What a round makes of a partition: clean up to `end_offset`. `indexed`: records that went into the map."""

    groups: Sequence[Group]
    counts: CleanCounts
    indexed: int
    end_offset: int


def clean_round(storage: Storage, work: Round) -> CleanedRound:
    """Does a round in this task. Raises CorruptBatchError for damaged bytes."""
    aborted = _aborted(storage, work.live)
    undone = CleanedTransactions()
    undone.add_aborted(aborted.overlapping(work.first_dirty_offset, work.first_uncleanable_offset))
    offset_map, indexed = build_map(storage, work, undone)
    cleaning = work.cleaning(offset_map)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    done = rewrite_groups(storage, work, work.groups(offset_map.end_offset), cleaning, transactions)
    counts = sum((counted for _, counted in done), CleanCounts())
    end_offset = min(offset_map.end_offset, work.first_uncleanable_offset)
    return CleanedRound([group for group, _ in done], counts, indexed, end_offset)


def build_map(storage: Storage, work: Round, transactions: CleanedTransactions) -> tuple[OffsetMap, int]:
    """The latest offsets of the keys in the dirty head, or as far as the map's memory goes; and records read."""
    settings, first, bound = work.settings, work.first_dirty_offset, work.first_uncleanable_offset
    offset_map = OffsetMap(settings.map_bytes, start_offset=first, load_factor=settings.load_factor)
    indexed = 0
    for segment in work.segments:
        if segment.next_offset <= first:
            continue
        begin = locate(storage, segment, first) if first > segment.base_offset else 0
        # Every segment that the map is made of is cleaned before the commit: its CRCs are checked then.
        indexed += put_windows(
            offset_map, segment, windows(storage, segment, begin, check_crc=False), bound, transactions
        )
        if offset_map.full:
            break
        offset_map.advance(min(segment.next_offset, bound))
    return offset_map, indexed


def put_windows(
    offset_map: OffsetMap,
    segment: Segment,
    found: Iterable[Window],
    end_offset: int,
    transactions: CleanedTransactions,
    *,
    start_position: int = 0,
) -> int:
    """Puts the records of a segment's windows into a map, until it is full; how many there were.

    Batches before `start_position` are passed over, and records from `end_offset` on.
    """
    indexed = 0
    for window in found:
        window = named(window, segment)
        if start_position > window.position:
            window = window.take(window.batches.position >= start_position)
        undone, _ = transactions.read(window)
        exclude = undone & ~window.batches.is_control
        fits = offset_map.put_batches(window, end_offset=end_offset, exclude=exclude)
        read = window.overlaps(offset_map.start_offset, offset_map.end_offset)
        indexed += int(window.batches.count[read].sum())
        if not fits:
            break
    return indexed


def rewrite_groups(
    storage: Storage,
    work: Round,
    groups: Iterable[Sequence[Segment]],
    cleaning: CleaningRound,
    transactions: CleanedTransactions,
) -> list[tuple[Group, CleanCounts]]:
    """`rewrite_group` of each. Where one fails the files of the others go, too: no commit can know of them yet."""
    done: list[tuple[Group, CleanCounts]] = []
    try:
        for group in groups:
            done.append(rewrite_group(storage, work, group, cleaning, transactions))
    except BaseException:
        discard_groups(storage, done)
        raise
    return done


def discard_groups(storage: Storage, done: Iterable[tuple[Group, CleanCounts]]) -> None:
    """Deletes the outputs of groups that no commit was given: a partition that fails in each run leaves none."""
    discard(storage, [segment for group, _ in done for segment in group.outputs])


def rewrite_group(
    storage: Storage,
    work: Round,
    group: Sequence[Segment],
    cleaning: CleaningRound,
    transactions: CleanedTransactions,
) -> tuple[Group, CleanCounts]:
    """Writes what cleaning leaves of a group, and says what became of its records."""
    settings = work.settings
    counts = CleanCounts()
    with GroupRewrite(storage, settings.topic, work.config, group, work.partition.leader_epoch) as rewrite:
        for segment in group:
            for window in windows(storage, segment):
                for cleaned in clean_batches(named(window, segment), cleaning, transactions):
                    rewrite.add(segment, cleaned)
                    counts += cleaned.counts
        return rewrite.close(), counts


def _aborted(storage: Storage, segments: Sequence[Segment]) -> AbortedTransactions:
    """All aborted transactions of a partition, with the log's offsets."""
    return AbortedTransactions.concatenate(
        [
            read_txn_index(storage, segment.txn_index_path, segment.txn_index_bytes, segment.offset_shift)
            for segment in segments
        ]
    )
