"""The tasks that build and merge the runs of an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_segments.keys.hashes import hashed_entries
from spark_segments.keys.index_plan import RangeToIndex
from spark_segments.keys.key_field import KEY_FIELD
from spark_segments.keys.merge import merge
from spark_segments.keys.run import HashedRecords, Run
from spark_segments.keys.run_file import RunFile
from spark_segments.keys.run_layout import DamagedRunError, Shape
from spark_segments.keys.run_writer import empty_footer, write_run
from spark_segments.log import RecordField, Scan
from spark_segments.storage import Storage


@dataclass(frozen=True, slots=True)
class BuildRun:
    """Task function: the run of a range of offsets."""

    storage: Storage
    directory: str
    topic_id: str
    version: int
    seed: int
    hash_bits: int
    field: RecordField = KEY_FIELD

    def __call__(self, task: RangeToIndex) -> Run:
        hashes, offsets, undecodable = self._scanned(task)
        range_of_run = task.partition, task.base_offset, task.end_offset, self.version
        shape = Shape.of(len(hashes), task.end_offset - task.base_offset, self.hash_bits)
        footer = empty_footer(shape, self.topic_id, self.seed, range_of_run)
        run = write_run(self.storage, self.directory, footer, iter([HashedRecords.sorted(hashes, offsets)]))
        return replace(run, undecodable=undecodable)

    def _scanned(self, task: RangeToIndex) -> tuple[np.ndarray, np.ndarray, int]:
        """(hashes, offsets less the base offset, how many records cannot be decoded) of the entries."""
        all_hashes, all_offsets, undecodable = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
        for batch in Scan.read(self.storage, task.parts):
            hashes, rows, refused = hashed_entries(self.field, batch, self.seed, self.hash_bits)
            all_hashes.append(hashes)
            all_offsets.append(batch.column("offset").to_numpy()[rows] - task.base_offset)
            undecodable += refused
        return np.concatenate(all_hashes), np.concatenate(all_offsets), undecodable


@dataclass(frozen=True, slots=True)
class Damaged:
    """The runs that cannot be read, of those that were to be merged. They leave the index, and are built again."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class MergeRuns:
    """Task function: one run in place of several. `log_starts`: by partition."""

    storage: Storage
    directory: str
    topic_id: str
    log_starts: dict[int, int]

    def __call__(self, runs: Sequence[Run]) -> Run | Damaged:
        log_start = self.log_starts.get(runs[0].partition, 0)
        try:
            return merge(self.storage, self.directory, runs, self.topic_id, log_start=log_start)
        except (DamagedRunError, FileNotFoundError):
            damaged = tuple(run for run in runs if not is_readable(self.storage, run, self.topic_id))
            if not damaged:
                raise
            return Damaged(damaged)


def is_readable(storage: Storage, run: Run, topic_id: str) -> bool:
    """Whether each byte of a run is what a run has. It reads all of it."""
    try:
        file = RunFile(storage, run, topic_id)
        return sum(records.count for records in file.all_records()) == run.records
    except (DamagedRunError, FileNotFoundError):
        return False
