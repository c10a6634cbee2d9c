"""The erasure job: records of given keys leave a topic, and no other record does.

A compacted topic first gets a tombstone of each key that has a value, so that readers of the topic learn of it; all
older records of the key go. From other topics all records of the keys go. Each partition is one commit. A last commit
moves the other runs out of shared objects that had the keys, so that vacuum can delete these objects.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import CommitConflictError, InvalidOptionError
from spark_segments.execution import run_tasks
from spark_segments.log.appending.append import append
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG, Partition, Segment
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import Erasure
from spark_segments.log.manifest.swap import RowSwap
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.report import Report, first_and_last
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.erasure.search import (
    ErasedSegment,
    KeyRecords,
    copied_out,
    discard_erased,
    erase_from_segment,
    search,
    unnamed_runs,
)
from spark_segments.maintenance.removal.vacuum import all_rows, claimed_rows, vacuum
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
Place = tuple[str, int, int, int, int]

MOST_KEYS = 100_000
MOST_ROUNDS = 20
"""How often other jobs may replace segments while this one works."""


@dataclass(slots=True)
class _Erasure:
    """An erasure under way. `ends`: by partition, {key: records of the key below this offset go}.

    `found`: what the search found, by row and offsets: files never change, so no file is read twice.
    """

    log: LogDirectory
    topic: str
    keys: Sequence[bytes]
    spark: SparkSession | None
    progress: Progress | None
    found: dict[Place, tuple[KeyRecords, ...]] = field(default_factory=dict)
    ends: dict[int, dict[bytes, int]] = field(default_factory=dict)
    topic_id: str = ""
    erasure_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def topic_row(self, current: Snapshot, *, history: bool) -> TopicRow:
        """The topic's row with this erasure, for a commit on top of `current`."""
        now_ms = self.log.storage.now_ms()
        return Erasure.added(current, Erasure(self.erasure_id, -1, now_ms, len(self.keys), history))

    def search(self, segments: Iterable[Segment]) -> None:
        """Looks into the files that were not looked into before."""
        new = [segment for segment in segments if _place(segment) not in self.found]
        results = search(self.log.storage, self.topic, self.keys, new, self.spark, progress=self.progress)
        self.found.update(zip(map(_place, new), results, strict=True))

    def to_do(self, snapshot: Snapshot) -> tuple[list[Segment], list[Segment]]:
        """(the live segments that have records that are to go, live runs without such records to be copied out of
        shared objects that have the keys in other runs, in the log or out of it)
        """
        live = Segment.of_table(snapshot.live)
        self.search(live)
        objects = {segment.path for segment in live if segment.is_shared}
        rows = all_rows(snapshot)
        out = Segment.of_table(rows.filter(pc.is_in(rows.column("state"), pa.array(OUT_OF_LOG, pa.string()))))
        gone = [segment for segment in out if segment.path in objects]
        holding = self._to_rewrite(live)
        emptied = {segment.path for segment in holding if segment.is_shared}
        emptied |= self.paths_with_keys(gone, [segment for segment in live if segment.is_shared])
        rewritten = {segment.identity for segment in holding}
        return holding, [one for one in live if one.path in emptied and one.identity not in rewritten]

    def paths_with_keys(self, out: Sequence[Segment], live: Sequence[Segment] = ()) -> set[str]:
        """The files that have records of the keys in rows out of the log, or in runs that no row names any more.

        `out` and `live`: all rows of these files.
        """
        gone = [*out, *unnamed_runs(self.log.storage, [*out, *live], self.spark)]
        self.search(gone)
        return {segment.path for segment in gone if self.found[_place(segment)]}

    def _to_rewrite(self, segments: Iterable[Segment]) -> list[Segment]:
        """The segments whose bytes have records that are to go."""
        return [
            segment
            for segment in segments
            if any(
                one.outside or 0 <= one.first_offset < self.ends[segment.partition][self.keys[one.key]]
                for one in self.found[_place(segment)]
            )
        ]


