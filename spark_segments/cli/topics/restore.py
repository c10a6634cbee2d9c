"""`segments topic restore`: back to an earlier version of a topic."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.options import LogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.maintenance.removal.restore import Restored
from spark_segments.maintenance.removal.restore import restore as restore_topic


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what a restore would do; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before records leave the log.")] = False,
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
        version = log.manifest(topic).version_at(timestamp_ms(time))
    work = partial(
        restore_topic, log, topic, version, forget_transactions=forget_transactions, including_erased=including_erased
    )
    if sys.stdin.isatty() and not yes and not dry_run:
        planned = work(dry_run=True)
        if planned.leaving:
            print(_leaving(planned), file=sys.stderr)
            typer.confirm(f"Restore version {version} of {topic}?", abort=True, err=True)
    restored = work(dry_run=dry_run)
    if restored.erasures:
        print(
            f"warning: records that were erased since {'would be' if dry_run else 'are'} in the log again: "
            f"{', '.join(map(str, restored.erasures))}. Erase their keys again",
            file=sys.stderr,
        )
    if restored.expired_records:
        print(
            f"warning: {restored.expired_records:,} of {restored.records:,} records are older than retention.ms: the "
            f"next retain takes them. segments topic alter --config retention.ms=… keeps them",
            file=sys.stderr,
        )
    (_print_json if output is Output.JSON else _print_text)(topic, version, restored, dry_run, forget_transactions)


def _leaving(restored: Restored) -> str:
    total = sum(end - first for first, end in restored.leaving.values())
    where = ", ".join(f"{number}: {first} to {end - 1}" for number, (first, end) in list(restored.leaving.items())[:8])
    more = ", …" if len(restored.leaving) > 8 else ""
    return (
        f"{total:,} offsets were given out after that version. Their records leave the log (partition {where}{more})."
    )


def _print_json(topic: str, version: int, restored: Restored, dry_run: bool, forgotten: bool) -> None:
    print_json(
        {
            "topic": topic,
            "version": version,
            "dry_run": dry_run,
            "partitions": [
                {"partition": number, "log_start_offset": start, "log_end_offset": end}
                for number, (start, end) in restored.items()
            ],
            "leaving": _offsets(restored.leaving),
            "returning": _offsets(restored.returning),
            "records": restored.records,
            "expired_records": restored.expired_records,
            "transactions": [
                {"app_id": one.app_id, "versions": list(one.versions), "kept_version": one.kept_version}
                for one in restored.transactions
            ],
            "transactions_forgotten": forgotten,
            "erasures": [asdict(one) for one in restored.erasures],
        }
    )


def _offsets(ranges: Mapping[int, tuple[int, int]]) -> list[dict[str, int]]:
    return [
        {"partition": number, "first_offset": first, "last_offset": end - 1} for number, (first, end) in ranges.items()
    ]


def _print_text(topic: str, version: int, restored: Restored, dry_run: bool, forgotten: bool) -> None:
    if dry_run:
        print(f"Version {version} of {topic} can be restored. The offsets would be:")
    rows = ([number, start, end] for number, (start, end) in restored.items())
    print_table(["partition", "log_start_offset", "log_end_offset"], rows)
    if dry_run and restored.leaving:
        print(_leaving(restored))
    if dry_run and restored.returning:
        print("Records that would return:")
        print_table(
            ["partition", "first_offset", "last_offset"], map(list, map(dict.values, _offsets(restored.returning)))
        )
    if restored.transactions:
        again = "can be sent again" if forgotten else "add nothing if repeated (--forget-transactions)"
        print(f"\nTransactions above version {version}, which {again}:")
        print_table(
            ["app_id", "versions", "kept_version"],
            ([one.app_id, _ranges(one.versions), one.kept_version] for one in restored.transactions),
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
