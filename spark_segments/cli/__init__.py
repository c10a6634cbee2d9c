"""The `segments` command."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import spark_segments
from spark_segments.errors import MissingExtraError

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError as error:
    raise MissingExtraError("cli", "Commands", str(error.name)) from None

from spark_segments.cli.lazy_commands import group_of, panels
from spark_segments.cli.output import errors_in_one_line, show_any_text

# In the order of `segments --help`.
COMMANDS = panels(
    {
        "Topics": {"topic": "topics.topic:app"},
        "Records": {
            "offsets": "records.offsets:offsets",
            "groups": "records.groups:app",
            "append": "records.append:append",
            "consume": "records.consume:consume",
            "sql": "records.sql:sql",
            "delete-records": "records.offsets:delete_records",
        },
        "Maintenance": {
            "roll": "jobs.maintenance:roll",
            "retain": "jobs.maintenance:retain",
            "compact": "jobs.maintenance:compact",
            "vacuum": "jobs.maintenance:vacuum",
            "erase": "jobs.maintenance:erase",
            "index": "jobs.maintenance:index",
            "table": "jobs.maintenance:table",
            "maintain": "jobs.maintenance:maintain",
            "mirror": "jobs.mirror:mirror",
            "promote": "topics.promote:promote",
        },
        "Inspection": {
            "doctor": "doctor.doctor:doctor",
            "describe": "topics.describe:describe",
            "page": "page.serve:page",
            "explain": "jobs.explain:explain",
            "verify": "files.verify:verify",
            "dump": "files.dump:dump",
            "mcp": "mcp.serve:mcp",
        },
        "Kafka's directories": {"import": "files.kafka:import_", "export": "files.kafka:export"},
        "Kafka's protocol": {
            "serve": "kafka_protocol.serve:serve",
            "capture": "kafka_protocol.capture:capture",
            "replay": "kafka_protocol.replay:replay",
        },
    }
)

ELSEWHERE = {
    "topics": "segments topic",
    "config": "segments topic alter",
    "configs": "segments topic alter",
    **{name: f"segments topic {name}" for name in ("list", "create", "alter", "delete", "history", "restore")},
    "reset-offsets": "segments groups reset",
    "log-dirs": "segments topic list --output wide",
    "consumer-groups": "segments groups",
    "get-offsets": "segments offsets",
    "console-consumer": "segments consume",
    "console-producer": "segments append",
    "dump-log": "segments dump",
}

app = typer.Typer(
    name="segments",
    cls=group_of(COMMANDS, ELSEWHERE),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kafka's topics, segments, retention and compaction as files. Each command's --help has an example.",
)


def _version(shown: bool) -> None:
    if shown:
        print(f"segments {spark_segments.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Exit codes: 0 done, 1 errors (a line for each), 2 wrong usage, 3 faults were found."""
    if arguments is None:
        arguments = sys.argv[1:]
        if (
            not any(word.startswith(_ASKS_FOR_PANDAS) for word in arguments)
            and "PYSPARK_GATEWAY_PORT" not in os.environ
        ):
            # Where pandas is installed, pyarrow would import it at its first conversion: a quarter of the time that a
            # short command takes.
            sys.meta_path.insert(0, _NoPandas())
    # A command prints the warnings of its report: they would come a second time from the log, as the last resort.
    logging.getLogger("spark_segments.log.report").addHandler(logging.NullHandler())
    show_any_text()
    with errors_in_one_line():
        app(args=list(arguments), prog_name="segments")


# Spark, its check, and DuckDB.
_ASKS_FOR_PANDAS = ("--master", "doctor", "sql", "mcp")


class _NoPandas:
    """Pandas, as where it is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"commands without Spark do without {name}", name=name)
