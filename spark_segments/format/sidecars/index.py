"""Offset and time indexes of a segment: parsing, look-ups, and building them as Kafka's LogSegment.append does.

An offset index holds pairs (relative offset i32, file position i32), a time index pairs (timestamp i64, relative offset
i32), all big-endian. Offsets are relative to the number in the file's name. Both indexes are sparse, and only hints
where to begin a scan. So a damaged index costs time but no data: a caller that catches the error of
`parse_offset_index` scans from position 0 or rebuilds the index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import NO_TIMESTAMP
from spark_segments.format.sidecars import segment_kernels
from spark_segments.format.sidecars.fields import (
    LAST_ENTRY_TIMESTAMP,
    MAX_RELATIVE_OFFSET,
    MAX_TIMESTAMP,
    OFFSET_OF_MAX,
    STATE_SLOTS,
)

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

# Kafka's defaults of index.interval.bytes and segment.index.bytes.
DEFAULT_INTERVAL_BYTES = 4096
DEFAULT_INDEX_BYTES = 10 * 1024 * 1024

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

_REBUILD_HINT = "The index is damaged: scan the log, or rebuild the index from it"


def raw_entries(data: Any, entry: np.dtype) -> np.ndarray:
    """The entries of an index file, unchecked. A cut last entry is left out."""
    return np.frombuffer(data, entry, count=memoryview(data).nbytes // entry.itemsize)


def parse_offset_index(data: Any, *, path: str = "") -> tuple[np.ndarray, np.ndarray]:
    """(relative offset int32[], file position int32[]) of an .index file.

    The zero tail of a preallocated file is cut. Raises CorruptBatchError for entries that do not rise.
    """
    entries = raw_entries(data, OFFSET_ENTRY)
    relative_offset = entries["relative_offset"].astype(np.int32)
    byte_position = entries["position"].astype(np.int32)
    used = _without_zero_tail((relative_offset != 0) | (byte_position != 0))
    relative_offset = relative_offset[:used]
    byte_position = byte_position[:used]
    _check_rising(relative_offset, "Relative offsets of an offset index do not rise", path, OFFSET_ENTRY_BYTES)
    _check_rising(byte_position, "Positions of an offset index do not rise", path, OFFSET_ENTRY_BYTES)
    return relative_offset, byte_position


def parse_time_index(data: Any, *, path: str = "") -> tuple[np.ndarray, np.ndarray]:
    """(timestamp in ms int64[], relative offset int32[]) of a .timeindex file.

    The zero tail of a preallocated file is cut. Raises CorruptBatchError for entries that do not rise.
    """
    entries = raw_entries(data, TIME_ENTRY)
    timestamp = entries["timestamp"].astype(np.int64)
    relative_offset = entries["relative_offset"].astype(np.int32)
    used = _without_zero_tail((timestamp != 0) | (relative_offset != 0))
    timestamp = timestamp[:used]
    relative_offset = relative_offset[:used]
    _check_rising(timestamp, "Timestamps of a time index do not rise", path, TIME_ENTRY_BYTES)
    _check_rising(relative_offset, "Relative offsets of a time index fall", path, TIME_ENTRY_BYTES, strictly=False)
    return timestamp, relative_offset


def offset_index_bytes(relative_offset: np.ndarray, byte_position: np.ndarray) -> bytes:
    """The .index file of these entries."""
    entries = np.empty(len(relative_offset), OFFSET_ENTRY)
    entries["relative_offset"] = relative_offset
    entries["position"] = byte_position
    return entries.tobytes()


def time_index_bytes(timestamp: np.ndarray, relative_offset: np.ndarray) -> bytes:
    """The .timeindex file of these entries."""
    entries = np.empty(len(timestamp), TIME_ENTRY)
    entries["timestamp"] = timestamp
    entries["relative_offset"] = relative_offset
    return entries.tobytes()


def position_for_offset(index: tuple[np.ndarray, np.ndarray], relative_offset: int) -> int:
    """The file position where a scan for an offset begins: that of the last entry at or below it, else 0."""
    entry = int(np.searchsorted(index[0], relative_offset, side="right")) - 1
    return int(index[1][entry]) if entry >= 0 else 0


class IndexBuilder:
    """Both indexes of one segment while its batches are appended, by the rule of Kafka's LogSegment.append.

    An append makes an entry when more than `interval_bytes` have been appended since the last entry. The entry has the
    append's start and last offset. A time entry is added where the largest timestamp so far has grown. A batch is an
    append, as Kafka's recovery assumes, too.
    """

    def __init__(
        self, base_offset: int, interval_bytes: int = DEFAULT_INTERVAL_BYTES, index_bytes: int = DEFAULT_INDEX_BYTES
    ) -> None:
        self.base_offset = base_offset
        self._limits = index_limits(interval_bytes, index_bytes)
        self._state = new_state().reshape(1, STATE_SLOTS)
        self._offset_parts: list[bytes] = []
        self._time_parts: list[bytes] = []

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp so far in ms, -1 where no batch has one."""
        return int(self._state[0, MAX_TIMESTAMP])

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch that has the largest timestamp; -1 where no batch has one."""
        return int(self._state[0, OFFSET_OF_MAX])

    def add(self, batches: BatchTable) -> None:
        """Appends batches with their positions and offsets in the segment's file.

        Raises CorruptBatchError for an offset that no index entry can hold.
        """
        if not len(batches):
            return
        ends = np.array([len(batches)])
        offset_entries, time_entries, _ = _entries(batches, self.base_offset, ends, self._limits, self._state)
        self._offset_parts.append(offset_index_bytes(offset_entries[:, 0] - self.base_offset, offset_entries[:, 1]))
        self._time_parts.append(time_index_bytes(time_entries[:, 0], time_entries[:, 1] - self.base_offset))

    def finish(self) -> tuple[bytes, bytes]:
        """(.index, .timeindex) after a clean close: the final largest timestamp goes into the slot kept for it."""
        time_parts = list(self._time_parts)
        if self.max_timestamp > self._state[0, LAST_ENTRY_TIMESTAMP]:
            relative_offset = self.offset_of_max_timestamp - self.base_offset
            time_parts.append(time_index_bytes(np.array([self.max_timestamp]), np.array([relative_offset])))
        return b"".join(self._offset_parts), b"".join(time_parts)


def indexes_of_runs(
    batches: BatchTable, run_ends: np.ndarray, *, interval_bytes: int, index_bytes: int
) -> tuple[list[tuple[bytes, bytes]], np.ndarray]:
    """((.index, .timeindex) of each run, its state): what an IndexBuilder of base offset 0 makes of each run's batches.

    `batches` has the batches of all runs; run i ends before row run_ends[i] (int64[runs]). Positions count from the
    start of the run. The states are int64[runs, STATE_SLOTS]. Raises as `IndexBuilder.add` does.
    """
    states = np.tile(new_state(), (len(run_ends), 1))
    limits = index_limits(interval_bytes, index_bytes)
    offset_entries, time_entries, ends = _entries(batches, 0, run_ends, limits, states)
    offset_bytes = offset_index_bytes(offset_entries[:, 0], offset_entries[:, 1])
    time_bytes = time_index_bytes(time_entries[:, 0], time_entries[:, 1])
    last_bytes = time_index_bytes(states[:, MAX_TIMESTAMP], states[:, OFFSET_OF_MAX])
    has_last = (states[:, MAX_TIMESTAMP] > states[:, LAST_ENTRY_TIMESTAMP]).tolist()
    indexes = []
    offset_start = time_start = last_start = 0
    for (offset_end, time_end), last in zip(
        (ends * (OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES)).tolist(), has_last, strict=True
    ):
        time_index = time_bytes[time_start:time_end]
        if last:
            time_index += last_bytes[last_start : last_start + TIME_ENTRY_BYTES]
        indexes.append((offset_bytes[offset_start:offset_end], time_index))
        offset_start = offset_end
        time_start = time_end
        last_start = last_start + TIME_ENTRY_BYTES
    return indexes, states


def _entries(
    batches: BatchTable, base_offset: int, run_ends: np.ndarray, limits: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offset and position int64[n, 2], timestamp and offset int64[m, 2], how many of both up to each run's end) of
    the new entries. `states` (a row a run) goes on; run i ends before row run_ends[i].
    """
    last_offset = batches.last_offset
    lowest, highest = (int(last_offset.min()), int(last_offset.max())) if len(last_offset) else (base_offset, 0)
    if lowest < base_offset or highest - base_offset > MAX_RELATIVE_OFFSET:
        raise CorruptBatchError(
            "An offset does not fit the index of its segment",
            expected=f"at most {MAX_RELATIVE_OFFSET} above the base offset {base_offset}",
            found=lowest if lowest < base_offset else highest,
        )
    offset_entries = np.empty((len(batches), 2), np.int64)
    time_entries = np.empty((len(batches), 2), np.int64)
    ends = np.empty((len(run_ends), 2), np.int64)
    run_ends = np.ascontiguousarray(run_ends, np.int64)
    segment_kernels.append(batch_columns(batches), run_ends, limits, states, offset_entries, time_entries, ends)
    offset_count, time_count = ends[-1] if len(ends) else (0, 0)
    return offset_entries[:offset_count], time_entries[:time_count], ends


