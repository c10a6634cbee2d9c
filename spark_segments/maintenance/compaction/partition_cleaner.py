"""Cleaning one partition of a compacted topic, round by round, and the commit of each.

A round builds the map of latest offsets from the dirty head, as far as its memory goes, rewrites the segments below its
end in groups, and lands all of that in one commit. What the map could not take in is done by a further round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.execution import failure_of
from spark_segments.format.cleaner.clean import CleanCounts
from spark_segments.log.manifest.manifest import Change, Manifest
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.maintenance.compaction.group_rewrite import Group
from spark_segments.maintenance.compaction.plan import plan_compaction
from spark_segments.maintenance.compaction.round import CleanedRound, CleanSettings, Round, clean_round
from spark_segments.maintenance.selection import check_young
from spark_segments.storage import Storage


@dataclass(slots=True)
class CleanResult:
    """What cleaning a partition did: records and bytes of the segments that it read, and of those it left.

    `indexed`: records of the dirty head that went into the map. `lost`: somebody else changed the partition meanwhile,
    or altered the topic so that it is not to be cleaned; the round that met it is left to the next run. `unfinished`:
    what is left asks for another way of cleaning. `error`: why the round after these failed.
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
    unfinished: bool = False
    error: SegmentsError | None = None


def clean_partition(
    storage: Storage,
    settings: CleanSettings,
    number: int,
    target: int,
    *,
    clean: Callable[[Storage, Round], CleanedRound | None] = clean_round,
    so_far: CleanResult | None = None,
) -> CleanResult:
    """Cleans a partition up to offset `target`, in as many rounds as the map's memory asks for.

    Each round goes by the topic's configuration as it is when the round begins, and lands only where the one at the
    commit allows it. `clean` does a round, or answers None where it cannot: the result is `unfinished` then, and may be
    given as `so_far` to a call that goes on. Raises CorruptBatchError for damaged bytes in the first round. What fails
    later is the result's `error`: what the rounds before did stands, and nothing else is changed.
    """
    result = CleanResult(number) if so_far is None else dataclasses.replace(so_far, unfinished=False)
    try:
        _clean_rounds(storage, settings, target, clean, result)
    except (SegmentsError, FileNotFoundError) as error:
        if not result.rounds:
            raise
        if isinstance(error, UnknownTopicError):  # it was deleted meanwhile
            result.lost = True
        else:
            result.error = failure_of(error)
    return result


def _clean_rounds(
    storage: Storage,
    settings: CleanSettings,
    target: int,
    clean: Callable[[Storage, Round], CleanedRound | None],
    result: CleanResult,
) -> None:
    """Does round after round, and notes in `result` what each has done once it has landed."""
    manifest, number = Manifest(storage, settings.topic, settings.open_delta_log), result.partition
    while True:
        started_ms = storage.now_ms()
        snapshot = manifest.snapshot()
        if snapshot.topic_id != settings.topic_id:
            result.lost = True
            return
        config = topic_config(snapshot.config, settings.defaults)
        if not config.compact:
            result.lost = True
            return
        row = snapshot.partition(number)
        first_dirty = max(row.first_dirty_offset, row.log_start_offset)
        bound = min(target, _first_uncleanable(snapshot, config, settings, number))
        result.first_dirty_offset = first_dirty
        if first_dirty >= bound:
            return
        work = Round(settings, config, row, snapshot.live_of(number), first_dirty, bound)
        cleaned = clean(storage, work)
        if cleaned is None:
            result.unfinished = True
            return
        if not _commit(storage, manifest, snapshot, work, cleaned, started_ms):
            result.lost = True
            return
        _note(result, cleaned)
        if cleaned.end_offset >= bound:
            return


def _first_uncleanable(snapshot: Snapshot, config: TopicConfig, settings: CleanSettings, number: int) -> int:
    live = snapshot.live_table(number)
    plan = plan_compaction(live, snapshot.partitions, config, settings.now_ms, force=True)
    return plan[0].first_uncleanable_offset if plan else 0


def _commit(
    storage: Storage, manifest: Manifest, snapshot: Snapshot, work: Round, cleaned: CleanedRound, started_ms: int
) -> bool:
    """Lands a round that began at `started_ms`, by the store's clock; False where it does not hold any more."""

    def change(current: Snapshot) -> Change | None:
        check_young(storage, started_ms)
        if current.topic_id != snapshot.topic_id or not _allowed(current, work, cleaned.end_offset):
            return None
        return _change(current, work.partition, cleaned.groups, cleaned.end_offset, storage.now_ms())

    return manifest.commit(change).change is not None


def _allowed(current: Snapshot, work: Round, end_offset: int) -> bool:
    """Whether the topic's configuration, which may have been altered since, lets the round land as it was done.

    It still has to be compacted, min.compaction.lag.ms has to let go of all that was cleaned, and tombstones must not
    have a right to stay for longer than the horizons say that the round has set.
    """
    config = topic_config(current.config, work.settings.defaults)
    if not config.compact or config.delete_retention_ms > work.config.delete_retention_ms:
        return False
    if config.min_compaction_lag_ms <= work.config.min_compaction_lag_ms:
        return True
    number = work.partition.partition
    start = current.partition(number).log_start_offset
    return end_offset <= max(start, _first_uncleanable(current, config, work.settings, number))


def _note(result: CleanResult, cleaned: CleanedRound) -> None:
    result.rounds += 1
    result.indexed += cleaned.indexed
    result.counts += cleaned.counts
    result.segments_in += sum(len(group.inputs) for group in cleaned.groups)
    result.segments_out += sum(len(group.outputs or group.inputs) for group in cleaned.groups)
    result.bytes_written += sum(segment.log_bytes for group in cleaned.groups for segment in group.outputs)
    result.first_dirty_offset = cleaned.end_offset


def _change(
    current: Snapshot, row: Partition, done: Sequence[Group], end_offset: int, removed_ms: int
) -> Change | None:
    """The commit of a round, or None where it does not hold: another cleaner was quicker, or a restore brought records
    back that the round has not seen.

    Segments that retention took in the meantime do not undo the round: their output is clipped, or left out.
    """
    now = current.partition(row.partition)
    start = now.log_start_offset
    if max(now.first_dirty_offset, start) != max(row.first_dirty_offset, start):
        return None
    # The round may drop a tombstone only where it has read every older value. A restore brings such values back: below
    # a log start that falls, or as segments that were not there. A last stable offset that falls reopens transactions.
    if start < row.log_start_offset or now.last_stable_offset < end_offset:
        return None
    live = {segment.path: segment for segment in current.live_of(row.partition)}
    read = {segment.path for group in done for segment in group.inputs}
    if any(segment.base_offset < end_offset and segment.path not in read for segment in live.values()):
        return None
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
