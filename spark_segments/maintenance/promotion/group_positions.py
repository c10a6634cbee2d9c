"""Positions of groups go along with a promotion: they lie in the log directory, and a mirror takes them on request."""

from __future__ import annotations

from spark_segments.errors import SegmentsError
from spark_segments.log.directory import LogDirectory
from spark_segments.log.groups.group_files import GroupRows
from spark_segments.maintenance.mirroring.groups import positions_of_all


def copy_positions(former: LogDirectory, log: LogDirectory, topic: str) -> tuple[int, dict[str, SegmentsError]]:
    """Brings the positions of all groups in a topic to its new leader. Returns (how many were brought, the errors of
    the groups whose positions were not).

    Where a group has a position here already, the one that was committed later counts. A position carries topic id and
    leader epoch, so a reader that was ahead of the new leader learns of it here.
    """
    copied = 0
    every, errors = positions_of_all(former)
    for group, positions in every.items():
        theirs = {key: one for key, one in positions.items() if key[0] == topic}
        if not theirs:
            continue
        late: GroupRows = {}

        def newer(rows: GroupRows, theirs: GroupRows = theirs, late: GroupRows = late) -> GroupRows | None:
            late.clear()
            late.update(
                (key, one)
                for key, one in theirs.items()
                if key not in rows or rows[key].committed_ms < one.committed_ms
            )
            return rows | late if late else None

        try:
            log.group(group).update(newer, made_by=positions.last.made_by)
        except SegmentsError as error:
            errors[group] = error
            continue
        copied += len(late)
    return copied, errors
