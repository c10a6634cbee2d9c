"""The cleaner's kernel: which records of a batch stay, and the batch that is left.

The rules are those of Kafka's Cleaner.shouldRetainRecord and MemoryRecords.filterTo. clean.py has decided before what
happens to whole batches. Batches that stay as they are are not copied: the kernel returns the spans of memory that the
output consists of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_segments.format.cleaner.offset_map import PREFETCH_ROWS, latest_offset, prefetch_slot
from spark_segments.format.cleaner.record_keys import HAS_KEY, TOMBSTONE, read_keys
from spark_segments.format.kernels.crc import crc32c_range
from spark_segments.format.kernels.jit import (
    MEMORY,
    copy_short,
    load_u8,
    memcpy,
    njit,
    read_varint,
    read_varlong,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    varlong_size,
    write_varlong,
)
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_LENGTH_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    CRC_POSITION,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    NO_TIMESTAMP,
    RECORDS_COUNT_POSITION,
    TIMESTAMP_TYPE_MASK,
)

# What happens to a batch (bits of `action`).
READ = 1  # its records are read; without this bit no record stays
KEEP_EMPTY = 2  # its header stays if no record does
SET_HORIZON = 4  # it holds a marker whose transaction has no data left
KEEP_WHOLE = 8  # all its records stay, and it stays as it is; with it, there is no READ
LIVE_KNOWN = 16  # its live records are known: no key is looked up. None is a tombstone, and offsets have no gaps

# Columns of the kernel's counts, records each.
KEPT = 0
SUPERSEDED = 1
TOMBSTONES_EXPIRED = 2
NO_KEY = 3
KEPT_TOMBSTONES = 4
BATCHES_UNCHANGED = 5
COUNTS = 6

# A rewritten record may be this much longer: 9 bytes for its timestamp delta, 4 for its length.
RECORD_SLACK = 13

_GROUP = 1024  # records that are read before the first of them is looked up
_LARGEST_BATCH = 2**31 - 1 - LOG_OVERHEAD
_TOO_LARGE = -2


class Batches(NamedTuple):
    """n batches for the kernel, an array each; addresses of their bytes and of their uncompressed records."""

    address: np.ndarray  # int64
    size: np.ndarray  # int64
    start: np.ndarray  # int64
    end: np.ndarray  # int64
    base_offset: np.ndarray  # int64, of the log
    records: np.ndarray  # int64: how many; 0 if they are not read
    attributes: np.ndarray  # int64
    base_timestamp: np.ndarray  # int64
    max_timestamp: np.ndarray  # int64
    action: np.ndarray  # int64: READ | KEEP_EMPTY | SET_HORIZON
    codec: np.ndarray  # int64: of the rebuilt batch


class Rules(NamedTuple):
    """The offset map and the moment of the cleaning. `keep_without_key`: records without a key stay."""

    slots: np.ndarray
    capacity: np.uint64
    seed: np.uint64
    secret: np.ndarray
    map_end_offset: int
    now_ms: int
    new_horizon_ms: int  # of batches that get one now; negative: no batch gets one
    keep_without_key: bool
    live_start_offset: int  # of the first bit of `live`
    live: np.ndarray  # uint8: see LiveRecords


class OutputSpans(NamedTuple):
    """The output in order: spans of memory to be copied. `row`: a batch to be compressed (without CRC yet), or -1."""

    address: np.ndarray  # int64
    size: np.ndarray  # int64
    row: np.ndarray  # int64


@njit(forceinline=True)
def _add_span(spans, used, address, size, row):
    """Appends a span, or lengthens the last span if this one follows it in memory. Returns how many there are."""
    last = used - 1
    if used > 0 and row < 0 and spans.row[last] < 0 and spans.address[last] + spans.size[last] == address:
        spans.size[last] += size
        return used
    spans.address[used] = address
    spans.size[used] = size
    spans.row[used] = row
    return used + 1


@njit
def _judge(rules, rows, first, last, read, end_offset, horizon_ms, counts):
    """Sets `flags` of rows [first, last): 1 if the record stays, else 0. Returns (how many stay, tombstones among
    them).

    Records from `end_offset` on stay, whatever the map says. Rows up to `read` are judged next.
    """
    offsets, lows, highs, flags = rows.offset, rows.low, rows.high, rows.flags
    slots = rules.slots
    no_key = superseded = expired = kept = tombstones = 0
    for row in range(first, last):
        prefetch_slot(slots, rules.capacity, lows, row + PREFETCH_ROWS, read)
        is_tombstone = flags[row] & TOMBSTONE != 0
        has_key = flags[row] & HAS_KEY != 0
        offset = offsets[row]
        flags[row] = 0
        if offset < end_offset:
            if not has_key:
                if not rules.keep_without_key:
                    no_key += 1
                    continue
            elif offset < latest_offset(slots, rules.capacity, lows[row], highs[row]):
                superseded += 1
                continue
            elif is_tombstone and rules.now_ms >= horizon_ms:
                expired += 1
                continue
        flags[row] = 1
        kept += 1
        tombstones += is_tombstone
    counts[NO_KEY] += no_key
    counts[SUPERSEDED] += superseded
    counts[TOMBSTONES_EXPIRED] += expired
    counts[KEPT] += kept
    counts[KEPT_TOMBSTONES] += tombstones
    return kept, tombstones


@njit
def _read_live(batches, batch, rules, rows):
    """Sets `start` and `flags` of the batch's records, from row 0 on. Returns how many stay.

    The result is -1 - p if the record at address p, or what follows the last record, is not what the batch says.
    """
    starts, flags, live = rows.start, rows.flags, rules.live
    position, end = batches.start[batch], batches.end[batch]
    bit = batches.base_offset[batch] - rules.live_start_offset
    kept = 0
    for row in range(batches.records[batch]):
        starts[row] = position
        length, after = read_varint(MEMORY, position, end)
        if after < 0 or length < 1 or length > end - after:
            return -1 - position
        position = after + length
        flag = (live[bit >> 3] >> (bit & 7)) & 1
        flags[row] = flag
        kept += flag
        bit += 1
    return kept if position == end else -1 - position


@njit
def _write_header(out, source, size, attributes, base_timestamp, max_timestamp, count, checked):
    """Writes the header of a batch of `size` bytes at address `out`. Other fields are copied from the batch at
    `source`.
    """
    memcpy(MEMORY, out, MEMORY, source, BATCH_OVERHEAD)
    store_i32(MEMORY, out + BATCH_LENGTH_POSITION, size - LOG_OVERHEAD)
    store_i16(MEMORY, out + ATTRIBUTES_POSITION, attributes)
    store_i64(MEMORY, out + BASE_TIMESTAMP_POSITION, base_timestamp)
    store_i64(MEMORY, out + MAX_TIMESTAMP_POSITION, max_timestamp)
    store_i32(MEMORY, out + RECORDS_COUNT_POSITION, count)
    if checked:
        store_i32(MEMORY, out + CRC_POSITION, crc32c_range(MEMORY, out + ATTRIBUTES_POSITION, out + size))


@njit
def _empty(batches, batch, out):
    """Writes the batch without records at address `out`. Returns whether the batch was the same before."""
    attributes = batches.attributes[batch] & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    source = batches.address[batch]
    _write_header(out, source, BATCH_OVERHEAD, attributes, NO_TIMESTAMP, batches.max_timestamp[batch], 0, True)
    if batches.size[batch] != BATCH_OVERHEAD:
        return False
    same = True
    for at in range(BATCH_OVERHEAD):
        same = same and load_u8(MEMORY, out + at) == load_u8(MEMORY, source + at)
    return same


@njit
def _timestamp_delta(start, end):
    """(delta, address of its varlong, address after it) of a good record."""
    _, position = read_varint(MEMORY, start, end)
    delta, after = read_varlong(MEMORY, position + 1, end)
    return delta, position + 1, after


@njit
def _rebuild(batches, batch, rows, first, last, kept, horizon_ms, out):
    """Writes the batch with those records of rows [first, last) that stay at address `out`. Returns its size, or
    _TOO_LARGE.

    As Kafka's buildRetainedRecordsInto: the base timestamp is the delete horizon, or else the first record's timestamp.
    """
    section_end = batches.end[batch]
    attributes = batches.attributes[batch] & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    appended = attributes & TIMESTAMP_TYPE_MASK != 0
    old_base = batches.base_timestamp[batch]
    max_timestamp = batches.max_timestamp[batch] if appended else np.int64(NO_TIMESTAMP)
    row = first
    while not rows.flags[row]:
        row += 1
    if horizon_ms >= 0:
        attributes |= DELETE_HORIZON_MASK
        new_base = horizon_ms
    elif appended:
        new_base = max_timestamp
    else:
        delta, _, _ = _timestamp_delta(rows.start[row], section_end)
        new_base = old_base + delta
    verbatim = not appended and new_base == old_base
    cursor = out + BATCH_OVERHEAD
    while row < last:
        if not rows.flags[row]:
            row += 1
            continue
        start = rows.start[row]
        if verbatim:
            # A run of records that stay is copied at once. Their timestamps are read, not written.
            while row < last and rows.flags[row]:
                delta, _, _ = _timestamp_delta(rows.start[row], section_end)
                max_timestamp = max(max_timestamp, old_base + delta)
                row += 1
            end = rows.start[row] if row < last else section_end
            memcpy(MEMORY, cursor, MEMORY, start, end - start)
            cursor += end - start
            continue
        row += 1
        end = rows.start[row] if row < last else section_end
        delta, at, after = _timestamp_delta(start, section_end)
        if appended:
            delta = max_timestamp - new_base
        else:
            max_timestamp = max(max_timestamp, old_base + delta)
            delta += old_base - new_base
        cursor = write_varlong(MEMORY, cursor, 1 + varlong_size(delta) + end - after)
        store_i8(MEMORY, cursor, load_u8(MEMORY, at - 1))
        cursor = write_varlong(MEMORY, cursor + 1, delta)
        copy_short(MEMORY, cursor, MEMORY, after, end - after, section_end)
        cursor += end - after
    size = cursor - out
    if size > _LARGEST_BATCH:
        return _TOO_LARGE
    checked = batches.codec[batch] == 0
    _write_header(out, batches.address[batch], size, attributes, new_base, max_timestamp, kept, checked)
    return size


@njit
def _put_rebuilt(batches, batch, rows, first, last, kept, horizon_ms, out, spans, used):
    """Rebuilds the batch at address `out` and adds its span. Returns (spans, address after it); -1 spans: too large."""
    size = _rebuild(batches, batch, rows, first, last, kept, horizon_ms, out)
    if size == _TOO_LARGE:
        return -1, out
    return _add_span(spans, used, out, size, batch if batches.codec[batch] != 0 else -1), out + size


@njit
def filter_batches(batches, rules, rows, ends, out, spans, counts):
    """Cleans all batches. Returns (how many spans, batch of a bad record or -1, address of a bad record or -1).

    At address `out` there is room for all that may be rebuilt and COPY_SLACK bytes more. `rows` has room for _GROUP
    records and for the records of the largest batch, `ends` (int64[]) for those of _GROUP batches.
    """
    used = 0
    batch = 0
    total = len(batches.address)
    while batch < total:
        if batches.action[batch] & (KEEP_WHOLE | LIVE_KNOWN):
            if batches.action[batch] & KEEP_WHOLE:
                used = _add_span(spans, used, batches.address[batch], batches.size[batch], -1)
                counts[BATCHES_UNCHANGED] += 1
            else:
                records = batches.records[batch]
                kept = _read_live(batches, batch, rules, rows)
                if kept < 0:
                    return used, batch, -1 - kept
                counts[KEPT] += kept
                counts[SUPERSEDED] += records - kept
                has_horizon = batches.attributes[batch] & DELETE_HORIZON_MASK != 0
                horizon_ms = batches.base_timestamp[batch] if has_horizon else np.int64(NO_TIMESTAMP)
                rebuilt, out = _put_rebuilt(batches, batch, rows, 0, records, kept, horizon_ms, out, spans, used)
                if rebuilt < 0:
                    return used, batch, batches.start[batch]
                used = rebuilt
            batch += 1
            continue
        read = 0
        after = batch
        while after < total and after - batch < _GROUP and (after == batch or read + batches.records[after] <= _GROUP):
            if batches.action[after] & (KEEP_WHOLE | LIVE_KNOWN):
                break
            read = read_keys(
                batches.start[after],
                batches.end[after],
                batches.base_offset[after],
                batches.records[after],
                rules.seed,
                rules.secret,
                rows,
                read,
            )
            if read < 0:
                return used, after, -1 - read
            ends[after - batch] = read
            after += 1
        first = 0
        for one in range(batch, after):
            last = ends[one - batch]
            has_horizon = batches.attributes[one] & DELETE_HORIZON_MASK != 0
            horizon_ms = batches.base_timestamp[one] if has_horizon else np.iinfo(np.int64).max
            # Control records have keys that are not the map's.
            end_offset = np.int64(0) if batches.attributes[one] & CONTROL_MASK else rules.map_end_offset
            kept, tombstones = _judge(rules, rows, first, last, read, end_offset, horizon_ms, counts)
            new_horizon = not has_horizon and (tombstones > 0 or batches.action[one] & SET_HORIZON != 0)
            new_horizon = new_horizon and rules.new_horizon_ms >= 0
            if kept == 0:
                if batches.action[one] & KEEP_EMPTY:
                    if _empty(batches, one, out):
                        used = _add_span(spans, used, batches.address[one], batches.size[one], -1)
                        counts[BATCHES_UNCHANGED] += 1
                    else:
                        used = _add_span(spans, used, out, BATCH_OVERHEAD, -1)
                        out += BATCH_OVERHEAD
            elif kept == last - first and not new_horizon:
                used = _add_span(spans, used, batches.address[one], batches.size[one], -1)
                counts[BATCHES_UNCHANGED] += 1
            else:
                kept_horizon = batches.base_timestamp[one] if has_horizon else np.int64(NO_TIMESTAMP)
                new_horizon_ms = rules.new_horizon_ms if new_horizon else kept_horizon
                rebuilt, out = _put_rebuilt(batches, one, rows, first, last, kept, new_horizon_ms, out, spans, used)
                if rebuilt < 0:
                    return used, one, batches.start[one]
                used = rebuilt
            first = last
        batch = after
    return used, -1, -1


@njit
def gather(addresses, sizes, out):
    """Copies spans of memory to address `out`, one after the other."""
    for piece in range(len(addresses)):
        memcpy(MEMORY, out, MEMORY, addresses[piece], sizes[piece])
        out += sizes[piece]


@njit
def write_base_offsets(out, positions, base_offsets):
    """Writes the base offsets of batches at `positions` of uint8[] `out`. The CRC does not cover them."""
    for batch in range(len(positions)):
        store_i64(out, positions[batch], base_offsets[batch])
