"""A change of a topic's rows by a single commit, and what no change may do.

A change that would break an invariant of the log is refused before anything is committed. Its files are
change_writer.py's, reading is topic_log.py's; committing and retrying are committing.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, SegmentsError, UnknownTopicError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.kept_offsets import check_kept_offsets
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import (
    SEGMENT_SCHEMA,
    Partition,
    Segment,
    has_own_path,
    path_rule,
)
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.manifest.transaction import Transaction

_TO_OTHER_VERSION = (Operation.MIRROR, Operation.RESTORE)
"""The operations that make the log what another version is: the leader's, or an earlier one. They may lower a log start
offset, to records whose files are still there, and the rows in place of others are that version's.
"""

ORPHAN_AGE_MS = 7 * 24 * 60 * 60 * 1000
"""Age, by the store's clock, at which a file that no version names is deleted. A commit must not take longer."""


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that a plan wants to change, all in the same commit.

    `operation`: the commit's operation in Delta's history. `add`: new segments. `replace`: rows that take the place of
    the rows of the same identity (`Segment.identity`). `drop`: rows whose identities leave the manifest. `partitions`:
    new rows of these partitions; a partition that has no row yet is added. `config`: the settings of the topic from now
    on; None leaves them. `topic`: a whole new topic row, which deletes a topic or makes it again. Where
    the topic is made again, `partitions` holds all of its partitions. `transactions`: the last ones, from now on, of
    their applications. `thinned`: {partition: an offset}; a policy may have taken records below it from the rows in
    place of others. Everywhere else these rows hold what the others held.
    """

    operation: str
    add: Sequence[Segment] | pa.Table = ()
    replace: Sequence[Segment] | pa.Table = ()
    drop: Sequence[Segment] | pa.Table = ()
    partitions: Sequence[Partition] | pa.Table = ()
    config: Mapping[str, str] | None = None
    topic: TopicRow | None = None
    transactions: Sequence[Transaction] = ()
    thinned: Mapping[int, int] = field(default_factory=dict)

    OLDEST_FILE_MS: ClassVar = ORPHAN_AGE_MS // 2
    """A commit refuses to add files older than this: vacuum might take them before the commit names them."""

    @staticmethod
    def check_mirrored(leader: Snapshot, live: pa.Table, after: pa.Table) -> None:
        """Raises SegmentsError where a follower's log `after` a change lacks what `live` rows of the leader hold."""
        starts = {number: start for number, (start, _) in leader.offset_bounds().items()}
        check_kept_offsets(leader.topic, Operation.MIRROR, live, after, starts, {})


def check_change(
    snapshot: Snapshot, change: Change, add: pa.Table, replace: pa.Table, drop: pa.Table, partitions: pa.Table
) -> None:
    """Raises SegmentsError where the change would break an invariant that can be checked without reading more rows."""
    topic_id = change.topic.topic_id if change.topic is not None else snapshot.topic_id
    for rows in (add, row_tables.live(replace), partitions):  # removed rows may be a deleted topic's, for vacuum
        others = rows.column("topic_id").filter(pc.not_equal(rows.column("topic_id"), topic_id))
        if len(others):
            raise CommitConflictError(
                f"Topic {snapshot.topic} is not the one that the rows were made for: it was deleted and made again",
                expected=f"topic id {topic_id}",
                found=others[0].as_py(),
            )
    keys = [chunk for rows in (add, replace, drop) for chunk in row_tables.keys(rows).chunks]
    if pc.count_distinct(pa.chunked_array(keys, pa.string())).as_py() != sum(map(len, keys)):
        raise SegmentsError(f"A change of topic {snapshot.topic} names a row twice")
    strange = add.filter(pc.invert(has_own_path(snapshot.topic, add)))
    if strange.num_rows:  # vacuum would take the file for one that no row names
        raise SegmentsError(
            f"A file to be added to topic {snapshot.topic} does not lie where its name says",
            path=strange.column("path")[0].as_py(),
            expected=path_rule(snapshot.topic),
            found=f"partition {strange.column('partition')[0].as_py()}",
        )
    fresh = is_made_anew(snapshot, change)
    ends = _check_partitions(snapshot, partitions, change.operation, fresh=fresh)
    for rows in (add, replace):
        _check_ranges(snapshot.topic, row_tables.live(rows), ends)


