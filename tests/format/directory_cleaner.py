"""Cleaning of a whole Kafka partition directory in memory: what surrounds the cleaner of batches, as plain as can be.

The last segment is the active one. Segments are not grouped, and there is one round, as far as the map goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanedBatches, CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.producer_state import ProducerState, parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.format.window import Window


@dataclass(frozen=True)
class LogSegment:
    base_offset: int
    data: bytes
    aborted: AbortedTransactions

    @cached_property
    def batches(self) -> BatchTable:
        scan = scan_batches(self.data)
        assert scan.error is None and scan.needed == 0
        return scan.batches


@dataclass(frozen=True)
class CleanedLog:
    """The cleaned segments, one for each that was cleaned, and the new first dirty offset."""

    segments: list[LogSegment]
    parts: list[CleanedBatches]
    first_dirty_offset: int
    counts: CleanerStats

    @property
    def data(self) -> bytes:
        return b"".join(segment.data for segment in self.segments)

    @property
    def changed(self) -> bool:
        return any(part.changed for part in self.parts)


def segments_of(directory: Path) -> list[LogSegment]:
    """All segments, the active one too."""
    found = []
    for path in sorted(directory.glob("*.log")):
        index = path.with_suffix(".txnindex")
        aborted = parse_txn_index(index.read_bytes()) if index.exists() else AbortedTransactions.of()
        found.append(LogSegment(int(path.stem), path.read_bytes(), aborted))
    return found


def first_dirty_offset(checkpoint: Path) -> int:
    """The only entry of a cleaner-offset-checkpoint; 0 where there is none."""
    return int(checkpoint.read_text().split()[-1]) if checkpoint.exists() else 0


def active_producers(directory: Path, now_ms: int) -> ActiveProducers:
    """Those of the last producer snapshot that have not expired."""
    state = ProducerState(parse_producer_snapshot(max(directory.glob("*.snapshot")).read_bytes()))
    state.expire(now_ms)
    return ActiveProducers.of(state.entries())


def clean_log(
    segments: list[LogSegment],
    *,
    first_dirty_offset: int,
    now_ms: int,
    producers: ActiveProducers | None = None,
    delete_retention_ms: int = 600_000,
    map_bytes: int = 24 << 16,
    load_factor: float = 0.9,
    codec: int | None = None,
    batches_a_call: int = 1 << 30,
) -> CleanedLog:
    """Cleans all segments but the last, as far as the map goes."""
    *inactive, active = segments
    end_offset = active.base_offset
    offset_map = OffsetMap(map_bytes, start_offset=first_dirty_offset, load_factor=load_factor)
    # A transaction's index entry lies with its marker, which may be in a later segment than its data.
    aborted = AbortedTransactions.concatenate(segment.aborted for segment in segments)
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted.overlapping(first_dirty_offset, end_offset))
    for segment, after in zip(inactive, segments[1:], strict=True):
        if after.base_offset <= first_dirty_offset or offset_map.full:
            continue
        for batches in portions(segment.batches, batches_a_call):
            discardable, _ = transactions.read(Window(segment.data, batches))
            offset_map.put_batches(Window(segment.data, batches), exclude=discardable & ~batches.is_control)
        if not offset_map.full:
            offset_map.advance(after.base_offset)

    cleaning = RecordFilter(
        offset_map, now_ms, delete_retention_ms, end_offset, producers or ActiveProducers.of(), codec
    )
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    cleaned: list[LogSegment] = []
    parts: list[CleanedBatches] = []
    for segment in inactive:
        if segment.base_offset >= offset_map.end_offset:
            cleaned.append(segment)
            continue
        own = [
            part
            for batches in portions(segment.batches, batches_a_call)
            for part in clean_batches(Window(segment.data, batches), cleaning, transactions)
        ]
        data = b"".join(part.data.tobytes() for part in own)
        cleaned.append(
            LogSegment(segment.base_offset, data, AbortedTransactions.concatenate(part.aborted for part in own))
        )
        parts += own
    counts = sum((part.stats for part in parts), CleanerStats())
    return CleanedLog([*cleaned, active], parts, offset_map.end_offset, counts)


def portions(batches: BatchTable, size: int) -> Iterator[BatchTable]:
    for first in range(0, len(batches), size):
        yield batches.take(slice(first, first + size))
