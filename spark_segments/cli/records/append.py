"""`segments append`: appends files to a topic, in this process or by Spark."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from spark_segments.cli.options import (
    CompressionOption,
    ConfigOption,
    ConfiguredLogOptions,
    MetricsOption,
    OutputOption,
    SparkOptions,
    TopicArgument,
    with_options,
)
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.cli.records.appended import Appended
from spark_segments.cli.records.arrow_input import Input
from spark_segments.cli.records.value_text import (
    KeyFormatOption,
    RegistryOption,
    ValueFormatOption,
    ValueSchemaOption,
    format_options,
    unknown_property,
)
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError, SegmentsError, TopicExistsError
from spark_segments.log.appending.appender import ProducerOptions
from spark_segments.log.manifest.transaction import checked
from spark_segments.maintenance.retention.plan import expired_records
from spark_segments.values.options import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_segments import LogDir


class Format(StrEnum):
    """The formats of files that can be read."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    DELTA = "delta"
    TEXT = "text"


_SPARKS_OWN = (Format.CSV, Format.DELTA)


@with_options
def append(
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    topic: TopicArgument,
    paths: Annotated[
        list[str], typer.Option("--input", metavar="PATH", help="The files to read: a path, a directory or a pattern.")
    ],
    file_format: Annotated[
        Format,
        typer.Option("--format", help="The format of the files. json: an object per line; text: a value per line."),
    ] = Format.JSON,
    reader_option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of Spark's reader, such as header=true or sep=;."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="The columns of the files, such as 'id long, at timestamp'."),
    ] = None,
    key_column: Annotated[
        str | None, typer.Option("--key-column", metavar="NAME", help="The column with the key.")
    ] = None,
    value_column: Annotated[
        str | None,
        typer.Option("--value-column", metavar="NAME", help="The column with the value, in place of the row as JSON."),
    ] = None,
    timestamp_column: Annotated[
        str | None,
        typer.Option(
            "--timestamp-column", metavar="NAME", help="The column with the timestamp; a number is ms since 1970."
        ),
    ] = None,
    partition_column: Annotated[
        str | None,
        typer.Option(
            "--partition-column", metavar="NAME", help="The column with the partition, in place of the key's hash."
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, help="If the topic does not exist: create it with this number of partitions."
        ),
    ] = None,
    config: ConfigOption = None,
    compression_codec: CompressionOption = None,
    txn_app_id: Annotated[
        str | None,
        typer.Option(
            "--txn-app-id",
            metavar="NAME",
            help="The name of the job; with --txn-version a repeated run appends nothing.",
        ),
    ] = None,
    txn_version: Annotated[
        int | None,
        typer.Option("--txn-version", metavar="N", help="The number of the run, which rises from run to run."),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="NAME=VALUE", help="A further option of the formats, such as value.subject."
        ),
    ] = None,
    key_format: KeyFormatOption = None,
    value_format: ValueFormatOption = None,
    value_schema: ValueSchemaOption = None,
    schema_registry: RegistryOption = None,
    output: OutputOption = Output.TEXT,
    metrics: MetricsOption = None,
) -> None:
    """Appends JSON lines, CSV, Parquet, a Delta table or lines of text to a topic, all in one commit.

    Lines, JSON and Parquet on this machine are read in this process, without
    Spark and Java; a JSON line that is a value as a whole is appended as it
    stands. Spark reads the rest: CSV, Delta, whatever has --option or
    --schema, and everything with --master or under spark-submit.

    Delta's reader reads a Delta table where Spark has its jar
    (spark-submit --packages io.delta:...), else deltalake does. For
    deltalake --option takes versionAsOf, and storage options in delta-rs's
    names.

    A row with a column value of text or bytes becomes a record with its
    columns key, headers, timestamp and partition. Any other row becomes a
    record whose value is the row as JSON. The options ...-column choose
    other columns. --value-format sets the format in which the row, or the
    value column, is written.

    Example: segments append /data/log orders --input '/landing/*.json'
    --key-column order_id --partitions 6 --txn-app-id landing --txn-version 7
    """
    started = time.monotonic()
    txn = _transaction(txn_app_id, txn_version)
    by_spark = spark.is_wanted or file_format in _SPARKS_OWN or bool(reader_option) or schema is not None
    if by_spark and location.defaults is not None:
        raise InvalidOptionError(
            "Spark's tasks take no file of defaults",
            found="--defaults",
            hint="Set on the topic what its writers must heed: segments topic alter --config",
        )
    log = location.create()
    formats, unknown = format_options(properties, key_format, value_format, value_schema, schema_registry)
    if unknown:
        raise unknown_property(unknown[0], OPTIONS)
    if partitions is not None and topic not in log.topics():
        with contextlib.suppress(TopicExistsError):  # another run of this job may create the topic at the same moment
            log.create_topic(topic, partitions, parse_overrides(config or []))
    ends_before = {partition: end for partition, (_, end) in log.offsets(topic).items()}
    columns = {
        "key": key_column,
        "value": value_column,
        "timestamp": timestamp_column,
        "partition": partition_column,
    }
    if by_spark:
        repeated = txn is not None and _is_repeated(log, topic, txn)
        frame = _read_with_spark(spark, topic, paths, file_format, parse_overrides(reader_option or []), schema)
        options: dict[str, str | None] = {f"storage.{name}": value for name, value in location.storage_options.items()}
        options |= formats
        options |= {"topic": topic, "compression.type": compression_codec, "txnAppId": txn_app_id}
        options["txnVersion"] = None if txn_version is None else str(txn_version)
        _write_with_spark(location.log_dir, frame, columns, formats, options)
        warning = None if repeated else _expired_in_rows(log, topic, ends_before)
    else:
        typed = [name for name in ("key", "value") if f"{name}.format" in formats]
        appended = Appended(log.config(topic), time.time_ns() // 1_000_000)
        rows = appended.counted(Input(paths, file_format.value, columns, typed).batches())
        offsets = log.append(topic, rows, txn, options=ProducerOptions(compression_codec), formats=formats or None)
        repeated = appended.rows > 0 and not offsets
        warning = None if repeated else appended.warning()

    report: dict[str, Any] = {
        "job": "append",
        "topic": topic,
        "seconds": round(time.monotonic() - started, 3),
        "repeated": repeated,
        "partitions": [
            {"partition": partition, "log_end_offset_before": ends_before.get(partition, 0), "log_end_offset": end}
            for partition, end in sorted(ends_after(log, topic, ends_before).items())
        ],
    }
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)
    lines = report["partitions"]
    grown = None
    if all(line["log_end_offset"] is not None for line in lines):
        grown = sum(line["log_end_offset"] - line["log_end_offset_before"] for line in lines)
    if metrics is not None:
        from spark_segments.maintenance.metrics.copy_metrics import write_copy_metrics

        write_copy_metrics(metrics, log.uri, "append", {topic: grown})
    if output is Output.JSON:
        print_json(report)
        return
    print_table(list(lines[0]), [list(line.values()) for line in lines])
    if repeated:
        print(f"append: nothing was appended: {topic} has transaction {txn_app_id}:{txn_version} already")
        return
    records_text = "an unknown number of" if grown is None else f"{grown:,}"
    print(f"append: {topic} has grown by {records_text} records in {report['seconds']:.1f} s")


