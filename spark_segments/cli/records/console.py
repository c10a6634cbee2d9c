"""`segments produce`, `consume`, `offsets`, `delete-records`: the counterparts of Kafka's console and offset tools."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import pyarrow as pa
import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.options import (
    CompressionOption,
    LogOptions,
    OutputOption,
    TopicArgument,
    with_options,
)
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.cli.records.record_text import LineFormat, Properties, read_lines, write_records
from spark_segments.cli.records.value_text import (
    KeyFormatOption,
    RegistryOption,
    ValueFormatOption,
    ValueSchemaOption,
    encoded,
    format_options,
    guessed,
)
from spark_segments.errors import InvalidOptionError

PropertyOption = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property of Kafka's console tools.")
]


@with_options
def produce(
    location: LogOptions,
    topic: TopicArgument,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="The file to read; standard input by default.")
    ] = None,
    line_format: Annotated[LineFormat, typer.Option("--format", help="The format of the lines.")] = LineFormat.TEXT,
    properties: PropertyOption = None,
    key_format: KeyFormatOption = None,
    value_format: ValueFormatOption = None,
    value_schema: ValueSchemaOption = None,
    schema_registry: RegistryOption = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Append to this partition only.")] = None,
    compression_codec: CompressionOption = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="The size of a record batch in bytes, before compression.", min=1)
    ] = 131072,
    txn: Annotated[
        str | None,
        typer.Option(
            "--txn", metavar="APP:VERSION", help="The job and the number of its run; a repeated run appends nothing."
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Appends the lines of a file, all in one commit, and prints the offsets of the records.

    A text line is a value. With parse.key=true a line is a key, key.separator
    (a tab by default) and a value. With parse.headers=true a line begins with
    headers (h1:v1,h2:v2) and a tab. A key or value that equals null.marker
    is null.

    A JSON line is an object with value, key, headers, partition and timestamp
    (ms). value_base64 and key_base64 hold bytes that are not text.

    With --value-format and --key-format a value or key is given as JSON and
    written in that format: --value-format avro takes {"id": 7}, --key-format
    long takes 7. --property then takes the options of the formats as well,
    such as value.subject or schema.registry.basic.auth.user.info.

    Example: segments produce /data/log orders --file orders.txt \\
      --property parse.key=true --property key.separator=:
    """
    from spark_segments.log.appending.appender import ProducerOptions

    transaction = _transaction(txn)
    log = location.open()
    options = ProducerOptions(compression_codec, batch_size)
    formats, properties = format_options(properties, key_format, value_format, value_schema, schema_registry)
    log.target(topic)  # raises where there is no such topic, before a schema is registered for it
    writers = log.value_writers(topic, formats, {"key": None, "value": None}) if formats else []
    stream: BinaryIO = sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb")
    with stream:
        rows = encoded(read_lines(stream, line_format, Properties.of(properties), partition), writers)
        given = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal given
            for batch in rows:
                given += batch.num_rows
                yield batch

        offsets = log.append(topic, counted(), transaction, options=options)
    rows_out = [
        {"partition": number, "first_offset": a, "last_offset": b} for number, (a, b) in sorted(offsets.items())
    ]
    if output is Output.JSON:
        print_json({"topic": topic, "partitions": rows_out, "repeated": given > 0 and not offsets})
    elif rows_out:
        print_table(["partition", "first_offset", "last_offset"], (list(row.values()) for row in rows_out))
    else:
        print("Nothing appended.")


