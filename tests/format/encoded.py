"""Records to encode, and encoded batches as other clients read them."""

from __future__ import annotations

import aiokafka.record.default_records
import kafka.record.default_records
import numpy as np
import pyarrow as pa

from spark_segments.format.encoding.encode import Encoded
from spark_segments.format.layout import CODECS, HEADERS_TYPE
from verification.world.kafka_bytes.segment_bytes import encode_records
from verification.world.kafka_bytes.twin_encode import Record

NOW = 1_700_000_000_000
OTHER_CLIENTS = [
    kafka.record.default_records.DefaultRecordBatch,
    aiokafka.record.default_records.DefaultRecordBatch,
    aiokafka.record.default_records._DefaultRecordBatchPy,
]


def columns(records: list[Record], timestamp=None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in records], timestamp or pa.int64()),
            "headers": pa.array(
                [[{"key": name, "value": value} for name, value in record.headers] for record in records], HEADERS_TYPE
            ),
        }
    )


def encoded(records, rows=None, *, codec="none", level=None, batch_bytes=131072, limit=1 << 30, **options) -> Encoded:
    return encode_records(
        records, rows, codec=CODECS[codec], level=level, batch_bytes=batch_bytes, max_message_bytes=limit, **options
    )


def decoded(data: bytes, client=OTHER_CLIENTS[0]) -> list[tuple]:
    """(offset, timestamp, key, value, headers) of all records of batches, as another client reads them."""
    rows = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        batch = client(bytes(data[position : position + size]))
        assert batch.validate_crc()
        for record in batch:
            rows.append((record.offset, record.timestamp, record.key, record.value, list(record.headers)))
        position += size
    return rows


def expected_of(records: list[Record]) -> list[tuple]:
    return [
        (offset, record.timestamp, record.key, record.value, list(record.headers))
        for offset, record in enumerate(records)
    ]


def assorted(count: int) -> list[Record]:
    """Records with nulls, empty fields, 0 to 3 headers, timestamps out of order, and lengths of one to three bytes."""
    generator = np.random.default_rng(count)
    sizes = [None, 0, 1, 63, 64, 100, 8191, 8192, 20_000]
    chances = [0.1, 0.1, 0.2, 0.2, 0.2, 0.17, 0.01, 0.01, 0.01]

    def some_bytes():
        size = sizes[generator.choice(len(sizes), p=chances)]
        return None if size is None else generator.bytes(size)

    names = ["", "trace-id", "größe", "n" * 70]
    return [
        Record(
            value=some_bytes(),
            key=some_bytes(),
            timestamp=NOW + int(generator.integers(-5000, 5000)),
            headers=[(names[generator.integers(4)], some_bytes()) for _ in range(max(0, generator.integers(-3, 4)))],
        )
        for _ in range(count)
    ]
