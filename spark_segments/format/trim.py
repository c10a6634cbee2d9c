"""Removes the records below an offset from a record batch, for a copy whose segment begins inside the batch.

Kafka serves such a batch whole, and its consumers skip the records before the offset. A copy has to begin at the
offset. So the base offset moves, and the base sequence with it; in a cleaned batch both stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.compression import compress, decompress
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.kernels.jit import (
    byte_view,
    load_u8,
    memcpy,
    njit,
    read_varint,
    read_varlong,
    store_i8,
    varlong_size,
    write_varlong,
)
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
    size, count, largest_delta = _records_from(opened, int(batches.count[0]), dropped, out)
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


@njit
def _records_from(data: Any, count: int, dropped: int, out: Any) -> Any:
    """Writes the records of uint8[] `data` whose offset delta is at least `dropped`, with `dropped` subtracted from it.

    (bytes, records, largest timestamp delta), or (-1 - p, 0, 0) where the record at position p is damaged.
    """
    end = len(data)
    position = at = kept = np.int64(0)
    largest = np.iinfo(np.int64).min
    for _ in range(count):
        start = position
        length, position = read_varint(data, position, end)
        if position < 0 or length < 1 or length > end - position:
            return -1 - start, np.int64(0), np.int64(0)
        record_end = position + length
        attributes = load_u8(data, position)
        timestamp_delta, position = read_varlong(data, position + 1, record_end)
        if position < 0:
            return -1 - start, np.int64(0), np.int64(0)
        offset_delta, position = read_varint(data, position, record_end)
        if position < 0:
            return -1 - start, np.int64(0), np.int64(0)
        if offset_delta >= dropped:
            offset_delta -= dropped
            rest = record_end - position
            # The record does not grow: its offset delta is smaller.
            at = write_varlong(out, at, 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + rest)
            store_i8(out, at, attributes)
            at = write_varlong(out, at + 1, timestamp_delta)
            at = write_varlong(out, at, offset_delta)
            memcpy(out, at, data, position, rest)
            at += rest
            kept += 1
            largest = max(largest, timestamp_delta)
        position = record_end
    if count > 0 and position != end:
        return -1 - position, np.int64(0), np.int64(0)
    return at, kept, largest
