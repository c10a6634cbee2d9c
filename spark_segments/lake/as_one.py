"""A topic and a table beside it as one: the rows of the table's files, and what follows them in the log.

A commit of the table says which offsets of which topic it has. So its files and its positions come from one version,
and the log is read from the positions on. When rows of a table still are the topic's is the rule of the table's own
update (table_plan.py, `what_happened`). Where it does not hold, the log alone is read, and `AsOne.why` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED
from spark_segments.errors import SegmentsError
from spark_segments.lake.noted import NotedTable
from spark_segments.lake.request import own_formats
from spark_segments.lake.rows import UNDATED, have_newer
from spark_segments.lake.since import rival_parts, topic_since
from spark_segments.lake.table_format import (
    DAY,
    KEY_BYTES,
    DataFile,
    RowFacts,
    TableFormat,
    TablePositions,
    TableSettings,
    has_floats,
)
from spark_segments.lake.table_plan import Reason, what_happened
from spark_segments.log import Eras, LogDirectory, Scan, Selection, Snapshot
from spark_segments.quantities import wall_ms

_MOST_SKEW_MS = 10 * 60 * 1000
"""How far the clock of this machine may be behind the store's."""

_OF_THE_LOG = ("topic", "timestampType")
"""Columns of records that a table does not have: the same in each of its rows."""


@dataclass(frozen=True, slots=True)
class TableHalf:
    """The rows of one version of a table that are rows of its topic.

    `files`: of that version. `is_latest`: they are the newest records of their keys up to the positions; else all
    records. `log_starts`: {partition: offset} below which rows no longer count; other partitions' rows all count.
    `timestamp_type`: of all records. `key_column`: has the keys' bytes.
    """

    table: TableFormat
    files: Sequence[DataFile]
    is_latest: bool
    log_starts: Mapping[int, int]
    timestamp_type: int
    key_column: str

    @property
    def addresses(self) -> list[str]:
        """The full addresses of the files."""
        return [self.table.storage.location(file.path) for file in self.files]


@dataclass(frozen=True, slots=True)
class AsOne:
    """How a query reads a topic at one snapshot. `scan`: the topic by its log alone. `half`: the rows that come from a
    table; None: none do. `tail`: the records that follow them; without a half, `scan`. `why`: the reason why no table
    is read, though the topic knows some.

    A half of all records, and the tail, are all records of the topic. In the view latest, a record of the tail outdoes
    each row of the half that has its key: of the same partition, or, where keys are `across` partitions, of any. The
    tail of a view has tombstones, unless the half is a view that knows none and the selection leaves them out.
    """

    scan: Scan
    half: TableHalf | None
    tail: Scan
    why: str | None = None

    @classmethod
    def by_log(cls, scan: Scan, why: str | None = None) -> AsOne:
        """The topic by its log alone."""
        return cls(scan, None, scan, why)

    @property
    def has_tail(self) -> bool:
        """Whether there are records behind the half's."""
        return any(start < end for ranges in self.tail.offsets.values() for start, end in ranges)

    @property
    def across(self) -> bool:
        """Whether a key may have records in several partitions."""
        return Eras.of(self.scan.snapshot) is not None

    @property
    def tail_keys(self) -> Scan:
        """The columns partition and key, as bytes, of all newest records of the tail, tombstones included."""
        selection = Selection(("partition", "key"), self.tail.selection.isolation, Selection.LATEST_VIEW)
        return Scan(self.tail.storage, self.tail.snapshot, self.tail.offsets, selection)


