"""`segments replay`: records of topics, sent to a running Kafka cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.command_options import (
    BOOTSTRAP,
    CLIENT_CONFIG,
    DRY_RUN,
    FROM_TIME,
    METRICS,
    OUTPUT,
    TO_TIME,
    TOPIC_PATTERNS,
    LogOptions,
    flag,
    option,
    with_options,
)
from spark_segments.cli.interrupts import until_interrupted
from spark_segments.cli.output import Output, print_json, print_rows, tell, write_copied
from spark_segments.config import parse_overrides
from spark_segments.errors import MissingExtraError
from spark_segments.kafka_protocol.replaying.rehashing import Partitions
from spark_segments.kafka_protocol.replaying.schema_ids import Framed
from spark_segments.progress import progress_bar
from spark_segments.quantities import span_ms, volume_bytes

if TYPE_CHECKING:
    from spark_segments.log import Report


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Which records are sent, and to which topics and partitions; which positions go along."""

    topic: list[str] | None = TOPIC_PATTERNS
    rename: list[str] | None = option("The topic's name there; both may have a *.", metavar="TOPIC=NAME")
    partitions: Partitions = option(
        "Where the topic there has another number: the same partition, or by the key.", default=Partitions.KEEP
    )
    from_time: str | None = FROM_TIME
    to_time: str | None = TO_TIME
    groups: list[str] | None = option("Groups whose positions go along, at the new offsets.", metavar="PATTERN")


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """The registries between which ids of schemas are translated."""

    source_registry: str | None = option("The schema registry that the records were written with.", metavar="ADDRESS")
    target_registry: str | None = option("The one whose ids of schemas they get.", metavar="ADDRESS")
    framed: Framed = option("Keys, values or both: which have an id of a schema.", default=Framed.BOTH)


@dataclass(frozen=True, slots=True)
class SendingOptions:
    """How records are sent, and how often the log is looked at."""

    name: str = option("The replay's transactional id and group in the cluster.", default="segments-replay")
    follow: bool = flag("Go on as the topics grow, until Ctrl-C.", "-f")
    interval: str = option("With --follow: how often to look, such as 500ms.", default="1s", metavar="DURATION")
    idempotent: bool = flag("No transactions: once, as long as nothing else writes the topics there.")
    max_rate: str | None = option("Bytes of keys and values a second, such as 20MiB.", metavar="SIZE")
    client_config: Path | None = CLIENT_CONFIG


@with_options
def replay(
    records: RecordOptions,
    registries: RegistryOptions,
    sending: SendingOptions,
    location: LogOptions,
    bootstrap: str = BOOTSTRAP,
    dry_run: bool = DRY_RUN,
    metrics: Path | None = METRICS,
    output: Output = OUTPUT,
) -> None:
    """Sends the committed records of topics to a running cluster, exactly once.

    Partitions, keys, values, headers and times stay the same. Offsets change:
    the offset map in LOG_DIR/_replay has both. A topic that the cluster lacks
    is made. A group of --groups that has no positions in the cluster gets its
    positions here, translated. Run it again to go on; --follow goes on until
    Ctrl-C or SIGTERM. One process at a time replays under a name.

    A topic there may have another number of partitions. If it has more, each
    record keeps its partition; --partitions rehash sends each record to the
    partition that Kafka's producer would choose by its key. The records of a
    key stay in order; the order between keys is lost, and a group goes on at
    a position before all records that it has not read.

    --rename 'orders*=new.orders*' renames all topics of a pattern.

    With --source-registry and --target-registry (addresses, or _schemas for
    that topic of the log) schemas are registered in the target under the
    same subjects, and ids of schemas in front of keys and values, or in
    headers, become those there. A record whose schema the source lacks is
    an error before anything is sent.

    --idempotent needs no transactions, and leaves no gaps in the offsets
    there. It is exactly once only while this replay alone writes the
    topics: a run after one that was killed takes all records above the
    last position for its own.

    It refuses, before it sends anything, a cluster that would replace times,
    refuse them, or remove records at once, and topics with other records.

    Example: segments replay /data/log broker:9092 --topic 'orders*' --dry-run
    """
    try:
        from spark_segments.kafka_protocol.client_settings import settings_of_file
        from spark_segments.kafka_protocol.replaying.replay import Replay
        from spark_segments.kafka_protocol.replaying.replay_options import ReplayOptions
    except ModuleNotFoundError as error:
        raise MissingExtraError("kafka", "Commands of Kafka's protocol", str(error.name)) from error

    log = location.open()
    options = ReplayOptions(
        name=sending.name,
        client_config=settings_of_file(str(sending.client_config)) if sending.client_config is not None else {},
        rename=parse_overrides(records.rename or []),
        partitions=records.partitions,
        from_time_ms=records.from_time,
        to_time_ms=records.to_time,
        groups=records.groups or [],
        source_registry=registries.source_registry,
        target_registry=registries.target_registry,
        framed=registries.framed,
        idempotent=sending.idempotent,
        max_bytes_per_second=None if sending.max_rate is None else volume_bytes(sending.max_rate),
    )
    pause_seconds = span_ms(sending.interval) / 1000
    with (
        until_interrupted(),
        progress_bar("replay") as progress,
        Replay(log, bootstrap, records.topic or ["*"], options, progress) as work,
    ):
        if dry_run:
            report = work.plan()
            tell(report, set())
            write_copied(None, log, report, "records_out", "bytes_out")
            _print(report, output)
            return
        told: set[str] = set()
        while True:
            report = work.send()
            told = tell(report, told)
            write_copied(metrics, log, report, "records_out", "bytes_out")
            if not sending.follow or report.to_dict()["records_out"]:
                _print(report, output)
            if not sending.follow:
                return
            time.sleep(pause_seconds)


def _print(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print_json(report.to_dict())
        return
    columns = ["topic", "target", "partitions", *(["created", "to_send"] if report.dry_run else ["records", "bytes"])]
    lines = [line | {"records": line["records_out"], "bytes": line["bytes_out"]} for line in report.partitions]
    print_rows(columns, lines)
    for line in lines:
        if line.get("groups"):
            print(f"{line['target']}: positions of {', '.join(line['groups'])}")
    sys.stdout.flush()
