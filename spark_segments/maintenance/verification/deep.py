"""The deep look of a verification, which reads every byte of a topic's segments, and the repair that follows it.

A segment whose indexes are missing or untrue gets a new file set: a file never changes under its name. So the new files
have new names, and a commit replaces the old row by theirs. Records never change. A damaged .log is left alone, unless
the caller has its bad batches taken out: then their offsets are a hole of the topic.

It is imported where it is asked for: a quick check needs no kernel of reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.errors import CorruptBatchError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.file_names import PRODUCER_SNAPSHOT_SUFFIX
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.commit.swap import RowSwap
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.segment.examination import Examination
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.rebase import rebased, trimmed
from spark_segments.log.segment.writer import SegmentWriter, count_tombstones
from spark_segments.maintenance.verification.earlier_settings import EarlierSettings, earlier_settings
from spark_segments.maintenance.verification.keys import KeysTask, verify_keys
from spark_segments.maintenance.verification.manifest_rows import well_named
from spark_segments.maintenance.verification.segments import SegmentFacts, SegmentTask, batch_starts, look_at
from spark_segments.maintenance.verification.transactions import (
    aborted_by,
    check_stable_offset,
    check_transactions,
)
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.fetch import copy_file

if TYPE_CHECKING:
    from spark_segments.maintenance.verification.verify import VerifiedTopic

REPAIR = "repair"  # the operation of the commits
_KEY_TASKS_AT_A_TIME = 2  # each holds a map of keys
SEGMENTS_A_WAVE = 10_000
"""How many segments have their facts, some kilobytes each, in memory together."""

_SEGMENTS_A_TASK_BYTES = 256 << 20  # on Spark, a task checks many small segments


def _look_at_all(storage: Storage, tasks: Sequence[SegmentTask]) -> list[SegmentFacts]:
    """Task function: the facts of several segments."""
    return [look_at(storage, task) for task in tasks]


@dataclass(slots=True)
class DeepLook:
    """Checks every live segment, then what only several segments of a partition show together.

    Partitions are done in waves, so that the facts of a topic's segments are not in memory together. `snapshot`: of the
    topic, as far as it can be read. `files`: the existing files, by path; None in a directory that Kafka wrote.
    `facts`: by partition, in order, of all partitions where the topic is repaired.
    """

    topic: VerifiedTopic
    snapshot: Snapshot
    config: TopicConfig
    files: Mapping[str, FileInfo] | None
    facts: dict[int, list[SegmentFacts]] = field(default_factory=dict)
    gone: list[Segment] = field(default_factory=list)
    """Segments whose .log is missing."""

    settings: Mapping[int, EarlierSettings] = field(default_factory=dict)
    """By partition, the settings that its writers were bound by."""

    @property
    def by_kafka(self) -> bool:
        return self.files is None

    def run(self) -> None:
        """Checks, and counts the bytes that were read."""
        named = set() if self.by_kafka else well_named(self.snapshot)
        if not self.by_kafka:
            self.settings = earlier_settings(self.topic.log, self.snapshot, self.topic.warnings)
        for partitions in self._waves():
            facts = self._facts(partitions, named)
            if not self.by_kafka:  # recovery has compared the sidecars that Kafka wrote with the log
                self._check_together(partitions, facts)
            self._check_keys(partitions, facts)
            if self.topic.repairs:
                self.facts |= facts

    def _waves(self) -> Iterator[dict[int, Partition]]:
        """The partitions, as many at a time as have SEGMENTS_A_WAVE live segments; a single one may have more."""
        rows = self.snapshot.partition_rows
        sizes = {row.partition: self.snapshot.live_table(row.partition).num_rows for row in rows}
        waves = in_bins(
            rows,
            lambda row: sizes[row.partition],
            lambda _, total, row: total + sizes[row.partition] > SEGMENTS_A_WAVE,
        )
        return ({row.partition: row for row in wave} for wave in waves)

    def _facts(self, partitions: Mapping[int, Partition], named: set[str]) -> dict[int, list[SegmentFacts]]:
        """What each segment shows by itself. `named`: the paths that are valid."""
        snapshot = self.snapshot
        topic = self.topic
        findings = topic.findings
        storage = topic.log.storage
        spark = topic.spark
        tasks = [
            SegmentTask(
                snapshot.topic,
                segment,
                row.log_start_offset,
                row.leader_epochs,
                SegmentLimits.of(self.config),
                self.by_kafka,
                self.config.compact
                or bool(Hole.within(snapshot, number, segment.next_offset - 1, segment.next_offset)),
                self.settings.get(number, EarlierSettings()),
            )
            for number, row in partitions.items()
            for segment in snapshot.live_of(number)
            if self.files is None or (segment.path in self.files and segment.path in named)
        ]
        most_bytes = _SEGMENTS_A_TASK_BYTES if spark is not None else 0
        several = in_bins(
            tasks,
            lambda task: task.segment.log_bytes,
            lambda _, total, task: spark is None or total + task.segment.log_bytes > most_bytes,
        )
        facts: dict[int, list[SegmentFacts]] = {number: [] for number in partitions}
        done = run_tasks(
            partial(_look_at_all, storage),
            list(several),
            spark,
            progress=topic.progress,
            at_a_time=storage.tasks_at_a_time,
            size=_size,
        )
        for seen in itertools.chain.from_iterable(done):
            facts[seen.segment.partition].append(seen)
            findings.found += seen.findings
            findings.left_out += seen.left_out
            topic.bytes_read += seen.bytes_read
            topic.lose(seen.segment, seen.lost)
        gone = [
            segment
            for number in partitions
            for segment in snapshot.live_of(number)
            if self.files is not None and segment.path not in self.files and segment.path in named
        ]
        for segment in gone:
            topic.lose(segment, [(segment.base_offset, segment.next_offset)])
        self.gone += gone
        return facts

    def _check_together(self, partitions: Mapping[int, Partition], facts: Mapping[int, list[SegmentFacts]]) -> None:
        """Checks the transaction indexes of whole partitions and, without compaction, that no offsets are missing."""
        for number, segments in facts.items():
            if not any(segment.damaged for segment in segments):
                transactions = [segment.transactions for segment in segments]
                self.topic.findings.partition = number
                check_transactions(transactions, aborted_by(transactions), self.topic.findings)
                if len(segments) == self.snapshot.live_table(number).num_rows:
                    holes = [hole for hole in Hole.of(self.snapshot.states) if hole.partition == number]
                    check_stable_offset(partitions[number], transactions, holes, self.topic.findings)
        self.topic.findings.partition = None
        if not self.config.compact:
            for number, segments in facts.items():
                check_gaps(self.snapshot, partitions[number], segments, self.topic.findings)

    def _check_keys(self, partitions: Mapping[int, Partition], facts: Mapping[int, list[SegmentFacts]]) -> None:
        """Checks the clean tails whose segments are all whole."""
        if not self.by_kafka and not self.config.compact:
            return
        tasks = []
        for number, row in partitions.items():
            clean = row.first_dirty_offset
            start = row.log_start_offset
            tail = [seen for seen in facts[number] if seen.segment.base_offset < clean]
            if clean <= start or not tail or any(seen.damaged for seen in tail):
                continue
            aborted = AbortedTransactions.concatenate(aborted_by(seen.transactions for seen in facts[number]).values())
            segments = tuple(seen.segment for seen in tail)
            tasks.append(KeysTask(self.snapshot.topic, number, segments, start, clean, aborted))
        verify = partial(verify_keys, self.topic.log.storage)
        for findings in run_tasks(verify, tasks, self.topic.spark, at_a_time=_KEY_TASKS_AT_A_TIME):
            self.topic.findings.found += findings

    def repair(self) -> None:
        """Rebuilds sidecars of whole segments that have a finding which a rebuild corrects."""
        topic = self.topic
        tasks = []
        to_rebuild = {finding.rebuilds for finding in topic.findings.found}
        for segments in self.facts.values():
            aborted = aborted_by(seen.transactions for seen in segments)
            has_damage = any(seen.damaged for seen in segments)
            for seen in segments:
                # Only all segments together show which transactions the markers of a segment abort: beside a damaged
                # one, a rebuilt .txnindex could leave one out, and committed reads would show its records.
                is_clear = not has_damage or not seen.transactions.events.has_aborts
                place = seen.segment.place
                if place in to_rebuild and not seen.damaged and is_clear:
                    tasks.append(Rebuild(topic.name, seen.segment, aborted[place], SegmentLimits.of(self.config)))
        new = run_tasks(partial(rebuild_sidecars, topic.log.storage), tasks, topic.spark)
        old = [task.segment for task in tasks]
        committed = {segment.path for segment in commit_repairs(topic.log.manifest(topic.name), old, new)}
        topic.repaired |= {
            before.place: {"partition": after.partition, "path": before.path, "new_path": after.path}
            for before, after in zip(old, new, strict=True)
            if after.path in committed
        }

    def cut(self) -> None:
        """Takes the batches that are lost out of the log, as holes: a commit for each segment."""
        topic = self.topic
        limits = SegmentLimits.of(self.config)
        bad = [(seen.segment, seen.lost) for row in self.facts.values() for seen in row if seen.can_be_cut]
        bad += [
            (row, ((row.base_offset, row.next_offset),)) for row in self.gone if not topic.log.storage.exists(row.path)
        ]
        epochs = {row.partition: LeaderEpochs(row.leader_epochs) for row in self.snapshot.partition_rows}
        tasks = [CutTask(topic.name, segment, lost, epochs[segment.partition], limits) for segment, lost in bad]
        manifest = topic.log.manifest(topic.name)
        for task, after in zip(tasks, run_tasks(partial(cut_out, topic.log.storage), tasks, topic.spark), strict=True):
            before = task.segment
            noticed_ms = topic.log.storage.now_ms()
            holes = [Hole(before.partition, start, end, noticed_ms, Hole.DAMAGED) for start, end in task.lost]
            swaps = manifest.swap_rows(
                REPAIR,
                [RowSwap([before], [after])],
                topic_id=before.topic_id,
                thins=True,
                topic=lambda current, holes=holes: Hole.topic_row(current, holes),  # type: ignore[misc]
            )
            if swaps:
                topic.cut(before, after, holes)


def _size(tasks: list[SegmentTask]) -> int:
    return sum(task.segment.log_bytes for task in tasks)


MESSAGE = "Offsets between segments are missing, and no hole of the topic explains them"


def check_gaps(snapshot: Snapshot, row: Partition, facts: Sequence[SegmentFacts], findings: Findings) -> None:
    """Adds a finding for each gap of a partition that is not compacted here. `facts`: of its segments, in order."""
    if any(seen.damaged for seen in facts):
        return
    for before, following in itertools.pairwise([seen for seen in facts if seen.offsets is not None]):
        assert before.offsets is not None and following.offsets is not None
        # Below the first dirty offset the cleaner may have left gaps; below the log start nothing is in the log.
        start = max(before.offsets[1], row.first_dirty_offset, row.log_start_offset)
        end = following.offsets[0]
        if start >= end or before.was_cleaned or following.was_cleaned:
            continue
        holes = Hole.within(snapshot, row.partition, start, end)
        if not any(hole.start_offset <= start and end <= hole.end_offset for hole in holes):
            findings.add(
                MESSAGE,
                rule="M27",
                partition=row.partition,
                path=following.segment.path,
                byte_position=following.segment.byte_position,
                expected=f"a batch at offset {start}",
                found=f"offset {end}; if its source still has them, import the partition anew: segments import into "
                f"another log directory, or into this one after segments topic delete {snapshot.topic}",
            )


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A task: the segment, and the transactions (offsets of the log) that its markers abort."""

    topic: str
    segment: Segment
    aborted: AbortedTransactions
    limits: SegmentLimits


