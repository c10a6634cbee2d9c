"""A pass over a topic of a running cluster.

A partition is read as a follower reads it, up to the high watermark. What is fetched is checked (whole batches, their
CRC, rising offsets), written as chunks, and committed with what follows from the batches: the last stable offset,
producers, aborted transactions, leader epochs. The log end here says where the next pass goes on.

Where a topic became another one, a copy goes on in the next of the topics here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from spark_segments.config import SegmentLimits, check_new_topic_name, topic_config
from spark_segments.errors import CommitConflictError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks, task_slots
from spark_segments.format.sidecars.producer_state import producer_snapshot_bytes
from spark_segments.kafka.imported_settings import kept_settings
from spark_segments.kafka_protocol.capturing.capture_options import CaptureOptions, Divergence
from spark_segments.kafka_protocol.capturing.partition_capture import (
    LEAST_LATE_MS,
    CapturedPartition,
    CopiedTopic,
    DivergedError,
    PartitionsCapture,
    check_same,
)
from spark_segments.kafka_protocol.capturing.source import EARLIEST, SourceCluster, SourceTopic, patient
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.log import (
    Captured,
    CapturedBatch,
    Change,
    CopiedEnd,
    Eras,
    Erasure,
    Hole,
    LogDirectory,
    Manifest,
    Operation,
    Partition,
    Report,
    Segment,
    Snapshot,
    TopicRow,
    Undecided,
)
from spark_segments.progress import Progress
from spark_segments.quantities import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAPTURE = "capture"
"""The operation of the commits."""

CAPTURED = "captured"
"""The action of a topic's line in a report."""

COMMIT_BYTES = 256 << 20
"""So much is written by a client before it is committed, unless the end is reached before."""

