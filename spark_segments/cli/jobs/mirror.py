"""`segments mirror`: topics in step at another place, once or until it is ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from spark_segments.cli.command_options import (
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
from spark_segments.cli.interrupts import until_interrupted
from spark_segments.cli.output import FAILED, Output, print_json, print_summary, print_table, tell
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError
from spark_segments.log import Report
from spark_segments.quantities import Bytes, human_bytes, plural, span_ms

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir


@dataclass(frozen=True, slots=True)
class TargetOptions(ConfiguredLogOptions):
    """TARGET, --storage and --defaults."""

    log_dir: str = argument("TARGET", "The followers' log directory, which is made where there is none.")


@with_options
def mirror(
    *,
    source: str = argument("SOURCE", "The leaders' log directory: a path or an s3://, gs://, abfs:// URI."),
    target: TargetOptions,
    spark: SparkOptions,
    topic: list[str] | None = TOPIC_PATTERNS,
    once: bool = flag("End when the followers are in step."),
    interval: str = option(
        "How often to look for new commits, such as 500ms or 10s.", default="1s", metavar="DURATION"
    ),
    dry_run: bool = flag("Only show how far the followers are behind; mirror nothing."),
    groups: bool = flag("Mirror the positions of groups, too, over those of TARGET's groups."),
    checksums: Path | None = option(
        "With --once: list the files and their checksums, for verify --against.", metavar="FILE"
    ),
    output: Output = OUTPUT,
    metrics: Path | None = METRICS,
    source_storage: list[str] | None = option("A storage option for SOURCE, like --storage.", metavar="NAME=VALUE"),
) -> None:
    """Keeps topics of SOURCE in step in TARGET: commit by commit, with offsets, topic ids, paths and settings.

    The topics of TARGET are followers: they are read like any topic, and
    refuse appends and jobs. Only vacuum runs on them. At every moment a
    follower is what its leader was at some version. Checksums of what is
    read and written are compared, and every record batch is checked.

    It runs until it is ended, unless --once is given, and may be killed at
    any moment: the next run goes on. A follower that is far behind jumps to
    the leader's newest version. The first pass is printed, then each pass
    that changed something; with --output json only those, a line each.

    Example: segments mirror /data/log s3://backup/log --topic 'orders*'
    Example: segments mirror /data/log /backup/log --once --master local[4]
    Example: segments mirror /data/log /backup/log --dry-run
    """
    from spark_segments.face.logdir import LogDir
    from spark_segments.replicas.mirror import check_leader
    from spark_segments.replicas.mirror import mirror as job

    seconds = _seconds(interval)
    leaders = LogDir.open(source, parse_overrides(source_storage or []))
    check_leader(leaders)  # before anything is made
    if checksums is not None and not once:
        raise InvalidOptionError(
            "A list of checksums is of one state", expected="--once with --checksums", found="no --once"
        )
    followers = target.open() if dry_run else target.create()
    run = partial(spark.run, job, followers, topic, leader=leaders, dry_run=dry_run, groups=groups, checksums=checksums)
    passes = _Passes(run, followers, output, metrics)
    if once or dry_run:
        passes.run_once()
        return
    print(
        f"mirror: {source} is followed in {followers.uri}, with a look every {interval}, until it is ended (Ctrl+C). "
        "A pass that copies something is printed",
        file=sys.stderr,
        flush=True,
    )
    with until_interrupted():
        passes.run_until_ended(seconds)


def _seconds(interval: str) -> float:
    seconds = span_ms(interval) / 1000
    if seconds <= 0:
        raise InvalidOptionError("The interval is above 0", expected="such as 1s or 500ms", found=interval)
    return seconds


@dataclass(frozen=True, slots=True)
class _Passes:
    """Passes of a mirror, and where their reports go: `run` makes one pass."""

    run: Callable[..., Report]
    target: LogDir
    output: Output
    metrics: Path | None

    def run_once(self) -> None:
        report = self.run()
        tell(report, set())
        _print(report, self.output)
        self._write_metrics(report)
        if report.failed:
            raise typer.Exit(FAILED)

    def run_until_ended(self, seconds: float) -> NoReturn:
        """Runs pass after pass. Each error is printed once. A topic that failed is tried again in each pass."""
        told: set[str] = set()
        is_first = True
        while True:
            report = self._report()
            # An error that a pass no longer has is forgotten: it is printed again when it comes back.
            told = tell(report, told)
            if report.details.get("commits") or (is_first and self.output is not Output.JSON):
                _print(report, self.output)
            is_first = False
            self._write_metrics(report)
            time.sleep(seconds)

    def _report(self) -> Report:
        """The report of a pass, or of why there was none: a later pass may be better off."""
        try:
            return self.run()
        except (InvalidOptionError, LogDirError):  # no later pass is another
            raise
        except SegmentsError as error:  # a store that does not answer, say
            report = Report("mirror", dry_run=False)
            report.warn(str(error))
            return report

    def _write_metrics(self, report: Report) -> None:
        if self.metrics is None:
            return
        from spark_segments.cli.metrics import mirror_metrics, write_metrics

        write_metrics(self.metrics, mirror_metrics(self.target.uri, report))


def _print(report: Report, output: Output) -> None:
    result = report.to_dict()
    if output is Output.JSON:
        print_json(result)
        return
    lines = [line for line in result["partitions"] if "error" not in line]
    columns = ["topic", "action", "commits", "records", "bytes", "lag_commits", "lag_records", "lag_ms"]
    values = ({**line, "records": line["records_out"], "bytes": Bytes(line["bytes_out"])} for line in lines)
    if lines:
        print_table(columns, ([line.get(name) for name in columns] for line in values))
    topics = f"{plural(len(result['partitions']), 'topic')} ({result['failed']:,} failed)"
    size = human_bytes(result["bytes_out"])
    print_summary(
        f"mirror: {topics}, {plural(result['details'].get('commits', 0), 'commit')}, "
        f"{plural(result['records_out'], 'record')}, {size}, {result['seconds']:.1f} s"
    )
