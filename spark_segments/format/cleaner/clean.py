"""Cleaning batches: which batches of a compacted log stay, and the rewritten rest of the others.

The rules are Kafka's (Cleaner.cleanInto and MemoryRecords.filterTo). Which segments to clean, reading and writing them
and their indexes are left to the caller.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from spark_segments.format.batches import BatchTable, rebase, scan_batches
from spark_segments.format.buffers import COPY_SLACK, byte_view
from spark_segments.format.cleaner import filter_kernels, packing_kernels
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.layout import (
    BYTES_PER_SLOT,
    GROUP,
    KEEP_EMPTY,
    KEEP_WHOLE,
    LIVE_KNOWN,
    READ,
    RECORD_SLACK,
    SET_HORIZON,
    Batches,
    Cleaned,
    Counts,
    Rules,
    key_rows,
)
from spark_segments.format.cleaner.live_records import NO_LIVE_RECORDS, LiveRecords
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.compression import compress_blocks
from spark_segments.format.decoding.record_sections import RecordSections, address_of, damaged_record, record_sections
from spark_segments.format.kernels.copies import gather
from spark_segments.format.layout import (
    BATCH_OVERHEAD,
    RECORDS_POSITION,
)
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window

_LARGEST_INT64 = 2**63 - 1
_SMALLEST_INT64 = -(2**63)
_NO_SLOTS = np.zeros(BYTES_PER_SLOT // 8, np.uint64)  # a map without a key
_START, _END = map(Batches._fields.index, ("start", "end"))

# Room for batches that are rebuilt before what is left is handed out; a single batch may need more.
REBUILT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records and batches of a partition are kept: Kafka's MemoryRecords.RecordFilter.

    `first_uncleanable_offset` ends the cleanable part of the log: the batch right before it is kept, without records if
    necessary, so that the log's end is not lost. `codec`: that of rebuilt batches; None: each batch keeps its codec.
    `only_superseded`: nothing goes but the records that the map supersedes, as erasing a key wants it. Tombstones never
    expire, no batch gets a delete horizon, and records without a key and the headers of emptied batches stay.
    `live`: the live records of the map's offsets, for batches of which that says all. `held`: keys whose tombstones
    stay, by the map's seed; `keeps_tombstones`: all stay.
    """

    map: OffsetMap
    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    producers: ActiveProducers
    codec: int | None = None
    level: int | None = None
    only_superseded: bool = False
    live: LiveRecords = NO_LIVE_RECORDS
    held: OffsetMap | None = None
    keeps_tombstones: bool = False

    @property
    def new_horizon_ms(self) -> int:
        """The delete horizon of batches that get one now; -1 if no batch gets one or no clock reaches it."""
        if self.only_superseded:
            return -1
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= _LARGEST_INT64 else -1


@dataclass(frozen=True, slots=True)
class CleanerStats:
    """How many records were read and what became of them: `records_read` is the sum of the next six fields."""

    records_read: int = 0
    records_kept: int = 0
    superseded: int = 0  # there is a later record of the key
    tombstone: int = 0  # the delete horizon of its batch has passed
    no_key: int = 0
    aborted: int = 0
    control: int = 0
    tombstones_kept: int = 0  # among records_kept
    batches_read: int = 0
    batches_unchanged: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: CleanerStats) -> CleanerStats:
        return CleanerStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class CleanedBatches:
    """What cleaning leaves of the batches `source`.

    `data`: uint8[], whole batches with the log's offsets. `batches`: their table, with positions from data[0]. Not
    `changed`: every batch stays unchanged, and `data` is a view of the given buffer, unless its offsets are shifted.
    `aborted`: the transactions for the index of the rewritten segment.
    """

    source: BatchTable
    data: np.ndarray
    batches: BatchTable
    changed: bool
    stats: CleanerStats
    aborted: AbortedTransactions


