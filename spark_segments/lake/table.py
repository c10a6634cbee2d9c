"""A table beside a topic: brought to what may be read of the topic now, by one commit or a few.

A table has either every record, as it was appended, or the newest record of each key (the view latest). Each commit
says in which topic, and up to which offsets, so an update that is killed, repeated or run beside another leaves the
table as a single update would. An archive keeps what the topic loses.

An update is planned (table_plan.py), its files are written (rows.py), and a commit of the table's format names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.config import selected_topics
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    SegmentsError,
    UnknownTopicError,
)
from spark_segments.execution import in_bins, run_tasks, task_slots
from spark_segments.extensions import observed_job
from spark_segments.lake.erased import ErasedKeys
from spark_segments.lake.noted import NotedTable, forget_note, is_noted, note_table
from spark_segments.lake.request import TablePlace, TableRequest
from spark_segments.lake.rows import join_rows
from spark_segments.lake.table_format import DataFile, TableFormat, Tables, has_floats
from spark_segments.lake.update import TRIES, TableCall, Update
from spark_segments.log import LogDirectory, Report
from spark_segments.progress import Progress
from spark_segments.quantities import Time, moment_ms
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_BYTES_A_SLOT = 1 << 30
"""Records are committed once so many bytes of the log are written for each task slot. A job that is killed loses the
work of its last wave only."""


SMALL_FILE_BYTES = 16 << 20
"""A file below it costs a reader about as much to open as to read."""

_JOINED_BYTES = 128 << 20
"""About how large a file gets that others are joined to."""

MANY_SMALL_FILES = 16
"""From so many small files of a day on, `maintain` optimizes a table: its hourly runs make as many."""


@observed_job("table")
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
    alike: bool = False,
    table_options: Mapping[str, str] | None = None,
    existing: bool = False,
    table_format: str | None = None,
    catalog: str | None = None,
    forget_table: bool = False,
    optimize_from: int | None = None,
) -> Report:
    """Brings the table at `table_uri` to what may be read of the topic now, and makes it where there is none.

    Columns: key, value, headers, partition, offset, timestamp. `formats`, options such as value.format, make key and
    value typed. `partition_by` "day": a column `day` of the timestamp's day, by UTC. The table remembers how it was
    made: a later call needs neither these options nor `view` and `archive`, and raises InvalidOptionError for others.

    A plain table has each record that may be read: what retention, compaction, delete_records, an erasure or a restore
    takes out of the topic leaves the table with the next call. With `archive` it keeps what leaves by all of these but
    an erasure: after one a call needs the erased `keys`, whose records of before the erasure leave the table, too. An
    erasure does not find records that have left the topic before it: with `forget` every row of the `keys` leaves the
    archive that the topic no longer has. Where keys are typed, an archive and a latest table have their bytes as the
    column key_bytes, by which keys are told apart. Rows from before an archive had it are an error where an erased key
    is read as theirs; with `alike` they leave, too. The `view` "latest" has the newest record of each key, without keys
    that a tombstone deleted: other rows than those appended. It needs a call at least every delete.retention.ms, or it
    is rebuilt.

    Other programs may tidy the table, and restore an earlier version of it: the next call brings what came after that.
    Any other change of its rows is an error, until the table is restored to the version before.

    `table_format`: "delta" or "iceberg"; by default that of the table, and delta for a new one. Iceberg tables are in
    the `catalog` of pyiceberg's configuration, by the last two names of their address, or in the SQLite catalog
    iceberg.sqlite beside them. A later call needs the catalog, too.

    With several topics `table_uri` has {topic} in it. `existing`: topics without a table there are passed over.
    `spark`: its executors read and write. A commit holds what its partitions' lines say, and a plain table gets more
    than one commit where much is to be done. Delta's own VACUUM deletes files of a commit that was never made.
    `table_options`: the table's storage options, by default the log directory's.

    The topic notes the table, so that queries read it and the log as one. With `forget_table` the note goes, and
    nothing else is done. A follower and a directory of Kafka's note nothing.

    `optimize_from`: where so many files of a day, or of the table, are smaller than 16 MiB after the update, they are
    joined, by a commit that Delta calls OPTIMIZE: it changes no row. So are files whose bounds of floats may leave NaN
    out, which other programs and earlier versions of this package write. Iceberg's library has no such commit.

    A report's line has the offsets [start, end) that were added. `details` has by topic: `version` of the table, `why`
    its rows were looked at, files_added, files_removed, rows_added, rows_removed, rows. A topic that fails has a
    line, as in `Report`: CommitConflictError where other commits to the table come first every time.
    """
    names = selected_topics(log.topics(), topics)
    for name in names:
        if name not in log.topics():
            raise UnknownTopicError(f"There is no topic {name}", path=log.uri)
    options = log.storage.storage_options if table_options is None else table_options
    place = TablePlace(table_uri, dict(options), table_format, catalog)
    place.check(names)
    request = TableRequest(view, archive, dict(formats or {}), partition_by)
    request.check()
    erased = ErasedKeys(keys, forget, alike)
    erased.check()
    report = Report("table", dry_run)
    call = TableCall(log, request, erased, partial(run_tasks, spark=spark, progress=progress), report)
    if forget_table:
        for name in names:
            _forget(call, place, name)
        return report.finish()
    updates = _Updates(call, place, WAVE_BYTES_A_SLOT * task_slots(spark), now_ms, existing, optimize_from)
    for name in names:
        LogDirectory.check_apart(place.storage(name))
        try:
            updates.run(name)
        except SegmentsError as error:
            # Options that no table can have are the caller's error. Of several topics, the tables of the others are
            # still to be updated.
            if isinstance(error, InvalidOptionError) and len(names) == 1:
                raise
            report.fail(name, None, error)
    return report.finish()


def _forget(call: TableCall, place: TablePlace, topic: str) -> None:
    """Takes the topic's note of its table out, if there is one."""
    uri = place.storage(topic).uri
    if not is_noted(call.log, topic, uri):
        return
    if not call.report.dry_run:
        forget_note(call.log, topic, uri)
    call.report.add(topic, None, "forget")


