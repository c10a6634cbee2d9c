"""A Delta table beside a topic: brought to what may be read of the topic now, by one commit or a few.

A table has either every record, as it was appended, or the newest record of each key (the view latest). Each commit
says in which topic, and up to which offsets, so an update that is killed, repeated or run beside another leaves the
table as a single update would. An archive keeps what the topic loses.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, InvalidOptionError, LogDirError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks, task_slots
from spark_segments.extensions import typed_columns
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.bins import in_bins
from spark_segments.log.directory import LogDirectory, selected
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import erasures_of
from spark_segments.log.marker import check_apart
from spark_segments.log.reading.isolation import READ_COMMITTED
from spark_segments.log.reading.latest import LatestPart
from spark_segments.log.reading.plan import DEFAULT_MAX_PARTITION_BYTES as TASK_BYTES
from spark_segments.log.reading.plan import LATEST, Part, Selection, readable_bounds
from spark_segments.log.reading.scan import Offsets, Scan
from spark_segments.log.report import Report
from spark_segments.maintenance.tables.position import (
    CLEANED,
    ERASED,
    LOG_START,
    OTHER_LOG,
    OTHER_TOPIC,
    REWRITTEN,
    TablePositions,
    what_happened,
)
from spark_segments.maintenance.tables.rows import (
    FromStart,
    OtherKeys,
    Rule,
    Sifted,
    SiftRows,
    StillThere,
    WriteRows,
    Written,
    count_records,
)
from spark_segments.maintenance.tables.table_beside import PARTITION_COLUMNS, DataFile, TableBeside, TableSettings
from spark_segments.storage import Storage
from spark_segments.values.batches import Columns, decode_batch
from spark_segments.values.options import REGISTRY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
Work = Sequence[Part | LatestPart]

TOPIC = "{topic}"
"""In a table's address: the name of the topic."""

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
"""Columns of a table, as a read of the topic has them. Columns of undecodable bytes and `day` come behind them."""

TRIES = 5
"""How often an update is tried when another commit comes first."""

WAVE_BYTES_A_SLOT = 1 << 30
"""Records are committed once so many bytes of the log are written for each task slot. A job that is killed loses the
work of its last wave only."""


@dataclass(frozen=True, slots=True)
class _Run:
    """How the job runs."""

    spark: SparkSession | None
    dry_run: bool
    progress: Progress | None
    now_ms: int | None

    def tasks(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return run_tasks(work, tasks, self.spark, progress=self.progress)


@dataclass(slots=True)
class _Update:
    """An update under way: the table as it is (None: a dry run, and none is there), the topic as of a snapshot, what
    the table had of it, and why its rows are looked at.
    """

    log: LogDirectory
    table: TableBeside | None
    snapshot: Snapshot
    scan: Scan
    before: TablePositions | None
    at_ms: int
    why: str | None
    is_archive: bool
    run: _Run
    keys: pa.Array | None = None
    figures: Counter[str] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)

    @property
    def is_latest(self) -> bool:
        return self.scan.selection.view == LATEST

    @property
    def columns(self) -> Columns:
        return Columns(self.scan.selection.columns, self.scan.decoders)

    @property
    def is_new(self) -> bool:
        """Whether nothing that is in the table stays."""
        return self.before is None or self.why in (OTHER_TOPIC, OTHER_LOG)

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """The offsets that the table lacks."""
        bounds = readable_bounds(self.snapshot, READ_COMMITTED)
        if self.is_new or self.before is None:
            return bounds
        return {number: (max(start, self.before.end(number)), end) for number, (start, end) in bounds.items()}

    def position(self, ends: Mapping[int, int] | None = None) -> TablePositions:
        version = None if self.log.is_kafka else self.snapshot.version
        return TablePositions.of(self.snapshot, self.at_ms, version, ends)


