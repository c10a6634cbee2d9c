"""Walks the batches of a log: one kernel call checks the headers of a whole buffer and returns them as columns.

New offsets are written into the headers in place (`rebase`). The records inside a batch are left to decode.py (magic 2)
and legacy.py (magic 0 and 1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format import batch_kernels
from spark_segments.format.batch_problems import (
    BAD_COUNT,
    BAD_CRC,
    BAD_LAST_OFFSET,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSET,
    ZEROS,
)
from spark_segments.format.buffers import byte_view
from spark_segments.format.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    COUNT_UNKNOWN,
    DELETE_HORIZON_MASK,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The headers of n batches, a numpy array of length n per field. Names and meanings are Kafka's.

    A row of magic 0 or 1 is one entry. Its base and last offset are both the entry's offset, which is the offset of the
    last record inside where the entry is compressed. Its crc is the CRC-32 field. Its count is 1, or COUNT_UNKNOWN
    where the entry is compressed.
    """

    byte_position: np.ndarray  # int64: byte position in the file
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
        return len(self.byte_position)

    @classmethod
    def empty(cls, rows: int = 0) -> BatchTable:
        """A table of `rows` uninitialized rows."""
        return cls(*(np.empty(rows, dtype) for dtype in _DTYPES))

    @classmethod
    def concatenate(cls, tables: list[BatchTable]) -> BatchTable:
        """The rows of all tables, in their order."""
        if not tables:
            return BatchTable.empty()
        return cls(*(np.concatenate([getattr(table, name) for table in tables]) for name in _NAMES))

    def take(self, rows: Any) -> BatchTable:
        """The rows of a slice, a mask or an array of indexes."""
        return BatchTable(*(getattr(self, name)[rows] for name in _NAMES))

    def from_offset(self, start_offset: int) -> BatchTable:
        """The batches that hold `start_offset` or come after it; all batches where they begin there."""
        if not len(self) or int(self.base_offset[0]) >= start_offset:
            return self
        return self.take(self.last_offset >= start_offset)

    def has_cleaned(self) -> bool:
        """Whether a cleaner has removed records from any of the batches, or has given any a delete horizon."""
        lacks = (self.count <= self.last_offset - self.base_offset) & (self.count != COUNT_UNKNOWN)
        return bool(lacks.any() or self.has_delete_horizon.any())

    def falling(self, next_offset: int, path: str) -> tuple[np.ndarray, list[CorruptBatchError]]:
        """(bool[]: which batches begin below `next_offset` or not above a batch before; an error for each of them).

        Offsets of a file rise (invariant 1).
        """
        taken = np.maximum.accumulate(np.append(next_offset - 1, self.last_offset))[:-1]
        falls = self.base_offset <= taken
        return falls, [
            CorruptBatchError(
                "Offsets do not rise",
                path=path,
                byte_position=int(self.byte_position[row]),
                expected=f"a base offset of at least {int(taken[row]) + 1}",
                found=int(self.base_offset[row]),
            )
            for row in np.flatnonzero(falls)
        ]

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
class ScannedBatches:
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
) -> ScannedBatches:
    """Walks the batches of `buffer`, whose first byte is byte `file_position` of the file `path`.

    With `limit_bytes`, only batches that begin within that many bytes are walked. Without `check_crc` only headers are
    read. The first bad batch ends the walk: the caller raises its error or cuts the log there.
    """
    view = byte_view(buffer)
    limit = len(view) if limit_bytes is None else max(0, min(limit_bytes, len(view)))
    columns = BatchTable.empty(batch_kernels.count_batches(view, limit))
    rows, consumed, needed, problem, expected, found = batch_kernels.scan(
        view, limit, file_position, check_crc, columns
    )
    batches = columns if rows == len(columns) else columns.take(slice(0, rows))
    error = _problem(problem, expected, found, path, file_position + consumed) if problem else None
    return ScannedBatches(batches, consumed, needed, error)


# Problem of a header -> (what the error says, what was expected); "{}" is the kernel's `expected`.
_PROBLEMS = {
    ZEROS: ("no record batch but zeros, as a preallocated or torn file ends", "a record batch"),
    BAD_LENGTH: ("the length of a record batch is too small", "at least {}"),
    BAD_MAGIC: ("a record batch has a magic byte that no Kafka wrote", "0, 1 or 2"),
    BAD_CRC: ("the CRC-32C of a record batch does not match", "{:#010x}"),
    BAD_COUNT: ("the record count of a batch is impossible", "0 to {}"),
    BAD_OFFSET: ("the base offset of a record batch is impossible", "0 to {}"),
    BAD_LAST_OFFSET: ("the last offset delta of a record batch is negative", "0 or more"),
}


def _problem(problem: int, expected: int, found: int, path: str, byte_position: int) -> CorruptBatchError:
    message, expectation = _PROBLEMS[problem]
    shown: object = {ZEROS: "zeros", BAD_CRC: f"{found:#010x}"}.get(problem, found)
    return CorruptBatchError(
        message, path=path, byte_position=byte_position, expected=expectation.format(expected), found=shown
    )


def rebase(buffer: Any, batches: BatchTable, shift: int, leader_epoch: int | None = None) -> None:
    """Adds `shift` to the base offset of each batch in a writable buffer, and sets the leader epoch if given.

    The CRC covers neither. Positions count from buffer[0]. The table `batches` is not changed. Raises ValueError for
    entries of magic 0 and 1, whose offsets do not all lie in a header.
    """
    out = np.frombuffer(buffer, np.uint8)
    if not out.flags.writeable:
        raise ValueError("rebase writes to its buffer: hand over a copy")
    if len(batches) == 0:
        return
    if (batches.magic != MAGIC).any():
        raise ValueError("only batches of magic 2 can be given new offsets")
    starts = batches.byte_position
    if starts.min() < 0 or starts.max() + BATCH_OVERHEAD > len(out):
        raise ValueError("a batch lies outside the buffer")
    batch_kernels.rebase(out, starts, shift, leader_epoch is not None, 0 if leader_epoch is None else leader_epoch)
