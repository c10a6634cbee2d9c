"""Import: partitions that Kafka wrote become topics of a log directory, their segments and sidecars byte for byte.

Copying is a task a segment; what has been copied is committed wave by wave, so that an import that was killed goes on
where it was, and one of a directory that has grown adds what is new.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError, InvalidOptionError, LogDirError, SegmentsError
from spark_segments.execution import run_tasks
from spark_segments.format.batches import scan_batches
from spark_segments.format.layout import BATCH_LENGTH_POSITION, BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION
from spark_segments.format.legacy.upconvert import to_magic2
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.log.kafka.directory import KafkaDirectory, KafkaSnapshot
from spark_segments.log.kafka.partition import PRODUCER_SNAPSHOT_SUFFIX, ZERO_TOPIC_ID
from spark_segments.log.kafka.recovered import CUT_SHORT, Cut
from spark_segments.log.manifest.manifest import Change, Manifest
from spark_segments.log.manifest.rows import (
    CHUNK,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Partition,
    Segment,
    partitions_of,
)
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.segment.copying import copy_batches, copy_file, rebased, trimmed
from spark_segments.log.segment.reader import Window, locate, windows
from spark_segments.log.segment.writer import SegmentWriter, count_tombstones, segment_stem
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.config import TopicConfig

WAVE_BYTES = 4 << 30
LONGEST_TAIL_BYTES = 256 << 20
KAFKA = "kafka"  # the only value of `recovery`


@dataclass(frozen=True, slots=True)
class _CopyTask:
    """One segment to be copied: `row` as found in Kafka's directory; from `base_offset` on where it is below that.

    `aborted`: what a scan found where the segment's .txnindex is missing or says what is not so.
    """

    topic: str
    topic_id: str
    row: Segment
    base_offset: int
    aborted: AbortedTransactions | None = None


@dataclass(frozen=True, slots=True)
class _Copy:
    """Task function: copies one segment and returns its row here."""

    source: Storage
    target: Storage
    index_interval_bytes: int
    segment_index_bytes: int

    def __call__(self, task: _CopyTask) -> Segment:
        row = dataclasses.replace(task.row, topic_id=task.topic_id)
        if _is_legacy(self.source, row):
            return _converted(self, task.topic, row)
        partly = max(task.base_offset, row.base_offset) > row.name_offset
        if partly or not _has_indexes(self.source, row):
            # A part of a file, or one whose indexes cannot be used: its batches are copied and indexed anew.
            copied = copy_batches(
                self.source,
                task.topic,
                [row if partly else dataclasses.replace(row, txn_index_bytes=0)],
                max(task.base_offset, row.base_offset),
                row.next_offset,
                sealed=row.state != CHUNK,
                leader_epoch=None,
                target=self.target,
                index_interval_bytes=self.index_interval_bytes,
                segment_index_bytes=self.segment_index_bytes,
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
    """Imports one topic, or what of it is new, and returns {"topic", "partitions", "segments", "records", "bytes"} of
    that.

    Raises LogDirError where damage would cut the log by more than a torn last batch (`recovery="kafka"` takes the cut),
    and where a topic of this name is not this one.
    """
    if recovery not in (None, KAFKA):
        raise InvalidOptionError("Unknown recovery", expected=KAFKA, found=recovery)
    found = source.snapshot(topic)
    if recovery is None:
        for cut in found.report.cuts:
            _check_cut(source.storage, cut)
    _create(manifest, found, overrides)
    current = manifest.snapshot()
    _check_same(source.storage, storage, current, found)
    if _add_partitions(manifest, found):
        current = manifest.snapshot()
    tasks = list(_tasks(current, found))
    copy = _Copy(source.storage, storage, config.index_interval_bytes, config.segment_index_bytes)
    done = {"topic": topic, "partitions": found.partitions.num_rows, "segments": 0, "records": 0, "bytes": 0}
    copied_count = 0

    def note(finished: int, _: int) -> None:
        if progress is not None:
            progress(copied_count + finished, len(tasks))

    for wave in _waves(tasks):
        rows = run_tasks(copy, wave, spark, progress=note)
        copied_count += len(wave)
        _commit(manifest, found, rows)
        done["segments"] += len(rows)
        done["records"] += sum(row.records for row in rows)
        done["bytes"] += sum(row.log_bytes for row in rows)
    _commit(manifest, found, [])
    return done


def _create(manifest: Manifest, found: KafkaSnapshot, overrides: Mapping[str, str]) -> None:
    """Makes the topic, empty at Kafka's log start, where it is not there yet."""
    if manifest.exists():
        return
    topic_id = found.topic_id
    if topic_id == ZERO_TOPIC_ID:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    rows = _empty_partitions(found, topic_id, 0)
    manifest.create(topic_id, {"retention.ms": "-1"} | dict(overrides), rows)


