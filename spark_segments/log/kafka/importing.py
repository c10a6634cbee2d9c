"""Import: partitions that Kafka wrote become topics of a log directory, their segments and sidecars byte for byte.

Each segment is a copying task. Copies are committed wave by wave. So a repeated import goes on where a killed import
stopped, and adds the new segments of a directory that has grown.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError, InvalidOptionError, LogDirError
from spark_segments.execution import run_tasks
from spark_segments.format.batches import scan_batches
from spark_segments.format.layout import BATCH_LENGTH_POSITION, BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION
from spark_segments.format.legacy.upconvert import to_magic2
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.format.window import Window
from spark_segments.log.bins import in_bins
from spark_segments.log.kafka.directory import KafkaDirectory, KafkaSnapshot
from spark_segments.log.kafka.import_landing import IMPORT, Landing
from spark_segments.log.kafka.import_names import check_names
from spark_segments.log.kafka.import_plan import PartitionPlan, SegmentCopy, check_end, compare_with_kafka, plan_import
from spark_segments.log.kafka.partition import PRODUCER_SNAPSHOT_SUFFIX, ZERO_TOPIC_ID
from spark_segments.log.kafka.recovered import CUT_SHORT, Cut
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import (
    CHUNK,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Partition,
    Segment,
    partitions_of,
    segments_of,
)
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.segment.copying import copy_batches, copy_file, copy_log, rebased, trimmed
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.reader import windows
from spark_segments.log.segment.writer import SegmentWriter, count_tombstones, segment_stem
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.config import TopicConfig

WAVE_BYTES = 4 << 30
LONGEST_TAIL_BYTES = 256 << 20
KAFKA = "kafka"  # the only value of `recovery`


@dataclass(frozen=True, slots=True)
class _Copy:
    """Task function: copies a segment and returns its row here."""

    source: Storage
    target: Storage
    limits: SegmentLimits

    @property
    def at_a_time(self) -> int | None:
        return self.source.tasks_at_a_time or self.target.tasks_at_a_time

    def __call__(self, task: SegmentCopy) -> Segment:
        copied = self._copy(task)
        if self.limits.forced:
            paths = [copied.path, copied.index_path, copied.time_index_path]
            others = (copied.txn_index_path, copied.stem + PRODUCER_SNAPSHOT_SUFFIX)
            self.target.force([*paths, *(path for path in others if self.target.exists(path))])
        return copied

    def _copy(self, task: SegmentCopy) -> Segment:
        row = dataclasses.replace(task.row, topic_id=task.topic_id)
        if _is_legacy(self.source, row):
            return _converted(self, task.topic, row, max(task.base_offset, row.base_offset))
        partly = max(task.base_offset, row.base_offset) > row.name_offset
        if partly or not _has_indexes(self.source, row):
            # A part of a file, or a file without usable indexes: its batches are copied and indexed anew.
            copied = copy_batches(
                self.source,
                task.topic,
                [row if partly else dataclasses.replace(row, txn_index_bytes=0)],
                max(task.base_offset, row.base_offset),
                row.next_offset,
                sealed=row.state != CHUNK,
                leader_epochs=None,
                target=self.target,
                limits=self.limits,
            )
            copied = dataclasses.replace(copied, created_ms=row.created_ms)
            if partly and task.aborted is None:
                return copied
            return _with_transactions(self.source, self.target, row, copied, task.aborted)
        return _copied(self.source, self.target, task.topic, row, task.aborted)


def import_topic(
    source: KafkaDirectory,
    storage: Storage,
    manifest: Manifest,
    topic: str,
    overrides: Mapping[str, str],
    config: TopicConfig,
    *,
    spark: SparkSession | None = None,
    recovery: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Imports a topic, or its new segments, and returns {"topic", "partitions", "segments", "records", "bytes"} copied.

    Raises LogDirError where damage would cut the log by more than a torn last batch, or segments are missing that
    Kafka's cleaner has seen (`recovery="kafka"` takes the log as a broker does), where a segment holds offsets that an
    index cannot, and, before anything is copied, where the topic of this name holds other records.
    """
    if recovery not in (None, KAFKA):
        raise InvalidOptionError("Unknown recovery", expected=KAFKA, found=recovery)
    check_names(source, topic)
    found = source.snapshot(topic)
    if recovery is None:
        for cut in found.report.cuts:
            _check_cut(source.storage, cut)
        check_end(source.storage, found)
    for row in segments_of(found.live):
        _check_offsets(source.storage, row)
    _create(manifest, found, overrides)
    current = manifest.snapshot()
    comparisons = compare_with_kafka(source.storage, storage, current, found, spark)
    if _add_partitions(manifest, found):
        current = manifest.snapshot()
    plans = plan_import(source.storage, current, found, comparisons)
    task_count = sum(len(plan.tasks) for plan in plans.values())
    first_dirty = {row.partition: row.first_dirty_offset for row in partitions_of(current.partitions)}
    landing = Landing(manifest, found, current, plans, first_dirty)
    copy = _Copy(source.storage, storage, SegmentLimits.of(config))
    done = {"topic": topic, "partitions": found.partitions.num_rows, "segments": 0, "records": 0, "bytes": 0}
    copied_count = 0

    def note(finished: int, _: int) -> None:
        if progress is not None:
            progress(copied_count + finished, task_count)

    for wave in _waves(plans):
        rows = run_tasks(copy, wave, spark, progress=note, at_a_time=copy.at_a_time)
        copied_count += len(wave)
        landing.commit(list(zip(wave, rows, strict=True)))
        done["segments"] += len(rows)
        done["records"] += sum(row.records for row in rows)
        done["bytes"] += sum(row.log_bytes for row in rows)
    landing.commit([], last=True)
    return done


