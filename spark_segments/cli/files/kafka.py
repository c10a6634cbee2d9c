"""`segments import` and `segments export`: copy topics from Kafka's log directories, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_segments.cli.interrupts import commits_told
from spark_segments.cli.options import (
    ConfigOption,
    ConfiguredLogOptions,
    MetricsOption,
    OutputOption,
    SparkOptions,
    with_options,
)
from spark_segments.cli.output import FAILED, FOUND_FAULTS, Output, print_json, print_summary, print_table, shown_hole
from spark_segments.config import parse_overrides
from spark_segments.progress import progress_bar
from spark_segments.quantities import Bytes, human_bytes

KafkaStorageOption = Annotated[
    list[str] | None,
    typer.Option("--kafka-storage", metavar="NAME=VALUE", help="A storage option for KAFKA_DIR, like --storage."),
]


@with_options
def import_(
    kafka_dir: Annotated[
        str, typer.Argument(metavar="KAFKA_DIR", help="A log directory of Kafka, a partition in it, or tiered storage.")
    ],
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="PATTERN", help="Copy the topics orders or 'orders*', say; all by default."),
    ] = None,
    config: ConfigOption = None,
    recovery: Annotated[
        str | None,
        typer.Option(
            "--recovery",
            metavar="kafka",
            help="Take the log as a broker does: cut at damage, and without segments that are missing. By default the "
            "import stops there.",
        ),
    ] = None,
    keep_retention: Annotated[
        bool, typer.Option("--keep-retention", help="Keep retention.ms and retention.bytes of Kafka's topics, too.")
    ] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out topics whose names begin with __.")
    ] = False,
    replicated: Annotated[
        bool,
        typer.Option("--replicated", help="Copy what all in-sync replicas have: up to replication-offset-checkpoint."),
    ] = False,
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="PATTERN", help="Groups of __consumer_offsets to keep with their topics."),
    ] = None,
    checksums: Annotated[
        Path | None,
        typer.Option("--checksums", metavar="FILE", help="List the files and their checksums, for verify --against."),
    ] = None,
    output: OutputOption = Output.TEXT,
    metrics: MetricsOption = None,
    kafka_storage: KafkaStorageOption = None,
) -> None:
    """Copies topics from a Kafka log directory into LOG_DIR, which is created if it does not exist.

    Offsets, timestamps, leader epochs, transactions and checkpoints are kept.
    So are the topics' settings, where the directory has Kafka's metadata
    (__cluster_metadata-0), but retention: a topic gets retention.ms=-1 unless
    --config sets it or --keep-retention is given, so that no imported record
    expires at once. Run the import again after it was killed, or when
    the Kafka directory has grown: it adds the new records.

    --replicated copies a running broker's disk, or a stopped one's: nothing
    above the high watermark, which another broker may replace.

    Exit code 3: offsets are missing that the directory does not have any more;
    the topic records them as holes. 1: partitions are left to the next run,
    since a running broker changed their files in each attempt.

    Example: segments import /var/lib/kafka/data /data/log --topic 'orders*'
    """
    log = location.create()
    before, session = set(log.topics()), spark.session("import")
    with commits_told(log), progress_bar("import", of_bytes=True) as progress:
        imported = log.import_kafka(
            kafka_dir,
            topic,
            parse_overrides(config or []),
            recovery=recovery,
            keep_retention=keep_retention,
            exclude_internal=exclude_internal,
            replicated=replicated,
            groups=groups or [],
            storage_options=parse_overrides(kafka_storage or []),
            spark=session,
            progress=progress,
        )
    code = _tell(imported)
    if metrics is not None:
        _write_metrics(metrics, log.uri, "import", imported)
    if checksums is not None:
        from spark_segments.log.verification.checksums import write_checksums

        write_checksums(log.storage, [log.topic(one["topic"]).snapshot for one in imported], checksums, spark=session)
    if output is Output.JSON:
        print_json({"job": "import", "topics": imported})
    else:
        _print_topics(imported)
        new = [one["topic"] for one in imported if one["topic"] not in before]
        kept = [name for name in new if log.topic(name).snapshot.config.get("retention.ms") == "-1"]
        if kept:
            print(f"retention.ms=-1 is set on {', '.join(kept)}: no record expires until you alter the topic.")
    if code:
        raise typer.Exit(code)


def _tell(topics: list[dict[str, Any]]) -> int:
    """Prints the warnings of an import, the holes that it noticed, and the partitions that it left. Returns the exit
    code: FOUND_FAULTS where there are holes, else FAILED where partitions were left, else 0.
    """
    code = 0
    for one in topics:
        texts = [*one["warnings"]]
        for number in one["left"]:
            texts.append(f"the files of partition {number} changed in each attempt to copy them: run it again")
            code = code or FAILED
        for text in texts:
            print(f"warning: {one['topic']}: {text}", file=sys.stderr)
        for hole in one["holes"]:
            print(f"hole: {shown_hole({'topic': one['topic'], **hole})}", file=sys.stderr)
            code = FOUND_FAULTS
    return code


@with_options
def export(
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    kafka_dir: Annotated[
        str,
        typer.Argument(
            metavar="KAFKA_DIR", help="The directory to write partition directories to. No broker may run on it."
        ),
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Copy this topic only; all topics by default.")
    ] = None,
    output: OutputOption = Output.TEXT,
    metrics: MetricsOption = None,
    kafka_storage: KafkaStorageOption = None,
) -> None:
    """Writes topics as partition directories that a Kafka broker serves.

    Example: segments export /data/log /restored/log.dirs --topic orders
    """
    log = location.open()
    with progress_bar("export", of_bytes=True) as progress:
        exported = log.export_kafka(
            kafka_dir,
            topic,
            storage_options=parse_overrides(kafka_storage or []),
            spark=spark.session("export"),
            progress=progress,
        )
    if metrics is not None:
        _write_metrics(metrics, log.uri, "export", exported)
    if output is Output.JSON:
        print_json({"job": "export", "topics": exported})
        return
    _print_topics(exported)
    print(
        f"To serve it: stop a broker, let its log.dirs name {kafka_dir} (or move the partition directories and "
        "checkpoints into the one it has), and start it.\n"
        "meta.properties is the broker's own and is not written: a directory without one is formatted with "
        "kafka-storage.sh format.\n"
        "The cluster's metadata must name the topics with the ids in partition.metadata; else the broker takes the "
        "directories for strays."
    )


def _write_metrics(path: Path, uri: str, job: str, topics: list[dict[str, Any]]) -> None:
    from spark_segments.maintenance.metrics.copy_metrics import write_copy_metrics

    records, copied_bytes = ({one["topic"]: one[name] for one in topics} for name in ("records", "bytes"))
    write_copy_metrics(path, uri, job, records, copied_bytes)


def _print_topics(topics: list[dict[str, Any]]) -> None:
    columns = ["topic", "partitions", "segments", "records", "bytes"]
    print_table(columns, ([*(one[name] for name in columns[:-1]), Bytes(one["bytes"])] for one in topics))
    total = sum(one["bytes"] for one in topics)
    print_summary(f"{len(topics):,} topics, {sum(one['segments'] for one in topics):,} segments, {human_bytes(total)}")
