"""The records of a snapshot, as `LogDir.read` gives them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.decoding.decode import record_schema
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import check_partition, offset_bounds
from spark_segments.log.reading.ahead import Piece, read_ahead, reading_threads
from spark_segments.log.reading.isolation import READ_UNCOMMITTED, check_isolation_level
from spark_segments.log.reading.latest import LATEST, LatestPlan, read_latest
from spark_segments.log.reading.plan import ReadRange, cut, planned_ranges
from spark_segments.log.reading.read import read_range
from spark_segments.log.segment.reader import FIRST_WINDOW_BYTES, pieces_between
from spark_segments.log.segment.walk import BORDER_BYTES, WINDOW_BYTES
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.typed.columns import Columns

BINARY, BINARY_VIEW = "binary", "binary_view"

PIECE_BYTES = WINDOW_BYTES - BORDER_BYTES
"""Bytes of a .log that a thread reads at a time, by a single read. More would wait longer for those before them."""


INDEXES_AHEAD = 4
"""Indexes of an object store that are read before the pieces of their segments are."""


def check_reading(
    columns: Sequence[str] | None,
    isolation_level: str,
    view: str | None,
    include_control: bool,
    include_tombstones: bool,
) -> list[str]:
    """The names of the wanted columns; None means all. Raises InvalidOptionError for an unknown name or value."""
    names = list(RECORD_SCHEMA.names) if columns is None else list(columns)
    unknown = [name for name in names if name not in RECORD_SCHEMA.names]
    if unknown:
        raise InvalidOptionError(
            "Unknown columns", expected=f"some of {', '.join(RECORD_SCHEMA.names)}", found=", ".join(unknown)
        )
    if not names or len(set(names)) < len(names):  # Arrow's batches without columns have no rows to count
        raise InvalidOptionError(
            "Columns are at least one, and each once", expected="such as offset", found=", ".join(names) or "none"
        )
    check_isolation_level(isolation_level)
    if view not in (None, LATEST) or (view is not None and include_control):
        message = "Unknown view" if view != LATEST else "A view never contains control records"
        raise InvalidOptionError(message, expected=LATEST, found=view)
    if view is None and not include_tombstones:
        raise InvalidOptionError("Only the view latest can leave out tombstones", hint="Add view='latest'")
    return names


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that a read is asked for; see `LogDir.read`. No bound means all that is there.

    `offsets`, where given, is {partition: (start, end)} and stands for all other bounds.
    """

    partition: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names)
    isolation_level: str = READ_UNCOMMITTED
    include_control: bool = False
    latest: bool = False
    include_tombstones: bool = True
    value_type: str = BINARY
    offsets: Mapping[int, tuple[int, int]] | None = None


