"""The plan of an update: which offsets come into a table, and which rows go. Pure functions; no file is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from spark_segments.config import READ_COMMITTED, TopicConfig
from spark_segments.errors import LogDirError
from spark_segments.lake.rules import FromOffsets, Rule, StillThere
from spark_segments.lake.table_format import DataFile, TablePositions, TableSettings
from spark_segments.log import Eras, Operation, PartitionState, Scan, Selection, Snapshot
from spark_segments.storage import Storage


class Reason(StrEnum):
    """What happened to records that a table has, so that it may lack more than what follows its positions."""

    NO_POSITION = "the table has no position"
    OTHER_TOPIC = "the topic was made anew"
    OTHER_LOG = "another leader replaced records"
    SPREAD = "partitions were added, so that a key may have records in several"
    REWRITTEN = "a restore may have taken records out of the log, or put some back"
    ERASED = "keys were erased"
    CLEANED = "compaction may have taken records out of the log"
    LOG_START = "the log start moved"
    LATE = "tombstones may be gone"
    RETYPED = "columns got wider types, so that all files are written anew"
    KEYLESS = "the table has no bytes of its typed keys yet"


Offsets = Mapping[int, tuple[int, int]]
"""{partition: (start, end exclusive)}"""

_NEVER = np.iinfo(np.int64).max

_IS_ANOTHER = frozenset((Reason.OTHER_TOPIC, Reason.OTHER_LOG))
"""No row of the table is known to be the topic's."""

TAKES_ROWS = frozenset((Reason.CLEANED, Reason.ERASED, Reason.REWRITTEN))
"""Any row of the table may have left the log."""


@dataclass(frozen=True, slots=True)
class TopicSince:
    """The topic and where its log lies, and the `operations` of its commits since a table was updated; None where one
    is not known.
    """

    storage: Storage
    snapshot: Snapshot
    config: TopicConfig
    operations: Collection[str] | None


