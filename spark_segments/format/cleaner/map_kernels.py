"""The cleaner's kernels of keys: records read as far as their keys, the offset map, and the bits of live records.

A key is its 128-bit hash. Slots of the map, and the rows of records that are read at a time, are laid out in layout.py.
Arrays that are arguments are documented with their types; other positions and ends are addresses.
"""

from __future__ import annotations

import cython
import numpy as np

if not cython.compiled:
    from spark_segments.format.cleaner.layout import *
    from spark_segments.format.kernels.key_hash import *
    from spark_segments.format.kernels.memory import *

Map = cython.struct(slots=cython.longlong, end=cython.longlong, capacity=cython.ulonglong)
Counts = cython.struct(
    kept=cython.longlong,
    superseded=cython.longlong,
    expired=cython.longlong,
    no_key=cython.longlong,
    tombstones=cython.longlong,
)


@cython.cfunc
@cython.nogil
def map_at(slots: i64, words: i64) -> Map:
    """The map whose table is so many words from an address on."""
    out: Map = Map(slots, slots + words * 8, words // 3)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _home(table: Map, key: i64) -> i64:
    """The address of the slot where the search for a key begins; `key` is the address of the halves of its hash."""
    home: i64 = multiply_high(wrap_u64(load_native_i64(key)), table.capacity)
    return table.slots + home * BYTES_PER_SLOT


@cython.cfunc
@cython.inline
@cython.nogil
def _ask_for(table: Map, key: i64) -> cython.void:
    """Caches get the slots where the search for a key begins, two of which may lie in two lines of a cache."""
    home: i64 = _home(table, key)
    prefetch_near(home)
    prefetch_near(home + 2 * BYTES_PER_SLOT - 1)


@cython.cfunc
@cython.inline
@cython.nogil
def _slot_of(table: Map, key: i64) -> i64:
    """The address of the slot of a key, or of the empty one where it would go."""
    low: i64 = load_native_i64(key)
    high: i64 = load_native_i64(key + KEY_HIGH)
    at: i64 = _home(table, key)
    while load_native_i64(at + SLOT_NEXT) != 0 and (
        load_native_i64(at) != low or load_native_i64(at + KEY_HIGH) != high
    ):
        at += BYTES_PER_SLOT
        if at == table.end:
            at = table.slots
    return at


@cython.cfunc
@cython.inline
@cython.nogil
def _latest_offset(table: Map, key: i64) -> i64:
    """The offset of this key, or -1."""
    return load_native_i64(_slot_of(table, key) + SLOT_NEXT) - 1


@cython.cfunc
@cython.nogil
def read_keys(
    position: i64, end: i64, base_offset: i64, count: i64, seed: u64, secret: i64, rows: i64, read: i64
) -> i64:
    """Reads `count` records from `position` up to `end` into `rows` from row `read` on. Returns the row after the last.

    The result is -1 - p if the record at address p, or what follows the last record, is not what the batch says.
    """
    at: i64 = rows + read * KEY_ROW_BYTES
    record: i64 = 0
    start: i64
    after: i64
    flags: i64
    field: Varint
    delta: Varint
    while record < count:
        start = position
        field = read_varint(start, end)
        if field.at < 0 or field.value < 1 or field.value > end - field.at:
            return -1 - start
        position = field.at + field.value
        # Where each begins, the one before says: caches get what comes next if records are of about the same size.
        prefetch_near(position + LOOK_AHEAD * (position - start))
        field = read_varlong(field.at + 1, position)
        if field.at < 0:
            return -1 - start
        delta = read_varint(field.at, position)
        if delta.at < 0:
            return -1 - start
        field = read_varint(delta.at, position)
        after = field.at
        if after < 0 or field.value < -1 or field.value > position - after:
            return -1 - start
        flags = 0
        if field.value >= 0:
            flags = HAS_KEY
            store_key_hash(after, field.value, seed, secret, at + ROW_KEY)
            after += field.value
        field = read_varint(after, position)
        if field.at < 0 or field.value < -1 or field.value > position - field.at:
            return -1 - start
        if field.value < 0:
            flags |= TOMBSTONE
        store_native_i64(at, start)
        store_native_i64(at + ROW_OFFSET, wrap_i64(base_offset + delta.value))
        store_native_i64(at + ROW_FLAGS, flags)
        at += KEY_ROW_BYTES
        record += 1
    if count > 0 and position != end:
        return -1 - position
    return read + count


@cython.cfunc
@cython.inline
@cython.nogil
def _put(table: Map, key: i64, offset: i64, room: i64) -> i64:
    """Puts a key with its offset where it has none that is later. Returns how many slots that took: 1, 0, or -1 for a
    new key without `room`.
    """
    at: i64 = _slot_of(table, key)
    next_offset: i64 = load_native_i64(at + SLOT_NEXT)
    if next_offset != 0:
        if offset >= next_offset:
            store_native_i64(at + SLOT_NEXT, offset + 1)
        return 0
    if room <= 0:
        return -1
    store_native_i64(at, load_native_i64(key))
    store_native_i64(at + KEY_HIGH, load_native_i64(key + KEY_HIGH))
    store_native_i64(at + SLOT_NEXT, offset + 1)
    return 1


def put_sections(offsets, sections, batch: i64, batches: i64, end_offset: i64, limit: i64, growing: cython.bint):
    """(next batch, entries, offset that did not fit or -1, entries that there must be room for, bad address or -1)

    `offsets`: an OffsetMap. `sections`: SectionsToPut, of which those from `batch` to before `batches` are put, and
    their `is_plain` is set.
    """
    section_starts = sections.starts
    section_ends = sections.ends
    base_offsets = sections.base_offsets
    counts = sections.counts
    key_rows = sections.rows
    is_plain = sections.is_plain
    secret = offsets.secret
    slots = offsets.slots
    starts: i64 = address_of(section_starts)
    ends: i64 = address_of(section_ends)
    bases: i64 = address_of(base_offsets)
    numbers: i64 = address_of(counts)
    secret_at: i64 = address_of(secret)
    first_row: i64 = address_of(key_rows)
    plain: i64 = address_of(is_plain)
    table: Map = map_at(address_of(slots), len(slots))
    start_offset: i64 = offsets.start_offset
    seed: u64 = offsets.seed
    entries: i64 = offsets.entries
    after: i64
    read: i64
    first: i64
    row: i64
    offset: i64
    last: i64
    taken: i64
    with cython.nogil:
        while batch < batches:
            read = 0
            after = batch
            while after < batches and (after == batch or read + load_native_i64(numbers + 8 * after) <= GROUP):
                first = first_row + read * KEY_ROW_BYTES
                offset = load_native_i64(bases + 8 * after)
                read = read_keys(
                    load_native_i64(starts + 8 * after),
                    load_native_i64(ends + 8 * after),
                    offset,
                    load_native_i64(numbers + 8 * after),
                    seed,
                    secret_at,
                    first_row,
                    read,
                )
                if read < 0:
                    with cython.gil:
                        return after, entries, -1, entries, -1 - read
                last = first_row + read * KEY_ROW_BYTES
                while (
                    first < last
                    and load_native_i64(first + ROW_FLAGS) == HAS_KEY
                    and load_native_i64(first + ROW_OFFSET) == offset
                ):
                    first += KEY_ROW_BYTES
                    offset += 1
                store_i8(plain + after, first == last)
                after += 1
            if growing and entries + read > limit:
                with cython.gil:
                    return batch, entries, -1, entries + read, -1
            last = first_row + (read - 1) * KEY_ROW_BYTES
            row = first_row
            while row <= last:
                _ask_for(table, min(row + LOOK_AHEAD * KEY_ROW_BYTES, last) + ROW_KEY)
                offset = load_native_i64(row + ROW_OFFSET)
                if load_native_i64(row + ROW_FLAGS) & HAS_KEY and offset >= start_offset and offset < end_offset:
                    taken = _put(table, row + ROW_KEY, offset, limit - entries)
                    if taken < 0:
                        with cython.gil:
                            return batch, entries, offset, entries, -1
                    entries += taken
                row += KEY_ROW_BYTES
            batch = after
    return batch, entries, -1, entries, -1


@cython.cfunc
@cython.nogil
def judge(
    table: Map,
    row: i64,
    last: i64,
    read: i64,
    end_offset: i64,
    keep_without_key: cython.bint,
    expires: cython.bint,
    held: Map,
) -> Counts:
    """Sets the flags of the rows from address `row` up to `last`: 1 if the record stays, else 0. Returns what became of
    them. Tombstones that stay are among `kept`.

    Records from `end_offset` on stay, also against the map. `expires`: tombstones go, unless their keys are in `held`.
    Rows up to address `read` are judged next.
    """
    out: Counts = Counts(0, 0, 0, 0, 0)
    flags: i64
    offset: i64
    while row < last:
        _ask_for(table, min(row + LOOK_AHEAD * KEY_ROW_BYTES, read - KEY_ROW_BYTES) + ROW_KEY)
        offset = load_native_i64(row + ROW_OFFSET)
        flags = load_native_i64(row + ROW_FLAGS)
        store_native_i64(row + ROW_FLAGS, 0)
        if offset < end_offset:
            if flags & HAS_KEY == 0:
                if not keep_without_key:
                    out.no_key += 1
                    row += KEY_ROW_BYTES
                    continue
            elif offset < _latest_offset(table, row + ROW_KEY):
                out.superseded += 1
                row += KEY_ROW_BYTES
                continue
            elif flags & TOMBSTONE and expires and _latest_offset(held, row + ROW_KEY) < 0:
                out.expired += 1
                row += KEY_ROW_BYTES
                continue
        store_native_i64(row + ROW_FLAGS, 1)
        out.kept += 1
        out.tombstones += flags & TOMBSTONE != 0
        row += KEY_ROW_BYTES
    return out


def latest(key, seed: u64, secret, slots):
    """The offset of one key, a buffer, or -1."""
    halves = np.empty(2, np.uint64)
    store_key_hash(address_of(key), len(key), seed, address_of(secret), address_of(halves))
    return _latest_offset(map_at(address_of(slots), len(slots)), address_of(halves))


def count_new(source, slots) -> int:
    """How many keys of another table (uint64[3n]) are not in this table."""
    table: Map = map_at(address_of(slots), len(slots))
    at: i64 = address_of(source)
    end: i64 = at + 8 * len(source)
    new: i64 = 0
    with cython.nogil:
        while at < end:
            if load_native_i64(at + SLOT_NEXT) != 0 and _latest_offset(table, at) < 0:
                new += 1
            at += BYTES_PER_SLOT
    return new


def put_known(source, slots) -> int:
    """Puts those keys of another table (uint64[3n]) that are in this table, and empties their slots in the other one.
    Returns how many are left there.
    """
    table: Map = map_at(address_of(slots), len(slots))
    at: i64 = address_of(source)
    end: i64 = at + 8 * len(source)
    next_offset: i64
    to: i64
    left: i64 = 0
    with cython.nogil:
        while at < end:
            next_offset = load_native_i64(at + SLOT_NEXT)
            if next_offset != 0:
                to = _slot_of(table, at) + SLOT_NEXT
                if load_native_i64(to) != 0:
                    store_native_i64(to, max(load_native_i64(to), next_offset))
                    store_native_i64(at + SLOT_NEXT, 0)
                else:
                    left += 1
            at += BYTES_PER_SLOT
    return left


def put_slots(source, slots, entries: i64):
    """Puts the used slots of another table (uint64[3n]), for which there is room. Returns the entries then."""
    table: Map = map_at(address_of(slots), len(slots))
    at: i64 = address_of(source)
    end: i64 = at + 8 * len(source)
    offset: i64
    with cython.nogil:
        while at < end:
            offset = load_native_i64(at + SLOT_NEXT) - 1
            if offset >= 0:
                entries += _put(table, at, offset, 1)
            at += BYTES_PER_SLOT
    return entries


def spread(table, at: i64, slots: i64, aside) -> tuple:
    """Moves the keys of the slots before `at` to where they belong in a table (uint64[]) of so many `slots`, at least
    as many as it had. Slots behind are moved already, or empty. (The slot up to which that is left to do, where `aside`
    (uint64[3n]) is full; how many slots of `aside` are used.)

    From the last slot to the first, a key goes to a slot that is not behind its old one, so it meets no key that still
    waits. A key that would go before it, as some of the first slots do, or behind the end, is put `aside`.
    """
    grown: Map = Map(address_of(table), address_of(table) + slots * BYTES_PER_SLOT, slots)
    source: i64 = grown.slots + at * BYTES_PER_SLOT
    first_aside: i64 = address_of(aside)
    out: i64 = first_aside
    out_end: i64 = out + 8 * len(aside)
    low: i64
    high: i64
    next_offset: i64
    to: i64
    with cython.nogil:
        while source > grown.slots and out < out_end:
            source -= BYTES_PER_SLOT
            next_offset = load_native_i64(source + SLOT_NEXT)
            if next_offset != 0:
                low = load_native_i64(source)
                high = load_native_i64(source + KEY_HIGH)
                to = _home(grown, source)
                fill_bytes(source, 0, BYTES_PER_SLOT)
                while to >= source and to < grown.end and load_native_i64(to + SLOT_NEXT) != 0:
                    to += BYTES_PER_SLOT
                if to < source or to == grown.end:
                    to = out
                    out += BYTES_PER_SLOT
                store_native_i64(to, low)
                store_native_i64(to + KEY_HIGH, high)
                store_native_i64(to + SLOT_NEXT, next_offset)
    return (source - grown.slots) // BYTES_PER_SLOT, (out - first_aside) // BYTES_PER_SLOT


def hash_rows(offsets, data, validity, first_bit: i64, rows: i64, seed: u64, secret, hashes) -> None:
    """Hashes keys of an Arrow column. `hashes` (int64[3n]) gets of each the two halves, and whether there is a key.

    `offsets` is int32[n + 1], `validity` uint8[] with the bit of row 0 at `first_bit`, or empty.
    """
    ends: i64 = address_of(offsets)
    begin: i64 = address_of(data)
    valid: i64 = address_of(validity)
    secret_at: i64 = address_of(secret)
    out: i64 = address_of(hashes)
    without_nulls: cython.bint = len(validity) == 0
    row: i64
    bit: i64
    start: i64
    size: i64
    with cython.nogil:
        for row in range(rows):
            bit = first_bit + row
            if without_nulls or (load_u8(valid + (bit >> 3)) >> (bit & 7)) & 1:
                start = load_native_i32(ends + 4 * row)
                size = load_native_i32(ends + 4 * row + 4) - start
                store_key_hash(begin + start, size, seed, secret_at, out + HASHED_BYTES * row)
                store_native_i64(out + HASHED_BYTES * row + HASHED_FLAG, 1)
            else:
                store_native_i64(out + HASHED_BYTES * row + HASHED_FLAG, 0)


@cython.cfunc
@cython.inline
@cython.nogil
def _is_of_share(key: i64, share: u64, shares: u64) -> cython.bint:
    """Whether a line of `hash_rows` has a key, and one of this share."""
    return load_native_i64(key + HASHED_FLAG) != 0 and (
        shares == 1 or multiply_high(wrap_u64(load_native_i64(key + KEY_HIGH)), shares) == share
    )


def put_rows(hashes, offsets, row: i64, slots, entries: i64, limit: i64, share: u64, shares: u64):
    """Puts the keys of a share, of `hash_rows`, at their offsets (int64[n]) from a row on. (the first row that has no
    room, or the number of rows; entries)
    """
    table: Map = map_at(address_of(slots), len(slots))
    keys: i64 = address_of(hashes)
    places: i64 = address_of(offsets)
    rows: i64 = len(offsets)
    key: i64
    taken: i64
    with cython.nogil:
        while row < rows:
            key = keys + HASHED_BYTES * row
            _ask_for(table, keys + HASHED_BYTES * min(row + LOOK_AHEAD, rows - 1))
            if _is_of_share(key, share, shares):
                taken = _put(table, key, load_native_i64(places + 8 * row), limit - entries)
                if taken < 0:
                    break
                entries += taken
            row += 1
    return row, entries


def mark_rows(hashes, offsets, slots, share: u64, shares: u64, superseded) -> None:
    """Sets `superseded` (bool[n]) of rows without a key, and of rows of the share that have a later offset."""
    table: Map = map_at(address_of(slots), len(slots))
    keys: i64 = address_of(hashes)
    places: i64 = address_of(offsets)
    out: i64 = address_of(superseded)
    rows: i64 = len(offsets)
    row: i64
    key: i64
    with cython.nogil:
        for row in range(rows):
            key = keys + HASHED_BYTES * row
            _ask_for(table, keys + HASHED_BYTES * min(row + LOOK_AHEAD, rows - 1))
            if load_native_i64(key + HASHED_FLAG) == 0 or (
                _is_of_share(key, share, shares) and load_native_i64(places + 8 * row) < _latest_offset(table, key)
            ):
                store_i8(out + row, 1)


def set_bits(slots, start_offset: i64, count: i64, bits) -> None:
    """Sets the bit of each offset in the slots of a map that is among `count` offsets from `start_offset` on.

    Records of a damaged batch may state offsets beyond the end of the map.
    """
    at: i64 = address_of(slots)
    end: i64 = at + 8 * len(slots)
    out: i64 = address_of(bits)
    one: i64 = 1
    bit: i64
    with cython.nogil:
        while at < end:
            bit = load_native_i64(at + SLOT_NEXT) - 1 - start_offset
            if load_native_i64(at + SLOT_NEXT) != 0 and bit >= 0 and bit < count:
                store_i8(out + (bit >> 3), load_u8(out + (bit >> 3)) | one << (bit & 7))
            at += BYTES_PER_SLOT


def count_bits(bits, wanted, starts, ends, counts) -> None:
    """Sets `found` (int64[n]) of each wanted (bool[n]) range [start, end) (int64[n] each) to how many of its bits are
    set.
    """
    data: i64 = address_of(bits)
    is_wanted: i64 = address_of(wanted)
    first: i64 = address_of(starts)
    last: i64 = address_of(ends)
    out: i64 = address_of(counts)
    rows: i64 = len(starts)
    row: i64
    at: i64
    end: i64
    count: i64
    byte: i64
    with cython.nogil:
        for row in range(rows):
            if load_u8(is_wanted + row) == 0:
                continue
            at = load_native_i64(first + 8 * row)
            end = load_native_i64(last + 8 * row)
            count = 0
            while at < end:
                if at & 7 == 0 and at + 8 <= end:
                    byte = load_u8(data + (at >> 3))
                    while byte:
                        byte &= byte - 1
                        count += 1
                    at += 8
                else:
                    count += (load_u8(data + (at >> 3)) >> (at & 7)) & 1
                    at += 1
            store_native_i64(out + 8 * row, count)
