"""The plan of an update: which offsets come into a table, and which rows go. Pure functions; no file is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_segments.config import READ_COMMITTED, TopicConfig
from spark_segments.errors import LogDirError
from spark_segments.lake.rules import FromOffsets, Rule, StillThere
from spark_segments.lake.table_format import DataFile, TablePositions, TableSettings
from spark_segments.log import Eras, Operation, PartitionState, Scan, Selection, Snapshot
from spark_segments.storage import Storage

# What happened to records that a table has.
NO_POSITION = "the table has no position"
OTHER_TOPIC = "the topic was made anew"
OTHER_LOG = "another leader replaced records"
REWRITTEN = "a restore may have taken records out of the log, or put some back"
ERASED = "keys were erased"
CLEANED = "compaction may have taken records out of the log"
LOG_START = "the log start moved"
LATE = "tombstones may be gone"
RETYPED = "columns got wider types, so that all files are written anew"
KEYLESS = "the table has no bytes of its typed keys yet"
SPREAD = "partitions were added, so that a key may have records in several"

Offsets = Mapping[int, tuple[int, int]]
"""{partition: (start, end exclusive)}"""

COMPACT = "compact"
_NEVER = np.iinfo(np.int64).max

_REWRITES = frozenset((Operation.RESTORE, Operation.MIRROR))
"""Commits after which the log may lack records below a position, or have others there, although the log start did not
move. A mirror's may be any other commit at its leader."""


