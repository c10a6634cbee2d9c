"""Cleaning one partition of a compacted topic: what a task of the compaction job does.

A round builds the map of latest offsets from the dirty head, as far as its memory goes, rewrites the segments below its
end in groups, and lands all of that in one commit. What the map could not take in is done by a further round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_segments.config import TopicConfig
from spark_segments.format.active_producers import ActiveProducers
from spark_segments.format.batches import BatchTable
from spark_segments.format.clean import CleanCounts, Cleaned, CleaningRound, clean_batches
from spark_segments.format.cleaned_transactions import CleanedTransactions
from spark_segments.format.offset_map import OffsetMap
from spark_segments.format.snapshot import ProducerState, parse_producer_snapshot
from spark_segments.format.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.log.appender import compression
from spark_segments.log.chunk import SegmentWriter
from spark_segments.log.copying import rebased
from spark_segments.log.manifest import Change, Manifest
from spark_segments.log.rows import SEALED, Partition, Segment
from spark_segments.log.segment import Window, locate, windows
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.compact_plan import groups, plan_compaction
from spark_segments.storage import Storage


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """What a task needs beside its partition. `map_bytes` bounds the offset map's memory."""

    topic: str
    topic_id: str
    config: TopicConfig
    now_ms: int
    map_bytes: int
    load_factor: float


@dataclass(slots=True)
class CleanResult:
    """What cleaning a partition did: records and bytes of the segments that it read, and of those it left.

    `indexed`: records of the dirty head that went into the map. `lost`: somebody else changed the partition meanwhile;
    the round that met it is left to the next run.
    """

    partition: int
    rounds: int = 0
    indexed: int = 0
    counts: CleanCounts = field(default_factory=CleanCounts)
    segments_in: int = 0
    segments_out: int = 0
    bytes_written: int = 0
    first_dirty_offset: int = 0
    lost: bool = False


@dataclass(slots=True)
class _Group:
    """Neighbouring segments, and the one that takes their place; None where they all stay as they are."""

    inputs: list[Segment]
    output: Segment | None


def clean_partition(storage: Storage, settings: CleanSettings, number: int, target: int) -> CleanResult:
    """Cleans a partition up to offset `target`, in as many rounds as the map's memory asks for.

    Raises CorruptBatchError for damaged bytes: what earlier rounds did stands, and nothing else is changed.
    """
    manifest = Manifest(storage, settings.topic)
    result = CleanResult(number)
    while True:
        snapshot = manifest.snapshot()
        if snapshot.topic_id != settings.topic_id:
            result.lost = True
            return result
        row = snapshot.partition(number)
        first_dirty = max(row.first_dirty_offset, row.log_start_offset)
        bound = min(target, _first_uncleanable(snapshot, settings, number))
        result.first_dirty_offset = first_dirty
        if first_dirty >= bound:
            return result
        end_offset = _clean_once(storage, manifest, settings, snapshot, row, first_dirty, bound, result)
        if end_offset is None:
            result.lost = True
            return result
        result.first_dirty_offset = end_offset
        if end_offset >= bound:
            return result


def _first_uncleanable(snapshot: Snapshot, settings: CleanSettings, number: int) -> int:
    for candidate in plan_compaction(snapshot.live, snapshot.partitions, settings.config, settings.now_ms, force=True):
        if candidate.partition == number:
            return candidate.first_uncleanable_offset
    return 0