def check_leaving(
    snapshot: Snapshot, change: Change, leaving: pa.Table, arriving: pa.Table, partitions: pa.Table
) -> None:
    """Raises where rows that leave the log take offsets or records with them that are to stay. A mirror's plan checks
    its own rows, by the leader's.
    """
    is_deleted = change.topic is not None and change.topic.deleted_ms is not None
    leaving = row_tables.live(leaving)
    if is_deleted or change.operation in _TO_OTHER_VERSION or not leaving.num_rows:
        return
    starts = {number: start for number, (start, _) in snapshot.offset_bounds().items()}
    moved = (partitions.column(name).to_pylist() for name in ("partition", "log_start_offset"))
    starts |= zip(*moved, strict=True)
    check_kept_offsets(snapshot.topic, change.operation, leaving, row_tables.live(arriving), starts, change.thinned)


def is_made_anew(snapshot: Snapshot, change: Change) -> bool:
    """Whether the change makes a topic in place of another or a deleted topic. An import may keep the same topic id."""
    if change.topic is None or change.operation == Operation.RESTORE:
        return False
    was_deleted = snapshot.deleted_ms is not None and change.topic.deleted_ms is None
    return was_deleted or change.topic.topic_id != snapshot.topic_id


def _check_partitions(snapshot: Snapshot, rows: pa.Table, operation: str, *, fresh: bool) -> dict[int, int]:
    """Returns {partition: log end offset} after the change. Raises where an offset would go back."""
    names = ("partition", "log_start_offset", "log_end_offset", "first_dirty_offset", "last_stable_offset")
    before = {} if fresh else snapshot.offset_bounds()
    ends = {number: end for number, (_, end) in before.items()}
    for number, start, end, first_dirty, last_stable in zip(*(rows[name].to_pylist() for name in names), strict=True):
        # A log end that falls would give the same offsets to other records, and readers behind it would never know. A
        # log start that falls promises records whose files vacuum may have deleted.
        #
        #   before         |log start=======log end|
        #   allowed           |log start=======log end|
        #   refused     |log start=======log end|
        old_start, old_end = before.get(number, (0, 0))
        old_start = 0 if operation in _TO_OTHER_VERSION else old_start
        if not (old_start <= start <= end and old_end <= end and first_dirty <= end and last_stable <= end):
            raise SegmentsError(
                f"Offsets of {snapshot.topic}-{number} would go back or cross",
                expected=f"log start ≥ {old_start}, log end ≥ {old_end}, and no offset above the log end",
                found=f"log start {start}, log end {end}, first dirty {first_dirty}, last stable {last_stable}",
            )
        ends[number] = end
    if sorted(ends) != list(range(len(ends))):
        raise SegmentsError(f"Partitions of {snapshot.topic} would have gaps", found=sorted(ends)[:20])
    return ends


def _check_ranges(topic: str, rows: pa.Table, ends: Mapping[int, int]) -> None:
    """Raises where rows of a partition overlap each other or reach beyond its log end."""
    if not rows.num_rows:
        return
    rows = row_tables.in_log_order(rows.select(["partition", "base_offset", "next_offset"]))
    partition, base, following = (rows.column(name).to_numpy() for name in rows.column_names)
    unknown = set(pc.unique(rows.column("partition")).to_pylist()) - ends.keys()
    if unknown:
        raise UnknownTopicError(f"Topic {topic} has no partition {min(unknown)}", hint=f"It has {len(ends)} of them")
    limit = np.array([ends.get(number, 0) for number in range(len(ends))], np.int64)[partition]
    # In log order it is enough to compare neighbours:
    #
    #   |row 0=====|     |row 1==|       a gap is what compaction or an import has left out
    #   |row 0=====|
    #          |row 1==|                 an overlap: a reader would return these offsets twice
    wrong = (following < base) | (base < 0) | (following > limit)
    wrong[:-1] |= (partition[1:] == partition[:-1]) & (base[1:] < following[:-1])
    if wrong.any():
        at = int(wrong.argmax())
        raise SegmentsError(
            f"A segment of {topic}-{partition[at]} would overlap the next one or reach beyond the log end",
            expected=f"offsets below {limit[at]}",
            found=f"{base[at]} to {following[at]}",
        )


def partitions_of(rows: pa.Table) -> set[int]:
    return set(pc.unique(rows.column("partition")).to_pylist())


def segment_rows(rows: Sequence[Segment] | pa.Table) -> pa.Table:
    """The rows of a change as a table."""
    return rows.cast(SEGMENT_SCHEMA) if isinstance(rows, pa.Table) else Segment.table(rows)