def _add_partitions(manifest: Manifest, found: KafkaSnapshot) -> bool:
    """Adds the partitions that Kafka's topic has got since it was made here; whether there are any."""

    def plan(current: Snapshot) -> Change | None:
        rows = _empty_partitions(found, current.topic_id, current.partitions.num_rows)
        return Change("import", partitions=rows) if rows else None

    return manifest.commit(plan).change is not None


def _empty_partitions(found: KafkaSnapshot, topic_id: str, first: int) -> list[Partition]:
    """Partitions from number `first` on, each empty at Kafka's log start; those of other brokers begin at 0."""
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
    """Passes over zeros at the end of the last segment and a batch that is cut there; raises for the rest."""
    if not cut.dropped and cut.bytes <= LONGEST_TAIL_BYTES:
        tail = np.frombuffer(source.read(cut.path, cut.position, cut.bytes), np.uint8)
        if not tail.any() or (cut.reason == CUT_SHORT and not _holds_batch(tail)):
            return
    raise LogDirError(
        "Damage would cut the log: " + str(cut),
        hint="Import from a replica that is whole, or take the cut, as a broker would, with recovery=kafka",
    )


def _holds_batch(tail: np.ndarray) -> bool:
    """Whether a whole record batch lies anywhere behind a bad one: then more than a torn end would be lost."""
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


def _check_same(source: Storage, storage: Storage, current: Snapshot, found: KafkaSnapshot) -> None:
    """Raises LogDirError where the topic here cannot have come from the directory."""
    hint = "Import into another log directory, or delete the topic here first"
    if found.topic_id not in (ZERO_TOPIC_ID, current.topic_id):
        raise LogDirError(
            f"Topic {current.topic} is another one than that of the Kafka directory",
            expected=f"topic id {current.topic_id}",
            found=found.topic_id,
            hint=hint,
        )
    for row in partitions_of(found.partitions):
        if row.partition >= current.partitions.num_rows:
            continue  # it is to be added
        here = current.partition(row.partition)
        if here.log_end_offset > row.log_end_offset:
            raise LogDirError(
                f"{current.topic}-{row.partition} has records that the Kafka directory has not",
                expected=f"a log end of at most {row.log_end_offset}",
                found=here.log_end_offset,
                hint=hint,
            )
        last = current.live_of(row.partition)[-1:]
        if last and last[0].state == CHUNK and last[0].log_bytes:
            _check_same_end(source, storage, last[0], found, hint)


def _check_same_end(source: Storage, storage: Storage, last: Segment, found: KafkaSnapshot, hint: str) -> None:
    """The last batch here must be the one that the directory has at its offset."""
    ours = _batch_at(storage, last, last.next_offset - 1)
    for segment in found.live_of(last.partition):
        if segment.base_offset < last.next_offset <= segment.next_offset:
            theirs = _batch_at(source, segment, last.next_offset - 1)
            if theirs is not None and ours != theirs:
                raise LogDirError(
                    f"{found.topic}-{last.partition} holds other records than the Kafka directory",
                    path=last.path,
                    expected=f"the batch of offset {last.next_offset - 1} as in {segment.path}",
                    found="another one",
                    hint=hint,
                )


def _batch_at(storage: Storage, segment: Segment, offset: int) -> tuple[int, int] | None:
    """(last offset in the log, CRC) of the batch that holds an offset. Converted batches have CRCs of their own."""
    shift = segment.offset_shift
    for window in windows(storage, segment, locate(storage, segment, offset), check_crc=False):
        for batch in range(len(window.batches)):
            if int(window.batches.last_offset[batch]) + shift >= offset:
                first_offset = int(window.batches.base_offset[batch]) + shift
                if int(window.batches.magic[batch]) < 2 or first_offset < segment.base_offset:
                    return None  # the copy is not byte for byte
                return int(window.batches.last_offset[batch]) + shift, int(window.batches.crc[batch])
    return None


def _tasks(current: Snapshot, found: KafkaSnapshot) -> Iterator[_CopyTask]:
    """What is to be copied: segments beyond our log end, and again the one that was active at the last import."""
    for partition in partitions_of(found.partitions):
        here = current.partition(partition.partition)
        live = current.live_of(partition.partition)
        for row in found.live_of(partition.partition):
            again = bool(live) and live[-1].state == CHUNK and live[-1].base_offset == row.base_offset
            rolled = again and row.state != CHUNK  # its sidecars got their last entries
            empty = row.next_offset == row.base_offset and not live
            if row.next_offset <= here.log_end_offset and not (rolled or empty):
                continue
            start = row.base_offset if again else max(row.base_offset, here.log_end_offset)
            start = row.base_offset if not live else start
            yield _CopyTask(found.topic, current.topic_id, row, start, found.stand_ins.aborted.get(row.path))


