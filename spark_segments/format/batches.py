"""Walks the batches of a log: one kernel call checks the headers of a whole buffer and returns them as columns.

The records inside a batch are left to decode.py (magic 2) and message_sets.py (magic 0 and 1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.kernels.crc import crc32c_range
from spark_segments.format.kernels.jit import byte_view, load_i8, load_i16, load_i32, load_i64, load_u8, load_u32, njit
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_LENGTH_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    CRC_POSITION,
    DELETE_HORIZON_MASK,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORDS_COUNT_POSITION,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)

# Bytes up to and with the magic byte, the same for every magic.
_HEADER_UP_TO_MAGIC = 17
# Size of the smallest entry of magic 0 and of magic 1: offset, size, crc, magic, attributes, (timestamp,) key size,
# value size.
_LEGACY_OVERHEADS = (LOG_OVERHEAD + 14, LOG_OVERHEAD + 22)
_LEGACY_CRC_POSITION = 12
_LEGACY_ATTRIBUTES_POSITION = 17
_LEGACY_TIMESTAMP_POSITION = 18
_LARGEST_OFFSET = 2**63 - 1

COUNT_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The headers of n batches, a numpy array of length n per field. Names and meanings are Kafka's.

    A row of magic 0 or 1 is one entry. Its base and last offset are both the entry's offset, which is the offset of the
    last record inside where the entry is compressed. Its crc is the CRC-32 field. Its count is 1, or COUNT_UNKNOWN
    where the entry is compressed.
    """

    position: np.ndarray  # int64: byte position in the file
    size: np.ndarray  # int64: the whole batch, with the 12 bytes that batchLength leaves out
    base_offset: np.ndarray  # int64: as the bytes say
    last_offset: np.ndarray  # int64: as the bytes say
    leader_epoch: np.ndarray  # int32
    magic: np.ndarray  # int8
    crc: np.ndarray  # uint32
    attributes: np.ndarray  # int16
    base_timestamp: np.ndarray  # int64: the delete horizon where has_delete_horizon
    max_timestamp: np.ndarray  # int64
    producer_id: np.ndarray  # int64
    producer_epoch: np.ndarray  # int16
    base_sequence: np.ndarray  # int32
    count: np.ndarray  # int32

    def __len__(self) -> int:
        return len(self.position)

    @staticmethod
    def empty(rows: int = 0) -> BatchTable:
        """A table of `rows` uninitialized rows."""
        return BatchTable(*(np.empty(rows, dtype) for dtype in _DTYPES))

    @staticmethod
    def concatenate(tables: list[BatchTable]) -> BatchTable:
        """The rows of all tables, in their order."""
        if not tables:
            return BatchTable.empty()
        return BatchTable(*(np.concatenate([getattr(table, name) for table in tables]) for name in _NAMES))

    def take(self, rows: Any) -> BatchTable:
        """The rows of a slice, a mask or an array of indexes."""
        return BatchTable(*(getattr(self, name)[rows] for name in _NAMES))

    @property
    def codec(self) -> np.ndarray:
        """int16: a key of layout.CODEC_NAMES; 5 to 7 name no codec."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> np.ndarray:
        """bool"""
        values: np.ndarray = (self.attributes & TRANSACTIONAL_MASK) != 0
        return values

    @property
    def is_control(self) -> np.ndarray:
        """bool"""
        values: np.ndarray = (self.attributes & CONTROL_MASK) != 0
        return values

    @property
    def has_delete_horizon(self) -> np.ndarray:
        """bool"""
        values: np.ndarray = (self.attributes & DELETE_HORIZON_MASK) != 0
        return values

    @property
    def timestamp_type(self) -> np.ndarray:
        """int32: NO_TIMESTAMP_TYPE, CREATE_TIME or LOG_APPEND_TIME."""
        marked = ((self.attributes & TIMESTAMP_TYPE_MASK) != 0).astype(np.int32) * np.int32(LOG_APPEND_TIME)
        return np.where(self.magic == 0, np.int32(NO_TIMESTAMP_TYPE), marked)


_DTYPES = tuple(map(np.dtype, ("i8", "i8", "i8", "i8", "i4", "i1", "u4", "i2", "i8", "i8", "i8", "i2", "i4", "i4")))
_NAMES = tuple(field.name for field in fields(BatchTable))


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a walk over a buffer.

    The first `consumed` bytes are whole, good batches. They are followed by nothing (`needed` is 0), by a batch that
    the buffer's end cuts and that takes `needed` bytes from there, or by a bad batch (`error`).
    """

    batches: BatchTable
    consumed: int
    needed: int
    error: CorruptBatchError | None