def index_limits(interval_bytes: int, index_bytes: int) -> np.ndarray:
    """What bounds the indexes of a segment (see fields.py)."""
    return np.array([interval_bytes, index_bytes // OFFSET_ENTRY_BYTES, index_bytes // TIME_ENTRY_BYTES - 1])


def batch_columns(batches: BatchTable) -> np.ndarray:
    """int64[4, batches]: what indexes and rolls need of batches (see fields.py)."""
    return np.stack((batches.size, batches.last_offset, batches.max_timestamp, batches.byte_position))


def new_state() -> np.ndarray:
    """The state of an empty segment (see fields.py)."""
    state = np.zeros(STATE_SLOTS, np.int64)
    state[[MAX_TIMESTAMP, OFFSET_OF_MAX, LAST_ENTRY_TIMESTAMP]] = (NO_TIMESTAMP, -1, NO_TIMESTAMP)
    return state


def _without_zero_tail(nonzero: np.ndarray) -> int:
    used = np.flatnonzero(nonzero)
    return int(used[-1]) + 1 if len(used) else 0


def _check_rising(values: np.ndarray, message: str, path: str, entry_bytes: int, *, strictly: bool = True) -> None:
    previous = np.concatenate(([-1], values[:-1].astype(np.int64)))
    wrong = np.flatnonzero(values <= previous if strictly else values < np.maximum(previous, 0))
    if len(wrong):
        entry = int(wrong[0])
        raise CorruptBatchError(
            message,
            path=path or None,
            byte_position=entry * entry_bytes,
            expected=f"{'more' if strictly else 'no less'} than {int(previous[entry])}",
            found=int(values[entry]),
            hint=_REBUILD_HINT,
        )
