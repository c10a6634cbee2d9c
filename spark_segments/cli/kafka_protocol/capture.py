"""`segments capture`: topics of a running Kafka cluster, batch by batch."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_segments.cli.interrupts import until_interrupted
from spark_segments.cli.options import ConfiguredLogOptions, MetricsOption, OutputOption, with_options
from spark_segments.cli.output import FOUND_FAULTS, Output, print_json, shown_hole
from spark_segments.errors import MissingExtraError
from spark_segments.progress import progress_bar
from spark_segments.quantities import duration_ms


class Divergence(StrEnum):
    FAIL = "fail"
    BRANCH = "branch"


@with_options
def capture(
    bootstrap: Annotated[str, typer.Argument(metavar="BOOTSTRAP", help="Brokers: host:port, several with commas.")],
    location: ConfiguredLogOptions,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="PATTERN", help="The topics orders or 'orders*', say; may be given again."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="PATTERN", help="Groups whose positions in these topics are kept, too."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that was there at the start is here.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Without --once: how often to look, such as 500ms.")
    ] = "1s",
    client_config: Annotated[
        Path | None,
        typer.Option("--client-config", metavar="FILE", help="client.properties: SASL, TLS, as Kafka's clients have."),
    ] = None,
    keep_retention: Annotated[
        bool, typer.Option("--keep-retention", help="Keep retention.ms and retention.bytes of the cluster's topics.")
    ] = False,
    on_divergence: Annotated[
        Divergence,
        typer.Option("--on-divergence", help="Where the cluster's log is another one: an error, or a new copy here."),
    ] = Divergence.FAIL,
    recapture: Annotated[
        bool, typer.Option("--recapture", help="Begin a new copy of these topics, TOPIC.branch-1; the old one stays.")
    ] = False,
    metrics: MetricsOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Copies topics of a running cluster into LOG_DIR, which is created if it does not exist.

    Batches are the broker's, at the same offsets: nothing is decoded. A new
    topic gets the cluster's settings and topic id, but for retention. Run it
    again to go on; without --once it follows until Ctrl-C or SIGTERM.
    Of groups, the patterns of --groups, their positions come with them: of
    those that this user may see. Share groups have none, and are left out.

    Where a topic was made again, or a leader lost records that are here, its
    capture ends with an error. --on-divergence branch leaves the topic here as
    it is, and captures all that the cluster has into TOPIC.branch-1, say, where
    each later run goes on.

    Exit code 3: the cluster removed offsets before they were captured, and the
    topic records them as holes; a compacted topic was captured too late for its
    tombstones; or a new copy was begun.

    Example: segments capture broker:9092 /data/log --topic 'orders*' --once
    """
    try:
        from spark_segments.kafka_protocol.capturing import capture as capture_topics
        from spark_segments.kafka_protocol.client_settings import settings_of_file
    except ModuleNotFoundError as error:
        raise MissingExtraError("kafka", "Kafka's protocol", str(error.name)) from error

    log = location.create()
    settings = settings_of_file(str(client_config)) if client_config is not None else {}
    pause_seconds = duration_ms(interval) / 1000
    code = passes = 0

    def take() -> list[dict[str, Any]]:
        with progress_bar("capture") as show:
            return capture_topics(
                log,
                bootstrap,
                topic or ["*"],
                groups=groups or [],
                client_config=settings,
                keep_retention=keep_retention,
                on_divergence=on_divergence.value,
                recapture=recapture and not passes,
                progress=lambda _, done, total: show(done, total),
            )

    with until_interrupted():
        while True:
            done = take()
            passes += 1
            code = code or _tell(done)
            if metrics is not None:
                _write_metrics(metrics, log.uri, done)
            if once or any(one["records"] or one["holes"] for one in done):
                _print(done, output)
            if once:
                break
            time.sleep(pause_seconds)
    if code:
        raise typer.Exit(code)


def _tell(topics: list[dict[str, Any]]) -> int:
    """Prints warnings and holes; returns the exit code."""
    code = 0
    for one in topics:
        for text in one["warnings"]:
            print(f"warning: {one['topic']}: {text}", file=sys.stderr, flush=True)
        for hole in one["holes"]:
            print(f"hole: {shown_hole({'topic': one['topic'], **hole})}", file=sys.stderr, flush=True)
        if one["holes"] or one["late"] or one["branched"]:
            code = FOUND_FAULTS
    return code


def _print(topics: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        print_json({"job": "capture", "topics": topics})
        return
    for one in topics:
        text = f"{one['records']} records in {one['bytes']} bytes, {one['lag']} behind"
        print(f"{one['topic']}: {text}", flush=True)


def _write_metrics(path: Path, uri: str, topics: list[dict[str, Any]]) -> None:
    from spark_segments.maintenance.metrics.copy_metrics import write_copy_metrics

    records, copied_bytes, lag = ({one["topic"]: one[name] for one in topics} for name in ("records", "bytes", "lag"))
    write_copy_metrics(path, uri, "capture", records, copied_bytes, lag)
