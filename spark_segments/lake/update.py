"""An update of a table: planned (table_plan.py), its files written (rows.py), and a commit of the table names them.

Each commit says in which topic, and up to which offsets, so that an update that is killed, repeated or run beside
another leaves the table as a single update would.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED
from spark_segments.errors import InvalidOptionError, LogDirError, StorageError
from spark_segments.execution import in_bins
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.lake.columns import check_columns
from spark_segments.lake.erased import ErasedKeys, other_keys
from spark_segments.lake.request import TableRequest, check_same
from spark_segments.lake.rows import (
    TableTarget,
    Written,
    count_records,
    have_newer,
    may_be_undated,
    sift_rows,
    write_rows,
)
from spark_segments.lake.rules import OtherKeys, Rule, TypedKeys
from spark_segments.lake.since import PART_BYTES, commit_id_of, rival_parts, topic_since
from spark_segments.lake.table_format import (
    DAY,
    KEY_BYTES,
    DataFile,
    RowFacts,
    TableCommit,
    TableFormat,
    TablePositions,
    Tables,
)
from spark_segments.lake.table_plan import TAKES_ROWS, TablePlan, TableSince, plan_table
from spark_segments.lake.topic_columns import COLUMNS, TopicColumns
from spark_segments.lake.truncates import Truncates
from spark_segments.log import Eras, LogDirectory, Report, Scan, ScanPart, Selection, Snapshot
from spark_segments.storage import Storage
from spark_segments.values.batches import FormatColumns, FormatDecoders
from spark_segments.values.typed import TypedColumns

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]

_OF_FACTS = ("value", "timestampType")
"""Columns that are read for `RowFacts`, whatever the columns of the table."""

TRIES = 5
"""How often an update is tried when another commit comes first."""


@dataclass(frozen=True, slots=True)
class TableCall:
    """A call of `table`: what it asks for, the erased keys that an archive loses, what runs tasks, and the report."""

    log: LogDirectory
    request: TableRequest
    erased: ErasedKeys
    run: Run
    report: Report


@dataclass(frozen=True, slots=True)
class _Sifted:
    """Files that rows leave, files of the rows of them that stay, and how many stay by partition. `undecided`: the
    places of rows of which nobody knows whether they have to go; then no file was written.
    """

    removed: Sequence[DataFile] = ()
    rewritten: Sequence[DataFile] = ()
    remaining: Counter[int] = field(default_factory=Counter)
    undecided: Sequence[tuple[int, int]] = ()


class Update:
    """An update under way, planned as of `at_ms`. `table`: the current version (None: there is none yet). `before`: its
    positions. `scan`: of all that it may have. `columns`: of the topic. `schema`: of its files. `change`: of its
    columns, until that is committed. `positions`: after it has reached offsets, or all.
    """

    def __init__(self, call: TableCall, topic: str, storage: Storage, tables: Tables, at_ms: int) -> None:
        self.call = call
        self.storage = storage
        self.tables = tables
        self.table = tables.open(storage)
        self.settings = call.request.settings(topic, self.table, storage)
        snapshot = call.log.snapshot(topic)
        formats = {**(self.settings.formats or {}), **call.request.formats}
        self._may_be_undated = may_be_undated(formats)
        decoders = TypedColumns(call.log).decoders(snapshot, formats)
        self.scan = self._whole_scan(snapshot, decoders)
        self.columns = TopicColumns(self.scan.schema, decoders, self.settings)
        if self.table is None:
            has_key_bytes = self.settings.archive and self.columns.has_key_bytes
            self.settings = dataclasses.replace(self.settings, key_bytes=has_key_bytes)
        self.change = None if self.table is None else self.columns.change(self.table, call.request)
        self.schema = self._file_schema()
        self.by_day = bool(call.request.partition_by if self.table is None else self.table.partitioned_by)
        # Read once, and only as far as needed: a history may be thousands of commits.
        history = iter(()) if self.table is None else self.table.positions()
        self.before = next(history, None)
        self.plan = self._planned(snapshot, history, at_ms)
        commit_id = None if call.log.is_kafka else commit_id_of(call.log, snapshot.topic, snapshot.version) or ""
        self.positions = partial(TablePositions.of, snapshot, at_ms, commit_id)
        self.figures: Counter[str] = Counter()
        self.undated = 0
        self.truncates = Truncates()
        self.facts: RowFacts | None = None
        self.rows: Counter[int] = Counter()

    # Plan

    def _whole_scan(self, snapshot: Snapshot, decoders: FormatDecoders) -> Scan:
        """A scan of all that the table may have, with the columns of the topic that it has."""
        table = self.table
        names = COLUMNS if table is None else tuple(name for name in table.schema.names if name in RECORD_SCHEMA.names)
        selection = Selection(names, READ_COMMITTED, self.settings.view)
        return Scan.of(self.call.log.storage, snapshot, selection=selection, decoders=decoders)

    def _file_schema(self) -> pa.Schema:
        """The columns of the files that the update writes."""
        if self.change is not None:
            return self.change.schema
        if self.table is not None:
            return self.table.schema
        schema = self.columns.schema()
        check_columns(schema)
        return self.tables.fitting(schema)

    def _planned(self, snapshot: Snapshot, history: Iterator[TablePositions | None], at_ms: int) -> TablePlan:
        """The plan of the update. `history`: the positions of the commits before the last one."""
        log = self.call.log
        if self.call.erased.keys and not self.settings.archive:
            raise InvalidOptionError("Erased keys leave a table that is no archive by themselves", found="keys")
        topic = topic_since(log, snapshot, self.before)
        table = TableSince(
            self.settings,
            self.before,
            self._files(),
            lacks_key_bytes=self.columns.has_key_bytes and not self._has_column(KEY_BYTES),
            needs_new_files=self._needs_new_files,
            erased=self._erased(history) if self.settings.archive else (),
        )
        return plan_table(topic, table, at_ms)

    def _erased(self, earlier: Iterator[TablePositions | None]) -> Sequence[Rule]:
        """What keeps rows of an archive where keys of its topic were erased. Nothing: all rows stay. `earlier`: the
        positions of the commits before the last one.
        """
        erased = self.call.erased

        def rule() -> OtherKeys:
            key_type = self.schema.field("key").type
            return other_keys(erased, self.columns.key_decoder, key_type, has_bytes=self.settings.key_bytes)

        positions = itertools.chain([self.before], earlier)
        return erased.rules(self.scan.snapshot, positions, rule, self.call.report.warn)

    def _has_column(self, name: str) -> bool:
        """Whether the table has a column until now. One that is still to come has none."""
        return self.table is None or name in self.table.schema.names

    @property
    def _needs_new_files(self) -> bool:
        return self.change is not None and self.change.needs_new_files

    @property
    def _log_bounds(self) -> Mapping[int, tuple[int, int]]:
        return self.scan.snapshot.offset_bounds(READ_COMMITTED)

    def _scan(
        self, offsets: Mapping[int, tuple[int, int]], selection: Selection, decoders: FormatDecoders | None = None
    ) -> Scan:
        return Scan.of(self.scan.storage, self.scan.snapshot, offsets=offsets, selection=selection, decoders=decoders)

    # Execution

    def bring_up_to_date(self, wave_bytes: float) -> bool:
        """Brings the table up to date; False where another commit came first: then the update is begun again."""
        old_rows = self._leaving()
        self.facts = self._facts_of_remaining_rows()
        names = tuple(dict.fromkeys([*self.scan.selection.columns, *_OF_FACTS]))
        selection = dataclasses.replace(self.scan.selection, columns=names, include_keyless=self.settings.is_latest)
        scan = self._scan(self.plan.offsets, selection, self.columns.decoders)
        write = self._writing(scan.storage)
        # A part of a view is no view: the newest record of a key may be in a later wave.
        for tasks, ends in _waves(scan, math.inf if self.settings.is_latest else wave_bytes):
            written: list[Written] = self.call.run(write, tasks)
            keys = [task.keys for task in written if task.keys is not None]
            if keys:
                superseded = self._superseded(pa.concat_tables(keys).combine_chunks())
                if superseded is None:
                    # The files of this try stay, and no commit names them: the table's own VACUUM deletes them.
                    self._plan_anew()
                    return self.bring_up_to_date(wave_bytes)
                old_rows = superseded
            self._count_written(written)
            added = [file for task in written for file in task.files]
            positions = dataclasses.replace(self.positions(ends), facts=self.facts)
            commit = TableCommit(positions, [*old_rows.rewritten, *added], old_rows.removed, self.change)
            if not self._says_more(commit):
                break
            if not self._is_committed(commit):
                return False
            old_rows = _Sifted()  # only the first commit takes rows out: a second would take files out that are gone
        return True

    def _writing(self, log: Storage) -> Callable[[Sequence[ScanPart]], Written]:
        """The task function that writes records of the log as files of the table."""
        columns = FormatColumns(self.scan.selection.columns, self.columns.decoders)
        target = TableTarget(
            self.storage, self.schema, columns, self.by_day, self._may_be_undated, self.settings.is_latest
        )
        # Tombstones take rows out of the table: none of a latest table that is built from nothing.
        by_keys = self.settings.is_latest and not self.plan.is_whole
        return partial(write_rows, log, target, by_keys)

    def _count_written(self, written: Iterable[Written]) -> None:
        """Adds what tasks have written to the figures of the update."""
        for task in written:
            if self.facts is not None:
                self.facts = self.facts.joined(task.facts)
            self.rows.update(task.rows)
            self.undated += task.undated
            self.truncates = self.truncates.joined(task.truncates)

    def _plan_anew(self) -> None:
        """Plans to replace all rows of the table by those of the whole log."""
        self.plan = dataclasses.replace(self.plan, offsets=self._log_bounds, is_whole=True)

    def _says_more(self, commit: TableCommit) -> bool:
        """Whether a commit says anything that the table does not say. Others' clean-up may take all commits but the
        newest, so that the newest one has to say the positions.
        """
        if self.table is None or self.table.own_positions is None:
            return True
        has_changes = bool(commit.added or commit.removed or commit.columns)
        return has_changes or self.plan.why is not None or self.plan.has_new

    def _facts_of_remaining_rows(self) -> RowFacts | None:
        """The facts of the rows that stay in the table; None: an earlier version of this package noted none."""
        if self.plan.is_whole or self.before is None:
            return RowFacts()
        if self.before.facts is None:
            return None
        has_gone = self.settings.archive and self.plan.why in TAKES_ROWS
        return self.before.facts.joined(RowFacts(has_older_columns=self.change is not None, has_gone=has_gone))

    def _leaving(self) -> _Sifted:
        """What leaves the table because it has left the topic: all of its files, or those that lose rows."""
        sifted = self._sifted(self.plan.rules)
        if sifted.undecided:
            partition, offset = min(sifted.undecided)
            raise LogDirError(
                f"Rows of the archive may have an erased key: they are from before it had the column {KEY_BYTES}",
                path=self.storage.uri,
                expected="the bytes of their keys, since several keys may be read as one",
                found=f"{len(sifted.undecided):,} rows without, the first from partition {partition}, offset {offset}",
                hint="--alike takes these rows out, too, also those of other keys that are read alike",
            )
        # Fewer rows than records: the table lost some that a restore has put back, below its positions. Only a rebuild
        # finds those.
        if self.plan.counted is not None and +sifted.remaining != +self._count(self.plan.counted):
            self._plan_anew()
        if not self.plan.is_whole:
            return sifted
        files = self._files()
        self.figures["rows_removed"] = sum(file.rows or 0 for file in files)
        return _Sifted(removed=files)

    def _count(self, offsets: Mapping[int, tuple[int, int]]) -> Counter[int]:
        """The records that the log has at these offsets, by partition."""
        scan = self._scan(offsets, Selection(("offset",), READ_COMMITTED))
        counts = self.call.run(partial(count_records, scan.storage), _tasks(scan.parts(PART_BYTES)))
        return sum(counts, Counter())

    def _superseded(self, changed: pa.Table) -> _Sifted | None:
        """What leaves a latest table for `changed` records, the newest of their keys among those to add; None where
        nobody knows without reading the whole log.
        """
        if self._are_outdone(changed):
            return None
        sifted = self._without(changed)
        return None if sifted.undecided else sifted

    def _without(self, changed: pa.Table) -> _Sifted:
        """The files without rows of keys that have `changed`: of the same partition, or, where a key may be in several,
        of any.
        """
        across = Eras.of(self.scan.snapshot) is not None
        keys = changed.column("key").combine_chunks()
        partitions = changed.column("partition").combine_chunks()
        numbers = pc.unique(partitions).to_pylist()
        # A table that others took back may have rows from before it had the bytes of its keys.
        typed = TypedKeys(None) if self.columns.has_key_bytes else None
        rule = OtherKeys(keys, None if across else partitions, self.columns.has_key_bytes, typed)

        def may_have(file: DataFile) -> bool:
            if across or file.bounds is None:
                return True
            first, last = file.bounds["partition"]
            return any(first <= number <= last for number in numbers)

        return self._sifted([(file, [rule]) for file in self._files() if may_have(file)])

    def _sifted(self, tasks: Sequence[tuple[DataFile, Sequence[Rule]]]) -> _Sifted:
        """The files without the rows that no rule keeps."""
        rewrites_all = self._needs_new_files
        sift = partial(sift_rows, self.scan.storage, self.storage, self.schema, rewrites_all)
        results: list[Written] = self.call.run(sift, tasks)
        rewritten = [file for result in results for file in result.files]
        undecided = [place for result in results for place in result.undecided]
        if undecided:
            # No commit will name them, and without one nothing but the table's own VACUUM deletes them.
            for file in rewritten:
                self.storage.delete(file.path)
            return _Sifted(undecided=undecided)
        if results:
            self.figures["rows_removed"] += sum(result.dropped for result in results)
        removed = [file for (file, _), result in zip(tasks, results, strict=True) if result.dropped or rewrites_all]
        return _Sifted(removed, rewritten, sum((result.rows for result in results), Counter()))

    def _files(self) -> list[DataFile]:
        return [] if self.table is None else self.table.files()

    def _are_outdone(self, changed: pa.Table) -> bool:
        """Whether records that the table has reached are newer than some of the `changed` ones, in other partitions."""
        snapshot = self.scan.snapshot
        eras = Eras.of(snapshot)
        if eras is None or self.before is None:
            return False
        parts = rival_parts(self.scan.storage, snapshot, self.before, changed)
        return any(self.call.run(partial(have_newer, self.scan.storage, eras, changed), _tasks(parts)))

    # Commit

    def _is_committed(self, commit: TableCommit) -> bool:
        """Whether the table has the positions and the files of the commit now. Another program's commit is no hindrance
        if it changes neither the positions nor the files to remove.
        """
        current = self.table
        if current is None:
            current = self._created()
            # Another process has created the table at the same time, and has filled it: its records would come twice.
            if next(current.positions(), None) is not None:
                return False
        for _ in range(TRIES):
            has_committed = current.commit(commit)
            latest = self.tables.open(self.storage)
            if latest is None:
                return False
            positions = next(latest.positions(), None)
            # The reply to this commit may have been lost. Another try would add its rows a second time.
            if has_committed or positions == commit.positions:
                self._settle(latest, commit)
                return True
            if positions != self.before or not _still_fits(commit, current, latest):
                return False
            current = latest
        return False

    def _settle(self, table: TableFormat, commit: TableCommit) -> None:
        """Goes on from the version that has the commit."""
        try:
            table.tidy()
        except StorageError as error:  # the commit stands
            self.call.report.warn(str(error))
        self.table = table
        self.before = commit.positions
        self.change = None
        self.figures.update(files_added=len(commit.added), files_removed=len(commit.removed))
        self.figures["rows_added"] = sum(self.rows.values())  # rewritten files have rows of before, too

    def _created(self) -> TableFormat:
        """The table without rows. Raises InvalidOptionError where another process has made another one meanwhile."""
        self.tables.create(self.storage, self.schema, self.by_day, self.settings)
        table = self.tables.open(self.storage)
        assert table is not None
        check_same(self.storage, (table.settings, table.partitioned_by), (self.settings, [DAY] if self.by_day else []))
        return table

    def note(self, topic: str) -> None:
        """Adds the lines of what was added, and what became of the table, to the report."""
        report = self.call.report
        for number, (start, end) in sorted(self.plan.offsets.items()):
            if start < end:
                rows = self.rows[number]
                report.add(topic, number, "append", records_in=rows, records_out=rows, start=start, end=end)
        for number, (start, end) in sorted(self.plan.missed.items()):
            report.warn(f"{topic}-{number}: offsets {start} to {end - 1} left the topic before the archive had them")
        if self.undated:
            years = "are outside the years 1 to 9999, and null in the table"
            report.warn(f"{topic}: the timestamps of {self.undated:,} records {years}")
        for warning in self.truncates.warnings(topic, self._log_bounds):
            report.warn(warning)
        state: dict[str, Any] = {"version": None, "rows": None}
        if self.table is not None:
            state = {"version": self.table.version, "rows": sum(file.rows or 0 for file in self.table.files())}
        report.details[topic] = state | {"why": self.plan.why} | dict(self.figures)


def _still_fits(commit: TableCommit, before: TableFormat, latest: TableFormat) -> bool:
    """Whether a commit that was made for one version can follow another: no file that it removes is gone, and its files
    have the columns and the partitions of that version.
    """
    gone = {file.path for file in commit.removed} - {file.path for file in latest.files()}
    return not gone and (latest.schema, latest.partitioned_by) == (before.schema, before.partitioned_by)


def _tasks(parts: Iterable[ScanPart]) -> list[list[ScanPart]]:
    """The parts as tasks, each a file or a few: neighbours share one, however many partitions there are."""
    return list(
        in_bins(parts, lambda part: part.cost_bytes, lambda _, total, part: total + part.cost_bytes > PART_BYTES)
    )


def _waves(scan: Scan, most_bytes: float) -> Iterator[tuple[list[list[ScanPart]], Mapping[int, int] | None]]:
    """(tasks that are committed together, the offsets that the table has reached then: None for all that there are).
    At least one, which may be empty.

    Parts of one segment have the same offsets, and only a whole segment is a place to stop.
    """
    ends = {number: ranges[0][0] for number, ranges in scan.offsets.items()}

    def begins(wave: list[list[ScanPart]], total: int, task: list[ScanPart]) -> bool:
        return total >= most_bytes and _place(wave[-1][-1]) != _place(task[0])

    tasks = _tasks(scan.parts(PART_BYTES))
    waves = list(in_bins(tasks, lambda task: sum(part.cost_bytes for part in task), begins)) or [[]]
    for wave in waves[:-1]:
        ends |= dict(map(_place, itertools.chain.from_iterable(wave)))
        yield wave, dict(ends)
    yield waves[-1], None


def _place(part: ScanPart) -> tuple[int, int]:
    return part.partition, part.end_offset
