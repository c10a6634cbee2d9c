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

from spark_segments.cli import completion
from spark_segments.cli.output import Output
from spark_segments.config import READ_UNCOMMITTED, load_defaults, parse_overrides
from spark_segments.errors import InvalidOptionError
from spark_segments.progress import progress_bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.face.logdir import LogDir
    from spark_segments.log import LogDirectory, Report


C = TypeVar("C", bound=Callable[..., Any])


def argument(metavar: str, help: str, *, default: Any = dataclasses.MISSING, **further: Any) -> Any:
    """An argument of a command, or of a class of options: the default of a parameter, or of a field."""
    return dataclasses.field(
        default=default, metadata={"declared": typer.Argument(metavar=metavar, help=help, **further)}
    )


def option(help: str, *names: str, default: Any = None, **further: Any) -> Any:
    """An option, like `argument`. Its long name is that of the parameter, unless `names` have one."""
    return dataclasses.field(
        default=default, metadata={"declared": partial(typer.Option, help=help, **further), "names": names}
    )


def flag(help: str, *names: str) -> Any:
    """An option without a value, which is off by default."""
    return option(help, *names, default=False)


_SOME = "Topics and patterns, such as orders or 'orders*'"
TOPIC = argument("TOPIC", "The topic.", autocompletion=completion.topics)
TOPICS = argument("TOPIC...", f"{_SOME}.", autocompletion=completion.topics)
ANY_TOPICS = argument("[TOPIC]...", f"{_SOME}; all by default.", default=None, autocompletion=completion.topics)
TOPIC_PATTERNS = option(
    "Topics such as orders or 'orders*'; may be given again; all by default.", "--topic", metavar="PATTERN"
)
DRY_RUN = flag("Print what would be done; change nothing.")
YES = flag("Do not ask first.", "-y")
OUTPUT = option("The format of the output.", default=Output.TEXT)
STORAGE = option("A storage option by delta-rs's name, such as AWS_REGION=eu-west-1.", metavar="NAME=VALUE")
CONFIG = option(
    "A topic setting; may be given several times.", metavar="NAME=VALUE", autocompletion=completion.settings
)
FROM_TIME = option("Begin at the first record of this time or later.", metavar="TIME")
TO_TIME = option("Stop before the first record of this time or later.", metavar="TIME")
METRICS = option("Write OpenMetrics text there, for node_exporter's textfile collector.", metavar="FILE")
NOW_MS = option("The time to plan by, in ms since 1970; now by default.", metavar="MS")
MASTER = option("Run the work on this Spark master (local[4], spark://…, yarn, sc://…).", metavar="URL")
CLIENT_CONFIG = option("client.properties: SASL, TLS, as Kafka's clients have.", metavar="FILE")
ISOLATION_LEVEL = option("read_uncommitted or read_committed.", default=READ_UNCOMMITTED)
KEY = option("A key, as UTF-8; may be given several times.", metavar="TEXT")
KEY_BASE64 = option("A key of any bytes; several times, too.", metavar="BASE64")
BOOTSTRAP = argument("BOOTSTRAP", "Brokers: host:port, several with commas.")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """LOG_DIR and --storage."""

    log_dir: str = argument("LOG_DIR", "The log directory: a path or an s3://, gs://, abfs:// URI.")
    storage: list[str] | None = STORAGE

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

    defaults: Path | None = option(
        "A file of default settings by Kafka's names for servers, such as conf/segments.properties.",
        metavar="FILE",
        exists=True,
    )

    def _defaults(self) -> dict[str, str] | None:
        return load_defaults(self.defaults) if self.defaults else None


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """--master: where the work runs."""

    master: str | None = MASTER

    def session(self, app_name: str) -> SparkSession | None:
        """A Spark session with --master or under spark-submit, else None: the work then runs in this process."""
        if self.master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            return None
        from spark_segments.spark.session import spark_session

        return spark_session(app_name, master=self.master)

    def run(
        self, job: Callable[..., Report], log: LogDirectory, topics: Sequence[str] | None, *, of_bytes: bool = False,
        **further: Any,
    ) -> Report:  # fmt: skip
        """Runs a job on topics, where the options say, with a bar on a terminal."""
        name = getattr(job, "func", job).__name__
        with progress_bar(name, of_bytes=of_bytes) as progress:
            return job(log, topics=topics or None, spark=self.session(name), progress=progress, **further)


def with_options(command: C) -> C:
    """Wraps `command` for the command line: the fields of its dataclass parameters replace these parameters.

    Help lists the command's own options first, those of classes beside it included, then the options that it shares
    with other commands.
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
            is_shared = "names" in field.metadata and not _is_own(groups[parameter.name], command)
            (shared if is_shared else parameters).append(declared)

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        return command(**values)

    called.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *shared)}
    return called  # type: ignore[return-value]


def _is_own(group: type, command: Callable[..., Any]) -> bool:
    """Whether a class of options is of this command alone: it stands beside it, and inherits from no shared class."""
    return all(kind.__module__ == command.__module__ for kind in group.__mro__ if kind is not object)


def _declared(name: str, kind: Any, field: Any) -> inspect.Parameter:
    """An argument or option as typer wants it."""
    declared = field.metadata["declared"]
    names = field.metadata.get("names")
    if names is not None:
        has_long_name = any(text.startswith("--") for text in names)
        declared = declared(*names) if has_long_name else declared(f"--{name.replace('_', '-')}", *names)
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    annotation = Annotated[kind, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def key_bytes(texts: Sequence[str] | None, encoded: Sequence[str] | None) -> list[bytes]:
    """The keys of --key and --key-base64. Raises InvalidOptionError for text that is no base64."""
    keys = [text.encode() for text in texts or []]
    for text in encoded or []:
        try:
            keys.append(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise InvalidOptionError("Not base64", expected="--key-base64 BASE64", found=text) from error
    return keys
