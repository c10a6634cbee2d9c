"""Restoring a topic's segments as an earlier version had them, while vacuum has not taken their files."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import LogDirError
from spark_segments.log.change import RESTORE
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import Change
from spark_segments.log.rows import SEGMENT_SCHEMA, Partition, Topic, partitions_of, removed_rows
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.selection import check_managed
from spark_segments.maintenance.vacuum import BEING_DELETED_MS

_ROW = ["base_offset", "next_offset", "file_base_offset", "state"]
"""What of a file's row can change while the file is in the log."""


def restore(log: LogDir, topic: str, version: int) -> dict[int, tuple[int, int]]:
    """Brings a topic's records back to what `version` held, in one commit, while its files are still there.

    Offsets given out since stay given out: the log end does not go back, and what was appended after that version goes.
    The log start may go back: records that retention took are there again. The configuration stays as it is. A topic
    that was deleted is there again. Returns {partition: (log start offset, log end offset)}. Raises LogDirError where
    vacuum has taken a file of that version.
    """
    check_managed(log)
    manifest = log.manifest(topic)
    wanted = manifest.snapshot(version)

    def change(current: Snapshot) -> Change | None:
        if wanted.topic_id != current.topic_id:
            raise LogDirError(
                f"Version {version} is of another topic of the name {topic}",
                expected=f"topic id {current.topic_id}",
                found=wanted.topic_id,
            )
        rows, partitions = _rows_again(wanted, current), _partitions_again(wanted, current)
        _check_files(current, rows, version)
        taken = current.live.filter(pc.invert(pc.is_in(current.live.column("path"), rows.column("path"))))
        changed = rows.filter(pc.invert(_as_they_are(current, rows)))
        back = None if current.deleted_ms is None else Topic(current.topic_id, current.config)
        return Change(
            RESTORE,
            replace=pa.concat_tables([changed, removed_rows(taken, log.storage.now_ms())]),
            partitions=partitions,
            topic=back,
        )

    manifest.commit(change, deleted=True)
    return log.offsets(topic)


def _rows_again(wanted: Snapshot, current: Snapshot) -> pa.Table:
    """The rows as they were; the last one of each partition covers all offsets that have been given out since."""
    rows = wanted.live
    partition = rows.column("partition").to_numpy()
    last = np.flatnonzero(np.append(partition[1:] != partition[:-1], len(partition) > 0))
    following = rows.column("next_offset").to_numpy().copy()
    following[last] = current.partitions.column("log_end_offset").to_numpy()[partition[last]]
    position = SEGMENT_SCHEMA.get_field_index("next_offset")
    return rows.set_column(position, SEGMENT_SCHEMA.field(position), pa.array(following))


def _check_files(current: Snapshot, rows: pa.Table, version: int) -> None:
    removed_ms = pc.fill_null(current.segments.column("removed_ms"), 0)
    there = current.segments.filter(pc.not_equal(removed_ms, BEING_DELETED_MS))
    gone = rows.column("path").filter(pc.invert(pc.is_in(rows.column("path"), there.column("path"))))
    if len(gone):
        raise LogDirError(
            f"Version {version} of {current.topic} cannot be restored: vacuum has taken {len(gone)} of its files",
            path=gone[0].as_py(),
            hint="Restore a newer version; a larger file.delete.delay.ms keeps files longer",
        )


def _as_they_are(current: Snapshot, rows: pa.Table) -> pa.Array:
    """bool[rows]: which rows are in the log already, and as they are to be."""
    position = pc.index_in(rows.column("path"), current.live.column("path"))
    there = current.live.take(position)
    same = functools.reduce(pc.and_, (pc.equal(there.column(name), rows.column(name)) for name in _ROW))
    return pc.fill_null(same, False)


def _partitions_again(wanted: Snapshot, current: Snapshot) -> list[Partition]:
    """All partitions as they were at that version, with the log ends and leader epochs of now."""
    before = {row.partition: row for row in partitions_of(wanted.partitions)}
    filled = set(pc.unique(wanted.live.column("partition")).to_pylist())
    rows = []
    for now in partitions_of(current.partitions):
        then, end = before.get(now.partition), now.log_end_offset
        if then is None or now.partition not in filled:  # there was nothing in it, and nobody gets these offsets again
            rows.append(dataclasses.replace(now, log_start_offset=end, first_dirty_offset=end, last_stable_offset=end))
            continue
        stable = then.last_stable_offset
        rows.append(
            dataclasses.replace(
                now,
                log_start_offset=then.log_start_offset,
                first_dirty_offset=then.first_dirty_offset,
                last_stable_offset=end if stable == then.log_end_offset else stable,
                producer_snapshot=then.producer_snapshot,
            )
        )
    return rows
