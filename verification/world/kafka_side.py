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


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch: `records` by offset, all of which lie in [base_offset, last_offset]."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    records: Mapping[int, Record]
    was_cleaned: bool = False

    def to_bytes(self) -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=1 << 20,
        )  # fmt: skip
        for offset, (key, value) in self.records.items() or [(self.base_offset, (b"", b""))]:
            builder.append(offset - self.base_offset, TIME_MS + offset, key, value, [])
        data = bytearray(builder.build())
        if not self.records:
            del data[HEADER_BYTES:]
            struct.pack_into(">i", data, 57, 0)
            struct.pack_into(">i", data, 8, len(data) - 12)
        struct.pack_into(">q", data, 0, self.base_offset)
        struct.pack_into(">i", data, 12, self.leader_epoch)
        struct.pack_into(">i", data, 23, self.last_offset - self.base_offset)
        struct.pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
        return bytes(data)


@dataclass
class KafkaSide:
    """The leader of a partition. `history` is what each offset held when it was written, cleaned since or not."""

    directory: Path
    segments: list[tuple[int, list[Batch]]] = field(default_factory=lambda: [(0, [])])
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    history: dict[int, Record] = field(default_factory=dict)
    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int | None = None
    written: int = 0

    def append(self, records: Sequence[tuple[bytes, bool]]) -> None:
        """One batch of (key, whether it has a value); no two values are alike."""
        first, batch = self.log_end_offset, {}
        for offset, (key, has_value) in enumerate(records, start=first):
            self.written += 1
            batch[offset] = (key, b"%d" % self.written if has_value else None)
        self.history |= batch
        self.log_end_offset += len(records)
        self.segments[-1][1].append(Batch(first, self.log_end_offset - 1, self.epochs[-1][0], batch))

    def roll(self) -> None:
        if self.segments[-1][1]:
            self.segments.append((self.log_end_offset, []))

    def move_to_replica(self, bases: Collection[int]) -> None:
        """Another replica of the same log: its first segment begins where this one's does, the others at `bases`."""
        batches = [batch for _, segment in self.segments for batch in segment]
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
        """The cleaner's rule over all sealed segments. A tombstone goes when a cleaning meets it the second time."""
        sealed = self.segments[:-1]
        if not sealed:
            return
        latest = {key: offset for _, batches in sealed for b in batches for offset, (key, _) in b.records.items()}
        last = max((batch.base_offset for _, batches in sealed for batch in batches), default=-1)
        done = []
        for base, batches in sealed:
            kept = []
            for batch in batches:
                records = {
                    offset: (key, value)
                    for offset, (key, value) in batch.records.items()
                    if latest[key] == offset and (value is not None or not batch.was_cleaned)
                }
                if records or batch.base_offset == last:
                    kept.append(replace(batch, records=records, was_cleaned=True))
            done.append((base, kept))
        if merge:
            done = [(done[0][0], [batch for _, batches in done for batch in batches])]
        self.segments[:-1] = done
        self.first_dirty_offset = self.segments[-1][0]

    def delete_records(self, offset: int) -> None:
        """Moves the log start; segments below it go."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        while len(self.segments) > 1 and self.segments[1][0] <= self.log_start_offset:
            del self.segments[0]

    def records(self) -> dict[int, Record]:
        """What a consumer sees."""
        return {
            offset: record
            for _, batches in self.segments
            for batch in batches
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