def scan_batches(
    buffer: Any,
    *,
    file_position: int = 0,
    path: str = "",
    check_crc: bool = True,
    limit_bytes: int | None = None,
) -> Scan:
    """Walks the batches of `buffer`, whose first byte is byte `file_position` of the file `path`.

    With `limit_bytes`, only batches that begin within that many bytes are walked. Without `check_crc` only headers are
    read. The first bad batch ends the walk: the caller raises its error or cuts the log there.
    """
    view = byte_view(buffer)
    limit = len(view) if limit_bytes is None else max(0, min(limit_bytes, len(view)))
    columns = BatchTable.empty(_count_batches(view, limit))
    rows, consumed, needed, problem, expected, found = _scan(
        view,
        limit,
        file_position,
        check_crc,
        columns.position,
        columns.size,
        columns.base_offset,
        columns.last_offset,
        columns.leader_epoch,
        columns.magic,
        columns.crc,
        columns.attributes,
        columns.base_timestamp,
        columns.max_timestamp,
        columns.producer_id,
        columns.producer_epoch,
        columns.base_sequence,
        columns.count,
    )
    batches = columns if rows == len(columns) else columns.take(slice(0, rows))
    error = _problem(problem, expected, found, path, file_position + consumed) if problem else None
    return Scan(batches, consumed, needed, error)


_GOOD = 0
_BAD_LENGTH = 1
_BAD_MAGIC = 2
_BAD_CRC = 3
_BAD_COUNT = 4
_BAD_OFFSET = 5
_BAD_LAST_OFFSET = 6
_ZEROS = 7


def _problem(problem: int, expected: int, found: int, path: str, position: int) -> CorruptBatchError:
    wanted: object = expected
    shown: object = found
    if problem == _ZEROS:
        message, wanted, shown = (
            "no record batch but zeros, as a preallocated or torn file ends",
            "a record batch",
            "zeros",
        )
    elif problem == _BAD_LENGTH:
        message, wanted = "the length of a record batch is too small", f"at least {expected}"
    elif problem == _BAD_MAGIC:
        message, wanted = "a record batch has a magic byte that no Kafka wrote", "0, 1 or 2"
    elif problem == _BAD_CRC:
        message, wanted, shown = "the CRC-32C of a record batch does not match", f"{expected:#010x}", f"{found:#010x}"
    elif problem == _BAD_COUNT:
        message, wanted = "the record count of a batch is impossible", f"0 to {expected}"
    elif problem == _BAD_OFFSET:
        message, wanted = "the base offset of a record batch is impossible", f"0 to {expected}"
    else:
        message, wanted = "the last offset delta of a record batch is negative", "0 or more"
    return CorruptBatchError(message, path=path, position=position, expected=wanted, found=shown)


