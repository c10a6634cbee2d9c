"""The erasure job: records of given keys leave a topic, and no other record does.

A compacted topic first gets a tombstone of each key that has a value, so that readers of the topic learn of it; all
older records of the key go. From other topics all records of the keys go. Each partition is one commit. A last commit
moves the other runs out of shared objects that had the keys, so that vacuum can delete these objects.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, InvalidOptionError, SegmentsError
from spark_segments.extensions import observed_job
from spark_segments.log.appending.append import append
from spark_segments.log.directory import LogDirectory
from spark_segments.log.eras import Eras
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.commit.swap import RowSwap
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import ErasedTombstones, Erasure
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.report import Report, first_and_last
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup, discard_groups
from spark_segments.maintenance.erasure.rewrite import EraseFromSegment
from spark_segments.maintenance.erasure.search import (
    KeyRecords,
    Place,
    place_of,
    places_without,
    search,
    search_figures,
    unnamed_runs,
)
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.removal.vacuum import all_rows, claimed_rows, vacuum
from spark_segments.progress import Progress
from spark_segments.quantities import Time, moment_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_KEYS = 100_000
MOST_ROUNDS = 20
"""How often other jobs may replace segments while this one works."""


@observed_job("erase")
def erase(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    keys: Sequence[bytes],
    history: bool = False,
) -> Report:
    """Erases the records of `keys` from the topics: from sealed segments and from chunks, wherever they are.

    No record of another key is lost, and every other record keeps its offset. A repeat finds nothing to do. Records
    that are appended to the keys afterwards stay. The files without the records are new files; the old ones leave the
    log, and the next vacuum after file.delete.delay.ms deletes them. If a shared object has the keys, all its runs
    leave it: runs of other partitions are copied. The keys leave the index of the topic's keys as well. Until vacuum
    readers of earlier versions find the records. With `history` they do not: a vacuum deletes at once the files of
    earlier versions that have the keys, also files of deleted topics of this name, and reads of these versions fail.
    The topic may be a deleted one then.

    In a compacted topic the tombstones stay, and with them the keys, until compaction removes them after
    delete.retention.ms. The search reads every segment, but for those in which the index of the topic's keys has none
    of the keys. The report's details say how many segments were read, and how many the index spared: `segments_read`,
    `segments_by_index`. Raises UnknownTopicError, LogDirError for a directory of
    Kafka's, NotLeaderError for a follower, InvalidOptionError without topics, for no keys or too many,
    CorruptBatchError for damaged bytes, SegmentsError for records of the keys in a partition that the topic does not
    have, CommitConflictError where other jobs replace segments again and again.
    Partitions that were committed before an error stay erased.
    """
    job = Job.of(Operation.ERASE, log, topics, spark, dry_run, progress)
    keys = list(dict.fromkeys(keys))
    if not 0 < len(keys) <= MOST_KEYS:
        raise InvalidOptionError("Which keys?", expected=f"1 to {MOST_KEYS:,} keys", found=len(keys))
    if topics is None:
        raise InvalidOptionError("Which topics?", expected="names or patterns of topics", found="none")
    at_ms = None if now_ms is None else moment_ms(now_ms)
    for topic in job.names():
        _Erasure(job, topic, keys, at_ms, history).run()
    return job.report.finish()


@dataclass(slots=True)
class _Erasure:
    """An erasure under way. `ends`: by partition, {key: records of the key below this offset go}.

    `records`: what the search found, by row and offsets: files never change, so no file is read twice. `is_committed`:
    whether a commit of this run says that the topic has the erasure.
    """

    job: Job
    topic: str
    keys: Sequence[bytes]
    now_ms: int | None
    history: bool
    records: dict[Place, tuple[KeyRecords, ...]] = field(default_factory=dict)
    ends: dict[int, dict[bytes, int]] = field(default_factory=dict)
    topic_id: str = ""
    is_committed: bool = False
    erasure_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> None:
        """Plans, writes and commits, until nothing is left to do."""
        job = self.job
        report = self.job.report
        snapshot = job.log.manifest(self.topic).snapshot(deleted=self.history)
        snapshot.check_role(report.job)
        self.topic_id = snapshot.topic_id
        # Which records go is decided here, once. With the log end of a later round, records of the keys that came
        # meanwhile would go, too.
        wanting = self._plan(snapshot)
        tombstones = Counter(partition for partition, _ in wanting)
        if job.dry_run:
            for partition, key in wanting:  # their tombstones would come at the log end
                self.ends[partition][key] = snapshot.partition(partition).log_end_offset
            for line in self._planned_lines(snapshot, tombstones):
                report.add(self.topic, **line)
            if self.history:
                report.count(history_segments=len(self._paths_of_history(snapshot)))
            return
        if wanting:
            self._append_tombstones(wanting)
        # A round that another job overtakes loses only the segments that this job replaced. The next one looks again.
        for _ in range(MOST_ROUNDS):
            snapshot = self._same_topic()
            holding, beside = self._to_do(snapshot)
            if not holding and not beside:
                break
            self._rewrite(snapshot, holding, beside, tombstones)
        else:
            raise CommitConflictError(
                f"Other jobs replaced segments of {self.topic} in each of {MOST_ROUNDS} rounds",
                hint="Run it again when no roll or compaction runs",
            )
        # A hash of a key is personal data, too. Asked of each run, also of one that has nothing else to do: the run
        # before it may have been killed here.
        try:
            self._note_for_followers()
            job.log.key_offsets.forget_erased(self.topic, keys=self.keys, at_once=self.history)
        finally:  # an index that cannot forget does not keep the records
            if self.history:
                self._delete_history()

    def _note_for_followers(self) -> None:
        """Commits that the topic has this erasure, where nothing was left to erase but entries of the index: an index
        of a follower, to which no key is told, may have them as well.
        """

        def change(current: Snapshot) -> Change | None:
            if current.topic_id != self.topic_id:  # it was deleted and made again, and has had no such erasure
                return None
            return Change(Operation.ERASE, topic=self._topic_row(current, history=self.history))

        log = self.job.log
        if self.is_committed or not log.is_there(self.topic):
            return
        tombstones = {partition: {*ends.values()} for partition, ends in self.ends.items()}
        if log.key_offsets.has_keys(self.topic, self.keys, besides=tombstones):
            log.manifest(self.topic).commit(change)

    # Plan

    def _plan(self, snapshot: Snapshot) -> list[tuple[int, bytes]]:
        """Sets `ends`. Returns the (partition, key) pairs that want a tombstone, whose ends are still to be set."""
        live = Segment.of_table(snapshot.live)
        self._search(live, snapshot)
        bounds = snapshot.offset_bounds()
        self.ends = {number: dict.fromkeys(self.keys, end) for number, (_, end) in bounds.items()}
        strangers = [segment for segment in live if segment.partition not in bounds]
        if strangers:  # raises before tombstones are appended
            self._to_do(snapshot)
        if not self.job.config(snapshot).compact:
            return []
        # A key whose newest record is a tombstone already needs no other one: each repeat of an erasure would append
        # one.
        newest: dict[tuple[int, int], KeyRecords] = {}
        for segment in live:
            for match in self.records[place_of(segment)]:
                # A segment may begin below the log start. What lies there has left the log, and needs no tombstone.
                if match.last_offset >= bounds[segment.partition][0]:
                    newest[segment.partition, match.key] = match  # segments come in the order of their offsets
        wanting = []
        for (partition, number), match in newest.items():
            if match.last_is_tombstone:
                self.ends[partition][self.keys[number]] = match.last_offset
            else:
                wanting.append((partition, self.keys[number]))
        return wanting

    def _search(self, segments: Iterable[Segment], snapshot: Snapshot | None = None) -> None:
        """Looks into the files that were not looked into before. `snapshot`: has the live segments among them, which
        the index may spare.
        """
        job = self.job
        new = [segment for segment in segments if place_of(segment) not in self.records]
        without: Collection[Place] = frozenset()
        if snapshot is not None and new:
            without = places_without(job.log.key_offsets, snapshot, new, self.keys)
        searched = search(job.storage, self.topic, self.keys, new, job.spark, progress=job.progress, without=without)
        self.records.update((place_of(row), result.records) for row, result in zip(new, searched, strict=True))
        job.report.count(**search_figures(searched))

    def _to_do(self, snapshot: Snapshot) -> tuple[list[Segment], list[Segment]]:
        """(the live segments that have records that are to go, live runs without such records to be copied out of
        shared objects that have the keys in other runs, in the log or out of it)
        """
        live = Segment.of_table(snapshot.live)
        self._search(live, snapshot)
        for number in snapshot.offset_bounds():  # a partition that came meanwhile has no record that is to go
            self.ends.setdefault(number, dict.fromkeys(self.keys, 0))
        objects = {segment.path for segment in live if segment.is_shared}
        rows = all_rows(snapshot)
        out = Segment.of_table(row_tables.in_states(rows, *OUT_OF_LOG))
        gone = [segment for segment in out if segment.path in objects]
        holding = [segment for segment in live if self._has_any(segment)]
        emptied = {segment.path for segment in holding if segment.is_shared}
        emptied |= self._paths_with_keys(gone, [segment for segment in live if segment.is_shared])
        rewritten = {segment.identity for segment in holding}
        beside = [row for row in live if row.path in emptied and row.identity not in rewritten]
        self._check_partitions([*holding, *beside])
        return holding, beside

    def _check_partitions(self, segments: Iterable[Segment]) -> None:
        """Raises SegmentsError for a segment to be written of a partition that the topic does not have."""
        for segment in segments:
            if segment.partition not in self.ends:
                raise SegmentsError(
                    f"A file with records of the keys is in partition {segment.partition} of topic {self.topic}, which "
                    "has no such partition: nothing can take its place",
                    path=segment.path,
                    expected=f"a partition among {sorted(self.ends)[:20]}",
                    found=segment.partition,
                    hint="segments verify finds such rows, and topic restore goes back to a version without them",
                )

    def _has_any(self, segment: Segment) -> bool:
        """Whether the segment's bytes have records that are to go."""
        matches = self.records[place_of(segment)]
        return any(match.outside or 0 <= match.first_offset < self._end(segment, match) for match in matches)

    def _end(self, segment: Segment, match: KeyRecords) -> int:
        """The offset below which the records of a key go: all go from a partition that the topic does not have."""
        ends = self.ends.get(segment.partition, {})
        return ends.get(self.keys[match.key], segment.next_offset)

    def _paths_with_keys(self, out: Sequence[Segment], live: Sequence[Segment] = ()) -> set[str]:
        """The files that have records of the keys in rows out of the log, or in runs that no row names any more.

        `out` and `live`: all rows of these files.
        """
        gone = [*out, *unnamed_runs(self.job.storage, [*out, *live], self.job.spark)]
        self._search(gone)
        return {segment.path for segment in gone if self.records[place_of(segment)]}

    def _planned_lines(self, snapshot: Snapshot, tombstones: Counter[int]) -> Iterator[dict[str, Any]]:
        """The lines in the report of a dry run."""
        for action, segments in zip(("erase", "copy"), self._to_do(snapshot), strict=True):
            for partition, rows in itertools.groupby(segments, lambda row: row.partition):
                mine = list(rows)
                records, log_bytes = (sum(getattr(row, name) for row in mine) for name in ("records", "log_bytes"))
                erased = sum(map(self._count, mine)) if action == "erase" else 0
                figures = {"records_to_erase": erased, "tombstones_to_append": tombstones[partition]}
                yield {
                    "partition": partition,
                    "action": action,
                    "records_in": records,
                    "records_out": records - erased,
                    "bytes_in": log_bytes,
                    "bytes_out": log_bytes,  # only the rewrite knows
                    "dropped": {"erased": erased} if erased else {},
                    "segments": len(mine),
                    "base_offsets": first_and_last([segment.base_offset for segment in mine]),
                } | (figures if action == "erase" else {})

    def _count(self, segment: Segment) -> int:
        """Records of the keys in the segment that are to go. The tombstone that ends a key's records is its last."""
        matches = self.records[place_of(segment)]
        return sum(match.records - (match.last_offset >= self._end(segment, match)) for match in matches)

    # Execute

    def _append_tombstones(self, wanting: Sequence[tuple[int, bytes]]) -> None:
        """Appends the tombstones, all in one commit. Their offsets end what is erased."""
        ordered = sorted(wanting)
        now_ms = self.job.storage.now_ms() if self.now_ms is None else self.now_ms
        rows = pa.table(
            {
                "key": pa.array([key for _, key in ordered], pa.binary()),
                "value": pa.nulls(len(ordered), pa.binary()),
                "partition": pa.array([partition for partition, _ in ordered], pa.int32()),
                "timestamp": pa.array([now_ms] * len(ordered), pa.timestamp("ms", "UTC")),
            }
        )
        # In order of partition and key, so that the offset of each follows from the first one of its partition.
        offsets = append(self.job.log, self.topic, rows, topic_row=_row_with_tombstones)
        # The tombstone itself stays: the records below its offset go.
        next_offsets = {partition: first for partition, (first, _) in offsets.items()}
        for partition, key in ordered:
            self.ends[partition][key] = next_offsets[partition]
            next_offsets[partition] += 1
        assert all(next_offsets[partition] == last + 1 for partition, (_, last) in offsets.items())

    def _same_topic(self) -> Snapshot:
        snapshot = self.job.log.manifest(self.topic).snapshot(deleted=self.history)
        if snapshot.topic_id != self.topic_id:
            raise CommitConflictError(
                f"Topic {self.topic} was deleted and made again meanwhile",
                expected=f"topic id {self.topic_id}",
                found=snapshot.topic_id,
                hint="Run it again for the new topic; the files of the old topic go with vacuum",
            )
        return snapshot

    def _rewrite(
        self, snapshot: Snapshot, holding: Sequence[Segment], beside: Sequence[Segment], tombstones: Counter[int]
    ) -> None:
        """Rewrites segments by partition, then copies runs. What another job has replaced meanwhile stays."""
        job = self.job
        epochs = {row.partition: LeaderEpochs.of(row) for row in snapshot.partition_rows}
        rewrite = EraseFromSegment(job.storage, self.topic, job.config(snapshot), epochs)
        tasks = [(segment, self.ends[segment.partition]) for segment in holding]
        for partition, done in _by_partition(job.run(rewrite, tasks)):
            committed = self._commit(done)
            if committed:
                line = _line(partition, "erase", committed)
                job.report.add(self.topic, **line, tombstones_appended=tombstones.pop(partition, 0))
        if beside:  # the runs of an object must come in one commit
            for partition, done in _by_partition(self._commit(rewrite.copied_out(job, beside))):
                job.report.add(self.topic, **_line(partition, "copy", done))

    # Commit

    def _commit(self, done: Sequence[RewrittenGroup]) -> list[RewrittenGroup]:
        """Puts the new segments into the log. Returns the groups whose old segments had not changed since they were
        read, and discards the files of the other groups.
        """
        swaps = self.job.log.manifest(self.topic).swap_rows(
            Operation.ERASE,
            [RowSwap(list(group.inputs), list(group.outputs)) for group in done],
            topic_id=self.topic_id,
            thins=True,
            topic=lambda current: self._topic_row(current, history=False, rewritten=_rewritten(done)),
        )
        committed = {swap.old[0].identity for swap in swaps}
        self.is_committed |= bool(committed)
        # No commit names the files of the others, and no later commit will: the next round writes its own.
        discard_groups(self.job.storage, [group for group in done if group.inputs[0].identity not in committed])
        return [group for group in done if group.inputs[0].identity in committed]

    def _topic_row(
        self, current: Snapshot, *, history: bool, rewritten: Mapping[int, list[tuple[int, int]]] | None = None
    ) -> TopicRow:
        """The topic's row with this erasure, for a commit on top of `current`."""
        now_ms = self.job.storage.now_ms()
        return Erasure.topic_row(
            current, Erasure(self.erasure_id, -1, now_ms, len(self.keys), history), rewritten or {}
        )

    def _delete_history(self) -> None:
        """Deletes the removed files that have the keys, also files that readers still use."""
        job = self.job
        paths = self._paths_of_history(self._same_topic())

        def change(current: Snapshot) -> Change | None:
            waiting = _waiting(current)
            rows = waiting.filter(pc.is_in(waiting.column("path"), pa.array(sorted(paths), pa.string())))
            if not rows.num_rows:
                return None
            return Change(Operation.ERASE, replace=claimed_rows(rows), topic=self._topic_row(current, history=True))

        if paths:
            job.log.manifest(self.topic).commit(change, deleted=True)
        done = vacuum(job.log, topics=[self.topic], spark=job.spark, now_ms=self.now_ms)
        job.report.count(history_segments=len(paths))
        job.report.partitions += done.failed

    def _paths_of_history(self, snapshot: Snapshot) -> set[str]:
        """The removed files that have the keys. All rows that name such a shared object must go with it."""
        waiting = Segment.of_table(_waiting(snapshot))
        named = {segment.path for segment in waiting if segment.is_shared}
        rows = Segment.of_table(all_rows(snapshot))
        others = [row for row in rows if row.path in named and row.state != Segment.REMOVED]
        deleting, live = ([row for row in others if row.is_live == flag] for flag in (False, True))
        return self._paths_with_keys([*waiting, *deleting], live)


