"""The broker: partitions as files, changed in the steps that Kafka changes them in, and as a model beside the files."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from aiokafka.record.util import calc_crc32c

from spark_segments.format.sidecars.producer_state import ProducerEntry, producer_snapshot_bytes
from verification.world.kafka_side import TIME_MS, Batch, DefaultRecordBatchBuilder, Record

ABORT, COMMIT = 0, 1
KEYS = 7
_CONTROL_BIT = 0x20
_SIDECARS = (".index", ".timeindex")
_ENTRY = struct.Struct(">hqqqq")  # of a .txnindex


@dataclass(frozen=True)
class PlayedBatch(Batch):
    """A record batch of a producer. `marker`: what a control batch says of the producer's transaction, or None."""

    producer: int = -1
    marker: int | None = None

    @cached_property
    def data(self) -> bytes:
        if self.producer < 0:
            return self.to_bytes()
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=1, producer_id=self.producer, producer_epoch=0,
            base_sequence=self.base_offset if self.marker is None else -1, batch_size=1 << 20,
        )  # fmt: skip
        records = dict(self.records)
        if self.marker is not None:
            records = {self.base_offset: (struct.pack(">hh", 0, self.marker), struct.pack(">hi", 0, 0))}
        for offset, (key, value) in records.items():
            builder.append(offset - self.base_offset, TIME_MS + offset, key, value, [])
        data = bytearray(builder.build())
        struct.pack_into(">q", data, 0, self.base_offset)
        struct.pack_into(">i", data, 12, self.leader_epoch)
        if self.marker is not None:
            data[22] |= _CONTROL_BIT
        struct.pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Offsets [first, marker) of a producer; `marker` and `outcome` are None while it is open."""

    producer: int
    first: int
    marker: int | None = None
    outcome: int | None = None


@dataclass
class PlayedPartition:
    """A partition and its files. `history`: what each offset held when it was written; `producers`: who wrote it."""

    directory: Path
    chance: random.Random
    is_compacted: bool = False
    has_transactions: bool = False
    segments: list[tuple[int, list[PlayedBatch]]] = field(default_factory=lambda: [(0, [])])
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    history: dict[int, Record] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    first_dirty_offset: int | None = None
    written: int = 0
    _writing: Iterator[None] | None = None
    _cleaning: Iterator[None] | None = None
    _deleting: Iterator[None] | None = None
    _has_swapped: bool = False

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        (self.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {'A' * 20}{self._id}")
        self._write_epochs()
        self._make_files(0)

    @property
    def _id(self) -> str:
        return "BA" if self.is_compacted else "CA" if self.has_transactions else "DA"

    # What a broker does

    def step(self) -> str:
        """Does something, and says what."""
        events = [
            (5, self.append),
            (2, self.advance),
            (1, self.roll),
            (0.4, self.fail_over),
            (0.3, self.delete_records),
        ]
        events += [(0.5, self.delete), (0.1, self.die)]
        if self.is_compacted:
            events.append((1, self.clean))
        if self.has_transactions:
            events.append((3, self.end_transaction))
        events += [(4, getattr(self, name)) for name in ("go_on_writing", "go_on_cleaning", "go_on_deleting")]
        [chosen] = self.chance.choices([event for _, event in events], [weight for weight, _ in events])
        chosen()
        return chosen.__name__

    def settle(self) -> None:
        """Ends what has begun, and lets all replicas have everything."""
        while self._writing or self._cleaning or self._deleting:
            self.go_on_writing()
            self.go_on_cleaning()
            self.go_on_deleting()
        self.high_watermark = self.log_end_offset

    def go_on_writing(self) -> None:
        self._writing = _next(self._writing)

    def go_on_cleaning(self) -> None:
        self._cleaning = _next(self._cleaning)

    def go_on_deleting(self) -> None:
        self._deleting = _next(self._deleting)

    def append(self) -> None:
        """A batch of records, of a producer with a transaction or without."""
        if self._writing:
            return
        producer = self.chance.choice([-1, 1, 2]) if self.has_transactions else -1
        first, records = self.log_end_offset, {}
        for offset in range(first, first + self.chance.randint(1, 4)):
            self.written += 1
            key = b"%d" % self.chance.randrange(KEYS)
            value = None if self.is_compacted and self.chance.random() < 0.2 else b"%d" % self.written
            records[offset] = (key, value)
        self.history |= records
        self.producers |= dict.fromkeys(records, producer)
        if producer >= 0 and not self._open(producer):
            self.transactions.append(Transaction(producer, first))
        self._add(PlayedBatch(first, max(records), self.epochs[-1][0], records, producer=producer))

    def end_transaction(self) -> None:
        """A marker, of a commit or, as often, of an abort."""
        open_ones = [one for one in self.transactions if one.outcome is None]
        if self._writing or not open_ones:
            return
        one, outcome, at = self.chance.choice(open_ones), self.chance.choice([ABORT, COMMIT]), self.log_end_offset
        self.transactions[self.transactions.index(one)] = replace(one, marker=at, outcome=outcome)
        stable = min([other.first for other in open_ones if other != one], default=at)
        entry = _ENTRY.pack(0, one.producer, one.first, at, stable) if outcome == ABORT else b""
        self._add(PlayedBatch(at, at, self.epochs[-1][0], {}, producer=one.producer, marker=outcome), entry)

    def advance(self) -> None:
        """All replicas have more of the log."""
        ends = [batch.last_offset + 1 for _, batches in self.segments for batch in batches]
        ends = [end for end in ends if end > self.high_watermark and not (self._writing and end == self.log_end_offset)]
        if ends:
            self.high_watermark = self.chance.choice(ends)

    def roll(self) -> None:
        if self._writing or not self.segments[-1][1]:
            return
        end = self.log_end_offset
        producers = [
            ProducerEntry(producer, current_txn_first_offset=one.first if one else -1)
            for producer in ((1, 2) if self.has_transactions else ())
            for one in [self._open(producer)]
        ]
        (self.directory / f"{end:020d}.snapshot").write_bytes(producer_snapshot_bytes(producers))
        self.segments.append((end, []))
        self._make_files(end)

    def fail_over(self) -> None:
        """A replica leads that has not got the last batches of the active segment."""
        base, active = self.segments[-1]
        if self._writing:
            return
        low = max(self.high_watermark, base)
        kept = [batch for batch in active if batch.last_offset < low]
        kept += [batch for batch in active[len(kept) :] if self.chance.random() < 0.5 and batch is active[len(kept)]]
        self.segments[-1] = (base, kept)
        self.log_end_offset = end = kept[-1].last_offset + 1 if kept else base
        self.history = {offset: record for offset, record in self.history.items() if offset < end}
        self.transactions = [
            one if one.marker is None or one.marker < end else replace(one, marker=None, outcome=None)
            for one in self.transactions
            if one.first < end
        ]
        os.truncate(self._file(base, ".log"), sum(len(batch.data) for batch in kept))
        entries = self._file(base, ".txnindex")
        if entries.exists():
            data = entries.read_bytes()
            rows = [data[at : at + _ENTRY.size] for at in range(0, len(data), _ENTRY.size)]
            os.truncate(entries, sum(_ENTRY.size for row in rows if _ENTRY.unpack(row)[3] < end))
        epoch = self.epochs[-1][0] + 1
        self.epochs = [*(entry for entry in self.epochs if entry[1] < end), (epoch, end)]
        self._write_epochs()

    def delete_records(self) -> None:
        span = self.high_watermark - self.log_start_offset
        if span > 0:
            self.log_start_offset += self.chance.randint(0, max(1, span // 4))

    def delete(self) -> None:
        """Retention: the first segments, all of whose records all replicas have."""
        if self._deleting or self._cleaning or len(self.segments) < 2:
            return
        ends = [base for base, _ in self.segments[1:] if base <= self.high_watermark]
        if ends:
            self._deleting = self._delete(self.chance.choice(ends[: max(1, len(ends) // 2)]))

    def clean(self) -> None:
        ends = [base for base, _ in self.segments[1:] if base <= self.high_watermark]
        if not self._cleaning and not self._deleting and ends:
            self._cleaning = self._clean(ends[-1])

    def die(self) -> None:
        """The broker is killed, and recovers. What it was writing is not there, what it was swapping is."""
        if self._cleaning is not None:
            if self._has_swapped:
                while self._cleaning is not None:
                    self.go_on_cleaning()
            else:
                for file in self.directory.glob("*.cleaned"):
                    file.unlink()
                self._cleaning = None
        while self._writing is not None:
            self.go_on_writing()

    # The steps

    def _add(self, batch: PlayedBatch, entry: bytes = b"") -> None:
        self.segments[-1][1].append(batch)
        self.log_end_offset = batch.last_offset + 1
        self._writing = self._write(self.segments[-1][0], batch.data, entry)
        self.go_on_writing()

    def _write(self, base: int, data: bytes, entry: bytes) -> Iterator[None]:
        """A reader may see a part of a batch, and a marker before its entry of the transaction index."""
        cut = self.chance.randrange(len(data)) if self.chance.random() < 0.2 else 0
        for part in (data[:cut], data[cut:]):
            if part:
                with self._file(base, ".log").open("ab") as file:
                    file.write(part)
                yield
        if entry:
            with self._file(base, ".txnindex").open("ab") as file:
                file.write(entry)

    def _delete(self, end: int) -> Iterator[None]:
        gone = [segment for segment in self.segments if segment[0] < end]
        self.segments = [segment for segment in self.segments if segment[0] >= end]
        self.log_start_offset = max(self.log_start_offset, end)
        renamed: list[Path] = []
        for base, _ in gone:
            yield from self._mark_deleted(base, renamed)
        for file in renamed:
            yield
            file.unlink()

    def _clean(self, end: int) -> Iterator[None]:
        """The cleaner's rule over all segments below `end`, which become one."""
        self._has_swapped = False
        sealed = [segment for segment in self.segments if segment[0] < end]
        base = sealed[0][0]
        batches = [batch for _, several in sealed for batch in several]
        latest = {key: offset for batch in batches for offset, (key, _) in batch.records.items()}
        last = max((batch.base_offset for batch in batches), default=-1)
        kept = []
        for batch in batches:
            records = {
                offset: (key, value)
                for offset, (key, value) in batch.records.items()
                if latest[key] == offset and (value is not None or not batch.was_cleaned)
            }
            if records or batch.base_offset == last:
                kept.append(replace(batch, records=records, was_cleaned=True))
        modified = self._file(sealed[-1][0], ".log").stat()
        cleaned = self.directory / f"{base:020d}.log.cleaned"
        cleaned.write_bytes(b"".join(batch.data for batch in kept))
        os.utime(cleaned, ns=(modified.st_atime_ns, modified.st_mtime_ns))
        yield
        self._has_swapped = True
        swap = cleaned.rename(cleaned.with_suffix(".swap"))
        self.segments = [(base, kept), *(segment for segment in self.segments if segment[0] >= end)]
        yield
        renamed: list[Path] = []
        for old, _ in sealed:
            yield from self._mark_deleted(old, renamed)
        swap.rename(self._file(base, ".log"))
        for suffix in _SIDECARS:
            self._file(base, suffix).touch()
        yield
        self.first_dirty_offset = end
        for file in renamed:
            file.unlink()
            yield

    def _mark_deleted(self, base: int, renamed: list[Path]) -> Iterator[None]:
        for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            file = self._file(base, suffix)
            if file.exists():
                renamed.append(file.rename(f"{file}.deleted"))
                yield

    def _file(self, base: int, suffix: str) -> Path:
        return self.directory / f"{base:020d}{suffix}"

    def _make_files(self, base: int) -> None:
        for suffix in (".log", *_SIDECARS):
            self._file(base, suffix).touch(exist_ok=False)

    def _write_epochs(self) -> None:
        entries = "".join(f"{epoch} {offset}\n" for epoch, offset in self.epochs)
        write_whole(self.directory / "leader-epoch-checkpoint", f"0\n{len(self.epochs)}\n{entries}")

    def _open(self, producer: int) -> Transaction | None:
        return next((one for one in self.transactions if one.producer == producer and one.outcome is None), None)

    # The model

    def readable(self, end: int) -> tuple[dict[int, Record], dict[int, Record]]:
        """(what readers of committed records must see of the log below an offset, what they may see); log starts aside.

        They must see what lies below all open transactions. Of a transaction whose begin retention has deleted, a
        broker that was started since knows only what is there.
        """
        mine = [one for one in self.transactions if one.first < end]
        unended = [one for one in mine if one.marker is None or one.marker >= end]
        ended = {one: one.marker or 0 for one in mine if one not in unended and one.outcome == ABORT}
        hidden = ended | dict.fromkeys(unended, end)
        stable = min((one.first for one in unended), default=end)
        may = {
            at: record
            for at, record in self.history.items()
            if at < end
            and not any(one.first <= at < stop and self.producers[at] == one.producer for one, stop in hidden.items())
        }
        return {at: record for at, record in may.items() if at < stable}, may


