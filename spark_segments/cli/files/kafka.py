"""`segments import` and `segments export`: copy topics from Kafka's log directories, and back."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spark_segments.cli.command_options import (
    CONFIG,
    METRICS,
    OUTPUT,
    TOPIC_PATTERNS,
    ConfiguredLogOptions,
    SparkOptions,
    argument,
    flag,
    option,
    with_options,
)
from spark_segments.cli.interrupts import commits_told
from spark_segments.cli.output import (
    FAILED,
    FOUND_FAULTS,
    Output,
    print_report,
    print_summary,
    shown_hole,
    write_copied,
)
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError
from spark_segments.progress import progress_bar

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir

KAFKA_STORAGE = option("A storage option for KAFKA_DIR, like --storage.", metavar="NAME=VALUE")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Which topics and groups are imported, how far, and with which settings."""

    topic: list[str] | None = TOPIC_PATTERNS
    config: list[str] | None = CONFIG
    recovery: str | None = option(
        "Take the log as a broker does: cut at damage, and without segments that are missing. By default the "
        "import stops there.",
        metavar="kafka",
    )
    keep_retention: bool = flag("Keep retention.ms and retention.bytes of Kafka's topics, too.")
    exclude_internal: bool = flag("Leave out topics whose names begin with __.")
    replicated: bool = flag("Copy what all in-sync replicas have: up to replication-offset-checkpoint.")
    groups: list[str] | None = option("Groups of __consumer_offsets to keep with their topics.", metavar="PATTERN")


@with_options
def import_(
    *,
    taken: ImportOptions,
    kafka_dir: str = argument("KAFKA_DIR", "A log directory of Kafka, a partition in it, or tiered storage."),
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    checksums: Path | None = option("List the files and their checksums, for verify --against.", metavar="FILE"),
    output: Output = OUTPUT,
    metrics: Path | None = METRICS,
    kafka_storage: list[str] | None = KAFKA_STORAGE,
) -> None:
    """Copies topics from a Kafka log directory into LOG_DIR, which is created if it does not exist.

    Offsets, timestamps, leader epochs, transactions and checkpoints are kept.
    So are the topics' settings, where the directory has Kafka's metadata
    (__cluster_metadata-0), but retention: a topic gets retention.ms=-1 unless
    --config sets it or --keep-retention is given, so that no imported record
    expires at once. Run the import again after it was killed, or when
    the Kafka directory has grown: it adds the new records.

    --replicated copies the disk of a running or a stopped broker up to the high
    watermark: another broker may replace the records above it.

    Exit code 3: offsets are missing that the directory does not have any more;
    the topic records them as holes. 1: partitions are left to the next run,
    since a running broker changed their files in each attempt; or positions
    of groups are left out, in partitions that other log.dirs have.

    Example: segments import /var/lib/kafka/data /data/log --topic 'orders*'
    """
    log = location.create()
    before = set(log.topics())
    session = spark.session("import")
    with commits_told(log), progress_bar("import", of_bytes=True) as progress:
        report = log.import_kafka(
            kafka_dir,
            taken.topic or None,
            parse_overrides(taken.config or []),
            recovery=taken.recovery,
            keep_retention=taken.keep_retention,
            exclude_internal=taken.exclude_internal,
            replicated=taken.replicated,
            groups=taken.groups or [],
            storage_options=parse_overrides(kafka_storage or []),
            spark=session,
            progress=progress,
        )
    for hole in report.details["holes"]:
        print(f"hole: {shown_hole(hole)}", file=sys.stderr)
    write_copied(metrics, log, report, "records_in", "bytes_in")
    print_report(report.to_dict(), output)
    if checksums is not None:
        from spark_segments.signed_lists.checksum_list import write_checksums

        write_checksums(log.storage, [log.topic(name).snapshot for name in report.topics], checksums, spark=session)
    if output is not Output.JSON:
        _print_kept(log, [name for name in report.topics if name not in before])
    if report.details["holes"] or report.failed or report.details.get("positions_elsewhere"):
        raise typer.Exit(FOUND_FAULTS if report.details["holes"] else FAILED)


def _print_kept(log: LogDir, names: Sequence[str]) -> None:
    """Prints which of these topics keep all records."""
    kept = [name for name in names if log.topic(name).snapshot.config.get("retention.ms") == "-1"]
    if kept:
        print_summary(f"retention.ms=-1 is set on {', '.join(kept)}: no record expires until you alter the topic.")


@with_options
def export(
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    kafka_dir: str = argument("KAFKA_DIR", "The directory to write partition directories to. No broker may run on it."),
    topic: list[str] | None = TOPIC_PATTERNS,
    topic_ids: Path | None = option(
        "What kafka-topics --describe prints of a new cluster, where the topics were created empty.",
        metavar="FILE",
        exists=True,
    ),
    output: Output = OUTPUT,
    metrics: Path | None = METRICS,
    kafka_storage: list[str] | None = KAFKA_STORAGE,
) -> None:
    """Writes topics as partition directories that a Kafka broker serves.

    A broker takes a directory whose topic id the cluster's metadata has: the
    cluster of before, or with --topic-ids a new cluster, in which the topics
    were created with as many partitions. They get the ids that they have
    there, and all batches leader epoch 0. The page "Archive a Kafka cluster"
    has the steps.

    Example: segments export /data/log /restored/log.dirs --topic 'orders*'
    """
    log = location.open()
    with progress_bar("export", of_bytes=True) as progress:
        report = log.export_kafka(
            kafka_dir,
            topic or None,
            topic_ids=None if topic_ids is None else _ids_there(log, topic_ids),
            storage_options=parse_overrides(kafka_storage or []),
            spark=spark.session("export"),
            progress=progress,
        )
    write_copied(metrics, log, report, "records_in", "bytes_in")
    print_report(report.to_dict(), output)
    if output is Output.JSON:
        return
    ids = "the ids of the cluster that this log is of: a new one needs --topic-ids"
    if topic_ids is not None:
        ids = f"the ids of {topic_ids}, and all batches have leader epoch 0"
    print_summary(
        "To serve it: stop the broker, remove its own directories of these partitions and .kafka_cleanshutdown, move "
        f"what is in {kafka_dir} into its log.dirs, and start it. meta.properties is the broker's own.\n"
        f"Topics have {ids}. A broker puts a directory aside (-stray) whose id the cluster's metadata does not have."
    )


def _ids_there(log: LogDir, file: Path) -> dict[str, str]:
    """The ids of the topics that kafka-topics --describe has printed. Raises InvalidOptionError where it has none, or
    a topic has another number of partitions there.
    """
    lines = re.findall(
        r"^Topic: (\S+)\s+TopicId: (\S+)\s+PartitionCount: (\d+)", file.read_text(encoding="utf-8"), re.MULTILINE
    )
    if not lines:
        raise InvalidOptionError(
            "The file names no topic with its id",
            path=str(file),
            expected="lines Topic: …  TopicId: …  PartitionCount: …, as kafka-topics --describe prints them",
        )
    here = {*log.topics()}
    for name, _, count in lines:
        if name not in here:
            continue
        expected = len(log.topic(name).offsets())
        if int(count) != expected:
            raise InvalidOptionError(
                f"Topic {name} has another number of partitions in the cluster",
                path=str(file),
                expected=expected,
                found=count,
                hint="Create it there with as many as here",
            )
    return {name: topic_id for name, topic_id, _ in lines}
