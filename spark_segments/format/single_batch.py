"""Record batches that are made one by one: from their records, without any, and from what an offset cuts of a batch.

Kafka serves a batch whole, and its consumers skip the records before their offset. A copy whose segment begins inside
the batch has to begin at the offset. So the base offset moves, and the base sequence with it; in a cleaned batch both
stay.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format import batch_kernels
from spark_segments.format.batches import scan_batches
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import compress, decompress
from spark_segments.format.decoding.record_sections import damaged_record
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import (
    ABORT,
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    CRC_POSITION,
    DELETE_HORIZON_MASK,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    NONE,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from spark_segments.format.sidecars.producer_state import ProducerEntry, sequence_after
from spark_segments.format.window import Window

LARGEST_BATCH_OFFSETS = 1 << 31
"""The most offsets that a batch can span."""


def made_batch(
    records: Any,
    count: int,
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    attributes: int = 0,
    base_timestamp: int = NO_TIMESTAMP,
    max_timestamp: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A batch of `count` records, whose section `records` is compressed as the attributes say."""
    header = HEADER_STRUCT.pack(
        base_offset, BATCH_OVERHEAD - LOG_OVERHEAD + len(records), leader_epoch, MAGIC, 0, attributes,
        last_offset - base_offset, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    checked = b"".join((header[ATTRIBUTES_POSITION:], records))
    return header[:CRC_POSITION] + crc32c(checked).to_bytes(4, "big") + checked


def empty_batches(start_offset: int, end_offset: int, leader_epoch: int) -> Iterator[bytes]:
    """Batches without records that take the offsets [`start_offset`, `end_offset`), in order: a hole, as a log has it.

    Each takes as many offsets as a batch can, and is the 61 bytes that Kafka's DefaultRecordBatch.writeEmptyHeader
    writes without a producer and a timestamp.
    """
    for start in range(start_offset, end_offset, LARGEST_BATCH_OFFSETS):
        last = min(start + LARGEST_BATCH_OFFSETS, end_offset) - 1
        yield made_batch(b"", 0, base_offset=start, last_offset=last, leader_epoch=leader_epoch)


def abort_marker(entry: ProducerEntry, offset: int, leader_epoch: int, timestamp: int) -> bytes:
    """The control batch that aborts the transaction of a producer, as its coordinator would write it."""
    key = struct.pack(">hh", 0, ABORT)
    value = struct.pack(">hi", 0, max(entry.coordinator_epoch, 0))
    record = b"".join((b"\0\0\0", _short(key), _short(value), b"\0"))
    return made_batch(
        _short(record), 1, base_offset=offset, last_offset=offset, leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK, base_timestamp=timestamp, max_timestamp=timestamp,
        producer_id=entry.producer_id, producer_epoch=entry.producer_epoch,
    )  # fmt: skip


def _short(data: bytes) -> bytes:
    """Less than 64 bytes behind their length, a varint."""
    return bytes([2 * len(data)]) + data


def batch_from(window: Window, offset: int) -> bytes:
    """The window's only batch (magic 2) with just its records from `offset` (of the file) on; the batch holds `offset`.

    The records keep their offsets. The last offset, leader epoch, producer, codec, delete horizon and timestamps stay.
    Where no record is left, the result is an empty batch. Raises CorruptBatchError for damaged records.
    """
    batches = window.batches
    path = window.path
    [byte_position], [base_offset], [last_offset] = batches.byte_position, batches.base_offset, batches.last_offset
    assert base_offset < offset <= last_offset and batches.magic[0] == MAGIC
    start = int(window.starts[0])
    section = byte_view(window.data)[start + RECORDS_POSITION : start + int(batches.size[0])]
    codec = int(batches.codec[0])
    opened = byte_view(decompress(codec, section, path=path, byte_position=int(byte_position)))
    out = np.empty(len(opened) + 1, np.uint8)
    dropped = int(offset - base_offset)
    size, count, largest_delta = batch_kernels.records_from(opened, int(batches.count[0]), dropped, out)
    if size < 0:
        raise damaged_record(batches, 0, -1 - size, path)
    attributes = int(batches.attributes[0])
    base_timestamp = int(batches.base_timestamp[0])
    max_timestamp = int(batches.max_timestamp[0])
    if not count:
        attributes &= ~(CODEC_MASK | DELETE_HORIZON_MASK)
        base_timestamp = NO_TIMESTAMP
        codec = NONE
    elif not attributes & TIMESTAMP_TYPE_MASK:
        max_timestamp = base_timestamp + int(largest_delta)
        if not -(1 << 63) <= max_timestamp < 1 << 63:
            raise CorruptBatchError(
                "a record's timestamp is beyond 64 bits",
                path=path,
                byte_position=int(byte_position),
                expected="a base timestamp and deltas that sum up to an int64",
                found=max_timestamp,
            )
    return made_batch(
        compress(codec, out[:size]),
        count,
        base_offset=offset,
        last_offset=int(last_offset),
        leader_epoch=int(batches.leader_epoch[0]),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=int(batches.producer_id[0]),
        producer_epoch=int(batches.producer_epoch[0]),
        base_sequence=sequence_after(int(batches.base_sequence[0]), dropped),
    )


def window_from(window: Window, offset: int) -> Window:
    """The window's batches (magic 2, at the log's offsets) without the records below `offset`. Raises CorruptBatchError
    as `batch_from` does.
    """
    window = window.take(window.batches.last_offset >= offset)
    batches = window.batches
    if not len(batches) or int(batches.base_offset[0]) >= offset:
        return window
    rest = window.take(slice(1, None)).batch_bytes.tobytes() if len(batches) > 1 else b""
    data = batch_from(window.take(slice(0, 1)), offset) + rest
    return replace(window, data=data, batches=scan_batches(data, path=window.path).batches, byte_position=0)
