"""An update of a table: planned (plan.py), its files written (rows.py), and a commit of the table's format names them.

Each commit says in which topic, and up to which offsets, so that an update that is killed, repeated or run beside
another leaves the table as a single update would.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED, topic_config
from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    StorageError,
)
from spark_segments.execution import in_bins
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.lake.columns import check_columns, columns_of_both, lost_field
from spark_segments.lake.erased import ErasedKeys, other_keys
from spark_segments.lake.plan import TopicSince, plan_table, rival_offsets
from spark_segments.lake.request import TableRequest, check_same
from spark_segments.lake.rows import UNDATED, Written, count_records, have_newer, sift_rows, write_rows
from spark_segments.lake.rules import PLACE, OtherKeys, Rule, TypedKeys
from spark_segments.lake.table_format import (
    DAY,
    KEY_BYTES,
    DataFile,
    NewColumns,
    TableCommit,
    TableFormat,
    TablePositions,
    Tables,
)
from spark_segments.log import (
    Eras,
    LatestPart,
    LogDirectory,
    Report,
    Scan,
    ScanPart,
    Selection,
    Snapshot,
)
from spark_segments.storage import Storage
from spark_segments.values.batches import Decoder, FormatColumns
from spark_segments.values.options import FAIL, NULL
from spark_segments.values.typed import TypedColumns

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
"""Columns of a table, as a read of the topic has them. Columns of undecodable bytes and `day` come behind them."""

OWN_COLUMNS = (*COLUMNS, KEY_BYTES)

TRIES = 5
"""How often an update is tried when another commit comes first."""

PART_BYTES = 128 << 20
"""About how large a part of a scan is, as by spark.sql.files.maxPartitionBytes."""
"""What a task reads of the log."""

_THREADS = 16  # a commit is a small file to read


@dataclass(frozen=True, slots=True)
class TableCall:
    """A call of `table`: what it asks for, the erased keys that an archive loses, what runs tasks, and the report."""

    log: LogDirectory
    request: TableRequest
    erased: ErasedKeys
    run: Run
    report: Report


def _may_be_null(formats: Mapping[str, str]) -> bool:
    """Whether a timestamp that a table cannot have becomes null, by the option timestamp.errors."""
    errors = formats.get(UNDATED, FAIL).lower()
    if errors not in (FAIL, NULL):
        raise InvalidOptionError(f"Option {UNDATED} has an unknown value", expected=f"{FAIL} or {NULL}", found=errors)
    return errors == NULL


@dataclass(frozen=True, slots=True)
class _Sifted:
    """Files that rows leave, files of the rows of them that stay, and how many stay by partition. `undecided`: the
    places of rows of which nobody knows whether they have to go; then no file was written.
    """

    removed: Sequence[DataFile]
    made: Sequence[DataFile]
    kept: Counter[int]
    undecided: Sequence[tuple[int, int]] = ()


class Update:
    """An update under way, planned as of `at_ms`. `table`: the current version (None: there is none yet). `before`: its
    positions. `scan`: of all that it may have. `schema`: of its files. `columns`: the change of its columns, until that
    is committed. `positions`: after it has reached offsets, or all.
    """

    def __init__(self, call: TableCall, topic: str, storage: Storage, tables: Tables, at_ms: int) -> None:
        self.call, self.storage, self.tables = call, storage, tables
        self.table = there = tables.open(storage)
        log, self.settings = call.log, call.request.settings(topic, there, storage)
        snapshot = log.snapshot(topic)
        formats = {**(self.settings.formats or {}), **call.request.formats}
        self._may_be_undated = _may_be_null(formats)
        self.decoders = TypedColumns(log).decoders(snapshot, formats)
        names = COLUMNS if there is None else tuple(name for name in there.schema.names if name in RECORD_SCHEMA.names)
        selection = Selection(names, READ_COMMITTED, self.settings.view)
        self.scan = Scan.of(log.storage, snapshot, selection=selection, decoders=self.decoders)
        if there is None:
            self.settings = dataclasses.replace(self.settings, key_bytes=self.settings.archive and self._has_key_bytes)
            columns = self._columns_of_topic()
            check_columns(columns)
            self.columns, self.schema = None, tables.fitting(columns)
        else:
            self.columns = self._new_columns(there)
            self.schema = there.schema if self.columns is None else self.columns.schema
        self.by_day = bool(call.request.partition_by if there is None else there.partitioned_by)
        history = iter(()) if there is None else there.positions()
        self.before = next(history, None)
        if call.erased.keys and not self.settings.archive:
            raise InvalidOptionError("Erased keys leave a table that is no archive by themselves", found="keys")
        self.plan = plan_table(
            TopicSince(
                log.storage,
                snapshot,
                topic_config(snapshot.config, log.defaults),
                _operations(log, snapshot, self.before),
            ),
            self.settings,
            self.before,
            self._files(),
            at_ms,
            lacks_key_bytes=self._has_key_bytes and there is not None and KEY_BYTES not in there.schema.names,
            needs_new_files=self.columns is not None and self.columns.needs_new_files,
            erased=self._erased(history) if self.settings.archive else (),
        )
        commit_id = None if log.is_kafka else _commit_id(log, snapshot.topic, snapshot.version) or ""
        self.positions = partial(TablePositions.of, snapshot, at_ms, commit_id)
        self.figures: Counter[str] = Counter()
        self.undated = 0
        self.rows: Counter[int] = Counter()

    # Plan

    def _columns_of_topic(self) -> pa.Schema:
        """The columns that a table of the topic has."""
        columns = self.scan.schema
        if not self._has_key_bytes:
            return columns
        if KEY_BYTES in columns.names:
            raise InvalidOptionError(f"A table has {KEY_BYTES} of its own", hint="Give key.raw.column another name")
        return columns.append(pa.field(KEY_BYTES, pa.binary()))

    def _new_columns(self, there: TableFormat) -> NewColumns | None:
        """The change of the table's columns; None: they stay. Raises InvalidOptionError for columns that it cannot
        have, and for options under which it would lose a field.
        """
        self._check_columns(there)
        schema, formats = self._columns_of_topic(), self.call.request.remembered(self.settings.formats)
        if formats != self.settings.formats and (lost := lost_field(there.schema, schema)) is not None:
            check_same(
                self.storage, f"a table with the field {lost}", f"{self.call.request.formats}, where it is not read"
            )
        both = columns_of_both(there.schema, schema, self.storage.uri)
        settings = dataclasses.replace(self.settings, formats=formats)
        if both == there.schema:
            are_same = formats == (self.settings.formats or {})
            return None if are_same else NewColumns(there.schema, settings, needs_new_files=False)
        check_columns(both, self.storage.uri)
        return there.new_columns(both, settings)

    def _check_columns(self, there: TableFormat) -> None:
        """Raises LogDirError where another program has taken a column away that this one reads or writes, or has added
        one that wants a value.
        """
        columns = self.scan.schema
        changes = [
            f"{name} became {new}" for name, new in there.renamed().items() if name.partition(".")[0] in OWN_COLUMNS
        ]
        changes += [f"{name} is gone" for name in ("key", *PLACE, "timestamp") if name not in there.schema.names]
        for field in there.schema:
            is_ours = field.name in columns.names and not columns.field(field.name).nullable
            if not (field.nullable or is_ours):
                changes.append(f"{field.name} wants a value in each row")
        if changes:
            raise LogDirError(
                "Another program has changed the columns of the table",
                path=self.storage.uri,
                expected="the columns that segments table made, and others that may be null",
                found="; ".join(changes),
                hint="Take the change back, or make another table",
            )

    def _erased(self, earlier: Iterator[TablePositions | None]) -> Sequence[Rule]:
        """What keeps rows of an archive where keys of its topic were erased. Nothing: all rows stay. `earlier`: the
        positions of the commits before the last one.
        """
        erased, settings = self.call.erased, self.settings

        def rule() -> OtherKeys:
            key_type = self.schema.field("key").type
            return other_keys(erased, self._key_decoder, key_type, has_bytes=settings.key_bytes)

        positions = itertools.chain([self.before], earlier)
        return erased.rules(self.scan.snapshot, positions, rule, self.call.report.warn)

    @property
    def _key_decoder(self) -> Decoder | None:
        """What decodes keys; None: they are bytes."""
        return next((decoder for decoder in self.decoders if decoder.chosen.column == "key"), None)

    @property
    def _has_key_bytes(self) -> bool:
        """Whether the table is one that has the bytes of typed keys."""
        by_keys = self.settings.archive or self.settings.view == Selection.LATEST_VIEW
        return by_keys and self._key_decoder is not None

    @property
    def _whole_log(self) -> Mapping[int, tuple[int, int]]:
        return self.scan.snapshot.offset_bounds(READ_COMMITTED)

    def _scan(self, offsets: Mapping[int, tuple[int, int]], selection: Selection, decoders: Any = None) -> Scan:
        return Scan.of(self.scan.storage, self.scan.snapshot, offsets=offsets, selection=selection, decoders=decoders)

    # Execution

    def bring_up_to_date(self, wave_bytes: float) -> bool:
        """Brings the table up to date; False where another commit came first: then the update is begun again."""
        removed, made = self._leaving()
        plan, latest = self.plan, self.settings.view == Selection.LATEST_VIEW
        by_keys = latest and not plan.is_whole
        selection = dataclasses.replace(self.scan.selection, include_tombstones=by_keys or not latest)
        scan = self._scan(plan.offsets, selection, self.decoders)
        place = scan.storage, self.storage, FormatColumns(scan.selection.columns, self.decoders), self.schema
        write = partial(write_rows, *place, self.by_day, by_keys, self._may_be_undated)
        for tasks, ends in _waves(scan, math.inf if latest else wave_bytes):  # a part of a view is no view
            written: list[Written] = self.call.run(write, tasks)
            added = [file for task in written for file in task.files]
            if keys := [task.keys for task in written if task.keys is not None]:
                changed = pa.concat_tables(keys).combine_chunks()
                sifted = None if self._are_outdone(changed) else self._without(changed)
                if sifted is None or sifted.undecided:
                    self.plan = dataclasses.replace(plan, offsets=self._whole_log, is_whole=True)
                    return self.bring_up_to_date(wave_bytes)
                removed, made = sifted.removed, sifted.made
            for task in written:
                self.rows.update(task.rows)
                self.undated += task.undated
            # Others' clean-up may take all commits but the newest: that one is to say the positions.
            is_said = self.table is not None and self.table.said is not None
            if is_said and not (added or removed or made or plan.why or plan.has_new or self.columns):
                break
            if not self._committed(TableCommit(self.positions(ends), [*made, *added], removed, self.columns)):
                return False
            removed, made = [], []
        return True

    def _leaving(self) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """(files that leave the table, files that come in their place) for what has left the topic."""
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
        if self.plan.counted is not None:
            selection = Selection(("offset",), READ_COMMITTED)
            scan = self._scan(self.plan.counted, selection)
            counts = self.call.run(partial(count_records, scan.storage), _tasks(scan.parts(PART_BYTES)))
            if +sifted.kept != +sum(counts, Counter()):
                self.plan = dataclasses.replace(self.plan, offsets=self._whole_log, is_whole=True)
        if not self.plan.is_whole:
            return sifted.removed, sifted.made
        files = self._files()
        self.figures["rows_removed"] = sum(file.rows or 0 for file in files)
        return files, []

    def _without(self, changed: pa.Table) -> _Sifted:
        """The files without rows of keys that have `changed`: of the same partition, or, where a key may be in several,
        of any.
        """
        across = Eras.of(self.scan.snapshot) is not None
        keys, partitions = (changed.column(name).combine_chunks() for name in ("key", "partition"))
        numbers = pc.unique(partitions).to_pylist()
        # A table that others took back may have rows from before it had the bytes of its keys.
        typed = TypedKeys(None) if self._has_key_bytes else None
        rule = OtherKeys(keys, None if across else partitions, self._has_key_bytes, typed)

        def may_have(file: DataFile) -> bool:
            first, last = (0, 0) if file.bounds is None else file.bounds["partition"]
            return across or file.bounds is None or any(first <= number <= last for number in numbers)

        return self._sifted([(file, [rule]) for file in self._files() if may_have(file)])

    def _sifted(self, tasks: Sequence[tuple[DataFile, Sequence[Rule]]]) -> _Sifted:
        """The files without the rows that no rule keeps."""
        anew = self.columns is not None and self.columns.needs_new_files
        sift = partial(sift_rows, self.scan.storage, self.storage, self.schema, anew)
        results: list[Written] = self.call.run(sift, tasks)
        made = [file for result in results for file in result.files]
        undecided = [place for result in results for place in result.undecided]
        if undecided:
            for file in made:
                self.storage.delete(file.path)
            return _Sifted([], [], Counter(), undecided)
        if results:
            self.figures["rows_removed"] += sum(result.dropped for result in results)
        removed = [file for (file, _), result in zip(tasks, results, strict=True) if result.dropped or anew]
        return _Sifted(removed, made, sum((result.rows for result in results), Counter()))

    def _files(self) -> list[DataFile]:
        return [] if self.table is None else self.table.files()

    def _are_outdone(self, changed: pa.Table) -> bool:
        """Whether records that the table has reached are newer than some of the `changed` ones, in other partitions."""
        snapshot, before = self.scan.snapshot, self.before
        eras = Eras.of(snapshot)
        if eras is None or before is None:
            return False
        offsets = rival_offsets(snapshot, before, eras.ranks(changed))
        ranked = Selection(Eras.RANKED, READ_COMMITTED, Selection.LATEST_VIEW)
        # Not `Scan.parts`: these are the records that the table has reached, and their partitions are compared here.
        parts = LatestPart.planned(snapshot, self._scan(offsets, ranked).offsets, ranked, PART_BYTES)
        return any(self.call.run(partial(have_newer, self.scan.storage, eras, changed), _tasks(parts)))

    # Commit

    def _committed(self, commit: TableCommit) -> bool:
        """Whether the table has the positions and the files of the commit now. Another program's commit is no hindrance
        if it changes neither the positions nor the files to remove.
        """
        current = self.table
        if current is None:
            current = self._created()
            if next(current.positions(), None) is not None:  # another process has made it, and has filled it
                return False
        for _ in range(TRIES):
            has_committed = current.commit(commit)
            latest = self.tables.open(self.storage)
            if latest is None:
                return False
            there = next(latest.positions(), None)
            if has_committed or there == commit.positions:  # the reply to this commit may have been lost
                try:
                    latest.tidy()
                except StorageError as error:  # the commit stands
                    self.call.report.warn(str(error))
                self.table, self.before, self.columns = latest, commit.positions, None
                self.figures.update(files_added=len(commit.added), files_removed=len(commit.removed))
                self.figures["rows_added"] = sum(self.rows.values())  # rewritten files have rows of before, too
                return True
            gone = {file.path for file in commit.removed} - {file.path for file in latest.files()}
            is_changed = (latest.schema, latest.partitioned_by) != (current.schema, current.partitioned_by)
            if there != self.before or gone or is_changed:
                return False
            current = latest
        return False

    def _created(self) -> TableFormat:
        """The table without rows. Raises InvalidOptionError where another process has made another one meanwhile."""
        self.tables.create(self.storage, self.schema, self.by_day, self.settings)
        table = self.tables.open(self.storage)
        assert table is not None
        made = self.settings, [DAY] if self.by_day else []
        check_same(self.storage, (table.settings, table.partitioned_by), made)
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
        state: dict[str, Any] = {"version": None, "rows": None}
        if self.table is not None:
            state = {"version": self.table.version, "rows": sum(file.rows or 0 for file in self.table.files())}
        report.details[topic] = state | {"why": self.plan.why} | dict(self.figures)


def _operations(log: LogDirectory, snapshot: Snapshot, before: TablePositions | None) -> set[str] | None:
    """The operations of the topic's commits since the table was in step; None where one is not known."""
    if before is None or before.version is None or before.topic_id != snapshot.topic_id:
        return None
    # The follower that was promoted may have at 3 what its former leader has at 7:
    #
    #   leader     0 … 4 5 6:compact 7        the table names 5
    #   follower   0 1 2 3:promote 4 5 6      and has the compaction at 2, so that no commit after 5 says so
    if not before.is_of_manifest(snapshot, _commit_id(log, snapshot.topic, before.version)):
        return None
    versions = range(before.version + 1, snapshot.version + 1)
    with ThreadPoolExecutor(_THREADS) as pool:
        commits = [*pool.map(log.manifest(snapshot.topic).facts, versions)]
    operations = {commit.operation for commit in commits if commit is not None}
    # Vacuum takes commits file.delete.delay.ms after the next one: then nobody knows what they were.
    return None if None in commits else operations


def _commit_id(log: LogDirectory, topic: str, version: int) -> str | None:
    facts = log.manifest(topic).facts(version)
    return None if facts is None else facts.commit_id


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
