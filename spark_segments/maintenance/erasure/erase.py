"""The erasure job: records of given keys leave a topic, and no other record does.

A compacted topic first gets a tombstone of each key that has a value, so that readers of the topic learn of it; all
older records of the key go. From other topics all records of the keys go. Each partition is one commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import CommitConflictError, InvalidOptionError
from spark_segments.execution import run_tasks
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.manifest import Change
from spark_segments.log.manifest.rows import REMOVED, Segment, partitions_of, row_keys, segments_of, segments_table
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.erasure.rewrite import ErasedSegment, EraseFromSegment, discard_erased
from spark_segments.maintenance.erasure.search import KeyRecords, search
from spark_segments.maintenance.removal.vacuum import claimed_rows, vacuum
from spark_segments.maintenance.report import Report, first_and_last
from spark_segments.maintenance.selection import check_commit_age, check_managed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
Place = tuple[str, int, int, int, int]

MOST_KEYS = 100_000
MOST_ROUNDS = 20
"""How often other jobs may replace segments while this one works."""


@dataclass(slots=True)
class _Erasure:
    """An erasure under way. `ends`: by partition, {key: records of the key below this offset go}.

    `found`: what the search found, by row and offsets: files never change, so no file is read twice.
    """

    log: LogDir
    topic: str
    topic_id: str
    keys: Sequence[bytes]
    spark: SparkSession | None
    progress: Progress | None
    found: dict[Place, tuple[KeyRecords, ...]] = field(default_factory=dict)
    ends: dict[int, dict[bytes, int]] = field(default_factory=dict)

    def search(self, segments: Iterable[Segment]) -> None:
        """Looks into the files that were not looked into before."""
        new = [segment for segment in segments if _place(segment) not in self.found]
        results = search(self.log.storage, self.topic, self.keys, new, self.spark, progress=self.progress)
        self.found.update(zip(map(_place, new), results, strict=True))

    def to_rewrite(self, segments: Iterable[Segment]) -> list[Segment]:
        """The segments whose files have records that are to go."""
        return [
            segment
            for segment in segments
            if any(
                one.outside or 0 <= one.first_offset < self.ends[segment.partition][self.keys[one.key]]
                for one in self.found[_place(segment)]
            )
        ]


def erase(
    log: LogDir,
    topic: str,
    keys: Sequence[bytes],
    spark: SparkSession | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    *,
    history: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Erases the records of `keys` from a topic: from sealed segments and from chunks, wherever they are.

    No record of another key is lost, and every other record keeps its offset. A repeat finds nothing to do. Records
    that are appended to the keys afterwards stay. The files without the records are new files; the old ones leave the
    log, and the next vacuum after file.delete.delay.ms deletes them. Until then readers of earlier versions find the
    records. With `history` they do not: the files of earlier versions that have the keys are deleted at once, by a
    vacuum, and reads of these versions fail.

    In a compacted topic the tombstones stay, and with them the keys, until compaction removes them after
    delete.retention.ms. The search reads every segment. Raises UnknownTopicError, LogDirError for a directory of
    Kafka's, InvalidOptionError for no keys or too many, CorruptBatchError for damaged bytes, CommitConflictError where
    other jobs replace segments again and again. Partitions that were committed before an error stay erased.
    """
    check_managed(log)
    keys = list(dict.fromkeys(keys))
    if not 0 < len(keys) <= MOST_KEYS:
        raise InvalidOptionError("Which keys?", expected=f"1 to {MOST_KEYS:,} keys", found=len(keys))
    report = Report("erase", dry_run)
    snapshot = log.snapshot(topic)
    work = _Erasure(log, topic, snapshot.topic_id, keys, spark, progress)
    work.search(segments_of(snapshot.live))
    compacted = topic_config(snapshot.config, log.defaults).compact
    wanting = _plan(work, snapshot, compacted=compacted)
    if dry_run:
        _note_plan(report, work, snapshot, wanting, history=history)
        return report.finish()
    if wanting:
        _append_tombstones(work, wanting, now_ms)
    tombstones: dict[int, int] = defaultdict(int)
    for partition, _ in wanting:
        tombstones[partition] += 1
    for _ in range(MOST_ROUNDS):
        snapshot = _same_topic(work)
        work.search(segments_of(snapshot.live))
        left = work.to_rewrite(segments_of(snapshot.live))
        if not left:
            break
        _rewrite(work, snapshot, left, report, tombstones)
    else:
        raise CommitConflictError(
            f"Other jobs replaced segments of {topic} in each of {MOST_ROUNDS} rounds",
            hint="Run it again when no roll or compaction runs",
        )
    if history:
        _delete_history(work, report, now_ms)
    return report.finish()