def _clean_once(
    storage: Storage,
    manifest: Manifest,
    settings: CleanSettings,
    snapshot: Snapshot,
    row: Partition,
    first_dirty: int,
    bound: int,
    result: CleanResult,
) -> int | None:
    """One round. Returns the new first dirty offset, or None where the plan did not hold any more."""
    segments = [segment for segment in snapshot.live_of(row.partition) if segment.state == SEALED]
    segments = [segment for segment in segments if segment.base_offset < bound]
    aborted = _aborted(storage, snapshot.live_of(row.partition))
    offset_map, indexed = _build_map(storage, settings, segments, aborted, first_dirty, bound)
    cleaning = _cleaning_round(settings, row, offset_map, bound)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    done: list[_Group] = []
    counts = CleanCounts()
    for group in groups(segments, offset_map.end_offset, bound, settings.config):
        rewrite = _GroupRewrite(storage, settings, group)
        for segment in group:
            for window in windows(storage, segment):
                window = dataclasses.replace(window, batches=_named(window, segment))
                cleaned = clean_batches(
                    window.data,
                    window.batches,
                    cleaning,
                    transactions,
                    file_position=window.position,
                    path=segment.path,
                    offset_shift=segment.offset_shift,
                )
                rewrite.add(segment, window, cleaned)
                counts += cleaned.counts
        done.append(_Group(group, rewrite.close()))
    end_offset = min(offset_map.end_offset, bound)
    committed = manifest.commit(lambda current: _change(current, snapshot, row, done, end_offset, settings.now_ms))
    if committed.change is None:
        return None
    result.rounds += 1
    result.indexed += indexed
    result.counts += counts
    result.segments_in += sum(len(group.inputs) for group in done)
    result.segments_out += sum(len(group.inputs) if group.output is None else 1 for group in done)
    result.bytes_written += sum(group.output.log_bytes for group in done if group.output is not None)
    return end_offset


def _build_map(
    storage: Storage,
    settings: CleanSettings,
    segments: Sequence[Segment],
    aborted: AbortedTransactions,
    first_dirty: int,
    bound: int,
) -> tuple[OffsetMap, int]:
    """The latest offsets of the keys in [first_dirty, bound), or as far as the map's memory goes; and records read."""
    offset_map = OffsetMap(settings.map_bytes, start_offset=first_dirty, load_factor=settings.load_factor)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted.overlapping(first_dirty, bound))
    indexed = 0
    for segment in segments:
        if segment.next_offset <= first_dirty:
            continue
        shift = segment.offset_shift
        begin = locate(storage, segment, first_dirty) if first_dirty > segment.base_offset else 0
        for window in windows(storage, segment, begin):
            batches = _named(window, segment)
            undone, _ = transactions.read(
                window.data, batches, file_position=window.position, path=segment.path, offset_shift=shift
            )
            fits = offset_map.put_batches(
                window.data,
                batches,
                file_position=window.position,
                path=segment.path,
                offset_shift=shift,
                end_offset=bound,
                exclude=undone & ~batches.is_control,
            )
            read = (batches.last_offset + shift >= first_dirty) & (batches.base_offset + shift < offset_map.end_offset)
            indexed += int(batches.count[read].sum())
            if not fits:
                return offset_map, indexed
        offset_map.advance(min(segment.next_offset, bound))
    return offset_map, indexed


def _cleaning_round(settings: CleanSettings, row: Partition, offset_map: OffsetMap, bound: int) -> CleaningRound:
    producers = ProducerState(parse_producer_snapshot(row.producer_snapshot) if row.producer_snapshot else ())
    producers.expire(settings.now_ms)
    codec, level = None, None
    if settings.config.compression_type != "producer":
        codec, level = compression(settings.config, None)
    return CleaningRound(
        map=offset_map,
        now_ms=settings.now_ms,
        delete_retention_ms=settings.config.delete_retention_ms,
        first_uncleanable_offset=bound,
        producers=ActiveProducers.of(producers.entries()),
        codec=codec,
        level=level,
    )


def _aborted(storage: Storage, segments: Sequence[Segment]) -> AbortedTransactions:
    """All aborted transactions of a partition, with the log's offsets."""
    found = []
    for segment in segments:
        if segment.txn_index_bytes:
            data = storage.read(segment.txn_index_path, 0, segment.txn_index_bytes)
            found.append(parse_txn_index(data, path=segment.txn_index_path).shifted(segment.offset_shift))
    return AbortedTransactions.concatenate(found)


