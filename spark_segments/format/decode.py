"""Batches → Arrow: which batches and columns are wanted, in what portions, and the one error that damaged records give.

The records of magic 2 are read by the kernels of records.py, over many batches a call, into the columns of columns.py;
entries of magic 0 and 1 go to legacy.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format import records
from spark_segments.format.batches import BatchTable
from spark_segments.format.columns import RecordColumns
from spark_segments.format.compression import decompress
from spark_segments.format.jit import byte_view
from spark_segments.format.layout import LOG_APPEND_TIME, RECORD_SCHEMA, RECORDS_POSITION
from spark_segments.format.legacy import decode_legacy

_FIRST_OFFSET = -(2**63)
_LAST_OFFSET = 2**63 - 1
# Where few of the bytes read are wanted, a portion may read this many times its target.
_READ_AHEAD = 4
# Arrow's offsets are int32: a portion stays below 2^31 bytes, as a single batch does in any case.
_MOST_TARGET_BYTES = 1 << 28


def decode_batches(
    buffer: Any,
    batches: BatchTable,
    *,
    file_position: int = 0,
    path: str = "",
    topic: str,
    partition: int,
    offset_shift: int = 0,
    start_offset: int | None = None,
    end_offset: int | None = None,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    include_control: bool = False,
    exclude: np.ndarray | None = None,
    target_bytes: int = 4 << 20,
) -> Iterator[pa.RecordBatch]:
    """The records of batches as RecordBatches of about `target_bytes`, none of them empty.

    `batches` are rows of a scan of `buffer`, whose first byte is byte `file_position` of the file `path`; rows where
    `exclude` (bool[n]) is true are left out, and so are control batches unless `include_control`. `offset_shift` is
    added to the offsets in the bytes; `start_offset` and `end_offset` (exclusive) are offsets of the log. Columns come
    in the order of `columns` and with the types of layout.RECORD_SCHEMA, and only they are built: without key, value
    and headers, what lies behind a record's offset is not looked at.

    Timestamps are microseconds; one that does not fit is the nearest that does. Header names that are not UTF-8 are
    read as Java reads them, with replacement characters. Raises CorruptBatchError with the position of a bad batch, in
    place of the RecordBatch that would have held its records.
    """
    unknown = [name for name in columns if name not in RECORD_SCHEMA.names]
    if unknown:
        raise InvalidOptionError("No such column", expected=", ".join(RECORD_SCHEMA.names), found=", ".join(unknown))
    view = byte_view(buffer)
    begins = batches.position - file_position
    if len(batches) and (begins.min() < 0 or (begins + batches.size).max() > len(view)):
        raise ValueError("these batches are not of this buffer")
    wanted = np.ones(len(batches), np.bool_) if exclude is None else ~exclude
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    for rows, is_legacy in _runs(batches.magic < 2):
        if is_legacy:
            yield from decode_legacy(
                view,
                batches.take(rows),
                file_position=file_position,
                path=path,
                topic=topic,
                partition=partition,
                offset_shift=offset_shift,
                start_offset=start_offset,
                end_offset=end_offset,
                columns=columns,
                exclude=None if exclude is None else exclude[rows],
                target_bytes=target_bytes,
            )
            continue
        first = _FIRST_OFFSET if start_offset is None else max(start_offset, _FIRST_OFFSET)
        last = _LAST_OFFSET if end_offset is None else min(end_offset, _LAST_OFFSET)
        some = batches.take(rows)
        _check_offsets(some, offset_shift, path)
        some = some.take(wanted[rows] & _has_records(some, include_control, first - offset_shift, last - offset_shift))
        for portion, sections in _portions(view, some, file_position, path, offset_shift, schema, topic, target_bytes):
            made = RecordColumns(schema, topic, partition, int(portion.timestamp_type[0]))
            outcome = made.fill(sections, first, last)
            if outcome.problem:
                raise records.corrupt(outcome, path, int(portion.position[outcome.section]))
            yield from made.record_batches()


def _runs(values: np.ndarray) -> Iterator[tuple[slice, bool]]:
    """The runs of equal values: their rows, and the value."""
    edges = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    for first, last in zip([0, *edges], [*edges, len(values)], strict=True):
        if last > first:
            yield slice(first, last), bool(values[first])


def _has_records(batches: BatchTable, include_control: bool, first_offset: int, end_offset: int) -> np.ndarray:
    """bool[n]: which batches may have records in [first_offset, end_offset), offsets as the bytes say."""
    wanted = (batches.count != 0) & (batches.last_offset >= first_offset) & (batches.base_offset < end_offset)
    return wanted if include_control else wanted & ~batches.is_control


def _portions(
    view: np.ndarray,
    batches: BatchTable,
    file_position: int,
    path: str,
    offset_shift: int,
    schema: pa.Schema,
    topic: str,
    target_bytes: int,
) -> Iterator[tuple[BatchTable, np.ndarray]]:
    """Batches that become one RecordBatch, and their sections (see records.py), good until the next ones are asked for.

    All of a portion have the same timestamp type. Compressed ones are decompressed when their portion comes.
    """
    target = min(target_bytes, _MOST_TARGET_BYTES)
    payload_share, row_bytes = _arrow_size(schema, topic)
    sections = _sections(view, batches, file_position, offset_shift)
    appended = batches.timestamp_type == LOG_APPEND_TIME
    is_compressed = batches.codec != 0
    payload = sections[:, records.END] - sections[:, records.ADDRESS]
    sizes = (payload * payload_share).astype(np.int64) + batches.count.astype(np.int64) * row_bytes
    ends = np.concatenate([[0], np.cumsum(sizes)])
    # Where a run of batches ends that are alike and not compressed.
    stops = np.flatnonzero(is_compressed[1:] | is_compressed[:-1] | (appended[1:] != appended[:-1])) + 1
    stops = np.append(stops, len(batches))
    opened: dict[int, pa.Buffer] = {}
    first = 0
    while first < len(batches):
        last = first
        filled = 0
        while last < len(batches) and appended[last] == appended[first]:
            if is_compressed[last]:
                following = last + 1
                if last not in opened:
                    opened[last] = _open(view, batches, last, file_position, path)
                    sections[last, records.ADDRESS] = opened[last].address
                    sections[last, records.END] = opened[last].address + opened[last].size
                share = max(payload_share, 1 / _READ_AHEAD)
                size = int(opened[last].size * share) + int(batches.count[last]) * row_bytes
            else:
                stop = stops[np.searchsorted(stops, last, side="right")]
                fitting = np.searchsorted(ends, ends[last] + target - filled, side="right") - 1
                following = min(int(stop), max(int(fitting), last + 1))
                size = int(ends[following] - ends[last])
            if last > first and filled + size > target:
                break
            filled += size
            last = following
        portion = batches.take(slice(first, last))
        _check_counts(portion, sections[first:last], path)
        yield portion, sections[first:last]
        opened = {row: opened[row] for row in opened if row >= last}
        first = last


def _arrow_size(schema: pa.Schema, topic: str) -> tuple[float, int]:
    """How much of the records' bytes becomes columns, about, and how many bytes a row takes beside."""
    payload_share = 0.0
    if "key" in schema.names or "headers" in schema.names:
        payload_share = 1 / _READ_AHEAD
    if "value" in schema.names:
        payload_share = 1.0
    row_bytes = sum(8 if name in ("offset", "timestamp") else 4 for name in schema.names)
    return payload_share, row_bytes + (len(topic) if "topic" in schema.names else 0)