def _waves(tasks: Sequence[_CopyTask]) -> Iterator[list[_CopyTask]]:
    wave: list[_CopyTask] = []
    size = 0
    for task in tasks:
        wave.append(task)
        size += task.row.log_bytes
        if size >= WAVE_BYTES:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


def _commit(manifest: Manifest, found: KafkaSnapshot, rows: Sequence[Segment]) -> None:
    """Lands copied segments; a partition that is now whole gets all else that Kafka's checkpoints say of it."""
    wanted = {row.partition: row for row in partitions_of(found.partitions)}

    def plan(current: Snapshot) -> Change | None:
        removed, added, partitions = [], [], []
        for number, theirs in wanted.items():
            mine = [row for row in rows if row.partition == number]
            live = {row.base_offset: row for row in current.live_of(number)}
            here = current.partition(number)
            end = here.log_end_offset
            for row in mine:
                before = live.get(row.base_offset)
                if before is not None and row.next_offset >= before.next_offset:
                    removed.append(before.removed(manifest.storage.now_ms()))
                elif row.base_offset < end and live:
                    raise SegmentsError(
                        f"{found.topic}-{number} was appended to while it was imported",
                        expected=f"a log end of {row.base_offset}",
                        found=end,
                        hint="Import into a log directory that nothing else writes to",
                    )
                added.append(row)
                end = max(end, row.next_offset)
            end = max(end, here.log_end_offset)
            done = end >= theirs.log_end_offset
            values = dataclasses.replace(theirs, topic_id=current.topic_id) if done else here
            changed = dataclasses.replace(
                values,
                log_start_offset=max(here.log_start_offset, theirs.log_start_offset),
                log_end_offset=end,
                first_dirty_offset=max(here.first_dirty_offset, values.first_dirty_offset),
                last_stable_offset=values.last_stable_offset,
            )
            if changed != here:
                partitions.append(changed)
        if not added and not partitions:
            return None
        return Change("import", add=added, replace=removed, partitions=partitions)

    manifest.commit(plan)


def _copied(source: Storage, target: Storage, topic: str, row: Segment, aborted: AbortedTransactions | None) -> Segment:
    """The segment as it is: its .log up to where recovery ends it, and its sidecars."""
    stem = segment_stem(topic, row.partition, row.name_offset)
    copy_file(source, row.path, target, stem + LOG_SUFFIX, row.log_bytes)
    copy_file(source, row.index_path, target, stem + INDEX_SUFFIX, row.index_bytes)
    copy_file(source, row.time_index_path, target, stem + TIME_INDEX_SUFFIX, row.time_index_bytes)
    return _with_transactions(source, target, row, dataclasses.replace(row, path=stem + LOG_SUFFIX), aborted)


def _with_transactions(
    source: Storage, target: Storage, row: Segment, copied: Segment, aborted: AbortedTransactions | None
) -> Segment:
    """Copies the .txnindex and the .snapshot that lie beside a segment, if they can be read; `aborted` stands in."""
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
    """Whether both indexes are there and true: recovery uses them, or they are empty."""
    for path, size in ((row.index_path, row.index_bytes), (row.time_index_path, row.time_index_bytes)):
        if size == 0 and not (source.exists(path) and source.size(path) == 0):
            return False
    return True


def _is_legacy(source: Storage, row: Segment) -> bool:
    """Whether the segment begins with a message of magic 0 or 1."""
    header = source.read(row.path, 0, MAGIC_POSITION + 1).to_pybytes() if row.log_bytes else b""
    return len(header) > MAGIC_POSITION and header[MAGIC_POSITION] < 2


def _converted(copy: _Copy, topic: str, row: Segment) -> Segment:
    """The segment with its messages of magic 0 and 1 as batches of magic 2, at their offsets."""
    writer = SegmentWriter(
        copy.target,
        topic,
        row.partition,
        row.base_offset,
        index_interval_bytes=copy.index_interval_bytes,
        segment_index_bytes=copy.segment_index_bytes,
    )
    for window in windows(copy.source, row):
        legacy = window.batches.magic < 2
        edges = [0, *(i for i in range(1, len(legacy)) if legacy[i] != legacy[i - 1]), len(legacy)]
        for start, stop in itertools.pairwise(edges):
            batches = window.batches.take(slice(start, stop))
            batches = batches.take(batches.last_offset >= row.base_offset)
            if not len(batches):
                continue
            part = Window(window.data, window.position, batches)
            if legacy[start]:
                encoded = to_magic2(window.data, batches, file_position=window.position, path=row.path)
                part = Window(encoded.buffer, 0, encoded.batches)
            for piece in trimmed(part, row.base_offset, row.path):
                data, batches = rebased(piece, piece.batches, 0)
                writer.append(data, batches)
                writer.add_tombstones(count_tombstones(pa.py_buffer(data), batches))
    written = writer.close(topic_id=row.topic_id, created_ms=row.created_ms, state=row.state)
    return dataclasses.replace(written, next_offset=row.next_offset)
