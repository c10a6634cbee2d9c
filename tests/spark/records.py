"""Records as plain values, so that what Spark gives can be compared with what other decoders say."""

from __future__ import annotations

import base64
from collections import defaultdict
from typing import Any

import pyarrow as pa
from aiokafka.record import MemoryRecords

from spark_segments import LogDir

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}

# (offset, timestamp in ms, timestamp type, key, value, headers)
Record = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def by_partition(table: pa.Table) -> dict[tuple[str, int], list[Record]]:
    """{(topic, partition): records} of a table of the full schema, in the order of its rows."""
    found: dict[tuple[str, int], list[Record]] = defaultdict(list)
    columns = [table.column(name) for name in ("topic", "partition", "offset", "timestampType", "key", "value")]
    times_us = table.column("timestamp").cast("int64").to_pylist()
    headers = table.column("headers").to_pylist()
    for (topic, partition, offset, kind, key, value), time_us, pairs in zip(
        zip(*(column.to_pylist() for column in columns), strict=True), times_us, headers, strict=True
    ):
        assert time_us % 1000 == 0
        named = [(pair["key"], pair["value"]) for pair in pairs]
        found[topic, partition].append((offset, time_us // 1000, kind, key, value, named))
    return found


def expected(records: list[dict[str, Any]]) -> list[Record]:
    """The data records of an expected.jsonl."""
    return [
        (
            record["offset"],
            record["timestamp"],
            TIMESTAMP_TYPES[record["timestampType"]],
            _bytes(record["key"]),
            _bytes(record["value"]),
            [(name, _bytes(value)) for name, value in record["headers"]],
        )
        for record in records
        if not record["isControl"]
    ]


def by_aiokafka(log: LogDir, topic: str) -> dict[int, list[Record]]:
    """{partition: records} of a topic's files as aiokafka decodes them, at the offsets that the manifest gives them."""
    found: dict[int, list[Record]] = defaultdict(list)
    for row in log.topic(topic).snapshot.live.to_pylist():
        shift = row["base_offset"] - row["file_base_offset"]
        batches = MemoryRecords(log.storage.read(row["path"]).to_pybytes())
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            for record in batch:
                headers = [(name, None if value is None else bytes(value)) for name, value in record.headers]
                key, value = _owned(record.key), _owned(record.value)
                found[row["partition"]].append(
                    (record.offset + shift, record.timestamp, record.timestamp_type, key, value, headers)
                )
    return found


def _owned(value: bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