@njit
def _count_batches(data, limit):
    """Upper bound on the number of batches that `_scan` finds."""
    end = len(data)
    position = 0
    rows = 0
    while position < limit and position + _HEADER_UP_TO_MAGIC <= end:
        size = load_i32(data, position + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
        if size < _HEADER_UP_TO_MAGIC or position + size > end:
            break
        rows += 1
        position += size
    return rows


@njit
def _scan(
    data,
    limit,
    file_position,
    check_crc,
    positions,
    sizes,
    base_offsets,
    last_offsets,
    leader_epochs,
    magics,
    crcs,
    attributes,
    base_timestamps,
    max_timestamps,
    producer_ids,
    producer_epochs,
    base_sequences,
    counts,
):
    """(rows, consumed, needed, problem, expected, found)"""
    end = len(data)
    position = 0
    row = 0
    while position < limit:
        if position + _HEADER_UP_TO_MAGIC > end:
            return row, position, BATCH_OVERHEAD, _GOOD, 0, 0
        base_offset = load_i64(data, position)
        length = load_i32(data, position + BATCH_LENGTH_POSITION)
        size = length + LOG_OVERHEAD
        magic = load_i8(data, position + MAGIC_POSITION)
        if magic < 0 or magic > 2:
            return row, position, 0, _BAD_MAGIC, 2, magic
        smallest = BATCH_OVERHEAD if magic == 2 else _LEGACY_OVERHEADS[magic]
        if size < smallest:
            zeros = (
                base_offset == 0
                and length == 0
                and load_i32(data, position + LEADER_EPOCH_POSITION) == 0
                and magic == 0
            )
            return row, position, 0, _ZEROS if zeros else _BAD_LENGTH, smallest - LOG_OVERHEAD, length
        if position + size > end:
            return row, position, size, _GOOD, 0, 0
        if magic == 2:
            stored = load_u32(data, position + CRC_POSITION)
            if check_crc:
                computed = crc32c_range(data, position + ATTRIBUTES_POSITION, position + size)
                if computed != stored:
                    return row, position, 0, _BAD_CRC, stored, computed
            last_offset_delta = load_i32(data, position + LAST_OFFSET_DELTA_POSITION)
            if last_offset_delta < 0:
                return row, position, 0, _BAD_LAST_OFFSET, 0, last_offset_delta
            if base_offset < 0 or base_offset > _LARGEST_OFFSET - last_offset_delta:
                return row, position, 0, _BAD_OFFSET, _LARGEST_OFFSET - last_offset_delta, base_offset
            count = load_i32(data, position + RECORDS_COUNT_POSITION)
            # Offsets rise, so there are no more records than offsets.
            if count < 0 or count > last_offset_delta + 1:
                return row, position, 0, _BAD_COUNT, last_offset_delta + 1, count
            last_offsets[row] = base_offset + last_offset_delta
            leader_epochs[row] = load_i32(data, position + LEADER_EPOCH_POSITION)
            crcs[row] = stored
            attributes[row] = load_i16(data, position + ATTRIBUTES_POSITION)
            base_timestamps[row] = load_i64(data, position + BASE_TIMESTAMP_POSITION)
            max_timestamps[row] = load_i64(data, position + MAX_TIMESTAMP_POSITION)
            producer_ids[row] = load_i64(data, position + PRODUCER_ID_POSITION)
            producer_epochs[row] = load_i16(data, position + PRODUCER_EPOCH_POSITION)
            base_sequences[row] = load_i32(data, position + BASE_SEQUENCE_POSITION)
            counts[row] = count
        else:
            if base_offset < 0:
                return row, position, 0, _BAD_OFFSET, _LARGEST_OFFSET, base_offset
            flags = load_u8(data, position + _LEGACY_ATTRIBUTES_POSITION) & (CODEC_MASK | TIMESTAMP_TYPE_MASK)
            timestamp = load_i64(data, position + _LEGACY_TIMESTAMP_POSITION) if magic == 1 else NO_TIMESTAMP
            last_offsets[row] = base_offset
            leader_epochs[row] = -1
            crcs[row] = load_u32(data, position + _LEGACY_CRC_POSITION)
            attributes[row] = flags
            base_timestamps[row] = timestamp
            max_timestamps[row] = timestamp
            producer_ids[row] = NO_PRODUCER_ID
            producer_epochs[row] = NO_PRODUCER_EPOCH
            base_sequences[row] = NO_SEQUENCE
            counts[row] = COUNT_UNKNOWN if flags & CODEC_MASK else 1
        positions[row] = file_position + position
        sizes[row] = size
        base_offsets[row] = base_offset
        magics[row] = magic
        row += 1
        position += size
    return row, position, 0, _GOOD, 0, 0
