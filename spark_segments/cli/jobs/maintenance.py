"""`segments roll | retain | compact | vacuum | erase | index | table | maintain`: jobs, in this process or on Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spark_segments.cli.command_options import (
    ANY_TOPICS,
    DRY_RUN,
    KEY,
    KEY_BASE64,
    MASTER,
    METRICS,
    NOW_MS,
    OUTPUT,
    TOPICS,
    YES,
    ConfiguredLogOptions,
    SparkOptions,
    argument,
    flag,
    key_bytes,
    option,
    with_options,
)
from spark_segments.cli.confirmation import asks, confirm, print_way_back
from spark_segments.cli.interrupts import commits_told
from spark_segments.cli.output import FAILED, Output, print_report, print_summary
from spark_segments.cli.records.value_text import FormatOptions
from spark_segments.config import TopicConfig, parse_overrides, selected_topics, topic_config
from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import moment, moment_ms, plural, volume_bytes, wall_ms

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Report, Snapshot

_DAY_MS = 86_400_000
_SLIP_MS = 60_000  # by which clocks may differ


@dataclasses.dataclass(frozen=True, slots=True)
class JobOptions(ConfiguredLogOptions):
    """The arguments and options of all maintenance jobs."""

    topic: list[str] | None = ANY_TOPICS
    dry_run: bool = DRY_RUN
    output: Output = OUTPUT
    metrics: Path | None = METRICS
    now_ms: int | None = NOW_MS
    master: str | None = MASTER

    def __post_init__(self) -> None:
        if self.metrics is not None and self.dry_run:
            raise InvalidOptionError("A dry run has no metrics", expected="--metrics or --dry-run", found="both")
        if self.now_ms is not None and not 0 <= self.now_ms < 1 << 63:  # numpy 1 would compute with it as an object
            raise InvalidOptionError("--now-ms is no time", expected="ms since 1970, in 64 bits", found=self.now_ms)

    def run(self, job: Callable[..., Report], log: LogDir, **further: Any) -> Report:
        """Runs the job and prints its report."""
        with commits_told(log):
            report = SparkOptions(self.master).run(
                job, log, self.topic, dry_run=self.dry_run, now_ms=self.now_ms, **further
            )
        print_report(report.to_dict(), self.output)
        return report

    def finish(
        self, log: LogDir, reports: Sequence[Report], state: Sequence[tuple[Snapshot, TopicConfig]] = ()
    ) -> None:
        """Writes the job's metrics and the metrics of `state`, and exits with 1 where a partition failed."""
        if self.metrics is not None:
            from spark_segments.cli.metrics import job_metrics, log_metrics, write_metrics

            write_metrics(self.metrics, [*job_metrics(log.uri, reports), *(log_metrics(log, state) if state else [])])
        if any(report.failed for report in reports):
            raise typer.Exit(FAILED)

    def run_and_finish(self, job: Callable[..., Report], **further: Any) -> None:
        """A command that is a job and nothing else."""
        log = self.open()
        self.finish(log, [self.run(job, log, **further)])


@dataclasses.dataclass(frozen=True, slots=True)
class TakingOptions(JobOptions):
    """The arguments and options of jobs that take records or files away."""

    yes: bool = YES

    def open(self) -> LogDir:
        """The log directory. What is due only at a time to come is not taken by a slip: somebody says yes to it."""
        log = ConfiguredLogOptions.open(self)
        now_ms = wall_ms()
        if self.now_ms is not None and self.now_ms > now_ms + _SLIP_MS and not self.dry_run:
            days = (self.now_ms - now_ms) / _DAY_MS
            if not self.yes and not asks(self.yes):
                raise InvalidOptionError(
                    "--now-ms is a time to come: the job would take what is not due yet",
                    expected="--dry-run, or --yes to take it now",
                    found=f"{days:,.1f} days from now",
                )
            confirm(f"Take now what is due {days:,.1f} days from now?", self.yes)
        return log


@with_options
def roll(
    options: JobOptions,
) -> None:
    """Seals segments that are due by segment.bytes, segment.ms or a full index, and merges small chunks.

    If all of a partition has expired by the topic's own retention, its active
    segment is sealed, too, because retain removes sealed segments alone.

    Example: segments roll /data/log orders --dry-run
    """
    from spark_segments.maintenance import roll as job

    options.run_and_finish(job)


