"""A table beside a topic: brought to what may be read of the topic now, by one commit or a few.

A table has either every record, as it was appended, or the newest record of each key (the view latest). Each commit
says in which topic, and up to which offsets, so an update that is killed, repeated or run beside another leaves the
table as a single update would. An archive keeps what the topic loses.

An update is planned (plan.py), its files are written (rows.py), and a commit of the table's format names them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import READ_COMMITTED, topic_config
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    SegmentsError,
    StorageError,
    UnknownTopicError,
)
from spark_segments.execution import in_bins, run_tasks, task_slots
from spark_segments.extensions import observed, typed_columns
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.lake.columns import lost_field
from spark_segments.lake.delta_table import TableBeside
from spark_segments.lake.iceberg_table import IcebergTables
from spark_segments.lake.plan import TablePlan, TopicSince, plan_table, rival_offsets
from spark_segments.lake.rows import (
    FromOffsets,
    OtherKeys,
    Rule,
    Written,
    count_records,
    have_newer,
    sift_rows,
    write_rows,
)
from spark_segments.lake.table_format import (
    PARTITION_COLUMNS,
    DataFile,
    NewColumns,
    TableFormat,
    TablePositions,
    Tables,
    TableSettings,
)
from spark_segments.log import (
    Eras,
    Erasure,
    LatestPart,
    LogDirectory,
    Part,
    Report,
    Scan,
    Selection,
    Snapshot,
)
from spark_segments.progress import Progress
from spark_segments.quantities import Time, moment_ms
from spark_segments.storage import Storage
from spark_segments.values.batches import Columns, decode_batch
from spark_segments.values.column_types import recast
from spark_segments.values.options import REGISTRY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.log.reading.across import ViewPart

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]

DELTA, ICEBERG = FORMATS = ("delta", "iceberg")

TOPIC = "{topic}"
"""In a table's address: the name of the topic."""

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
"""Columns of a table, as a read of the topic has them. Columns of undecodable bytes and `day` come behind them."""

TRIES = 5
"""How often an update is tried when another commit comes first."""

PART_BYTES = Part.DEFAULT_BYTES
"""What a task reads of the log."""

WAVE_BYTES_A_SLOT = 1 << 30
"""Records are committed once so many bytes of the log are written for each task slot. A job that is killed loses the
work of its last wave only."""

_THREADS = 16  # a commit is a small file to read


