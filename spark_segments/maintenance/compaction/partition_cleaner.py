"""Cleaning one partition of a compacted topic, round by round, and the commit of each round.

A round builds the map of latest offsets from the dirty head, as far as the map's memory goes, rewrites the segments
below the map's end in groups, and is one commit. A further round does what the map could not take in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.execution import failure_of
from spark_segments.format.cleaner.clean import CleanerStats
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.commit.swap import Identity, not_as_read
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import ErasedTombstones
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.report import Report
from spark_segments.maintenance.compaction.compaction_plan import plan_compaction
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup
from spark_segments.maintenance.compaction.round import CleanerSettings, RoundPlan, RoundResult
from spark_segments.maintenance.compaction.round_tasks import ONE_TASK
from spark_segments.storage import Storage

CleanRound = Callable[[Storage, RoundPlan], RoundResult]


@dataclass(slots=True)
class PartitionResult:
    """The results of one partition's rounds, which are all committed: the records and bytes of the segments that they
    read, and of the segments that they wrote.

    `indexed`: records of the dirty head that went into the maps. `lost`: another job changed the partition meanwhile,
    or the topic was altered so that it must not be cleaned, or deleted; the rest is left to the next run. `error`: why
    the round after these failed. Such a round changed nothing.
    """

    partition: int
    rounds: int = 0
    indexed: int = 0
    stats: CleanerStats = field(default_factory=CleanerStats)
    segments_in: int = 0
    segments_out: int = 0
    bytes_written: int = 0
    first_dirty_offset: int = 0
    lost: bool = False
    error: SegmentsError | None = None

    def add(self, done: RoundResult) -> None:
        """Counts a round that was committed."""
        self.rounds += 1
        self.indexed += done.indexed
        self.stats += done.stats
        self.segments_in += sum(len(group.inputs) for group in done.groups)
        self.segments_out += sum(len(group.outputs or group.inputs) for group in done.groups)
        self.bytes_written += sum(segment.log_bytes for group in done.groups for segment in group.outputs)
        self.first_dirty_offset = done.end_offset

    def counts(self) -> dict[str, Any]:
        """How many records and bytes were read and stay, and why others do not."""
        stats = self.stats
        dropped = {
            "superseded": stats.superseded,
            "tombstone": stats.tombstone,
            "no_key": stats.no_key,
            "aborted": stats.aborted,
            "control": stats.control,
        }
        return {
            "records_in": stats.records_read,
            "records_out": stats.records_kept,
            "bytes_in": stats.bytes_read,
            "bytes_out": stats.bytes_written,
            "dropped": {reason: count for reason, count in dropped.items() if count},
        }

    def line(self) -> dict[str, Any]:
        """The partition's line in the report."""
        stats = self.stats
        action = Report.LOST if self.lost else "compact"
        failed: dict[str, Any] = {}
        if self.error is not None:
            action = Report.FAILED
            failed = {"error": str(self.error)}
        return {
            "partition": self.partition,
            "action": action,
            **self.counts(),
            "rounds": self.rounds,
            "indexed": self.indexed,
            "segments_in": self.segments_in,
            "segments_out": self.segments_out,
            "written_bytes": self.bytes_written,
            "reduction": round(1 - stats.bytes_written / stats.bytes_read, 4) if stats.bytes_read else 0.0,
            "tombstones_kept": stats.tombstones_kept,
            "first_dirty_offset": self.first_dirty_offset,
            **failed,
        }


def clean_partition(
    storage: Storage,
    settings: CleanerSettings,
    number: int,
    target: int,
    *,
    clean_round: CleanRound = ONE_TASK,
    cleans_again: bool = False,
) -> PartitionResult:
    """Cleans a partition up to offset `target`, in as many rounds as the map's memory asks for. `cleans_again`: in one
    round if it is clean up to there, for tombstones whose time has come.

    A round follows the topic's configuration at the moment when the round begins. It is committed only if the
    configuration at the commit allows the same. No SegmentsError is raised: it is the result's `error`, and the rounds
    before it stand.
    """
    result = PartitionResult(number)
    try:
        _clean_rounds(storage, settings, target, clean_round, result, cleans_again)
    except UnknownTopicError:  # it was deleted meanwhile
        result.lost = True
    except (SegmentsError, FileNotFoundError) as error:
        result.error = failure_of(error)
    return result


def _clean_rounds(
    storage: Storage,
    settings: CleanerSettings,
    target: int,
    clean_round: CleanRound,
    result: PartitionResult,
    cleans_again: bool,
) -> None:
    """Does round after round, and counts each in `result` once it is committed."""
    number = result.partition
    manifest = Manifest(storage, settings.topic, settings.open_delta_log, settings.defaults)
    while True:
        # Read for each round: hours may lie between two, and other jobs commit meanwhile.
        snapshot = manifest.snapshot().narrowed({number})
        config = topic_config(snapshot.config, settings.defaults)
        if snapshot.topic_id != settings.topic_id or not config.compact:
            result.lost = True
            return
        row = snapshot.partition(number)
        # Retention may have passed what was cleaned: below the log start nothing is left to clean.
        first_dirty = max(row.first_dirty_offset, row.log_start_offset)
        # Never above the target: records that came since the plan would keep the job at a busy partition without end.
        bound = min(target, _first_uncleanable(snapshot, config, settings, number))
        result.first_dirty_offset = first_dirty
        if first_dirty > bound or (first_dirty == bound and not cleans_again):
            return
        work = RoundPlan(settings, config, row, snapshot.live_of(number), first_dirty, bound)
        done = clean_round(storage, work)
        if settings.counts_only:  # what a further round would do rests on what this one would have written
            result.add(done)
            return
        if first_dirty == bound and _changes_nothing(snapshot, work, done):
            return
        if not _commit(storage, manifest, work, done):
            result.lost = True
            return
        result.add(done)
        if done.end_offset >= bound:
            return


