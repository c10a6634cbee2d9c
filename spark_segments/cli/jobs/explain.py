"""`segments explain`: why a record is still in the log and when it goes; with --plan, settings for a retention."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_segments.cli.arguments import duration_ms, timestamp_ms
from spark_segments.cli.jobs.explain_text import explanation_text, retention_bounds_text
from spark_segments.cli.options import (
    ConfiguredLogOptions,
    DefaultsOption,
    NowOption,
    OutputOption,
    StorageOption,
)
from spark_segments.cli.output import Output, print_json
from spark_segments.errors import InvalidOptionError

HOUR = "1h"
PLAN = "With --plan"


def explain(
    log_dir: Annotated[str | None, typer.Argument(metavar="LOG_DIR", help="The log directory.")] = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", help="The partition; needed where the topic has several.")
    ] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="The record at this offset.", min=0)] = None,
    at: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The first record of this time or later.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="All files that have records of this key, as UTF-8.")
    ] = None,
    key_base64: Annotated[
        str | None, typer.Option("--key-base64", metavar="BASE64", help="The same, for a key of any bytes.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="How often each job runs; 1h by default, 0 with --plan."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Turn a wanted retention into settings and the maximum.")
    ] = False,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", rich_help_panel=PLAN, help="How long records must stay readable."),
    ] = None,
    gone_within: Annotated[
        str | None,
        typer.Option(
            "--gone-within", metavar="TIME", rich_help_panel=PLAN, help="After how long no file may hold them."
        ),
    ] = None,
    segment: Annotated[
        str | None, typer.Option("--segment", metavar="TIME", rich_help_panel=PLAN, help="segment.ms; 7d by default.")
    ] = None,
    fill: Annotated[
        str | None,
        typer.Option(
            "--fill", metavar="TIME", rich_help_panel=PLAN, help="After how long a segment is full; never by default."
        ),
    ] = None,
    delete_delay: Annotated[
        str | None,
        typer.Option(
            "--delete-delay",
            metavar="TIME",
            rich_help_panel=PLAN,
            help="file.delete.delay.ms; 1d by default with --gone-within, else 0.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
    now_ms: NowOption = None,
    storage: StorageOption = None,
    defaults: DefaultsOption = None,
) -> None:
    """Says which rule keeps a record, what must happen before it goes, and when.

    "At the earliest" holds whatever is appended. "At the latest" holds if
    each job runs again after --every at most.

    --key names every file that has records of a key, also files that only
    readers of earlier versions see, and until when. It reads every segment.

    --plan turns a wanted retention into settings and the real maximum. With
    --gone-within it finds segment.ms, else it takes --segment. It reads no
    log. Without --every and --delete-delay their time is not counted.

    Example: segments explain /data/log orders --partition 0 --offset 1234
    Example: segments explain /data/log orders --time 2026-01-31T12:00:00Z
    Example: segments explain /data/log customers --key ada@example.org
    Example: segments explain --plan --retention 1h --segment 1d
    Example: segments explain --plan --retention 1h --gone-within 2d
    """
    if plan:
        if retention is None or log_dir is not None or (gone_within and segment):
            raise typer.BadParameter("--plan takes --retention and one of --segment and --gone-within, and no LOG_DIR")
        _plan(retention, gone_within, segment, fill, every, delete_delay, output)
        return
    if log_dir is None or topic is None or retention or gone_within or segment or fill:
        raise typer.BadParameter("Give LOG_DIR and TOPIC, or --plan with --retention")
    by_key = key is not None or key_base64 is not None
    if [offset is not None, at is not None, by_key].count(True) != 1 or (key is not None and key_base64 is not None):
        raise typer.BadParameter("--offset, --time or --key must name the record, and only one of them")
    if by_key:
        from spark_segments.cli.jobs.account_text import account_text
        from spark_segments.cli.jobs.erase import key_bytes
        from spark_segments.maintenance.erasure.copies import key_account

        [wanted] = key_bytes([key] if key is not None else [], [key_base64] if key_base64 is not None else [])
        account = key_account(
            ConfiguredLogOptions(log_dir, storage, defaults).open(),
            topic,
            wanted,
            now_ms=now_ms,
            every_ms=duration_ms(every or HOUR),
        )
        if output is Output.JSON:
            print_json(account.to_dict())
        else:
            print(account_text(account))
        return
    from spark_segments.maintenance.explanation.explain import explain as explain_one

    log = ConfiguredLogOptions(log_dir, storage, defaults).open()
    found = explain_one(
        log,
        topic,
        _only_partition(log.offsets(topic)) if partition is None else partition,
        offset,
        None if at is None else timestamp_ms(at),
        every_ms=duration_ms(every or HOUR),
        now_ms=now_ms,
    )
    if output is Output.JSON:
        print_json(found.to_dict())
    else:
        print(explanation_text(found))


def _only_partition(offsets: dict[int, tuple[int, int]]) -> int:
    if len(offsets) > 1:
        raise InvalidOptionError(
            "The topic has several partitions", expected=f"--partition 0 to {len(offsets) - 1}", found="none"
        )
    return next(iter(offsets))


def _plan(
    retention: str,
    gone: str | None,
    segment: str | None,
    fill: str | None,
    every: str | None,
    delay: str | None,
    output: Output,
) -> None:
    from spark_segments.maintenance.explanation.retention_bounds import (
        DEFAULT_DELETE_DELAY_MS,
        DEFAULT_SEGMENT_MS,
        RetentionBounds,
        bounds_for_deletion_within,
    )

    retention_ms, every_ms = duration_ms(retention), duration_ms(every or "0")
    fill_ms = None if fill is None else duration_ms(fill)
    delay_ms = 0 if delay is None else duration_ms(delay)
    if gone is not None:
        delay_ms = DEFAULT_DELETE_DELAY_MS if delay is None else delay_ms
        found = bounds_for_deletion_within(
            duration_ms(gone), retention_ms, fill_ms=fill_ms, every_ms=every_ms, delay_ms=delay_ms
        )
    else:
        segment_ms = DEFAULT_SEGMENT_MS if segment is None else duration_ms(segment)
        found = RetentionBounds(retention_ms, segment_ms, fill_ms, every_ms, delay_ms)
    if output is Output.JSON:
        print_json(found.to_dict())
    else:
        print(retention_bounds_text(found))