def _check_offsets(storage: Storage, row: Segment) -> None:
    """Raises LogDirError for a segment with an offset that no entry of its indexes can hold.

    Cleaners before Kafka 1.1.1 could write such a segment. Only a segment whose next segment begins that far away is
    opened.
    """
    largest = row.name_offset + MAX_RELATIVE_OFFSET
    if row.next_offset - 1 <= largest:
        return
    for window in windows(storage, row, check_crc=False):
        beyond = np.flatnonzero(window.batches.last_offset > largest)
        if len(beyond):
            raise LogDirError(
                "A segment holds an offset that its indexes cannot hold",
                path=storage.location(row.path),
                position=int(window.batches.position[beyond[0]]),
                expected=f"at most {MAX_RELATIVE_OFFSET} above its base offset {row.name_offset}",
                found=f"{window.batches.last_offset[beyond[0]]}",
                hint="Start a Kafka broker of version 1.1.1 or later on the directory once: it splits the segment",
            )


def _create(manifest: Manifest, found: KafkaSnapshot, overrides: Mapping[str, str]) -> None:
    """Makes the topic, empty at Kafka's log start, where it is not there yet."""
    if manifest.exists():
        check_role(manifest.snapshot(), IMPORT)
        return
    topic_id = found.topic_id
    if topic_id == ZERO_TOPIC_ID:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    rows = _empty_partitions(found, topic_id, 0)
    manifest.create(topic_id, overrides, rows)


def _add_partitions(manifest: Manifest, found: KafkaSnapshot) -> bool:
    """Adds the partitions that Kafka's topic gained since the topic was made here. Returns whether there are any."""

    def plan(current: Snapshot) -> Change | None:
        rows = _empty_partitions(found, current.topic_id, current.partitions.num_rows)
        return Change(IMPORT, partitions=rows) if rows else None

    return manifest.commit(plan).change is not None


def _empty_partitions(found: KafkaSnapshot, topic_id: str, first: int) -> list[Partition]:
    """Partitions from number `first` on, each empty at Kafka's log start; partitions of other brokers begin at 0."""
    starts = {row.partition: row.log_start_offset for row in partitions_of(found.partitions)}
    rows = []
    for number in range(first, max(starts) + 1):
        start = starts.get(number, 0)
        rows.append(
            Partition(
                topic_id, number, log_start_offset=start, log_end_offset=start, first_dirty_offset=start,
                last_stable_offset=start,
            )
        )  # fmt: skip
    return rows


def _check_cut(source: Storage, cut: Cut) -> None:
    """Accepts zeros and a torn batch at the end of the last segment. Raises LogDirError for every other cut."""
    if not cut.dropped and cut.bytes <= LONGEST_TAIL_BYTES:
        tail = np.frombuffer(source.read(cut.path, cut.position, cut.bytes), np.uint8)
        if not tail.any() or (cut.reason == CUT_SHORT and not _holds_batch(tail)):
            return
    raise LogDirError(
        "Damage would cut the log: " + str(cut),
        hint="Import from an intact replica, or accept the cut, as a broker does, with recovery=kafka",
    )


def _holds_batch(tail: np.ndarray) -> bool:
    """Whether a whole record batch lies anywhere behind a bad batch: then more than a torn end would be lost."""
    magic = np.flatnonzero(tail[MAGIC_POSITION:] <= 2)
    starts = magic[magic + BATCH_OVERHEAD <= len(tail)]
    lengths = np.zeros(len(starts), np.int64)
    for byte in range(4):
        lengths = lengths << 8 | tail[starts + BATCH_LENGTH_POSITION + byte]
    fits = (lengths >= LOG_OVERHEAD) & (starts + LOG_OVERHEAD + lengths <= len(tail))
    for start, length in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
        if len(scan_batches(tail[start : start + LOG_OVERHEAD + length]).batches):
            return True
    return False