def erase(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: int | None = None,
    keys: Sequence[bytes],
    history: bool = False,
) -> Report:
    """Erases the records of `keys` from the topics: from sealed segments and from chunks, wherever they are.

    No record of another key is lost, and every other record keeps its offset. A repeat finds nothing to do. Records
    that are appended to the keys afterwards stay. The files without the records are new files; the old ones leave the
    log, and the next vacuum after file.delete.delay.ms deletes them. If a shared object has the keys, all its runs
    leave it: those of other partitions are copied. Until vacuum readers of earlier versions find the records. With
    `history` they do not: the files of earlier versions that have the keys, those of deleted topics of this name
    included, are deleted at once, by a vacuum, and reads of these versions fail. The topic may be a deleted one then.

    In a compacted topic the tombstones stay, and with them the keys, until compaction removes them after
    delete.retention.ms. The search reads every segment. Raises UnknownTopicError, LogDirError for a directory of
    Kafka's, NotLeaderError for a follower, InvalidOptionError without topics, for no keys or too many,
    CorruptBatchError for damaged bytes, CommitConflictError where other jobs replace segments again and again.
    Partitions that were committed before an error stay erased.
    """
    log.check_writable()
    keys = list(dict.fromkeys(keys))
    if not 0 < len(keys) <= MOST_KEYS:
        raise InvalidOptionError("Which keys?", expected=f"1 to {MOST_KEYS:,} keys", found=len(keys))
    if topics is None:
        raise InvalidOptionError("Which topics?", expected="names or patterns of topics", found="none")
    report = Report(Operation.ERASE, dry_run)
    for topic in LogDirectory.selected(log.directories(), topics):
        _erase_topic(report, _Erasure(log, topic, keys, spark, progress), now_ms, history=history)
    return report.finish()


def _erase_topic(report: Report, work: _Erasure, now_ms: int | None, *, history: bool) -> None:
    log, topic = work.log, work.topic
    snapshot = log.manifest(topic).snapshot(deleted=history)
    snapshot.role.check(topic, report.job)
    work.topic_id = snapshot.topic_id
    work.search(Segment.of_table(snapshot.live))
    compacted = topic_config(snapshot.config, log.defaults).compact
    wanting = _plan(work, snapshot, compacted=compacted)
    if report.dry_run:
        _note_plan(report, work, snapshot, wanting, history=history)
        return
    if wanting:
        _append_tombstones(work, wanting, now_ms)
    tombstones: dict[int, int] = defaultdict(int)
    for partition, _ in wanting:
        tombstones[partition] += 1
    for _ in range(MOST_ROUNDS):
        snapshot = _same_topic(work, deleted=history)
        holding, beside = work.to_do(snapshot)
        if not holding and not beside:
            break
        _rewrite(work, snapshot, holding, beside, report, tombstones)
    else:
        raise CommitConflictError(
            f"Other jobs replaced segments of {topic} in each of {MOST_ROUNDS} rounds",
            hint="Run it again when no roll or compaction runs",
        )
    if history:
        _delete_history(work, report, now_ms)


def _plan(work: _Erasure, snapshot: Snapshot, *, compacted: bool) -> list[tuple[int, bytes]]:
    """Sets `work.ends`. Returns the (partition, key) pairs that want a tombstone, whose ends are still to be set."""
    bounds = snapshot.offset_bounds()
    work.ends = {number: dict.fromkeys(work.keys, end) for number, (_, end) in bounds.items()}
    if not compacted:
        return []
    newest: dict[tuple[int, int], KeyRecords] = {}
    for segment in Segment.of_table(snapshot.live):
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
    given = append(work.log, work.topic, rows)
    next_offsets = {partition: first for partition, (first, _) in given.items()}
    for partition, key in ordered:
        work.ends[partition][key] = next_offsets[partition]
        next_offsets[partition] += 1
    assert all(next_offsets[partition] == last + 1 for partition, (_, last) in given.items())


def _same_topic(work: _Erasure, *, deleted: bool) -> Snapshot:
    snapshot = work.log.manifest(work.topic).snapshot(deleted=deleted)
    if snapshot.topic_id != work.topic_id:
        raise CommitConflictError(
            f"Topic {work.topic} was deleted and made again meanwhile",
            expected=f"topic id {work.topic_id}",
            found=snapshot.topic_id,
            hint="Run it again for the new topic; the files of the old topic go with vacuum",
        )
    return snapshot


def _rewrite(
    work: _Erasure,
    snapshot: Snapshot,
    holding: Sequence[Segment],
    beside: Sequence[Segment],
    report: Report,
    tombstones: dict[int, int],
) -> None:
    """Rewrites segments, partition by partition, then copies runs. What another job has replaced meanwhile stays."""
    storage = work.log.storage
    epochs = {row.partition: LeaderEpochs.of(row) for row in Partition.of_table(snapshot.partitions)}
    config = topic_config(snapshot.config, work.log.defaults)
    function = partial(erase_from_segment, storage, work.topic, config, epochs)
    tasks = [(segment, work.ends[segment.partition]) for segment in holding]
    for partition, done in _by_partition(run_tasks(function, tasks, work.spark, progress=work.progress)):
        if committed := _commit(work, done):
            _note(report, work, partition, "erase", committed, tombstones_appended=tombstones.pop(partition, 0))
    if beside:
        copies = copied_out(storage, work.topic, config, epochs, beside, work.spark, work.progress)
        # The runs of an object must come in one commit.
        for partition, done in _by_partition(_commit(work, copies)):
            _note(report, work, partition, "copy", done)