@observed("table")
def table(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    table_uri: str,
    view: str | None = None,
    formats: Mapping[str, str] | None = None,
    partition_by: str | None = None,
    archive: bool | None = None,
    keys: Sequence[bytes] = (),
    forget: bool = False,
    table_options: Mapping[str, str] | None = None,
    existing: bool = False,
    table_format: str | None = None,
    catalog: str | None = None,
) -> Report:
    """Brings the table at `table_uri` to what may be read of the topic now, and makes it where there is none.

    Columns: key, value, headers, partition, offset, timestamp. `formats`, options such as value.format, make key and
    value typed. `partition_by` "day": a column `day` of the timestamp's day, by UTC. The table remembers how it was
    made: a later call needs neither these options nor `view` and `archive`, and raises InvalidOptionError for others.

    A plain table has each record that may be read: what retention, compaction, delete_records, an erasure or a restore
    takes out of the topic leaves the table with the next call. With `archive` it keeps what leaves by all of these but
    an erasure: after one a call needs the erased `keys`, whose records of before the erasure leave the table, too. An
    erasure does not find records that have left the topic before it: with `forget` every row of the `keys` leaves the
    archive that the topic no longer has. The `view` "latest" has the newest record of each key, without keys that a
    tombstone deleted: other rows than those appended. It needs a call at least every delete.retention.ms, or it is
    rebuilt.

    Other programs may tidy the table, and restore an earlier version of it: the next call brings what came after that.
    Any other change of its rows is an error, until the table is restored to the version before.

    `table_format`: "delta" or "iceberg"; by default that of the table, and delta for a new one. Iceberg tables are in
    the `catalog` of pyiceberg's configuration, by the last two names of their address, or in the SQLite catalog
    iceberg.sqlite beside them. A later call needs the catalog, too.

    With several topics `table_uri` has {topic} in it. `existing`: topics without a table there are passed over.
    `spark`: its executors read and write. A commit holds what its partitions' lines say, and a plain table gets more
    than one commit where much is to be done. Delta's own VACUUM deletes files of a commit that was never made.
    `table_options`: the table's storage options, by default the log directory's.

    A report's line has the offsets [start, end) that were added. `details` has by topic: `version` of the table, `why`
    its rows were looked at, files_added, files_removed, rows_added, rows_removed, rows. A topic that fails has a
    line, as in `Report`: CommitConflictError where other commits to the table come first every time.
    """
    names = LogDirectory.selected(log.topics(), topics)
    for name in names:
        if name not in log.topics():
            raise UnknownTopicError(f"There is no topic {name}", path=log.uri)
    if TOPIC not in table_uri and len(names) != 1:
        raise InvalidOptionError(
            "A table is of one topic", expected=f"one topic, or {TOPIC} in the address", found=names
        )
    if view not in (None, Selection.LATEST_VIEW) or (view and archive):
        expected = f"the view {Selection.LATEST_VIEW}, or archive, or neither"
        raise InvalidOptionError("No such table", expected=expected, found=view)
    if partition_by not in (None, *PARTITION_COLUMNS):
        raise InvalidOptionError("partition_by", expected=" or ".join(PARTITION_COLUMNS), found=partition_by)
    if table_format not in (None, *FORMATS) or (catalog and table_format == DELTA):
        expected = f"{' or '.join(FORMATS)}, and a catalog with {ICEBERG} alone"
        raise InvalidOptionError("table_format", expected=expected, found=table_format)
    if forget and not keys:
        raise InvalidOptionError("Which keys?", expected="keys that an archive is to forget", found="none")
    options = dict(log.storage.storage_options if table_options is None else table_options)
    asked = _Asked(view, archive, dict(formats or {}), partition_by, keys, forget)
    report = Report("table", dry_run)
    run = partial(run_tasks, spark=spark, progress=progress)
    for name in names:
        storage = Storage(table_uri.replace(TOPIC, name), options)
        LogDirectory.check_apart(storage)
        try:
            tables = _tables(storage, table_format, catalog)
            if existing and tables.open(storage) is None:
                continue
            for _ in range(TRIES):
                at_ms = log.storage.now_ms() if now_ms is None else moment_ms(now_ms)
                update = _planned(log, name, storage, tables, asked, at_ms, report, run)
                if dry_run or update.in_step(WAVE_BYTES_A_SLOT * task_slots(spark)):
                    update.note(name)
                    break
            else:
                raise CommitConflictError(
                    "Other commits to the table keep coming first", path=storage.uri, hint="Run the job again"
                )
        except SegmentsError as error:
            if isinstance(error, InvalidOptionError) and len(names) == 1:
                raise
            report.fail(name, None, error)
    return report.finish()


@dataclass(frozen=True, slots=True)
class _Asked:
    """The caller's settings of the table (None: unchanged), and the erased keys that an archive loses, or forgets."""

    view: str | None
    archive: bool | None
    formats: Mapping[str, str]
    partition_by: str | None
    keys: Sequence[bytes]
    forget: bool

    @property
    def _own_formats(self) -> dict[str, str]:
        return {name: text for name, text in self.formats.items() if not name.startswith(f"{REGISTRY}.")}

    def remembered(self, settings: TableSettings) -> TableSettings:
        """What a table of these settings remembers where its columns change."""
        return dataclasses.replace(settings, formats={**(settings.formats or {}), **self._own_formats})

    def settings(self, topic: str, table: TableFormat | None, storage: Storage) -> TableSettings:
        """What the table is, or is to be made as. Raises InvalidOptionError where it is something else."""
        if table is None:
            return TableSettings(topic, self.view, bool(self.archive), self._own_formats)
        settings = table.settings
        if settings is None:
            raise LogDirError("The table is none that is beside a topic", path=storage.uri, hint="Name another place")
        asked = {name: getattr(self, name) for name in ("view", "archive")}
        asked = {name: value for name, value in asked.items() if value is not None}
        _check_same(storage, settings, dataclasses.replace(settings, topic=topic, **asked))
        if self.partition_by not in (None, *table.partitioned_by):
            _check_same(storage, f"partitioned by {', '.join(table.partitioned_by) or 'nothing'}", self.partition_by)
        return settings


def _check_same(storage: Storage, there: object, wanted: object) -> None:
    if there != wanted:
        raise InvalidOptionError(
            "The table was made as another one",
            path=storage.uri,
            expected=str(there),
            found=str(wanted),
            hint="Leave these options out, or name another place",
        )


