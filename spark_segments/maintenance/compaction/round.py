"""The parts of a round of cleaning a partition: what it cleans, and by which rules; what it made.

A round puts the keys of the dirty head into the map of latest offsets (first_pass.py), then rewrites the segments below
the map's end in groups (second_pass.py): round_tasks.py shares that out. Nothing is visible before the commit, which
partition_cleaner.py makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.format.cleaner.live_records import NO_LIVE_RECORDS, LiveRecords
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.sidecars.producer_state import ProducerState, parse_producer_snapshot
from spark_segments.log.appending.record_rules import compression
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.maintenance.compaction.compaction_plan import groups
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup
from spark_segments.maintenance.compaction.noted_batches import memory_for_notes


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """What the job says about every partition of a topic. `map_bytes` bounds the offset map's memory.

    `counts_only`: a round counts what it would drop, and writes and commits nothing. `open_delta_log`: as of `LogDir`.
    `held`: the keys whose tombstones stay (`held_keys`); None: all stay.
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
    counts_only: bool = False


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
        bound = self.first_uncleanable_offset
        return [row for row in self.live if row.state == Segment.SEALED and row.base_offset < bound]

    def groups(self, map_end_offset: int) -> list[list[Segment]]:
        """Groups of neighbouring segments, each to become one segment. A map up to `map_end_offset` covers them."""
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
        codec = None
        level = None
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
