"""Removes the records below an offset from a record batch, for a copy whose segment begins inside the batch.

Kafka serves such a batch whole, and its consumers skip the records before the offset. A copy has to begin at the
offset. So the base offset moves, and the base sequence with it; in a cleaned batch both stay.
"""

from __future__ import annotations

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format import batch_kernels as kernels
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import compress, decompress
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    DELETE_HORIZON_MASK,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    NONE,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_MASK,
)
from spark_segments.format.sidecars.producer_state import sequence_after
from spark_segments.format.window import Window

_MAGIC = 2


def batch_from(window: Window, offset: int) -> bytes:
    """The window's only batch (magic 2) with just its records from `offset` (of the file) on; the batch holds `offset`.

    The records keep their offsets. The last offset, leader epoch, producer, codec, delete horizon and timestamps stay.
    Where no record is left, the result is an empty batch. Raises CorruptBatchError for damaged records.
    """
    batches, path = window.batches, window.path
    [position], [base_offset], [last_offset] = batches.position, batches.base_offset, batches.last_offset
    assert base_offset < offset <= last_offset and batches.magic[0] == _MAGIC
    start = int(window.starts[0])
    section = byte_view(window.data)[start + RECORDS_POSITION : start + int(batches.size[0])]
    codec = int(batches.codec[0])
    opened = byte_view(decompress(codec, section, path=path, position=int(position)))
    out = np.empty(len(opened) + 1, np.uint8)
    dropped = int(offset - base_offset)
    size, count, largest_delta = kernels.records_from(opened, int(batches.count[0]), dropped, out)
    if size < 0:
        raise CorruptBatchError(
            f"a record is damaged, {-1 - size} bytes into the (uncompressed) records of a batch",
            path=path,
            position=int(position),
            expected=f"{batches.count[0]} whole records",
            found="lengths that do not fit",
        )
    attributes = int(batches.attributes[0])
    base_timestamp, max_timestamp = int(batches.base_timestamp[0]), int(batches.max_timestamp[0])
    if not count:
        attributes &= ~(CODEC_MASK | DELETE_HORIZON_MASK)
        base_timestamp, codec = NO_TIMESTAMP, NONE
    elif not attributes & TIMESTAMP_TYPE_MASK:
        max_timestamp = base_timestamp + int(largest_delta)
    records = compress(codec, out[:size])

    def header(crc: int) -> bytes:
        return HEADER_STRUCT.pack(
            offset,
            BATCH_OVERHEAD - LOG_OVERHEAD + len(records),
            int(batches.leader_epoch[0]),
            _MAGIC,
            crc,
            attributes,
            int(last_offset) - offset,
            base_timestamp,
            max_timestamp,
            int(batches.producer_id[0]),
            int(batches.producer_epoch[0]),
            sequence_after(int(batches.base_sequence[0]), dropped),
            count,
        )

    return header(crc32c(b"".join((header(0)[ATTRIBUTES_POSITION:], records)))) + bytes(records)
