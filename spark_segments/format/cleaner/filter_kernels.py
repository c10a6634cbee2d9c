"""The cleaner's kernel: which records of a batch stay, and the batch that is left.

The rules come from Kafka's Cleaner.shouldRetainRecord and MemoryRecords.filterTo. clean.py has decided before what
happens to whole batches. Unchanged batches are not copied: the kernel returns the spans of memory that the output
consists of.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.cleaner.layout import *
    from spark_segments.format.cleaner.map_kernels import *
    from spark_segments.format.kernels.crc32c import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *

Batch = cython.struct(
    row=cython.longlong,
    address=cython.longlong,
    size=cython.longlong,
    start=cython.longlong,
    end=cython.longlong,
    base_offset=cython.longlong,
    records=cython.longlong,
    attributes=cython.longlong,
    base_timestamp=cython.longlong,
    max_timestamp=cython.longlong,
    action=cython.longlong,
    codec=cython.longlong,
)
Delta = cython.struct(value=cython.longlong, start=cython.longlong, after=cython.longlong)
Live = cython.struct(start_offset=cython.longlong, bits=cython.longlong)


@cython.cfunc
@cython.nogil
def _batch(batches: i64, row: i64) -> Batch:
    at: i64 = batches + row * BATCH_BYTES
    out: Batch = Batch(
        row,
        load_native_i64(at),
        load_native_i64(at + 8),
        load_native_i64(at + 16),
        load_native_i64(at + 24),
        load_native_i64(at + 32),
        load_native_i64(at + 40),
        load_native_i64(at + 48),
        load_native_i64(at + 56),
        load_native_i64(at + 64),
        load_native_i64(at + 72),
        load_native_i64(at + 80),
    )
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _add_span(last: i64, first: i64, address: i64, size: i64, codec: i64) -> i64:
    """Appends a span behind that at `last`, or lengthens it if this one follows it in memory. The address of the last
    span then.
    """
    follows: cython.bint = last >= first and codec < 0 and load_native_i64(last + 16) < 0
    if follows and load_native_i64(last) + load_native_i64(last + 8) == address:
        store_native_i64(last + 8, load_native_i64(last + 8) + size)
        return last
    last += SPAN_BYTES
    store_native_i64(last, address)
    store_native_i64(last + 8, size)
    store_native_i64(last + 16, codec)
    return last


@cython.cfunc
@cython.nogil
def _read_live(batch: Batch, live: Live, rows: i64) -> i64:
    """Sets address and flags of the batch's records in `rows`. Returns how many stay.

    The result is -1 - p if the record at address p, or what follows the last record, is not what the batch says.
    """
    position: i64 = batch.start
    bit: i64 = batch.base_offset - live.start_offset
    end: i64 = rows + batch.records * KEY_ROW_BYTES
    kept: i64 = 0
    flag: i64
    length: Varint
    while rows < end:
        store_native_i64(rows, position)
        length = read_varint(position, batch.end)
        if length.at < 0 or length.value < 1 or length.value > batch.end - length.at:
            return -1 - position
        prefetch_near(length.at + length.value + LOOK_AHEAD * (length.at + length.value - position))
        position = length.at + length.value
        flag = (load_u8(live.bits + (bit >> 3)) >> (bit & 7)) & 1
        store_native_i64(rows + ROW_FLAGS, flag)
        kept += flag
        bit += 1
        rows += KEY_ROW_BYTES
    return kept if position == batch.end else -1 - position


@cython.cfunc
@cython.nogil
def _write_header(
    out: i64,
    source: i64,
    size: i64,
    attributes: i64,
    base_timestamp: i64,
    max_timestamp: i64,
    count: i64,
    checked: cython.bint,
) -> cython.void:
    """Writes the header of a batch of `size` bytes. Other fields are copied from the batch at `source`."""
    copy_bytes(out, source, BATCH_OVERHEAD)
    store_i32(out + BATCH_LENGTH_POSITION, size - LOG_OVERHEAD)
    store_i16(out + ATTRIBUTES_POSITION, attributes)
    store_i64(out + BASE_TIMESTAMP_POSITION, base_timestamp)
    store_i64(out + MAX_TIMESTAMP_POSITION, max_timestamp)
    store_i32(out + RECORDS_COUNT_POSITION, count)
    if checked:
        store_i32(out + CRC_POSITION, crc32c_range(out + ATTRIBUTES_POSITION, out + size))


@cython.cfunc
@cython.nogil
def _empty(batch: Batch, out: i64) -> cython.bint:
    """Writes the batch without records. Returns whether the batch was the same before."""
    attributes: i64 = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    _write_header(out, batch.address, BATCH_OVERHEAD, attributes, NO_TIMESTAMP, batch.max_timestamp, 0, True)
    at: i64 = 0
    if batch.size != BATCH_OVERHEAD:
        return False
    while at < BATCH_OVERHEAD and load_u8(out + at) == load_u8(batch.address + at):
        at += 1
    return at == BATCH_OVERHEAD


@cython.cfunc
@cython.inline
@cython.nogil
def _timestamp_delta(start: i64, end: i64) -> Delta:
    """The timestamp delta of a good record, with the address of its varlong and that behind it."""
    length: Varint = read_varint(start, end)
    delta: Varint = read_varlong(length.at + 1, end)
    out: Delta = Delta(delta.value, length.at + 1, delta.at)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _record_end(row: i64, last: i64, section_end: i64) -> i64:
    """The end of the record before `row`."""
    return load_native_i64(row) if row < last else section_end


@cython.cfunc
@cython.nogil
def _rebuild(batch: Batch, row: i64, last: i64, kept: i64, horizon_ms: i64, out: i64) -> i64:
    """Writes the batch with those records of the rows up to `last` that stay. Returns its size, or -1: too large.

    As Kafka's buildRetainedRecordsInto: the base timestamp is the delete horizon, or else the first record's timestamp.
    """
    attributes: i64 = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    appended: cython.bint = attributes & TIMESTAMP_TYPE_MASK != 0
    old_base: i64 = batch.base_timestamp
    max_timestamp: i64 = batch.max_timestamp if appended else NO_TIMESTAMP
    new_base: i64
    delta: Delta
    while load_native_i64(row + ROW_FLAGS) == 0:
        row += KEY_ROW_BYTES
    if horizon_ms >= 0:
        attributes |= DELETE_HORIZON_MASK
        new_base = horizon_ms
    elif appended:
        new_base = max_timestamp
    else:
        delta = _timestamp_delta(load_native_i64(row), batch.end)
        new_base = wrap_i64(old_base + delta.value)
    verbatim: cython.bint = not appended and new_base == old_base
    cursor: i64 = out + BATCH_OVERHEAD
    start: i64
    end: i64
    difference: i64
    while row < last:
        if load_native_i64(row + ROW_FLAGS) == 0:
            row += KEY_ROW_BYTES
            continue
        start = load_native_i64(row)
        if verbatim:
            # A run of records that stay is copied at once. Their timestamps are read, not written.
            while row < last and load_native_i64(row + ROW_FLAGS) != 0:
                delta = _timestamp_delta(load_native_i64(row), batch.end)
                max_timestamp = max(max_timestamp, wrap_i64(old_base + delta.value))
                row += KEY_ROW_BYTES
            end = _record_end(row, last, batch.end)
            copy_bytes(cursor, start, end - start)
            cursor += end - start
            continue
        row += KEY_ROW_BYTES
        end = _record_end(row, last, batch.end)
        delta = _timestamp_delta(start, batch.end)
        if appended:
            difference = wrap_i64(max_timestamp - new_base)
        else:
            max_timestamp = max(max_timestamp, wrap_i64(old_base + delta.value))
            difference = wrap_i64(delta.value + old_base - new_base)
        cursor = write_varlong(cursor, 1 + varlong_size(difference) + end - delta.after)
        store_i8(cursor, load_u8(delta.start - 1))
        cursor = write_varlong(cursor + 1, difference)
        copy_short(cursor, delta.after, end - delta.after, batch.end)
        cursor += end - delta.after
    if cursor - out > 0x7FFFFFFF - LOG_OVERHEAD:
        return -1
    _write_header(out, batch.address, cursor - out, attributes, new_base, max_timestamp, kept, batch.codec == 0)
    return cursor - out


def filter_batches(batches, rules, rows, ends, out, spans) -> tuple:
    """Cleans all batches; a tuple of the fields of `Cleaned`.

    `batches` is int64[n, 11]: a line of `Batches` each. `out` (uint8[]) has room for all that may be rebuilt and
    COPY_SLACK bytes more. `rows`: see `key_rows`. `ends` is int64[GROUP], `spans` int64[n, 3]: the output in
    order as address, size, and the codec that the batch is to be compressed with (it has no CRC yet) or -1.
    """
    slots = rules.slots
    table: Map = map_at(address_of(slots), len(slots))
    held_slots = rules.held
    held: Map = map_at(address_of(held_slots), len(held_slots))
    seed: u64 = rules.seed
    secret: i64 = address_of(rules.secret)
    map_end_offset: i64 = rules.map_end_offset
    now_ms: i64 = rules.now_ms
    new_horizon_ms: i64 = rules.new_horizon_ms
    keep_without_key: cython.bint = rules.keep_without_key
    live: Live = Live(rules.live_start_offset, address_of(rules.live))
    batches_at: i64 = address_of(batches)
    total: i64 = len(batches)
    first_row: i64 = address_of(rows)
    ends_at: i64 = address_of(ends)
    first_span: i64 = address_of(spans)
    span: i64 = first_span - SPAN_BYTES
    begin: i64 = address_of(out)
    to: i64 = begin
    counts: Counts
    kept: i64 = 0
    superseded: i64 = 0
    expired: i64 = 0
    no_key: i64 = 0
    tombstones: i64 = 0
    unchanged: i64 = 0
    bad_row: i64 = -1
    bad_at: i64 = -1
    row: i64 = 0
    batch: Batch
    after: i64
    read: i64
    row_first: i64
    row_last: i64
    size: i64
    count: i64
    group_row: i64
    horizon_ms: i64
    has_horizon: cython.bint
    is_new: cython.bint
    with cython.nogil:
        while row < total and bad_row < 0:
            batch = _batch(batches_at, row)
            if batch.action & (KEEP_WHOLE | LIVE_KNOWN):
                if batch.action & KEEP_WHOLE:
                    span = _add_span(span, first_span, batch.address, batch.size, -1)
                    unchanged += 1
                else:
                    count = _read_live(batch, live, first_row)
                    if count < 0:
                        bad_row = row
                        bad_at = -1 - count
                        break
                    kept += count
                    superseded += batch.records - count
                    horizon_ms = batch.base_timestamp if batch.attributes & DELETE_HORIZON_MASK else NO_TIMESTAMP
                    size = _rebuild(batch, first_row, first_row + batch.records * KEY_ROW_BYTES, count, horizon_ms, to)
                    if size < 0:
                        bad_row = row
                        bad_at = batch.start
                        break
                    span = _add_span(span, first_span, to, size, batch.codec if batch.codec != 0 else -1)
                    to += size
                row += 1
                continue
            read = 0
            after = row
            while after < total and after - row < GROUP:
                batch = _batch(batches_at, after)
                if (after > row and read + batch.records > GROUP) or batch.action & (KEEP_WHOLE | LIVE_KNOWN):
                    break
                count = read_keys(
                    batch.start, batch.end, batch.base_offset, batch.records, seed, secret, first_row, read
                )
                if count < 0:
                    bad_row = after
                    bad_at = -1 - count
                    break
                read = count
                store_native_i64(ends_at + 8 * (after - row), read)
                after += 1
            if bad_row >= 0:
                break
            row_first = first_row
            group_row = row
            while row < after:
                batch = _batch(batches_at, row)
                row_last = first_row + load_native_i64(ends_at + 8 * (row - group_row)) * KEY_ROW_BYTES
                has_horizon = batch.attributes & DELETE_HORIZON_MASK != 0
                # Control records have keys that are not the map's.
                counts = judge(
                    table,
                    row_first,
                    row_last,
                    first_row + read * KEY_ROW_BYTES,
                    0 if batch.attributes & CONTROL_MASK else map_end_offset,
                    keep_without_key,
                    has_horizon and now_ms >= batch.base_timestamp,
                    held,
                )
                kept += counts.kept
                superseded += counts.superseded
                expired += counts.expired
                no_key += counts.no_key
                tombstones += counts.tombstones
                is_new = not has_horizon and new_horizon_ms >= 0
                is_new = is_new and (counts.tombstones > 0 or batch.action & SET_HORIZON != 0)
                if counts.kept == 0:
                    if batch.action & KEEP_EMPTY:
                        if _empty(batch, to):
                            span = _add_span(span, first_span, batch.address, batch.size, -1)
                            unchanged += 1
                        else:
                            span = _add_span(span, first_span, to, BATCH_OVERHEAD, -1)
                            to += BATCH_OVERHEAD
                elif counts.kept * KEY_ROW_BYTES == row_last - row_first and not is_new:
                    span = _add_span(span, first_span, batch.address, batch.size, -1)
                    unchanged += 1
                else:
                    horizon_ms = new_horizon_ms if is_new else batch.base_timestamp if has_horizon else NO_TIMESTAMP
                    size = _rebuild(batch, row_first, row_last, counts.kept, horizon_ms, to)
                    if size < 0:
                        bad_row = row
                        bad_at = batch.start
                        break
                    span = _add_span(span, first_span, to, size, batch.codec if batch.codec != 0 else -1)
                    to += size
                row_first = row_last
                row += 1
    used: i64 = (span + SPAN_BYTES - first_span) // SPAN_BYTES
    return used, to - begin, bad_row, bad_at, kept, superseded, expired, no_key, tombstones, unchanged