def clean_batches(
    window: Window, record_filter: RecordFilter, transactions: CleanedTransactions, plain: np.ndarray | None = None
) -> Iterator[CleanedBatches]:
    """Cleans the batches of a window, whose CRCs were checked and which follow the batches that `transactions` read.

    `plain` (bool[n]): the batches whose records were all put into the map, have a key and a value, and have
    offsets without gaps. No key of theirs is looked up: `record_filter.live` says which of their records stay.

    The results come in parts, in order, each of the batches for which REBUILT_BYTES have room. So memory is bounded,
    however well a log compresses. Raises CorruptBatchError for records that are damaged although the CRC holds.
    """
    batches = window.batches
    offset_shift = window.offset_shift
    discardable, aborted = transactions.read(window)
    action = _actions(batches, record_filter, discardable, offset_shift)
    count = batches.count.astype(np.int64)
    superseded = np.zeros(len(batches), np.bool_)
    if plain is not None and plain.any():
        superseded = _decide_plain(
            action, plain & ~discardable, record_filter.live.counts(batches, offset_shift), count
        )
    codec = batches.codec.astype(np.int64)
    if record_filter.codec is not None:  # control batches are never compressed
        codec = np.where(batches.is_control, codec, record_filter.codec)
    unread = action & READ == 0
    is_whole = action & KEEP_WHOLE != 0
    starts = address_of(window.data) + window.starts
    columns = Batches(
        address=starts,
        size=batches.size,
        start=starts,
        end=starts,
        base_offset=batches.base_offset + offset_shift,
        records=np.where(unread, 0, count),
        attributes=batches.attributes.astype(np.int64),
        base_timestamp=batches.base_timestamp,
        max_timestamp=batches.max_timestamp,
        action=action,
        codec=codec,
    )

    def taken(filtering: _Filtering) -> CleanedBatches:
        rows = slice(filtering.first, filtering.last)
        counts, data = filtering.take()
        scan = scan_batches(data, check_crc=False)
        assert scan.error is None and scan.consumed == len(data), "the cleaner wrote bytes that are no batches"
        table = scan.batches
        if offset_shift and len(table):
            data = data.copy() if data.base is not None else data
            rebase(data, table, offset_shift)
            table = replace(
                table, base_offset=table.base_offset + offset_shift, last_offset=table.last_offset + offset_shift
            )
        source = batches.take(rows)
        ends = rows.stop == len(batches)
        dropped = (unread & ~superseded & ~is_whole)[rows]
        control = source.is_control
        stats = CleanerStats(
            records_read=int(count[rows].sum()),
            records_kept=counts.kept + int(count[rows][is_whole[rows]].sum()),
            superseded=counts.superseded + int(count[rows][superseded[rows]].sum()),
            tombstone=counts.tombstones_expired,
            no_key=counts.no_key,
            aborted=int(count[rows][dropped & ~control].sum()),
            control=int(count[rows][dropped & control].sum()),
            tombstones_kept=counts.kept_tombstones,
            batches_read=len(source),
            batches_unchanged=counts.batches_unchanged,
            bytes_read=int(source.size.sum()),
            bytes_written=len(data),
        )
        changed = not window.is_as_written or stats.batches_unchanged < stats.batches_read
        return CleanedBatches(source, data, table, changed, stats, aborted if ends else AbortedTransactions.of())

    filtering: _Filtering | None = None
    for part in record_sections(window, mask=~unread):
        if filtering is None:
            filtering = _Filtering(window, columns, record_filter)
        elif not filtering.has_room(part):
            yield taken(filtering)
        filtering.add(part)
    if filtering is not None:
        yield taken(filtering)


def _actions(
    batches: BatchTable, record_filter: RecordFilter, discardable: np.ndarray, offset_shift: int
) -> np.ndarray:
    """int64[n]: what happens to each batch, as Kafka's Cleaner.checkBatchRetention decides it."""
    control = batches.is_control
    expired = batches.has_delete_horizon & (batches.base_timestamp <= record_filter.now_ms)
    discarded = discardable & (~control | expired)
    ends_round = batches.last_offset + (offset_shift + 1) == record_filter.first_uncleanable_offset
    keep_empty = ends_round | record_filter.producers.mask(batches, offset_shift) | record_filter.only_superseded
    values: np.ndarray = np.where(discarded, 0, READ) + keep_empty * KEEP_EMPTY + (discardable & control) * SET_HORIZON
    return values


