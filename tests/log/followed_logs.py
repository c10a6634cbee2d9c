"""What the tests of repeated imports share: clocks, the settings of a compacted topic, and what a reader gets."""

from __future__ import annotations

from spark_segments import LogDir
from tests.log.golden_reads import records_of
from verification.world.kafka_side import TOPIC

LATER_MS = 2_000_000_000_000
DAY_MS = 86_400_000
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "600000",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "131072",
}


def table_of(log: LogDir, topic: str) -> dict[bytes, bytes]:
    """The newest value of each key, as a reader who builds a table of the topic gets it."""
    found: dict[bytes, bytes | None] = {}
    for batch in log.topic(topic).scan(isolation="read_committed").batches():
        found |= dict(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return {key: value for key, value in found.items() if value is not None}


def values(log: LogDir) -> dict[int, tuple[bytes, bytes | None]]:
    return {row[1]: (row[4], row[5]) for row in records_of(log.topic(TOPIC).scan().batches())}