def _by_partition(done: Iterable[ErasedSegment]) -> list[tuple[int, list[ErasedSegment]]]:
    found: dict[int, list[ErasedSegment]] = defaultdict(list)
    for one in done:
        found[one.source.partition].append(one)
    return sorted(found.items())


def _commit(work: _Erasure, done: Sequence[ErasedSegment]) -> list[ErasedSegment]:
    """Puts the new segments into the log. Returns those whose old segments were still there as they were read, and
    discards the files of the others.
    """
    storage = work.log.storage
    swaps = {one.source.identity: RowSwap([one.source], one.outputs) for one in done}
    made = work.log.manifest(work.topic).swap_rows(
        Operation.ERASE,
        [*swaps.values()],
        topic_id=work.topic_id,
        topic=lambda current: work.topic_row(current, history=False),
    )
    kept = {swap.old[0].identity for swap in made}
    discard_erased(storage, [one for one in done if one.source.identity not in kept])
    return [one for one in done if one.source.identity in kept]


def _delete_history(work: _Erasure, report: Report, now_ms: int | None) -> None:
    """Deletes the removed files that have the keys, whoever may still read them."""
    paths = _history(work, _same_topic(work, deleted=True))

    def change(current: Snapshot) -> Change | None:
        waiting = _waiting(current)
        rows = waiting.filter(pc.is_in(waiting.column("path"), pa.array(sorted(paths), pa.string())))
        if not rows.num_rows:
            return None
        return Change(Operation.ERASE, replace=claimed_rows(rows), topic=work.topic_row(current, history=True))

    if paths:
        work.log.manifest(work.topic).commit(change, deleted=True)
    done = vacuum(work.log, topics=[work.topic], spark=work.spark, now_ms=now_ms)
    report.count(history_segments=len(paths))
    for line in done.failed:
        report.partitions.append(line)


def _history(work: _Erasure, snapshot: Snapshot) -> set[str]:
    """The removed files that have the keys. All rows that name such a shared object must go with it."""
    waiting = Segment.of_table(_waiting(snapshot))
    named = {segment.path for segment in waiting if segment.is_shared}
    others = [one for one in Segment.of_table(all_rows(snapshot)) if one.path in named and one.state != Segment.REMOVED]
    deleting, live = ([one for one in others if one.is_live == flag] for flag in (False, True))
    return work.paths_with_keys([*waiting, *deleting], live)


def _waiting(snapshot: Snapshot) -> pa.Table:
    """Removed rows that no vacuum has begun to delete, those of deleted topics of this name included."""
    rows = all_rows(snapshot)
    return rows.filter(pc.equal(rows.column("state"), Segment.REMOVED))


def _place(segment: Segment) -> Place:
    return *segment.identity, segment.base_offset, segment.next_offset


def _note(
    report: Report, work: _Erasure, partition: int, action: str, done: Sequence[ErasedSegment], **figures: int
) -> None:
    erased = sum(one.stats.superseded for one in done)
    read = sum(one.stats.records_read for one in done)
    report.add(
        work.topic,
        partition,
        action,
        records_in=read,
        records_out=read - erased,
        bytes_in=sum(one.source.log_bytes for one in done),
        bytes_out=sum(segment.log_bytes for one in done for segment in one.outputs),
        dropped={"erased": erased} if erased else {},
        segments=len(done),
        **figures,
    )


def _note_plan(
    report: Report, work: _Erasure, snapshot: Snapshot, wanting: Sequence[tuple[int, bytes]], *, history: bool
) -> None:
    for partition, key in wanting:  # their tombstones would come at the log end
        work.ends[partition][key] = snapshot.partition(partition).log_end_offset
    tombstones = Counter(partition for partition, _ in wanting)
    for action, segments in zip(("erase", "copy"), work.to_do(snapshot), strict=True):
        by_partition: dict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            by_partition[segment.partition].append(segment)
        for partition, mine in sorted(by_partition.items()):
            records = sum(segment.records for segment in mine)
            figures: dict[str, Any] = {
                "records_to_erase": sum(_below(work, segment) for segment in mine),
                "tombstones_to_append": tombstones[partition],
            }
            report.add(
                work.topic,
                partition,
                action,
                records_in=records,
                records_out=records,
                bytes_in=sum(segment.log_bytes for segment in mine),
                bytes_out=sum(segment.log_bytes for segment in mine),
                segments=len(mine),
                base_offsets=first_and_last([segment.base_offset for segment in mine]),
                **(figures if action == "erase" else {}),
            )
    if history:
        report.count(history_segments=len(_history(work, snapshot)))


def _below(work: _Erasure, segment: Segment) -> int:
    """Records of the keys in the segment that are to go. The tombstone that ends a key's records is its last."""
    count = 0
    for one in work.found[_place(segment)]:
        end = work.ends[segment.partition][work.keys[one.key]]
        count += one.records - (one.last_offset >= end)
    return count
