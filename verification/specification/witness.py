"""Log directories in tests/golden that a release wrote, with the records and descriptions that it read from them."""

from __future__ import annotations

import base64
import json
import lzma
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Witness:
    """A directory with `log`, the log directory; `expected.json`; and `records.jsonl.xz`, a record a line."""

    directory: Path

    @property
    def expected(self) -> dict[str, Any]:
        """`topics`: what `describe` said of each; `transactions`: by topic and application id, the last version."""
        return json.loads((self.directory / "expected.json").read_text())

    def records(self, isolation_level: str) -> dict[str, list[Record]]:
        """The records of each topic, by partition and offset."""
        records: dict[str, list[Record]] = defaultdict(list)
        for line in lzma.decompress((self.directory / "records.jsonl.xz").read_bytes()).decode().splitlines():
            record = json.loads(line)
            if record.pop("isolation") == isolation_level:
                records[record.pop("topic")].append(record)
        return records

    def write(self, expected: Mapping[str, Any], records: Mapping[str, Mapping[str, list[Record]]]) -> None:
        """Keeps what there is to expect. `records`: by isolation level and topic."""
        (self.directory / "expected.json").write_text(json.dumps(expected, sort_keys=True) + "\n")
        lines = [
            json.dumps({"isolation": level, "topic": topic, **record}) + "\n"
            for level, topics in records.items()
            for topic, found in topics.items()
            for record in found
        ]
        (self.directory / "records.jsonl.xz").write_bytes(lzma.compress("".join(lines).encode()))


def read(
    log: LogDir, topic: str, isolation_level: str = "read_uncommitted", *, version: int | None = None
) -> list[Record]:
    """What the package reads of a topic. Keys, values and the values of headers are base64, times are in ms."""
    records = []
    for batch in log.topic(topic, version=version).scan(isolation=isolation_level).batches():
        timestamps_us = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows = batch.drop_columns(["timestamp", "topic"]).to_pylist()
        for row, timestamp_us in zip(rows, timestamps_us, strict=True):
            headers = [[header["key"], as_base64(header["value"])] for header in row["headers"]]
            key, value = as_base64(row["key"]), as_base64(row["value"])
            records.append({**row, "key": key, "value": value, "headers": headers, "timestamp": timestamp_us // 1000})
    return records


def as_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def newest(records: list[Record]) -> dict[tuple[int, str], tuple[int, str]]:
    """{(partition, key): (offset, value)} of the keys whose newest record is no tombstone."""
    found = {(record["partition"], record["key"]): (record["offset"], record["value"]) for record in records}
    return {key: record for key, record in found.items() if record[1] is not None}
