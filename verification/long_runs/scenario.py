"""What all processes of a long run know: the topics, what a writer appends, and how the Kafka partition grows."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from verification.world.kafka_side import TIME_MS, TOPIC, KafkaSide

PARTITIONS = 2
KEYS = 23
WRITERS = ("writer-a", "writer-b")
IMPORTED = TOPIC
DELETE_RETENTION_MS = 500
COMMON = {
    "segment.bytes": "3000",
    "segment.ms": "5000",
    "compression.type": "uncompressed",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "retention.ms": "-1",
}
WRITTEN = {
    "kept": COMMON,  # nothing that an operator does touches it
    "latest": COMMON | {"cleanup.policy": "compact"},
    "orders": COMMON | {"retention.bytes": "12000"},
    "trimmed": COMMON | {"cleanup.policy": "compact,delete", "retention.bytes": "8000"},
}
OPERATED = ("latest", "orders", "trimmed", IMPORTED)
TOPICS = (*WRITTEN, IMPORTED)
IMPORT_CONFIG = COMMON | {"cleanup.policy": "compact"}
# A small map: cleaning takes several rounds, and may be killed between two.
DEFAULTS = {"log.cleaner.dedupe.buffer.size": str(24 * 40)}
CONFIGS = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "retention.bytes": ("-1", "8000", "20000"),
    "retention.ms": ("-1", "-1", "4000"),
    "min.compaction.lag.ms": ("0", "1000"),
    "max.compaction.lag.ms": ("2000", "9223372036854775807"),
    "delete.retention.ms": ("100", "500", "3000"),
    "segment.bytes": ("3000", "6000"),
}
"""What an operator alters, and to what."""


class Record(NamedTuple):
    """What an offset holds."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


@dataclass(frozen=True)
class Append:
    """One append of a writer. Its first record has a key that no other append has."""

    writer: str
    transaction: int
    topic: str
    partition: int
    count: int
    timestamp_ms: int
    has_null_key: bool = False

    def records(self) -> list[Record]:
        """The records, of which some are tombstones and the last may be without a key."""
        found = [Record(f"{self.writer} {self.transaction}".encode(), b"first", self.timestamp_ms)]
        for number in range(1, self.count):
            mixed = (self.transaction * 31 + number) * 7919
            value = f"{self.writer} {self.transaction} {number}".encode().ljust(20 + mixed % 100, b".")
            key, is_tombstone = b"key-%d" % (mixed % KEYS), mixed % 11 == 3
            found.append(Record(key, None if is_tombstone else value, self.timestamp_ms))
        if self.has_null_key:
            found.append(Record(None, b"without a key", self.timestamp_ms))
        return found

    def table(self) -> pa.Table:
        keys, values, times = zip(*self.records(), strict=True)
        return pa.table(
            {
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
                "partition": pa.array([self.partition] * len(keys), pa.int32()),
            }
        )


def digest(records: Iterable[tuple[int, Record]]) -> int:
    """A checksum of (offset, record) in the order given."""
    return zlib.crc32(repr([(offset, *record) for offset, record in records]).encode())


def kafka_steps(seed: int, directory: Path) -> Iterator[KafkaSide]:
    """The Kafka partition as it is at each step, the same in every process: it grows, rolls, is cleaned, is cut."""
    kafka, random_ = KafkaSide(directory), random.Random(f"{seed} kafka")
    while True:
        for _ in range(random_.randint(1, 3)):
            count = random_.randint(1, 12)
            kafka.append([(b"key-%d" % random_.randrange(KEYS), random_.random() < 0.8) for _ in range(count)])
        if random_.random() < 0.4:
            kafka.roll()
        if random_.random() < 0.5:
            kafka.clean(merge=random_.random() < 0.5)
        if random_.random() < 0.08:
            kafka.delete_records(random_.randint(kafka.log_start_offset, kafka.log_end_offset))
        yield kafka


def kafka_record(offset: int, record: tuple[bytes, bytes | None]) -> Record:
    """A record of the Kafka partition, with the timestamp that it has there."""
    return Record(*record, TIME_MS + offset)
