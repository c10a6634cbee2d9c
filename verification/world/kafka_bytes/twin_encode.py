"""The slow, plain twin of format/encoding/encode.py: record batches written a field at a time, as the layout reads.

It is the reference that the kernels are compared with, and it also writes what they never do: batches of transactions,
control batches, delete horizons and batches without records. Codecs and CRC come from other packages than ours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
COMPRESS = {"gzip": gzip_encode, "snappy": snappy_encode, "lz4": lz4_encode, "zstd": zstd_encode}

ABORT, COMMIT = 0, 1


@dataclass(frozen=True)
class Record:
    """One record; `offset` is absolute and None means the one after the record before."""

    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int | None = None


def varint(number: int) -> bytes:
    """Zigzag varint; of an int64 the same rule gives a varlong."""
    raw = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_bytes(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + field(record.key) + field(record.value)
    body += varint(len(record.headers))
    for name, value in record.headers:
        body += field(name.encode()) + field(value)
    return varint(len(body)) + body


def batch_bytes(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: str = "none",
    leader_epoch: int = 0,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One record batch. Without `last_offset` it ends with its last record; without records it must be given.

    A delete horizon takes the place of the base timestamp, from which the records' deltas then count.
    """
    offsets = []
    for record in records:
        offsets.append(record.offset if record.offset is not None else (offsets[-1] + 1 if offsets else base_offset))
    timestamps = [record.timestamp for record in records]
    if max_timestamp is None:
        max_timestamp = max(timestamps, default=-1)
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    elif base_timestamp is None:
        base_timestamp = max_timestamp if log_append_time or not records else timestamps[0]
    section = b"".join(
        record_bytes(record, 0 if log_append_time else record.timestamp - base_timestamp, offset - base_offset)
        for record, offset in zip(records, offsets, strict=True)
    )
    attributes = (
        CODEC_NUMBERS[codec]
        | log_append_time << 3
        | transactional << 4
        | control << 5
        | (delete_horizon_ms is not None) << 6
    )
    if last_offset is None:
        last_offset = offsets[-1]
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    checked += section if codec == "none" else COMPRESS[codec](section)
    after_length = struct.pack(">ibI", leader_epoch, 2, crc32c.crc32c(checked)) + checked
    return struct.pack(">qi", base_offset, len(after_length)) + after_length


def empty_batch(base_offset: int, last_offset: int, **options: Any) -> bytes:
    """A batch of no records, as the cleaner leaves one to keep an end offset or a producer's last sequence."""
    return batch_bytes([], base_offset=base_offset, last_offset=last_offset, **options)


def marker_batch(
    kind: int,
    *,
    base_offset: int,
    producer_id: int,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    **options: Any,
) -> bytes:
    """The control batch that ends a transaction: `kind` is COMMIT or ABORT."""
    timestamp = options.pop("timestamp", 1_700_000_000_000)
    marker = Record(
        key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, coordinator_epoch), timestamp=timestamp
    )
    return batch_bytes(
        [marker],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        **options,
    )


def encode(records: Sequence[Record], *, cut_bytes: int, base_offset: int = 0, **options: Any) -> Iterator[bytes]:
    """Batches of records with dense offsets. Each has at most `cut_bytes`, uncompressed, or a single record."""
    batch: list[Record] = []
    size = 61
    for record in records:
        base_timestamp = (batch or [record])[0].timestamp
        timestamp_delta = 0 if options.get("log_append_time") else record.timestamp - base_timestamp
        added = len(record_bytes(record, timestamp_delta, len(batch)))
        if batch and size + added > cut_bytes:
            yield batch_bytes(batch, base_offset=base_offset, **options)
            base_offset += len(batch)
            batch, size = [], 61
            added = len(record_bytes(record, 0, 0))
        batch.append(record)
        size += added
    if batch:
        yield batch_bytes(batch, base_offset=base_offset, **options)