def _plan(work: _Erasure, snapshot: Snapshot, *, compacted: bool) -> list[tuple[int, bytes]]:
    """Sets `work.ends`. Returns the (partition, key) pairs that want a tombstone, whose ends are still to be set."""
    bounds = offset_bounds(snapshot)
    work.ends = {number: dict.fromkeys(work.keys, end) for number, (_, end) in bounds.items()}
    if not compacted:
        return []
    newest: dict[tuple[int, int], KeyRecords] = {}
    for segment in segments_of(snapshot.live):
        for one in work.found[_place(segment)]:
            if one.last_offset >= bounds[segment.partition][0]:
                newest[segment.partition, one.key] = one  # segments come in the order of their offsets
    wanting = []
    for (partition, number), one in newest.items():
        if one.last_is_tombstone:
            work.ends[partition][work.keys[number]] = one.last_offset
        else:
            wanting.append((partition, work.keys[number]))
    return wanting


def _append_tombstones(work: _Erasure, wanting: Sequence[tuple[int, bytes]], now_ms: int | None) -> None:
    """Appends the tombstones, all in one commit. Their offsets end what is erased."""
    ordered = sorted(wanting)
    now_ms = work.log.storage.now_ms() if now_ms is None else now_ms
    rows = pa.table(
        {
            "key": pa.array([key for _, key in ordered], pa.binary()),
            "value": pa.nulls(len(ordered), pa.binary()),
            "partition": pa.array([partition for partition, _ in ordered], pa.int32()),
            "timestamp": pa.array([now_ms] * len(ordered), pa.timestamp("ms", "UTC")),
        }
    )
    given = work.log.append(work.topic, rows)
    next_offsets = {partition: first for partition, (first, _) in given.items()}
    for partition, key in ordered:
        work.ends[partition][key] = next_offsets[partition]
        next_offsets[partition] += 1
    assert all(next_offsets[partition] == last + 1 for partition, (_, last) in given.items())


def _same_topic(work: _Erasure) -> Snapshot:
    snapshot = work.log.snapshot(work.topic)
    if snapshot.topic_id != work.topic_id:
        raise CommitConflictError(
            f"Topic {work.topic} was deleted and made again meanwhile",
            expected=f"topic id {work.topic_id}",
            found=snapshot.topic_id,
            hint="Run it again for the new topic; the files of the old topic go with vacuum",
        )
    return snapshot


def _rewrite(
    work: _Erasure, snapshot: Snapshot, segments: Sequence[Segment], report: Report, tombstones: dict[int, int]
) -> None:
    """Rewrites segments, and commits partition by partition. What another job has replaced meanwhile stays to do."""
    storage = work.log.storage
    started_ms = storage.now_ms()
    partitions = snapshot.partitions
    epochs = {row.partition: LeaderEpochs.of(row) for row in partitions_of(partitions)}
    config = topic_config(snapshot.config, work.log.defaults)
    function = EraseFromSegment(storage, work.topic, config, epochs)
    tasks = [(segment, work.ends[segment.partition]) for segment in segments]
    results = run_tasks(function, tasks, work.spark, progress=work.progress)
    by_partition: dict[int, list[ErasedSegment]] = defaultdict(list)
    for result in results:
        by_partition[result.source.partition].append(result)
    for partition, done in sorted(by_partition.items()):
        committed = _commit(work, partition, done, started_ms)
        discard_erased(storage, [one for one in done if one not in committed])
        if committed:
            _note(report, work, partition, committed, tombstones.pop(partition, 0))