@dataclass(frozen=True, slots=True)
class _Updates:
    """The updates of a call, a table a topic. `wave_bytes`: how much of the log is written before a commit.
    `existing_only`: topics without a table are passed over. `optimize_from`: from so many small files on they are
    joined; None: never.
    """

    call: TableCall
    place: TablePlace
    wave_bytes: int
    now_ms: Time | None
    existing_only: bool
    optimize_from: int | None

    def run(self, topic: str) -> None:
        """Updates the table of a topic, and joins its small files where there are many."""
        storage = self.place.storage(topic)
        tables = self.place.tables(storage)
        if self.existing_only and tables.open(storage) is None:
            return
        self._update(topic, storage, tables)
        if self.optimize_from is not None and not self.call.report.dry_run:
            _optimize(self.call, tables.open(storage), topic, self.optimize_from)

    def _update(self, topic: str, storage: Storage, tables: Tables) -> None:
        """Updates a table, or says what an update would do. Raises CommitConflictError where other commits come first
        every time.
        """
        call = self.call
        for _ in range(TRIES):
            # The clock is read before the snapshot. With a later time the next run would take the table for younger
            # than its rows, and could miss a tombstone that compaction has taken since.
            at_ms = call.log.storage.now_ms() if self.now_ms is None else moment_ms(self.now_ms)
            update = Update(call, topic, storage, tables, at_ms)
            if call.report.dry_run or update.bring_up_to_date(self.wave_bytes):
                update.note(topic)
                _note(call, self.place, topic, update.table)
                return
        raise CommitConflictError(
            "Other commits to the table keep coming first", path=storage.uri, hint="Run the job again"
        )


def _note(call: TableCall, place: TablePlace, topic: str, table: TableFormat | None) -> None:
    """Makes the topic know its table, if the log directory can be written. The table is made all the same."""
    if call.report.dry_run or table is None or table.settings is None:
        return
    try:
        note_table(call.log, topic, NotedTable.at(place, table, table.settings))
    except SegmentsError as error:
        call.report.warn(f"{topic}: no query reads the table with the log, for the topic cannot note it: {error}")


def _optimize(call: TableCall, table: TableFormat | None, topic: str, least_files: int) -> None:
    """Joins small files of a table, where there are so many of them."""
    if table is None:
        return
    groups = _files_to_join(table, least_files)
    if not groups:
        return
    if not table.replaces_files:
        call.report.warn(f"{topic}: pyiceberg joins no files: Spark's rewrite_data_files does")
        return
    try:
        written = call.run(partial(join_rows, table.storage, table.schema), groups)
        files = [file for group in groups for file in group]
        is_committed = table.replace_files(files, [file for group in written for file in group])
    except SegmentsError as error:  # the table has all records, in more files
        call.report.warn(str(error))
        return
    if is_committed:
        call.report.details[topic]["files_joined"] = len(files)
    else:
        call.report.warn(f"{topic}: another commit to the table came first, and no files of it are joined")


def _files_to_join(table: TableFormat, least_files: int) -> list[list[DataFile]]:
    """The files that become one, and others that become another one: of one day each, in the order of their offsets.
    Nothing where no day has `least_files` small files, nor the table one that may hide NaN.
    """
    files = table.files()
    small_files = Counter(file.day for file in files if file.size < SMALL_FILE_BYTES)
    is_due = max(small_files.values(), default=0) >= least_files
    by_day: dict[str | None, list[DataFile]] = {}
    hides_nan = table.replaces_files and has_floats(table.schema)
    for file in sorted(files, key=_first_place):
        if (is_due and file.size < _JOINED_BYTES) or (hides_nan and file.may_hide_nan):
            by_day.setdefault(file.day, []).append(file)

    def begins(_: list[DataFile], total: int, file: DataFile) -> bool:
        return total + file.size > _JOINED_BYTES

    groups: list[list[DataFile]] = []
    for files_of_day in by_day.values():
        groups += in_bins(files_of_day, lambda file: file.size, begins)
    return [group for group in groups if len(group) > 1 or (hides_nan and group[0].may_hide_nan)]


def _first_place(file: DataFile) -> tuple[int, int]:
    """(partition, offset) before which a file has no row, as far as it says."""
    if file.bounds is None:
        return 0, 0
    return file.bounds["partition"][0], file.bounds["offset"][0]
