"""The `segments` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

import spark_segments
from spark_segments.cli.files import dump, kafka, verify
from spark_segments.cli.jobs import explain, job_path, maintenance
from spark_segments.cli.output import errors_in_one_line
from spark_segments.cli.records import append, console
from spark_segments.cli.topics import describe, topic

_FIRST = ("topic", "offsets", "produce", "append", "consume", "delete-records")


class _InOrder(TyperGroup):
    """Lists `topic` first, then the commands in the order in which they are added below."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*_FIRST, *(name for name in names if name not in _FIRST)]


app = typer.Typer(
    name="segments",
    cls=_InOrder,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kafka's topics, segments, retention and compaction as files. Each command's --help has an example.",
)
app.add_typer(topic.app, name="topic", rich_help_panel="Topics")
app.command("offsets", rich_help_panel="Records")(console.offsets)
app.command("produce", rich_help_panel="Records")(console.produce)
app.command("append", rich_help_panel="Records")(append.append)
app.command("consume", rich_help_panel="Records")(console.consume)
app.command("delete-records", rich_help_panel="Records")(console.delete_records)
app.command("roll", rich_help_panel="Maintenance")(maintenance.roll)
app.command("retain", rich_help_panel="Maintenance")(maintenance.retain)
app.command("compact", rich_help_panel="Maintenance")(maintenance.compact)
app.command("vacuum", rich_help_panel="Maintenance")(maintenance.vacuum)
app.command("maintain", rich_help_panel="Maintenance")(maintenance.maintain)
app.command("job-path", rich_help_panel="Maintenance")(job_path.job_path)
app.command("describe", rich_help_panel="Inspection")(describe.describe)
app.command("explain", rich_help_panel="Inspection")(explain.explain)
app.command("verify", rich_help_panel="Inspection")(verify.verify)
app.command("dump", rich_help_panel="Inspection")(dump.dump)
app.command("import", rich_help_panel="Kafka's directories")(kafka.import_)
app.command("export", rich_help_panel="Kafka's directories")(kafka.export)


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
    with errors_in_one_line():
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="segments")
