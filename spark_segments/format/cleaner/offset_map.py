"""The cleaner's map: the latest offset of every key in the dirty part of a log.

A key is represented by its 128-bit hash alone. The table has open addressing with linear probing and 24 bytes a slot:
the two halves of the hash and the offset. A slot's home is the hash's share of the table's length, so the table may
have any length and a bound on memory is used in full.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spark_segments.errors import InvalidOptionError
from spark_segments.format.batches import BatchTable
from spark_segments.format.cleaner.record_keys import HAS_KEY, bad_record, key_rows, read_keys
from spark_segments.format.decoding.record_sections import RecordSections, as_magic_2, record_sections
from spark_segments.format.kernels.jit import njit, prefetch_near
from spark_segments.format.kernels.key_hash import hash_of, multiply_high, seeded_secret
from spark_segments.format.window import Window

BYTES_PER_SLOT = 24

_FIRST_SLOTS = 4096
_GROWTH = 4  # times: little is moved twice, and the old table is small beside the new one
_GROWING_LOAD = 0.6  # while there is room to grow, probes are kept short
_GROUP = 1024  # records that are read before the first of them is looked up
PREFETCH_ROWS = 16  # slots are asked for so many look-ups ahead
_NOT_FULL = -1
_LARGEST_INT64 = 2**63 - 1


class OffsetMap:
    """The latest offset of each key among the records put, in at most `memory_bytes` (1.25 times that while it grows).

    The map covers all records with a key in offsets [start_offset, end_offset). Kafka calls `end_offset - 1` the map's
    latest offset. Maps that are to be merged have the same `seed`.
    """

    def __init__(
        self, memory_bytes: int, *, start_offset: int = 0, load_factor: float = 0.9, seed: int | None = None
    ) -> None:
        slots = memory_bytes // BYTES_PER_SLOT
        # One slot stays empty, so that every search ends.
        self.max_entries = min(int(slots * load_factor), slots - 1)
        if self.max_entries < 1:
            raise InvalidOptionError(
                "the cleaner's offset map cannot hold a single key",
                expected=f"at least {2 * BYTES_PER_SLOT} bytes and a load factor of 0.5",
                found=f"{memory_bytes} bytes at {load_factor}",
                hint="Increase log.cleaner.dedupe.buffer.size",
            )
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.entries = 0
        self.full = False
        self.seed = secrets.randbits(64) if seed is None else seed
        self._max_slots = slots
        self._allocate(min(slots, _FIRST_SLOTS))

    def _allocate(self, slots: int) -> None:
        self.slots = np.zeros(slots * BYTES_PER_SLOT // 8, np.uint64)
        self.secret = seeded_secret(self.seed)

    @property
    def capacity(self) -> int:
        """How many slots the table has now."""
        return len(self.slots) * 8 // BYTES_PER_SLOT

    def __len__(self) -> int:
        return self.entries

    def get(self, key: Any) -> int:
        """The latest offset of a key, or -1."""
        number = hash_of(key, self.seed)
        low, high = np.uint64(number & (1 << 64) - 1), np.uint64(number >> 64)
        return int(latest_offset(self.slots, np.uint64(self.capacity), low, high))

    def put_batches(
        self,
        window: Window,
        *,
        end_offset: int | None = None,
        exclude: np.ndarray | None = None,
        plain: np.ndarray | None = None,
    ) -> bool:
        """Puts the records with a key of a window from `start_offset` up to `end_offset`. False: the map is full.

        Control batches and the batches of `exclude` (bool[n], aborted) are skipped. Afterwards the attribute
        `end_offset` says how far the map goes: past the last batch or, if it is full, up to the first record that had
        no room.

        `plain` (bool[n], all False) is set for the batches of magic 2 whose records were all put and are no tombstones.
        """
        if self.full:
            return False
        rows = np.arange(len(window.batches)) if plain is not None and (window.batches.magic == 2).all() else None
        bound = _LARGEST_INT64 if end_offset is None else end_offset
        batches, offset_shift = window.batches, window.offset_shift
        past_last = int(batches.last_offset[-1]) + offset_shift + 1 if len(batches) else self.end_offset
        if exclude is not None:
            window = window.take(~exclude)
            rows = None if rows is None else rows[~exclude]
        window = as_magic_2(window)
        batches = window.batches
        wanted = ~batches.is_control & (batches.count > 0) & window.overlaps(self.start_offset, bound)
        window = window.take(wanted)
        is_plain = np.zeros(len(window.batches), np.uint8)
        for part in record_sections(window):
            of_part = slice(part.first, part.last)
            self._put(part, window.batches.take(of_part), offset_shift, bound, window.path, is_plain[of_part])
            if self.full:
                return False
        if plain is not None and rows is not None:
            first, last = window.batches.base_offset + offset_shift, window.batches.last_offset + offset_shift
            plain[rows[wanted]] = (is_plain != 0) & (first >= self.start_offset) & (last < bound)
        self.advance(min(bound, past_last))
        return True

    def _put(
        self,
        part: RecordSections,
        batches: BatchTable,
        offset_shift: int,
        bound: int,
        path: str,
        is_plain: np.ndarray,
    ) -> None:
        base_offsets = batches.base_offset + offset_shift
        counts = batches.count.astype(np.int64)
        rows = key_rows(max(_GROUP, int(counts.max())))
        row = 0
        while row < len(counts):
            growing = self.capacity < self._max_slots
            limit = int(self.capacity * _GROWING_LOAD) if growing else self.max_entries
            row, self.entries, offset, needed, bad_at = _put_sections(
                part.start,
                part.end,
                base_offsets,
                counts,
                row,
                self.start_offset,
                bound,
                np.uint64(self.seed),
                self.secret,
                self.slots,
                np.uint64(self.capacity),
                self.entries,
                limit,
                growing,
                rows,
                is_plain,
            )
            if bad_at >= 0:
                raise bad_record(batches, part, row, bad_at, path)
            if offset != _NOT_FULL:
                self.full = True
                self.advance(offset)
                return
            if row < len(counts):
                self._grow(needed)

    def _grow(self, entries: int) -> None:
        old = self.slots
        wanted = max(_GROWTH * self.capacity, int(entries / _GROWING_LOAD) + 1)
        # A last step that would gain little is taken at once, so that the old table is never large beside the new
        # table.
        self._allocate(self._max_slots if wanted * _GROWTH > self._max_slots else wanted)
        self.entries = _put_slots(old, self.slots, np.uint64(self.capacity), 0)

    def advance(self, end_offset: int) -> None:
        """Says that the map goes up to `end_offset`: no record lies in between."""
        self.end_offset = max(self.end_offset, end_offset)

    def merge(self, other: OffsetMap) -> bool:
        """Puts the entries of `other`, a map of offsets that follow or overlap. False if they do not fit: see
        `merge_slots`.
        """
        if other.seed != self.seed or other.start_offset > self.end_offset:
            raise ValueError("maps can be merged if they have the same seed and no offsets between them")
        return self.merge_slots(lambda: [other.slots], other.entries, other.end_offset)

    def merge_slots(self, pieces: Callable[[], Iterable[np.ndarray]], entries: int, end_offset: int) -> bool:
        """Puts the `entries` of another map with the same seed, which goes up to `end_offset` without a gap. `pieces`
        gives the arrays of its `used_slots`. False, with nothing put, if they do not fit.

        The slots come in the order of the table. If they were put until this table is full, they would crowd its
        beginning, where each search would have to pass all of them.
        """
        if self.full:
            return False
        while self.capacity < self._max_slots and self.entries + entries > self.capacity * _GROWING_LOAD:
            self._grow(self.entries + entries)
        capacity = np.uint64(self.capacity)
        if self.entries + entries > self.max_entries:
            new = sum(_count_new(used, self.slots, capacity) for used in pieces())
            if self.entries + new > self.max_entries:
                return False
        for used in pieces():
            self.entries = _put_slots(used, self.slots, capacity, self.entries)
        self.advance(end_offset)
        return True

    def used_slots(self, piece_bytes: int) -> Iterator[np.ndarray]:
        """Yields uint64[3 * n]: the used slots of each `piece_bytes` of the table.

        They come in the order of the table: another map takes them in far quicker so than in any other order.
        """
        table = self.slots.reshape(-1, 3)
        rows = max(1, piece_bytes // BYTES_PER_SLOT)
        for first in range(0, len(table), rows):
            piece = table[first : first + rows]
            yield piece[piece[:, 2] != 0].reshape(-1)


@njit(forceinline=True)
def prefetch_slot(slots, capacity, lows, row, last):
    """Prefetches the slot where the search for the key of `row` begins, or of the last row before `last`."""
    prefetch_near(slots, np.int64(multiply_high(lows[min(row, last - 1)], capacity)) * BYTES_PER_SLOT)


@njit(forceinline=True)
def find_slot(slots, capacity, low, high):
    """The index in `slots` of the three words of this key, or of the empty words where it would go."""
    slot = multiply_high(low, capacity)
    while True:
        at = slot * np.uint64(3)
        if slots[at + np.uint64(2)] == 0 or (slots[at] == low and slots[at + np.uint64(1)] == high):
            return at
        slot += np.uint64(1)
        if slot == capacity:
            slot = np.uint64(0)


@njit(forceinline=True)
def latest_offset(slots, capacity, low, high):
    """The offset of this key, or -1."""
    return np.int64(slots[find_slot(slots, capacity, low, high) + np.uint64(2)]) - 1


@njit
def _put_sections(
    section_starts,
    section_ends,
    base_offsets,
    counts,
    batch,
    start_offset,
    end_offset,
    seed,
    secret,
    slots,
    capacity,
    entries,
    limit,
    growing,
    rows,
    is_plain,
):
    """(next batch, entries, offset that did not fit or -1, entries that there must be room for, bad address or -1)

    `is_plain` (uint8[n]) is 1 for each batch read whose records all have a key and a value and the next offset, else 0.
    """
    offsets, lows, highs, flags = rows.offset, rows.low, rows.high, rows.flags
    while batch < len(counts):
        read = 0
        after = batch
        while after < len(counts) and (after == batch or read + counts[after] <= _GROUP):
            first = read
            read = read_keys(
                section_starts[after], section_ends[after], base_offsets[after], counts[after], seed, secret, rows, read
            )
            if read < 0:
                return after, entries, _NOT_FULL, entries, -1 - read
            is_plain[after] = 1
            for row in range(first, read):
                if flags[row] != HAS_KEY or offsets[row] != base_offsets[after] + (row - first):
                    is_plain[after] = 0
            after += 1
        if growing and entries + read > limit:
            return batch, entries, _NOT_FULL, entries + read, -1
        for row in range(read):
            prefetch_slot(slots, capacity, lows, row + PREFETCH_ROWS, read)
            offset = offsets[row]
            if flags[row] & HAS_KEY and start_offset <= offset < end_offset:
                at = find_slot(slots, capacity, lows[row], highs[row])
                stored = np.int64(slots[at + np.uint64(2)])
                if stored == 0:
                    if entries >= limit:
                        return batch, entries, offset, entries, -1
                    slots[at] = lows[row]
                    slots[at + np.uint64(1)] = highs[row]
                    entries += 1
                slots[at + np.uint64(2)] = np.uint64(max(stored, offset + 1))
        batch = after
    return batch, entries, _NOT_FULL, entries, -1


@njit
def _count_new(source, slots, capacity):
    """How many keys of another table are not in this table."""
    new = 0
    for word in range(0, len(source), 3):
        if source[word + 2] != 0:
            new += slots[find_slot(slots, capacity, source[word], source[word + 1]) + np.uint64(2)] == 0
    return new


@njit
def _put_slots(source, slots, capacity, entries):
    """Puts the used slots of another table, for which there is room. Returns the entries then."""
    for word in range(0, len(source), 3):
        offset = source[word + 2]
        if offset != 0:
            at = find_slot(slots, capacity, source[word], source[word + 1])
            stored = slots[at + np.uint64(2)]
            if stored == 0:
                slots[at] = source[word]
                slots[at + np.uint64(1)] = source[word + 1]
                entries += 1
            slots[at + np.uint64(2)] = max(stored, offset)
    return entries
