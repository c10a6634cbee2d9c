"""Control records: the markers that end transactions. One kernel call reads the markers of many control batches.

A control record's key is (version i16, type i16). The value of an end-of-transaction marker is (version i16,
coordinator epoch i32). As in Kafka, only the first record of a control batch counts. A control batch that the cleaner
emptied has no record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.compression import decompress
from spark_segments.format.kernels.jit import byte_view, load_i16, load_i32, njit, read_varint, read_varlong
from spark_segments.format.layout import BATCH_OVERHEAD, LOG_APPEND_TIME
from spark_segments.format.window import Window

ABORT = 0
COMMIT = 1
NO_MARKER = -1  # a control batch without records
CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}

_BAD = -2


@dataclass(frozen=True, slots=True)
class Markers:
    """One row per control batch: type (ABORT, COMMIT, another of CONTROL_TYPES, or NO_MARKER), epoch and timestamp."""

    type: np.ndarray  # int64
    coordinator_epoch: np.ndarray  # int64; -1 where the type is neither ABORT nor COMMIT
    timestamp: np.ndarray  # int64


def read_markers(window: Window) -> Markers:
    """The markers of a window of control batches. Raises CorruptBatchError for a record that is no control record."""
    batches = window.batches
    rows = len(batches)
    markers = Markers(*(np.empty(rows, np.int64) for _ in range(3)))
    starts = window.starts + BATCH_OVERHEAD
    ends = window.starts + batches.size
    counts = batches.count.astype(np.int64)
    _read(byte_view(window.data), starts, ends, counts, batches.base_timestamp, markers.type, markers.coordinator_epoch,
          markers.timestamp)  # fmt: skip
    for row in np.flatnonzero((batches.codec != 0) & (counts > 0)):
        # Kafka never compresses control batches, but its format allows it.
        one = slice(row, row + 1)
        compressed = memoryview(window.data).cast("B")[int(starts[row]) : int(ends[row])]
        section = byte_view(
            decompress(int(batches.codec[row]), compressed, path=window.path, position=int(batches.position[row]))
        )
        _read(section, np.zeros(1, np.int64), np.full(1, len(section)), counts[one], batches.base_timestamp[one],
              markers.type[one], markers.coordinator_epoch[one], markers.timestamp[one])  # fmt: skip
    bad = np.flatnonzero(markers.type == _BAD)
    if len(bad):
        raise CorruptBatchError(
            "A control batch has no control record",
            path=window.path or None,
            position=int(batches.position[bad[0]]),
            hint="Restore the file, or skip the batch's offsets",
        )
    appended = batches.timestamp_type == LOG_APPEND_TIME
    markers.timestamp[appended] = batches.max_timestamp[appended]
    return markers


@njit
def _read(data, starts, ends, counts, base_timestamps, types, coordinator_epochs, timestamps):
    for row in range(len(starts)):
        types[row] = NO_MARKER
        coordinator_epochs[row] = -1
        timestamps[row] = -1
        if counts[row] > 0:
            kind, epoch, delta = _first_record(data, starts[row], ends[row])
            types[row] = kind
            coordinator_epochs[row] = epoch
            timestamps[row] = base_timestamps[row] + delta


@njit
def _first_record(data, start, end):
    """(type or _BAD, coordinator epoch, timestamp delta)"""
    bad = (np.int64(_BAD), np.int64(-1), np.int64(0))
    length, position = read_varint(data, start, end)
    if position < 0 or length < 0 or length > end - position:
        return bad
    end = position + length
    if position + 1 > end:
        return bad
    delta, position = read_varlong(data, position + 1, end)
    if position < 0:
        return bad
    _, position = read_varint(data, position, end)
    if position < 0:
        return bad
    key_size, position = read_varint(data, position, end)
    if position < 0 or key_size < 4 or key_size > end - position:
        return bad
    kind = load_i16(data, position + 2)
    position += key_size
    if kind != ABORT and kind != COMMIT:
        return np.int64(max(kind, 2)), np.int64(-1), delta
    value_size, position = read_varint(data, position, end)
    if position < 0 or value_size < 6 or value_size > end - position:
        return bad
    return kind, load_i32(data, position + 2), delta
