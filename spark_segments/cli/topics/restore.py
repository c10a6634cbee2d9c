"""`segments topic restore`: back to an earlier version of a topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.confirmation import asks, confirm
from spark_segments.cli.options import DryRunOption, LogOptions, OutputOption, TopicArgument, YesOption, with_options
from spark_segments.cli.output import Output, print_json, print_table, print_text
from spark_segments.log.manifest.states import Erasure
from spark_segments.log.report import Report
from spark_segments.maintenance.removal.restore import restore as job


@with_options
def restore(
    location: LogOptions,
    topic: TopicArgument,
    version: Annotated[
        int | None, typer.Option("--version", help="The version to return to, as `topic history` shows it.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Return to the last version that was there at a time.")
    ] = None,
    forget_transactions: Annotated[
        bool, typer.Option("--forget-transactions", help="Let the removed transactions be appended again.")
    ] = False,
    including_erased: Annotated[
        bool, typer.Option("--including-erased", help="Let records come back that were erased since.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restores a topic's records to those of an earlier version, while its files still exist.

    Records that were appended after that version leave the log. On a terminal
    the command names them and asks first, unless --yes is given.

    The output names the transactions (app id, version) of appends that the
    restore removes. Repeating such an append adds nothing, unless
    --forget-transactions is given, now or in a second restore of the same
    version.

    Where `segments erase` took records after that version, nothing is
    restored: its files would bring them back. --including-erased lets them.

    Example: segments topic restore /data/log orders --version 41
    Example: segments topic restore /data/log orders --time "2 hours ago" --dry-run
    """
    if (version is None) == (time is None):
        raise typer.BadParameter("--version or --time must name the version, and only one of them")
    log = location.open()
    if version is None:
        assert time is not None
        version = log.topic(topic).manifest.version_at(timestamp_ms(time))
    work = partial(
        job, log, topics=[topic], version=version,
        forget_transactions=forget_transactions, including_erased=including_erased,
    )  # fmt: skip
    if not dry_run and asks(yes) and (leaving := _offsets(work(dry_run=True), "leaving")):
        confirm(f"Restore version {version} of {topic}?", yes, lambda: print_text(_leaving(leaving)))
    report = work(dry_run=dry_run)
    details = report.details
    if details["expired_records"]:
        print(
            f"warning: {details['expired_records']:,} of {details['records']:,} records are older than retention.ms: "
            f"the next retain takes them. segments topic alter --config retention.ms=… keeps them",
            file=sys.stderr,
        )
    if details["erasures"]:
        print(
            f"warning: records that were erased since {'would be' if dry_run else 'are'} in the log again: "
            f"{', '.join(str(Erasure(**one)) for one in details['erasures'])}. Erase their keys again",
            file=sys.stderr,
        )
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        _print_text(topic, report)


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
    columns = ["partition", "log_start_offset", "log_end_offset"]
    print_table(columns, ([line[name] for name in columns] for line in report.partitions))
    leaving, returning = _offsets(report, "leaving"), _offsets(report, "returning")
    if report.dry_run and leaving:
        print_text(_leaving(leaving))
    if report.dry_run and returning:
        print("Records that would return:")
        print_table(["partition", "first_offset", "last_offset"], map(list, returning))
    if details["transactions"]:
        forgotten = details["transactions_forgotten"]
        again = "can be sent again" if forgotten else "add nothing if repeated (--forget-transactions)"
        print_text(f"\nTransactions above version {details['version']}, which {again}:")
        print_table(
            ["app_id", "versions", "kept_version"],
            ([one["app_id"], _ranges(one["versions"]), one["kept_version"]] for one in details["transactions"]),
        )


def _ranges(versions: Sequence[int]) -> str:
    """[3, 4, 5, 9] → "3-5, 9"."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
