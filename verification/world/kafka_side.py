"""A partition as a broker keeps it, in the smallest model that can grow, fail over, and be cleaned: batches written by
aiokafka's encoder, with offsets, epochs and gaps as Kafka's log layer leaves them.
"""

from __future__ import annotations

import shutil
import struct
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiokafka.record.util import calc_crc32c

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

TOPIC = "prices"
HEADER_BYTES = 61
TIME_MS = 1_700_000_000_000

Record = tuple[bytes, bytes | None]  # key, value


ABORT, COMMIT = 0, 1
NO_PRODUCER = -1
_ATTRIBUTES = 21
_CONTROL = 1 << 5


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch: `records` by offset, all of which lie in [base_offset, last_offset]. With a `producer_id` it is
    of a transaction. `marker`: of a control batch, which ends the transaction: ABORT or COMMIT.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    records: Mapping[int, Record]
    was_cleaned: bool = False
    producer_id: int = NO_PRODUCER
    sequence: int = -1
    marker: int | None = None

    def to_bytes(self) -> bytes:
        is_transactional = self.producer_id != NO_PRODUCER
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=int(is_transactional), producer_id=self.producer_id,
            producer_epoch=0 if is_transactional else -1, base_sequence=self.sequence, batch_size=1 << 20,
        )  # fmt: skip
        if self.marker is not None:
            key, value = struct.pack(">hh", 0, self.marker), struct.pack(">hi", 0, 0)
            builder.append(0, TIME_MS + self.base_offset, key, value, [])
        for offset, (key, value) in self.records.items() or self._without_records():
            builder.append(offset - self.base_offset, TIME_MS + offset, key, value, [])
        data = bytearray(builder.build())
        if self._without_records():
            del data[HEADER_BYTES:]
            struct.pack_into(">i", data, 57, 0)
            struct.pack_into(">i", data, 8, len(data) - 12)
        if self.marker is not None:
            data[_ATTRIBUTES + 1] |= _CONTROL
        struct.pack_into(">q", data, 0, self.base_offset)
        struct.pack_into(">i", data, 12, self.leader_epoch)
        struct.pack_into(">i", data, 23, self.last_offset - self.base_offset)
        struct.pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
        return bytes(data)

    def _without_records(self) -> list[tuple[int, Record]]:
        """The record of a batch that a cleaner has emptied, which is taken out of it again."""
        return [] if self.records or self.marker is not None else [(self.base_offset, (b"", b""))]


