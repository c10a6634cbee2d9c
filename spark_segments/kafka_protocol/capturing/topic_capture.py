"""A pass over a topic of a running cluster.

A partition is read as a follower reads it, up to the high watermark. What is fetched is checked (whole batches, their
CRC, rising offsets), written as chunks, and committed with what follows from the batches: the last stable offset,
producers, aborted transactions, leader epochs. The log end here says where the next pass goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_segments.config import SegmentLimits, topic_config
from spark_segments.errors import CommitConflictError, SegmentsError
from spark_segments.execution import run_tasks, task_slots
from spark_segments.format.sidecars.producer_state import producer_snapshot_bytes
from spark_segments.kafka.imported_settings import kept_settings
from spark_segments.kafka_protocol.capturing.branches import topic_here
from spark_segments.kafka_protocol.capturing.capture_options import CaptureOptions, Divergence
from spark_segments.kafka_protocol.capturing.captured_partition import CAPTURE, CapturedPartition, CaptureNotes
from spark_segments.kafka_protocol.capturing.cluster_log import CopiedTopic, DivergedError, check_same
from spark_segments.kafka_protocol.capturing.partition_capture import LEAST_LATE_MS, PartitionsCapture
from spark_segments.kafka_protocol.capturing.source import EARLIEST, SourceCluster, SourceTopic, patient
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.log import (
    Captured,
    Change,
    CopiedEnd,
    Eras,
    Hole,
    LogDirectory,
    Manifest,
    Partition,
    Report,
    Segment,
    Snapshot,
    TopicRow,
)
from spark_segments.progress import Progress
from spark_segments.quantities import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@dataclass(frozen=True, slots=True)
class CapturePass:
    """A pass over topics of a cluster: what the captures of its topics share. `rate`: of all of them together."""

    log: LogDirectory
    source: SourceCluster
    options: CaptureOptions
    report: Report
    rate: RateLimit
    spark: SparkSession | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class _Advance:
    """What a commit brings of a partition: its `row` with what was copied, and what is `noted` of it from then on."""

    part: CapturedPartition
    row: Partition
    noted: Captured


class TopicCapture:
    """A pass over a topic."""

    def __init__(self, work: CapturePass, topic: SourceTopic) -> None:
        self._log = work.log
        self._source = work.source
        self._options = work.options
        self._report = work.report
        self._rate = work.rate
        self._spark = work.spark
        self._progress = work.progress
        self._topic = topic
        self.name = topic.name
        self._parts: dict[int, CapturedPartition] = {}
        self._known: set[int] = set()  # partitions of which something is noted
        self._records = 0  # that were added
        self._bytes = 0

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
        self._cluster_id = current.states.get(Captured.SOURCE_CLUSTER_ID)
        self._begin_partitions(current)
        self._copy()
        kept = self._kept_problems()
        self._note_end()
        self._tell_end(kept)
        return self.name

    def _begin_partitions(self, current: Snapshot) -> None:
        now_ms = self._log.storage.now_ms()
        notes = CaptureNotes.of(current.states)
        self._known = {*notes.passes}
        self._tombstones_ms = self._least_tombstones_ms(notes.passes.values(), now_ms)
        self._parts = {
            row.partition: CapturedPartition.of(current, row, notes, self._tombstones_ms, now_ms)
            for row in current.partition_rows
            if row.partition in self._topic.leaders
        }

    def _kept_problems(self) -> dict[int, SegmentsError]:
        """Why partitions stay as they are here. Raises any other problem of a partition."""
        kept: dict[int, SegmentsError] = {}
        for number, part in self._parts.items():
            if part.problem is None:
                continue
            if not isinstance(part.problem, DivergedError) or self._options.on_divergence is not Divergence.KEEP:
                raise part.problem
            kept[number] = part.problem
        return kept

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
        limits = SegmentLimits.of(self._config)
        patience_seconds = self._options.patience_seconds
        copied = CopiedTopic(self._topic, self.name, self._log.storage, limits, patience_seconds)
        begun = {number: part.next_offset for number, part in self._parts.items()}

        def show_progress() -> None:
            if self._progress is not None:
                done = sum(part.next_offset - begun[number] for number, part in self._parts.items())
                total = sum((part.goal or part.next_offset) - begun[number] for number, part in self._parts.items())
                self._progress(done, max(done, total))

        here = PartitionsCapture(copied, self._source, self._parts.values(), self._rate, show_progress)
        while any(part.is_due for part in self._parts.values()):
            if self._spark is None:
                problem = here.run(self._rate.within(_COMMIT_SECONDS, COMMIT_BYTES))
            else:
                problem = self._copy_on_spark(copied, self._spark)
                show_progress()
            self._commit()  # also what came before the problem: it is good
            if problem is not None:
                raise problem

    def _copy_on_spark(self, copied: CopiedTopic, spark: SparkSession) -> SegmentsError | None:
        """As `PartitionsCapture.run`, divided among the executors."""
        due = [part for part in self._parts.values() if part.is_due]
        tasks = min(len(due), task_slots(spark))
        copy = _Copy(copied, self._source.servers, self._options, tasks)
        done = run_tasks(copy, [due[n::tasks] for n in range(tasks)], spark)
        # What comes back are copies of the partitions: they take the place of those that were sent.
        self._parts |= {part.number: part for parts, _ in done for part in parts}
        return next((error for _, error in done if error is not None), None)

    def _tell_end(self, kept: Mapping[int, SegmentsError]) -> None:
        late = sorted(number for number, part in self._parts.items() if part.noted.late)
        if late:
            self._report.warn(f"{self.name}: {_LATE.format(', '.join(map(str, late)))}")
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
        self._report.add(
            self.name,
            None,
            action,
            records_in=self._records,
            records_out=self._records,
            bytes_in=self._bytes,
            bytes_out=self._bytes,
            **figures,
        )

    def _note(self, part: CapturedPartition, now_ms: int) -> Captured:
        """What is to be noted of a partition whose row is written next."""
        tombstones_ms = self._tombstones_ms
        # The pass before had all tombstones of its time. The cluster's cleaner can have removed a later one only once
        # it has kept it for `tombstones_ms`. A pass that does not reach its goal leaves that time as it is.
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
            cluster_id = self._topic.cluster_id
            self._cluster_id = cluster_id
            self._manifest.commit(
                lambda current: Change(CAPTURE, topic=Captured.topic_row(current.topic_row, due, cluster_id=cluster_id))
            )
        for number, noted in due.items():
            self._parts[number].noted = noted

    def _ready(self, before: Snapshot | None) -> Snapshot:
        """The topic here, made if it is not there, with all of its partitions."""
        topic = self._topic
        current = self._created() if before is None else before
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

    def _created(self) -> Snapshot:
        """The topic, made here empty at the cluster's log starts, with the cluster's settings."""
        topic = self._topic
        source_config = patient(partial(self._source.settings, topic), self._options.patience_seconds)
        kept = kept_settings(topic.name, source_config, keep_retention=self._options.keep_retention)
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
        self._manifest.create(row, partitions)
        return self._manifest.snapshot()

    def _empty(self, topic_id: str, first: int) -> list[Partition]:
        """Partitions from number `first` on, each empty at its log start."""
        rows = []
        for number in range(first, max(self._topic.leaders) + 1):
            start = patient(partial(self._source.offset, self._topic, number, EARLIEST), self._options.patience_seconds)
            rows.append(Partition(topic_id, number, start, start, start, start, leader_epochs=()))
        return rows

    def _commit(self) -> None:
        """Makes what was copied part of the topic."""
        now_ms = self._log.storage.now_ms()
        advances = []
        for part in self._parts.values():
            if part.chunks or part.holes:
                noted = self._note(part, now_ms)
                advances.append(_Advance(part, self._row(part, noted.stable_end), noted))
        if not advances:
            return
        self._manifest.commit(partial(self._change, advances))
        self._report_committed(advances)
        for advance in advances:
            advance.part.row = advance.row
            advance.part.noted = advance.noted
            advance.part.take_back()
            self._known.add(advance.part.number)
        self._cluster_id = self._topic.cluster_id

    def _change(self, advances: Sequence[_Advance], current: Snapshot) -> Change:
        """The change on top of `current`: each try of the commit asks again whether it may be made there."""
        current.check_role(CAPTURE)
        for advance in advances:
            self._check_unchanged(current, advance.part)
        placed = [_placed(current, advance.part, advance.row) for advance in advances]
        rows = [advance.row for advance in advances]
        holes = sorted(hole for advance in advances for hole in advance.part.holes)
        undecided = sorted(transaction for advance in advances for transaction in advance.part.undecided)
        notes = {advance.part.number: advance.noted for advance in advances}
        last_batches = {
            advance.part.number: advance.part.last_batch for advance in advances if advance.part.last_batch is not None
        }
        topic = Hole.topic_row(current, holes, undecided)
        topic = _with_ends(topic, rows)
        return Change(
            CAPTURE,
            add=[chunk for partition in placed for chunk in partition.chunks],
            replace=[partition.grown for partition in placed if partition.grown is not None],
            partitions=[partition.row for partition in placed],
            topic=Captured.topic_row(topic, notes, last_batches, self._topic.cluster_id),
        )

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

    def _report_committed(self, advances: Sequence[_Advance]) -> None:
        parts = [advance.part for advance in advances]
        self._records += sum(chunk.records for part in parts for chunk in part.chunks)
        self._bytes += sum(chunk.log_bytes for part in parts for chunk in part.chunks)
        holes = sorted(hole for part in parts for hole in part.holes)
        self._report.details["holes"] += [{"topic": self.name, **hole.to_dict()} for hole in holes]
        for transaction in sorted(transaction for part in parts for transaction in part.undecided):
            self._report.details["undecided"].append({"topic": self.name, **transaction.to_dict()})
            self._report.warn(f"{self.name}-{transaction.partition}: {transaction}. --recapture makes a true copy")

    def _row(self, part: CapturedPartition, stable_end: int | None) -> Partition:
        """The partition's row with what was written of it."""
        chunk_ends = [chunk.next_offset for chunk in part.chunks]
        hole_ends = [hole.end_offset for hole in part.holes]
        end = max([part.row.log_end_offset, *chunk_ends, *hole_ends])
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
    live = current.live_of(part.number)
    here = current.partition(part.number)
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