@with_options
def retain(
    options: TakingOptions,
    max_bytes: str | None = option(
        "Limit on the bytes of all topics but followers together, such as 500GiB.", metavar="SIZE"
    ),
    min_retention: str = option(
        "--max-bytes removes no younger records; such as 12h or 7d.", default="1d", metavar="DURATION"
    ),
) -> None:
    """Takes whole segments out of the log by retention.ms and retention.bytes, oldest first.

    --max-bytes shortens retention if the log directory is larger. It removes
    further sealed segments, the oldest of all topics first, also of topics
    whose retention.ms is longer or -1. It removes no segment of a topic that is
    only compacted, and none younger than --min-retention. Followers do not
    count: their leader's retention shortens them.

    The size is that of live segments with their indexes. Removed segments take
    space until vacuum deletes them, after file.delete.delay.ms: leave room for
    them. If not enough segments may be removed, a line on standard error says
    why. The exit code is 0 even then, so that a schedule goes on to vacuum.

    Example: segments retain /data/log --max-bytes 500GiB --min-retention 2d
    """
    from spark_segments.maintenance import retain as job

    most_bytes = None if max_bytes is None else volume_bytes(max_bytes)
    options.run_and_finish(job, max_bytes=most_bytes, min_retention_ms=min_retention)


@with_options
def compact(
    options: TakingOptions,
    force: bool = flag(
        "Compact every partition that has records to clean, or tombstones whose time has come, due or not."
    ),
    max_partitions: int | None = option("Compact at most this number of partitions, the dirtiest first.", min=1),
) -> None:
    """Keeps the newest record of every key in the topics whose cleanup.policy has compact.

    A partition is due when its dirty ratio exceeds
    min.cleanable.dirty.ratio, max.compaction.lag.ms has passed, or
    delete.retention.ms has for the tombstones of an erasure.

    A dry run reads what the run would read, and counts what it would drop.

    Example: segments compact /data/log prices --force --dry-run
    """
    from spark_segments.maintenance import compact as job

    options.run_and_finish(job, force=force, max_partitions=max_partitions)


@with_options
def vacuum(
    options: TakingOptions,
) -> None:
    """Deletes files that left the log long ago, files that no commit names, and old manifest files.

    "Long ago" is the topic's file.delete.delay.ms. Until then, readers that
    began before the removal still find the files.

    Example: segments vacuum /data/log --dry-run
    """
    from spark_segments.maintenance import vacuum as job

    options.run_and_finish(job)


@with_options
def erase(
    options: JobOptions,
    key: list[str] | None = KEY,
    key_base64: list[str] | None = KEY_BASE64,
    history: bool = flag("Also delete files of earlier versions that have the keys, at once, by a vacuum."),
    yes: bool = YES,
) -> None:
    """Erases the records of keys from a topic: no other record goes, and every offset stays.

    On a terminal it says what it would erase, and asks first.

    A compacted topic first gets a tombstone of each key, then all older records
    of the key are erased. In other topics all records of the key are erased.
    The job reads every segment, and chunks that are not rolled yet, but for
    segments in which the index of the topic's keys has none of the keys.

    The old files stay for readers of earlier versions until vacuum deletes
    them, after file.delete.delay.ms. With --history they go at once, and
    reads of these versions fail. Exports and backups are not touched.
    `segments explain LOG_DIR TOPIC --key KEY` says what is left.

    Example: segments erase /data/log customers --key ada@example.org --dry-run
    """
    from spark_segments.maintenance import erase as job

    keys = key_bytes(key, key_base64)
    log = options.open()
    versions = {}
    erased = partial(JobOptions.run, job=job, log=log, keys=keys, history=history)
    if not options.dry_run and options.topic:
        what = f"{plural(len(keys), 'key')} from {', '.join(options.topic)}{', history included' if history else ''}"
        confirm(f"Erase {what}?", yes, lambda: erased(dataclasses.replace(options, dry_run=True)))
        if not history:
            names = selected_topics(log.topics(), options.topic)
            versions = {name: log.topic(name).snapshot.version for name in names}
    report = erased(options)
    for name in report.topics:
        if name in versions:
            print_way_back(options.log_dir, name, versions[name], "--including-erased")
    if options.output is not Output.JSON and not report.partitions:
        print("No segment of the log has a record of these keys to erase.")
        print("An archive beside the topic may: `segments table … --key KEY --forget` takes their rows out of it.")
    options.finish(log, [report])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(JobOptions):
    """As JobOptions, for topics that are named."""

    topic: list[str] | None = TOPICS


