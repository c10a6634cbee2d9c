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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the topic gets a new id.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes the manifest of a topic anew where it is lost or damaged. No file of the log is changed.

    Stop all writers and jobs of the topic first, and see what --dry-run says.

    The rebuilt topic is what a recovery copy says, and the commits after it
    as far as something proves them. Files that no such commit names are
    listed with their bytes and never added: files do not say whether they
    were committed, and segments dump reads them. Unless all commits are
    known, the topic gets a new id, so that streams and groups stop and say
    so, and do not skip records.

    Example: segments repair /data/log orders --rebuild-manifest --dry-run
    Example: segments repair /data/log orders --rebuild-manifest
    """
    from spark_segments.log.rebuild.rebuild import rebuild_manifest as rebuild

    if not rebuild_manifest:
        raise typer.BadParameter("--rebuild-manifest says what to repair; segments verify --repair rebuilds indexes")
    log = location.open_damaged()
    if sys.stdin.isatty() and not yes and not dry_run:
        planned = rebuild(log, topic, dry_run=True)
        if planned.topic_id is None:
            with contextlib.redirect_stdout(sys.stderr):
                _print_text(planned)
            typer.confirm(f"Rebuild the manifest of {topic} under a new id?", abort=True, err=True)
    report = rebuild(log, topic, dry_run=dry_run)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(report)


def _print_text(report: RebuildReport) -> None:
    by = f"the recovery copy of version {report.copy_version}" if report.copy_version >= 0 else "the notes of commits"
    known = f"version {report.known_version}, by {by}"
    if 0 <= report.copy_version < report.known_version:
        known += f" and {report.known_version - report.copy_version} commits after it"
    done = "would be rebuilt" if report.dry_run else f"is rebuilt as version {report.version}"
    print(f"The manifest of {report.topic} {done}. Known is {known}.")
    if report.topic_id == report.topic_id_before and not report.is_exact:
        print(f"The topic is a follower and keeps its id, {report.topic_id}: mirror it again.")
    elif report.is_exact:
        print(f"All commits are known: the topic keeps its id, {report.topic_id}.")
    else:
        print(f"The topic gets a new id; before, it had {report.topic_id_before}.")
    columns = ["partition", "log_start_offset", "log_end_offset", "segments"]
    print_table(columns, ([line[name] for name in columns] for line in report.partitions))
    if report.unproven:
        print("\nCommits that have a note, and that nothing proves:")
        rows = ([one["version"], one["operation"], len(one["files"])] for one in report.unproven)
        print_table(["version", "operation", "files"], rows)
    if report.unnamed_files:
        print("\nFiles that no known commit names (segments dump reads them):")
        rows = ([one["path"], human_bytes(one["bytes"]), one["note"]] for one in report.unnamed_files)
        print_table(["path", "size", "in the note of version"], rows)
    if report.missing_files:
        print("\nFiles of the log that are gone or cut:")
        columns = ["path", "partition", "base_offset", "next_offset"]
        print_table(columns, ([one[name] for name in columns] for one in report.missing_files))
    if report.groups and not report.is_exact:
        print("\nGroups that must choose where they go on (segments groups reset):")
        columns = ["group", "partition", "offset"]
        print_table(columns, ([one[name] for name in columns] for one in report.groups))
    for sentence in report.not_known:
        print(f"\nNot known: {sentence}")
