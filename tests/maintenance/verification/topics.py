"""Records and places of the log directories that verify looks at, and changes of a file's bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.maintenance import Report
from verification.world.manifest_rows import Segment

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 1_000_000


def rows(generator: random.Random, first_ms: int) -> pa.Table:
    """400 records with 50 keys and 10% tombstones."""
    return pa.table(
        {
            "key": [f"key{generator.randrange(50)}".encode() for _ in range(400)],
            "value": pa.array(
                [None if generator.random() < 0.1 else generator.randbytes(100) for _ in range(400)], pa.binary()
            ),
            "timestamp": pa.array([(first_ms + n * 10) * 1000 for n in range(400)], pa.timestamp("us", tz="UTC")),
        }
    )


def segment(log: LogDir, topic: str, number: int = 0) -> Segment:
    """A live segment of partition 0 that has records."""
    return [row for row in log.topic(topic).snapshot.live_of(0) if row.log_bytes][number]


def overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def repaired(report: Report) -> list[dict[str, Any]]:
    """The lines of the segments that verify has repaired."""
    return [line for line in report.partitions if line["action"] == "repaired"]


Place = tuple[str, int | None]


def has(report: Report, place: Place) -> bool:
    path, position = place
    return any(
        finding.path == path and (position is None or finding.byte_position == position) for finding in report.findings
    )