def _named(window: Window, segment: Segment) -> BatchTable:
    """The batches of a window that the segment's row names: a clipped row leaves some of its file's out."""
    batches, shift = window.batches, segment.offset_shift
    inside = (batches.last_offset + shift >= segment.base_offset) & (batches.base_offset + shift < segment.next_offset)
    return batches if inside.all() else batches.take(inside)


class _GroupRewrite:
    """The output of one group. Nothing is written before the first batch that does not stay as it is."""

    def __init__(self, storage: Storage, settings: CleanSettings, group: list[Segment]) -> None:
        self._storage = storage
        self._settings = settings
        self._group = group
        self._writer: SegmentWriter | None = None
        self._unchanged: list[tuple[Segment, int, int]] = []
        self._tombstones = 0
        self._aborted: list[AbortedTransactions] = []

    def add(self, segment: Segment, window: Window, cleaned: Cleaned) -> None:
        """Takes what is left of the next window."""
        self._tombstones += cleaned.counts.tombstones_kept
        self._aborted.append(cleaned.aborted)
        if self._writer is None and not cleaned.changed:
            if len(window.batches):
                end = int(window.batches.position[-1] + window.batches.size[-1])
                self._unchanged.append((segment, int(window.batches.position[0]), end))
            return
        self._begin().append(cleaned.data, cleaned.batches)

    def close(self) -> Segment | None:
        """The output's row, or None where every batch stays as it is."""
        if self._writer is None:
            return None
        writer = self._writer
        writer.add_tombstones(self._tombstones)
        for aborted in self._aborted:
            writer.add_aborted(aborted)
        first, last = self._group[0], self._group[-1]
        row = writer.close(
            topic_id=first.topic_id,
            created_ms=max(segment.created_ms for segment in self._group),
            state=SEALED,
        )
        return dataclasses.replace(row, next_offset=last.next_offset)

    def _begin(self) -> SegmentWriter:
        if self._writer is None:
            first = self._group[0]
            self._writer = SegmentWriter(
                self._storage,
                self._settings.topic,
                first.partition,
                first.base_offset,
                index_interval_bytes=self._settings.config.index_interval_bytes,
                segment_index_bytes=self._settings.config.segment_index_bytes,
            )
            for data, batches in self._copies():
                self._writer.append(data, batches)
        return self._writer

    def _copies(self) -> Iterator[tuple[np.ndarray, BatchTable]]:
        for segment, start, end in self._unchanged:
            for window in windows(self._storage, segment, start, end):
                if len(window.batches):
                    yield rebased(window, window.batches, segment.offset_shift)


def _change(
    current: Snapshot, before: Snapshot, row: Partition, done: Sequence[_Group], end_offset: int, now_ms: int
) -> Change | None:
    """The commit of a round, or None where it does not hold: another cleaner was quicker, or the topic is another one.

    Segments that retention took in the meantime do not undo the round: their output is clipped, or left out.
    """
    if current.topic_id != before.topic_id:
        return None
    now = current.partition(row.partition)
    if now.first_dirty_offset > max(row.first_dirty_offset, now.log_start_offset):
        return None
    live = {segment.path: segment for segment in current.live_of(row.partition)}
    added: list[Segment] = []
    removed: list[Segment] = []
    for group in done:
        if group.output is None:
            continue
        missing = [segment for segment in group.inputs if live.get(segment.path) != segment]
        if any(segment.next_offset > now.log_start_offset or segment.path in live for segment in missing):
            return None
        kept = [segment for segment in group.inputs if segment not in missing]
        if not kept:
            continue
        output = group.output
        if missing:
            output = dataclasses.replace(output, base_offset=kept[0].base_offset, file_base_offset=kept[0].base_offset)
        added.append(output)
        removed.extend(segment.removed(now_ms) for segment in kept)
    moved = dataclasses.replace(now, first_dirty_offset=max(end_offset, now.first_dirty_offset, now.log_start_offset))
    return Change("compact", add=added, replace=removed, partitions=[moved])
