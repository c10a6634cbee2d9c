"""Rolling: a partition's active segment becomes sealed segments, and many small chunks become one.

Batches are copied, not decoded: what changes in them is the base offset and the leader epoch, which lie outside their
CRC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_segments.execution import run_tasks
from spark_segments.log.copying import copy_batches
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import Change
from spark_segments.log.rows import SEALED, Segment
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.cuts import Piece, find_pieces
from spark_segments.maintenance.report import Report
from spark_segments.maintenance.roll_plan import RollRules, RollTask, plan_roll
from spark_segments.maintenance.selection import selected_topics
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _FindPieces:
    """Task function: where one partition is to be cut."""

    storage: Storage
    rules: RollRules

    def __call__(self, task: RollTask) -> list[Piece]:
        return find_pieces(self.storage, task.chunks, self.rules, seal_all=task.seal_all)


@dataclass(frozen=True, slots=True)
class _WritePiece:
    """Task function: copies one piece into a file of its own and returns its row."""

    storage: Storage
    topic: str
    rules: RollRules
    leader_epochs: dict[int, int]

    def __call__(self, piece: Piece) -> Segment:
        return copy_batches(
            self.storage,
            self.topic,
            piece.chunks,
            piece.base_offset,
            piece.next_offset,
            sealed=piece.sealed,
            leader_epoch=self.leader_epochs[piece.partition],
            index_interval_bytes=self.rules.index_interval_bytes,
            segment_index_bytes=self.rules.segment_index_bytes,
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

    Looking for cuts is a task a partition, copying a task an output segment. One commit a topic; partitions in which
    somebody else was quicker are left for the next run, their new files for vacuum.
    """
    report = Report("roll", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    for snapshot, config in selected_topics(log, topic):
        rules = RollRules.of(snapshot.topic_id, config)
        tasks = plan_roll(snapshot.live, rules, now_ms)
        if dry_run:
            for task in tasks:
                records = sum(chunk.records for chunk in task.chunks)
                size = sum(chunk.log_bytes for chunk in task.chunks)
                report.add(
                    snapshot.topic, task.partition, "roll",
                    records_in=records, records_out=records, bytes_in=size, bytes_out=size,
                    reasons=list(task.reasons), chunks=len(task.chunks),
                )  # fmt: skip
            continue
        pieces = [piece for found in run_tasks(_FindPieces(log.storage, rules), tasks, spark) for piece in found]
        reasons = {task.partition: list(task.reasons) for task in tasks}
        _roll_topic(log, spark, snapshot, rules, pieces, reasons, now_ms, report, progress)
    return report.finish()


def _roll_topic(
    log: LogDir,
    spark: SparkSession | None,
    snapshot: Snapshot,
    rules: RollRules,
    pieces: Sequence[Piece],
    reasons: dict[int, list[str]],
    now_ms: int,
    report: Report,
    progress: Progress | None,
) -> None:
    epochs = {piece.partition: snapshot.partition(piece.partition).leader_epoch for piece in pieces}
    copied = [piece for piece in pieces if not (piece.sealed and piece.is_one_chunk)]
    copied.sort(key=lambda piece: -piece.log_bytes)
    rows = run_tasks(_WritePiece(log.storage, snapshot.topic, rules, epochs), copied, spark, progress=progress)
    written = dict(zip(copied, rows, strict=True))
    by_partition: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_partition[piece.partition].append(piece)
    done: list[int] = []

    def plan(current: Snapshot) -> Change | None:
        done.clear()
        added: list[Segment] = []
        replaced: list[Segment] = []
        if current.topic_id != snapshot.topic_id:
            return None
        for partition, mine in by_partition.items():
            chunks = {chunk.path: chunk for piece in mine for chunk in piece.chunks}
            live = {segment.path: segment for segment in current.live_of(partition)}
            if any(live.get(path) != chunk for path, chunk in chunks.items()):
                continue  # rolled, merged or deleted by somebody else in the meantime
            done.append(partition)
            added.extend(written[piece] for piece in mine if piece in written)
            kept = {piece.chunks[0].path for piece in mine if piece not in written}
            replaced.extend(
                replace(chunk, state=SEALED) if path in kept else chunk.removed(now_ms)
                for path, chunk in chunks.items()
            )
        return Change(add=added, replace=replaced, operation="roll") if replaced else None

    if not by_partition:
        return
    log.manifest(snapshot.topic).commit(plan)
    for partition in done:
        mine = by_partition[partition]
        rows_out = [written.get(piece, piece.chunks[0]) for piece in mine]
        chunks = {chunk.path: chunk for piece in mine for chunk in piece.chunks}.values()
        report.add(
            snapshot.topic, partition, "roll",
            records_in=sum(chunk.records for chunk in chunks),
            records_out=sum(row.records for row in rows_out),
            bytes_in=sum(chunk.log_bytes for chunk in chunks),
            bytes_out=sum(row.log_bytes for row in rows_out),
            reasons=reasons[partition],
            sealed=[piece.base_offset for piece in mine if piece.sealed],
            merged=sum(1 for piece in mine if not piece.sealed),
        )  # fmt: skip