@dataclass(frozen=True, slots=True)
class TableSince:
    """The table that an update begins with. `before`: the positions up to which it has its topic's records; None: it
    has none yet, or nobody knows.

    `lacks_key_bytes`: its keys are typed, and it has not their bytes. `needs_new_files`: every file is to be rewritten.
    `erased`: rules that keep rows of an archive that the topic no longer has; none: all rows stay.
    """

    settings: TableSettings
    before: TablePositions | None
    files: Sequence[DataFile]
    lacks_key_bytes: bool = False
    needs_new_files: bool = False
    erased: Sequence[Rule] = ()


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The steps of an update. `why`: what happened to records that the table has. `offsets`: the offsets to add.
    `is_whole`: all rows of the table go, and `offsets` are the topic's whole log. `rules`: the files that may lose
    rows, and the rules that keep rows. `counted`: offsets whose records the table must all have after the update, or it
    is rebuilt. `missed`: offsets that left the topic before an archive had them.
    """

    why: Reason | None
    offsets: Offsets
    is_whole: bool = False
    rules: Sequence[tuple[DataFile, Sequence[Rule]]] = ()
    counted: Offsets | None = None
    missed: Offsets = field(default_factory=dict)

    @property
    def has_new(self) -> bool:
        """Whether there are offsets that the table lacks."""
        return any(start < end for start, end in self.offsets.values())


def plan_table(topic: TopicSince, table: TableSince, now_ms: int) -> TablePlan:
    """The plan that brings a table to what may be read of its topic. Raises LogDirError for an archive of another
    topic.
    """
    why = _gravest_reason(topic, table, now_ms)
    before = table.before
    if table.settings.archive and (why in _IS_ANOTHER or (before is None and table.files)):
        raise LogDirError(
            f"The archive cannot follow topic {topic.snapshot.topic}: {why}",
            hint="Make another table for what comes now",
        )
    bounds = topic.snapshot.offset_bounds(READ_COMMITTED)
    # Nobody knows which row of a latest table a lost record has replaced, so that any reason replaces all of its rows.
    if before is None or why in _IS_ANOTHER or (table.settings.is_latest and why is not None):
        return TablePlan(why, bounds, is_whole=True)
    # Only what follows a position is new:
    #
    #   table     |--------------position)
    #   log             |start-------------------end)      adds [position, end)
    #   log                                   |start--end) adds [start, end): what lies between left unread
    offsets = {number: (max(start, before.end(number)), end) for number, (start, end) in bounds.items()}
    plan = TablePlan(why, offsets)
    if table.settings.is_latest:
        return plan
    if table.needs_new_files:
        plan = dataclasses.replace(plan, rules=[(file, [FromOffsets({})]) for file in table.files])
    if table.settings.archive:
        return _of_archive(plan, topic, table, before)
    if why == Reason.LOG_START:
        return _from_log_start(plan, bounds, table)
    if why in TAKES_ROWS:
        return _of_existing_records(plan, topic, table, before)
    return plan


def _gravest_reason(topic: TopicSince, table: TableSince, now_ms: int) -> Reason | None:
    """Why the table may lack more than what follows its positions: by the topic, else by its own columns."""
    why = what_happened(topic, table.before, now_ms, latest=table.settings.is_latest)
    if why is None and table.needs_new_files:
        return Reason.RETYPED
    # Bytes that differ may be equal once they are decoded, and a key is its bytes.
    if why is None and table.settings.is_latest and table.lacks_key_bytes:
        return Reason.KEYLESS
    return why


def _of_archive(plan: TablePlan, topic: TopicSince, table: TableSince, before: TablePositions) -> TablePlan:
    """The plan of a table that loses nothing but erased keys."""
    ends = {number: before.end(number) for number in before.positions}
    missed = {}
    for number, (start, _) in topic.snapshot.offset_bounds(READ_COMMITTED).items():
        # |position … log start| left the topic between two runs: nobody has them any more.
        if before.end(number) < start:
            missed[number] = (before.end(number), start)
    rules = plan.rules
    if table.erased:
        rules = [(file, [*table.erased, _still_there(topic, file, ends)]) for file in table.files]
    return dataclasses.replace(plan, rules=rules, missed=missed)


def _from_log_start(plan: TablePlan, bounds: Offsets, table: TableSince) -> TablePlan:
    """The plan of a plain table whose topic lost its oldest records and no others."""
    starts = FromOffsets({number: start for number, (start, _) in bounds.items()})
    # A file from the highest log start on has no row below any: it need not be opened.
    highest = max(starts.offsets.values(), default=0)
    below = [
        file
        for file in table.files
        if table.needs_new_files or file.bounds is None or file.bounds["offset"][0] < highest
    ]
    return dataclasses.replace(plan, rules=[(file, [starts]) for file in below])


def _of_existing_records(plan: TablePlan, topic: TopicSince, table: TableSince, before: TablePositions) -> TablePlan:
    """The plan of a plain table of which any row may have left the log: each one is looked up."""
    ends = {number: before.end(number) for number in before.positions}
    rules = [(file, [_still_there(topic, file, ends)]) for file in table.files]
    # After a restore records may have come back that had left the topic, and the table with it.
    counted = {number: (0, end) for number, end in ends.items()} if plan.why == Reason.REWRITTEN else None
    return dataclasses.replace(plan, rules=rules, counted=counted)


def _still_there(topic: TopicSince, file: DataFile, ends: Mapping[int, int]) -> StillThere:
    """The rule with the parts of the log that have what a file may have."""
    offsets = {number: (0, end) for number, end in ends.items()}
    if file.bounds is not None:
        first, last = file.bounds["partition"]
        start, last_offset = file.bounds["offset"]
        # Bounds of a file include their last value, a range of offsets does not.
        offsets = {number: (start, last_offset + 1) for number in ends if first <= number <= last}
    selection = Selection(("offset",), READ_COMMITTED)
    return StillThere(tuple(Scan.of(topic.storage, topic.snapshot, offsets=offsets, selection=selection).parts()))


def what_happened(topic: TopicSince, before: TablePositions | None, now_ms: int, *, latest: bool) -> Reason | None:
    """The gravest reason why a table with these positions may lack more than what follows them, or have too much; None
    where its rows hold for the topic. `latest`: the table has the newest record of each key, which compaction keeps.
    """
    if before is None:
        return Reason.NO_POSITION
    view = _View(topic, before, now_ms, latest)
    return next((reason for reason, has_happened in _RULES if has_happened(view)), None)


@dataclass(frozen=True, slots=True)
class _View:
    """What the rules are asked about."""

    topic: TopicSince
    before: TablePositions
    now_ms: int
    latest: bool

    @property
    def may_be_clean(self) -> bool:
        """Whether a broker's cleaner may ever have been at the topic: a broker has no commits that say so."""
        first_dirty = self.topic.snapshot.partitions.column("first_dirty_offset").to_pylist()
        return any(first_dirty) or self.topic.config.compact

    def log_starts(self) -> list[tuple[int, int]]:
        """(the log start that the table knows, the log start) by partition; -1 where the partition is gone."""
        bounds = self.topic.snapshot.offset_bounds()
        return [(start, bounds.get(number, (-1, -1))[0]) for number, start in self.before.log_starts.items()]


