"""Rolling: a partition's active segment becomes sealed segments, and many small chunks become one.

Batches are copied, not decoded: what changes in them is the base offset and the leader epoch, which lie outside their
CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import SegmentsError
from spark_segments.execution import task_slots, try_tasks
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.manifest import Change
from spark_segments.log.manifest.rows import SEALED, Segment, segments_of
from spark_segments.log.manifest.snapshot import Snapshot, live_rows
from spark_segments.log.segment.copying import copy_batches
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.report import LOST, Report
from spark_segments.maintenance.rolling.plan import Due, RollPlan, RollRules, plan_roll
from spark_segments.maintenance.rolling.planned_segments import Piece, find_pieces
from spark_segments.maintenance.selection import check_young, selected_topics
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]

WAVE_PARTITIONS = 1000
WAVE_BYTES_A_SLOT = 2 << 30
"""How much is done before it is committed: a job that is killed keeps all but its last wave."""


@dataclass(frozen=True, slots=True)
class _FindPieces:
    """Task function: where the active segment of one partition is to be cut."""

    storage: Storage
    rules: RollRules
    now_ms: int

    def __call__(self, chunks: Sequence[Segment]) -> list[Piece]:
        return find_pieces(self.storage, chunks, self.rules, self.now_ms)


@dataclass(frozen=True, slots=True)
class _CopyTask:
    piece: Piece
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _CopyPiece:
    """Task function: copies one piece into a file of its own and returns its row."""

    storage: Storage
    topic: str
    rules: RollRules

    def __call__(self, task: _CopyTask) -> Segment:
        piece = task.piece
        return copy_batches(
            self.storage,
            self.topic,
            piece.chunks,
            piece.base_offset,
            piece.next_offset,
            sealed=piece.sealed,
            leader_epoch=task.leader_epoch,
            limits=self.rules.limits,
        )


@dataclass(frozen=True, slots=True)
class _Rolled:
    """What becomes of one partition's active segment: its pieces, and the files of those that were copied."""

    due: Due
    chunks: tuple[Segment, ...]
    pieces: list[Piece]
    copies: dict[Piece, Segment]

    @property
    def taken(self) -> list[Segment]:
        """The chunks that the pieces are made of, and empty ones: an import may have brought an empty file."""
        inside = {chunk.path for piece in self.pieces for chunk in piece.chunks}
        return [chunk for chunk in self.chunks if chunk.path in inside or chunk.log_bytes == 0]

    @property
    def files(self) -> list[Segment]:
        """The rows that the pieces become."""
        return [self.copies.get(piece) or replace(piece.chunks[0], state=SEALED) for piece in self.pieces]

    def change(self, removed_ms: int) -> tuple[list[Segment], list[Segment]]:
        """(rows to add, rows to replace)"""
        sealed = {row.path: row for row in self.files}
        return (
            list(self.copies.values()),
            [sealed.get(chunk.path) or chunk.removed(removed_ms) for chunk in self.taken],
        )