CATALOG = option("The catalog of Iceberg tables, as pyiceberg's configuration names it.", metavar="NAME")


@dataclasses.dataclass(frozen=True, slots=True)
class NewTableOptions:
    """What a table is made as: later runs need none of these but --catalog."""

    view: str | None = option("Keep the newest record of each key alone.", metavar="latest")
    archive: bool | None = option("Keep what leaves the topic, but for erased keys.", "--archive/--no-archive")
    partition_by: str | None = option("Partition the table by the day of timestamps.", metavar="day")
    table_format: str | None = option("The format of a new table; by default delta.", metavar="delta|iceberg")
    catalog: str | None = CATALOG


@dataclasses.dataclass(frozen=True, slots=True)
class ErasedKeyOptions:
    """The keys that leave an archive."""

    key: list[str] | None = KEY
    key_base64: list[str] | None = KEY_BASE64
    forget: bool = flag("Every row of --key that the topic no longer has leaves the archive, erased or not.")
    alike: bool = flag("Rows without bytes of their typed key leave the archive if they are read as a --key is.")

    @property
    def keys(self) -> list[bytes]:
        """The keys of --key and --key-base64."""
        return key_bytes(self.key, self.key_base64)


@with_options
def table(
    new: NewTableOptions,
    erased: ErasedKeyOptions,
    options: TableOptions,
    values: FormatOptions,
    table: str = argument("TABLE", "The table: a path or an s3://, gs://, abfs:// URI; {topic} stands for the topic."),
    table_storage: list[str] | None = option("A storage option for TABLE, like --storage.", metavar="NAME=VALUE"),
    optimize: bool = flag("Join small files of a Delta table after the run."),
    forget_table: bool = flag("Queries of the topic read TABLE no longer. Nothing else is done, and TABLE stays."),
) -> None:
    """Keeps a Delta or Iceberg table beside a topic: its records as columns, for any program that reads Parquet.

    Makes the table if it does not exist. Otherwise it adds new records, exactly
    once however often it is killed or run. The table remembers how it was made:
    later runs need LOG_DIR, TOPIC and TABLE alone, and the --catalog of an
    Iceberg table. Without one it is in iceberg.sqlite beside it.

    What leaves the topic leaves the table with the next run: by retention,
    compaction, delete-records, erase or restore. --archive keeps it, but
    for erased keys: after an erasure the run needs them as --key. Records
    that left the topic before the erasure leave an archive with --forget.

    The topic notes the table, so that queries of the topic by segments sql,
    DuckDB, Polars and Topic.to_spark read the table, and of the log what
    follows it.

    Example: segments table /data/log orders /lake/orders --value-format json
    Example: segments table /data/log users /lake/users --view latest
    Example: segments table /data/log orders /lake/by-day --partition-by day
    Example: segments table /data/log orders /lake/iceberg --table-format iceberg
    Example: segments table /data/log 'orders*' '/lake/{topic}'
    Example: segments table /data/log orders /lake/archive --key ada --forget
    """
    from spark_segments.maintenance import table as job

    options.run_and_finish(
        job,
        table_uri=table,
        **dataclasses.asdict(new),
        formats=values.of_values("timestamp.errors"),
        keys=erased.keys,
        forget=erased.forget,
        alike=erased.alike,
        table_options=parse_overrides(table_storage) if table_storage else None,
        forget_table=forget_table,
        optimize_from=2 if optimize else None,
    )


