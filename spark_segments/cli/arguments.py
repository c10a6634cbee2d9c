"""Arguments and options that several commands take, and how they become values."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_segments.cli.output import Output
from spark_segments.config import load_defaults, parse_overrides
from spark_segments.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.log.logdir import LogDir

LogDirArgument = Annotated[
    str, typer.Argument(metavar="LOG_DIR", help="The log directory: a path or an s3://, gs://, abfs:// URI.")
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
OptionalTopicArgument = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="The topic; all where it is left out.")
]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The same, as an option.")]
OutputOption = Annotated[Output, typer.Option("--output", help="How to print the result.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage", metavar="NAME=VALUE", help="A storage option in delta-rs's names, such as AWS_REGION=eu-west-1."
    ),
]
DefaultsOption = Annotated[
    Path | None,
    typer.Option(
        "--defaults",
        metavar="FILE",
        help="Configuration defaults in Kafka's server names (conf/segments.properties).",
        exists=True,
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A topic setting; may be given several times."),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Run the work on this Spark master (local[4], spark://…, yarn, sc://…)."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
NowOption = Annotated[
    int | None, typer.Option("--now-ms", metavar="MS", help="The clock to plan by, in ms since 1970.")
]


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGTP])(iB|B)?|B)?", re.IGNORECASE)


def open_log(uri: str, storage: list[str] | None, defaults: Path | None = None) -> LogDir:
    """Opens the log directory of a command."""
    from spark_segments.log.logdir import LogDir

    return LogDir.open(uri, storage_options(storage), defaults=load_defaults(defaults) if defaults else None)


def one_topic(argument: str | None, option: str | None) -> str | None:
    """The topic that a command is about, given as [TOPIC] or as --topic, or None for all."""
    if argument and option and argument != option:
        raise InvalidOptionError("Two topics", expected="TOPIC or --topic", found=f"{argument} and --topic {option}")
    return argument or option


def storage_options(texts: list[str] | None) -> dict[str, str]:
    """`--storage NAME=VALUE` as a mapping."""
    return parse_overrides(texts or [])


def session(master: str | None, app_name: str) -> SparkSession | None:
    """A Spark session where a master is given or spark-submit runs us, else None: the work is done in this process."""
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from spark_segments.spark.session import spark_session

    return spark_session(app_name, master=master)


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of ms or an ISO time (UTC where it names no zone)."""
    if re.fullmatch("-?[0-9]+", text):
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOptionError(
            "Not a time", expected="milliseconds since 1970, or an ISO time such as 2026-01-31T12:00:00Z", found=text
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Milliseconds of 7d, 10m, 1h30m: numbers with the units ms, s, m, h, d, w, or of a plain number of ms."""
    if re.fullmatch("[0-9]+", text):
        return int(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidOptionError("Not a duration", expected="milliseconds, or such as 7d, 10m or 1h30m", found=text)
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def size_bytes(text: str) -> int:
    """Bytes of 500GiB or 1.5TB, or of a plain number. KiB, MiB, … and K, M, … are powers of 1024; kB, MB, … of 1000."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidOptionError("Not a size", expected="bytes, or such as 500GiB or 1.5TB", found=text)
    number, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    size: int = round(float(number) * base ** ("KMGTP".index(prefix.upper()) + 1 if prefix else 0))
    return size