@dataclass(frozen=True, slots=True)
class TopicSince:
    """The topic and where its log lies, and the `operations` of its commits since a table was in step; None where one
    is not known.
    """

    storage: Storage
    snapshot: Snapshot
    config: TopicConfig
    operations: Collection[str | None] | None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The steps of an update. `why`: what happened to records that the table has. `offsets`: the offsets to add.
    `is_whole`: all rows of the table go, and `offsets` are the topic's whole log. `rules`: the files that may lose
    rows, and the rules that keep rows. `counted`: offsets whose records the table must all have after the update, or it
    is rebuilt. `missed`: offsets that left the topic before an archive had them.
    """

    why: str | None
    offsets: Offsets
    is_whole: bool = False
    rules: Sequence[tuple[DataFile, Sequence[Rule]]] = ()
    counted: Offsets | None = None
    missed: Offsets = field(default_factory=dict)

    @property
    def has_new(self) -> bool:
        """Whether there are offsets that the table lacks."""
        return any(start < end for start, end in self.offsets.values())


def plan_table(
    topic: TopicSince,
    settings: TableSettings,
    before: TablePositions | None,
    files: Sequence[DataFile],
    now_ms: int,
    *,
    lacks_key_bytes: bool = False,
    needs_new_files: bool = False,
    erased: Sequence[Rule] = (),
) -> TablePlan:
    """The plan for a table that has `files` and the records of its topic up to `before`.

    `lacks_key_bytes`: keys are typed, and the table has not their bytes. `needs_new_files`: every file of the table is
    to be rewritten. `erased`: rules that keep rows of an archive that the topic no longer has; none: all rows stay.
    Raises LogDirError for an archive of another topic.
    """
    snapshot, latest = topic.snapshot, settings.view == Selection.LATEST_VIEW
    bounds = snapshot.offset_bounds(READ_COMMITTED)
    why = what_happened(topic, before, now_ms, latest=latest) or (RETYPED if needs_new_files else None)
    if settings.archive and (why in (OTHER_TOPIC, OTHER_LOG) or (before is None and files)):
        raise LogDirError(
            f"The archive cannot follow topic {snapshot.topic}: {why}", hint="Make another table for what comes now"
        )
    if before is None or why in (OTHER_TOPIC, OTHER_LOG):
        return TablePlan(why, bounds, is_whole=True)
    plan = TablePlan(why, {number: (max(start, before.end(number)), end) for number, (start, end) in bounds.items()})
    if latest:
        # Bytes that differ may be equal once they are decoded, and a key is its bytes.
        why = why or (KEYLESS if lacks_key_bytes else None)
        return plan if why is None else TablePlan(why, bounds, is_whole=True)
    ends = {number: before.end(number) for number in before.positions}
    every_row = [(file, [FromOffsets({})]) for file in files if needs_new_files]
    if settings.archive:
        sifted = [(file, [*erased, _still_there(topic, file, ends)]) for file in files if erased]
        missed = {number: (before.end(number), start) for number, (start, _) in bounds.items()}
        missed = {number: (end, start) for number, (end, start) in missed.items() if end < start}
        return dataclasses.replace(plan, rules=sifted or every_row, missed=missed)
    if why == LOG_START:
        starts = FromOffsets({number: start for number, (start, _) in bounds.items()})
        highest = max(starts.offsets.values(), default=0)
        below = [file for file in files if needs_new_files or file.bounds is None or file.bounds["offset"][0] < highest]
        return dataclasses.replace(plan, rules=[(file, [starts]) for file in below])
    if why not in (CLEANED, ERASED, REWRITTEN):
        return dataclasses.replace(plan, rules=every_row)
    rules = [(file, [_still_there(topic, file, ends)]) for file in files]
    # After a restore records may have come back that had left the topic, and the table with it.
    counted = {number: (0, end) for number, end in ends.items()} if why == REWRITTEN else None
    return dataclasses.replace(plan, rules=rules, counted=counted)


def _still_there(topic: TopicSince, file: DataFile, ends: Mapping[int, int]) -> StillThere:
    """The rule with the parts of the log that have what a file may have."""
    offsets = {number: (0, end) for number, end in ends.items()}
    if file.bounds is not None:
        (first, last), (start, end) = file.bounds["partition"], file.bounds["offset"]
        offsets = {number: (start, end + 1) for number in ends if first <= number <= last}
    selection = Selection(("offset",), READ_COMMITTED)
    return StillThere(tuple(Scan.of(topic.storage, topic.snapshot, offsets=offsets, selection=selection).parts()))


def what_happened(topic: TopicSince, before: TablePositions | None, now_ms: int, *, latest: bool) -> str | None:
    """The gravest of the reasons above why a table may lack more than what follows its positions, or have too much;
    None where it does not. `latest`: the table has the newest record of each key, which compaction keeps.
    """
    snapshot = topic.snapshot
    if before is None:
        return NO_POSITION
    if before.topic_id != snapshot.topic_id:
        return OTHER_TOPIC
    bounds = snapshot.offset_bounds()
    states = {row.partition: PartitionState.of_row(snapshot.topic_id, row) for row in snapshot.partition_rows}
    for number, position in before.positions.items():
        loss = position.loss_in(states[number], (snapshot.topic, number), "the table")
        if loss is not None and not loss.is_deletion:
            return OTHER_LOG
    if latest and before.across != (Eras.of(snapshot) is not None):
        return SPREAD
    moved = {number for number, start in before.log_starts.items() if bounds.get(number, (-1, -1))[0] != start}
    if any(bounds[number][0] < before.log_starts[number] for number in moved):
        return REWRITTEN
    if (why := _rewritten(topic, before.version, latest=latest)) is not None:
        return why
    if moved:
        return LOG_START
    if not latest:
        return None
    first_dirty = dict(zip(bounds, snapshot.partitions.column("first_dirty_offset").to_pylist(), strict=True))
    cleaned = any(first_dirty[number] > position.offset for number, position in before.positions.items())
    # A tombstone that was appended after the last update stays at least delete.retention.ms after its first cleaning.
    return LATE if cleaned and now_ms - before.at_ms > topic.config.delete_retention_ms else None


def rival_offsets(snapshot: Snapshot, before: TablePositions, records: np.ndarray) -> Offsets:
    """The offsets in the table that may have newer records than `records`, the ranks of the records to add: offsets of
    a later era, and of the same era from the first segment on that has as late a timestamp.
    """
    eras = Eras.of(snapshot)
    assert eras is not None
    _, _, least_us, least_era = records.min(axis=1, initial=_NEVER)
    offsets = {}
    for number, position in before.positions.items():
        rows = snapshot.live_table(number)
        base, following, latest_ms = (
            rows.column(name).to_numpy() for name in ("base_offset", "next_offset", "max_timestamp_ms")
        )
        era = eras.at(np.full(len(base), number), following - 1)
        may_have = (base < position.offset) & (
            (era > least_era) | ((era == least_era) & (latest_ms * 1000 >= least_us))
        )
        if may_have.any():
            offsets[number] = (int(base[may_have][0]), position.offset)
    return offsets


def _rewritten(topic: TopicSince, since: int | None, *, latest: bool) -> str | None:
    """REWRITTEN, ERASED or CLEANED, by the commits after the version `since`; REWRITTEN where one is not known.

    A broker's directory has no versions, and an import takes what a broker's cleaner left.
    """
    # Whether a broker's cleaner may ever have been at the topic.
    may_be_clean = any(topic.snapshot.partitions.column("first_dirty_offset").to_pylist()) or topic.config.compact
    if since is None:
        return CLEANED if not latest and may_be_clean else None
    operations = topic.operations
    if since > topic.snapshot.version or operations is None or not _REWRITES.isdisjoint(operations):
        return REWRITTEN
    if Operation.ERASE in operations:
        return ERASED
    cleaned = COMPACT in operations or (Operation.IMPORT in operations and may_be_clean)
    return CLEANED if cleaned and not latest else None