def _transaction(application: str | None, version: int | None) -> tuple[str, int] | None:
    if (application is None) != (version is None):
        raise InvalidOptionError("A transaction has two parts", expected="--txn-app-id and --txn-version")
    if application is None or version is None:
        return None
    checked((application, version))
    return application, version


def _is_repeated(log: LogDir, topic: str, txn: tuple[str, int]) -> bool:
    last = log.manifest(topic).state().last_transaction(txn[0])
    return last is not None and txn[1] <= last.version


def _read_with_spark(
    spark: SparkOptions,
    topic: str,
    paths: list[str],
    file_format: Format,
    options: Mapping[str, str],
    schema: str | None,
) -> DataFrame:
    from spark_segments.spark.delta_input import delta_packages, read_delta
    from spark_segments.spark.session import spark_session

    if file_format is Format.DELTA:
        if schema is not None:
            raise InvalidOptionError("A Delta table has a schema", expected="no --schema", found=schema)
        session = spark_session(f"append to {topic}", master=spark.master, config=delta_packages(spark.master))
        return read_delta(session, paths, options)
    reader = spark_session(f"append to {topic}", master=spark.master).read.format(file_format.value).options(**options)
    return (reader if schema is None else reader.schema(schema)).load(paths)


def _write_with_spark(
    log_dir: str,
    frame: DataFrame,
    columns: Mapping[str, str | None],
    formats: Mapping[str, str],
    options: Mapping[str, str | None],
) -> None:
    from spark_segments.spark.frames import as_records

    records = as_records(
        frame,
        key_column=columns["key"],
        value_column=columns["value"],
        timestamp_column=columns["timestamp"],
        partition_column=columns["partition"],
        typed=[name for name in ("key", "value") if f"{name}.format" in formats],
    )
    writer = records.write.format("segments").mode("append")
    writer.options(**{name: value for name, value in options.items() if value is not None}).save(log_dir)


def _expired_in_rows(log: LogDir, topic: str, ends_before: Mapping[int, int]) -> str | None:
    """The warning about chunks that are older than retention.ms as a whole: Spark's tasks do not count records."""
    try:
        snapshot = log.snapshot(topic)
        live = snapshot.live
    except SegmentsError:
        return None  # `ends_after` says so
    before = [ends_before.get(number, 0) for number in live.column("partition").to_pylist()]
    new = live.filter(pc.greater_equal(live.column("base_offset"), pa.array(before, pa.int64())))
    appended = Appended(log.config(topic), log.storage.now_ms(), pc.sum(new.column("records")).as_py() or 0)
    appended.expired = expired_records(new, appended.config, appended.now_ms)
    return appended.warning()


def ends_after(log: LogDir, topic: str, ends_before: Mapping[int, int]) -> Mapping[int, int | None]:
    """{partition: log end after the commit, or None where the log cannot be read}. The rows are in the log anyway."""
    try:
        return {partition: end for partition, (_, end) in log.offsets(topic).items()}
    except SegmentsError as error:
        # The error's hint, to run the command again, is left out: that would append the rows twice.
        why = error.message if error.path is None else f"{error.message} in {error.path}"
        print(f"warning: the rows are in {topic}, but its offsets cannot be read: {why}", file=sys.stderr)
        return dict.fromkeys(ends_before)
