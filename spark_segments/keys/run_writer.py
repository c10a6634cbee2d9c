"""Writing a run: entries in the order of their hashes, slice by slice, so that memory is that of a slice."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.keys.run_layout import (
    FILTER_BITS_A_HASH,
    MOST_ENTRIES,
    MOST_FILTER_BYTES,
    MOST_INLINE,
    MOST_LISTED,
    RunFooter,
    filter_of,
    paged,
    to_columns,
)
from spark_segments.storage import Storage, WriteStream

_COPY_BYTES = 1 << 20
_MOST_FILTERED = MOST_FILTER_BYTES * 8 // FILTER_BITS_A_HASH


@dataclass(frozen=True, slots=True)
class Run:
    """A run as a list names it. `version`: of the topic, of which it has all records in [base_offset, end_offset)."""

    path: str
    partition: int
    base_offset: int
    end_offset: int
    version: int
    records: int
    entries: int
    size_bytes: int
    footer_bytes: int

    def overlaps(self, partition: int, base_offset: int, end_offset: int) -> bool:
        """Whether it has any of these offsets."""
        return self.partition == partition and self.base_offset < end_offset and base_offset < self.end_offset

    @staticmethod
    def new_path(directory: str, partition: int, base_offset: int, end_offset: int) -> str:
        """A path that no other run ever has, in the directory of an index."""
        return f"{directory}/runs/{partition}-{base_offset:020d}-{end_offset:020d}.{uuid.uuid4().hex}.run"


@dataclass(frozen=True, slots=True)
class HashedRecords:
    """HashedRecords of a range by the hashes of their keys: all records that the range has of any of these hashes.

    `hashes`: uint64[n], sorted. `offsets`: int64[n], less the base offset of the range, which rise within a hash.
    `scattered`: (uint64[m], int64[m]), sorted: further hashes, or further records of these, that can be anywhere, and
    how many they are.
    """

    hashes: np.ndarray
    offsets: np.ndarray
    scattered: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.uint64), np.zeros(0, np.int64))

    @classmethod
    def sorted(cls, hashes: np.ndarray, offsets: np.ndarray) -> HashedRecords:
        """The records in the order of their hashes, which come in the order of their offsets."""
        order = _stable_order(hashes)
        return cls(hashes[order], offsets[order])

    @property
    def count(self) -> int:
        """How many records they are."""
        return len(self.hashes) + int(self.scattered[1].sum())


def _stable_order(hashes: np.ndarray) -> np.ndarray:
    """int64[n]: the order of hashes, by 16 bits after another from the lowest: numpy sorts these alone by radix, which
    takes half of the time of its stable sort of 64 bits.
    """
    order = np.argsort((hashes & np.uint64(0xFFFF)).astype(np.uint16), kind="stable")
    for shift in range(16, int(hashes.max(initial=0)).bit_length(), 16):
        digits = ((hashes[order] >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


class RunWriter:
    """Writes a run. As a context manager it deletes the file where an error comes before `close` has returned.

    `footer`: the shape of the run and what it is of; its counts, table and filter are those of what is added.
    """

    def __init__(self, storage: Storage, directory: str, footer: RunFooter) -> None:
        self._storage = storage
        self._footer = footer
        self.path = Run.new_path(directory, footer.partition, footer.base_offset, footer.end_offset)
        shape = footer.shape
        self._stream = storage.stream(self.path, unique=True)
        self._scratch = tempfile.TemporaryFile()  # noqa: SIM115  # __exit__ closes it
        self._entries = _Pages(self._stream, shape.entries_a_page)
        self._items = _Pages(self._scratch, shape.items_a_page)
        self._buckets = np.zeros(1 << shape.fan_bits, np.int64)
        self._filtered: list[np.ndarray] | None = []
        self._different = 0
        self._records = 0

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._scratch.close()
        self._stream.__exit__(kind, error, trace)
        if kind is not None:
            with contextlib.suppress(SegmentsError, OSError):  # the first error is the one to show
                self._storage.delete(self.path)

    def add(self, records: HashedRecords) -> None:
        """Adds records whose hashes are all above those that were added before."""
        groups = _Groups.of(records)
        shape = self._footer.shape
        hashes, places, items = groups.entries(self._items.count, np.uint64(shape.list_flag))
        self._items.add(to_columns(items, shape.place_bytes))
        self._buckets += np.bincount(shape.buckets(hashes), minlength=len(self._buckets))
        columns = (to_columns(shape.rests(hashes), shape.hash_bytes), to_columns(places, shape.place_bytes))
        self._entries.add(np.concatenate(columns, axis=1))
        self._records += records.count
        self._filter(groups.hashes)

    def _filter(self, hashes: np.ndarray) -> None:
        """Keeps hashes for the filter, as long as there will be one."""
        self._different += len(hashes)
        if self._different > _MOST_FILTERED:
            self._filtered = None
        if self._filtered is not None:
            self._filtered.append(hashes)

    def close(self) -> Run:
        """Ends the file, and returns the run. Its records are all that were added."""
        footer = self._footer
        if self._entries.count > MOST_ENTRIES:
            raise LogDirError(
                "An index has too many entries in a run", expected=MOST_ENTRIES, found=self._entries.count
            )
        self._entries.end()
        self._items.end()
        self._scratch.seek(0)
        while part := self._scratch.read(_COPY_BYTES):
            self._stream.write(part)
        bits = np.concatenate(self._filtered) if self._filtered else np.zeros(0, np.uint64)
        last = replace(
            footer,
            records=self._records,
            entries=self._entries.count,
            items=self._items.count,
            table=np.concatenate([[0], np.cumsum(self._buckets)]),
            filter=filter_of(bits),
        ).to_bytes()
        self._stream.write(last)
        size_bytes = self._stream.bytes_written
        self._stream.close()
        return Run(
            self.path,
            footer.partition,
            footer.base_offset,
            footer.end_offset,
            footer.version,
            self._records,
            self._entries.count,
            size_bytes,
            len(last),
        )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Records by hash. `firsts`, `counts`: of each of `hashes`, its first record and how many there are; `scattered`:
    how many further ones can be anywhere.
    """

    records: HashedRecords
    hashes: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    scattered: np.ndarray

    @classmethod
    def of(cls, records: HashedRecords) -> _Groups:
        further, numbers = records.scattered
        is_first = np.ones(len(records.hashes), np.bool_)
        is_first[1:] = records.hashes[1:] != records.hashes[:-1]
        firsts = np.flatnonzero(is_first)
        hashes = records.hashes[firsts]
        counts = np.diff(firsts, append=len(records.hashes))
        if not len(further):
            return cls(records, hashes, firsts, counts, np.zeros(len(hashes), np.int64))
        hashes = np.union1d(hashes, further)
        firsts = np.searchsorted(records.hashes, hashes, side="left")
        counts = np.searchsorted(records.hashes, hashes, side="right") - firsts
        scattered = np.zeros(len(hashes), np.int64)
        np.add.at(scattered, np.searchsorted(hashes, further), numbers)
        return cls(records, hashes, firsts, counts, scattered)

    def entries(self, first_item: int, flag: np.uint64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(hashes uint64[n], places uint64[n] of the entries; items uint64[m] of the lists, from `first_item` on)"""
        totals = self.counts + self.scattered
        if not len(totals) or (int(totals.max()) <= MOST_INLINE and not self.scattered.any()):
            return self.records.hashes, self.records.offsets.astype(np.uint64), np.zeros(0, np.uint64)
        is_scattered = (self.scattered > 0) | (totals > MOST_LISTED)
        is_listed = is_scattered | (totals > MOST_INLINE)
        of_record = np.repeat(np.arange(len(self.hashes)), self.counts)
        is_inline = ~is_listed[of_record]

        lengths = np.where(is_scattered, 2, 1 + self.counts)[is_listed]
        starts = np.zeros(len(self.hashes), np.int64)
        starts[is_listed] = np.cumsum(lengths) - lengths
        items = np.zeros(int(lengths.sum()), np.uint64)
        items[starts[is_listed]] = np.where(is_scattered, 0, self.counts)[is_listed].astype(np.uint64)
        items[starts[is_scattered] + 1] = totals[is_scattered].astype(np.uint64)
        listed = np.flatnonzero((is_listed & ~is_scattered)[of_record])
        group = of_record[listed]
        items[starts[group] + 1 + listed - self.firsts[group]] = self.records.offsets[listed].astype(np.uint64)

        hashes = np.concatenate([self.records.hashes[is_inline], self.hashes[is_listed]])
        offsets = self.records.offsets[is_inline].astype(np.uint64)
        places = np.concatenate([offsets, flag | (starts[is_listed] + first_item).astype(np.uint64)])
        order = np.argsort(hashes, kind="stable")
        return hashes[order], places[order], items


class _Pages:
    """Items on their way into pages of a file."""

    def __init__(self, file: WriteStream | IO[bytes], items_a_page: int) -> None:
        self._file = file
        self._items_a_page = items_a_page
        self._rest: np.ndarray | None = None
        self.count = 0

    def add(self, items: np.ndarray) -> None:
        """Adds items (uint8[n, item_bytes]); writes the pages that are full."""
        self.count += len(items)
        waiting = items if self._rest is None else np.concatenate([self._rest, items])
        full = len(waiting) - len(waiting) % self._items_a_page
        if full:
            self._file.write(paged(waiting[:full], self._items_a_page))
        self._rest = waiting[full:]

    def end(self) -> None:
        """Writes the last page, which may not be full."""
        if self._rest is not None and len(self._rest):
            self._file.write(paged(self._rest, self._items_a_page))
        self._rest = None