@with_options
def index(
    options: JobOptions,
    values: FormatOptions,
    on: list[str] | None = option(
        "Index a header or a field in place of keys: header.NAME, value.PATH or key.PATH; may be given again.",
        metavar="FIELD",
    ),
    drop: bool = flag("Take the index away, or those --on fields: the log does not need them."),
) -> None:
    """Indexes the keys of topics, so that a look-up of a key reads few bytes.

    What is not indexed yet is read, in tasks of 2 million records or 1 GiB.
    The index has about 10 bytes for each record with a key. It is derived: a
    look-up (`segments consume --key`) has the same records without it. What
    came since the last run is scanned, so run it as often as `maintain`,
    which keeps the indexes that topics have.

    --on makes a further index, for `segments consume --where`: of the values
    of a header, or of a field of the decoded value. What decodes it is given
    by --value-format and --value-schema. The index remembers it for
    `maintain`, without the credentials of a registry; other formats build it
    again. A look-up has to be given the same formats.

    An erased key leaves all indexes in the erasure. vacuum deletes files that
    left an index longer than file.delete.delay.ms ago.

    Example: segments index /data/log orders
    Example: segments index /data/log orders --on header.trace-id
    Example: segments index /data/log orders --on value.order.id \\
      --value-format json --value-schema 'order struct<id bigint>'
    Example: segments index /data/log orders --drop --on header.trace-id
    """
    from spark_segments.maintenance import index as job

    formats = values.of_values()
    if formats and not on:
        raise InvalidOptionError("The bytes of keys are indexed, whatever their format", expected="--on value.FIELD")
    options.run_and_finish(job, drop=drop, on=on or None, formats=formats or None)


def _as_of(options: TakingOptions, by: str) -> TakingOptions:
    """The options of a dry run as of a time to come, which is printed. Raises InvalidOptionError for other runs and
    times.
    """
    if not options.dry_run or options.now_ms is not None:
        raise InvalidOptionError("--by asks for a forecast", expected="--dry-run, and no --now-ms", found=f"--by {by}")
    now_ms = wall_ms()
    by_ms = moment_ms(by, now_ms)
    if by_ms < now_ms:
        expected = "a time to come, such as tomorrow, friday or 'in 3 days'"
        raise InvalidOptionError("--by asks for a forecast", expected=expected, found=f"{by}, {moment(by_ms)}")
    print_summary(f"by {moment(by_ms)}, if nothing is appended:")
    return dataclasses.replace(options, now_ms=by_ms)


@with_options
def maintain(
    options: TakingOptions,
    table: str | None = option("Keep the table there in step; {topic} stands for the topic.", metavar="TABLE"),
    catalog: str | None = CATALOG,
    by: str | None = option(
        "With --dry-run: what the jobs do by this time, such as friday or 'in 3 days'.", metavar="TIME"
    ),
) -> None:
    """Runs all maintenance jobs in order: roll, retain, compact, index, vacuum.

    In a dry run each job plans on the result of the jobs before it. With --by
    it says what happens until that time, if nothing is appended: which segments
    are sealed, what retention takes, which partitions compaction picks, and
    which files vacuum deletes, each at the earliest time.

    With --table the tables that `segments table` has made there are brought
    in step first, so that an archive has what the jobs take, and once more
    before vacuum. Topics without a table are passed over. A Delta table with
    16 or more files of a day below 16 MiB is optimized then.

    Indexes are kept for the topics that have them (`segments index`).

    Followers are left to their mirror; only vacuum and the index run on them.

    With --now-ms in the future, vacuum still goes by the clock, so records that
    the run removes from the log can be restored.

    With --output json each report is a line. With --metrics the file also
    has the state of the log, as `segments describe --metrics` writes it.

    Example: segments maintain /data/log --master local[4]
    Example: segments maintain /data/log --dry-run --by friday
    """
    from spark_segments.face.in_order import jobs_in_order

    if by is not None:
        options = _as_of(options, by)
    log = options.open()  # the jobs share it: each topic is opened once, and each job looks what came since
    *jobs, vacuum_job = jobs_in_order(log, table, catalog)
    now_ms = None if options.now_ms is None else min(options.now_ms, wall_ms())
    by_the_clock = options if options.dry_run else dataclasses.replace(options, now_ms=now_ms)
    reports = [*(options.run(job, log) for job in jobs), by_the_clock.run(vacuum_job, log)]
    names = selected_topics(log.topics(), options.topic or None) if options.metrics is not None else []
    snapshots = [log.topic(name).snapshot for name in names]
    options.finish(log, reports, [(snapshot, topic_config(snapshot.config, log.defaults)) for snapshot in snapshots])