def _commit(work: _Erasure, partition: int, done: Sequence[ErasedSegment], started_ms: int) -> list[ErasedSegment]:
    """Puts the new segments into the log. Returns those whose old segments were still there as they were read."""
    storage = work.log.storage
    held: list[ErasedSegment] = []

    def change(current: Snapshot) -> Change | None:
        check_commit_age(storage, started_ms)
        live = {segment.identity: segment for segment in current.live_of(partition)}
        same = current.topic_id == work.topic_id
        held[:] = [one for one in done if same and live.get(one.source.identity) == one.source]
        if not held:
            return None
        removed_ms = storage.now_ms()
        return Change(
            "erase",
            add=[segment for one in held for segment in one.outputs],
            replace=[one.source.removed(removed_ms) for one in held],
        )

    work.log.manifest(work.topic).commit(change)
    return held


def _delete_history(work: _Erasure, report: Report, now_ms: int | None) -> None:
    """Deletes the removed files that have the keys, whoever may still read them."""
    snapshot = _same_topic(work)
    removed = segments_of(_waiting(snapshot))
    work.search(removed)
    having = row_keys(segments_table([one for one in removed if work.found[_place(one)]])).combine_chunks()

    def change(current: Snapshot) -> Change | None:
        waiting = _waiting(current)
        rows = waiting.filter(pc.is_in(row_keys(waiting), value_set=having))
        return Change("erase", replace=claimed_rows(rows)) if rows.num_rows else None

    if len(having):
        work.log.manifest(work.topic).commit(change)
    done = vacuum(work.log, work.spark, work.topic, now_ms)
    report.figures["history_segments"] = len(having)
    for line in done.failed:
        report.partitions.append(line)


def _waiting(snapshot: Snapshot) -> pa.Table:
    """Removed rows that no vacuum has begun to delete."""
    return snapshot.segments.filter(pc.equal(snapshot.segments.column("state"), REMOVED))


def _place(segment: Segment) -> Place:
    return *segment.identity, segment.base_offset, segment.next_offset


def _note(report: Report, work: _Erasure, partition: int, done: Sequence[ErasedSegment], tombstones: int) -> None:
    erased = sum(one.stats.superseded for one in done)
    read = sum(one.stats.records_read for one in done)
    report.add(
        work.topic,
        partition,
        "erase",
        records_in=read,
        records_out=read - erased,
        bytes_in=sum(one.source.log_bytes for one in done),
        bytes_out=sum(segment.log_bytes for one in done for segment in one.outputs),
        dropped={"erased": erased} if erased else {},
        segments=len(done),
        tombstones_appended=tombstones,
    )


def _note_plan(
    report: Report, work: _Erasure, snapshot: Snapshot, wanting: Sequence[tuple[int, bytes]], *, history: bool
) -> None:
    for partition, key in wanting:  # their tombstones would come at the log end
        work.ends[partition][key] = snapshot.partition(partition).log_end_offset
    segments: Mapping[int, list[Segment]] = defaultdict(list)
    for segment in work.to_rewrite(segments_of(snapshot.live)):
        segments[segment.partition].append(segment)
    for partition, mine in sorted(segments.items()):
        records = sum(segment.records for segment in mine)
        report.add(
            work.topic,
            partition,
            "erase",
            records_in=records,
            records_out=records,
            bytes_in=sum(segment.log_bytes for segment in mine),
            bytes_out=sum(segment.log_bytes for segment in mine),
            segments=len(mine),
            base_offsets=first_and_last([segment.base_offset for segment in mine]),
            records_to_erase=sum(_below(work, segment) for segment in mine),
            tombstones_to_append=sum(1 for number, _ in wanting if number == partition),
        )
    if history:
        removed = segments_of(_waiting(snapshot))
        work.search(removed)
        report.figures["history_segments"] = sum(1 for one in removed if work.found[_place(one)])


def _below(work: _Erasure, segment: Segment) -> int:
    """Records of the keys in the segment that are to go. The tombstone that ends a key's records is its last."""
    count = 0
    for one in work.found[_place(segment)]:
        end = work.ends[segment.partition][work.keys[one.key]]
        count += one.records - (one.last_offset >= end)
    return count
