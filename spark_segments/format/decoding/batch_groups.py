"""Groups of batches that one kernel call reads. The wanted batches become sections (see decode_kernels.py).

A RecordBatch is made of one group, or of several groups where batches are compressed. Compressed batches are
decompressed when their group comes, into memory that the next group uses again. A group decompresses no more bytes than
stay in a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError
from spark_segments.format.buffers import byte_view
from spark_segments.format.decoding import decode_kernels
from spark_segments.format.decoding.fields import (
    ADDRESS,
    BAD_OFFSETS,
    BASE_OFFSET,
    CODEC,
    COUNT,
    END,
    FOREIGN,
    FULL,
    LAST_OFFSET_DELTA,
    LYING,
    POSITION,
    SECTION_FIELDS,
    SMALLEST_RECORD,
    TIMESTAMP_STEP,
)
from spark_segments.format.decoding.section_opener import SectionOpener
from spark_segments.format.layout import LARGEST_OFFSET
from spark_segments.format.window import Window

# Arrow's offsets are int32. With this target a RecordBatch, with all that is read ahead, stays below 2^31 bytes.
_MOST_TARGET_BYTES = 1 << 27
# A group may read this many times its target where only few of the bytes become columns.
_READ_AHEAD = 4

# Offsets that are counted at a time. A compressed batch has at most so many times more records than its bytes would
# hold, or it is decompressed to see.
_MOST_OFFSETS = 1 << 18
_MOST_SHRUNK = 64

_NONE_EXCLUDED = np.empty(0, np.uint8)


class BatchGroup(NamedTuple):
    """Sections to be read together, all of one timestamp type. Valid until the next group is taken.

    With views, the memory of the sections is valid as long as its `buffers` are kept.
    """

    sections: np.ndarray
    rows: int  # upper bound: the sum of the batches' record counts
    payload_bytes: int
    size: int  # estimated bytes of the columns
    is_last: bool  # whether the RecordBatch ends with this group
    buffers: list[pa.Buffer]  # that hold the sections, where values are views; else empty

    @property
    def timestamp_step(self) -> int:
        return int(self.sections[0, TIMESTAMP_STEP])


class WantedRecords(NamedTuple):
    """The records to decode: log offsets [first_offset, end_offset), and the columns of the schema."""

    schema: pa.Schema
    columns: frozenset[str]  # the schema's names
    topic: str
    first_offset: int
    end_offset: int
    with_control: bool
    target_bytes: int
    view_values: bool = False
    timestamp_type: int | None = None  # of all records; None: what their batches say


def batch_groups(window: Window, excluded: np.ndarray | None, selection: WantedRecords) -> Iterator[BatchGroup]:
    """The groups of a window's batches (magic 2) that may hold wanted records.

    Raises CorruptBatchError where a batch cannot be decompressed, counts more records than its bytes can hold, or has
    offsets outside of the log's range.
    """
    sections = _sections(window, excluded, selection)
    target_bytes = max(1, min(selection.target_bytes, _MOST_TARGET_BYTES))
    payload_share, row_bytes = _arrow_size(selection.columns, selection.topic)
    opener = SectionOpener(window, sections, keep=selection.view_values)
    first = filled = 0
    while first < len(sections):
        room = target_bytes - filled
        if sections[first, CODEC] > 0:
            opener.open(first, int(room / max(payload_share, 1 / _READ_AHEAD)))
        last, size, rows, payload_bytes, state = decode_kernels.extend(
            sections, first, room, payload_share, 1 / _READ_AHEAD, row_bytes
        )
        if state == LYING:
            raise CorruptBatchError(
                "A record batch counts more records than its bytes can hold",
                path=window.path,
                byte_position=int(sections[last, POSITION]),
                expected=f"at most {(sections[last, END] - sections[last, ADDRESS]) // SMALLEST_RECORD}",
                found=int(sections[last, COUNT]),
            )
        filled += size
        is_last = state == FULL or filled >= target_bytes
        yield BatchGroup(sections[first:last], rows, payload_bytes, size, is_last, opener.buffers())
        first, filled = last, 0 if is_last else filled


def offsets_of_headers(
    window: Window, excluded: np.ndarray | None, selection: WantedRecords
) -> Iterator[np.ndarray] | None:
    """The wanted offsets of a window's batches (magic 2) as their headers say, at most _MOST_OFFSETS at a time; None
    where a header does not: compaction left out records, or there are more than bytes would hold.
    """
    sections = _sections(window, excluded, selection)
    counts, sizes = sections[:, COUNT], sections[:, END] - sections[:, ADDRESS]
    most = sizes // SMALLEST_RECORD * np.where(sections[:, CODEC] > 0, _MOST_SHRUNK, 1)
    if ((counts != sections[:, LAST_OFFSET_DELTA] + 1) | (counts > most)).any():
        return None
    starts = np.maximum(sections[:, BASE_OFFSET], selection.first_offset)
    counts = np.maximum(np.minimum(sections[:, BASE_OFFSET] + counts, selection.end_offset) - starts, 0)
    behind = np.cumsum(counts)
    total = int(behind[-1]) if len(behind) else 0

    def offsets() -> Iterator[np.ndarray]:
        for first in range(0, total, _MOST_OFFSETS):
            end = min(first + _MOST_OFFSETS, total)
            run = slice(np.searchsorted(behind, first, side="right"), np.searchsorted(behind, end) + 1)
            rows = np.diff(np.minimum(behind[run], end), prepend=first)
            yield np.arange(first, end) + np.repeat((starts - behind + counts)[run], rows)

    return offsets()


def _arrow_size(columns: frozenset[str], topic: str) -> tuple[float, int]:
    """(estimated share of the records' bytes that becomes columns, further bytes per row)"""
    payload_share = 1.0 if "value" in columns else 1 / _READ_AHEAD if "key" in columns or "headers" in columns else 0.0
    row_bytes = 4 * len(columns) + 4 * ("offset" in columns) + 4 * ("timestamp" in columns)
    return payload_share, row_bytes + (len(topic) if "topic" in columns else 0)


def _sections(window: Window, excluded: np.ndarray | None, selection: WantedRecords) -> np.ndarray:
    view = byte_view(window.data)
    batches = window.batches
    shift = window.offset_shift
    if excluded is not None and len(excluded) != len(batches):
        raise ValueError(f"{len(batches)} batches, but {len(excluded)} marks of which to exclude")
    sections = np.empty((len(batches), SECTION_FIELDS), np.int64)
    rows, problem, row = decode_kernels.select(
        view.__array_interface__["data"][0],
        len(view),
        window,
        selection,
        _NONE_EXCLUDED if excluded is None else excluded.view(np.uint8),
        sections,
    )
    if problem == FOREIGN:
        raise ValueError("these batches are not of this buffer")
    if problem == BAD_OFFSETS:
        raise CorruptBatchError(
            "The offsets of a record batch are not those of a log",
            path=window.path,
            byte_position=int(batches.byte_position[row]),
            expected=f"{max(0, -shift)} to {LARGEST_OFFSET - max(0, shift)}",
            found=f"{batches.base_offset[row]} to {batches.last_offset[row]}",
        )
    return sections[:rows]