class OpenTables:
    """The noted tables that a caller has opened. A version is opened again where another one may follow it."""

    def __init__(self) -> None:
        self._tables: dict[str, TableFormat] = {}

    def forget(self) -> None:
        """Opens all tables again, from now on: a file of one is gone, or the whole table."""
        self._tables.clear()

    def open(self, note: NotedTable, storage_options: Mapping[str, str]) -> TableFormat | None:
        """The newest version of a table; None where there is none."""
        table = self._tables.get(note.uri)
        if table is None or not table.is_newest():
            table = note.open(storage_options)
            if table is not None:
                self._tables[note.uri] = table
        return table

    def still_has(self, one: AsOne, scan: Scan) -> bool:
        """Whether the scan is read as `one` says: neither the topic nor the table has changed since. A latest table may
        become too old by time alone, and is judged again.
        """
        half = one.half
        if half is None or half.is_latest or one.scan.snapshot is not scan.snapshot:
            return False
        try:
            return any(table is half.table for table in self._tables.values()) and half.table.is_newest()
        except (SegmentsError, OSError):
            return False  # the table is judged again, and the caller gets the cause as a reason


class _Unfit(Exception):
    """Why a table cannot be read in place of its log."""


def as_one(
    log: LogDirectory,
    scan: Scan,
    formats: Mapping[str, str] | None,
    opened: OpenTables | None = None,
    now_ms: int | None = None,
) -> AsOne:
    """How a query reads the newest snapshot of a topic, of which `scan` has all columns and offsets, by the log and the
    tables that the topic knows. `formats`: those of the scan. `opened`: tables of earlier queries.

    Where a table is ahead of the scan's snapshot, the newest snapshot takes its place. No error of a table is raised.
    """
    reasons: list[str] = []
    try:
        noted = NotedTable.of(scan.snapshot)
        if noted and scan.selection.include_control:
            raise _Unfit("control records are in the log alone")
    except (SegmentsError, _Unfit) as error:
        return AsOne.by_log(scan, str(error))
    if now_ms is None:
        # A store's own clock costs a write. Too late a time costs a read of the log, and no record.
        now_ms = log.storage.now_ms() if log.storage.is_local else wall_ms() + _MOST_SKEW_MS
    for note in sorted(noted, key=lambda note: _rank(note, scan.selection.view)):
        try:
            table = (opened or OpenTables()).open(note, log.storage.storage_options)
            if table is None:
                raise _Unfit("it is gone")
            return _joined(log, scan, formats, table, now_ms)
        except (SegmentsError, _Unfit, OSError) as error:
            reasons.append(f"{note.uri}: {' '.join(str(error).split())}")
    return AsOne.by_log(scan, "; ".join(reasons) or None)


def _rank(note: NotedTable, view: str | None) -> tuple[bool, bool]:
    """Which table is tried first: one of the view that is read, and an archive last."""
    return note.view != view, note.archive


def _joined(log: LogDirectory, scan: Scan, formats: Mapping[str, str] | None, table: TableFormat, now_ms: int) -> AsOne:
    """The scan and the table as one. Raises _Unfit, and errors of the table."""
    before = next(table.positions(), None)
    settings = table.settings
    if before is None or settings is None:
        raise _Unfit(Reason.NO_POSITION)
    newest = scan.snapshot
    if before.version is not None and before.version > newest.version:  # a run came in between
        newest = log.snapshot(newest.topic)
        scan = Scan.of(scan.storage, newest, selection=scan.selection, decoders=scan.decoders)
    half = _half(scan, formats, table, settings, before)
    topic = topic_since(log, newest, before)
    why = what_happened(topic, before, now_ms, latest=settings.is_latest)
    is_view = scan.selection.view is not None
    # Rows below a log start are left out one by one. Of a key in several partitions, an older record may be the newest
    # that is left then.
    if why is not None and not (why == Reason.LOG_START and not (is_view and Eras.of(newest) is not None)):
        raise _Unfit(why)
    if not is_view and scan.selection.isolation != READ_COMMITTED and _has_aborts(newest):
        raise _Unfit("it lacks the records of aborted transactions: ask with isolation read_committed")
    tail = _tail(scan, half, before)
    joined = AsOne(scan, half, tail)
    if joined.across and half.is_latest and joined.has_tail and _is_outdone(scan, tail, before):
        raise _Unfit(Reason.SPREAD)
    return joined


