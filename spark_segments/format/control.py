"""Control records: the markers that end transactions. One kernel call reads the markers of many control batches.

A control record's key is (version i16, type i16). The value of an end-of-transaction marker is (version i16,
coordinator epoch i32). As in Kafka, only the first record of a control batch counts. A control batch that the cleaner
emptied has no record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format import batch_kernels
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import decompress
from spark_segments.format.layout import BAD_CONTROL, BATCH_OVERHEAD, LOG_APPEND_TIME
from spark_segments.format.window import Window

CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}


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
    batch_kernels.read_markers(
        byte_view(window.data),
        starts,
        ends,
        counts,
        batches.base_timestamp,
        markers.type,
        markers.coordinator_epoch,
        markers.timestamp,
    )
    for row in np.flatnonzero((batches.codec != 0) & (counts > 0)):
        # Kafka never compresses control batches, but its format allows it.
        batch = slice(row, row + 1)
        compressed = memoryview(window.data).cast("B")[int(starts[row]) : int(ends[row])]
        section = byte_view(
            decompress(
                int(batches.codec[row]), compressed, path=window.path, byte_position=int(batches.byte_position[row])
            )
        )
        batch_kernels.read_markers(
            section,
            np.zeros(1, np.int64),
            np.full(1, len(section)),
            counts[batch],
            batches.base_timestamp[batch],
            markers.type[batch],
            markers.coordinator_epoch[batch],
            markers.timestamp[batch],
        )
    bad = np.flatnonzero(markers.type == BAD_CONTROL)
    if len(bad):
        raise CorruptBatchError(
            "A control batch has no control record",
            path=window.path or None,
            byte_position=int(batches.byte_position[bad[0]]),
            hint="Restore the file, or skip the batch's offsets",
        )
    appended = batches.timestamp_type == LOG_APPEND_TIME
    markers.timestamp[appended] = batches.max_timestamp[appended]
    return markers
