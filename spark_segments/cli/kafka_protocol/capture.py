"""`segments capture`: topics of a running Kafka cluster, batch by batch."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spark_segments.cli.command_options import (
    BOOTSTRAP,
    CLIENT_CONFIG,
    METRICS,
    OUTPUT,
    TOPIC_PATTERNS,
    ConfiguredLogOptions,
    SparkOptions,
    flag,
    option,
    with_options,
)
from spark_segments.cli.interrupts import until_interrupted
from spark_segments.cli.output import FAILED, FOUND_FAULTS, Output, print_json, shown_hole, tell, write_copied
from spark_segments.errors import MissingExtraError
from spark_segments.kafka_protocol.capturing.capture_options import Divergence
from spark_segments.progress import progress_bar
from spark_segments.quantities import human_bytes, plural, span_ms, volume_bytes

if TYPE_CHECKING:
    from spark_segments.log import Report


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What is captured, and what becomes of topics here that are not as in the cluster."""

    topic: list[str] | None = TOPIC_PATTERNS
    groups: list[str] | None = option("Groups whose positions in these topics are kept, too.", metavar="PATTERN")
    keep_retention: bool = flag("Keep retention.ms and retention.bytes of the cluster's topics.")
    on_divergence: Divergence = option(
        "Where the cluster's log is another one: an error, what is here stays, or a new copy beside it.",
        default=Divergence.FAIL,
    )
    recapture: bool = flag("Begin a new copy of these topics, TOPIC.branch-1; the old one stays.")


@dataclass(frozen=True, slots=True)
class PaceOptions:
    """How often and how fast a cluster is read, and as which client."""

    once: bool = flag("End when all that was there at the start is here.")
    interval: str = option("Without --once: how often to look, such as 500ms.", default="1s", metavar="DURATION")
    max_rate: str | None = option("Bytes a second at most, over all partitions, such as 20MiB.", metavar="SIZE")
    client_config: Path | None = CLIENT_CONFIG


@with_options
def capture(
    *,
    copies: CopyOptions,
    pace: PaceOptions,
    bootstrap: str = BOOTSTRAP,
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    metrics: Path | None = METRICS,
    output: Output = OUTPUT,
) -> None:
    """Copies topics of a running cluster into LOG_DIR, which is created if it does not exist.

    Batches are the broker's, at the same offsets: nothing is decoded. A new
    topic gets the cluster's settings and topic id, but for retention. Run it
    again to go on; without --once it follows until Ctrl-C or SIGTERM.
    --groups captures the positions of consumer groups, too: of each group
    that matches and that this user may see. Share groups are left out.
    A line names the captured groups. Bytes are counted as in the log: batches
    with their headers, compressed or not.

    Where a topic was made again, or a leader lost records that are here, its
    partition ends with an error, and the others go on. --on-divergence keep
    captures no more of the partition. --on-divergence branch captures no more
    into the topic, and captures the cluster's whole topic into a new one, such
    as TOPIC.branch-1, where each later run goes on.

    Exit code 3: the cluster removed offsets before they were captured, and the
    topic records them as holes; a compacted topic was captured too late for its
    tombstones; a new copy was begun; or partitions were kept. 1: a topic
    failed. Without --once each error is printed once, and the topic retried.

    With --master, or under spark-submit, executors are the clients.

    Example: segments capture broker:9092 /data/log --topic 'orders*' --once
    """
    try:
        from spark_segments.kafka_protocol.capturing.capture import capture as capture_topics
        from spark_segments.kafka_protocol.capturing.capture_options import CaptureOptions
        from spark_segments.kafka_protocol.client_settings import settings_of_file
    except ModuleNotFoundError as error:
        raise MissingExtraError("kafka", "Commands of Kafka's protocol", str(error.name)) from error

    log = location.create()
    session = spark.session("capture")
    options = CaptureOptions(
        groups=copies.groups or [],
        client_config=settings_of_file(str(pace.client_config)) if pace.client_config is not None else {},
        keep_retention=copies.keep_retention,
        on_divergence=copies.on_divergence,
        recapture=copies.recapture,
        max_rate=None if pace.max_rate is None else volume_bytes(pace.max_rate),
    )
    topics = copies.topic or ["*"]
    pause_seconds = span_ms(pace.interval) / 1000
    code = 0
    shown = _Shown(output)
    with until_interrupted():
        while True:
            with progress_bar("capture") as progress:
                report = capture_topics(log, bootstrap, topics, options, spark=session, progress=progress)
            # Brokers that are away later are waited for. And a new copy is begun once: each pass would begin another.
            options = dataclasses.replace(options, recapture=False, reach_seconds=options.patience_seconds)
            code = code or _code(report)
            lag = {line["topic"]: line["lag"] for line in report.partitions if "lag" in line}
            write_copied(metrics, log, report, "records_out", "bytes_out", lag)
            shown.show(report, copies.groups or [], is_last=pace.once)
            if pace.once:
                break
            time.sleep(pause_seconds)
    if code:
        raise typer.Exit(code)


def _code(report: Report) -> int:
    """The exit code of a pass."""
    if report.failed:
        return FAILED
    is_told = any(line["late"] or line["kept"] or line.get("branched") for line in report.partitions)
    return FOUND_FAULTS if is_told or report.details["holes"] else 0


@dataclass(slots=True)
class _Shown:
    """What was printed of the passes so far: an error, and a list of groups, is printed once."""

    output: Output
    errors: set[str] = field(default_factory=set)
    groups_line: str = ""

    def show(self, report: Report, patterns: list[str], *, is_last: bool) -> None:
        """Prints what a pass has done. `patterns`: of the groups that are captured, too."""
        self.errors = tell(report, self.errors)
        for hole in report.details["holes"]:
            print(f"hole: {shown_hole(hole)}", file=sys.stderr, flush=True)
        if is_last or report.to_dict()["records_out"] or report.details["holes"]:
            _print(report, self.output)
        if patterns and self.output is not Output.JSON:
            line = _groups_line(report, patterns)
            if line != self.groups_line:
                print(line, flush=True)
            self.groups_line = line


def _print(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print_json(report.to_dict())
        return
    for line in report.partitions:
        lag = f", {line['lag']} behind" if "lag" in line else ""
        size = human_bytes(line["bytes_out"])
        print(f"{line['topic']}: {plural(line['records_out'], 'record')} in {size} of batches{lag}", flush=True)


def _groups_line(report: Report, patterns: list[str]) -> str:
    """The groups that a pass has taken."""
    taken = sorted({group for line in report.partitions for group in line.get("groups", ())})
    if not taken:
        return f"groups: none of {', '.join(patterns)} has a position in these topics"
    return f"groups: {', '.join(taken)}"