def _is_another_topic(view: _View) -> bool:
    return view.before.topic_id != view.topic.snapshot.topic_id


def _has_parted(view: _View) -> bool:
    snapshot = view.topic.snapshot
    states = {row.partition: PartitionState.of_row(snapshot.topic_id, row) for row in snapshot.partition_rows}
    for number, position in view.before.positions.items():
        loss = position.loss_in(states[number], (snapshot.topic, number), "the table")
        if loss is not None and not loss.is_deletion:
            return True
    return False


def _is_spread(view: _View) -> bool:
    return view.latest and view.before.across != (Eras.of(view.topic.snapshot) is not None)


def _is_rewritten(view: _View) -> bool:
    # A log start that went back: only a restore puts records before it.
    if any(start < known_start for known_start, start in view.log_starts()):
        return True
    version = view.before.version
    operations = view.topic.operations
    if version is None:
        return False
    # A version above the topic's is another manifest's, and says nothing of this one.
    return (
        version > view.topic.snapshot.version
        or operations is None
        or not Operation.BRINGING_BACK.isdisjoint(operations)
    )


def _has_erased(view: _View) -> bool:
    return view.before.version is not None and Operation.ERASE in (view.topic.operations or ())


def _is_cleaned(view: _View) -> bool:
    if view.latest:
        return False
    if view.before.version is None:
        return view.may_be_clean
    operations = view.topic.operations or ()
    # An import takes what a broker's cleaner left.
    return Operation.COMPACT in operations or (Operation.IMPORT in operations and view.may_be_clean)


def _has_moved(view: _View) -> bool:
    return any(start != known_start for known_start, start in view.log_starts())


def _is_late(view: _View) -> bool:
    """Whether a latest table may have missed a tombstone that compaction took."""
    if not view.latest:
        return False
    rows = view.topic.snapshot.partitions
    first_dirty = dict(
        zip(view.topic.snapshot.offset_bounds(), rows.column("first_dirty_offset").to_pylist(), strict=True)
    )
    # A tombstone that was appended after the last update stays at least delete.retention.ms after its first cleaning:
    #
    #   |update|append of a tombstone|cleaning| … delete.retention.ms … |cleaning that may take it|
    #
    # So no cleaning beyond the position, or a run within that time, has missed none.
    cleaned = any(first_dirty[number] > position.offset for number, position in view.before.positions.items())
    return cleaned and view.now_ms - view.before.at_ms > view.topic.config.delete_retention_ms


# The gravest first: in another topic, or in a log that parted, none of the later questions means anything.
_RULES: Sequence[tuple[Reason, Callable[[_View], bool]]] = (
    (Reason.OTHER_TOPIC, _is_another_topic),
    (Reason.OTHER_LOG, _has_parted),
    (Reason.SPREAD, _is_spread),
    (Reason.REWRITTEN, _is_rewritten),
    (Reason.ERASED, _has_erased),
    (Reason.CLEANED, _is_cleaned),
    # A log start that has moved takes rows below it alone, and a reader of the table may go on. So it is asked last: a
    # table that is late keeps keys whose tombstones are gone, wherever the log start is.
    (Reason.LATE, _is_late),
    (Reason.LOG_START, _has_moved),
)


def rival_offsets(snapshot: Snapshot, before: TablePositions, records: np.ndarray) -> Offsets:
    """The offsets in the table that may have newer records than `records`, the ranks of the records to add: offsets of
    a later era, and of the same era from the first segment on that has as late a timestamp.
    """
    eras = Eras.of(snapshot)
    assert eras is not None
    _, _, least_us, least_era = records.min(axis=1, initial=_NEVER)
    # A segment that ends in an earlier era, or whose newest timestamp is older than every record to add, has no newer
    # record of their keys. Without this bound each update would read all of the log that the table has reached.
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
