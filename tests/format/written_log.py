"""A log that grows batch by batch and segment by segment: what the tests of the cleaner clean."""

from __future__ import annotations

from spark_segments.format.sidecars.txn_index import AbortedTransactions
from tests.format.directory_cleaner import LogSegment
from verification.world.kafka_bytes.twin_encode import ABORT, Record, batch_bytes, marker_batch


class Log:
    """A log under construction: segments of encoded batches, the last one active."""

    def __init__(self) -> None:
        self.segments: list[LogSegment] = [LogSegment(0, b"", AbortedTransactions.of())]
        self.next_offset = 0
        self.under_way: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.sequence = 0

    def roll(self) -> None:
        if self.segments[-1].data:
            self.segments.append(LogSegment(self.next_offset, b"", AbortedTransactions.of()))

    def _append(self, data: bytes, last_offset: int, aborted: AbortedTransactions | None = None) -> None:
        last = self.segments[-1]
        index = AbortedTransactions.concatenate([last.aborted, aborted or AbortedTransactions.of()])
        self.segments[-1] = LogSegment(last.base_offset, last.data + data, index)
        self.next_offset = last_offset + 1

    def append(self, records: list[Record], *, producer_id: int, transactional: bool, gap: int, **options) -> None:
        placed = []
        offset = self.next_offset
        for record in records:
            placed.append(Record(record.value, record.key, record.timestamp, record.headers, offset))
            offset += 1 + gap
        last_offset = offset - 1
        if transactional:
            self.under_way.setdefault(producer_id, self.next_offset)
        data = batch_bytes(
            placed,
            base_offset=self.next_offset,
            last_offset=last_offset,
            producer_id=producer_id,
            producer_epoch=self.epochs.get(producer_id, 0) if producer_id >= 0 else -1,
            base_sequence=self.sequence if producer_id >= 0 else -1,
            transactional=transactional,
            **options,
        )
        self.sequence += last_offset - self.next_offset + 1
        self._append(data, last_offset)

    def end(self, producer_id: int, kind: int, timestamp: int, fences: bool = False) -> None:
        first = self.under_way.pop(producer_id, None)
        if first is None:
            return
        offset = self.next_offset
        aborted = AbortedTransactions.of([(producer_id, first, offset, offset + 1)] if kind == ABORT else [])
        epoch = self.epochs[producer_id] = self.epochs.get(producer_id, 0) + fences
        marker = marker_batch(
            kind, base_offset=offset, producer_id=producer_id, producer_epoch=epoch, timestamp=timestamp
        )
        self._append(marker, offset, aborted)
