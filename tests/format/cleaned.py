"""Bytes cleaned by a map of themselves, and what is left of them."""

from __future__ import annotations

from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanedBatches, RecordFilter, clean_batches
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.producer_state import ProducerEntry
from spark_segments.format.window import Window
from tests.format.plain_decode import PlainBatch, plain_batches

NOW_MS = 1_700_000_100_000
RETENTION_MS = 600_000
LARGEST_INT64 = 2**63 - 1


def scanned(data: bytes) -> BatchTable:
    scan = scan_batches(data)
    assert scan.error is None and scan.needed == 0
    return scan.batches


def clean(
    data: bytes,
    *,
    newer: bytes = b"",
    now_ms: int = NOW_MS,
    delete_retention_ms: int = RETENTION_MS,
    first_uncleanable_offset: int = 1 << 40,
    producers: list[ProducerEntry] | None = None,
    transactions: CleanedTransactions | None = None,
    map_end_offset: int | None = None,
    codec: int | None = None,
    offset_shift: int = 0,
) -> CleanedBatches:
    """Cleans `data` by the map of `data` and of what is `newer` in the log."""
    offset_map = OffsetMap(1 << 16)
    for part, shift in ((data, offset_shift), (newer, 0)):
        offset_map.put_batches(Window(part, scanned(part), offset_shift=shift), end_offset=map_end_offset)
    cleaning = RecordFilter(
        offset_map, now_ms, delete_retention_ms, first_uncleanable_offset, ActiveProducers.of(producers or []), codec
    )
    window = Window(data, scanned(data), offset_shift=offset_shift)
    (cleaned,) = clean_batches(window, cleaning, transactions or CleanedTransactions())
    return cleaned


def left(cleaned: CleanedBatches) -> list[PlainBatch]:
    return list(plain_batches(cleaned.data.tobytes()))


def offsets(cleaned: CleanedBatches) -> list[int]:
    return [record.offset for batch in left(cleaned) for record in batch.records]
