"""`segments table`: a Delta table beside a topic."""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.cli.jobs.maintenance import JobOptions
from spark_segments.cli.options import KEY, KEY_BASE64, TOPICS, argument, key_bytes, option, with_options
from spark_segments.cli.records.value_text import FormatOptions
from spark_segments.config import parse_overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(JobOptions):
    """As JobOptions, for topics that are named."""

    topic: list[str] | None = TOPICS


@with_options
def table(
    options: TableOptions,
    values: FormatOptions,
    table: str = argument(
        "TABLE", "The Delta table: a path or an s3://, gs://, abfs:// URI; {topic} stands for the topic."
    ),
    view: str | None = option("Keep the newest record of each key alone.", metavar="latest"),
    archive: bool | None = option("Keep what leaves the topic, but for erased keys.", "--archive/--no-archive"),
    partition_by: str | None = option("Partition the table by the day of timestamps.", metavar="day"),
    key: list[str] | None = KEY,
    key_base64: list[str] | None = KEY_BASE64,
    table_storage: list[str] | None = option("A storage option for TABLE, like --storage.", metavar="NAME=VALUE"),
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

    options.run_and_finish(
        job, table_uri=table, view=view, archive=archive, partition_by=partition_by, formats=values.of_values(),
        keys=key_bytes(key, key_base64), table_options=parse_overrides(table_storage) if table_storage else None,
    )  # fmt: skip
