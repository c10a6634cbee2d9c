"""`segments repair`: makes a lost or damaged manifest anew."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spark_segments.cli.options import ConfiguredLogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, human_bytes, print_json, print_table

if TYPE_CHECKING:
    from spark_segments.log.rebuild.report import RebuildReport


@with_options
def repair(
    location: ConfiguredLogOptions,
    topic: TopicArgument,
    rebuild_manifest: Annotated[
        bool, typer.Option("--rebuild-manifest", help="Make the topic's manifest anew from its recovery copies.")
    ] = False,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add", metavar="PATH", help="Add a file that no known commit names; `all` adds all that can be added."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the topic gets a new id.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes the manifest of a topic anew where it is lost or damaged. No file of the log is changed.

    Stop all writers and jobs of the topic first, and see what --dry-run says.

    The rebuilt topic is what the newest recovery copy says, and the commits
    after it as far as they can be read. Files that no such commit names were
    committed later, or never: they are listed, and added only with --add.
    Unless all commits are known, the topic gets a new id, so that streams
    and groups stop and say so, and do not skip records.

    Example: segments repair /data/log orders --rebuild-manifest --dry-run
    Example: segments repair /data/log orders --rebuild-manifest --add all
    """
    from spark_segments.log.rebuild.rebuild import rebuild_manifest as rebuild

    if not rebuild_manifest:
        raise typer.BadParameter("--rebuild-manifest says what to repair; segments verify --repair rebuilds indexes")
    log = location.open_damaged()
    if sys.stdin.isatty() and not yes and not dry_run:
        planned = rebuild(log, topic, add=add or (), dry_run=True)
        if planned.topic_id is None:
            with contextlib.redirect_stdout(sys.stderr):
                _print_text(planned)
            typer.confirm(f"Rebuild the manifest of {topic} under a new id?", abort=True, err=True)
    report = rebuild(log, topic, add=add or (), dry_run=dry_run)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(report)


def _print_text(report: RebuildReport) -> None:
    known = f"version {report.known_version}, by the recovery copy of version {report.copy_version}"
    if report.known_version > report.copy_version:
        known += f" and {report.known_version - report.copy_version} commits after it"
    done = "would be rebuilt" if report.dry_run else f"is rebuilt as version {report.version}"
    print(f"The manifest of {report.topic} {done}. Known is {known}.")
    if report.topic_id == report.topic_id_before and not report.is_exact:
        print(f"The topic is a follower and keeps its id, {report.topic_id}: mirror it again.")
    elif report.is_exact:
        print(f"All commits are known: the topic keeps its id, {report.topic_id}.")
    else:
        print(f"The topic gets a new id; before, it had {report.topic_id_before}.")
    columns = [
        "partition", "known_log_start_offset", "log_start_offset", "known_log_end_offset", "log_end_offset", "segments"
    ]  # fmt: skip
    print_table(columns, ([line[name] for name in columns] for line in report.partitions))
    if report.later_files:
        print("\nFiles that no known commit names:")
        rows = (
            [one["path"], one["records"], human_bytes(one["bytes"]), one["status"], one["reason"] or ""]
            for one in report.later_files
        )
        print_table(["path", "records", "size", "status", "reason"], rows)
    if report.missing_files:
        print("\nFiles of the log that are gone or cut, and the offsets that no other file has:")
        columns = ["path", "partition", "base_offset", "next_offset", "reads"]
        print_table(columns, ([one[name] for name in columns] for one in report.missing_files))
    if report.returned_files:
        print("\nFiles that had left the log, in it again with the records of files that are gone:")
        columns = ["path", "partition", "base_offset", "next_offset"]
        print_table(columns, ([one[name] for name in columns] for one in report.returned_files))
    if report.groups and not report.is_exact:
        print("\nGroups that must choose where they go on (segments offsets --group GROUP --reset-to):")
        columns = ["group", "partition", "offset"]
        print_table(columns, ([one[name] for name in columns] for one in report.groups))
    for sentence in report.not_known:
        print(f"\nNot known: {sentence}")