@dataclass(slots=True)
class _Update:
    """An update under way: the current table (None: there is none yet), its settings, the topic's offsets that it may
    have, the schema of its files, the change of its columns, its positions, and the plan. `position`: its positions
    after it has reached offsets, or all. `make` makes the table. `run` runs tasks.
    """

    storage: Storage
    tables: Tables
    table: TableFormat | None
    make: Callable[[], TableFormat]
    by_day: bool
    settings: TableSettings
    scan: Scan
    schema: pa.Schema
    columns: NewColumns | None
    before: TablePositions | None
    plan: TablePlan
    position: Callable[[Mapping[int, int] | None], TablePositions]
    run: Run
    report: Report
    figures: Counter[str] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)

    # Execution

    def in_step(self, wave_bytes: float) -> bool:
        """Brings the table in step; False where another commit came first: then the update is begun again."""
        removed, made = self._leaving()
        plan, latest = self.plan, self.settings.view == Selection.LATEST_VIEW
        by_keys = latest and not plan.is_whole
        selection = dataclasses.replace(self.scan.selection, include_tombstones=by_keys or not latest)
        scan = dataclasses.replace(self.scan, offsets=plan.offsets, selection=selection)
        place = scan.storage, self.storage, Columns(scan.selection.columns, scan.decoders), self.schema
        write = partial(write_rows, *place, self.by_day, by_keys)
        for tasks, ends in _waves(scan, math.inf if latest else wave_bytes):  # a part of a view is no view
            written: list[Written] = self.run(write, tasks)
            added = [file for task in written for file in task.files]
            if keys := [task.keys for task in written if task.keys is not None]:
                changed = pa.concat_tables(keys).combine_chunks()
                if self._are_outdone(changed):
                    self.plan = dataclasses.replace(plan, offsets=self.scan.offsets, is_whole=True)
                    return self.in_step(wave_bytes)
                removed, made = self._without(changed)
            for task in written:
                self.rows.update(task.rows)
            # Others' clean-up may take all commits but the newest: that one is to say the positions.
            is_said = self.table is not None and self.table.has_position
            if is_said and not (added or removed or made or plan.why or plan.has_new or self.columns):
                break
            if not self._committed(self.position(ends), [*made, *added], removed):
                return False
            removed, made = [], []
        return True

    def _leaving(self) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
        """(files that leave the table, files that come in their place) for what has left the topic."""
        removed, made, kept = self._sifted(self.plan.rules)
        if self.plan.counted is not None:
            selection = Selection(("offset",), READ_COMMITTED)
            scan = dataclasses.replace(self.scan, offsets=self.plan.counted, selection=selection, decoders=())
            counts = self.run(partial(count_records, scan.storage), _tasks(scan.parts(PART_BYTES)))
            if +kept != +sum(counts, Counter()):
                self.plan = dataclasses.replace(self.plan, offsets=self.scan.offsets, is_whole=True)
        if not self.plan.is_whole:
            return removed, made
        files = self._files()
        self.figures["rows_removed"] = sum(file.rows or 0 for file in files)
        return files, []

    def _without(self, changed: pa.Table) -> tuple[list[DataFile], list[DataFile]]:
        """(files that leave the table, files that come in their place) for rows of keys that have `changed`: of the
        same partition, or, where a key may be in several, of any.
        """
        across = Eras.of(self.scan.snapshot) is not None
        keys, partitions = (changed.column(name).combine_chunks() for name in ("key", "partition"))
        numbers, rule = pc.unique(partitions).to_pylist(), OtherKeys(keys, None if across else partitions)

        def may_have(file: DataFile) -> bool:
            first, last = (0, 0) if file.bounds is None else file.bounds["partition"]
            return across or file.bounds is None or any(first <= number <= last for number in numbers)

        return self._sifted([(file, [rule]) for file in self._files() if may_have(file)])[:2]

    def _sifted(
        self, tasks: Sequence[tuple[DataFile, Sequence[Rule]]]
    ) -> tuple[list[DataFile], list[DataFile], Counter[int]]:
        """(files that rows leave, files of the rows that stay of them, rows that stay by partition)"""
        anew = self.columns is not None and self.columns.needs_new_files
        sift = partial(sift_rows, self.scan.storage, self.storage, self.schema, anew)
        sifted: list[Written] = self.run(sift, tasks)
        if sifted:
            self.figures["rows_removed"] += sum(result.dropped for result in sifted)
        removed = [file for (file, _), result in zip(tasks, sifted, strict=True) if result.dropped or anew]
        return (
            removed,
            [file for result in sifted for file in result.files],
            sum((Counter(r.rows) for r in sifted), Counter()),
        )

    def _files(self) -> list[DataFile]:
        return [] if self.table is None else self.table.files()

    def _are_outdone(self, changed: pa.Table) -> bool:
        """Whether records that the table has reached are newer than some of the `changed` ones, in other partitions."""
        snapshot, before = self.scan.snapshot, self.before
        eras = Eras.of(snapshot)
        if eras is None or before is None:
            return False
        offsets = rival_offsets(snapshot, before, eras.ranks(changed))
        parts = LatestPart.planned(
            snapshot, offsets, Selection(Eras.RANKED, READ_COMMITTED, Selection.LATEST_VIEW), PART_BYTES
        )
        return any(self.run(partial(have_newer, self.scan.storage, eras, changed), _tasks(parts)))

    # Commit

    def _committed(self, position: TablePositions, added: Sequence[DataFile], removed: Sequence[DataFile]) -> bool:
        """Whether the table has the position and these files now. Another program's commit is no hindrance if it
        changes neither the position nor the files to remove.
        """
        current = self.table
        if current is None:
            current = self.make()
            if next(current.positions(), None) is not None:  # another process has made it, and has filled it
                return False
        for _ in range(TRIES):
            has_committed = current.commit(position, added, removed, self.columns)
            latest = self.tables.open(self.storage)
            if latest is None:
                return False
            there = next(latest.positions(), None)
            if has_committed or there == position:  # the reply to this commit may have been lost
                try:
                    latest.tidy()
                except StorageError as error:  # the commit stands
                    self.report.warn(str(error))
                self.table, self.before, self.columns = latest, position, None
                self.figures.update(files_added=len(added), files_removed=len(removed))
                self.figures["rows_added"] = sum(self.rows.values())  # rewritten files have rows of before, too
                return True
            gone = {file.path for file in removed} - {file.path for file in latest.files()}
            if there != self.before or gone or _form(latest) != _form(current):
                return False
            current = latest
        return False

    def note(self, topic: str) -> None:
        """Adds the lines of what was added, and what became of the table, to the self.report."""
        for number, (start, end) in sorted(self.plan.offsets.items()):
            if start < end:
                rows = self.rows[number]
                self.report.add(topic, number, "append", records_in=rows, records_out=rows, start=start, end=end)
        for number, (start, end) in sorted(self.plan.missed.items()):
            self.report.warn(
                f"{topic}-{number}: offsets {start} to {end - 1} left the topic before the archive had them"
            )
        state: dict[str, Any] = {"version": None, "rows": None}
        if self.table is not None:
            state = {"version": self.table.version, "rows": sum(file.rows or 0 for file in self.table.files())}
        self.report.details[topic] = state | {"why": self.plan.why} | dict(self.figures)


