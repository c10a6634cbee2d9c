"""`segments verify`: looks for faults in a log directory of this package or of Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_segments.cli.options import (
    ConfiguredLogOptions,
    DryRunOption,
    OptionalTopicArgument,
    OutputOption,
    SparkOptions,
    with_options,
)
from spark_segments.cli.output import FOUND_FAULTS, Output, print_json, shown_hole
from spark_segments.progress import progress_bar
from spark_segments.quantities import human_bytes


@with_options
def verify(
    location: ConfiguredLogOptions,
    spark: SparkOptions,
    topic: OptionalTopicArgument = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read every byte: check CRCs, records, index entries and keys of clean tails."),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Rebuild faulty sidecars, or the lost manifest of TOPIC; no record is changed. Deep."
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the topic gets a new id.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Compare files with a list of checksums that `segments mirror --checksums` wrote.",
            exists=True,
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Looks for faults in the manifest, the files and their sizes, and with --deep in every byte.

    With --against every file of the list that is still in a topic must have
    the size and checksum that the list says, and no topic may have gone back.

    Offsets that are known to be missing are listed as holes, and are no faults:
    whoever copied the records noted them. With --deep offsets that are missing
    between the segments of a topic that is not compacted, and that no hole
    explains, are faults.

    --repair rebuilds sidecars under new names. Where the manifest of TOPIC is
    lost or damaged it is made anew instead: stop all writers and jobs of the
    topic first, and see what --dry-run says. It is then what a recovery copy
    says, and the commits after it as far as something proves them. Files that
    no such commit names are listed and never added: files do not say whether
    they were committed, and segments dump reads them. Unless all commits are
    known, the topic gets a new id, so that streams and groups stop and say
    so, and do not skip records; without a terminal that needs --yes.

    Exit code 0: no fault was found, or --repair has corrected all. 3: faults.

    Example: segments verify /data/log orders --deep
    Example: segments verify /data/log orders --repair --dry-run
    """
    from spark_segments.log.verification.verify import verify as look

    log = location.open_damaged() if repair and topic is not None else location.open()
    if repair and topic is not None and not log.is_kafka:
        from spark_segments.cli.files.rebuilt import is_readable, rebuild

        if not is_readable(log, topic):
            rebuild(log, topic, output, dry_run=dry_run, yes=yes)
            return
    with progress_bar("verify", of_bytes=deep or repair) as progress:
        report = look(
            log, topics=None if topic is None else [topic], spark=spark.session("verify"), dry_run=dry_run,
            progress=progress, deep=deep, repair=repair, against=against,
        )  # fmt: skip
    details = report.details
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        for finding in report.findings:
            print(finding)
        for hole in details["holes"]:
            print(f"hole: {shown_hole(hole)}")
        for one in report.partitions:
            if one["action"] == "repaired":
                print(f"repaired: {one['topic']}-{one['partition']}: {one['path']} is {one['new_path']} now")
        count = len(report.findings) + details["findings_left_out"]
        print(
            f"verify{' (deep)' if details['deep'] else ''}: {len(report.topics):,} topics, "
            f"{details['partitions']:,} partitions, {details['segments']:,} segments, "
            f"{human_bytes(report.bytes_in)} read, {f'{count:,} faults' if count else 'no faults'}, "
            f"{report.seconds:.1f} s"
        )
    if details["uncorrected"]:
        raise typer.Exit(FOUND_FAULTS)
