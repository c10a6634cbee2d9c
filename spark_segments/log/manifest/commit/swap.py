"""Rows that take the place of others, where these are still in the log as they were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot

Identity = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class RowSwap:
    """`old`: rows of a partition, as they were read. `new`: the rows in their place. A new row with the identity of an
    old one replaces it; the other new rows are added, and the other old rows are removed from the log.
    """

    old: Sequence[Segment]
    new: Sequence[Segment]

    @property
    def partition(self) -> int:
        return self.old[0].partition


def live_by_identity(current: Snapshot, partitions: Iterable[int]) -> dict[int, dict[Identity, Segment]]:
    """{partition: its live rows by identity, in log order}, read from the files that can hold them alone."""
    live: dict[int, dict[Identity, Segment]] = {number: {} for number in partitions}
    for row in Segment.of_table(row_tables.live(current.load_segments(live.keys()))):
        live[row.partition][row.identity] = row
    return live


def not_as_read(live: Mapping[Identity, Segment], rows: Iterable[Segment]) -> list[Segment]:
    """Those of `rows` that are not live any more, or not as they were read."""
    return [row for row in rows if live.get(row.identity) != row]


def swapped(operation: str, swaps: Iterable[RowSwap], removed_ms: int, *, thins: bool) -> Change | None:
    """The change that makes swaps; None without any. `removed_ms`: the store's clock at the commit. `thins`: whether
    the new rows may lack records that the old rows have.
    """
    add: list[Segment] = []
    replace: list[Segment] = []
    thinned: dict[int, int] = {}
    for swap in swaps:
        # A row must not be both replaced and added: a change that names an identity twice is refused. So a new row with
        # an old identity is taken out of `new`, and what is left there is really new.
        new = {row.identity: row for row in swap.new}
        replace += [new.pop(row.identity) if row.identity in new else row.removed(removed_ms) for row in swap.old]
        add += new.values()
        if thins:
            ends = [row.next_offset for row in swap.old]
            thinned[swap.partition] = max([*ends, thinned.get(swap.partition, 0)])
    return Change(operation, add=add, replace=replace, thinned=thinned) if replace else None