@with_options
def consume(
    location: LogOptions,
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option("--partition", help="Read this partition only.")] = None,
    offset: Annotated[
        str,
        typer.Option(
            "--offset", metavar="N|earliest|latest", help="The first offset; a negative number counts from the log end."
        ),
    ] = "earliest",
    end_offset: Annotated[int | None, typer.Option("--end-offset", help="Stop before this offset.")] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", help="Begin at the first record of this time or later."),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="Stop before the first record of this time or later."),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=0, help="Stop after this number of records.")
    ] = None,
    properties: PropertyOption = None,
    key_format: KeyFormatOption = None,
    value_format: ValueFormatOption = None,
    value_schema: ValueSchemaOption = None,
    schema_registry: RegistryOption = None,
    isolation_level: Annotated[
        str, typer.Option("--isolation-level", help="read_uncommitted or read_committed.")
    ] = "read_uncommitted",
    version: Annotated[int | None, typer.Option("--version", help="Read the topic as it was at this version.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Prints the records that are in the topic now, partition by partition, by offset. It does not wait for more.

    Properties choose the columns: print.key, print.value, print.offset,
    print.partition, print.timestamp, print.headers (true or false); and the
    text between them: key.separator, line.separator, null.literal. With
    --output json a record is a line that `produce --format json` takes.

    --value-format and --key-format name the formats of the bytes. Without
    them the first records are looked at: numbers and values in Confluent's
    wire format are decoded, other bytes are printed as text. A guess is
    announced on standard error.

    Example: segments consume /data/log orders -n 10 \\
      --from-time 2026-01-31T12:00:00Z --property print.key=true
    """
    log = location.open()
    snapshot_offsets = log.offsets(topic)
    wanted = sorted(snapshot_offsets) if partition is None else [partition]
    for number in wanted:
        if number not in snapshot_offsets:
            raise InvalidOptionError(
                f"Topic {topic} has no such partition", expected=sorted(snapshot_offsets), found=number
            )
    formats, properties = format_options(properties, key_format, value_format, value_schema, schema_registry)
    formats, guesses = guessed(log, topic, formats)
    for guess in guesses:
        print(guess, file=sys.stderr)
    starts = log.offsets_for_times(topic, timestamp_ms(from_time)) if from_time else {}
    ends = log.offsets_for_times(topic, timestamp_ms(to_time)) if to_time else {}

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        log_start, log_end = snapshot_offsets[number]
        start = _start(offset, log_start, log_end)
        if from_time:
            start = log_end if (found := starts[number]) is None else found[0]
        end = log_end if end_offset is None else end_offset
        if to_time and (found := ends[number]) is not None:
            end = min(end, found[0])
        return log.read(topic, number, start, end, version=version, isolation_level=isolation_level, formats=formats)

    records = itertools.chain.from_iterable(batches(number) for number in wanted)
    shown = Properties.of(properties, ["print.json=true"] if output is Output.JSON else [])
    write_records(sys.stdout.buffer, records, shown, max_messages)


@with_options
def offsets(
    location: LogOptions,
    topic: TopicArgument,
    time: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME|earliest|latest",
            help="latest (or -1), earliest (or -2), ms since 1970 or an ISO time.",
        ),
    ] = "latest",
    partitions: Annotated[
        str | None, typer.Option("--partitions", metavar="N,N", help="Print these partitions only.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Prints topic:partition:offset lines: the log end, the log start, or the first offset not older than a time.

    Example: segments offsets /data/log orders --time 2026-01-31T12:00:00Z
    """
    log = location.open()
    bounds = log.offsets(topic)
    if time in ("latest", "-1"):
        found: dict[int, int | None] = {number: end for number, (_, end) in bounds.items()}
    elif time in ("earliest", "-2"):
        found = {number: start for number, (start, _) in bounds.items()}
    else:
        answers = log.offsets_for_times(topic, timestamp_ms(time))
        found = {number: answer[0] if answer else None for number, answer in answers.items()}
    wanted = _numbers(partitions) if partitions else set(found)
    if wanted - set(found):
        raise InvalidOptionError(f"Topic {topic} has no such partition", expected=sorted(found), found=sorted(wanted))
    rows = [(number, found[number]) for number in sorted(wanted)]
    if output is Output.JSON:
        print_json({"topic": topic, "partitions": [{"partition": number, "offset": at} for number, at in rows]})
    else:
        for number, at in rows:
            print(f"{topic}:{number}:{'' if at is None else at}")


@with_options
def delete_records(
    location: LogOptions,
    topic: TopicArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", help="Delete from this partition only; from all by default.")
    ] = None,
    before_offset: Annotated[
        int | None, typer.Option("--before-offset", help="Delete the records below this offset; -1: all records.")
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            "--before-time",
            metavar="TIME",
            help="Delete the records below the first record of this time or later.",
        ),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option("--offset-json-file", help="Kafka's JSON file with partitions and offsets.", exists=True),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Moves the log start up. The next retain and vacuum delete the files.

    Example: segments delete-records /data/log orders --before-time 2026-01-01
    """
    log = location.open()
    bounds = log.offsets(topic)
    chosen = list(bounds) if partition is None else [partition]
    if (before_offset is not None) + (before_time is not None) + (offset_json_file is not None) != 1:
        raise InvalidOptionError(
            "No records to delete are named", expected="one of --before-offset, --before-time, --offset-json-file"
        )
    if offset_json_file is not None:
        before = _offsets_of(offset_json_file, topic)
    elif before_time is not None:
        answers = log.offsets_for_times(topic, timestamp_ms(before_time))
        before = {number: answer[0] if (answer := answers.get(number)) else bounds[number][1] for number in chosen}
    else:
        assert before_offset is not None
        before = dict.fromkeys(chosen, before_offset)
    started = log.delete_records(topic, before)
    if output is Output.JSON:
        print_json({"topic": topic, "partitions": [{"partition": n, "low_watermark": at} for n, at in started.items()]})
    else:
        for number, at in started.items():
            print(f"partition: {topic}-{number}\tlow_watermark: {at}")


def _offsets_of(file: Path, topic: str) -> dict[int, int]:
    """{partition: offset} of one topic in the file that kafka-delete-records takes."""
    try:
        entries = json.loads(file.read_text())["partitions"]
        return {int(entry["partition"]): int(entry["offset"]) for entry in entries if entry["topic"] == topic}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOptionError(
            "The file is no JSON file of offsets",
            path=str(file),
            expected='{"partitions": [{"topic": "orders", "partition": 0, "offset": 100}], "version": 1}',
        ) from error


def _numbers(text: str) -> set[int]:
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise InvalidOptionError(
            "The text is no list of partitions", expected="numbers and commas, such as 0,3", found=text
        ) from None


def _start(offset: str, log_start: int, log_end: int) -> int:
    if offset == "earliest":
        return log_start
    if offset == "latest":
        return log_end
    try:
        number = int(offset)
    except ValueError:
        raise InvalidOptionError(
            "The text is no offset", expected="a number, earliest or latest", found=offset
        ) from None
    return number if number >= 0 else max(log_start, log_end + number)


def _transaction(text: str | None) -> tuple[str, int] | None:
    from spark_segments.log.manifest.transaction import checked

    if text is None:
        return None
    application, _, version = text.rpartition(":")
    if not application or not (version.isascii() and version.isdigit()):
        raise InvalidOptionError(
            "The text names no transaction", expected="APP:VERSION, such as nightly:42", found=text
        )
    txn = application, int(version)
    checked(txn)
    return txn