def record_reader(
    storage: Storage, snapshot: Snapshot, wanted: Wanted, *, typed: Columns | None = None, threads: int | None = None
) -> pa.RecordBatchReader:
    """The same records as a lazy Arrow stream. `threads`: None is `reading_threads`.

    Raises InvalidOptionError for an unknown value_type, and for binary_view where a value format gives the type.
    """
    if wanted.value_type not in (BINARY, BINARY_VIEW):
        raise InvalidOptionError(
            "Unknown value_type", expected=f"{BINARY} or {BINARY_VIEW}", found=repr(wanted.value_type)
        )
    if wanted.value_type == BINARY_VIEW and typed is not None and typed.types("value"):
        raise InvalidOptionError("value_type is the type of values without a format", hint="Leave it out")
    batches = read_records(
        storage, snapshot, wanted, typed=typed, threads=reading_threads(storage) if threads is None else threads
    )
    if typed is not None:
        return pa.RecordBatchReader.from_batches(typed.schema, typed.conformed(batches))
    schema = record_schema(wanted.columns, view_values=wanted.value_type == BINARY_VIEW)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_records(
    storage: Storage,
    snapshot: Snapshot,
    wanted: Wanted,
    *,
    typed: Columns | None = None,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """The records of a snapshot; see `LogDir.read`. Plans at once, and reads as batches are asked for.

    `typed` decodes keys and values: its names are the columns then.
    """
    if wanted.partition is not None:
        check_partition(snapshot, wanted.partition)
    if threads < 1:
        raise InvalidOptionError("A read has at least one thread", expected="threads ≥ 1", found=threads)
    offsets = wanted.offsets
    if offsets is None:
        offsets = _offsets(snapshot, wanted)
    columns = wanted.columns if typed is None else typed.wanted
    as_views = wanted.value_type == BINARY_VIEW
    readers: Iterable[Piece]
    if wanted.latest:
        tasks = LatestPlan(snapshot, offsets, wanted.isolation_level, wanted.include_tombstones).tasks()
        readers = [partial(read_latest, storage, task, columns=columns, view_values=as_views) for task in tasks]
    else:
        ranges = planned_ranges(snapshot, offsets, isolation_level=wanted.isolation_level)
        read = partial(
            read_range, storage, columns=columns, include_control=wanted.include_control, view_values=as_views
        )
        readers = _pieces(storage, snapshot, ranges, read) if threads > 1 else (partial(read, one) for one in ranges)
    if typed is not None:
        readers = (_Typed(typed, reader) for reader in readers)
    return read_ahead(readers, threads)


def _offsets(snapshot: Snapshot, wanted: Wanted) -> dict[int, tuple[int, int]]:
    return {
        number: (
            log_start if wanted.start_offset is None else wanted.start_offset,
            log_end if wanted.end_offset is None else wanted.end_offset,
        )
        for number, (log_start, log_end) in offset_bounds(snapshot).items()
        if wanted.partition is None or number == wanted.partition
    }


@dataclass(frozen=True, slots=True)
class _Typed:
    """A piece with its keys and values decoded."""

    columns: Columns
    piece: Piece

    def __call__(self) -> Iterator[pa.RecordBatch]:
        return self.columns.decoded(self.piece())


def _pieces(
    storage: Storage, snapshot: Snapshot, ranges: Iterable[ReadRange], read: Callable[..., Iterator[pa.RecordBatch]]
) -> Iterator[Piece]:
    """The ranges as pieces of about PIECE_BYTES. Made as they are asked for: a large log has very many."""
    first_window_bytes = FIRST_WINDOW_BYTES  # the first records come soon, all others by as few reads as may be
    for one in pieces_of(storage, ranges, snapshot.stand_ins.offset_indexes):
        yield partial(read, one, first_window_bytes=first_window_bytes)
        first_window_bytes = WINDOW_BYTES


def pieces_of(
    storage: Storage, ranges: Iterable[ReadRange], indexes: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None
) -> Iterator[ReadRange]:
    """The ranges as ranges of about PIECE_BYTES, in order, which together are the ranges.

    Reads the .index of each range that is larger; of an object store, those of the next ranges at the same time.
    `indexes` in memory stand in for missing files.
    """
    cut_up = partial(_cut_up, storage, indexes or {})
    if storage.is_local:
        for whole in ranges:
            yield from cut_up(whole)
        return
    ahead: deque[Future[list[ReadRange]]] = deque()
    with ThreadPoolExecutor(INDEXES_AHEAD, thread_name_prefix="index-ahead") as pool:
        for whole in ranges:
            ahead.append(pool.submit(cut_up, whole))
            if len(ahead) > INDEXES_AHEAD:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()


def _cut_up(
    storage: Storage, indexes: Mapping[str, tuple[np.ndarray, np.ndarray]], whole: ReadRange
) -> list[ReadRange]:
    if whole.size_bytes <= PIECE_BYTES or whole.begin_position or whole.segment.path in indexes:
        return cut(whole, PIECE_BYTES if whole.segment.path in indexes else None, indexes)
    positions = range(whole.start_position, whole.end_position)
    found = pieces_between(storage, whole.segment, range(whole.start_offset, whole.end_offset), positions, PIECE_BYTES)
    pieces = [
        replace(whole, start_position=start, end_position=end, begin_position=begin) for start, end, begin in found
    ]
    is_looked_up = found[0][0] > max(whole.start_position, whole.segment.position)
    pieces[0] = replace(pieces[0], is_looked_up=is_looked_up)
    is_end_looked_up = found[-1][1] < min(whole.end_position, whole.segment.end_position)
    return [*pieces[:-1], replace(pieces[-1], is_end_looked_up=is_end_looked_up)]