def _half(
    scan: Scan,
    formats: Mapping[str, str] | None,
    table: TableFormat,
    settings: TableSettings,
    before: TablePositions,
) -> TableHalf:
    """The table's half of a scan, as far as the table alone says. Raises _Unfit."""
    facts = before.facts
    if facts is None:
        raise _Unfit("an earlier version of this package made it: make it again")
    is_typed = (formats or {}).get("key.format") is not None
    key_column = KEY_BYTES if is_typed else "key"
    is_latest = settings.is_latest
    _check_view(scan, is_latest=is_latest, is_typed=is_typed)
    _check_formats(formats or {}, settings.formats or {})
    _check_facts(scan.selection, facts, is_latest=is_latest)
    if table.partitioned_by not in ([], [DAY]) or not table.is_read_by_names():
        raise _Unfit("another program has changed its columns or its partitions")
    _check_columns(scan, table, [key_column] if is_latest else [])
    files = table.files()
    if any("://" in file.path or file.path.startswith("/") for file in files):
        raise _Unfit("files of it lie elsewhere")
    _check_floats(scan, files)
    # A table's run takes out what is below the log start; an archive's keeps it.
    cut_at = {} if settings.archive else before.log_starts
    log_starts = {
        number: start
        for number, (start, _) in scan.snapshot.offset_bounds().items()
        if start > cut_at.get(number, 0) and number in before.positions
    }
    # A condition costs each query the count by the files' own numbers of rows.
    starts = {number: start for number, start in log_starts.items() if _may_have_below(files, number, start)}
    timestamp_type = facts.timestamp_types[0] if facts.timestamp_types else 0
    return TableHalf(table, files, is_latest, starts, timestamp_type, key_column)


def _check_view(scan: Scan, *, is_latest: bool, is_typed: bool) -> None:
    """Raises _Unfit where a table of this view has not the records of the scan's. `is_typed`: its keys are."""
    is_view = scan.selection.view is not None
    if is_latest and not is_view:
        raise _Unfit("it has the newest record of each key alone")
    if is_view and not is_latest:
        _check_view_of_records(scan, is_typed=is_typed)


def _check_formats(formats: Mapping[str, str], of_table: Mapping[str, str]) -> None:
    """Raises _Unfit where the columns of a table do not mean what those of a query with these formats do."""
    query_formats = own_formats(formats)
    table_formats = {name: text for name, text in of_table.items() if name != UNDATED}
    if table_formats != query_formats:
        raise _Unfit(f"it was made {_as_words(table_formats)}, and the query is {_as_words(query_formats)}")
    if of_table.get(UNDATED, "").lower() == "null":
        raise _Unfit("a timestamp may be null in it that is none in the log")


def _check_facts(selection: Selection, facts: RowFacts, *, is_latest: bool) -> None:
    """Raises _Unfit where rows of a table are not what the log has now, or lack what a selection asks for."""
    if facts.has_older_columns:
        raise _Unfit("it has rows from before its columns changed: make it again")
    if facts.has_gone:
        raise _Unfit("the archive may have rows that left the topic by compaction, erasure or a restore")
    if is_latest and facts.has_passed_tombstones and selection.include_tombstones:
        raise _Unfit("it has no tombstones, and the view has some")
    if len(facts.timestamp_types) > 1:
        raise _Unfit("its records have timestamps of both types, which it does not tell apart")


def _check_floats(scan: Scan, files: Sequence[DataFile]) -> None:
    """Raises _Unfit where conditions on floats may pass over rows of these files that have NaN."""
    if any(file.may_hide_nan for file in files) and has_floats(scan.schema):
        raise _Unfit(
            "its files may have bounds of floats that leave NaN out: write them again by segments table … --optimize, "
            "or make an Iceberg table again"
        )