_COMMIT_SECONDS = 60.0  # or what comes in this time, where the rate is bounded
_CLEANING = ("cleanup.policy", "delete.retention.ms")
_NOTE_SHARE = 8  # of delete.retention.ms, within which it is not noted again that all is here
_LATE = (
    "partitions {} were captured later than delete.retention.ms after the time before: tombstones may be "
    "missing, so that deleted keys are still here. --recapture makes a true copy"
)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Task function: copies partitions with a separate client. Returns them, and the error that ended the copy."""

    copied: CopiedTopic
    servers: str
    options: CaptureOptions
    tasks: int

    def __call__(self, parts: list[CapturedPartition]) -> tuple[list[CapturedPartition], SegmentsError | None]:
        options = self.options
        rate = RateLimit(None if options.max_rate is None else max(1, options.max_rate // self.tasks))
        with SourceCluster(self.servers, options.client_config, options.answer_seconds) as source:
            work = PartitionsCapture(self.copied, source, parts, rate)
            problem = work.run(rate.within(_COMMIT_SECONDS, COMMIT_BYTES))
            rate.wait()
        return parts, problem


class TopicCapture:
    """A pass over a topic."""

    def __init__(
        self,
        log: LogDirectory,
        source: SourceCluster,
        topic: SourceTopic,
        options: CaptureOptions,
        report: Report,
        rate: RateLimit,
        *,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._log, self._source, self._topic = log, source, topic
        self._options, self._report, self._rate, self._spark, self._progress = options, report, rate, spark, progress
        self.name = topic.name
        self._parts: dict[int, CapturedPartition] = {}
        self._known: set[int] = set()  # partitions of which something is noted
        self._records = self._bytes = 0  # that were added

    def run(self) -> str:
        """Makes the pass, adds its line to the report, and returns the name of the topic here. Again, it goes on."""
        self.name, before = topic_here(self._log, self._topic.name)
        self._manifest: Manifest = self._log.manifest(self.name)
        try:
            current = self._ready(before)
        except DivergedError as error:
            if self._options.on_divergence is not Divergence.KEEP:
                raise
            self._tell_end({number: error for number in self._topic.leaders})
            return self.name
        self._config_here = current.config
        self._config = topic_config(current.config, self._log.defaults)
        noted, now_ms = Captured.of(current.states), self._log.storage.now_ms()
        self._known = {*noted}
        last_batches = CapturedBatch.of(current.states)
        appends = Erasure.appends(current.states)
        holes = Hole.of(current.states)
        copied_ends = CopiedEnd.of(current.states)
        self._cluster_id = current.states.get(Captured.SOURCE_CLUSTER_ID)
        self._tombstones_ms = self._least_tombstones_ms(noted.values(), now_ms)
        self._parts = {
            row.partition: CapturedPartition.of(
                row,
                noted.get(row.partition, Captured(now_ms, row.log_end_offset)),
                self._tombstones_ms,
                last_batches.get(row.partition),
                current.live_of(row.partition) if row.partition in last_batches else (),
                appends.get(row.partition, ()),
                [(hole.start_offset, hole.end_offset) for hole in holes if hole.partition == row.partition],
                None if row.partition in last_batches else copied_ends.get(row.partition),
            )
            for row in current.partition_rows
            if row.partition in self._topic.leaders
        }
        self._copy()
        kept = {}
        for number, part in self._parts.items():
            if part.problem is not None:
                if not isinstance(part.problem, DivergedError) or self._options.on_divergence is not Divergence.KEEP:
                    raise part.problem
                kept[number] = part.problem
        self._note_end()
        self._tell_end(kept)
        return self.name

    def _least_tombstones_ms(self, noted: Iterable[Captured], now_ms: int) -> int | None:
        """For how long the cluster has kept tombstones and markers at least, None for ever.

        The settings here are the cluster's of when the topic was made, unless somebody has altered them since. After a
        pause, when it matters, the cluster's settings of now count, too.
        """
        configs = [self._config]
        if any(now_ms - captured.at_ms > LEAST_LATE_MS for captured in noted):
            ask = partial(self._source.settings, self._topic, with_defaults=True)
            settings = patient(ask, self._options.patience_seconds) or {}
            policy = {name: settings[name] for name in _CLEANING if settings.get(name)}
            configs.append(topic_config({**self._config_here, **policy}, self._log.defaults))
        return min((config.delete_retention_ms for config in configs if config.compact), default=None)

    def _copy(self) -> None:
        """Copies and commits in turns, until all is here."""
        limits, patience_seconds = SegmentLimits.of(self._config), self._options.patience_seconds
        copied = CopiedTopic(self._topic, self.name, self._log.storage, limits, patience_seconds)
        begun = {number: part.next_offset for number, part in self._parts.items()}

        def told() -> None:
            if self._progress is not None:
                done = sum(part.next_offset - begun[number] for number, part in self._parts.items())
                total = sum((part.goal or part.next_offset) - begun[number] for number, part in self._parts.items())
                self._progress(done, max(done, total))

        here = PartitionsCapture(copied, self._source, self._parts.values(), self._rate, told)
        while due := [part for part in self._parts.values() if part.is_due]:
            if self._spark is None:
                problem = here.run(self._rate.within(_COMMIT_SECONDS, COMMIT_BYTES))
            else:
                tasks = min(len(due), task_slots(self._spark))
                copy = _Copy(copied, self._source.servers, self._options, tasks)
                done = run_tasks(copy, [due[n::tasks] for n in range(tasks)], self._spark)
                self._parts |= {part.number: part for parts, _ in done for part in parts}
                problem = next((error for _, error in done if error is not None), None)
                told()
            self._commit()
            if problem is not None:
                raise problem

    def _tell_end(self, kept: Mapping[int, SegmentsError]) -> None:
        name, late = self.name, sorted(number for number, part in self._parts.items() if part.noted.late)
        if late:
            self._report.warn(f"{name}: {_LATE.format(', '.join(map(str, late)))}")
        for text in dict.fromkeys(str(error) for error in kept.values()):
            self._report.warn(f"{text}. What is here of partitions {', '.join(map(str, sorted(kept)))} stays as it is")
        self.add_line(
            CAPTURED,
            source=self._topic.name,
            partitions=len(self._topic.leaders),
            lag=sum(part.noted.lag(part.row.log_end_offset) for part in self._parts.values()),
            late=bool(late),
            kept=sorted(kept),
        )

    def add_line(self, action: str, **figures: Any) -> None:
        """Adds the topic's line to the report, with what was committed."""
        records, log_bytes = self._records, self._bytes
        self._report.add(
            self.name, None, action,
            records_in=records, records_out=records, bytes_in=log_bytes, bytes_out=log_bytes, **figures,
        )  # fmt: skip

    def _note(self, part: CapturedPartition, now_ms: int) -> Captured:
        """What is to be noted of a partition whose row is written next."""
        tombstones_ms = self._tombstones_ms
        is_late = tombstones_ms is not None and now_ms - part.noted.at_ms > max(tombstones_ms, LEAST_LATE_MS)
        return Captured(
            now_ms if part.is_done and part.problem is None else part.noted.at_ms,
            part.noted.high_watermark if part.high_watermark is None else part.high_watermark,
            is_late or part.noted.late,
            part.noted.stable_end,
        )

    def _note_end(self) -> None:
        """Notes what changed of partitions that got nothing."""
        longest_ms = self._config.delete_retention_ms // _NOTE_SHARE
        now_ms = self._log.storage.now_ms()
        new = {number: self._note(part, now_ms) for number, part in self._parts.items()}
        due = {
            number: noted
            for number, noted in new.items()
            if dataclasses.replace(noted, at_ms=0) != dataclasses.replace(self._parts[number].noted, at_ms=0)
            or noted.at_ms - self._parts[number].noted.at_ms > longest_ms
            or number not in self._known
        }
        if due or self._cluster_id != self._topic.cluster_id is not None:
            cluster_id = self._cluster_id = self._topic.cluster_id
            self._manifest.commit(
                lambda current: Change(CAPTURE, topic=Captured.topic_row(current.topic_row, due, cluster_id=cluster_id))
            )
        for number, noted in due.items():
            self._parts[number].noted = noted

    def _ready(self, before: Snapshot | None) -> Snapshot:
        """The topic here, made if it is not there, with all of its partitions."""
        topic = self._topic
        if before is None:
            theirs = patient(partial(self._source.settings, topic), self._options.patience_seconds)
            kept = kept_settings(topic.name, theirs, keep_retention=self._options.keep_retention)
            for text in kept.warnings:
                self._report.warn(text)
            states = {}
            topic_id = topic.topic_id if self.name == topic.name else None
            if topic_id is None:  # the one that this goes on for may have theirs
                topic_id = TopicRow.new_id()
                states = {} if topic.topic_id is None else {Captured.SOURCE_TOPIC_ID: topic.topic_id}
            if topic.cluster_id is not None:  # before anything is here: where it begins is the cluster's
                states[Captured.SOURCE_CLUSTER_ID] = topic.cluster_id
            partitions = self._empty(topic_id, 0)
            row = _with_ends(Eras.unknown(TopicRow(topic_id, kept.config, states=states)), partitions)
            self._manifest.create_by(Change(Operation.CREATE, partitions=partitions, topic=row))
        current = self._manifest.snapshot() if before is None else before
        current.check_role(CAPTURE)
        topic_id = current.states.get(Captured.SOURCE_TOPIC_ID, current.topic_id)
        check_same(self.name, topic_id, current.states.get(Captured.SOURCE_CLUSTER_ID), topic)

        def grown(current: Snapshot) -> Change | None:
            added = self._empty(current.topic_id, current.partitions.num_rows)
            topic = _with_ends(Eras.unknown(current.topic_row), added)
            return Change(CAPTURE, partitions=added, topic=topic) if added else None

        if len(topic.leaders) > current.partitions.num_rows:
            self._manifest.commit(grown)
            current = self._manifest.snapshot()
        return current

    def _empty(self, topic_id: str, first: int) -> list[Partition]:
        """Partitions from number `first` on, each empty at its log start."""
        rows = []
        for number in range(first, max(self._topic.leaders) + 1):
            start = patient(partial(self._source.offset, self._topic, number, EARLIEST), self._options.patience_seconds)
            rows.append(Partition(topic_id, number, start, start, start, start, leader_epochs=()))
        return rows

    def _commit(self) -> None:
        """Makes what was copied part of the topic."""
        ready = {number: part for number, part in self._parts.items() if part.chunks or part.holes}
        if not ready:
            return
        now_ms = self._log.storage.now_ms()
        notes = {number: self._note(part, now_ms) for number, part in ready.items()}
        rows = {number: self._row(part, notes[number].stable_end) for number, part in ready.items()}
        holes = sorted(hole for part in ready.values() for hole in part.holes)
        undecided = sorted(transaction for part in ready.values() for transaction in part.undecided)
        last_batches = {number: part.last_batch for number, part in ready.items() if part.last_batch is not None}

        def plan(current: Snapshot) -> Change:
            """The change on top of `current`: each try of the commit asks again whether it may be made there."""
            current.check_role(CAPTURE)
            for part in ready.values():
                self._check_unchanged(current, part)
            placed = [_placed(current, part, rows[number]) for number, part in ready.items()]
            topic = Hole.topic_row(current, holes, undecided)
            topic = _with_ends(topic, rows.values())
            return Change(
                CAPTURE,
                add=[chunk for partition in placed for chunk in partition.chunks],
                replace=[partition.grown for partition in placed if partition.grown is not None],
                partitions=[partition.row for partition in placed],
                topic=Captured.topic_row(topic, notes, last_batches, self._topic.cluster_id),
            )

        self._manifest.commit(plan)
        self._report_committed(ready.values(), holes, undecided)
        for number, part in ready.items():
            part.row, part.noted = rows[number], notes[number]
            part.take_back()
        self._known |= ready.keys()
        self._cluster_id = self._topic.cluster_id

    def _check_unchanged(self, current: Snapshot, part: CapturedPartition) -> None:
        """Raises CommitConflictError where the copy did not begin at the log end: its offsets would be there twice."""
        log_end = current.partition(part.number).log_end_offset
        if (current.topic_id, log_end) != (part.row.topic_id, part.row.log_end_offset):
            raise CommitConflictError(
                f"{self.name}-{part.number} was appended to while it was captured",
                path=self._log.uri,
                expected=f"a log end of {part.row.log_end_offset}",
                found=log_end,
                hint="One capture at a time writes a topic, and nothing else does",
            )

    def _report_committed(
        self, parts: Iterable[CapturedPartition], holes: Sequence[Hole], undecided: Sequence[Undecided]
    ) -> None:
        for part in parts:
            self._records += sum(chunk.records for chunk in part.chunks)
            self._bytes += sum(chunk.log_bytes for chunk in part.chunks)
        self._report.details["holes"] += [{"topic": self.name, **hole.to_dict()} for hole in holes]
        for transaction in undecided:
            self._report.details["undecided"].append({"topic": self.name, **transaction.to_dict()})
            self._report.warn(f"{self.name}-{transaction.partition}: {transaction}. --recapture makes a true copy")

    def _row(self, part: CapturedPartition, stable_end: int | None) -> Partition:
        """The partition's row with what was written of it."""
        end = max(
            [part.row.log_end_offset, *(row.next_offset for row in part.chunks), *(h.end_offset for h in part.holes)]
        )
        part.producers.expire(wall_ms())
        entries = part.producers.entries()
        return dataclasses.replace(
            part.row,
            log_end_offset=end,
            last_stable_offset=min(part.producers.last_stable_offset(end), end if stable_end is None else stable_end),
            leader_epoch=part.epochs[-1][0] if part.epochs else part.row.leader_epoch,
            leader_epochs=part.epochs or part.row.leader_epochs,
            producer_snapshot=producer_snapshot_bytes(entries) if entries else None,
        )