def _decide_plain(action: np.ndarray, plain: np.ndarray, live: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Sets the actions of `plain` batches by the number of their live records. Returns which have no live record."""
    counted = plain & (live >= 0)
    dead: np.ndarray = counted & (live == 0)
    action[dead] &= ~READ
    action[counted & (live == count)] = KEEP_WHOLE
    action[counted & (live > 0) & (live < count)] |= LIVE_KNOWN
    return dead


class _Filtering:
    """Filters the batches of a window, part by part. What stays of rows first … last - 1 waits to be taken."""

    def __init__(self, window: Window, columns: Batches, record_filter: RecordFilter) -> None:
        self.first = self.last = 0
        self._window = window
        self._level = record_filter.level
        self._rules = _rules(record_filter)
        self._lines = np.stack(columns, axis=1)
        self._records = columns.records
        self._rows = key_rows(0)
        self._ends = np.empty(GROUP, np.int64)
        self._spans = np.empty((len(self._lines), 3), np.int64)
        # What rewritten batches before each row may need beyond their records.
        self._slack = np.concatenate(([0], np.cumsum(RECORD_SLACK * columns.records + BATCH_OVERHEAD)))
        self._begin()

    def _begin(self) -> None:
        self._rebuilt = np.empty(0, np.uint8)
        self._rebuilt_bytes = self._spans_used = 0
        self._counts = Counts(*[0] * len(Counts._fields))

    def _room(self, part: RecordSections) -> int:
        """The most bytes that rebuilt batches of a part take."""
        slack = self._slack[part.last] - self._slack[part.first]
        return int((part.end - part.start).sum() + slack) + COPY_SLACK

    def has_room(self, part: RecordSections) -> bool:
        """Whether a part fits behind the parts that were added since the last were taken."""
        return self._room(part) <= len(self._rebuilt) - self._rebuilt_bytes

    def add(self, part: RecordSections) -> None:
        """Filters a part, for which there is room, or behind which nothing waits."""
        if self.first == self.last:
            # The system gives memory only to the pages of this array that are written to, and Arrow's pool keeps them.
            size = max(self._room(part), REBUILT_BYTES)
            self._rebuilt = np.frombuffer(pa.allocate_buffer(size), np.uint8)
        lines = self._lines[part.first : part.last]
        lines[:, _START] = part.start
        lines[:, _END] = part.end
        # Only now it is sure that the bytes of each batch can hold so many records.
        self._rows = key_rows(int(self._records[part.first : part.last].max()), self._rows)
        cleaned = Cleaned(
            *filter_kernels.filter_batches(
                lines,
                self._rules,
                self._rows,
                self._ends,
                self._rebuilt[self._rebuilt_bytes :],
                self._spans[self._spans_used :],
            )
        )
        if cleaned.bad_row >= 0:
            at = cleaned.bad_at - int(part.start[cleaned.bad_row])
            raise damaged_record(self._window.batches, part.first + cleaned.bad_row, at, self._window.path)
        self.last = part.last
        self._rebuilt_bytes += cleaned.rebuilt_bytes
        self._spans_used += cleaned.spans
        self._counts = Counts(*map(operator.add, self._counts, cleaned.counts))

    def take(self) -> tuple[Counts, np.ndarray]:
        """(the counts, uint8[]: the batches that stay) of the parts that were added since this was called before."""
        spans = self._spans[: self._spans_used]
        sources = [byte_view(self._window.data), self._rebuilt]
        rebuilt = np.flatnonzero(spans[:, 2] >= 0)
        codecs = spans[rebuilt, 2]
        for codec in np.unique(codecs).tolist():
            sources.append(_compress(self._rebuilt, spans, rebuilt[codecs == codec], codec, self._level))
        address, size, _ = np.ascontiguousarray(spans.T)
        data = _joined(address, size, sources)
        counts = self._counts
        self.first = self.last
        self._begin()
        return counts, data


def _rules(record_filter: RecordFilter) -> Rules:
    offset_map = record_filter.map
    return Rules(
        offset_map.slots,
        offset_map.seed,
        offset_map.secret,
        offset_map.end_offset,
        _SMALLEST_INT64 if record_filter.only_superseded or record_filter.keeps_tombstones else record_filter.now_ms,
        record_filter.new_horizon_ms,
        record_filter.only_superseded,
        record_filter.live.start_offset,
        record_filter.live.bits,
        _NO_SLOTS if record_filter.held is None else record_filter.held.slots,
    )


def _compress(data: np.ndarray, spans: np.ndarray, rows: np.ndarray, codec: int, level: int | None) -> np.ndarray:
    """Compresses the records of the rebuilt batches of these rows of spans, which lie in `data`, sets their CRCs, and
    points the spans to the batches as they are stored: in the memory that it returns.
    """
    starts = spans[rows, 0] - address_of(data) + RECORDS_POSITION
    framed = compress_blocks(codec, data.data, starts, starts + spans[rows, 1] - RECORDS_POSITION, level)
    places = np.empty((len(framed.blocks), 2), np.int64)
    packing_kernels.find_blocks(framed.blocks, places)
    most_bytes = framed.most_bytes(int(places[:, 1].sum()), len(rows)) + len(rows) * RECORDS_POSITION
    out = np.frombuffer(pa.allocate_buffer(most_bytes), np.uint8)
    written = packing_kernels.pack_batches(spans, rows, codec, framed.block_bytes, framed.frame_header, places, out)
    return out[:written]


def _joined(address: np.ndarray, size: np.ndarray, sources: list[np.ndarray]) -> np.ndarray:
    """The spans of memory as one array: a view if they follow one another, else a copy."""
    total = int(size.sum())
    if len(address) and (address[:-1] + size[:-1] == address[1:]).all():
        for source in sources:
            start = int(address[0]) - address_of(source)
            if start >= 0 and start + total <= len(source):
                return source[start : start + total]
    data = np.empty(total, np.uint8)
    gather(None, address, size, data)
    return data
