"""`segments produce`: appends lines of text or JSON, as Kafka's console producer does."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from spark_segments.cli.options import (
    CompressionOption,
    ConfiguredLogOptions,
    OutputOption,
    TopicArgument,
    with_options,
)
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.cli.records.appended import Appended
from spark_segments.cli.records.record_text import LineFormat, Properties, PropertyOption, read_lines
from spark_segments.cli.records.value_text import (
    KeyFormatOption,
    RegistryOption,
    ValueFormatOption,
    ValueSchemaOption,
    encoded,
    format_options,
)
from spark_segments.errors import InvalidOptionError
from spark_segments.log.appending.appender import ProducerOptions
from spark_segments.log.manifest.transaction import checked


@with_options
def produce(
    location: ConfiguredLogOptions,
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
    transaction = _transaction(txn)
    log = location.open()
    options = ProducerOptions(compression_codec, batch_size)
    formats, properties = format_options(properties, key_format, value_format, value_schema, schema_registry)
    log.target(topic)  # raises where there is no such topic, before a schema is registered for it
    writers = log.value_writers(topic, formats, {"key": None, "value": None}) if formats else []
    stream: BinaryIO = sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb")
    with stream:
        rows = encoded(read_lines(stream, line_format, Properties.of(properties), partition), writers)
        appended = Appended(log.config(topic), time.time_ns() // 1_000_000)
        offsets = log.append(topic, appended.counted(rows), transaction, options=options)
    repeated = appended.rows > 0 and not offsets
    if not repeated and (warning := appended.warning()) is not None:
        print(f"warning: {warning}", file=sys.stderr)
    rows_out = [
        {"partition": number, "first_offset": a, "last_offset": b} for number, (a, b) in sorted(offsets.items())
    ]
    if output is Output.JSON:
        print_json({"topic": topic, "partitions": rows_out, "repeated": repeated})
    elif rows_out:
        print_table(["partition", "first_offset", "last_offset"], (list(row.values()) for row in rows_out))
    elif repeated:
        print(f"Nothing appended: {topic} has transaction {txn} already.")
    else:
        print("Nothing appended.")


def _transaction(text: str | None) -> tuple[str, int] | None:
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
