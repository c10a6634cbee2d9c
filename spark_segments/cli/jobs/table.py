"""`segments table`: a Delta table beside a topic."""

from __future__ import annotations

from pathlib import Path

from spark_segments.cli.jobs.maintenance import finish
from spark_segments.cli.options import (
    DRY_RUN,
    KEY,
    KEY_BASE64,
    METRICS,
    NOW_MS,
    OUTPUT,
    TOPICS,
    ConfiguredLogOptions,
    SparkOptions,
    argument,
    key_bytes,
    option,
    with_options,
)
from spark_segments.cli.output import Output, print_report
from spark_segments.cli.records.value_text import FormatOptions
from spark_segments.config import parse_overrides
from spark_segments.progress import progress_bar


@with_options
def table(
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    values: FormatOptions,
    topic: list[str] = TOPICS,
    table: str = argument(
        "TABLE", "The Delta table: a path or an s3://, gs://, abfs:// URI; {topic} stands for the topic."
    ),
    view: str | None = option("Keep the newest record of each key alone.", metavar="latest"),
    archive: bool | None = option("Keep what leaves the topic, but for erased keys.", "--archive/--no-archive"),
    partition_by: str | None = option("Partition the table by the day of timestamps.", metavar="day"),
    key: list[str] | None = KEY,
    key_base64: list[str] | None = KEY_BASE64,
    table_storage: list[str] | None = option("A storage option for TABLE, like --storage.", metavar="NAME=VALUE"),
    dry_run: bool = DRY_RUN,
    output: Output = OUTPUT,
    metrics: Path | None = METRICS,
    now_ms: int | None = NOW_MS,
) -> None:
    """Keeps a Delta table beside a topic: its records as columns, for whatever reads Parquet.

    Makes the table where there is none, and brings it in step otherwise,
    exactly once however often it is killed or run. The table remembers how
    it was made: later runs need LOG_DIR, TOPIC and TABLE alone.

    What leaves the topic leaves the table with the next run: by retention,
    compaction, delete-records, erase or restore. --archive keeps it, but
    for erased keys: after an erasure the run needs them as --key.

    Example: segments table /data/log orders /data/tables/orders --value-format json --partition-by day
    Example: segments table /data/log customers /data/tables/customers --view latest
    Example: segments table /data/log 'orders*' '/data/tables/{topic}'
    """
    from spark_segments.maintenance import table as job

    log = location.open()
    with progress_bar("table") as progress:
        report = job(
            log, topics=topic, spark=spark.session("table"), dry_run=dry_run, progress=progress, now_ms=now_ms,
            table_uri=table, view=view, archive=archive, partition_by=partition_by, formats=values.of_values(),
            keys=key_bytes(key, key_base64),
            table_options=None if table_storage is None else parse_overrides(table_storage),
        )  # fmt: skip
    print_report(report.to_dict(), output)
    finish(metrics, log, report)
