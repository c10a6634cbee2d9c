"""Restoring a topic's segments as an earlier version had them, while vacuum has not taken their files."""

from __future__ import annotations

import dataclasses

from spark_segments.errors import LogDirError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import Change
from spark_segments.log.rows import segments_of
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.vacuum import BEING_DELETED_MS


def restore(log: LogDir, topic: str, version: int) -> dict[int, tuple[int, int]]:
    """Brings a topic's records back to what `version` held, in one commit, while its files are still there.

    Offsets given out since stay given out: the log end does not go back, nor does anything else but the segments in the
    log. Returns {partition: (log start offset, log end offset)}. Raises LogDirError where vacuum has taken a file of
    that version.
    """
    wanted = log.snapshot(topic, version)

    def plan(current: Snapshot) -> Change | None:
        if wanted.topic_id != current.topic_id:
            raise LogDirError(
                f"Version {version} is of another topic of that name", expected=current.topic_id, found=wanted.topic_id
            )
        now_ms = log.storage.now_ms()
        there = {segment.path: segment for segment in segments_of(current.segments)}
        replaced, names = [], set()
        for segment in segments_of(wanted.live):
            row = there.get(segment.path)
            if row is None or row.removed_ms == BEING_DELETED_MS:
                raise LogDirError(
                    f"Version {version} of {topic} cannot be restored: vacuum has taken a file of it",
                    path=segment.path,
                    hint="Restore a newer version; a larger file.delete.delay.ms keeps files longer",
                )
            names.add(segment.path)
            if row != segment:
                replaced.append(segment)
        replaced += [row.removed(now_ms) for row in there.values() if row.is_live and row.path not in names]
        starts = dict(
            zip(*(wanted.partitions.column(n).to_pylist() for n in ("partition", "log_start_offset")), strict=True)
        )
        rows = []
        for number in range(current.partitions.num_rows):
            partition = current.partition(number)
            start = starts.get(number, partition.log_start_offset)
            rows.append(dataclasses.replace(partition, log_start_offset=start, first_dirty_offset=start))
        return Change("restore", replace=replaced, partitions=rows)

    log.manifest(topic).commit(plan)
    return log.offsets(topic)
