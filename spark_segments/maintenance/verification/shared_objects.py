"""Whether shared objects are there, whole, and what the rows that name their runs say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from spark_segments.errors import CorruptBatchError, MissingFileError
from spark_segments.execution import run_tasks
from spark_segments.format.shared_object import RUN_DTYPE
from spark_segments.log.findings import Finding, Findings
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.segment.shared_object import footer_runs, read_footer
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from spark_segments.maintenance.verification.verify import VerifiedTopic

# What a row says as the footer does. A row's offsets may end in a gap, or be cut.
_FIELDS = [name for name in RUN_DTYPE.names or () if name not in ("partition", "position", "offsets")]


@dataclass(frozen=True, slots=True)
class SharedObject:
    """An object and the rows of a topic's log that name it, by position."""

    path: str
    size: int
    rows: tuple[Segment, ...]


def check_objects(snapshot: Snapshot, files: Mapping[str, FileInfo], findings: Findings) -> list[SharedObject]:
    """Checks that objects exist and are long enough, and that no two rows share bytes. Returns the existing objects."""
    live = snapshot.live
    rows = Segment.of_table(live.filter(pc.is_valid(live.column("index_position"))))
    objects = []
    for path, group in groupby(sorted(rows, key=lambda row: (row.path, row.byte_position)), lambda row: row.path):
        runs = list(group)
        add = partial(findings.add, path=path)
        for before, after in pairwise(runs):
            if after.byte_position < before.end_position:
                message = "Two rows share bytes of a shared object"
                expected = f"a position from {before.end_position} on"
                at: dict[str, Any] = {"partition": after.partition, "byte_position": after.byte_position}
                add(message, rule="O2", **at, expected=expected, found=after.byte_position)
        info = files.get(path)
        needed = max(row.time_index_position + row.time_index_bytes for row in runs)
        if info is None or info.size <= needed:
            message = "A shared object is missing" if info is None else "A shared object is shorter than its rows say"
            expected = f"more than {needed} bytes, for {len(runs)} rows"
            found = "no file" if info is None else f"{info.size} bytes"
            add(message, rule="R6", partition=runs[0].partition, expected=expected, found=found)
        else:
            objects.append(SharedObject(path, info.size, tuple(runs)))
    return objects


def _check_footer(storage: Storage, topic: str, earlier_ids: frozenset[str], shared: SharedObject) -> list[Finding]:
    """Task function: the findings of one object's footer."""
    findings = Findings(topic, path=shared.path)
    try:
        footer = read_footer(storage, shared.path, shared.size)
    except (CorruptBatchError, MissingFileError) as error:
        findings.add_error(error, rule="O3")
        return findings.found
    add = partial(findings.add, rule="O3")
    topic_id = shared.rows[0].topic_id
    if footer.topic_id not in {topic_id, *earlier_ids}:
        message = "A shared object is another topic's"
        add(message, byte_position=footer.byte_position, expected=topic_id, found=footer.topic_id)
    runs = {(run["partition"].item(), run["position"].item()): run for run in footer.runs}
    for row, true in zip(shared.rows, footer_runs(shared.rows), strict=True):
        run = runs.get((row.partition, row.byte_position))
        at: dict[str, Any] = {"partition": row.partition, "byte_position": row.byte_position}
        if run is None:
            message = "A row names a run that its shared object does not have"
            add(message, **at, expected=f"a run of partition {row.partition}", found="none in the footer")
            continue
        wrong = [name for name in _FIELDS if run[name] != true[name]]
        if wrong:
            in_footer = ", ".join(f"{name} {run[name]}" for name in wrong)
            in_row = ", ".join(f"{name} {true[name]}" for name in wrong)
            add("A row and the footer of its shared object differ", **at, expected=in_footer, found=in_row)
    return findings.found


def check_footers(topic: VerifiedTopic, snapshot: Snapshot, objects: Sequence[SharedObject]) -> None:
    """Reads the footer of each object and compares it with the rows."""
    earlier_ids = frozenset(snapshot.states.get(TopicRow.REBUILT_FROM, "").split(","))
    check = partial(_check_footer, topic.log.storage, topic.name, earlier_ids)
    for findings in run_tasks(check, objects, topic.spark):
        topic.findings.found += findings
