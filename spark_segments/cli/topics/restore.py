"""`segments topic restore`: back to an earlier version of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from spark_segments.cli.options import LogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.maintenance.removal.restore import restore as restore_topic


@with_options
def restore(
    location: LogOptions,
    topic: TopicArgument,
    version: Annotated[int, typer.Option("--version", help="The version to return to, as describe printed it.")],
    forget_transactions: Annotated[
        bool, typer.Option("--forget-transactions", help="Let the removed transactions be appended again.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restores a topic's records to those of an earlier version, while its files still exist.

    The output names the transactions (app id, version) of appends that the
    restore removes. Repeating such an append adds nothing, unless
    --forget-transactions is given, now or in a second restore of the same
    version.

    Example: segments topic restore /data/log orders --version 41
    """
    offsets = restore_topic(location.open(), topic, version, forget_transactions=forget_transactions)
    rows = [{"partition": number, "log_start_offset": a, "log_end_offset": b} for number, (a, b) in offsets.items()]
    if output is Output.JSON:
        transactions = [
            {"app_id": one.app_id, "versions": list(one.versions), "kept_version": one.kept_version}
            for one in offsets.transactions
        ]
        print_json(
            {
                "topic": topic,
                "version": version,
                "partitions": rows,
                "transactions": transactions,
                "transactions_forgotten": forget_transactions,
            }
        )
    else:
        print_table(["partition", "log_start_offset", "log_end_offset"], (list(row.values()) for row in rows))
        if offsets.transactions:
            again = "can be sent again" if forget_transactions else "add nothing if repeated (--forget-transactions)"
            print(f"\nTransactions above version {version}, which {again}:")
            print_table(
                ["app_id", "versions", "kept_version"],
                ([one.app_id, _ranges(one.versions), one.kept_version] for one in offsets.transactions),
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
