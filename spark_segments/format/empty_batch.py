"""A record batch without records, which keeps its range of offsets as the batches do that Kafka's cleaner empties."""

from __future__ import annotations

from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)

LARGEST_BATCH_OFFSETS = 1 << 31
"""The most offsets that a batch can span."""

_MAGIC = 2


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """The 61 bytes that Kafka's DefaultRecordBatch.writeEmptyHeader writes without a producer and a timestamp."""

    def header(crc: int) -> bytes:
        return HEADER_STRUCT.pack(
            base_offset,
            BATCH_OVERHEAD - LOG_OVERHEAD,
            leader_epoch,
            _MAGIC,
            crc,
            0,  # attributes
            last_offset - base_offset,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            0,  # records
        )

    return header(crc32c(header(0)[ATTRIBUTES_POSITION:]))