@dataclass
class KafkaSide:
    """The leader of a partition. `history` is what each offset held when it was written, cleaned since or not.

    `open`: the first offset of each open transaction, by producer. `aborted`: the offsets of aborted records.
    """

    directory: Path
    segments: list[tuple[int, list[Batch]]] = field(default_factory=lambda: [(0, [])])
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    history: dict[int, Record] = field(default_factory=dict)
    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int | None = None
    written: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)

    def append(self, records: Sequence[tuple[bytes, bool]], producer_id: int = NO_PRODUCER) -> None:
        """One batch of (key, whether it has a value); no two values are alike. It is of a producer's transaction, or of
        none.
        """
        first, batch = self.log_end_offset, {}
        for offset, (key, has_value) in enumerate(records, start=first):
            self.written += 1
            batch[offset] = (key, b"%d" % self.written if has_value else None)
        self.history |= batch
        self.log_end_offset += len(records)
        sequence = -1
        if producer_id != NO_PRODUCER:
            self.open.setdefault(producer_id, first)
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(records)
        last, epoch = self.log_end_offset - 1, self.epochs[-1][0]
        self.segments[-1][1].append(Batch(first, last, epoch, batch, producer_id=producer_id, sequence=sequence))

    def end_transaction(self, producer_id: int, marker: int) -> None:
        """A control batch that ends the producer's open transaction: ABORT or COMMIT."""
        if marker == ABORT:
            self.aborted |= self._open_offsets(producer_id)
        del self.open[producer_id]
        offset = self.log_end_offset
        self.log_end_offset += 1
        batch = Batch(offset, offset, self.epochs[-1][0], {}, producer_id=producer_id, marker=marker)
        self.segments[-1][1].append(batch)

    def batches(self) -> list[Batch]:
        return [batch for _, segment in self.segments for batch in segment]

    def open_offsets(self) -> set[int]:
        """The offsets of the records of open transactions."""
        return set().union(*map(self._open_offsets, self.open))

    def _open_offsets(self, producer_id: int) -> set[int]:
        first = self.open[producer_id]
        own = [batch for batch in self.batches() if batch.producer_id == producer_id and batch.base_offset >= first]
        return {offset for batch in own for offset in batch.records}

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.log_end_offset)

    def roll(self) -> None:
        if self.segments[-1][1]:
            self.segments.append((self.log_end_offset, []))

    def move_to_replica(self, bases: Collection[int]) -> None:
        """Another replica of the same log: its first segment begins where this one's does, the others at `bases`."""
        batches = self.batches()
        self.segments = [(self.segments[0][0], [])]
        for batch in batches:
            if batch.base_offset in bases and self.segments[-1][1]:
                self.segments.append((batch.base_offset, []))
            self.segments[-1][1].append(batch)
        if self.log_end_offset in bases:
            self.roll()
        if self.first_dirty_offset is not None:  # a cleaner's checkpoint is never above the active segment's base
            self.first_dirty_offset = min(self.first_dirty_offset, self.segments[-1][0])

    def fail_over(self, batches: int) -> None:
        """Another replica leads, which has not got the last `batches` batches of the active segment.

        The log start is never above what all replicas have.
        """
        base, active = self.segments[-1]
        kept = [
            batch
            for number, batch in enumerate(active)
            if number < len(active) - batches or batch.base_offset < self.log_start_offset
        ]
        self.segments[-1] = (base, kept)
        self.log_end_offset = kept[-1].last_offset + 1 if kept else base
        self.history = {offset: record for offset, record in self.history.items() if offset < self.log_end_offset}
        epoch = self.epochs[-1][0] + 1
        self.epochs = [entry for entry in self.epochs if entry[1] < self.log_end_offset]
        self.epochs.append((epoch, self.log_end_offset))

    def clean(self, merge: bool) -> None:
        """The cleaner's rule over all sealed segments below the first open transaction. A tombstone goes when a
        cleaning meets it the second time; a marker and a producer's last batch stay.
        """
        sealed = [
            (base, batches)
            for base, batches in self.segments[:-1]
            if not batches or batches[-1].last_offset < self.last_stable_offset
        ]
        if not sealed:
            return
        latest = {
            key: offset
            for _, batches in sealed
            for batch in batches
            for offset, (key, _) in batch.records.items()
            if offset not in self.aborted
        }
        last_of_producers = {batch.producer_id: batch.base_offset for batch in self.batches() if batch.marker is None}
        last_of_producers.pop(NO_PRODUCER, None)
        last = max((batch.base_offset for _, batches in sealed for batch in batches), default=-1)
        done = []
        for base, batches in sealed:
            kept = []
            for batch in batches:
                records = {
                    offset: (key, value)
                    for offset, (key, value) in batch.records.items()
                    if latest.get(key) == offset and (value is not None or not batch.was_cleaned)
                }
                is_last = (
                    batch.base_offset == last_of_producers.get(batch.producer_id) and batch.producer_id != NO_PRODUCER
                )
                if records or batch.base_offset == last or batch.marker is not None or is_last:
                    kept.append(replace(batch, records=records, was_cleaned=True))
            done.append((base, kept))
        if merge:
            done = [(done[0][0], [batch for _, batches in done for batch in batches])]
        self.segments[: len(sealed)] = done
        self.first_dirty_offset = self.segments[len(done)][0]

    def delete_records(self, offset: int) -> None:
        """Moves the log start; segments below it go."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        while len(self.segments) > 1 and self.segments[1][0] <= self.log_start_offset:
            del self.segments[0]

    def records(self) -> dict[int, Record]:
        """What a consumer sees that reads uncommitted records, too."""
        return {
            offset: record
            for batch in self.batches()
            for offset, record in batch.records.items()
            if offset >= self.log_start_offset
        }

    def files(self) -> dict[str, bytes]:
        """The log directory as a broker would leave it, without indexes: the bytes of each file, by path."""
        found = {
            f"{TOPIC}-0/{base:020d}.log": b"".join(batch.to_bytes() for batch in batches)
            for base, batches in self.segments
        }
        epochs = "".join(f"{epoch} {offset}\n" for epoch, offset in self.epochs)
        found[f"{TOPIC}-0/leader-epoch-checkpoint"] = f"0\n{len(self.epochs)}\n{epochs}".encode()
        found[f"{TOPIC}-0/partition.metadata"] = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
        found["log-start-offset-checkpoint"] = _checkpoint(self.log_start_offset)
        if self.first_dirty_offset is not None:
            found["cleaner-offset-checkpoint"] = _checkpoint(self.first_dirty_offset)
        return found

    def write(self) -> str:
        """Lays out the log directory, and returns its path."""
        if self.directory.exists():
            shutil.rmtree(self.directory)
        for path, content in self.files().items():
            file = self.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return str(self.directory)


def _checkpoint(offset: int) -> bytes:
    return f"0\n1\n{TOPIC} 0 {offset}\n".encode()
