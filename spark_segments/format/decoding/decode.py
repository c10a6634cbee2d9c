"""Record batches to Arrow columns.

Wanted batches are cut into groups (batch_groups.py). Kernels (decode_kernels.py) read the records of a group into
columns (columns.py). Messages of magic 0 and 1 are batches of magic 2 by then (legacy.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.decoding import decode_kernels
from spark_segments.format.decoding.batch_groups import BatchGroup, WantedRecords, batch_groups, offsets_of_headers
from spark_segments.format.decoding.columns import MOST_ROWS, DecodedColumns, record_batches
from spark_segments.format.decoding.fields import POSITION
from spark_segments.format.decoding.outcomes import corrupt
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.format.window import Window

OF_BATCHES = frozenset(("topic", "partition", "offset"))
"""The columns that come from the headers of batches."""

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def decode_batches(
    window: Window,
    *,
    topic: str,
    partition: int,
    start_offset: int | None = None,
    end_offset: int | None = None,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    include_control: bool = False,
    exclude: np.ndarray | None = None,
    target_bytes: int = 4 << 20,
    view_values: bool = False,
    marked: list[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a window's batches as RecordBatches of about `target_bytes`, none of them empty.

    Batches where `exclude` (bool[n]) is true are left out, and so are control batches unless `include_control`.
    `start_offset` and `end_offset` (exclusive) are offsets of the log. Only the columns in `columns` are built, in that
    order and with the types of layout.RECORD_SCHEMA. Without key, value and headers, the bytes behind a record's offset
    are neither read nor checked; of topic, partition and offset alone, no byte behind the header of a batch is that has
    a record at each of its offsets.

    Timestamps are microseconds; a timestamp that does not fit becomes the nearest that does. Header names that are not
    UTF-8 are read as Java reads them, with replacement characters. Raises CorruptBatchError with the position of a bad
    batch, in place of the RecordBatch that would have held its records.

    With `view_values` the type of values is binary_view. Those above 12 bytes are views of the window's data, or of
    what was decompressed, and keep it in memory; nothing of them is copied. The positions of the batches that have a
    record with attributes are added to `marked`.
    """
    selection = WantedRecords(
        _schema(tuple(columns), view_values),
        frozenset(columns),
        topic,
        _SMALLEST if start_offset is None else min(max(start_offset, _SMALLEST), _LARGEST),
        _LARGEST if end_offset is None else min(max(end_offset, _SMALLEST), _LARGEST),
        include_control,
        target_bytes,
        view_values,
        window.timestamp_type,
    )
    if (window.batches.magic < 2).any():
        raise ValueError("messages of magic 0 and 1 are decoded once they are batches of magic 2")
    # Where no column is in the records themselves, the headers say all: nothing is decompressed, unless a header cannot
    # say which offsets its batch still has.
    offsets = None if selection.columns - OF_BATCHES else offsets_of_headers(window, exclude, selection)
    if offsets is not None:
        for rows in offsets:
            yield from record_batches(selection, len(rows), {"offset": pa.array(rows)}, {"partition": partition})
        return
    yield from _decoded(window, partition, exclude, selection, marked)


def _decoded(
    window: Window, partition: int, exclude: np.ndarray | None, selection: WantedRecords, marked: list[int] | None
) -> Iterator[pa.RecordBatch]:
    """The records of a window, group by group, into columns that take groups as long as they have room."""
    filling: DecodedColumns | None = None
    for group in batch_groups(window, exclude, selection):
        if filling is not None and not filling.has_room(group):
            yield from filling.record_batches()
            filling = None
        if filling is None:
            filling = DecodedColumns(group, selection, partition)
        outcome = filling.read(group)
        if outcome.problem:
            raise corrupt(outcome, window.path, int(group.sections[outcome.section, POSITION]))
        if marked is not None:
            marked += _with_attributes(group)
        if group.is_last:
            yield from filling.record_batches()
            filling = None


def _with_attributes(group: BatchGroup) -> list[int]:
    """The positions of the batches that have a record with attributes."""
    marks = np.zeros(len(group.sections), np.int8)
    decode_kernels.mark_attributes(group.sections, marks)
    positions: list[int] = group.sections[marks != 0, POSITION].tolist()
    return positions


def batches_of_offsets(
    start_offset: int, end_offset: int, *, topic: str, partition: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """As `decode_batches`, of offsets that all have a record. `columns`: of OF_BATCHES."""
    names = frozenset(columns)
    selection = WantedRecords(_schema(tuple(columns), False), names, topic, start_offset, end_offset, False, 0)
    for first in range(start_offset, end_offset, MOST_ROWS):
        end = min(first + MOST_ROWS, end_offset)
        offsets = {"offset": pa.array(np.arange(first, end))} if "offset" in names else {}
        yield from record_batches(selection, end - first, offsets, {"partition": partition})


def record_schema(columns: Sequence[str], *, view_values: bool) -> pa.Schema:
    """The schema of records' `columns`, in their order. Raises InvalidOptionError for an unknown name."""
    return _schema(tuple(columns), view_values)


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...], view_values: bool) -> pa.Schema:
    unknown = [name for name in columns if name not in RECORD_SCHEMA.names]
    if unknown:
        raise InvalidOptionError("No such column", expected=", ".join(RECORD_SCHEMA.names), found=", ".join(unknown))
    fields = [RECORD_SCHEMA.field(name) for name in columns]
    if view_values:
        fields = [field.with_type(pa.binary_view()) if field.name == "value" else field for field in fields]
    return pa.schema(fields)
