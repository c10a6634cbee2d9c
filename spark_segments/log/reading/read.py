"""Reading a range that plan.py laid out: the work of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.reading.isolation import READ_COMMITTED, READ_UNCOMMITTED, load_aborted
from spark_segments.log.reading.plan import ReadRange
from spark_segments.log.segment.reader import FIRST_WINDOW_BYTES, read_segment
from spark_segments.storage import Storage

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "read_range"]


def read_range(
    storage: Storage,
    rng: ReadRange,
    *,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    include_control: bool = False,
    first_window_bytes: int = FIRST_WINDOW_BYTES,
    view_values: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of one range, by offset, in batches of a few MiB. Raises CorruptBatchError for damaged bytes.

    The first read is of `first_window_bytes` at most, so that first records come soon; further reads are larger.
    """
    aborted = None
    if rng.transactions:
        aborted = load_aborted(storage, rng.transactions, rng.start_offset, rng.end_offset)
    return read_segment(
        storage,
        rng.segment,
        rng.topic,
        start_offset=rng.start_offset,
        end_offset=rng.end_offset,
        start_position=rng.start_position,
        end_position=rng.end_position,
        begin_position=rng.begin_position,
        is_looked_up=rng.is_looked_up,
        is_end_looked_up=rng.is_end_looked_up,
        columns=columns,
        include_control=include_control,
        aborted=aborted,
        first_window_bytes=first_window_bytes,
        view_values=view_values,
    )