@dataclass(frozen=True, slots=True)
class CutTask:
    """A task: the segment, and the offsets (start, end exclusive) of the batches that are not to be in its copy."""

    topic: str
    segment: Segment
    lost: tuple[tuple[int, int], ...]
    leader_epochs: LeaderEpochs
    limits: SegmentLimits


def cut_out(storage: Storage, task: CutTask) -> Segment:
    """Task function: writes the segment again without the batches that are lost, and returns the new row.

    Raises CorruptBatchError where another fault is in the copy, and then leaves no new file.
    """
    segment = task.segment
    with SegmentWriter(storage, task.topic, segment.partition, segment.base_offset, limits=task.limits) as writer:
        with contextlib.suppress(FileNotFoundError):  # of a .log that is gone, nothing is kept
            _copy_rest(storage, task, writer)
        with contextlib.suppress(CorruptBatchError, FileNotFoundError):
            writer.add_aborted(SegmentFile(storage, segment).aborted_in(segment.base_offset, segment.next_offset))
        new = writer.close(topic_id=segment.topic_id, created_ms=segment.created_ms, state=segment.state)
        # The row keeps its offsets, whatever was cut at its ends: the log would have a gap that no hole names.
        new = dataclasses.replace(new, base_offset=segment.base_offset, next_offset=segment.next_offset)
        look = SegmentTask(task.topic, new, segment.base_offset, (), task.limits, by_kafka=False, may_end_early=True)
        findings = look_at(storage, look).findings
        if findings:
            raise CorruptBatchError(
                f"A copy without its damaged batches would be wrong, too: {findings[0]}", path=new.path
            )
    return new