def roll(
    log: LogDir,
    spark: SparkSession | None = None,
    topic: str | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    *,
    progress: Progress | None = None,
) -> Report:
    """Rolls what is due at `now_ms` in one topic or all, by Kafka's rules, and merges small chunks.

    Looking for cuts is a task a partition, copying a task an output segment. A topic's partitions go in waves of one
    commit each; those in which somebody else was quicker are left to the next run, their new files to vacuum. So are
    those that fail, for a damaged file say: see `Report`. Each wave goes by the topic's configuration as it is when the
    wave begins. A dry run says which partitions are due and why, and opens no segment.
    """
    report = Report("roll", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    for snapshot, config in selected_topics(log, topic, report):
        rules = RollRules.of(snapshot.topic_id, config)
        plan = plan_roll(snapshot.live, rules, now_ms)
        if dry_run:
            _note_plan(report, snapshot, plan)
            continue
        done, total = 0, len(plan.due)
        for wave in _waves(plan.due, WAVE_BYTES_A_SLOT * task_slots(spark)):
            step = _within(progress, done, len(wave), total)
            try:
                altered = _altered(log, snapshot, rules, wave, now_ms) if done else None
            except SegmentsError as error:
                for one in wave:
                    report.fail(snapshot.topic, one.partition, error)
            else:
                _roll_wave(log, spark, *(altered or (snapshot, rules, plan, wave)), now_ms, report, step)
            done += len(wave)
            if progress is not None:
                progress(done, total)
    return report.finish()


def _altered(
    log: LogDir, snapshot: Snapshot, rules: RollRules, wave: Sequence[Due], now_ms: int
) -> tuple[Snapshot, RollRules, RollPlan, list[Due]] | None:
    """What a wave is to be rolled by where the topic was altered since it was planned; None where it was not."""
    current = log.snapshot(snapshot.topic)
    now = RollRules.of(snapshot.topic_id, topic_config(current.config, log.defaults))
    if current.topic_id != snapshot.topic_id or now == rules:  # of another topic the commit takes no notice
        return None
    plan = plan_roll(current.live, now, now_ms)
    partitions = {one.partition for one in wave}
    return current, now, plan, [one for one in plan.due if one.partition in partitions]


def _waves(due: Sequence[Due], wave_bytes: int) -> Iterator[list[Due]]:
    wave: list[Due] = []
    size = 0
    for one in due:
        wave.append(one)
        size += one.log_bytes
        if size >= wave_bytes or len(wave) == WAVE_PARTITIONS:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


def _within(progress: Progress | None, before: int, partitions: int, total: int) -> Progress | None:
    """Progress in partitions, from the progress of one wave's copies."""
    if progress is None:
        return None
    return lambda done, tasks: progress(before + partitions * done // tasks, total)


def _roll_wave(
    log: LogDir,
    spark: SparkSession | None,
    snapshot: Snapshot,
    rules: RollRules,
    plan: RollPlan,
    wave: Sequence[Due],
    now_ms: int,
    report: Report,
    progress: Progress | None,
) -> None:
    started_ms = log.storage.now_ms()
    rolled = _copied(log, spark, snapshot, rules, plan, wave, now_ms, report, progress)
    if not rolled:
        return
    done: set[int] = set()

    def change(current: Snapshot) -> Change | None:
        done.clear()
        check_young(log.storage, started_ms)
        if current.topic_id != snapshot.topic_id:
            return None
        rows = live_rows(current.load_segments({one.due.partition for one in rolled}))
        paths = pa.array([chunk.path for one in rolled for chunk in one.taken], pa.string())
        there = {row.path: row for row in segments_of(rows.filter(pc.is_in(rows.column("path"), paths)))}
        added: list[Segment] = []
        replaced: list[Segment] = []
        removed_ms = log.storage.now_ms()  # readers count their delay from this commit, however long the copying took
        for one in rolled:
            if all(there.get(chunk.path) == chunk for chunk in one.taken):
                done.add(one.due.partition)
                new, old = one.change(removed_ms)
                added += new
                replaced += old
        return Change("roll", add=added, replace=replaced) if replaced else None

    try:
        log.manifest(snapshot.topic).commit(change)
    except SegmentsError as error:
        for one in rolled:
            report.fail(snapshot.topic, one.due.partition, error)
        return
    for one in rolled:
        _note(report, snapshot, one, lost=one.due.partition not in done)


def _copied(
    log: LogDir,
    spark: SparkSession | None,
    snapshot: Snapshot,
    rules: RollRules,
    plan: RollPlan,
    wave: Sequence[Due],
    now_ms: int,
    report: Report,
    progress: Progress | None,
) -> list[_Rolled]:
    """The partitions of a wave that have any pieces, with what has to be copied written out. Those that fail are noted
    and left out.
    """
    chunks = {one.partition: plan.chunks_of(one) for one in wave}
    find = _FindPieces(log.storage, rules, now_ms)
    looked = [one.partition for one in wave if one.needs_look]
    found = dict(zip(looked, try_tasks(find, [chunks[number] for number in looked], spark), strict=True))
    epochs = dict(zip(*(snapshot.partitions.column(n).to_pylist() for n in ("partition", "leader_epoch")), strict=True))
    rolled = []
    for one in wave:
        pieces = found[one.partition] if one.needs_look else find(chunks[one.partition])
        if isinstance(pieces, SegmentsError):
            report.fail(snapshot.topic, one.partition, pieces)
        elif pieces:
            rolled.append(_Rolled(one, chunks[one.partition], pieces, {}))
    tasks = [
        _CopyTask(piece, epochs[piece.partition])
        for one in rolled
        for piece in one.pieces
        if not (piece.sealed and piece.is_one_chunk)
    ]
    tasks.sort(key=lambda task: -task.piece.log_bytes)  # the longest first, so that none is waited for at the end
    rows = try_tasks(_CopyPiece(log.storage, snapshot.topic, rules), tasks, spark, progress=progress)
    by_partition = {one.due.partition: one for one in rolled}
    failed: dict[int, SegmentsError] = {}
    for task, row in zip(tasks, rows, strict=True):
        if isinstance(row, SegmentsError):
            failed.setdefault(task.piece.partition, row)
        else:
            by_partition[task.piece.partition].copies[task.piece] = row
    for number, error in failed.items():
        report.fail(snapshot.topic, number, error)
        # No commit knows of them. Left to vacuum, a partition that fails in each run would pile up copies of itself.
        discard(log.storage, by_partition[number].copies.values())
    return [one for one in rolled if one.due.partition not in failed]


def _note_plan(report: Report, snapshot: Snapshot, plan: RollPlan) -> None:
    for one in plan.due:
        report.add(
            snapshot.topic, one.partition, "roll",
            records_in=one.records, records_out=one.records, bytes_in=one.log_bytes, bytes_out=one.log_bytes,
            reasons=list(one.reasons), chunks=one.rows,
        )  # fmt: skip


def _note(report: Report, snapshot: Snapshot, one: _Rolled, *, lost: bool) -> None:
    if lost:
        report.add(snapshot.topic, one.due.partition, LOST, reasons=list(one.due.reasons))
        return
    taken, files = one.taken, one.files
    report.add(
        snapshot.topic, one.due.partition, "roll",
        records_in=sum(chunk.records for chunk in taken),
        records_out=sum(row.records for row in files),
        bytes_in=sum(chunk.log_bytes for chunk in taken),
        bytes_out=sum(row.log_bytes for row in files),
        reasons=list(one.due.reasons),
        chunks=len(taken),
        sealed=[piece.base_offset for piece in one.pieces if piece.sealed],
        merged=sum(1 for piece in one.pieces if not piece.sealed),
        copied_bytes=sum(row.log_bytes for row in one.copies.values()),
    )  # fmt: skip
