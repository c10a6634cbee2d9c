"""`segments promote`: a follower becomes the leader of its topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from spark_segments.cli.command_options import (
    DRY_RUN,
    OUTPUT,
    LogOptions,
    SparkOptions,
    argument,
    flag,
    option,
    with_options,
)
from spark_segments.cli.output import FAILED, Output, print_json, tell
from spark_segments.config import parse_overrides
from spark_segments.quantities import moment
from spark_segments.replicas.divergence import Tail

PARTITIONS_SHOWN = 4


@with_options
def promote(
    location: LogOptions,
    spark: SparkOptions,
    topic: list[str] | None = argument(
        "[TOPIC]...",
        "Topics and patterns; by default all followers, and leaders whose former leader was never fenced.",
        default=None,
    ),
    former: str | None = option(
        "The former leader's log directory; by default the one that is mirrored.", "--from", metavar="LOG_DIR"
    ),
    former_storage: list[str] | None = option(
        "A storage option for --from, like --storage.", "--from-storage", metavar="NAME=VALUE"
    ),
    force: bool = flag("Promote without what only the former leader has, where that is needed."),
    dry_run: bool = DRY_RUN,
    output: Output = OUTPUT,
) -> None:
    """Makes followers in LOG_DIR the leaders of their topics, and fences the leaders before them.

    From the fence on, every commit to the former leader fails, with an error
    that names LOG_DIR. All that was committed there before is copied, then
    LOG_DIR takes appends, in a new leader epoch. Run it again after a failure:
    it goes on where it was.

    If the former leader is out of reach, --force is needed: commits after the
    last mirror are left behind. Run promote again as soon as the former leader
    can be reached, to fence it.

    Example: segments promote s3://standby/log orders --dry-run
    Example: segments promote s3://standby/log
    """
    from spark_segments.maintenance import promote as job

    report = spark.run(
        job, location.open(), topic, dry_run=dry_run, former=former,
        storage_options=parse_overrides(former_storage or []), force=force,
    )  # fmt: skip
    tell(report, set())
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        for line in report.partitions:
            if "error" not in line:
                print("\n".join(_promoted(line, report.dry_run)))
    if report.failed:
        raise typer.Exit(FAILED)


def _promoted(line: Mapping[str, Any], dry_run: bool) -> list[str]:
    topic = line["topic"]
    former = line["former_uri"]
    shown = [f"{era['partition']}: {era['leader_epoch']} from {era['start_offset']}" for era in line["leader_epochs"]]
    epochs = _few(shown, ", ")
    match line["action"]:
        case "leader":
            lines = [f"{topic}: is the leader already. Leader epochs by partition: {epochs}."]
        case "fenced":
            lines = [f"{topic}: {'would fence' if dry_run else 'fenced'} the former leader in {former}."]
        case _:
            verb = "would be promoted" if dry_run else "promoted"
            lines = [f"{topic}: {verb} over {former}. Leader epochs by partition: {epochs}."]
    if not line["is_fenced"]:
        lines.append(f"{topic}: the former leader is not fenced. Promote again as soon as it can be reached.")
        if line["source_version"] is not None and line["source_committed_ms"] is not None:
            version = f"version {line['source_version']} of {moment(line['source_committed_ms'])}"
            lines.append(f"{topic}: what the former leader committed after its {version} is left behind.")
    tails = line["left_behind"]
    if tails:
        behind = _few([str(Tail(**tail)) for tail in tails], "; ")
        lines.append(f"{topic}: left behind in {former}: {behind}. They can be read there.")
    return lines


def _few(texts: Sequence[str], between: str) -> str:
    more = [] if len(texts) <= PARTITIONS_SHOWN else ["…"]
    return between.join([*texts[:PARTITIONS_SHOWN], *more])
