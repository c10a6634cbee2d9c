"""Reading a run: a look-up of hashes by a few ranges of bytes, and its records slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.keys.read_ahead import AHEAD_BYTES, entry_pages, expected_entries
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_layout import (
    MOST_LISTED,
    DamagedRunError,
    RunFooter,
    may_have,
    page_range,
    to_numbers,
    unpaged,
)
from spark_segments.storage import Storage

WINDOW_ENTRIES = 1024
"""How far to each side of the place where a hash is expected its entries are read. Hashes are uniform, and none has
more than 64 entries, so that few look-ups need a second read."""

SLICE_ENTRIES = 1 << 19
"""About how many entries are in memory at a time where all of a run is read."""

LIST_ITEMS = 8192
"""How many items of a list are read at first."""

NO_OFFSETS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """Where the records of some hashes can be in a run: at `offsets` (int64[n], sorted), or anywhere. `read_bytes`: of
    the run.
    """

    offsets: np.ndarray = field(default_factory=lambda: NO_OFFSETS)
    is_anywhere: bool = False
    read_bytes: int = 0

    @property
    def has_records(self) -> bool:
        """Whether the run has a record of any of the hashes."""
        return self.is_anywhere or len(self.offsets) > 0


class RunFile:
    """A run on its storage. The footer is read when the object is made, of a small run all of it. `hashes`, of
    `hash_bits`: the pages that have them, as far as the list tells, are read together with the footer.

    Raises DamagedRunError for bytes that are not those of the run, FileNotFoundError and StorageError.
    """

    def __init__(
        self, storage: Storage, run: Run, topic_id: str, hashes: np.ndarray | None = None, hash_bits: int = 0
    ) -> None:
        self._storage = storage
        self._run = run
        self._ahead: list[tuple[int, memoryview]] = []
        self.read_bytes = 0
        begin = run.size_bytes - run.footer_bytes
        if begin < 0 or run.footer_bytes <= 0:
            raise DamagedRunError("a size that no run has")
        expected = [] if hashes is None else expected_entries(run, hashes, hash_bits)
        self._read_ahead(expected)
        self.footer = RunFooter.of_bytes(self._read(begin, run.footer_bytes))
        footer = self.footer
        own = (footer.topic_id, footer.partition, footer.base_offset, footer.end_offset, footer.version)
        if own != (topic_id, run.partition, run.base_offset, run.end_offset, run.version):
            raise DamagedRunError("another run than the list says")
        if (footer.records, footer.entries) != (run.records, run.entries):
            raise DamagedRunError("other counts than the list says")
        if footer.entry_bytes + footer.item_bytes != begin:
            raise DamagedRunError("pages of another size than the footer says")
        self._expected = expected if footer.shape.entry_bytes == run.entry_bytes else []

    def _read_ahead(self, expected: Sequence[tuple[int, int]]) -> None:
        """Reads the footer, and the pages of some entries, by requests at once."""
        run = self._run
        if run.size_bytes <= AHEAD_BYTES:
            ranges = [(0, run.size_bytes)]
        else:
            ranges = [(run.size_bytes - run.footer_bytes, run.size_bytes)]
            ranges += [entry_pages(run, first, last) for first, last in expected]
        parts = self._storage.at_once(lambda bounds: self._read_now(bounds[0], bounds[1] - bounds[0]), ranges)
        self._ahead = [(begin, data) for (begin, _), data in zip(ranges, parts, strict=True)]
        self.read_bytes += sum(map(len, parts))

    def _read(self, begin: int, size: int) -> memoryview:
        for start, data in self._ahead:
            if start <= begin and begin + size <= start + len(data):
                return data[begin - start : begin - start + size]
        data = self._read_now(begin, size)
        self.read_bytes += len(data)
        return data

    def _read_now(self, begin: int, size: int) -> memoryview:
        data = memoryview(self._storage.read(self._run.path, begin, size))
        if len(data) != size:
            raise DamagedRunError("it ends too early")
        return data

    # A look-up

    def find(self, hashes: np.ndarray) -> RunAnswer:
        """Where the records of hashes (uint64[n], sorted, all different) can be."""
        footer, shape = self.footer, self.footer.shape
        hashes = hashes[may_have(footer.filter, hashes)]
        buckets = shape.buckets(hashes)
        lows, highs = footer.table[buckets], footer.table[buckets + 1]
        hashes, lows, highs = (column[highs > lows] for column in (hashes, lows, highs))
        if not len(hashes):
            return RunAnswer(read_bytes=self.read_bytes)
        # Where in its bucket a hash is expected: hashes are uniform.
        rest_bits = shape.hash_bits - shape.fan_bits
        share = shape.rests(hashes).astype(np.float64) / float(1 << rest_bits)
        expected = lows + ((highs - lows) * share).astype(np.int64)
        firsts = np.maximum(lows, expected - WINDOW_ENTRIES)
        lasts = np.minimum(highs, expected + WINDOW_ENTRIES)
        for begin, end in self._expected:  # what was read is enough, mostly: further pages are a further request
            is_read = (begin <= expected) & (expected < end)
            firsts = np.where(is_read, np.maximum(firsts, begin), firsts)
            lasts = np.where(is_read, np.minimum(lasts, end), lasts)
        places = []
        for first, last in _joined(firsts, lasts):
            own = (firsts >= first) & (lasts <= last)
            places.append(self._places(hashes[own], first, last, lows[own], highs[own]))
        return self._answer(np.concatenate(places))

    def _places(self, hashes: np.ndarray, first: int, last: int, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        """The places of the entries of `hashes`, which are looked for in the entries [first, last). `lows`, `highs`:
        the entries of the bucket of each.
        """
        found_hashes, places = self._entries(first, last)
        left = np.searchsorted(found_hashes, hashes, side="left")
        right = np.searchsorted(found_hashes, hashes, side="right")
        # At an end of what was read that is no end of the hash's bucket, further entries of the hash may lie behind.
        is_cut = ((left == 0) & (first > lows)) | ((right == len(found_hashes)) & (last < highs))
        if is_cut.any():
            # What was read stays in: another hash of the same window, in another bucket, would be lost without it.
            first, last = min(first, int(lows[is_cut].min())), max(last, int(highs[is_cut].max()))
            found_hashes, places = self._entries(first, last)
            left = np.searchsorted(found_hashes, hashes, side="left")
            right = np.searchsorted(found_hashes, hashes, side="right")
        chosen: np.ndarray = places[_ranges(left, right)]
        return chosen

    def _answer(self, places: np.ndarray) -> RunAnswer:
        """The answer of entries with these places."""
        footer = self.footer
        flag = np.uint64(footer.shape.list_flag)
        is_list = (places & flag) != 0
        offsets = [places[~is_list].astype(np.int64)]
        is_anywhere = False
        for item in np.unique(places[is_list] & ~flag).tolist():
            listed = self._list(int(item))
            is_anywhere |= listed is None
            offsets.append(NO_OFFSETS if listed is None else listed)
        found = np.unique(np.concatenate(offsets)) + footer.base_offset
        if len(found) and not footer.base_offset <= found[0] <= found[-1] < footer.end_offset:
            raise DamagedRunError("an offset outside of its range")
        return RunAnswer(found, is_anywhere, self.read_bytes)

    def _list(self, item: int) -> np.ndarray | None:
        """The offsets of a list, less the base offset; None where they can be anywhere."""
        items = self._items(item, min(item + LIST_ITEMS, self.footer.items))
        count = int(items[0]) if len(items) else -1
        if not 0 <= count <= min(MOST_LISTED, self.footer.items - item - 1):
            raise DamagedRunError("a list of another length")
        if count == 0:
            return None
        if count >= len(items):
            items = np.concatenate([items, self._items(item + len(items), item + 1 + count)])
        return items[1 : 1 + count].astype(np.int64)

    def _items(self, first: int, last: int) -> np.ndarray:
        """uint64[n]: the items [first, last) of the lists."""
        footer, shape = self.footer, self.footer.shape
        if not 0 <= first <= last <= footer.items:
            raise DamagedRunError("a list outside of the run")
        if first == last:
            return np.zeros(0, np.uint64)
        begin, end, number = page_range(first, last, footer.items, shape.place_bytes, shape.items_a_page)
        data = self._read(footer.entry_bytes + begin, end - begin)
        items = unpaged(data, shape.place_bytes, shape.items_a_page)
        return to_numbers(items[first - number : last - number])

    def _entries(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """(hashes, places) uint64[n] of the entries [first, last)."""
        footer, shape = self.footer, self.footer.shape
        if first >= last:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        begin, end, number = page_range(first, last, footer.entries, shape.entry_bytes, shape.entries_a_page)
        columns = unpaged(self._read(begin, end - begin), shape.entry_bytes, shape.entries_a_page)
        columns = columns[first - number : last - number]
        rests = to_numbers(columns[:, : shape.hash_bytes])
        buckets = np.searchsorted(footer.table, np.arange(first, last), side="right") - 1
        rest_bits = shape.hash_bits - shape.fan_bits
        high = np.zeros(len(rests), np.uint64) if rest_bits == 64 else buckets.astype(np.uint64) << np.uint64(rest_bits)
        hashes = high | rests
        if (hashes[1:] < hashes[:-1]).any():
            raise DamagedRunError("entries that are not sorted")
        return hashes, to_numbers(columns[:, shape.hash_bytes :])

    # Its records

    def all_records(self) -> Iterator[HashedRecords]:
        """All records, by slices of the hash."""
        end = 1 << self.footer.shape.hash_bits
        count = min(-(-self.footer.entries // SLICE_ENTRIES) or 1, end)
        for number in range(count):
            yield self.records(*self.entries_between(end * number // count, end * (number + 1) // count))

    def entries_between(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """(hashes, places) uint64[n] of the entries with hashes in [low, high)."""
        shape, table = self.footer.shape, self.footer.table
        rest_bits = shape.hash_bits - shape.fan_bits
        if low >= high:
            return self._entries(0, 0)
        first, last = int(table[low >> rest_bits]), int(table[((high - 1) >> rest_bits) + 1])
        hashes, places = self._entries(first, last)
        left = np.searchsorted(hashes, np.uint64(low), side="left")
        right = np.searchsorted(hashes, np.uint64(high - 1), side="right")
        return hashes[left:right], places[left:right]

    def weight(self, places: np.ndarray) -> int:
        """About how many records the entries with these places stand for."""
        starts = self._list_starts(places)
        listed = int(starts[-1] - starts[0]) if len(starts) else 0
        return len(places) + listed

    def records(self, hashes: np.ndarray, places: np.ndarray) -> HashedRecords:
        """The records of neighbouring entries, all entries of each hash. Offsets are less the run's base offset."""
        starts = self._list_starts(places)
        if not len(starts):
            return HashedRecords(hashes, places.astype(np.int64))
        of_list = hashes[self._is_list(places)]
        items, first = self._lists(starts), int(starts[0])
        counts = items[starts - first].astype(np.int64)
        ends = np.append(starts[1:], first + len(items))
        is_scattered = counts == 0
        if ((np.where(is_scattered, 2, counts + 1)) != ends - starts).any():
            raise DamagedRunError("lists that do not follow one another")
        scattered = items[starts[is_scattered] - first + 1].astype(np.int64)
        is_offset = np.ones(len(items), np.bool_)
        is_offset[starts - first] = False
        is_offset[starts[is_scattered] - first + 1] = False
        inline = ~self._is_list(places)
        listed = HashedRecords.sorted(
            np.concatenate([hashes[inline], np.repeat(of_list, counts)]),
            np.concatenate([places[inline].astype(np.int64), items[is_offset].astype(np.int64)]),
        )
        return HashedRecords(listed.hashes, listed.offsets, (of_list[is_scattered], scattered))

    def _is_list(self, places: np.ndarray) -> np.ndarray:
        flags: np.ndarray = (places & np.uint64(self.footer.shape.list_flag)) != 0
        return flags

    def _list_starts(self, places: np.ndarray) -> np.ndarray:
        """int64[n], rising: the first items of the lists that entries name."""
        named = places[self._is_list(places)] & ~np.uint64(self.footer.shape.list_flag)
        starts: np.ndarray = named.astype(np.int64)
        if (np.diff(starts) <= 0).any():
            raise DamagedRunError("lists that are not in the order of their entries")
        return starts

    def _lists(self, starts: np.ndarray) -> np.ndarray:
        """uint64[n]: the items from the first of these lists to the end of the last."""
        first, last = int(starts[0]), int(starts[-1])
        items = self._items(first, last + 1)
        further = max(int(items[-1]), 1)
        if further > self.footer.items:
            raise DamagedRunError("a list outside of the run")
        return np.concatenate([items, self._items(last + 1, last + 1 + further)])


def find_in_run(storage: Storage, topic_id: str, hashes: np.ndarray, hash_bits: int, run: Run) -> RunAnswer | None:
    """Where records of some hashes are in a run; None where it cannot be read."""
    try:
        return RunFile(storage, run, topic_id, hashes, hash_bits).find(hashes)
    except (DamagedRunError, FileNotFoundError, SegmentsError):
        return None


def _joined(firsts: np.ndarray, lasts: np.ndarray) -> list[tuple[int, int]]:
    """Ranges in their order, with those that overlap or meet as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _ranges(lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
    """int64[n]: the numbers of all ranges [left, right)."""
    counts = rights - lefts
    begins = np.cumsum(counts) - counts
    return np.repeat(lefts - begins, counts) + np.arange(int(counts.sum()))
