"""Which records are read together: the wanted batches of a scan as sections (see records.py), cut into portions.

A portion becomes one RecordBatch, so it is about as large as that should be. Compressed batches are decompressed when
their portion comes, so no more than that is held at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.compression import decompress
from spark_segments.format.jit import njit
from spark_segments.format.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_MASK,
)
from spark_segments.format.records import (
    ADDRESS,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CODEC,
    COUNT,
    END,
    LAST_OFFSET_DELTA,
    POSITION,
    SECTION_FIELDS,
    SMALLEST_RECORD,
    TIMESTAMP_STEP,
)

_LARGEST = 2**63 - 1
# Arrow's offsets are int32: a portion stays below 2^31 bytes, as a single batch does in any case.
_MOST_TARGET_BYTES = 1 << 28
# Where few of the bytes read are wanted, a portion may read this many times its target.
_READ_AHEAD = 4

# Batches that are decompressed at a time, at most.
_MOST_OPENED = 1024

_OPENED = -1  # in place of the codec of a section that was decompressed

_FOREIGN, _BAD_OFFSETS = 1, 2
_FULL, _COMPRESSED, _LYING = 0, 1, 2


class Portion(NamedTuple):
    """Sections to be read together, all of one timestamp type; good until the next portion is asked for."""

    sections: np.ndarray
    rows: int  # what their batches count, and may have
    payload_bytes: int


class Wanted(NamedTuple):
    """What is wanted of batches: records in [first_offset, end_offset), offsets of the log."""

    schema: pa.Schema
    columns: frozenset[str]  # the schema's names
    topic: str
    first_offset: int
    end_offset: int
    offset_shift: int
    with_control: bool
    target_bytes: int


def portions(
    view: np.ndarray,
    batches: BatchTable,
    excluded: np.ndarray | None,
    wanted: Wanted,
    *,
    file_position: int,
    path: str,
) -> Iterator[Portion]:
    """The portions of all batches (of magic 2) that may have wanted records.

    Raises CorruptBatchError where a batch cannot be decompressed, or counts records or offsets that cannot be.
    """
    sections = _sections(view, batches, excluded, wanted, file_position, path)
    target_bytes = max(1, min(wanted.target_bytes, _MOST_TARGET_BYTES))
    payload_share, row_bytes = _arrow_size(wanted.columns, wanted.topic)
    source = pa.py_buffer(view)
    buffers: list[pa.Buffer] = []  # of all sections that are opened and not yet read
    first = 0
    while first < len(sections):
        last, filled, rows, payload_bytes = first, 0, 0, 0
        state = _COMPRESSED
        while state == _COMPRESSED:
            last, filled, rows, payload_bytes, state = _extend(
                sections, first, last, filled, rows, payload_bytes, target_bytes, payload_share, row_bytes
            )
            if state == _COMPRESSED:
                room_bytes = (target_bytes - filled) / max(payload_share, 1 / _READ_AHEAD)
                buffers.extend(_open(source, sections, last, int(room_bytes), file_position, path))
        if state == _LYING:
            raise CorruptBatchError(
                "A record batch counts more records than its bytes can hold",
                path=path,
                position=int(sections[last, POSITION]),
                expected=f"at most {(sections[last, END] - sections[last, ADDRESS]) // SMALLEST_RECORD}",
                found=int(sections[last, COUNT]),
            )
        yield Portion(sections[first:last], rows, payload_bytes)
        if buffers:
            left = int((sections[last:, CODEC] == _OPENED).sum())
            del buffers[: len(buffers) - left]
        first = last


def _arrow_size(columns: frozenset[str], topic: str) -> tuple[float, int]:
    """How much of the records' bytes becomes columns, about, and how many bytes a row takes beside."""
    payload_share = 1.0 if "value" in columns else 1 / _READ_AHEAD if "key" in columns or "headers" in columns else 0.0
    row_bytes = 4 * len(columns) + 4 * ("offset" in columns) + 4 * ("timestamp" in columns)
    return payload_share, row_bytes + (len(topic) if "topic" in columns else 0)


def _sections(
    view: np.ndarray,
    batches: BatchTable,
    excluded: np.ndarray | None,
    wanted: Wanted,
    file_position: int,
    path: str,
) -> np.ndarray:
    if excluded is not None and len(excluded) != len(batches):
        raise ValueError(f"{len(batches)} batches, but {len(excluded)} marks of which to exclude")
    sections = np.empty((len(batches), SECTION_FIELDS), np.int64)
    rows, problem, row = _select(
        view.__array_interface__["data"][0],
        len(view),
        file_position,
        wanted.offset_shift,
        wanted.first_offset,
        wanted.end_offset,
        wanted.with_control,
        np.empty(0, np.bool_) if excluded is None else excluded,
        batches.position,
        batches.size,
        batches.base_offset,
        batches.last_offset,
        batches.attributes,
        batches.base_timestamp,
        batches.max_timestamp,
        batches.count,
        sections,
    )
    if problem == _FOREIGN:
        raise ValueError("these batches are not of this buffer")
    if problem == _BAD_OFFSETS:
        raise CorruptBatchError(
            "The offsets of a record batch are not those of a log",
            path=path,
            position=int(batches.position[row]),
            expected=f"{max(0, -wanted.offset_shift)} to {_LARGEST - max(0, wanted.offset_shift)}",
            found=f"{batches.base_offset[row]} to {batches.last_offset[row]}",
        )
    return sections[:rows]


