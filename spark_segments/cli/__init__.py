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

from spark_segments.cli.lazy_commands import group_of, panel
from spark_segments.cli.output import errors_in_one_line

# In the order of `segments --help`. The summary is the first paragraph of the function's docstring.
COMMANDS = [
    *panel(
        "Topics",
        ("topic", "topics.topic:app", "Create, list, alter, delete and restore topics; their history."),
    ),
    *panel(
        "Records",
        (
            "offsets",
            "records.offsets:offsets",
            "Prints topic:partition:offset lines: the log end, the log start, or the first offset of a time or later.",
        ),
        ("groups", "records.groups:app", "List, show, reset and delete groups of readers."),
        (
            "append",
            "records.append:append",
            "Appends lines of text or JSON, CSV, Parquet or a Delta table, all in one commit.",
        ),
        (
            "consume",
            "records.consume:consume",
            "Prints the records in the topic, partition by partition, by offset. With --follow it waits for more.",
        ),
        (
            "sql",
            "records.sql:sql",
            "Runs a SQL query over topics, by DuckDB. A topic is a view; its newest records by key are <topic>$latest.",
        ),
        (
            "delete-records",
            "records.delete_records:delete_records",
            "Moves the log start up. On a terminal it says how far, and asks first.",
        ),
    ),
    *panel(
        "Maintenance",
        (
            "roll",
            "jobs.maintenance:roll",
            "Seals segments that are due by segment.bytes, segment.ms or a full index, and merges small chunks.",
        ),
        (
            "retain",
            "jobs.maintenance:retain",
            "Takes whole segments out of the log by retention.ms and retention.bytes, oldest first.",
        ),
        (
            "compact",
            "jobs.maintenance:compact",
            "Keeps the newest record of every key in the topics whose cleanup.policy has compact.",
        ),
        (
            "vacuum",
            "jobs.maintenance:vacuum",
            "Deletes files that left the log long ago, files that no commit names, and old manifest files.",
        ),
        (
            "erase",
            "jobs.erase:erase",
            "Erases the records of keys from a topic: no other record goes, and every offset stays.",
        ),
        (
            "table",
            "jobs.table:table",
            "Keeps a Delta table beside a topic: its records as columns, for whatever reads Parquet.",
        ),
        ("maintain", "jobs.maintenance:maintain", "Runs all maintenance jobs in order: roll, retain, compact, vacuum."),
        (
            "mirror",
            "jobs.mirror:mirror",
            "Keeps topics of SOURCE in step in TARGET: commit by commit, with offsets, topic ids, paths and settings.",
        ),
        (
            "promote",
            "topics.promote:promote",
            "Makes followers in LOG_DIR the leaders of their topics, and fences the leaders before them.",
        ),
    ),
    *panel(
        "Inspection",
        (
            "doctor",
            "doctor.doctor:doctor",
            "Checks what usually goes wrong and says what to do: versions, kernels, Java, Spark's Pythons, the store.",
        ),
        (
            "describe",
            "topics.describe:describe",
            "Shows topics: settings; offsets, segments, records, bytes and dirty ratio of each partition.",
        ),
        (
            "page",
            "page.serve:page",
            "Serves the page of a log directory, always current, with a browser for its records.",
        ),
        (
            "explain",
            "jobs.explain:explain",
            "Says which rule keeps a record, what must happen before it goes, and when.",
        ),
        (
            "verify",
            "files.verify:verify",
            "Looks for faults in the manifest, the files and their sizes, and with --deep in every byte.",
        ),
        ("dump", "files.dump:dump", "Prints .log, .index, .timeindex, .snapshot, .txnindex and checkpoint files."),
    ),
    *panel(
        "Kafka's directories",
        (
            "import",
            "files.kafka:import_",
            "Copies topics from a Kafka log directory into LOG_DIR, which is created if it does not exist.",
        ),
        ("export", "files.kafka:export", "Writes topics as partition directories that a Kafka broker serves."),
    ),
    *panel(
        "Kafka's protocol",
        (
            "serve",
            "kafka_protocol.serve:serve",
            "Serves topics to Kafka's own clients, as a read-only cluster of one broker.",
        ),
        (
            "capture",
            "kafka_protocol.capture:capture",
            "Copies topics of a running cluster into LOG_DIR, which is created if it does not exist.",
        ),
        (
            "replay",
            "kafka_protocol.replay:replay",
            "Sends the committed records of topics to a running cluster, exactly once.",
        ),
    ),
]

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
        if not any(one.startswith(_ASKS_FOR_PANDAS) for one in arguments) and "PYSPARK_GATEWAY_PORT" not in os.environ:
            # Where pandas is installed, pyarrow would import it at its first conversion: a quarter of the time that a
            # short command takes.
            sys.meta_path.insert(0, _NoPandas())
    # A command prints the warnings of its report: they would come a second time from the log, as the last resort.
    logging.getLogger("spark_segments.log.report").addHandler(logging.NullHandler())
    with errors_in_one_line():
        app(args=list(arguments), prog_name="segments")


# Spark, its check, and DuckDB.
_ASKS_FOR_PANDAS = ("--master", "doctor", "sql")


class _NoPandas:
    """Pandas and what comes with it, as where they are not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("pandas", "dateutil"):
            raise ModuleNotFoundError(f"commands without Spark do without {name}", name=name)