def _with_ends(topic: TopicRow, partitions: Iterable[Partition]) -> TopicRow:
    return CopiedEnd.topic_row(topic, {row.partition: row.log_end_offset for row in partitions})


@dataclass(frozen=True, slots=True)
class _Placed:
    """A partition's `row` and new `chunks` as they are committed; `grown`: the last segment here, if it has to grow."""

    row: Partition
    chunks: Sequence[Segment]
    grown: Segment | None


def _placed(current: Snapshot, part: CapturedPartition, row: Partition) -> _Placed:
    """What was copied of a partition, in its place behind what is here.

    Segments leave no offset between them, so missing offsets belong to the segment before them:

        here   |--------live[-1]--------|  hole  |---chunk---| hole |---chunk---|  hole  |
        rows   |--------live[-1]----- grown -----|------chunk ------|-------chunk -------|
                                                                              log end here
    """
    live, here = current.live_of(part.number), current.partition(part.number)
    bases = [chunk.base_offset for chunk in part.chunks]
    ends = [*bases, row.log_end_offset]
    log_start = here.log_start_offset
    if not live:  # nothing can grow over the first hole: the log begins where there is something
        log_start = max(log_start, ends[0])
    grown = None
    if live and live[-1].next_offset < ends[0]:
        grown = dataclasses.replace(live[-1], next_offset=ends[0])
    chunks = [dataclasses.replace(chunk, next_offset=end) for chunk, end in zip(part.chunks, ends[1:], strict=True)]
    first_dirty = max(here.first_dirty_offset, log_start)
    return _Placed(dataclasses.replace(row, log_start_offset=log_start, first_dirty_offset=first_dirty), chunks, grown)


