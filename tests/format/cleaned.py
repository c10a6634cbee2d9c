"""Bytes cleaned by a map of themselves, and what is left of them."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np

from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanedBatches, RecordFilter, clean_batches
from spark_segments.format.cleaner.live_records import LiveRecords
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
    """Cleans `data` by the map of `data` and of what is `newer` in the log, with the keys of all records looked up.

    The same is asserted of a cleaning that knows the live records of the batches that have nothing but keys and values.
    """
    offset_map, window = OffsetMap(1 << 16), Window(data, scanned(data), offset_shift=offset_shift)
    plain = np.zeros(len(window.batches), np.bool_)
    for part, found in ((window, plain), (Window(newer, scanned(newer)), None)):
        offset_map.put_batches(part, end_offset=map_end_offset, plain=found)
    cleaning = RecordFilter(
        offset_map, now_ms, delete_retention_ms, first_uncleanable_offset, ActiveProducers.of(producers or []), codec
    )
    live = LiveRecords.of(offset_map, 1 << 20)
    assert live is not None
    plain &= window.batches.count == window.batches.last_offset - window.batches.base_offset + 1
    of_plain = pickle.loads(pickle.dumps(transactions or CleanedTransactions()))
    (cleaned,) = clean_batches(window, cleaning, transactions or CleanedTransactions())
    (other,) = clean_batches(window, dataclasses.replace(cleaning, live=live), of_plain, plain)
    assert (cleaned.data.tobytes(), cleaned.stats) == (other.data.tobytes(), other.stats)
    return cleaned


def left(cleaned: CleanedBatches) -> list[PlainBatch]:
    return list(plain_batches(cleaned.data.tobytes()))


def offsets(cleaned: CleanedBatches) -> list[int]:
    return [record.offset for batch in left(cleaned) for record in batch.records]
