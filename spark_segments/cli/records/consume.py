"""`segments consume`: prints records, as Kafka's console consumer does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.options import LogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output
from spark_segments.cli.records.record_text import Properties, PropertyOption, write_records
from spark_segments.cli.records.value_text import (
    KeyFormatOption,
    RegistryOption,
    ValueFormatOption,
    ValueSchemaOption,
    format_options,
    guessed,
)
from spark_segments.errors import InvalidOptionError
from spark_segments.log.reading.ahead import available_cores


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
        return log.read(
            topic,
            number,
            start,
            end,
            version=version,
            isolation_level=isolation_level,
            formats=formats,
            threads=available_cores(),
        )

    records = itertools.chain.from_iterable(batches(number) for number in wanted)
    shown = Properties.of(properties, ["print.json=true"] if output is Output.JSON else [])
    write_records(sys.stdout.buffer, records, shown, max_messages)


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
