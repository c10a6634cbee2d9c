"""Decoded batches as tables and as plain rows, and batches whose bytes are put together by hand."""

from __future__ import annotations

import struct

import crc32c
import pyarrow as pa

from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.format.window import Window
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes

NAMES = RECORD_SCHEMA.names
START = 1_700_000_000_000


def decoded(data, *, batches=None, path="x.log", file_position=0, offset_shift=0, **options) -> pa.Table:
    """All records of `data` in one table; what is given for them is checked by Arrow itself."""
    if batches is None:
        scan = scan_batches(data, path=path, file_position=file_position)
        if scan.error is not None:
            raise scan.error
        batches = scan.batches
    options = {"topic": "orders", "partition": 3, "include_control": True, **options}
    parts = list(decode_batches(Window(data, batches, file_position, path, offset_shift), **options))
    for part in parts:
        part.validate(full=True)
        assert part.num_rows > 0
    columns = options.get("columns", NAMES)
    return pa.Table.from_batches(parts, schema=pa.schema([RECORD_SCHEMA.field(name) for name in columns]))


def milliseconds(table: pa.Table) -> list[int]:
    return [value // 1000 for value in table["timestamp"].cast("int64").to_pylist()]


def rows_of(table: pa.Table) -> list[tuple]:
    """(offset, milliseconds, timestampType, key, value, headers), as the twin's rows begin."""
    headers = [[(header["key"], header["value"]) for header in row] for row in table["headers"].to_pylist()]
    columns = (table["offset"], table["timestampType"], table["key"], table["value"])
    offset, timestamp_type, key, value = (column.to_pylist() for column in columns)
    return list(zip(offset, milliseconds(table), timestamp_type, key, value, headers, strict=True))


def sealed(batch: bytes) -> bytes:
    """The batch with its CRC and length put right."""
    batch = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


def batch_of(section: bytes, *, count=1, last_offset_delta=None, attributes=0) -> bytes:
    """A batch whose records are any bytes."""
    last_offset_delta = max(count - 1, 0) if last_offset_delta is None else last_offset_delta
    return sealed(
        struct.pack(">qiibIhiqqqhii", 0, 0, 0, 2, 0, attributes, last_offset_delta, START, START, -1, -1, -1, count)
        + section
    )


GOOD = batch_bytes([Record(b"good")])