def _waves(plans: Mapping[int, PartitionPlan]) -> Iterator[list[SegmentCopy]]:
    """The copies of each commit. Copies that replace all rows of a partition stay in the same commit."""

    def begins(wave: list[tuple[int, SegmentCopy]], total: int, numbered: tuple[int, SegmentCopy]) -> bool:
        number, _ = numbered
        return total >= WAVE_BYTES and not (plans[number].replaces_all and wave[-1][0] == number)

    numbered = ((number, task) for number, plan in plans.items() for task in plan.tasks)
    for wave in in_bins(numbered, lambda one: one[1].row.log_bytes, begins):
        yield [task for _, task in wave]


def _copied(source: Storage, target: Storage, topic: str, row: Segment, aborted: AbortedTransactions | None) -> Segment:
    """The segment as it is: its .log up to where recovery ends it, and its sidecars."""
    stem = segment_stem(topic, row.partition, row.name_offset)
    copy_log(source, row, target, stem + LOG_SUFFIX, unique=True)
    copy_file(source, row.index_path, target, stem + INDEX_SUFFIX, row.index_bytes, unique=True)
    copy_file(source, row.time_index_path, target, stem + TIME_INDEX_SUFFIX, row.time_index_bytes, unique=True)
    return _with_transactions(source, target, row, dataclasses.replace(row, path=stem + LOG_SUFFIX), aborted)


def _with_transactions(
    source: Storage, target: Storage, row: Segment, copied: Segment, aborted: AbortedTransactions | None
) -> Segment:
    """Copies a segment's .txnindex (unless `aborted` stands in for it) and .snapshot, where they can be read."""
    snapshot = row.stem + PRODUCER_SNAPSHOT_SUFFIX
    if source.exists(snapshot) and copied.base_offset == row.name_offset:
        copy_file(source, snapshot, target, copied.stem + PRODUCER_SNAPSHOT_SUFFIX, source.size(snapshot))
    if aborted is not None:
        data = txn_index_bytes(aborted.overlapping(copied.base_offset, copied.next_offset))
        if data:
            target.write(copied.txn_index_path, data)
        return dataclasses.replace(copied, txn_index_bytes=len(data))
    if not source.exists(row.txn_index_path):
        return copied
    size = source.size(row.txn_index_path)
    try:
        entries = parse_txn_index(source.read(row.txn_index_path), path=row.txn_index_path)
    except CorruptBatchError:
        return copied
    if not len(entries) or int(entries.last_offset.max()) >= row.next_offset:
        return copied
    copy_file(source, row.txn_index_path, target, copied.txn_index_path, size)
    return dataclasses.replace(copied, txn_index_bytes=size)


def _has_indexes(source: Storage, row: Segment) -> bool:
    """Whether both indexes are there and true: recovery uses them, or both are empty."""
    for path, size in ((row.index_path, row.index_bytes), (row.time_index_path, row.time_index_bytes)):
        if size == 0 and not (source.exists(path) and source.size(path) == 0):
            return False
    return True


def _is_legacy(source: Storage, row: Segment) -> bool:
    """Whether the segment begins with a message of magic 0 or 1."""
    header = source.read(row.path, 0, MAGIC_POSITION + 1).to_pybytes() if row.log_bytes else b""
    return len(header) > MAGIC_POSITION and header[MAGIC_POSITION] < 2


def _converted(copy: _Copy, topic: str, row: Segment, base_offset: int) -> Segment:
    """The segment from `base_offset` on. Messages of magic 0 and 1 become batches of magic 2 at the same offsets."""
    writer = SegmentWriter(
        copy.target,
        topic,
        row.partition,
        base_offset,
        limits=copy.limits,
    )
    for window in windows(copy.source, row):
        window = window.take(window.batches.last_offset >= base_offset)
        legacy = window.batches.magic < 2
        edges = [0, *(i for i in range(1, len(legacy)) if legacy[i] != legacy[i - 1]), len(legacy)]
        for start, stop in itertools.pairwise(edges):
            part = window.take(slice(start, stop))
            if not len(part.batches):
                continue
            if legacy[start]:
                encoded = to_magic2(part)
                part = Window(encoded.buffer, encoded.batches, path=row.path)
            for piece in trimmed(part, base_offset):
                data, batches = rebased(piece)
                writer.append(data, batches)
                writer.add_tombstones(count_tombstones(pa.py_buffer(data), batches))
    written = writer.close(topic_id=row.topic_id, created_ms=row.created_ms, state=row.state)
    return dataclasses.replace(written, next_offset=row.next_offset)