def _open(
    source: pa.Buffer, sections: np.ndarray, first: int, wanted_bytes: int, file_position: int, path: str
) -> list[pa.Buffer]:
    """Decompresses the compressed sections from `first` on, to about `wanted_bytes`, and makes them describe that."""
    run = sections[first : first + _MOST_OPENED]
    positions, codecs = run[:, POSITION].tolist(), run[:, CODEC].tolist()
    sizes = (run[:, END] - run[:, ADDRESS]).tolist()
    buffers: list[pa.Buffer] = []
    for position, codec, size in zip(positions, codecs, sizes, strict=True):
        if codec <= 0 or wanted_bytes <= 0:
            break
        compressed = source.slice(position - file_position + RECORDS_POSITION, size)
        buffers.append(decompress(codec, compressed, path=path, position=position))
        wanted_bytes -= buffers[-1].size
    opened = run[: len(buffers)]
    opened[:, ADDRESS] = [buffer.address for buffer in buffers]
    opened[:, END] = opened[:, ADDRESS] + [buffer.size for buffer in buffers]
    opened[:, CODEC] = _OPENED
    return buffers


@njit
def _select(
    address, size, file_position, offset_shift, first_offset, end_offset, with_control, excluded,
    positions, sizes, base_offsets, last_offsets, attributes, base_timestamps, max_timestamps, counts, sections,
):  # fmt: skip
    """(sections filled in, problem, its row): the batches that may have records in [first_offset, end_offset)."""
    filled = 0
    for row in range(len(positions)):
        begin = positions[row] - file_position
        if begin < 0 or sizes[row] < BATCH_OVERHEAD or sizes[row] > size - begin:
            return filled, _FOREIGN, row
        base_offset = base_offsets[row]
        last_offset = last_offsets[row]
        if base_offset < max(0, -offset_shift) or last_offset > _LARGEST - max(0, offset_shift):
            return filled, _BAD_OFFSETS, row
        if counts[row] == 0 or (len(excluded) > 0 and excluded[row]):
            continue
        if last_offset + offset_shift < first_offset or base_offset + offset_shift >= end_offset:
            continue
        flags = attributes[row]
        if flags & CONTROL_MASK and not with_control:
            continue
        appended = flags & TIMESTAMP_TYPE_MASK != 0
        sections[filled, ADDRESS] = address + begin + RECORDS_POSITION
        sections[filled, END] = address + begin + sizes[row]
        sections[filled, COUNT] = counts[row]
        sections[filled, BASE_OFFSET] = base_offset + offset_shift
        sections[filled, LAST_OFFSET_DELTA] = last_offset - base_offset
        sections[filled, BASE_TIMESTAMP] = max_timestamps[row] if appended else base_timestamps[row]
        sections[filled, TIMESTAMP_STEP] = 0 if appended else 1
        sections[filled, POSITION] = positions[row]
        sections[filled, CODEC] = flags & CODEC_MASK
        filled += 1
    return filled, 0, 0


@njit
def _extend(sections, first, last, filled, rows, payload_bytes, target_bytes, payload_share, row_bytes):
    """Adds sections from `last` on to the portion from `first` on, until it is full, one is compressed, or one lies.

    (last, filled, rows, payload_bytes, state), where `filled` is about the size of the portion's RecordBatch.
    """
    while last < len(sections) and sections[last, TIMESTAMP_STEP] == sections[first, TIMESTAMP_STEP]:
        if sections[last, CODEC] > 0:
            return last, filled, rows, payload_bytes, _COMPRESSED if filled < target_bytes else _FULL
        payload = sections[last, END] - sections[last, ADDRESS]
        count = sections[last, COUNT]
        # Room for columns is made by the batches' counts: they are believed only where so many records can be.
        if count > payload // SMALLEST_RECORD:
            return last, filled, rows, payload_bytes, _LYING if last == first else _FULL
        share = payload_share if sections[last, CODEC] == 0 else max(payload_share, 1 / _READ_AHEAD)
        size = np.int64(payload * share) + count * row_bytes
        if last > first and filled + size > target_bytes:
            break
        filled += size
        rows += count
        payload_bytes += payload
        last += 1
    return last, filled, rows, payload_bytes, _FULL