def _sections(view: np.ndarray, batches: BatchTable, file_position: int, offset_shift: int) -> np.ndarray:
    sections = np.empty((len(batches), records.SECTION_FIELDS), np.int64)
    begin = batches.position - file_position + view.__array_interface__["data"][0]
    sections[:, records.ADDRESS] = begin + RECORDS_POSITION
    sections[:, records.END] = begin + batches.size
    sections[:, records.COUNT] = batches.count
    sections[:, records.BASE_OFFSET] = batches.base_offset + offset_shift
    sections[:, records.LAST_OFFSET_DELTA] = batches.last_offset - batches.base_offset
    appended = batches.timestamp_type == LOG_APPEND_TIME
    sections[:, records.BASE_TIMESTAMP] = np.where(appended, batches.max_timestamp, batches.base_timestamp)
    sections[:, records.TIMESTAMP_STEP] = ~appended
    return sections


def _open(view: np.ndarray, batches: BatchTable, row: int, file_position: int, path: str) -> pa.Buffer:
    position, size = int(batches.position[row]), int(batches.size[row])
    compressed = view[position - file_position + RECORDS_POSITION : position - file_position + size]
    return pa.py_buffer(decompress(int(batches.codec[row]), compressed, path=path, position=position))


def _check_counts(batches: BatchTable, sections: np.ndarray, path: str) -> None:
    """Room for columns is made by the batches' counts: they are believed only where so many records can be."""
    room = (sections[:, records.END] - sections[:, records.ADDRESS]) // records.SMALLEST_RECORD
    lying = batches.count > room
    if lying.any():
        row = int(np.argmax(lying))
        raise CorruptBatchError(
            "A record batch counts more records than its bytes can hold",
            path=path,
            position=int(batches.position[row]),
            expected=f"at most {room[row]}",
            found=int(batches.count[row]),
        )


def _check_offsets(batches: BatchTable, offset_shift: int, path: str) -> None:
    """Offsets of the log are ≥ 0 and fit an int64."""
    lying = (batches.base_offset < -offset_shift) | (batches.last_offset > _LAST_OFFSET - offset_shift)
    if lying.any():
        row = int(np.argmax(lying))
        raise CorruptBatchError(
            "The offsets of a record batch are impossible",
            path=path,
            position=int(batches.position[row]),
            expected=f"{-offset_shift} to {_LAST_OFFSET - offset_shift}",
            found=f"{batches.base_offset[row]} to {batches.last_offset[row]}",
        )