def _planned(
    log: LogDirectory,
    topic: str,
    storage: Storage,
    tables: Tables,
    asked: _Asked,
    at_ms: int,
    report: Report,
    run: Run,
) -> _Update:
    """The update as of now."""
    there = tables.open(storage)
    settings, snapshot = asked.settings(topic, there, storage), log.snapshot(topic)
    decoders = typed_columns(log).readers(snapshot, {**(settings.formats or {}), **asked.formats})
    names = COLUMNS if there is None else tuple(name for name in there.schema.names if name in RECORD_SCHEMA.names)
    selection = Selection(names, READ_COMMITTED, settings.view)
    scan = Scan(log.storage, snapshot, snapshot.offset_bounds(READ_COMMITTED), selection, decoders)
    schema, columns = scan.schema, None
    if there is None:
        schema = tables.fitting(schema)
    else:
        remembered = asked.remembered(settings)
        if remembered != settings and (lost := lost_field(there.schema, schema)) is not None:
            _check_same(storage, f"a table with the field {lost}", f"{dict(asked.formats)}, where it is not read")
        columns = there.new_columns(schema, remembered)
        schema = there.schema if columns is None else columns.schema

    def make() -> TableFormat:
        table = tables.create(storage, schema, asked.partition_by, settings)
        made = (settings, [asked.partition_by] if asked.partition_by else [])
        _check_same(storage, (table.settings, table.partitioned_by), made)  # another process may have made it
        return table

    by_day = bool(asked.partition_by if there is None else there.partitioned_by)
    history = iter(()) if there is None else there.positions()
    before = next(history, None)
    if asked.keys and not settings.archive:
        raise InvalidOptionError("Erased keys leave a table that is no archive by themselves", found="keys")
    plan = plan_table(
        TopicSince(snapshot, topic_config(snapshot.config, log.defaults), _operations(log, snapshot, before)),
        settings,
        before,
        [] if there is None else there.files(),
        at_ms,
        typed_key=any(decoder.chosen.column == "key" for decoder in decoders),
        needs_new_files=columns is not None and columns.needs_new_files,
        erased=_erased(scan, schema, before, history, asked, report) if settings.archive else (),
    )
    position = partial(TablePositions.of, snapshot, at_ms, None if log.is_kafka else snapshot.version)
    return _Update(
        storage, tables, there, make, by_day, settings, scan, schema, columns, before, plan, position, run, report
    )


