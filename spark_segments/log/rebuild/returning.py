"""Rows that had left the log and stand in for rows whose files are gone: they have the same records.

A restore takes rows back. Where it came after the last known version, the rows that it put out are the known ones, and
vacuum may have taken their files.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from spark_segments.log.manifest.rows import CHUNK, Segment

IsThere = Callable[[Segment], bool]


def with_returned(
    rows: Sequence[Segment], out: Sequence[Segment], is_there: IsThere
) -> tuple[list[Segment], list[Segment]]:
    """(live rows in log order, those of them that had left the log): rows of `out` in the place of `rows` whose files
    are gone or cut, where they hold exactly the same records. The figures of the rows tell.
    """
    usable = [row for row in out if _is_whole(row) and row.next_offset > row.base_offset and is_there(row)]
    usable.sort(key=lambda row: (row.base_offset, row.next_offset))
    returned: list[Segment] = []
    for run in _lost_runs(rows, is_there) if usable else ():
        returned += _tiling(run, usable) or [row for one in run for row in _tiling([one], usable)]
    kept = _without(rows, returned)
    return sorted([*kept, *returned], key=lambda row: (row.base_offset, row.next_offset)), returned


def _lost_runs(rows: Sequence[Segment], is_there: IsThere) -> list[list[Segment]]:
    """The rows whose files are gone or cut, neighbours together."""
    runs: list[list[Segment]] = []
    for row in rows:
        if row.next_offset == row.base_offset or is_there(row):
            continue
        if runs and runs[-1][-1].next_offset == row.base_offset:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _tiling(run: Sequence[Segment], out: Sequence[Segment]) -> list[Segment]:
    """Rows of `out`, sorted by offset, that cover the rows of `run` without a gap and have as many records, in order;
    [] if there are none.
    """
    start, end = run[0].base_offset, run[-1].next_offset
    if not all(map(_is_whole, run)):
        return []
    most: dict[int, tuple[int, Segment | None]] = {end: (0, None)}  # from an offset on: records, the row there
    bounds = [bisect_left(out, offset, key=lambda row: row.base_offset) for offset in (start, end)]
    for row in reversed(out[slice(*bounds)]):
        if row.next_offset in most:
            records = most[row.next_offset][0] + row.records
            if row.base_offset not in most or records > most[row.base_offset][0]:
                most[row.base_offset] = records, row
    if start not in most or most[start][0] != sum(row.records for row in run):
        return []
    found: list[Segment] = []
    following = most[start][1]
    while following is not None:
        found.append(dataclasses.replace(following, state=CHUNK, removed_ms=None))
        following = most[following.next_offset][1]
    return found


def _without(rows: Iterable[Segment], returned: Sequence[Segment]) -> list[Segment]:
    """The rows but those whose offsets `returned`, which is in log order, has."""
    starts = [row.base_offset for row in returned]
    kept = []
    for row in rows:
        at = bisect_right(starts, row.base_offset) - 1
        is_again = at >= 0 and row.base_offset < returned[at].next_offset
        if not is_again or row.next_offset == row.base_offset:
            kept.append(row)
    return kept


def _is_whole(row: Segment) -> bool:
    """Whether the row names its file from its first batch on: its figures are those of its offsets then."""
    return row.file_base_offset == row.name_offset
