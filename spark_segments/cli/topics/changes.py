"""`segments topic create`, `alter` and `delete`: the counterparts of Kafka's kafka-topics and kafka-configs."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import typer

from spark_segments.cli.command_options import (
    CONFIG,
    DRY_RUN,
    OUTPUT,
    TOPIC,
    TOPICS,
    YES,
    ConfiguredLogOptions,
    LogOptions,
    flag,
    option,
    with_options,
)
from spark_segments.cli.completion import setting_names
from spark_segments.cli.confirmation import asks, confirm, print_way_back
from spark_segments.cli.output import Output, print_json, print_rows, print_table, print_text
from spark_segments.cli.page.words import duration
from spark_segments.config import parse_overrides, topic_config
from spark_segments.config.table import KEYS
from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError
from spark_segments.face.topic import altered
from spark_segments.log import Erasure, Report
from spark_segments.quantities import human_bytes, plural

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.face.topic import Topic
    from spark_segments.log import Snapshot

KEYS_MOVE = (
    "If partitions are increased for a topic that has a key, the partition logic or ordering of the messages will be "
    "affected"
)
"""What kafka-topics says."""


@with_options
def create(
    location: ConfiguredLogOptions,
    topic: str = TOPIC,
    partitions: int = option("The number of partitions.", default=1, min=1),
    config: list[str] | None = CONFIG,
    if_not_exists: bool = flag("Do nothing if the topic exists."),
) -> None:
    """Creates a topic, and the log directory if it does not exist.

    Example: segments topic create /data/log orders --partitions 6 \\
      --config retention.ms=604800000
    """
    log = location.create()
    if if_not_exists and topic in log.topics():
        return
    log.create_topic(topic, partitions, parse_overrides(config or []))
    print(f"Created topic {topic}.")


@with_options
def alter(
    location: ConfiguredLogOptions,
    topic: list[str] = TOPICS,
    partitions: int | None = option("Raise the number of partitions to this."),
    config: list[str] | None = CONFIG,
    delete_config: list[str] | None = option(
        "Return a setting to its default; may be given several times.", metavar="NAME", autocompletion=setting_names
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """Changes the configuration of topics, or raises their number of partitions.

    With more partitions, new records of a key may go to another partition. The
    view latest finds a key's newest record in any partition.

    It says what the next roll and retain remove because of the change.

    Example: segments topic alter /data/log orders \\
      --config cleanup.policy=compact --delete-config retention.ms
    """
    changes: dict[str, str | None] = dict(parse_overrides(config or []))
    changes |= dict.fromkeys(delete_config or [])
    if not changes and partitions is None:
        raise InvalidOptionError("Nothing to alter", expected="--config, --delete-config or --partitions")
    log = location.open()
    names = log.named(topic)
    _check_settings(log, names, delete_config or [])
    for name in names:
        before = log.topic(name)
        if partitions is not None and partitions > len(before.offsets()) and _has_keys(before):
            print(f"warning: topic {name}: {KEYS_MOVE}", file=sys.stderr)
        change = altered(changes, partitions, log.defaults)(before.snapshot)
        if change is not None and change.config != before.snapshot.config:
            print_what_goes(log, before.snapshot, dict(change.config or {}))
        if dry_run:
            print(f"Would alter topic {name}.")
            continue
        before.alter(changes, partitions)
        print(f"Altered topic {name}.")


def _check_settings(log: LogDir, topics: Sequence[str], names: Sequence[str]) -> None:
    """Raises InvalidOptionError for a setting to be deleted that none of the topics has, and nobody knows."""
    for name in names:
        # A topic may have a setting of a newer version, which this one has no name for.
        if name in KEYS or any(name in log.topic(topic).snapshot.config for topic in topics):
            continue
        near = difflib.get_close_matches(name, KEYS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "segments describe shows the topic's settings"
        raise InvalidOptionError("Unknown setting", found=name, hint=hint)


def print_what_goes(log: LogDir, snapshot: Snapshot, config: dict[str, str]) -> None:
    """Says on standard error what roll and retain take of a topic by other settings, where that is more."""
    from spark_segments.maintenance import retain, roll

    topic = snapshot.topic

    def removed(settings: dict[str, str]) -> tuple[int, int]:
        """(records, bytes) that the next run of both jobs removes."""
        planned = {topic: dataclasses.replace(snapshot, config=settings)}
        roll(log, topics=[topic], dry_run=True, planned=planned)
        figures = retain(log, topics=[topic], dry_run=True, planned=planned).to_dict()
        return figures["records_in"] - figures["records_out"], figures["bytes_in"] - figures["bytes_out"]

    records_before, _ = removed(dict(snapshot.config))
    records, size = removed(config)
    if records > records_before:
        print(
            f"warning: topic {topic}: the next roll and retain take {plural(records, 'record')} "
            f"({human_bytes(size)}) by these settings",
            file=sys.stderr,
        )


def _has_keys(topic: Topic) -> bool:
    """Whether any of the first records of the topic has a key."""
    first = next(topic.scan(columns=["key"]).batches(), None)
    return first is not None and first.column("key").null_count < first.num_rows


@with_options
def delete(
    location: LogOptions,
    topic: list[str] = TOPICS,
    if_exists: bool = flag("Do nothing if the topic does not exist."),
    force: bool = flag("Delete the topic even if its manifest cannot be read."),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
) -> None:
    """Deletes topics. On a terminal it says what is in them, and asks first.

    Vacuum deletes the files once file.delete.delay.ms has passed. Until then
    `segments topic restore` brings a topic back.

    --force also deletes a topic whose manifest cannot be read, because it is
    damaged or of a newer version of this package. All of the topic's files
    are deleted, even if another version could still read them.

    Example: segments topic delete /data/log orders
    """
    log = location.open()
    names = log.named(topic)
    if if_exists:
        names = [name for name in names if name in log.topics()]
    contents = {name: _content(log, name, force=force) for name in names}
    if dry_run:
        for what, _, _ in contents.values():
            print(f"Would delete {what}.")
        return
    confirm(f"Delete {'; '.join(what for what, _, _ in contents.values())}?", yes or not contents)
    for name, (_, version, delay) in contents.items():
        log.delete_topic(name, force=force)
        print(f"Deleted topic {name}.")
        if version is not None:
            print_way_back(location.log_dir, name, version, delay=delay)


def _content(log: LogDir, topic: str, *, force: bool) -> tuple[str, int | None, str | None]:
    """(what is in a topic, in words; its version; its file.delete.delay.ms). Of a topic that cannot be read, and that
    is deleted by force, the last two are None.
    """
    try:
        snapshot = log.topic(topic).snapshot
    except UnknownTopicError:
        raise
    except SegmentsError as error:
        if not force:
            error.hint = error.hint or "Restore the manifest from a backup, or delete the topic by force"
            raise
        return f"topic {topic}, whose content is not known ({error.message})", None, None
    records, size = (pc.sum(snapshot.live.column(name)).as_py() or 0 for name in ("records", "log_bytes"))
    content = plural(len(snapshot.partitions), "partition"), plural(records, "record"), human_bytes(size)
    what = f"topic {topic}: {', '.join(content)}"
    return what, snapshot.version, duration(topic_config(snapshot.config, log.defaults).file_delete_delay_ms)


@with_options
def restore(
    location: LogOptions,
    topic: str = TOPIC,
    version: int | None = option("The version to return to, as `topic history` shows it."),
    time: str | None = option("Return to the last version that was there at a time.", metavar="TIME"),
    forget_transactions: bool = flag("Let the removed transactions be appended again."),
    including_erased: bool = flag("Let records come back that were erased since."),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    output: Output = OUTPUT,
) -> None:
    """Restores a topic's records as of an earlier version, while its files still exist.

    Records that were appended after that version leave the log. On a terminal
    the command names them and asks first, unless --yes is given.

    The output names the transactions (app id, version) and idempotency keys
    (--once) of appends that the restore removes. Repeating such an append
    adds nothing, unless --forget-transactions is given, now or in a second
    restore of the same version.

    If `segments erase` erased records after that version, nothing is restored,
    because the version's files would bring them back. --including-erased
    restores all the same.

    Example: segments topic restore /data/log orders --version 41
    Example: segments topic restore /data/log orders --time yesterday --dry-run
    """
    from spark_segments.maintenance import restore as job

    if (version is None) == (time is None):
        raise typer.BadParameter("--version or --time must name the version, and only one of them")
    log = location.open()
    if version is None:
        version = log.topic(topic, timestamp=time).version
    work = partial(
        job, log, topics=[topic], version=version,
        forget_transactions=forget_transactions, including_erased=including_erased,
    )  # fmt: skip
    if not dry_run and asks(yes):
        leaving = _offsets(work(dry_run=True), "leaving")
        if leaving:
            confirm(f"Restore version {version} of {topic}?", yes, lambda: print_text(_leaving(leaving)))
    report = work(dry_run=dry_run)
    _warn_of_restored(report)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(topic, report)


def _warn_of_restored(report: Report) -> None:
    """Says on standard error which records of a restore go again, or should not have come back."""
    details = report.details
    if details["expired_records"]:
        print(
            f"warning: {details['expired_records']:,} of {details['records']:,} records are older than retention.ms: "
            f"the next retain takes them. segments topic alter --config retention.ms=… keeps them",
            file=sys.stderr,
        )
    if details["erasures"]:
        print(
            f"warning: records that were erased since {'would be' if report.dry_run else 'are'} in the log again: "
            f"{', '.join(str(Erasure(**erasure)) for erasure in details['erasures'])}. Erase their keys again",
            file=sys.stderr,
        )


def _offsets(report: Report, name: str) -> list[tuple[int, int, int]]:
    """(partition, first offset, last offset) of what is leaving or returning."""
    return [(line["partition"], line[name][0], line[name][1] - 1) for line in report.partitions if name in line]


def _leaving(leaving: list[tuple[int, int, int]]) -> str:
    total = sum(last - first + 1 for _, first, last in leaving)
    where = ", ".join(f"{number}: {first} to {last}" for number, first, last in leaving[:8])
    more = ", …" if len(leaving) > 8 else ""
    return (
        f"{total:,} offsets were given out after that version. Their records leave the log (partition {where}{more})."
    )


def _print_text(topic: str, report: Report) -> None:
    details = report.details
    if report.dry_run:
        print_text(f"Version {details['version']} of {topic} can be restored. The offsets would be:")
    print_rows(["partition", "log_start_offset", "log_end_offset"], report.partitions)
    leaving = _offsets(report, "leaving")
    returning = _offsets(report, "returning")
    if report.dry_run and leaving:
        print_text(_leaving(leaving))
    if report.dry_run and returning:
        print("Records that would return:")
        print_table(["partition", "first_offset", "last_offset"], map(list, returning))
    forgotten = details["transactions_forgotten"]
    again = "can be sent again" if forgotten else "add nothing if repeated (--forget-transactions)"
    if details["once"]:
        keys = ", ".join(details["once"])
        print_text(f"\nIdempotency keys after version {details['version']}, which {again}: {keys}")
    if details["transactions"]:
        print_text(f"\nTransactions above version {details['version']}, which {again}:")
        lines = [line | {"versions": _ranges(line["versions"])} for line in details["transactions"]]
        print_rows(["app_id", "versions", "kept_version"], lines)


def _ranges(versions: Sequence[int]) -> str:
    """[3, 4, 5, 9] → "3-5, 9"."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
