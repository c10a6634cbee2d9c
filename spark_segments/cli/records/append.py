"""`segments append`: appends lines and files to a topic."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.command_options import (
    CONFIG,
    METRICS,
    OUTPUT,
    TOPIC,
    ConfiguredLogOptions,
    option,
    with_options,
)
from spark_segments.cli.interrupts import commits_told
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.cli.records.input_files import UTF_8
from spark_segments.cli.records.input_rows import Format, Input
from spark_segments.cli.records.live_input import LiveInput
from spark_segments.cli.records.record_text import Properties
from spark_segments.cli.records.value_text import ConsoleOptions, encoded
from spark_segments.config import TopicConfig, parse_overrides
from spark_segments.errors import InvalidOptionError, SegmentsError, TopicExistsError
from spark_segments.face.logdir import LogDir
from spark_segments.face.topic import Topic
from spark_segments.log import Operation, ProducerOptions, Transaction
from spark_segments.progress import progress_bar
from spark_segments.quantities import plural, span_ms, wall_ms
from spark_segments.values.typed import TypedColumns


def _column(text: str) -> Any:
    return option(f"The column with the {text}.", metavar="NAME")


@dataclass(frozen=True, slots=True)
class InputOptions:
    """--input, --format and what belongs to the format: where the rows come from."""

    paths: list[str] | None = option(
        "A file, a directory or a pattern; standard input by default.", "--input", metavar="PATH"
    )
    file_format: Format | None = option(
        "The format; by default what the file's name says, else a value per line.", "--format"
    )
    reader_option: list[str] | None = option(
        "Of CSV: header, sep (one character), quote, base64. Of an envelope: base64. Of a Delta table: see above.",
        "--option",
        metavar="NAME=VALUE",
    )
    encoding: str = option(
        "Of text, JSON and CSV, such as utf-16 or latin-1; a pipe in another than UTF-8 is read to its end.",
        default=UTF_8,
    )
    key_column: str | None = _column("key")
    value_column: str | None = _column("value, in place of the row as JSON")
    timestamp_column: str | None = _column("timestamp; a number is ms since 1970")
    partition_column: str | None = _column("partition, in place of the key's hash")
    partition: int | None = option("Append to this partition only.")
    linger: str = option(
        "How long a line from a pipe or a terminal waits for its commit, at most.", default="5s", metavar="DURATION"
    )

    def input(self, properties: Properties, formats: Mapping[str, str], *, is_one_commit: bool) -> Input:
        """The input. Lines of a stream are read live, unless all of them are one commit."""
        return Input.of(
            self.paths,
            self.file_format,
            self.reader_option,
            {
                "key": self.key_column,
                "value": self.value_column,
                "timestamp": self.timestamp_column,
                "partition": self.partition_column,
            },
            properties,
            typed=[name for name in ("key", "value") if f"{name}.format" in formats],
            partition=self.partition,
            encoding=self.encoding,
            linger_seconds=None if is_one_commit else span_ms(self.linger) / 1000,
        )


@dataclass(frozen=True, slots=True)
class CreationOptions:
    """--partitions and --config: a topic that is created where it does not exist."""

    partitions: int | None = option("If the topic does not exist: create it with so many partitions.", min=1)
    config: list[str] | None = CONFIG

    def create(self, log: LogDir, topic: str) -> None:
        """Creates the topic, if --partitions says of how many."""
        if self.partitions is not None and topic not in log.topics():
            # Another run of this job may create the topic at the same moment.
            with contextlib.suppress(TopicExistsError):
                log.create_topic(topic, self.partitions, parse_overrides(self.config or []))


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """--once or --txn: what makes a repeat append nothing; --compression-codec and --batch-size."""

    compression_codec: str | None = option("none, gzip, snappy, lz4 or zstd; the topic's setting by default.")
    batch_size: int = option("The size of a record batch in bytes, before compression.", default=131072, min=1)
    once: str | None = option("A name for this append; a repeat within 7 days appends nothing.", metavar="KEY")
    txn: str | None = option(
        "A job and its last run's number, again: appends nothing; lower: fails.", metavar="APP:VERSION"
    )

    def transaction(self) -> tuple[str, int] | None:
        """Application and version of --txn."""
        return None if self.txn is None else _transaction(self.txn)


@with_options
def append(
    inputs: InputOptions,
    creation: CreationOptions,
    commits: CommitOptions,
    location: ConfiguredLogOptions,
    values: ConsoleOptions,
    topic: str = TOPIC,
    output: Output = OUTPUT,
    metrics: Path | None = METRICS,
) -> None:
    """Appends lines of text or JSON, CSV, Parquet or a Delta table.

    Files are one commit. Lines from a pipe or a terminal are committed each
    --linger, at Ctrl-C, SIGTERM and the end; with --once or --txn they are one
    commit, at the end.

    text: a line is a value. With parse.key=true a line is a key, key.separator
    (a tab by default) and a value. With parse.headers=true a line begins with
    headers (h1:v1,h2:v2) and a tab. A key, a value or a header's value that
    equals null.marker is null, and headers that equal it are none. A part that
    lacks its separator is an error, and so is an empty header; with ignore.error=true it is null, and a
    line without the key's separator is a value. With print.timestamp, print.partition, print.offset, print.headers
    or print.key=true a line is what Kafka's console consumer prints with these
    properties; null.literal (null by default) is a null then.

    json: an object per line. One with value (text) is a record with its key,
    headers, partition and timestamp (ms): what `consume --output json` prints.
    value_base64 and key_base64 hold bytes that are not text. A member that no
    record has is an error, unless --value-column names the value. A value
    beside a key that is an object or a list is written as JSON. Any other
    object is a value as it stands. A number as a key keeps its digits.

    envelope: an object per line with all parts of a record, as kcat -J and the
    S3 sinks of Lenses and Aiven write it. A value that is no text is the JSON
    of the file. --option base64=key,value,headers says which are base64.

    csv, parquet, delta: a row with a column value of text or bytes, or with
    columns key and value alone, is a record. Any other row is a value as JSON.
    The options ...-column choose other columns. Aiven's S3 sink writes CSV in
    base64 without names: --option header=false names its columns f0, f1, and
    --option base64=f0,f1 decodes them. A Delta table takes --option
    versionAsOf=N and storage options in delta-rs's names. Spark's DataFrames
    write themselves: df.write.format("segments").

    With --value-format and --key-format the row, a column, or a text line of
    JSON is written in that format: --value-format avro takes {"id": 7}.
    --property then takes the options of the formats as well, such as
    value.subject or schema.registry.basic.auth.user.info.

    Example: segments append /data/log orders --input orders.txt \\
      --property parse.key=true --property key.separator=:
    Example: segments append /data/log orders --input '/landing/*.json' \\
      --key-column order_id --partitions 6 --once landing/2026-01-01
    """
    started = time.monotonic()
    transaction = Transaction.named(commits.once, commits.transaction())
    log = location.open() if creation.partitions is None else location.create()
    formats, texts = values.split()
    source = inputs.input(Properties.of(texts), formats, is_one_commit=transaction is not None)
    creation.create(log, topic)
    # Raises where there is no such topic, or it takes no appends, before a schema is registered for it.
    log.check_writable()
    log.topic(topic).snapshot.check_role(Operation.APPEND)
    appended = _Appended(log.topic(topic).config, wall_ms())
    offsets = _append(log, topic, source, formats, commits, appended)
    result = _Result(topic, transaction, offsets, appended.rows, time.monotonic() - started)
    warning = None if result.is_repeat else appended.warning()
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)
    if metrics is not None:
        from spark_segments.cli.metrics import write_copy_metrics

        write_copy_metrics(metrics, log.uri, "append", {topic: result.records})
    result.print(output)


@dataclass(frozen=True, slots=True)
class _Result:
    """What an append did. `offsets`: {partition: (first offset, last offset)}, both inclusive; {} for a repeat of
    `transaction`. `rows`: those of the input.
    """

    topic: str
    transaction: Transaction | None
    offsets: Mapping[int, tuple[int, int]]
    rows: int
    seconds: float

    @property
    def is_repeat(self) -> bool:
        return self.rows > 0 and not self.offsets

    @property
    def records(self) -> int:
        return 0 if self.is_repeat else self.rows

    def print(self, output: Output) -> None:
        lines = [
            {"partition": number, "first_offset": first, "last_offset": last}
            for number, (first, last) in sorted(self.offsets.items())
        ]
        if output is Output.JSON:
            report = {"job": "append", "topic": self.topic, "seconds": round(self.seconds, 3), "records": self.records}
            print_json(report | {"repeated": self.is_repeat, "partitions": lines})
            return
        if lines:
            print_table([*lines[0]], (list(line.values()) for line in lines))
        text = f"Appended {plural(self.records, 'record')} to {self.topic} in {self.seconds:.1f} s."
        if self.is_repeat:
            text = f"Nothing appended: {self.topic} has {self.transaction} already."
        print(text, file=sys.stderr)


def _append(
    log: LogDir,
    topic: str,
    source: Input,
    formats: Mapping[str, str],
    commits: CommitOptions,
    appended: _Appended,
) -> dict[int, tuple[int, int]]:
    """Appends the rows of the input, which `appended` counts. The first and the last offset of each partition."""
    options = ProducerOptions(commits.compression_codec, commits.batch_size)
    with commits_told(log), progress_bar("append", of_bytes=True) as progress:
        rows = source.batches(progress)
        # Here a key and a value are JSON text, whose types the formats say: no column has them for `Topic.append`.
        if source.format in (Format.TEXT, Format.ENVELOPE) and formats:
            rows = encoded(rows, TypedColumns(log).encoders(topic, formats, {"key": None, "value": None}))
            formats = {}
        more: dict[str, Any] = {"once": commits.once, "options": options, "formats": formats or None}
        if source.live is None:
            return log.topic(topic).append(appended.counted(rows), commits.transaction(), **more)
        return _append_live(log.topic(topic), source.live, rows, appended, more)


def _append_live(
    topic: Topic, live: LiveInput, rows: Iterator[pa.RecordBatch], appended: _Appended, more: dict[str, Any]
) -> dict[int, tuple[int, int]]:
    """Appends what comes, a commit after the other. The first and the last offset of each partition."""
    if live.is_typed:
        print("Reading standard input, a record per line. Ctrl-D or Ctrl-C ends it.", file=sys.stderr)
    offsets: dict[int, tuple[int, int]] = {}
    committed = 0
    try:
        with live.until_interrupted():
            for part in live.parts(rows):
                for number, (first, last) in topic.append(appended.counted(part), **more).items():
                    offsets[number] = offsets.get(number, (first, last))[0], last
                committed = appended.rows
    except SegmentsError:
        if committed:
            told = f"{plural(committed, 'record')} of the input stay committed. The error is of what follows:"
            print(told, file=sys.stderr)
        raise
    return offsets


def _transaction(text: str) -> tuple[str, int]:
    application, _, version = text.rpartition(":")
    if not application or not (version.isascii() and version.isdigit()):
        raise InvalidOptionError(
            "The text names no transaction", expected="APP:VERSION, such as nightly:42", found=text
        )
    return application, int(version)


@dataclass(slots=True)
class _Appended:
    """The rows that go by: how many there are, and how many are older than the topic's retention.ms."""

    config: TopicConfig
    now_ms: int
    rows: int = 0
    expired: int = 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, counted as they go by."""
        for batch in batches:
            self.rows += batch.num_rows
            if self.config.delete and self.config.retention_ms >= 0 and "timestamp" in batch.schema.names:
                oldest_us = (self.now_ms - self.config.retention_ms) * 1000
                times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
                self.expired += pc.sum(pc.less(times, oldest_us)).as_py() or 0
            yield batch

    def warning(self) -> str | None:
        """A line about the records that the next retain takes; None where there are none."""
        if not self.expired:
            return None
        return (
            f"{self.expired:,} of {self.rows:,} records are older than retention.ms: the next retain takes them once "
            "their segments are rolled. segments topic alter --config retention.ms=… keeps them"
        )
