"""Cleaning one partition of a compacted topic: what a task of the compaction job does.

A round builds the map of latest offsets from the dirty head, as far as its memory goes, rewrites the segments below its
end in groups, and lands all of that in one commit. What the map could not take in is done by a further round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_segments.config import TopicConfig
from spark_segments.format.active_producers import ActiveProducers
from spark_segments.format.clean import CleanCounts, CleaningRound, clean_batches
from spark_segments.format.cleaned_transactions import CleanedTransactions
from spark_segments.format.offset_map import OffsetMap
from spark_segments.format.snapshot import ProducerState, parse_producer_snapshot
from spark_segments.format.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.log.appender import compression
from spark_segments.log.manifest import Change, Manifest
from spark_segments.log.rows import SEALED, Partition, Segment
from spark_segments.log.segment import locate, windows
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.compact_plan import groups, plan_compaction
from spark_segments.maintenance.group_rewrite import Group, GroupRewrite, named
from spark_segments.maintenance.selection import check_young
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
    started_ms: int | None = None  # the store's clock when the job began at `now_ms`; None: it is only beginning


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
    live = snapshot.live_table(number)
    plan = plan_compaction(live, snapshot.partitions, settings.config, settings.now_ms, force=True)
    return plan[0].first_uncleanable_offset if plan else 0


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
    started_ms = storage.now_ms()
    live = snapshot.live_of(row.partition)
    segments = [segment for segment in live if segment.state == SEALED and segment.base_offset < bound]
    aborted = _aborted(storage, live)
    offset_map, indexed = _build_map(storage, settings, segments, aborted, first_dirty, bound)
    cleaning = _cleaning_round(settings, row, offset_map, bound)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    done: list[Group] = []
    counts = CleanCounts()
    for group in groups(segments, offset_map.end_offset, bound, settings.config):
        rewrite = GroupRewrite(storage, settings.topic, settings.config, group, row.leader_epoch)
        for segment in group:
            for window in windows(storage, segment):
                window = dataclasses.replace(window, batches=named(window, segment))
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
        done.append(rewrite.close())
    end_offset = min(offset_map.end_offset, bound)

    def change(current: Snapshot) -> Change | None:
        check_young(storage, started_ms)
        # What a long job takes out of the log leaves it now, not when the job began.
        removed_ms = settings.now_ms + max(0, storage.now_ms() - (settings.started_ms or started_ms))
        return _change(current, snapshot, row, done, end_offset, removed_ms)

    if manifest.commit(change).change is None:
        return None
    result.rounds += 1
    result.indexed += indexed
    result.counts += counts
    result.segments_in += sum(len(group.inputs) for group in done)
    result.segments_out += sum(len(group.outputs or group.inputs) for group in done)
    result.bytes_written += sum(segment.log_bytes for group in done for segment in group.outputs)
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
        # Every segment that the map is made of is cleaned before the commit: its CRCs are checked then.
        for window in windows(storage, segment, begin, check_crc=False):
            batches = named(window, segment)
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


def _change(
    current: Snapshot, before: Snapshot, row: Partition, done: Sequence[Group], end_offset: int, removed_ms: int
) -> Change | None:
    """The commit of a round, or None where it does not hold: another cleaner was quicker, or the topic is another one.

    Segments that retention took in the meantime do not undo the round: their output is clipped, or left out.
    """
    if current.topic_id != before.topic_id:
        return None
    now = current.partition(row.partition)
    start = now.log_start_offset
    if max(now.first_dirty_offset, start) != max(row.first_dirty_offset, start):
        return None
    live = {segment.path: segment for segment in current.live_of(row.partition)}
    added: list[Segment] = []
    removed: list[Segment] = []
    for group in done:
        missing = [segment for segment in group.inputs if live.get(segment.path) != segment]
        if any(segment.next_offset > start or segment.path in live for segment in missing):
            return None
        inputs, outputs = group.after(missing[-1].next_offset if missing else group.inputs[0].base_offset)
        if outputs:
            added += outputs
            removed += [segment.removed(removed_ms) for segment in inputs]
    moved = dataclasses.replace(now, first_dirty_offset=max(end_offset, start))
    return Change("compact", add=added, replace=removed, partitions=[moved])
