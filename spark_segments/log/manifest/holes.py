"""Holes: offsets of a partition that are missing here though no policy of the topic took them.

Whatever copies records from somewhere else can come too late, or find that records are missing there. The commit that
takes the log over the missing offsets records them, in the topic row's map `states`, which every writer keeps: one
entry a partition, `holes.<partition>`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow

_PREFIX = "holes."

REMOVED_BEFORE = "the source had removed them before they were copied"
MISSING_THERE = "the source has no segment of them"


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """Offsets [start_offset, end_offset) of a partition. `noticed_ms`: when, in ms since 1970; `reason`: a clause."""

    partition: int
    start_offset: int
    end_offset: int
    noticed_ms: int
    reason: str

    def __str__(self) -> str:
        return f"offsets {self.start_offset} to {self.end_offset - 1} are missing: {self.reason}"

    def to_dict(self) -> dict[str, int | str]:
        """The hole as plain values, as for JSON."""
        return dataclasses.asdict(self)


def holes_of(states: Mapping[str, str]) -> list[Hole]:
    """The holes of all partitions, by partition and offset. `states`: of the topic's row, or of its snapshot."""
    return sorted(
        Hole(int(name.removeprefix(_PREFIX)), **fields)
        for name, value in states.items()
        if name.startswith(_PREFIX)
        for fields in json.loads(value)
    )


def holes_in(snapshot: Snapshot, partition: int, start_offset: int, end_offset: int) -> list[Hole]:
    """The holes of a partition that have offsets in [start_offset, end_offset)."""
    return [
        hole
        for hole in holes_of(snapshot.states)
        if hole.partition == partition and hole.start_offset < end_offset and hole.end_offset > start_offset
    ]


def with_holes(snapshot: Snapshot, new: Sequence[Hole]) -> TopicRow:
    """The topic's row with these holes, too. Of a partition that has new ones, holes below its log start are left out:
    no read passes them any more.
    """
    states = dict(snapshot.states)
    for partition in {hole.partition for hole in new}:
        start = snapshot.partition(partition).log_start_offset
        kept = [hole for hole in holes_of(states) if hole.partition == partition and hole.end_offset > start]
        added = [hole for hole in new if hole.partition == partition]
        states[f"{_PREFIX}{partition}"] = _to_json(sorted({*kept, *added}))
    return dataclasses.replace(snapshot.topic_row, states=states)


def hole_states(states: Mapping[str, str]) -> dict[str, str]:
    """The entries of `states` that are holes."""
    return {name: value for name, value in states.items() if name.startswith(_PREFIX)}


def other_states(states: Mapping[str, str]) -> dict[str, str]:
    """The entries of `states` that are no holes."""
    return {name: value for name, value in states.items() if not name.startswith(_PREFIX)}


def _to_json(holes: Iterable[Hole]) -> str:
    rows = [{name: value for name, value in hole.to_dict().items() if name != "partition"} for hole in holes]
    return json.dumps(rows, separators=(",", ":"))
