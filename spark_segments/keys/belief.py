"""Which runs of an index hold for a version of a topic: those behind which no commit can have put records back.

A run has all records that its version had in its offsets. Versions after it have fewer of them, as long as each commit
since leaves offsets as they are (`Operation.LEAVING_OFFSETS`). The list of the index says up to which version that was
looked at; here the commits after it are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.keys.index_list import CheckedVersion, IndexList
from spark_segments.keys.run import Run
from spark_segments.log import Erasure, Manifest, Operation, Snapshot

_OF_CHANGE = ("path", "partition", "base_offset", "next_offset", "position", "state")


@dataclass(frozen=True, slots=True)
class ChangedOffsets:
    """The offsets of which the commit of a version says something that ends the belief in runs of earlier versions.
    `rows`: int64[3, n], partition, base offset and next offset of each; None: nobody knows which.
    """

    version: int
    rows: np.ndarray | None

    def has(self, run: Run) -> bool:
        """Whether the run is of an earlier version, and has any of these offsets."""
        if run.version >= self.version:
            return False
        if self.rows is None:
            return True
        partition, base_offset, next_offset = self.rows
        hit = (partition == run.partition) & (base_offset < run.end_offset) & (next_offset > run.base_offset)
        return bool(hit.any())


@dataclass(frozen=True, slots=True)
class CommitsSince:
    """What the commits after a version, up to the version of a snapshot, did to the runs of an index. `returned`: the
    offsets in which they can have put records.

    `is_complete`: all of them could be read, and the version they follow is one of this manifest.
    """

    is_complete: bool
    returned: tuple[ChangedOffsets, ...] = ()

    @classmethod
    def read(cls, manifest: Manifest, since: CheckedVersion, version: int) -> CommitsSince:
        """The commits after a version that was checked, up to a version."""
        numbers = range(since.version, max(version, since.version) + 1)
        facts = dict(zip(numbers, manifest.storage.at_once(manifest.facts, numbers), strict=True))
        checked = facts.pop(since.version)
        if checked is None or not checked.commit_id or checked.commit_id != since.commit_id:
            return cls(False)
        returned: list[ChangedOffsets] = []
        for number, commit in facts.items():
            if commit is None:
                return cls(False)
            if commit.operation not in Operation.LEAVING_OFFSETS:
                returned.append(ChangedOffsets(number, _changed_rows(manifest, number, since.topic_id)))
        return cls(True, tuple(returned))

    def believed(self, runs: Iterable[Run]) -> list[Run]:
        """The runs that hold for the snapshot's version as far as these commits say."""
        if not self.is_complete:
            return []
        return [run for run in runs if not any(change.has(run) for change in self.returned)]


def without_erased(runs: Iterable[Run], snapshot: Snapshot, since: CheckedVersion) -> list[Run]:
    """The runs that have no entry of what was erased after a version, as far as that is known without the keys. Of the
    runs of before the erasure these are the ones whose offsets it did not rewrite, and no record has left: a run may
    name a record that compaction took before.

        |run of [0, 100): key at 5|compaction: only 150 is left|erasure: rewrites the segment of 150|
    """
    version = max((erasure.version for erasure in Erasure.of(snapshot)), default=-1)
    if version <= since.version:
        return [*runs]
    rewritten = Erasure.rewritten(snapshot)

    def is_untouched(run: Run) -> bool:
        ranges = rewritten.get(run.partition, ())
        return not any(run.overlaps(run.partition, *bounds) for bounds in ranges) and not has_lost(run, snapshot)

    return [run for run in runs if run.version >= version or is_untouched(run)]


def has_lost(run: Run, snapshot: Snapshot) -> bool:
    """Whether records may have left the offsets of a run since it was built, but for those that an erasure took."""
    bounds = snapshot.offset_bounds()
    if run.partition not in bounds:
        return True
    log_start, _ = bounds[run.partition]
    # Compaction leaves what is behind the first dirty offset as it was written.
    return run.base_offset < max(log_start, snapshot.partition(run.partition).first_dirty_offset)


def runs_before(index_list: IndexList, snapshot: Snapshot) -> list[Run]:
    """The runs of a list that are of the snapshot's topic, and of its version or an earlier one."""
    if not index_list.exists or index_list.topic_id != snapshot.topic_id:
        return []
    return [run for run in index_list.runs if run.version <= snapshot.version]


def believed_runs(index_list: IndexList, manifest: Manifest, snapshot: Snapshot) -> list[Run]:
    """The runs of a list that hold for a snapshot."""
    runs = runs_before(index_list, snapshot)
    if not runs:
        return []
    return CommitsSince.read(manifest, index_list.checked, snapshot.version).believed(runs)


def is_checked(index_list: IndexList, manifest: Manifest, version: int) -> bool:
    """Whether a list was checked up to a version of this manifest."""
    if index_list.checked_version < version:
        return False
    facts = manifest.facts(index_list.checked_version)
    return facts is not None and facts.commit_id == index_list.checked_commit_id


def uncovered(bounds: tuple[int, int], runs: Sequence[Run]) -> list[tuple[int, int]]:
    """The ranges of [start, end) that none of the runs of a partition has."""
    start, end = bounds
    ranges = []
    for run in sorted(runs, key=lambda run: run.base_offset):
        if run.end_offset <= start:
            continue
        if run.base_offset >= end:
            break
        if start < run.base_offset:
            ranges.append((start, run.base_offset))
        start = run.end_offset
    if start < end:
        ranges.append((start, end))
    return ranges


def index_state(index_list: IndexList, manifest: Manifest, snapshot: Snapshot) -> dict[str, int]:
    """How far an index reaches in a snapshot, and what it takes."""
    runs = believed_runs(index_list, manifest, snapshot)
    bounds = snapshot.offset_bounds()
    missing = 0
    for number, own in bounds.items():
        ranges = uncovered(own, [run for run in runs if run.partition == number])
        missing += sum(end - start for start, end in ranges)
    offsets = sum(end - start for start, end in bounds.values())
    undecodable = {"undecodable": sum(run.undecodable for run in runs)} if index_list.fingerprint else {}
    return {
        "runs": len(runs),
        "entries": sum(run.records for run in runs),
        "index_bytes": sum(run.size_bytes for run in index_list.runs),
        "offsets": offsets,
        "offsets_indexed": offsets - missing,
    } | undecodable


def _changed_rows(manifest: Manifest, version: int, topic_id: str) -> np.ndarray | None:
    """int64[3, n]: partition, base offset and next offset of the rows that a commit changed, took or brought."""
    changed = manifest.changed_rows(version, topic_id)
    if changed is None:
        return None
    before, after = changed
    rows = pa.concat_tables([_others(before, after), _others(after, before)])
    names = ("partition", "base_offset", "next_offset")
    return np.stack([rows.column(name).to_numpy().astype(np.int64) for name in names])


def _others(rows: pa.Table, unchanged: pa.Table) -> pa.Table:
    """The rows that are not among others: files of rows are rewritten with rows that did not change."""
    if not rows.num_rows or not unchanged.num_rows:
        return rows
    return rows.filter(pc.invert(pc.is_in(_marks(rows), _marks(unchanged).combine_chunks())))


def _marks(rows: pa.Table) -> pa.ChunkedArray:
    """A text for each row, the same for rows that are the same."""
    columns = [rows.column(name).cast(pa.string()) for name in _OF_CHANGE if name in rows.schema.names]
    return pc.binary_join_element_wise(*columns, "|")
