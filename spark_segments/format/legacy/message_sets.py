"""Message sets of magic 0 and 1, as Kafka wrote them before 0.11: reading them, compressed ones included.

    offset         i64   position 0
    messageSize    i32   8     bytes after this field
    crc            u32   12    CRC-32 (zlib's) of everything from `magic` on
    magic          i8    16
    attributes     i8    17    bits 0-2 codec, bit 3 timestamp type (magic 1)
    timestamp      i64   18    magic 1 only
    key size       i32         negative: null; then the key
    value size     i32         negative: null; then the value

A compressed message is a *wrapper*: its value holds messages, and its offset is that of the last message. Inside a
wrapper of magic 1, offsets count from the first message, and a wrapper with LogAppendTime gives its timestamp to all
messages. Inside a wrapper of magic 0, offsets are absolute. Source of the rules: Kafka's LegacyRecord and
AbstractLegacyRecordBatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import decompress, with_right_lz4_checksum
from spark_segments.format.kernels.copies import gather
from spark_segments.format.layout import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    LZ4,
    TIMESTAMP_TYPE_MASK,
    ZSTD,
)
from spark_segments.format.legacy import kernels
from spark_segments.format.legacy.problems import PROBLEMS
from spark_segments.format.window import Window

# Messages per step, at most: bounds the memory of the columns, whatever a wrapper decompresses to.
STEP_MESSAGES = 1 << 16
SMALLEST_MESSAGE = LOG_OVERHEAD + 14

_LAST_OFFSET = 2**63 - 1
# Timestamps become microseconds in an int64: milliseconds beyond this limit do not fit.
_LAST_MS = _LAST_OFFSET // 1000


@dataclass(frozen=True, slots=True)
class Messages:
    """Some messages of one entry (or of several uncompressed ones in a row): columns, and the bytes they lie in."""

    row: int  # of the first entry
    data: np.ndarray  # uint8
    offset: np.ndarray  # int64, absolute
    timestamp: np.ndarray  # int64
    timestamp_type: np.ndarray  # int32
    key_start: np.ndarray  # int64, in `data`
    key_size: np.ndarray  # int64; -1 null
    value_start: np.ndarray
    value_size: np.ndarray
    crc: np.ndarray  # int64, as stored
    valid: np.ndarray  # bool: the CRC holds

    def take(self, rows: Any) -> Messages:
        """The messages of a slice or mask."""
        columns = {field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)[2:]}
        return Messages(self.row, self.data, **columns)

    def binary(self, start: np.ndarray, size: np.ndarray) -> pa.Array:
        """The byte strings at these places of `data`, as an Arrow binary array."""
        offsets = np.zeros(len(size) + 1, np.int32)
        np.cumsum(np.maximum(size, 0), out=offsets[1:])
        content = np.empty(int(offsets[-1]), np.uint8)
        gather(self.data, start, size, content)
        validity = pa.py_buffer(np.packbits(size >= 0, bitorder="little")) if (size < 0).any() else None
        return pa.Array.from_buffers(pa.binary(), len(size), [validity, pa.py_buffer(offsets), pa.py_buffer(content)])


def read_messages(
    window: Window,
    *,
    rows: np.ndarray | None = None,
    step_bytes: int = 4 << 20,
    check_crc: bool = True,
) -> Iterator[Messages]:
    """The messages inside entries of magic 0 and 1 (`rows` of a window), in order, wrappers opened.

    A step is at most STEP_MESSAGES messages and about `step_bytes` of keys and values. Raises CorruptBatchError for
    damaged messages and for a wrong CRC. Without `check_crc` a wrong CRC is no error, and `valid` says which CRCs hold.
    """
    view, batches, path = byte_view(window.data), window.batches, window.path
    starts = window.starts
    ends = starts + batches.size
    compressed = batches.codec != 0
    rows = np.arange(len(batches)) if rows is None else rows
    at = 0
    while at < len(rows):
        row = int(rows[at])
        last = at
        if compressed[row]:
            wrapper = _open_wrapper(window, row, check_crc)
            steps = _steps(wrapper.data, 0, len(wrapper.data), row, wrapper, step_bytes, batches, path)
        else:
            # Uncompressed entries that lie side by side are read as one run.
            while (
                last + 1 < len(rows) and not compressed[rows[last + 1]] and starts[rows[last + 1]] == ends[rows[last]]
            ):
                last += 1
            steps = _steps(view, int(starts[row]), int(ends[rows[last]]), row, None, step_bytes, batches, path)
        for messages in steps:
            if check_crc and not messages.valid.all():
                bad = int(np.argmin(messages.valid))
                raise _bad_crc(batches, messages.row if compressed[row] else messages.row + bad, path)
            yield messages
        at = last + 1


def first_bad_crc(window: Window) -> CorruptBatchError | None:
    """The error of the first entry of magic 0 or 1 whose CRC-32 is not that of its bytes. Wrappers are not opened."""
    rows = np.flatnonzero(window.batches.magic < 2)
    if not len(rows):
        return None
    starts, batches = window.starts[rows], window.batches.take(rows)
    found = np.empty(len(rows), np.int64)
    kernels.crcs_of(window.data, starts, starts + batches.size, found)
    bad = np.flatnonzero(found != batches.crc)
    return _bad_crc(batches, int(bad[0]), window.path) if len(bad) else None


def with_first_offsets(window: Window) -> Window:
    """The window whose compressed entries of magic 0 and 1 have the base offset and the count of their messages.

    A scan does not open wrappers and gives their last offset as their base offset, so batches can be selected by offset
    only after this. Windows without such entries come back as they are. Raises CorruptBatchError for a damaged wrapper.
    """
    batches = window.batches
    wrappers = np.flatnonzero((batches.magic < 2) & (batches.codec != 0))
    if not len(wrappers):
        return window
    base_offset, count = batches.base_offset.copy(), batches.count.copy()
    for row in wrappers:
        wrapper = _open_wrapper(window, int(row))
        base_offset[row], count[row] = wrapper.first_offset, wrapper.messages
    return window.with_batches(dataclasses.replace(batches, base_offset=base_offset, count=count))


@dataclass(frozen=True, slots=True)
class _Wrapper:
    data: np.ndarray  # the messages inside
    messages: int
    offset_base: int  # to be added to their offsets
    first_offset: int
    timestamp_type: int | None  # of messages of magic 1; None: their own
    timestamp: int


def _open_wrapper(window: Window, row: int, check_crc: bool = True) -> _Wrapper:
    view, batches, path = byte_view(window.data), window.batches, window.path
    byte_position, magic, attributes = (
        int(batches.byte_position[row]),
        int(batches.magic[row]),
        int(batches.attributes[row]),
    )
    codec = attributes & CODEC_MASK
    start = int(window.starts[row])
    columns = _MessageColumns.empty(1)
    _, _, problem = kernels.read_columns(view, start, start + int(batches.size[row]), 0, False, -1, *columns.arrays)
    if problem:
        raise _corrupt(PROBLEMS[problem], path, byte_position)
    if check_crc and not columns.valid[0]:
        raise _bad_crc(batches, row, path)
    value_start, value_size = int(columns.value_start[0]), int(columns.value_size[0])
    if codec == ZSTD or value_size < 0:
        raise _corrupt(
            "a message is compressed with zstd" if codec == ZSTD else "a wrapper is empty", path, byte_position
        )
    content: Any = view[value_start : value_start + value_size]
    if codec == LZ4:
        content = with_right_lz4_checksum(content)
    data = byte_view(decompress(codec, content, path=path, byte_position=byte_position))
    messages, first, last, problem = kernels.survey(data)
    if problem or messages == 0:
        raise _corrupt(PROBLEMS[problem] if problem else "a wrapper is empty", path, byte_position)
    wrapper_offset = int(batches.last_offset[row])
    # Some versions of librdkafka left the wrapper's offset at 0.
    offset_base = wrapper_offset - last if magic == 1 and wrapper_offset != 0 else 0
    if offset_base + first < 0:
        raise _corrupt("the offset of a wrapper is less than that of its last message", path, byte_position)
    appended = LOG_APPEND_TIME if attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME
    timestamp_type = appended if magic == 1 else None
    return _Wrapper(data, messages, offset_base, offset_base + first, timestamp_type, int(batches.max_timestamp[row]))


@dataclass(frozen=True, slots=True)
class _MessageColumns:
    offset: np.ndarray
    timestamp: np.ndarray
    timestamp_type: np.ndarray
    magic: np.ndarray
    key_start: np.ndarray
    key_size: np.ndarray
    value_start: np.ndarray
    value_size: np.ndarray
    crc: np.ndarray
    valid: np.ndarray

    @staticmethod
    def empty(rows: int) -> _MessageColumns:
        dtypes = ("i8", "i8", "i4", "i1", "i8", "i8", "i8", "i8", "i8", "?")
        return _MessageColumns(*(np.empty(rows, dtype) for dtype in dtypes))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


def _steps(
    data: np.ndarray,
    start: int,
    end: int,
    row: int,
    wrapper: _Wrapper | None,
    step_bytes: int,
    batches: BatchTable,
    path: str,
) -> Iterator[Messages]:
    previous = -1
    inside = wrapper is not None
    while start < end:
        columns = _MessageColumns.empty(min(STEP_MESSAGES, (end - start) // SMALLEST_MESSAGE + 1))
        count, start, problem = kernels.read_columns(data, start, end, step_bytes, inside, previous, *columns.arrays)
        if problem:
            raise _corrupt(PROBLEMS[problem], path, int(batches.byte_position[row if inside else row + count]))
        if count == 0:
            return
        columns = _MessageColumns(*(array[:count] for array in columns.arrays))
        previous = int(columns.offset[-1])
        if wrapper is not None:
            columns = _as_wrapped(columns, wrapper)
        yield Messages(row, data, columns.offset, columns.timestamp, columns.timestamp_type, *columns.arrays[4:])
        row += 0 if inside else int(count)


def _as_wrapped(columns: _MessageColumns, wrapper: _Wrapper) -> _MessageColumns:
    timestamp, timestamp_type = columns.timestamp, columns.timestamp_type
    if wrapper.timestamp_type is not None:
        with_timestamp = columns.magic == 1
        timestamp_type = np.where(with_timestamp, np.int32(wrapper.timestamp_type), timestamp_type)
        if wrapper.timestamp_type == LOG_APPEND_TIME:
            timestamp = np.where(with_timestamp, wrapper.timestamp, timestamp)
    offset = columns.offset + wrapper.offset_base
    return dataclasses.replace(columns, offset=offset, timestamp=timestamp, timestamp_type=timestamp_type)


def _bad_crc(batches: BatchTable, row: int, path: str) -> CorruptBatchError:
    return _corrupt("the CRC-32 of a message does not match", path, int(batches.byte_position[row]))


def _corrupt(message: str, path: str, byte_position: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"A message set of magic 0 or 1 is damaged: {message}",
        path=path or None,
        byte_position=byte_position,
        hint="Restore the file, or skip the batch's offsets",
    )
