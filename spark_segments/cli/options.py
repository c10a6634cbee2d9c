"""The arguments and options that several commands share, declared once, with the objects made from them.

A command has a parameter of a class below. `with_options` replaces the parameter by the fields of the class on the
command line, and passes an object of the class to the command.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import ArgumentInfo

from spark_segments.cli import completion
from spark_segments.cli.output import Output
from spark_segments.config import load_defaults, parse_overrides
from spark_segments.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.face.logdir import LogDir


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)]
TopicsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...", help="Topics and patterns, such as orders or 'orders*'.", autocompletion=completion.topics
    ),
]
OptionalTopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...",
        help="Topics and patterns, such as orders or 'orders*'; all by default.",
        autocompletion=completion.topics,
    ),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="PATTERN", help="Topics such as orders or 'orders*'; may be given again; all by default."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
OutputOption = Annotated[Output, typer.Option("--output", help="The format of the output.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage", metavar="NAME=VALUE", help="A storage option by delta-rs's name, such as AWS_REGION=eu-west-1."
    ),
]
DefaultsOption = Annotated[
    Path | None,
    typer.Option(
        "--defaults",
        metavar="FILE",
        help="A file of default settings by Kafka's names for servers, such as conf/segments.properties.",
        exists=True,
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        help="A topic setting; may be given several times.",
        autocompletion=completion.settings,
    ),
]
CompressionOption = Annotated[
    str | None,
    typer.Option("--compression-codec", help="none, gzip, snappy, lz4 or zstd; the topic's setting by default."),
]
FromTimeOption = Annotated[
    str | None,
    typer.Option("--from-time", metavar="TIME", help="Begin at the first record of this time or later."),
]
ToTimeOption = Annotated[
    str | None,
    typer.Option("--to-time", metavar="TIME", help="Stop before the first record of this time or later."),
]
MetricsOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics", metavar="FILE", help="Write OpenMetrics text there, for node_exporter's textfile collector."
    ),
]
NowOption = Annotated[
    int | None, typer.Option("--now-ms", metavar="MS", help="The time to plan by, in ms since 1970; now by default.")
]

C = TypeVar("C", bound=Callable[..., Any])


def option(help: str, *names: str, default: Any = None, **further: Any) -> Any:
    """An option of a command, or of a class of options: the default of a parameter, or of a field.

    Its long name is that of the parameter, unless `names` have one. `further`: what typer.Option takes.
    """
    return dataclasses.field(
        default=default, metadata={"option": partial(typer.Option, help=help, **further), "names": names}
    )


def flag(help: str, *names: str) -> Any:
    """An option without a value, which is off by default."""
    return option(help, *names, default=False)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """LOG_DIR and --storage."""

    log_dir: Annotated[
        str, typer.Argument(metavar="LOG_DIR", help="The log directory: a path or an s3://, gs://, abfs:// URI.")
    ]
    storage: StorageOption = None

    @property
    def storage_options(self) -> dict[str, str]:
        """--storage as a mapping."""
        return parse_overrides(self.storage or [])

    def open(self) -> LogDir:
        """The existing log directory."""
        from spark_segments.face.logdir import LogDir

        return LogDir.open(self.log_dir, self.storage_options, defaults=self._defaults())

    def open_damaged(self) -> LogDir:
        """As `open`, also where the whole `_manifest` is lost."""
        from spark_segments.face.logdir import LogDir
        from spark_segments.maintenance.rebuild.rebuild import open_damaged

        damaged = open_damaged(self.log_dir, self.storage_options, defaults=self._defaults())
        return LogDir(damaged.storage, kafka=damaged.kafka, defaults=damaged.defaults)

    def create(self) -> LogDir:
        """The log directory, which is created where there is none."""
        from spark_segments.face.logdir import LogDir

        return LogDir.create(self.log_dir, self.storage_options, defaults=self._defaults())

    def _defaults(self) -> dict[str, str] | None:
        return None


@dataclass(frozen=True, slots=True)
class ConfiguredLogOptions(LogOptions):
    """LOG_DIR, --storage and --defaults."""

    defaults: DefaultsOption = None

    def _defaults(self) -> dict[str, str] | None:
        return load_defaults(self.defaults) if self.defaults else None


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """--master: where the work runs."""

    master: str | None = option("Run the work on this Spark master (local[4], spark://…, yarn, sc://…).", metavar="URL")

    @property
    def is_wanted(self) -> bool:
        """Whether Spark does the work: with --master, and under spark-submit."""
        return self.master is not None or "PYSPARK_GATEWAY_PORT" in os.environ

    def session(self, app_name: str) -> SparkSession | None:
        """A Spark session with --master or under spark-submit, else None: the work then runs in this process."""
        if not self.is_wanted:
            return None
        from spark_segments.spark.session import spark_session

        return spark_session(app_name, master=self.master)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The arguments and options of all maintenance jobs, beside the log directory and Spark."""

    topic: OptionalTopicsArgument = None
    dry_run: DryRunOption = False
    output: OutputOption = Output.TEXT
    metrics: MetricsOption = None
    now_ms: NowOption = None

    def __post_init__(self) -> None:
        if self.metrics is not None and self.dry_run:
            raise InvalidOptionError("A dry run has no metrics", expected="--metrics or --dry-run", found="both")

    def topics(self) -> list[str] | None:
        """The topics of the job, names and patterns; None for all topics."""
        return self.topic or None


def with_options(command: C) -> C:
    """Wraps `command` for the command line: the fields of its dataclass parameters replace these parameters.

    Help lists the command's options first, then the options that it shares with other commands.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name not in groups:
            parameters.append(_declared(parameter.name, hints[parameter.name], parameter.default))
            continue
        fields = get_type_hints(groups[parameter.name], include_extras=True)
        for field in dataclasses.fields(groups[parameter.name]):
            declared = _declared(field.name, fields[field.name], field)
            is_argument = any(isinstance(info, ArgumentInfo) for info in declared.annotation.__metadata__)
            (parameters if is_argument else shared).append(declared)

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        return command(**values)

    called.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *shared)}
    return called  # type: ignore[return-value]


def _declared(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter as typer wants it. `default`: a field of a class of options, `option`, or the default itself."""
    if isinstance(default, dataclasses.Field):
        if "option" in default.metadata:
            names = default.metadata["names"]
            if not any(word.startswith("--") for word in names):
                names = (f"--{name.replace('_', '-')}", *names)
            annotation = Annotated[annotation, default.metadata["option"](*names)]
        default = inspect.Parameter.empty if default.default is dataclasses.MISSING else default.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


KeyOption = Annotated[
    list[str] | None, typer.Option("--key", metavar="TEXT", help="A key, as UTF-8; may be given several times.")
]
Base64KeyOption = Annotated[
    list[str] | None, typer.Option("--key-base64", metavar="BASE64", help="A key of any bytes; several times, too.")
]


def key_bytes(texts: Sequence[str] | None, encoded: Sequence[str] | None) -> list[bytes]:
    """The keys of --key and --key-base64. Raises InvalidOptionError for text that is no base64."""
    keys = [text.encode() for text in texts or []]
    for text in encoded or []:
        try:
            keys.append(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise InvalidOptionError("Not base64", expected="--key-base64 BASE64", found=text) from error
    return keys
