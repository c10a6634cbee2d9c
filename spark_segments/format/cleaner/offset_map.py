"""The cleaner's map: the latest offset of every key in the dirty part of a log.

A key is represented by its 128-bit hash alone. The table has open addressing with linear probing and 24 bytes a slot:
the two halves of the hash and the offset. A slot's home is the hash's share of the table's length, so the table may
have any length, a bound on memory is used in full, and a table grows in its place: keys keep their order.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from spark_segments.errors import InvalidOptionError
from spark_segments.format.cleaner import map_kernels
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT, key_rows
from spark_segments.format.decoding.record_sections import RecordSections, damaged_record, record_sections
from spark_segments.format.kernels.key_hash import seeded_secret
from spark_segments.format.window import Window

_FIRST_SLOTS = 4096
_GROWTH = 2  # times: few slots are touched that are not needed, since new memory can cost more than moving keys
_ASIDE_SLOTS = 1024
_HUGE_PAGE_BYTES = 2 << 20
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE: the bound may be above the machine's memory
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_GROWING_LOAD = 0.6  # while there is room to grow, probes are kept short
_NOT_FULL = -1
_LARGEST_INT64 = 2**63 - 1


class SectionsToPut(NamedTuple):
    """The records of a window's batches, for the kernel: places of those that are put next. `rows` of `key_rows`.
    `is_plain` becomes 1 for each batch read whose records all have a key and a value and the next offset, else 0.
    """

    starts: np.ndarray  # int64[n]: addresses
    ends: np.ndarray  # int64[n]
    base_offsets: np.ndarray  # int64[n], of the log
    counts: np.ndarray  # int64[n]
    rows: np.ndarray
    is_plain: np.ndarray  # uint8[n]


class OffsetMap:
    """The latest offset of each key among the records put, in at most `memory_bytes`.

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
        self.secret = seeded_secret(self.seed)
        self._max_slots = slots
        # Room for all slots: the system gives memory to the pages that are used.
        self._room = mmap.mmap(-1, slots * BYTES_PER_SLOT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._take(min(slots, _FIRST_SLOTS))

    def _take(self, slots: int) -> None:
        size = slots * BYTES_PER_SLOT
        with contextlib.suppress(OSError):  # a kernel that has no such advice
            if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                self._room.madvise(mmap.MADV_HUGEPAGE)  # look-ups are faster
            elif sys.platform == "linux":
                # A page that is read before it is written is made twice, which interrupts the other threads.
                self._room.madvise(_POPULATE_WRITE, 0, size)
        self.slots = np.frombuffer(self._room, np.uint64, size // 8)

    @property
    def capacity(self) -> int:
        """How many slots the table has now."""
        return len(self.slots) * 8 // BYTES_PER_SLOT

    def __len__(self) -> int:
        return self.entries

    def get(self, key: Any) -> int:
        """The latest offset of a key, or -1."""
        return int(map_kernels.latest(key, self.seed, self.secret, self.slots))

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

        `plain` (bool[n], all False) is set for the batches whose records were all put and are no tombstones.
        """
        if self.full:
            return False
        rows = np.arange(len(window.batches))
        bound = _LARGEST_INT64 if end_offset is None else end_offset
        batches = window.batches
        offset_shift = window.offset_shift
        past_last = int(batches.last_offset[-1]) + offset_shift + 1 if len(batches) else self.end_offset
        if exclude is not None:
            window = window.take(~exclude)
            rows = rows[~exclude]
        batches = window.batches
        has_records = ~batches.is_control & (batches.count > 0) & window.overlaps(self.start_offset, bound)
        window = window.take(has_records)
        batches = window.batches
        sections = SectionsToPut(
            np.empty(len(batches), np.int64),
            np.empty(len(batches), np.int64),
            batches.base_offset + offset_shift,
            batches.count.astype(np.int64),
            key_rows(0),
            np.zeros(len(batches), np.uint8),
        )
        for part in record_sections(window):
            # Only now it is sure that the bytes of each batch can hold so many records.
            most_records = int(batches.count[part.first : part.last].max())
            sections = sections._replace(rows=key_rows(most_records, sections.rows))
            self._put(part, sections, bound, window)
            if self.full:
                return False
        if plain is not None:
            first, last = batches.base_offset + offset_shift, batches.last_offset + offset_shift
            plain[rows[has_records]] = (sections.is_plain != 0) & (first >= self.start_offset) & (last < bound)
        self.advance(min(bound, past_last))
        return True

    def _put(self, part: RecordSections, sections: SectionsToPut, bound: int, window: Window) -> None:
        """Puts the records of a part, up to the first that has no room."""
        row, last = part.first, part.last
        sections.starts[row:last] = part.start
        sections.ends[row:last] = part.end
        while row < last:
            growing = self.capacity < self._max_slots
            limit = int(self.capacity * _GROWING_LOAD) if growing else self.max_entries
            row, self.entries, offset, needed, bad_at = map_kernels.put_sections(
                self, sections, row, last, bound, limit, growing
            )
            if bad_at >= 0:
                raise damaged_record(window.batches, row, bad_at - int(sections.starts[row]), window.path)
            if offset != _NOT_FULL:
                self.full = True
                self.advance(offset)
                return
            if row < last:
                self._grow(needed)

    def _grow(self, entries: int) -> None:
        at = self.capacity
        slots = max(_GROWTH * at, int(entries / _GROWING_LOAD) + 1)
        # A last step that would gain little is taken at once.
        self._take(self._max_slots if slots * _GROWTH > self._max_slots else slots)
        aside: list[np.ndarray] = []
        while at:
            aside.append(np.empty(_ASIDE_SLOTS * BYTES_PER_SLOT // 8, np.uint64))
            at, used = map_kernels.spread(self.slots, at, self.capacity, aside[-1])
            aside[-1] = aside[-1][: used * BYTES_PER_SLOT // 8]
        for keys in aside:
            map_kernels.put_slots(keys, self.slots, 0)

    def advance(self, end_offset: int) -> None:
        """Says that the map goes up to `end_offset`: no record lies in between."""
        self.end_offset = max(self.end_offset, end_offset)

    def merge(self, other: OffsetMap) -> bool:
        """Puts the entries of `other`, a map of offsets that follow or overlap, which is of no use afterwards. False if
        they do not fit: see `merge_slots`.
        """
        if other.seed != self.seed or other.start_offset > self.end_offset:
            raise ValueError("maps can be merged if they have the same seed and no offsets between them")
        entries = other.entries
        if not self.full and self.entries + entries <= self.max_entries:
            entries = map_kernels.put_known(other.slots, self.slots)  # the table grows for what is left alone
        return self.merge_slots(lambda: [other.slots], entries, other.end_offset)

    def merge_slots(self, pieces: Callable[[], Iterable[np.ndarray]], entries: int, end_offset: int) -> bool:
        """Puts the slots of another map with the same seed, which goes up to `end_offset` without a gap: at most
        `entries` of its keys are new. `pieces` gives the arrays of its `used_slots`. False, with nothing put, if they
        do not fit.

        The slots come in the order of the table. If they were put until this table is full, they would crowd its
        beginning, where each search would have to pass all of them.
        """
        if self.full:
            return False
        while self.capacity < self._max_slots and self.entries + entries > self.capacity * _GROWING_LOAD:
            self._grow(self.entries + entries)
        if self.entries + entries > self.max_entries:
            new = sum(map_kernels.count_new(used, self.slots) for used in pieces())
            if self.entries + new > self.max_entries:
                return False
        for used in pieces():
            self.entries = map_kernels.put_slots(used, self.slots, self.entries)
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
