"""`segments promote` and `segments demote`: which copy of a topic is the leader."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_segments.cli.options import DryRunOption, LogOptions, OutputOption, SparkOptions, with_options
from spark_segments.cli.output import FAILED, Output, human_bytes, print_json
from spark_segments.config import parse_overrides
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.execution import run_tasks

if TYPE_CHECKING:
    from spark_segments.maintenance.promotion.demote import Demotion
    from spark_segments.maintenance.promotion.promote import Promotion

PARTITIONS_SHOWN = 4
TOPICS_AT_A_TIME = 8

TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", help="The topics; all followers by default.")
]


@with_options
def promote(
    location: LogOptions,
    spark: SparkOptions,
    topics: TopicsArgument = None,
    former: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="LOG_DIR", help="The former leader's log directory; by default the one that is mirrored."
        ),
    ] = None,
    former_storage: Annotated[
        list[str] | None,
        typer.Option("--from-storage", metavar="NAME=VALUE", help="A storage option for --from, like --storage."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote without what only the former leader has, where that is needed.")
    ] = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes followers in LOG_DIR the leaders of their topics, and fences the leaders before them.

    From the fence on, every commit to the former leader fails, with an error
    that names LOG_DIR. All that was committed there before is copied, then
    LOG_DIR takes appends, in a new leader epoch. Run it again after a failure:
    it goes on where it was.

    Where the former leader is out of reach, --force is needed: what it
    committed after the last mirror is left behind. Run promote again as soon
    as it can be reached, to fence it, and then demote it.

    Example: segments promote s3://standby/log orders --dry-run
    Example: segments promote s3://standby/log
    """
    from spark_segments.maintenance.promotion.promote import promotable_topics
    from spark_segments.maintenance.promotion.promote import promote as promote_topic

    log = location.open()
    options = parse_overrides(former_storage or [])
    session = spark.session("promote")
    chosen = topics or promotable_topics(log)
    if not chosen:
        raise InvalidOptionError("No topic here is a follower", expected="TOPIC, or a log directory with followers")

    def run(topic: str) -> Promotion:
        return promote_topic(log, topic, former, storage_options=options, force=force, dry_run=dry_run, spark=session)

    _each("promote", chosen, run, _promoted, output, dry_run=dry_run)


@with_options
def demote(
    location: LogOptions,
    spark: SparkOptions,
    leader: Annotated[
        str, typer.Option("--leader", metavar="LOG_DIR", help="The log directory of the leader.", show_default=False)
    ],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="The topics; all fenced topics by default.")
    ] = None,
    leader_storage: Annotated[
        list[str] | None,
        typer.Option("--leader-storage", metavar="NAME=VALUE", help="A storage option for --leader, like --storage."),
    ] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut the records that the leader does not have; --dry-run lists them.")
    ] = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Makes former leaders in LOG_DIR followers of the leaders that their topics have now.

    A topic that has records which the leader does not have, after a forced
    promotion, is refused, with the first offset that differs. With --cut these
    records leave the log. Their files stay until vacuum deletes them, after
    file.delete.delay.ms. `segments mirror` brings what the topic lacks.

    Example: segments demote /data/log orders --leader s3://standby/log --dry-run
    """
    from spark_segments.log.logdir import LogDir
    from spark_segments.maintenance.promotion.demote import demote as demote_topic
    from spark_segments.maintenance.promotion.demote import fenced_topics

    log = location.open()
    there = LogDir.open(leader, parse_overrides(leader_storage or []))
    session = spark.session("demote")
    chosen = topics or fenced_topics(log)
    if not chosen:
        raise InvalidOptionError("No topic here is fenced", expected="TOPIC, or a log directory with fenced topics")

    def run(topic: str) -> Demotion:
        return demote_topic(log, topic, there, cut=cut, dry_run=dry_run, spark=session)

    _each("demote", chosen, run, _demoted, output, dry_run=dry_run)


def _each(
    job: str,
    topics: Sequence[str],
    run: Callable[[str], Any],
    text: Callable[[Any], Sequence[str]],
    output: Output,
    *,
    dry_run: bool,
) -> None:
    """Runs a job for each topic, several at a time: with small topics it is mostly waiting for the stores.

    A topic that fails has a line on standard error, and the others go on.
    """

    def tried(topic: str) -> Any:
        try:
            return run(topic)
        except (SegmentsError, OSError) as error:
            return error

    done, failed = [], []
    names = [*dict.fromkeys(topics)]
    for topic, one in zip(names, run_tasks(tried, names, at_a_time=TOPICS_AT_A_TIME), strict=True):
        if isinstance(one, Exception):
            print(f"error: {topic}: {one}", file=sys.stderr)
            failed.append({"topic": topic, "error": str(one)})
            continue
        done.append(one.to_dict())
        for warning in getattr(one, "warnings", ()):
            print(f"warning: {topic}: {warning}", file=sys.stderr)
        if output is Output.TEXT:
            print("\n".join(text(one)))
    if output is Output.JSON:
        print_json({"job": job, "dry_run": dry_run, "topics": done, "failed": failed})
    if failed:
        raise typer.Exit(FAILED)


def _promoted(one: Promotion) -> list[str]:
    shown = [*one.leader_epochs.items()][:PARTITIONS_SHOWN]
    epochs = ", ".join(f"{number}: {epoch} from {start}" for number, (epoch, start) in shown)
    epochs += ", …" if len(one.leader_epochs) > len(shown) else ""
    if not one.steps:
        lines = [f"{one.topic}: is the leader already. Leader epochs by partition: {epochs}."]
    elif one.steps == ("fence",):
        lines = [f"{one.topic}: {'would fence' if one.dry_run else 'fenced'} the former leader in {one.former_uri}."]
    else:
        verb = "would be promoted" if one.dry_run else "promoted"
        lines = [f"{one.topic}: {verb} over {one.former_uri}. Leader epochs by partition: {epochs}."]
    if not one.is_fenced:
        lines.append(f"{one.topic}: the former leader is not fenced. Promote again as soon as it can be reached.")
        if one.source_version is not None and one.source_committed_ms is not None:
            moment = datetime.datetime.fromtimestamp(one.source_committed_ms / 1000, datetime.UTC)
            version = f"version {one.source_version} of {moment:%Y-%m-%dT%H:%M:%SZ}"
            lines.append(f"{one.topic}: what the former leader committed after its {version} is left behind.")
    if one.left_behind:
        behind = "; ".join(map(str, one.left_behind[:PARTITIONS_SHOWN]))
        behind += "; …" if len(one.left_behind) > PARTITIONS_SHOWN else ""
        lines.append(f"{one.topic}: left behind in {one.former_uri}: {behind}. Cut them there: segments demote.")
    return lines


def _demoted(one: Demotion) -> list[str]:
    verb = "would follow" if one.dry_run else "follows"
    lines = [f"{one.topic}: {verb} {one.leader_uri}."]
    for tail in one.cut:
        lines.append(
            f"{one.topic}-{tail.partition}: offsets {tail.first_offset} to {tail.log_end_offset - 1} "
            f"{'would leave' if one.dry_run else 'left'} the log, {tail.segments} segments, {human_bytes(tail.bytes)}."
        )
    if one.cut:
        lines.append(f"{one.topic}: version {one.version_before} has them until vacuum deletes their files.")
    for sent in one.transactions:
        kept = "none" if sent.kept_version is None else sent.kept_version
        lines.append(
            f"{one.topic}: transactions of {sent.app_id} up to {sent.version} are cut; the leader's last: {kept}."
        )
    return lines