def _copy_rest(storage: Storage, task: CutTask, writer: SegmentWriter) -> None:
    """Copies the batches that are not lost, in runs of neighbours."""
    segment = task.segment
    index = None
    with contextlib.suppress(FileNotFoundError):
        index = storage.read(segment.index_path, segment.index_position or 0, segment.index_bytes).to_pybytes()
    examination = Examination.of(storage, segment, segment.name_offset)
    for window in examination.windows(lambda *_: True, batch_starts(segment, index)):
        examination.add(window.batches, lambda batches: int(batches.count.sum()))
        kept = window.overlaps(segment.base_offset, segment.next_offset)
        for lost in task.lost:
            kept &= ~window.overlaps(*lost)
        for run in np.split(np.arange(len(kept)), np.flatnonzero(np.diff(kept)) + 1):
            if kept[run[0]]:
                _copy_run(writer, window.take(run), segment.base_offset, task.leader_epochs)


def _copy_run(writer: SegmentWriter, window: Window, start: int, leader_epochs: LeaderEpochs) -> None:
    for part in opened(window):
        for piece in trimmed(part, start):
            data, batches = rebased(piece, leader_epochs)
            writer.append(data, batches)
            writer.add_tombstones(count_tombstones(pa.py_buffer(data), batches))


def rebuild_sidecars(storage: Storage, task: Rebuild) -> Segment:
    """Task function: writes the new files, the .log byte for byte, and returns their row.

    Raises CorruptBatchError for a damaged .log, and then leaves no new file.
    """
    segment = task.segment
    with SegmentWriter(storage, task.topic, segment.partition, segment.name_offset, limits=task.limits) as writer:
        for window in SegmentFile(storage, segment).windows(as_written=True):
            end = int(window.batches.byte_position[-1] + window.batches.size[-1]) - window.byte_position
            writer.append(np.frombuffer(window.data, np.uint8, count=end), window.batches)
        writer.add_aborted(task.aborted.shifted(-segment.offset_shift))
        new = writer.close(topic_id=segment.topic_id, created_ms=segment.created_ms, state=segment.state)
        assert new.log_bytes == segment.log_bytes, (new, segment)
        producers = segment.stem + PRODUCER_SNAPSHOT_SUFFIX  # of an import
        if storage.exists(producers):
            copied = new.stem + PRODUCER_SNAPSHOT_SUFFIX
            copy_file(storage, producers, storage, copied, storage.size(producers))
    fields = ("path", "byte_position", "index_position", "index_bytes", "time_index_bytes", "txn_index_bytes")
    return dataclasses.replace(segment, **{name: getattr(new, name) for name in fields})


def commit_repairs(manifest: Manifest, old: Sequence[Segment], new: Sequence[Segment]) -> list[Segment]:
    """Replaces old rows by new rows and returns the new rows now in the log, which may have changed meanwhile."""
    if not old:
        return []
    swaps = [RowSwap([before], [after]) for before, after in zip(old, new, strict=True)]
    return [swap.new[0] for swap in manifest.swap_rows(REPAIR, swaps, topic_id=old[0].topic_id)]
