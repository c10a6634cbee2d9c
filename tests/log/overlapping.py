"""Partitions whose segments overlap, written by other encoders than the package's, and what a broker serves of them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from spark_segments.format.sidecars.checkpoints import offsets_bytes
from tests.log.golden_reads import Record, as_records
from verification.world.kafka_bytes.golden_files import expected_batches, expected_records, golden_dir
from verification.world.kafka_bytes.legacy_messages import message, wrapper
from verification.world.kafka_bytes.segment_bytes import batches_of, rebuild

TOPIC = "prices"


@dataclass(frozen=True)
class Batch:
    """A batch of the offsets first … last and the records in it; `codec` as in a batch's attributes (0 or 1)."""

    first: int
    last: int
    records: tuple[Record, ...]
    magic: int = 2
    codec: int = 0

    def encoded(self) -> bytes:
        return self._legacy() if self.magic < 2 else self._magic_2()

    def _magic_2(self) -> bytes:
        builder = DefaultRecordBatchBuilder(2, self.codec, 0, -1, -1, -1, 1 << 20)
        for _, offset, timestamp, _, key, value, _ in self.records:
            assert builder.append(offset - self.first, timestamp, key, value, []) is not None
        data = builder.build()
        struct.pack_into(">q", data, 0, self.first)
        struct.pack_into(">i", data, 23, self.last - self.first)
        if not self.records:
            struct.pack_into(">qq", data, 27, -1, -1)
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        return bytes(data)

    def _legacy(self) -> bytes:
        def one(record: Record, offset: int) -> bytes:
            _, _, timestamp, _, key, value, _ = record
            return message(offset, value, key=key, magic=self.magic, timestamp=max(0, timestamp))

        if not self.codec:
            return b"".join(one(record, record[1]) for record in self.records)
        relative = self.first if self.magic == 1 else 0
        inner = b"".join(one(record, record[1] - relative) for record in self.records)
        latest = max(record[2] for record in self.records)
        return wrapper(self.last, inner, magic=self.magic, timestamp=max(0, latest))


@dataclass(frozen=True)
class SegmentOf:
    """A segment of a partition: its base offset and its batches."""

    base: int
    batches: tuple[Batch, ...]


def served(segments: Sequence[SegmentOf], log_start: int) -> tuple[list[Record], int]:
    """(records, log end): what a broker gives to a consumer that reads from the log start to the end.

    The segment with the largest base at or below the wanted offset, from the first batch that reaches it to its end;
    if it has no such batch, the next segment that does. A consumer passes over what lies below its position.
    """
    wanted, records = log_start, []
    while True:
        at = max((number for number, segment in enumerate(segments) if segment.base <= wanted), default=0)
        batches: list[Batch] = []
        while not batches and at < len(segments):
            batches = [batch for batch in segments[at].batches if batch.last >= wanted]
            at += 1
        if not batches:
            return records, max(wanted, segments[-1].base)
        records += [record for batch in batches for record in batch.records if record[1] >= wanted]
        wanted = batches[-1].last + 1


def write_partition(
    root: Path, segments: Iterable[SegmentOf], *, log_start: int = 0, cleaned: int | None = None, indexes: bool = True
) -> Path:
    """Writes partition 0 of TOPIC below `root` as Kafka would, an index entry a batch, and the checkpoints."""
    directory = root / f"{TOPIC}-0"
    directory.mkdir(parents=True)
    for segment in segments:
        data = b"".join(batch.encoded() for batch in segment.batches)
        stem = directory / f"{segment.base:020d}"
        stem.with_suffix(".log").write_bytes(data)
        if indexes:
            index, time_index = rebuild(batches_of(data), segment.base, interval_bytes=1)
            stem.with_suffix(".index").write_bytes(index)
            stem.with_suffix(".timeindex").write_bytes(time_index)
    if log_start:
        (root / "log-start-offset-checkpoint").write_bytes(offsets_bytes({(TOPIC, 0): log_start}))
    if cleaned is not None:
        (root / "cleaner-offset-checkpoint").write_bytes(offsets_bytes({(TOPIC, 0): cleaned}))
    return directory


def crashed_in_swap(before: str, after: str, root: Path) -> tuple[Path, list[SegmentOf]]:
    """A golden partition after a cleaning, with the segments that the cleaning replaced still beside it."""
    source, target = golden_dir(before), root / golden_dir(after).name
    shutil.copytree(golden_dir(after), target)
    checkpoint = golden_dir(after).parent / "cleaner-offset-checkpoint"
    if checkpoint.exists():
        shutil.copy(checkpoint, root)
    segments = {int(path.stem): after for path in target.glob("*.log")}
    for path in source.glob("*.log"):
        if int(path.stem) not in segments:
            segments[int(path.stem)] = before
            for file in source.glob(f"{path.stem}.*"):
                shutil.copy(file, target)
    return target, [_golden_segment(segments[base], base) for base in sorted(segments)]


def _golden_segment(name: str, base: int) -> SegmentOf:
    records: dict[int, list[Record]] = {}
    for line in expected_records(name):
        if line["segment"] == base and not line["isControl"]:
            records.setdefault(line["batchBaseOffset"], []).extend(as_records([line]))
    return SegmentOf(
        base,
        tuple(
            Batch(batch["baseOffset"], batch["lastOffset"], tuple(records.get(batch["baseOffset"], ())))
            for batch in expected_batches(name)
            if batch["segment"] == base
        ),
    )