def table(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: int | None = None,
    table_uri: str,
    view: str | None = None,
    formats: Mapping[str, str] | None = None,
    partition_by: str | None = None,
    archive: bool | None = None,
    keys: Sequence[bytes] = (),
    table_options: Mapping[str, str] | None = None,
    existing: bool = False,
) -> Report:
    """Brings the Delta table at `table_uri` to what may be read of the topic now, and makes it where there is none.

    Columns: key, value, headers, partition, offset, timestamp. `formats`, options such as value.format, make key and
    value typed. `partition_by` "day": a column `day` of the timestamp's day, by UTC. The table remembers how it was
    made: a later call needs neither these options nor `view` and `archive`, and raises InvalidOptionError for others.

    A plain table has each record that may be read: what retention, compaction, delete_records, an erasure or a restore
    takes out of the topic leaves the table with the next call. With `archive` it keeps what leaves by all of these but
    an erasure: after one a call needs the erased `keys`, which leave the table, too. The `view` "latest" has the newest
    record of each key, without keys that a tombstone deleted: other rows than those appended. It needs a call at least
    every delete.retention.ms, or it is made anew.

    With several topics `table_uri` has {topic} in it. `existing`: topics without a table there are passed over.
    `spark`: its executors read and write. A commit holds what its partitions' lines say, and a plain table gets more
    than one commit where much is to be done. What was written for a commit that was never made, Delta's own vacuum
    takes. `table_options`: the table's storage options, by default those of the log directory.

    A report's line has the offsets [start, end) that were added. `details` has by topic: `version` of the table, `why`
    its rows were looked at, files_added, files_removed, rows_added, rows_removed, rows. A topic that fails has a
    line, as in `Report`: CommitConflictError where other commits to the table come first every time.
    """
    names = selected(log.topics(), topics)
    for name in names:
        if name not in log.topics():
            raise UnknownTopicError(f"There is no topic {name}", path=log.uri)
    if TOPIC not in table_uri and len(names) != 1:
        raise InvalidOptionError(
            "A table is of one topic", expected=f"one topic, or {TOPIC} in the address", found=names
        )
    if view not in (None, LATEST) or (view and archive):
        raise InvalidOptionError("No such table", expected=f"the view {LATEST}, or archive, or neither", found=view)
    if partition_by not in (None, *PARTITION_COLUMNS):
        raise InvalidOptionError("partition_by", expected=" or ".join(PARTITION_COLUMNS), found=partition_by)
    options = dict(log.storage.storage_options if table_options is None else table_options)
    given = {"view": view, "archive": archive, "formats": dict(formats) if formats else None}
    run = _Run(spark, dry_run, progress, now_ms)
    report = Report("table", dry_run)
    for name in names:
        storage = Storage(table_uri.replace(TOPIC, name), options)
        check_apart(storage)
        try:
            if existing and TableBeside.open(storage) is None:
                continue
            for _ in range(TRIES):
                update = _planned(log, name, storage, given, partition_by, keys, run)
                plan = _Plan(update.offsets, update.why, _missed(update))
                if dry_run or _done(update):
                    _note(report, name, update, plan)
                    break
            else:
                raise CommitConflictError(
                    "Other commits to the table keep coming first", path=storage.uri, hint="Run the job again"
                )
        except InvalidOptionError:
            raise
        except SegmentsError as error:
            report.fail(name, None, error)
    return report.finish()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a report says of an update: the offsets that the table lacked, why its rows were looked at, and what of its
    topic an archive never had.
    """

    offsets: Mapping[int, tuple[int, int]]
    why: str | None
    missed: Sequence[str]


def _missed(update: _Update) -> list[str]:
    if not update.is_archive or update.before is None:
        return []
    return [
        f"{update.snapshot.topic}-{number}: offsets {update.before.end(number)} to {start - 1} left the topic before "
        "the archive had them"
        for number, (start, _) in readable_bounds(update.snapshot, READ_COMMITTED).items()
        if update.before.end(number) < start
    ]


def _planned(
    log: LogDirectory,
    topic: str,
    storage: Storage,
    given: Mapping[str, Any],
    partition_by: str | None,
    keys: Sequence[bytes],
    run: _Run,
) -> _Update:
    """The update as of now. Makes the table where there is none, but in a dry run."""
    existing = TableBeside.open(storage)
    before = None if existing is None else existing.position()
    settings = _settings(storage, topic, existing, given)
    if existing is not None and partition_by not in (None, *existing.partitioned_by):
        raise _other(storage, f"partitioned by {', '.join(existing.partitioned_by) or 'nothing'}", partition_by)
    at_ms = log.storage.now_ms() if run.now_ms is None else run.now_ms
    snapshot = log.snapshot(topic)
    decoders = typed_columns(log).readers(snapshot, {**(settings.formats or {}), **(given["formats"] or {})})
    columns = COLUMNS if existing is None else tuple(name for name in existing.columns if name in RECORD_SCHEMA.names)
    scan = Scan(log.storage, snapshot, {}, Selection(columns, READ_COMMITTED, settings.view), decoders)
    if existing is not None:
        existing.check_columns(scan.schema)
    elif not run.dry_run:
        existing = TableBeside.create(storage, scan.schema, partition_by, settings)
        if existing.settings != settings:  # another process made it
            raise _other(storage, existing.settings, settings)
    why = what_happened(log, snapshot, before, at_ms, latest=settings.view == LATEST)
    update = _Update(log, existing, snapshot, scan, before, at_ms, why, settings.archive, run)
    if settings.archive:
        update.keys = _erased(update, keys)
        _check_archive(update)
    elif keys:
        raise InvalidOptionError("Erased keys leave a table that is no archive by themselves", found="keys")
    return update


def _settings(
    storage: Storage,
    topic: str,
    existing: TableBeside | None,
    given: Mapping[str, Any],
) -> TableSettings:
    """What the table is, or is to be made as. Raises InvalidOptionError where it is something else."""
    formats = {name: text for name, text in (given["formats"] or {}).items() if not name.startswith(f"{REGISTRY}.")}
    if existing is None:
        return TableSettings(topic, given["view"], bool(given["archive"]), formats)
    settings = existing.settings
    if settings is None:
        raise LogDirError("The table is none that is beside a topic", path=storage.uri, hint="Name another place")
    asked = {name: value for name, value in given.items() if name != "formats" and value is not None}
    wanted = dataclasses.replace(settings, topic=topic, **asked)
    if wanted != settings:
        raise _other(storage, settings, wanted)
    return settings


def _other(storage: Storage, found: object, wanted: object) -> InvalidOptionError:
    return InvalidOptionError(
        "The table was made as another one",
        path=storage.uri,
        expected=str(found),
        found=str(wanted),
        hint="Leave these options out, or name another place",
    )


def _erased(update: _Update, keys: Sequence[bytes]) -> pa.Array | None:
    """The keys that leave an archive, as its column has them; None: none."""
    since = -1 if update.before is None or update.before.version is None else update.before.version
    erased = [one for one in erasures_of(update.snapshot) if one.version > since]
    if update.before is not None and erased and not keys:
        raise LogDirError(
            "Keys of the topic were erased, and only the topic forgot them",
            path=update.scan.storage.uri,
            expected="the erased keys, for the archive to lose them, too",
            found=f"erasures since: {'; '.join(map(str, erased))}",
            hint="Name the keys: segments table … --key KEY",
        )
    if not keys:
        return None
    batch = pa.record_batch({"key": pa.array(keys, pa.binary())})
    return decode_batch(batch, [one for one in update.scan.decoders if one.chosen.column == "key"]).column("key")


def _check_archive(update: _Update) -> None:
    has_lost_position = update.before is None and update.table is not None and update.table.files()
    if update.why in (OTHER_TOPIC, OTHER_LOG) or has_lost_position:
        raise LogDirError(
            f"The archive cannot follow its topic: {update.why}",
            path=update.scan.storage.uri,
            hint="Make another table for what comes now",
        )


def _done(update: _Update) -> bool:
    """Whether the table is in step; False where another commit came first: then the update is begun again."""
    assert update.table is not None
    if update.is_latest:
        return _latest_done(update)
    removed, made = _sifted(update)
    offsets, first = update.offsets, True
    ends = {number: start for number, (start, _) in offsets.items()}
    scan = dataclasses.replace(update.scan, offsets=offsets)
    waves = _waves(_tasks(scan), update.run.spark)
    for wave, is_last in waves:
        written = _written(update, wave)
        for part in (part for task in wave for part in task):
            ends[part.partition] = max(ends[part.partition], _end(part))
        changed = removed or made or any(one.files for one in written) or update.why is not None
        if is_last and not changed and not _moved(update):
            return True
        added = [file for one in written for file in one.files]
        position = update.position(None if is_last else ends)
        if not _committed(update, position, [*made, *added] if first else added, removed if first else []):
            return False
        first = False
    return True


def _latest_done(update: _Update) -> bool:
    """As `_done`, for a table of the newest record of each key: one commit, for a part of it is no view."""
    assert update.table is not None
    typed_key = any(one.chosen.column == "key" for one in update.scan.decoders)
    # Bytes that differ may be equal once they are decoded, and a key is its bytes.
    whole = update.why is not None or (typed_key and _moved(update))
    if not whole and not _moved(update):
        return True
    selection = dataclasses.replace(update.scan.selection, include_tombstones=not whole)
    offsets = readable_bounds(update.snapshot, READ_COMMITTED) if whole else update.offsets
    scan = dataclasses.replace(update.scan, offsets=offsets, selection=selection)
    written = _written(update, _tasks(scan), changes=not whole)
    added, files = [file for one in written for file in one.files], update.table.files()
    if whole:
        _count_removed(update, files)
        return _committed(update, update.position(), added, files)
    changed = [one.keys for one in written if one.keys is not None]
    keys: dict[int | None, pa.Array] = {}
    if changed:
        every = pa.concat_tables(changed)
        for number in every.column("partition").unique().to_pylist():
            mine = every.filter(pc.equal(every.column("partition"), number))
            keys[number] = mine.column("key").combine_chunks()
    wanted = [file for file in files if _may_have(file, keys)]
    removed, made = _without(update, [(file, OtherKeys(keys)) for file in wanted])
    return _committed(update, update.position(), [*made, *added], removed)


def _may_have(file: DataFile, partitions: Collection[int | None]) -> bool:
    if file.least is None or file.greatest is None:
        return True
    return any(one is not None and file.least[0] <= one <= file.greatest[0] for one in partitions)


def _sifted(update: _Update) -> tuple[list[DataFile], list[DataFile]]:
    """(files that leave a plain table, files that come in their place) for what has left the topic."""
    assert update.table is not None
    files = update.table.files()
    if update.is_new:
        _count_removed(update, files)
        return files, []
    if update.is_archive:
        if update.keys is None:
            return [], []
        return _without(update, [(file, OtherKeys({None: update.keys})) for file in files])
    bounds = readable_bounds(update.snapshot, READ_COMMITTED)
    starts = {number: start for number, (start, _) in bounds.items()}
    if update.why == LOG_START:
        highest = max(starts.values(), default=0)
        below = [file for file in files if file.least is None or file.least[1] < highest]
        return _without(update, [(file, FromStart(starts)) for file in below])
    if update.why not in (CLEANED, ERASED, REWRITTEN):
        return [], []
    kept: Counter[int] = Counter()
    removed, made = _without(update, [(file, StillThere(_parts_beside(update, file))) for file in files], kept)
    if update.why == REWRITTEN and kept != _there(update):
        # Records came back that had left the topic, and the table with it.
        update.why = OTHER_LOG
        update.figures.clear()
        _count_removed(update, files)
        return files, []
    return removed, made


def _there(update: _Update) -> Counter[int]:
    """How many records the log has of what the table has reached, by partition."""
    assert update.before is not None
    ends = {number: update.before.end(number) for number in update.before.positions}
    scan = _offsets_scan(update, {number: (0, end) for number, end in ends.items()})
    counted: Counter[int] = Counter()
    for one in update.run.tasks(partial(count_records, update.scan.storage), _tasks(scan)):
        counted.update(one)
    return counted


def _parts_beside(update: _Update, file: DataFile) -> list[Part | LatestPart]:
    """The parts of the log that have what a file may have."""
    assert update.before is not None
    numbers = update.before.positions
    offsets = {number: (0, update.before.end(number)) for number in numbers}
    if file.least is not None and file.greatest is not None:
        (first, start), (last, end) = file.least, file.greatest
        offsets = {number: (start, end + 1) for number in numbers if first <= number <= last}
    return list(_offsets_scan(update, offsets).parts())


def _offsets_scan(update: _Update, offsets: Offsets) -> Scan:
    selection = Selection(("offset",), READ_COMMITTED)
    return Scan(update.scan.storage, update.snapshot, offsets, selection)


def _without(
    update: _Update, tasks: Sequence[tuple[DataFile, Rule]], kept: Counter[int] | None = None
) -> tuple[list[DataFile], list[DataFile]]:
    assert update.table is not None
    work = SiftRows(update.scan.storage, update.table.storage, update.columns.schema)
    done: list[Sifted] = update.run.tasks(work, tasks)
    for one in done:
        update.figures["rows_removed"] += one.dropped
        if kept is not None:
            kept.update(one.kept)
    changed = [one for one in done if one.dropped]
    return [one.file for one in changed], [one.made for one in changed if one.made is not None]


def _written(update: _Update, tasks: Sequence[Work], *, changes: bool = False) -> list[Written]:
    assert update.table is not None
    by_day = bool(update.table.partitioned_by)
    work = WriteRows(update.scan.storage, update.table.storage, update.columns, by_day, changes)
    done: list[Written] = update.run.tasks(work, [list(task) for task in tasks])
    for one in done:
        update.rows.update(one.rows)
    return done


def _tasks(scan: Scan) -> list[Work]:
    """The parts as tasks, each a file or a few: neighbours share one, however many partitions there are."""
    parts = list(scan.parts(TASK_BYTES))
    return list(in_bins(parts, lambda one: np.array([one.cost_bytes]), _is_full))


def _is_full(task: Work, total: np.ndarray, one: Part | LatestPart) -> bool:
    return int(total[0]) + one.cost_bytes > TASK_BYTES


def _moved(update: _Update) -> bool:
    return any(start < end for start, end in update.offsets.values())


def _end(part: Part | LatestPart) -> int:
    return (part.parts[-1] if isinstance(part, LatestPart) else part).end_offset


def _count_removed(update: _Update, files: Sequence[DataFile]) -> None:
    update.figures["rows_removed"] += sum(file.rows or 0 for file in files)


def _waves(tasks: Sequence[Work], spark: SparkSession | None) -> Iterator[tuple[list[Work], bool]]:
    """(tasks that are committed together, whether they are the last). At least one, which may be empty.

    Parts of one segment have the same offsets, and only a whole segment is a place to stop.
    """
    most_bytes = WAVE_BYTES_A_SLOT * task_slots(spark)
    wave: list[Work] = []
    wave_bytes = 0
    for task in tasks:
        if wave_bytes >= most_bytes and _place(wave[-1][-1]) != _place(task[0]):
            yield wave, False
            wave, wave_bytes = [], 0
        wave.append(task)
        wave_bytes += sum(part.cost_bytes for part in task)
    yield wave, True


def _place(part: Part | LatestPart) -> tuple[int, int]:
    return part.partition, _end(part)


def _committed(
    update: _Update, position: TablePositions, added: Sequence[DataFile], removed: Sequence[DataFile]
) -> bool:
    """Whether the table has the position and these files now. A commit of somebody else that leaves both the position
    and the files to remove as they are is no hindrance.
    """
    assert update.table is not None
    current = update.table
    for _ in range(TRIES):
        has_committed = current.commit(position, added, removed)
        latest = TableBeside.open(current.storage)
        if latest is None:
            return False
        if has_committed or latest.position() == position:  # the reply to this commit may have been lost
            latest.made_checkpoint()
            update.table, update.before = latest, position
            update.figures.update(files_added=len(added), files_removed=len(removed))
            update.figures["rows_added"] = sum(update.rows.values())  # files that were made anew have others, too
            return True
        gone = {file.path for file in removed} - {file.path for file in latest.files()}
        if latest.position() != update.before or gone or latest.partitioned_by != current.partitioned_by:
            return False
        current = latest
    return False


def _note(report: Report, topic: str, update: _Update, plan: _Plan) -> None:
    for number, (start, end) in sorted(plan.offsets.items()):
        if start < end:
            rows = update.rows[number]
            report.add(topic, number, "append", records_in=rows, records_out=rows, start=start, end=end)
    for text in plan.missed:
        report.warn(text)
    state = {"version": None, "rows": None} if update.table is None else _state(update.table)
    report.details[topic] = state | {"why": plan.why} | dict(update.figures)


def _state(there: TableBeside) -> dict[str, Any]:
    return {"version": there.version, "rows": sum(file.rows or 0 for file in there.files())}
