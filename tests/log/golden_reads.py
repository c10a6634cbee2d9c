"""Records as plain tuples, of what is read here and of what Kafka's own reader says, so that they can be compared."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.reading.latest import LatestPart
from spark_segments.log.reading.scan import Scan
from spark_segments.log.reading.scan_plan import Part

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}

# (partition, offset, timestamp in ms, timestamp type, key, value, headers)
Record = tuple[int, int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def records_of(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    """The rows of RecordBatches of the full schema."""
    rows: list[Record] = []
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "timestampType", "key", "value")]
        times_us = batch.column("timestamp").cast("int64").to_pylist()
        headers = batch.column("headers").to_pylist()
        for (partition, offset, kind, key, value), time_us, pairs in zip(
            zip(*columns, strict=True), times_us, headers, strict=True
        ):
            assert time_us % 1000 == 0
            named = [(pair["key"], pair["value"]) for pair in pairs]
            rows.append((partition, offset, time_us // 1000, kind, key, value, named))
    return rows


def as_records(
    expected: Iterable[dict[str, Any]], partition: int = 0, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> list[Record]:
    """The lines of an expected.jsonl that `where` takes."""
    return [
        (
            partition,
            line["offset"],
            line["timestamp"],
            TIMESTAMP_TYPES[line["timestampType"]],
            _bytes(line["key"]),
            _bytes(line["value"]),
            [(name, _bytes(value)) for name, value in line["headers"]],
        )
        for line in expected
        if where(line)
    ]


def read_one_by_one(log: LogDir, parts: Iterable[Part | LatestPart]) -> list[Record]:
    """What tasks would read, each its own part."""
    return records_of(Scan.read(log.storage, parts))


def tree(directory: Path) -> dict[str, tuple[str, int]]:
    """{file: (hash of its bytes, modification time)} of everything below a directory."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory",
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