def _may_have_below(files: Sequence[DataFile], partition: int, offset: int) -> bool:
    """Whether files of a table may have rows of a partition below an offset."""
    for file in files:
        if file.bounds is None:
            return True
        first, last = file.bounds["partition"]
        if first <= partition <= last and file.bounds["offset"][0] < offset:
            return True
    return False


def _as_words(formats: Mapping[str, str]) -> str:
    return f"with {', '.join(f'{name}={text}' for name, text in sorted(formats.items()))}" if formats else "of bytes"


def _check_view_of_records(scan: Scan, *, is_typed: bool) -> None:
    """Raises _Unfit where the newest record of each key cannot be told by a table of all records."""
    if is_typed:
        raise _Unfit("it has no bytes of typed keys, by which the newest record of a key is found")
    if Eras.of(scan.snapshot) is not None:
        raise _Unfit(Reason.SPREAD)
    if not scan.selection.include_tombstones and scan.decoders:
        raise _Unfit("it does not tell tombstones from values that are read as null")


def _check_columns(scan: Scan, table: TableFormat, further: Sequence[str]) -> None:
    """Raises _Unfit where the table lacks a column of the scan, or has it with another type."""
    for field in scan.schema:
        if field.name in _OF_THE_LOG:
            continue
        if field.name not in table.schema.names:
            raise _Unfit(f"it has no column {field.name}")
        kind = table.schema.field(field.name).type
        if not _are_alike(kind, field.type):
            raise _Unfit(f"its column {field.name} is {kind}, and the topic's {field.type}")
    for name in further:
        if name not in table.schema.names:
            raise _Unfit(Reason.KEYLESS)


def _are_alike(first: pa.DataType, second: pa.DataType) -> bool:
    """Whether types are the same, but for the names of elements of lists and maps, and for views of bytes."""
    t = pa.types
    if t.is_binary_view(second):
        second = pa.binary()
    if t.is_struct(first) and t.is_struct(second):
        names = [[field.name for field in kind] for kind in (first, second)]
        return names[0] == names[1] and all(
            map(_are_alike, *([field.type for field in kind] for kind in (first, second)))
        )
    if t.is_list(first) and t.is_list(second):
        return _are_alike(first.value_type, second.value_type)
    if t.is_map(first) and t.is_map(second):
        return _are_alike(first.key_type, second.key_type) and _are_alike(first.item_type, second.item_type)
    return bool(first == second)


def _tail(scan: Scan, half: TableHalf, before: TablePositions) -> Scan:
    """The records of the scan behind the positions of a table."""
    selection = scan.selection
    if selection.view is not None and not half.is_latest:  # a tombstone outdoes rows of the half
        selection = replace(selection, include_tombstones=True)
    offsets = {
        number: tuple((max(start, before.end(number)), end) for start, end in ranges)
        for number, ranges in scan.offsets.items()
    }
    return replace(scan, offsets=offsets, selection=selection)


def _has_aborts(snapshot: Snapshot) -> bool:
    """Whether any transaction was aborted. The index of its marker's segment lists it, wherever its records are: it
    takes a read of that file to know that they all follow the positions.
    """
    return (pc.max(snapshot.live.column("txn_index_bytes")).as_py() or 0) > 0


def _is_outdone(scan: Scan, tail: Scan, before: TablePositions) -> bool:
    """Whether a table's record may be newer than one of the tail with its key, which is in another partition."""
    ranked = Selection(Eras.RANKED, tail.selection.isolation, Selection.LATEST_VIEW)
    changed = Scan(tail.storage, tail.snapshot, tail.offsets, ranked).to_table().combine_chunks()
    eras = Eras.of(scan.snapshot)
    assert eras is not None
    parts = rival_parts(scan.storage, scan.snapshot, before, changed)
    return any(have_newer(scan.storage, eras, changed, [part]) for part in parts)