def _tables(storage: Storage, table_format: str | None, catalog: str | None) -> Tables:
    """The tables among which the one at the storage is, or is to be made."""
    iceberg = IcebergTables(catalog)
    if catalog is None and table_format != ICEBERG:
        if not IcebergTables.have_own(storage):
            return TableBeside
        if table_format is not None:
            _check_same(storage, ICEBERG, table_format)
    elif iceberg.open(storage) is None and TableBeside.open(storage) is not None:
        _check_same(storage, DELTA, ICEBERG)
    return iceberg


def _form(table: TableFormat) -> tuple[pa.Schema, list[str]]:
    return table.schema, table.partitioned_by


def _operations(log: LogDirectory, snapshot: Snapshot, before: TablePositions | None) -> set[str | None] | None:
    """The operations of the topic's commits since the table was in step; None where one is not known."""
    if before is None or before.version is None or before.topic_id != snapshot.topic_id:
        return None
    read = log.manifest(snapshot.topic).log.operation
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            return {*pool.map(read, range(before.version + 1, snapshot.version + 1))}
        except FileNotFoundError:  # vacuum takes commits file.delete.delay.ms after the next one
            return None


def _erased(
    scan: Scan,
    schema: pa.Schema,
    before: TablePositions | None,
    earlier: Iterator[TablePositions | None],
    asked: _Asked,
    report: Report,
) -> Sequence[Rule]:
    """What keeps rows of an archive where keys of its topic were erased: other keys, and, unless it is to forget them,
    offsets that were appended after the last erasure. Nothing: all rows stay.
    """
    erasures = Erasure.of(scan.snapshot)
    since = -1 if before is None or before.version is None else before.version
    new = [erasure for erasure in erasures if erasure.version > since]
    if before is not None and new and not asked.keys:
        raise LogDirError(
            "Keys of the topic were erased, and only the topic forgot them",
            path=scan.storage.uri,
            expected="the erased keys, for the archive to lose them, too",
            found=f"erasures since: {'; '.join(map(str, new))}",
            hint="Name the keys: segments table … --key KEY",
        )
    if not asked.keys or before is None:
        return []
    batch = pa.record_batch({"key": pa.array(asked.keys, pa.binary())})
    decoders = [decoder for decoder in scan.decoders if decoder.chosen.column == "key"]
    keys = OtherKeys(recast(decode_batch(batch, decoders).column("key"), schema.field("key").type))
    if asked.forget:
        return [keys]
    if not new:
        kept = "the archive keeps what came after the last erasure. With --forget that goes, too"
        report.warn(f"No keys of topic {scan.snapshot.topic} were erased since the last run: {kept}")
    # What the archive had before the erasure was appended before it. What came in later was in the topic after it.
    for position in itertools.chain([before], earlier) if erasures else ():
        if position is None or position.version is None or position.version < erasures[-1].version:
            ends = {} if position is None else {number: position.end(number) for number in position.positions}
            return [keys, FromOffsets(ends)]
    return []  # the archive was made after the last erasure


def _tasks(parts: Iterable[Part | ViewPart]) -> list[list[Part | ViewPart]]:
    """The parts as tasks, each a file or a few: neighbours share one, however many partitions there are."""
    return list(
        in_bins(parts, lambda part: part.cost_bytes, lambda _, total, part: total + part.cost_bytes > PART_BYTES)
    )


def _waves(scan: Scan, most_bytes: float) -> Iterator[tuple[list[list[Part | ViewPart]], Mapping[int, int] | None]]:
    """(tasks that are committed together, the offsets that the table has reached then: None for all that there are).
    At least one, which may be empty.

    Parts of one segment have the same offsets, and only a whole segment is a place to stop.
    """
    ends = {number: start for number, (start, _) in scan.offsets.items()}

    def begins(wave: list[list[Part | ViewPart]], total: int, task: list[Part | ViewPart]) -> bool:
        return total >= most_bytes and _place(wave[-1][-1]) != _place(task[0])

    tasks = _tasks(scan.parts(PART_BYTES))
    waves = list(in_bins(tasks, lambda task: sum(part.cost_bytes for part in task), begins)) or [[]]
    for wave in waves[:-1]:
        ends |= dict(map(_place, itertools.chain.from_iterable(wave)))
        yield wave, dict(ends)
    yield waves[-1], None


def _place(part: Part | ViewPart) -> tuple[int, int]:
    assert isinstance(part, Part)
    return part.partition, part.end_offset
