"""Writing a run: entries in the order of their hashes, slice by slice, so that memory is that of a slice."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_layout import (
    FILTER_BITS_A_HASH,
    MOST_ENTRIES,
    MOST_FILTER_BYTES,
    MOST_INLINE,
    MOST_LISTED,
    RunFooter,
    Shape,
    filter_of,
    paged,
    to_columns,
)
from spark_segments.storage import Storage, WriteStream

ENTRIES_A_PART, MOST_PART_BITS = 1 << 15, 8
"""A list of runs says of about each so many entries where they begin, and of 256 places of a run at most: 2 KiB."""

_COPY_BYTES = 1 << 20
_MOST_FILTERED = MOST_FILTER_BYTES * 8 // FILTER_BITS_A_HASH


def empty_footer(shape: Shape, topic_id: str, seed: int, run: tuple[int, int, int, int]) -> RunFooter:
    """The footer of a run before it has records. `run`: (partition, base offset, end offset, version)."""
    nothing = np.zeros(0, np.uint8)
    return RunFooter(shape, topic_id, *run, 0, 0, 0, seed, np.zeros(0, np.int64), nothing)


def write_run(storage: Storage, directory: str, footer: RunFooter, slices: Iterator[HashedRecords]) -> Run:
    """Writes a run of records in the order of their hashes."""
    with RunWriter(storage, directory, footer) as writer:
        for records in slices:
            if records.count:
                writer.add(records)
        return writer.close()


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
            footer.shape.entry_bytes,
            self._fan_out(),
        )

    def _fan_out(self) -> tuple[int, ...]:
        """What the list says of the table: see `Run`."""
        parts = self._entries.count // ENTRIES_A_PART
        bits = min(MOST_PART_BITS, self._footer.shape.fan_bits, max(1, parts).bit_length() - 1)
        before = np.cumsum(self._buckets.reshape(1 << bits, -1).sum(axis=1))
        return tuple(before[:-1].tolist())


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
