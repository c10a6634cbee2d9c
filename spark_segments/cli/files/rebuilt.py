"""`segments verify --repair` of a topic whose manifest is lost or damaged: it is made anew."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.cli.confirmation import confirm
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.errors import InvalidOptionError, SegmentsError, StorageError
from spark_segments.log.rebuild.rebuild import rebuild_manifest
from spark_segments.quantities import Bytes

if TYPE_CHECKING:
    from spark_segments.log.logdir import LogDir
    from spark_segments.log.report import Report


def is_readable(log: LogDir, topic: str) -> bool:
    """Whether the manifest of a topic can be read. Raises StorageError where the store fails: then nobody knows."""
    try:
        _ = log.topic(topic).snapshot.segments
    except StorageError:
        raise
    except (SegmentsError, OSError, ValueError):
        return False
    return True


def rebuild(log: LogDir, topic: str, output: Output, *, dry_run: bool, yes: bool) -> None:
    """Rebuilds a manifest and prints the report. A topic that would get a new id needs `yes`, or the answer of whoever
    sits at the terminal.
    """
    report = rebuild_manifest(log, topic, dry_run=True)
    if not dry_run:
        if report.details["topic_id"] is None and not yes:
            if not sys.stdin.isatty():
                raise InvalidOptionError(
                    f"The manifest of {topic} is rebuilt under a new id, for not all commits are known",
                    expected="--yes",
                    hint="--dry-run says what is known, and what is not",
                )
            confirm(f"Rebuild the manifest of {topic} under a new id?", yes, partial(_print_text, report))
        report = rebuild_manifest(log, topic)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(report)


def _print_text(report: Report) -> None:
    said, [topic] = report.details, report.topics
    by = f"the recovery copy of version {said['copy_version']}" if said["copy_version"] >= 0 else "the notes of commits"
    known = f"version {said['known_version']}, by {by}"
    if 0 <= said["copy_version"] < said["known_version"]:
        known += f" and {said['known_version'] - said['copy_version']} commits after it"
    done = "would be rebuilt" if report.dry_run else f"is rebuilt as version {said['version']}"
    print(f"The manifest of {topic} {done}. Known is {known}.")
    if said["topic_id"] == said["topic_id_before"] and not said["is_exact"]:
        print(f"The topic is a follower and keeps its id, {said['topic_id']}: mirror it again.")
    elif said["is_exact"]:
        print(f"All commits are known: the topic keeps its id, {said['topic_id']}.")
    else:
        print(f"The topic gets a new id; before, it had {said['topic_id_before']}.")
    columns = ["partition", "log_start_offset", "log_end_offset", "segments"]
    print_table(columns, ([line[name] for name in columns] for line in report.partitions))
    if said["unproven"]:
        print("\nCommits that have a note, and that nothing proves:")
        rows = ([one["version"], one["operation"], len(one["files"])] for one in said["unproven"])
        print_table(["version", "operation", "files"], rows)
    if said["unnamed_files"]:
        print("\nFiles that no known commit names (segments dump reads them):")
        rows = ([one["path"], Bytes(one["bytes"]), one["note"]] for one in said["unnamed_files"])
        print_table(["path", "size", "in the note of version"], rows)
    if said["missing_files"]:
        print("\nFiles of the log that are gone or cut:")
        columns = ["path", "partition", "base_offset", "next_offset"]
        print_table(columns, ([one[name] for name in columns] for one in said["missing_files"]))
    if said["groups"] and not said["is_exact"]:
        print("\nGroups that must choose where they go on (segments groups reset):")
        columns = ["group", "partition", "offset"]
        print_table(columns, ([one[name] for name in columns] for one in said["groups"]))
    for sentence in said["not_known"]:
        print(f"\nNot known: {sentence}")