def topic_here(log: LogDirectory, source: str) -> tuple[str, Snapshot | None]:
    """The topic here that a topic of the cluster is captured into: its name, and what it is, None before it is made."""
    name = source
    while True:
        snapshot = _snapshot(log, name)
        following = None if snapshot is None else snapshot.states.get(Captured.GOES_ON_IN)
        if following is None:
            return name, snapshot
        name = following


def _snapshot(log: LogDirectory, name: str) -> Snapshot | None:
    try:
        return log.snapshot(name)
    except UnknownTopicError:
        return None


def branch(log: LogDirectory, source: str, cluster_topics: Collection[str]) -> str:
    """Lets the capture of a topic go on in another topic here, which the next pass makes, and returns its name."""
    before, snapshot = topic_here(log, source)
    if snapshot is None:
        return before  # which has nothing yet
    names = (f"{source}.branch-{number}" for number in count(1))
    name = next(name for name in names if name not in cluster_topics and _snapshot(log, name) is None)
    check_new_topic_name(name, [])

    def plan(current: Snapshot) -> Change:
        current.check_role(CAPTURE)
        return Change(
            CAPTURE, topic=dataclasses.replace(current.topic_row, states={**current.states, Captured.GOES_ON_IN: name})
        )

    log.manifest(before).commit(plan)
    return name