@dataclass
class PlayedDisk:
    """The log directory of a broker, by topic and partition."""

    root: Path
    chance: random.Random
    partitions: dict[tuple[str, int], PlayedPartition] = field(init=False)

    def __post_init__(self) -> None:
        def partition(name: str, **options: bool) -> PlayedPartition:
            return PlayedPartition(self.root / name, self.chance, **options)

        self.partitions = {
            ("orders", 0): partition("orders-0"),
            ("orders", 1): partition("orders-1"),
            ("payments", 0): partition("payments-0", has_transactions=True),
            ("prices", 0): partition("prices-0", is_compacted=True),
        }
        self.write_checkpoints()

    def step(self) -> str:
        """Something happens."""
        if self.chance.random() < 0.1:
            self.write_checkpoint(self.chance.choice(list(_CHECKPOINTS)))
            return "checkpoint"
        return self.chance.choice(list(self.partitions.values())).step()

    def settle(self) -> None:
        """Everything comes to its end."""
        for partition in self.partitions.values():
            partition.settle()
        self.write_checkpoints()

    def write_checkpoints(self) -> None:
        for name in _CHECKPOINTS:
            self.write_checkpoint(name)

    def write_checkpoint(self, name: str) -> None:
        """A checkpoint file as of now: a broker writes each at times of its own."""
        rows = [(at, getattr(partition, _CHECKPOINTS[name])) for at, partition in self.partitions.items()]
        lines = [f"{topic} {number} {offset}\n" for (topic, number), offset in rows if offset is not None]
        write_whole(self.root / name, f"0\n{len(lines)}\n{''.join(lines)}")


_CHECKPOINTS = {
    "replication-offset-checkpoint": "high_watermark",
    "log-start-offset-checkpoint": "log_start_offset",
    "cleaner-offset-checkpoint": "first_dirty_offset",
}


def write_whole(file: Path, text: str) -> None:
    """Writes a file in place of the one that is there, as Kafka writes checkpoints."""
    written = file.with_name(f"{file.name}.tmp")
    written.write_text(text)
    written.rename(file)


def _next(steps: Iterator[None] | None) -> Iterator[None] | None:
    """Takes a step. None where it was the last."""
    if steps is not None:
        try:
            next(steps)
        except StopIteration:
            return None
    return steps
