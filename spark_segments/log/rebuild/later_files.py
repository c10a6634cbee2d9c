"""Files of a topic that no known row names: committed after the last version that is known, or never.

A file does not say whether it was committed. A chunk does not know its offsets either; a file that a job wrote does.
Only what its batches say is told here. placing.py decides where such a file can stand in the log.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CorruptBatchError, MissingFileError
from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.appending.appender import NO_LEADER_EPOCH
from spark_segments.log.manifest.rows import (
    BASE_OFFSET_DIGITS,
    CHUNK,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from spark_segments.log.manifest.upkeep import ORPHAN_AGE_MS
from spark_segments.log.rebuild.anchors import Batches
from spark_segments.log.segment.fetch import fetch_ahead
from spark_segments.log.segment.figures import SegmentBuilder
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.reader import read_segment
from spark_segments.log.segment.shared_object import read_footer, shared_directory
from spark_segments.log.segment.walk import walk
from spark_segments.log.segment.writer import count_tombstones
from spark_segments.storage import FileInfo, Storage

_NAME = re.compile(rf"\d{{{BASE_OFFSET_DIGITS}}}\.[A-Za-z0-9_-]+\.log")
_GONE = "The file is gone"

IMPORTED = "It was imported from Kafka: import it again"


@dataclass(frozen=True, slots=True)
class LaterFile:
    """A file, or a run of a shared object, that no known row names.

    `made_ms`: when the writer or job made it, by its own word where it says so. `row`: what a row says of it, at the
    offsets in its bytes; None where it can be in no log, for the reason `problem`. `is_chunk`: its offsets begin at 0
    and are not those of the log. `is_merged`: such a chunk, that a roll made of others. `is_earlier`: it has an id that
    the topic had before an earlier rebuild. `has_transactions`: it has batches of Kafka's transactions.
    """

    path: str
    partition: int | None
    position: int
    size_bytes: int
    written_ms: int
    made_ms: int
    row: Segment | None = None
    problem: str | None = None
    is_chunk: bool = False
    is_merged: bool = False
    is_earlier: bool = False
    has_transactions: bool = False
    batches: Batches | None = None


def later_files(
    storage: Storage,
    topic: str,
    topic_ids: Sequence[str],
    named: Collection[str],
    copied_ms: int,
    partitions: int,
    limits: SegmentLimits,
) -> Iterator[LaterFile]:
    """The files of the topic that are not `named`, by partition and age. `topic_ids`: its id, then those before it.

    Files that were as old as a commit never is, when the copy was made, were left by writers that failed. Raises
    StorageError where the store fails.
    """
    before_ms = copied_ms - ORPHAN_AGE_MS
    for directory in _directories(storage, topic):
        listing = {info.path: info for info in storage.list(directory)}
        logs = [info for path, info in listing.items() if path.endswith(LOG_SUFFIX) and path not in named]
        for info in sorted(logs, key=lambda info: (info.mtime_ms, info.path)):
            if info.mtime_ms < before_ms or not _NAME.fullmatch(info.path.rpartition("/")[2]):
                continue
            if directory == shared_directory(topic):
                yield from _runs(storage, info, topic_ids, partitions, limits)
            else:
                yield _file(storage, info, topic_ids[0], int(directory.rpartition("-")[2]), partitions, listing, limits)


def batches_in(storage: Storage, row: Segment) -> Batches:
    """The batches in the file of a row. Raises CorruptBatchError where it is damaged or cut."""
    found: list[BatchTable] = []
    at = row.position
    with fetch_ahead(storage, row.path, row.end_position) as read:
        for step in walk(read, row.path, row.end_position, start_position=row.position, check_crc=False):
            if step.error is not None:
                raise step.error
            found.append(step.window.batches)
            at = step.end_position
    if at < row.end_position:
        raise CorruptBatchError(
            "The file is cut", path=row.path, position=at, expected=f"batches up to {row.end_position}", found="none"
        )
    return _facts(found)


def has_records_of(storage: Storage, topic: str, chunk: Segment, segment: Segment, start: int, end: int) -> bool:
    """See `anchors.SameRecords`."""
    names = ("offset", "timestamp", "key", "value")

    def records(row: Segment) -> pa.Table:
        found = list(read_segment(storage, row, topic, start_offset=start, end_offset=end, columns=names))
        return pa.Table.from_batches(found, None if found else pa.schema([RECORD_SCHEMA.field(name) for name in names]))

    try:
        whole, left = records(chunk), records(segment)
    except (CorruptBatchError, MissingFileError):
        return False
    rows = whole.filter(pc.is_in(whole.column("offset"), left.column("offset")))
    return left.num_rows > 0 and bool(rows.equals(left))


def _directories(storage: Storage, topic: str) -> list[str]:
    numbered = re.compile(rf"{re.escape(topic)}-(\d+)")
    found = storage.directories()
    numbers = sorted((int(match[1]), name) for name in found if (match := numbered.fullmatch(name)))
    return [name for _, name in numbers] + [name for name in found if name == shared_directory(topic)]


def _file(
    storage: Storage,
    info: FileInfo,
    topic_id: str,
    partition: int,
    partitions: int,
    listing: dict[str, FileInfo],
    limits: SegmentLimits,
) -> LaterFile:
    if partition >= partitions:
        problem = f"The topic has {partitions} partitions in the last known version"
        return LaterFile(info.path, partition, 0, info.size, info.mtime_ms, info.mtime_ms, problem=problem)
    stem = info.path.removesuffix(LOG_SUFFIX)
    sizes = [
        listing[stem + suffix].size if stem + suffix in listing else 0
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
    ]
    name_offset = int(info.path.rpartition("/")[2][:BASE_OFFSET_DIGITS])
    return _scanned(
        storage, _Run(info, partition, 0, info.size, name_offset, None), topic_id, info.mtime_ms, sizes, limits
    )


def _runs(
    storage: Storage, info: FileInfo, topic_ids: Sequence[str], partitions: int, limits: SegmentLimits
) -> Iterator[LaterFile]:
    def unusable(number: int | None, position: int, size: int, problem: str) -> LaterFile:
        return LaterFile(info.path, number, position, size, info.mtime_ms, info.mtime_ms, problem=problem)

    try:
        footer = read_footer(storage, info.path, info.size)
    except CorruptBatchError as error:
        yield unusable(None, 0, info.size, _first_line(error))
        return
    except MissingFileError:
        yield unusable(None, 0, info.size, _GONE)
        return
    if footer.topic_id not in topic_ids:
        problem = f"It belongs to another topic of this name: its topic id is {footer.topic_id}"
        yield unusable(None, 0, info.size, problem)
        return
    for entry in footer.runs:
        number, position, size = int(entry["partition"]), int(entry["position"]), int(entry["log_bytes"])
        if not 0 <= number < partitions:
            yield unusable(number, position, size, f"The topic has {partitions} partitions in the last known version")
            continue
        run = _Run(info, number, position, size, 0, int(entry["index_position"]))
        sizes = [int(entry["index_bytes"]), int(entry["time_index_bytes"]), 0]
        found = _scanned(storage, run, topic_ids[0], footer.created_ms, sizes, limits)
        yield dataclasses.replace(found, is_earlier=footer.topic_id != topic_ids[0])


@dataclass(frozen=True, slots=True)
class _Run:
    info: FileInfo
    partition: int
    position: int
    log_bytes: int
    name_offset: int
    index_position: int | None


def _scanned(
    storage: Storage, run: _Run, topic_id: str, made_ms: int, sizes: Sequence[int], limits: SegmentLimits
) -> LaterFile:
    """Reads every batch: CRC, offsets, records."""
    figures = SegmentBuilder(run.name_offset, limits)
    file = LaterFile(run.info.path, run.partition, run.position, run.log_bytes, run.info.mtime_ms, made_ms)
    try:
        tables = _add_batches(storage, run, figures)
    except CorruptBatchError as error:
        return dataclasses.replace(file, problem=_first_line(error))
    except MissingFileError:
        return dataclasses.replace(file, problem=_GONE)
    if not tables:
        return dataclasses.replace(file, problem="The file has no records")
    row = figures.figures.row(
        topic_id,
        run.partition,
        file.path,
        index_bytes=sizes[0],
        time_index_bytes=sizes[1],
        txn_index_bytes=sizes[2],
        created_ms=run.info.mtime_ms,
        state=CHUNK,
        position=run.position,
        index_position=run.index_position,
    )
    batches = BatchTable.concatenate(tables)
    is_appended = bool((batches.leader_epoch == NO_LEADER_EPOCH).all())
    is_run = run.index_position is not None
    has_transactions = bool((batches.is_transactional | batches.is_control).any())
    is_chunk = is_run or (run.name_offset == 0 and is_appended)
    if is_chunk and has_transactions:
        return dataclasses.replace(file, problem=IMPORTED)
    return dataclasses.replace(
        file,
        row=row,
        is_chunk=is_chunk,
        has_transactions=has_transactions,
        is_merged=is_run and not is_appended,
        batches=_facts(tables),
    )


def _add_batches(storage: Storage, run: _Run, builder: SegmentBuilder) -> list[BatchTable]:
    """The headers of all batches of a run. Raises CorruptBatchError where they are damaged, or end too early."""
    path, end, found = run.info.path, run.position + run.log_bytes, []
    with fetch_ahead(storage, path, end) as read:
        for step in walk(read, path, end, start_position=run.position):
            batches = step.window.batches
            if len(batches):
                _check(batches, builder.figures.next_offset)
                builder.add(batches)
                tombstones = count_tombstones(step.window.data, _in_window(batches, step.window.position))
                builder.figures.tombstones += tombstones
                found.append(batches)
            if step.error is not None:
                raise step.error
            if step.end_position < end and (step.is_last or step.is_short):
                raise CorruptBatchError("The file is cut within a record batch")
    return found


def _check(batches: BatchTable, next_offset: int) -> None:
    """Raises CorruptBatchError for batches that no writer of this package puts into a new file."""
    rises = np.append(batches.base_offset, np.iinfo(np.int64).max)[1:] > batches.last_offset
    if int(batches.base_offset[0]) < next_offset or not rises.all():
        raise CorruptBatchError("Offsets do not rise")
    if (batches.magic != 2).any():
        raise CorruptBatchError(IMPORTED)


def _in_window(batches: BatchTable, position: int) -> BatchTable:
    return dataclasses.replace(batches, position=batches.position - position)


def _facts(tables: list[BatchTable]) -> Batches:
    batches = BatchTable.concatenate(tables)
    return Batches(
        (batches.crc.astype(np.uint64) << np.uint64(32)) | batches.size.astype(np.uint64),
        batches.base_offset,
        batches.last_offset + 1,
        batches.base_timestamp,
        batches.max_timestamp,
    )


def _first_line(error: CorruptBatchError) -> str:
    facts = [f"{name} {value}" for name, value in (("expected", error.expected), ("found", error.found)) if value]
    where = "" if error.position is None else f" at position {error.position}"
    return error.message + where + (f": {', '.join(facts)}" if facts else "")
