"""Runs that lie side by side, made one, without reading the log: slice by slice of the hash, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from spark_segments.errors import LogDirError
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_file import RunFile
from spark_segments.keys.run_layout import Shape
from spark_segments.keys.run_writer import empty_footer, write_run
from spark_segments.storage import Storage

SLICE_RECORDS = 1 << 20
"""About how many records are in memory at a time, all runs together."""


def merge(storage: Storage, directory: str, runs: Sequence[Run], topic_id: str, *, log_start: int = 0) -> Run:
    """One run in place of runs of a partition that follow one another: their records from `log_start` on.

    Its version is the highest of theirs. Raises DamagedRunError and FileNotFoundError for a run that cannot be read,
    and LogDirError where the merge would lose an entry.
    """
    assert all(run.end_offset == after.base_offset for run, after in pairwise(runs))
    files = [RunFile(storage, run, topic_id) for run in runs]
    shapes = [file.footer.shape for file in files]
    base_offset, end_offset = max(log_start, runs[0].base_offset), runs[-1].end_offset
    records = sum(run.records for run in runs)
    shape = Shape.of(records, end_offset - base_offset, shapes[0].hash_bits)
    version = max(run.version for run in runs)
    footer = empty_footer(shape, topic_id, files[0].footer.seed, (runs[0].partition, base_offset, end_offset, version))
    taken = _Slices(files, base_offset)
    run = write_run(storage, directory, footer, taken.all(1 << shape.hash_bits, records))
    if run.records + taken.below_start != records:
        storage.delete(run.path)
        raise LogDirError(
            "A merge of an index would lose entries, and is not committed",
            path=storage.location(directory),
            expected=f"{records} records in {len(runs)} runs",
            found=f"{run.records}, and {taken.below_start} below the log start",
            hint="Build the index again: segments index --drop, then segments index",
        )
    return replace(run, undecodable=sum(part.undecodable for part in runs))


class _Slices:
    """The records of runs, by slices of the hash. `below_start`: how many were left out, below `base_offset`."""

    def __init__(self, files: Sequence[RunFile], base_offset: int) -> None:
        self._files = files
        self._base_offset = base_offset
        self.below_start = 0

    def all(self, end: int, records: int) -> Iterator[HashedRecords]:
        """All records, with hashes in [0, end)."""
        count = min(-(-records // SLICE_RECORDS) or 1, end)
        for number in range(count):
            yield from self._between(end * number // count, end * (number + 1) // count)

    def _between(self, low: int, high: int) -> Iterator[HashedRecords]:
        entries = [file.entries_between(low, high) for file in self._files]
        weight = sum(file.weight(places) for file, (_, places) in zip(self._files, entries, strict=True))
        if weight > 2 * SLICE_RECORDS and high - low > 1:
            middle = (low + high) // 2
            yield from self._between(low, middle)
            yield from self._between(middle, high)
            return
        yield self._merged([file.records(*columns) for file, columns in zip(self._files, entries, strict=True)])

    def _merged(self, parts: Sequence[HashedRecords]) -> HashedRecords:
        """The records of all runs by their hashes, with offsets less the new base offset."""
        shifted = []
        for file, part in zip(self._files, parts, strict=True):
            offsets = part.offsets + (file.footer.base_offset - self._base_offset)
            stays = offsets >= 0
            self.below_start += len(offsets) - int(stays.sum())
            shifted.append((part.hashes[stays], offsets[stays]))
        hashes, offsets = (np.concatenate([columns[at] for columns in shifted]) for at in (0, 1))
        merged = HashedRecords.sorted(hashes, offsets)
        scattered, numbers = (np.concatenate([part.scattered[at] for part in parts]) for at in (0, 1))
        different, places = np.unique(scattered, return_inverse=True)
        sums = np.zeros(len(different), np.int64)
        np.add.at(sums, places, numbers)
        return HashedRecords(merged.hashes, merged.offsets, (different, sums))
