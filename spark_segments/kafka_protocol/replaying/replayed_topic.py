"""A topic of a replay: where it goes on, what is under way, and what was sent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_segments.config import READ_COMMITTED
from spark_segments.kafka_protocol.replaying.replayed_offsets import ReplayedOffsets
from spark_segments.kafka_protocol.replaying.target import TRANSACTION_RECORDS, TargetError, TargetTopic
from spark_segments.log import Report, Scan, Selection, Snapshot
from spark_segments.storage import Storage

Offsets = Mapping[int, tuple[int, int]]
"""{partition: (start, end exclusive)}"""

Places = dict[int, int]
"""{partition: offset}"""

TRANSACTION_BYTES = 32 << 20
TRANSACTION_SECONDS = 1.0
"""A transaction ends when it has so much, or has lasted so long."""

SENT = "sent"
TO_SEND = "to send"
"""The actions of a topic's line in a report."""


@dataclass(slots=True)
class ReplayTransaction:
    """Records under way. `old`, `new`: {(partition, partition there): offsets} here and there; `places` behind them."""

    begun: float = field(default_factory=time.monotonic)
    places: Places = field(default_factory=dict)
    old: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    new: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    records: int = 0
    sent_bytes: int = 0
    problem: TargetError | None = None

    @property
    def is_full(self) -> bool:
        is_large = self.sent_bytes >= TRANSACTION_BYTES or self.records >= TRANSACTION_RECORDS
        return is_large or time.monotonic() - self.begun >= TRANSACTION_SECONDS


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """Where the replay of a partition goes on: at the offset `place` here. `new_end`: the log end there, behind what is
    committed, where it is known. `is_new`: whether nothing of the partition was ever replayed.
    """

    place: int
    new_end: int | None = None
    is_new: bool = False


@dataclass(slots=True)
class ReplayedTopic:
    """A topic of a pass. `places`: {partition: next offset to be sent}, `ends`: where the pass ends. `new_ends`: the
    log ends there, behind what is committed, where they are known. `offset_map`: None where the log is Kafka's
    directory. `transaction`: the one under way.
    """

    snapshot: Snapshot
    target: str
    cluster_topic: TargetTopic | None
    places: Places
    ends: Places
    new_ends: Places
    new: set[int]
    created: bool
    to_send: int
    offset_map: ReplayedOffsets | None
    transaction: ReplayTransaction | None = None
    records: int = 0
    sent_bytes: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.snapshot.topic

    @property
    def unsent(self) -> Offsets:
        """The offsets that the pass is to send."""
        return {number: (self.places[number], end) for number, end in self.ends.items()}

    @property
    def target_partitions(self) -> int:
        """How many partitions the topic there has, or is made with."""
        return len(self.ends) if self.cluster_topic is None else len(self.cluster_topic.ends)

    def after(self, before: ReplayedTopic | None) -> ReplayedTopic:
        """The topic with what an earlier try did."""
        if before is not None:
            self.records = before.records
            self.sent_bytes = before.sent_bytes
            self.warnings = before.warnings
            self.created = before.created
            self.to_send = before.to_send
        return self

    def scan(self, storage: Storage, offsets: Offsets, columns: tuple[str, ...]) -> Scan:
        """The committed records at these offsets."""
        selection = Selection(columns, isolation=READ_COMMITTED)
        return Scan.of(storage, self.snapshot, offsets=offsets, selection=selection)

    def tell(self, report: Report, **figures: Any) -> None:
        """Adds the topic's line and warnings to a report."""
        report.add(
            self.name,
            None,
            TO_SEND if report.dry_run else SENT,
            records_in=self.records,
            records_out=self.records,
            bytes_in=self.sent_bytes,
            bytes_out=self.sent_bytes,
            target=self.target,
            partitions=len(self.ends),
            created=self.created,
            to_send=self.to_send,
            **figures,
        )
        for text in self.warnings:
            report.warn(text)