def _row_with_tombstones(snapshot: Snapshot, appended: Change) -> TopicRow:
    """The topic's row for the commit of an erasure's tombstones: what is written after them is newer, and compaction
    knows where they are.
    """
    tombstones = [ErasedTombstones(chunk.partition, chunk.base_offset, chunk.next_offset) for chunk in appended.add]
    row = Eras.topic_row_after_erasure(snapshot, appended.partitions)
    return ErasedTombstones.topic_row(row, tombstones)


def _waiting(snapshot: Snapshot) -> pa.Table:
    """Removed rows that no vacuum has begun to delete, also rows of deleted topics of this name."""
    return row_tables.in_states(all_rows(snapshot), Segment.REMOVED)


def _rewritten(done: Iterable[RewrittenGroup]) -> dict[int, list[tuple[int, int]]]:
    """{partition: the offsets of the segments that lost records}"""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for group in done:
        if group.stats.superseded:
            first = group.inputs[0]
            last = group.inputs[-1]
            ranges.setdefault(first.partition, []).append((first.base_offset, last.next_offset))
    return ranges


def _by_partition(done: Iterable[RewrittenGroup]) -> list[tuple[int, list[RewrittenGroup]]]:
    ordered = sorted(done, key=lambda group: group.inputs[0].partition)
    runs = itertools.groupby(ordered, lambda group: group.inputs[0].partition)
    return [(partition, list(groups)) for partition, groups in runs]


def _line(partition: int, action: str, done: Sequence[RewrittenGroup]) -> dict[str, Any]:
    """The line in the report of a partition's segments that were committed."""
    erased, read = (sum(getattr(group.stats, name) for group in done) for name in ("superseded", "records_read"))
    return {
        "partition": partition,
        "action": action,
        "records_in": read,
        "records_out": read - erased,
        "bytes_in": sum(row.log_bytes for group in done for row in group.inputs),
        "bytes_out": sum(row.log_bytes for group in done for row in group.outputs),
        "dropped": {"erased": erased} if erased else {},
        "segments": len(done),
    }
