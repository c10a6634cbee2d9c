"""The records of a snapshot, as `LogDir.read` gives them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import check_partition, offset_bounds
from spark_segments.log.reading.isolation import READ_COMMITTED, READ_UNCOMMITTED
from spark_segments.log.reading.latest import LATEST, LatestPlan, read_latest
from spark_segments.log.reading.plan import read_ranges
from spark_segments.log.reading.read import read_range
from spark_segments.storage import Storage


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
    if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise InvalidOptionError(
            "Unknown isolation level", expected=f"{READ_UNCOMMITTED} or {READ_COMMITTED}", found=isolation_level
        )
    if view not in (None, LATEST) or (view is not None and include_control):
        message = "Unknown view" if view != LATEST else "Control records are in no view"
        raise InvalidOptionError(message, expected=LATEST, found=view)
    if view is None and not include_tombstones:
        raise InvalidOptionError("Tombstones are left out of the view latest alone", hint="Add view='latest'")
    return names


def read_records(
    storage: Storage,
    snapshot: Snapshot,
    partition: int | None,
    start_offset: int | None,
    end_offset: int | None,
    columns: Sequence[str],
    isolation_level: str,
    *,
    include_control: bool,
    latest: bool,
    include_tombstones: bool,
) -> Iterator[pa.RecordBatch]:
    """The records of a snapshot; see `LogDir.read`. Plans at once, and reads as batches are asked for."""
    if partition is not None:
        check_partition(snapshot, partition)
    offsets = {
        number: (log_start if start_offset is None else start_offset, log_end if end_offset is None else end_offset)
        for number, (log_start, log_end) in offset_bounds(snapshot).items()
        if partition is None or number == partition
    }
    if latest:
        tasks = LatestPlan(snapshot, offsets, isolation_level, include_tombstones).tasks()
        return itertools.chain.from_iterable(read_latest(storage, task, columns=columns) for task in tasks)
    ranges = read_ranges(snapshot, offsets, isolation_level=isolation_level)
    return itertools.chain.from_iterable(
        read_range(storage, one, columns=columns, include_control=include_control) for one in ranges
    )