def _changes_nothing(snapshot: Snapshot, work: RoundPlan, done: RoundResult) -> bool:
    """Whether the tombstones of a round stay: another partition has older values, or their own time has not come. A
    commit that changed nothing would be made again by each run.
    """
    return (
        not any(group.outputs for group in done.groups) and _row(snapshot, work, work.first_uncleanable_offset) is None
    )


def _first_uncleanable(snapshot: Snapshot, config: TopicConfig, settings: CleanerSettings, number: int) -> int:
    live = snapshot.live_table(number)
    plan = plan_compaction(live, snapshot.partitions, config, settings.now_ms, force=True)
    return plan[0].first_uncleanable_offset if plan else 0


def _commit(storage: Storage, manifest: Manifest, work: RoundPlan, done: RoundResult) -> bool:
    """Commits a round. False if the round does not hold any more."""

    def change(current: Snapshot) -> Change | None:
        current = current.narrowed({work.partition.partition})
        if current.topic_id != work.settings.topic_id or not _allowed(current, work, done.end_offset):
            return None
        return _change(current, work, done.groups, done.end_offset, storage.now_ms())

    return manifest.commit(change).change is not None


def _allowed(current: Snapshot, work: RoundPlan, end_offset: int) -> bool:
    """Whether the round may be committed under the topic's present configuration, which may have been altered
    meanwhile.

    The topic must still be compacted. min.compaction.lag.ms must protect nothing that was cleaned. Tombstones must not
    have to stay for longer than the delete horizons say that the round has set.
    """
    config = topic_config(current.config, work.settings.defaults)
    if not config.compact or config.delete_retention_ms > work.config.delete_retention_ms:
        return False
    if config.min_compaction_lag_ms <= work.config.min_compaction_lag_ms:
        return True
    number = work.partition.partition
    start = current.partition(number).log_start_offset
    # Below the log start no record is left that the lag could protect: retention went on meanwhile.
    return end_offset <= max(start, _first_uncleanable(current, config, work.settings, number))


def _change(
    current: Snapshot, work: RoundPlan, done: Sequence[RewrittenGroup], end_offset: int, removed_ms: int
) -> Change | None:
    """The commit of a round. None if the round does not hold: another cleaner was quicker, or a restore brought records
    back that the round has not read.

    Segments that retention took meanwhile do not undo the round: their output is clipped, or left out.
    """
    row = work.partition
    now = current.partition(row.partition)
    live = {segment.identity: segment for segment in current.live_of(row.partition)}
    if not _has_read_all(now, row, live, done, end_offset):
        return None
    segments = _swapped(live, done, now.log_start_offset, removed_ms)
    if segments is None:
        return None
    added, removed = segments
    # A first dirty offset below the log start would say that records are dirty which are gone.
    moved = dataclasses.replace(now, first_dirty_offset=max(end_offset, now.log_start_offset))
    return Change(
        Operation.COMPACT,
        add=added,
        replace=removed,
        partitions=[moved],
        topic=_row(current, work, end_offset),
        thinned={row.partition: end_offset},
    )


def _has_read_all(
    now: Partition,
    row: Partition,
    live: Mapping[Identity, Segment],
    done: Sequence[RewrittenGroup],
    end_offset: int,
) -> bool:
    """Whether a round that was planned by `row` has read all that lies below its end `now`."""
    start = now.log_start_offset
    # Another cleaner has come further, or not so far: its map and this one's did not see the same records.
    if max(now.first_dirty_offset, start) != max(row.first_dirty_offset, start):
        return False
    # The round may drop a tombstone only if it has read every older value of the key. A restore brings such values
    # back: the log start falls, or segments appear. A last stable offset that falls opens transactions again.
    if start < row.log_start_offset or now.last_stable_offset < end_offset:
        return False
    read = {segment.identity for group in done for segment in group.inputs}
    return not any(segment.base_offset < end_offset and segment.identity not in read for segment in live.values())


def _swapped(
    live: Mapping[Identity, Segment], done: Sequence[RewrittenGroup], start: int, removed_ms: int
) -> tuple[list[Segment], list[Segment]] | None:
    """(the rows that a round adds, the rows that it removes) in a log from `start` on; None where a segment that it has
    read is gone, and not by retention.
    """
    added: list[Segment] = []
    removed: list[Segment] = []
    for group in done:
        missing = not_as_read(live, group.inputs)
        if any(segment.next_offset > start or segment.identity in live for segment in missing):
            return None
        # What retention took is clipped off the output: else the round would bring records back that have expired.
        inputs, outputs = group.after(missing[-1].next_offset if missing else group.inputs[0].base_offset)
        if outputs:
            added += outputs
            removed += [segment.removed(removed_ms) for segment in inputs]
    return added, removed


def _row(current: Snapshot, work: RoundPlan, end_offset: int) -> TopicRow | None:
    """The topic's row after a round; None if it stays."""
    retention_ms = work.config.delete_retention_ms
    return ErasedTombstones.topic_row_after_cleaning(
        current, work.partition.partition, end_offset, work.settings.now_ms, retention_ms
    )
