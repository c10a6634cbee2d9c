"""`segments verify`: looks for faults in a log directory of this package or of Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_segments.cli.options import (
    ConfiguredLogOptions,
    OptionalTopicArgument,
    OutputOption,
    SparkOptions,
    with_options,
)
from spark_segments.cli.output import FOUND_FAULTS, Output, human_bytes, print_json, shown_hole


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
        bool, typer.Option("--repair", help="Rebuild faulty sidecars; records are never changed. Implies --deep.")
    ] = False,
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

    Exit code 0: no fault was found, or --repair has corrected all. 3: faults.

    Example: segments verify /data/log orders --deep
    """
    from spark_segments.log.verification.verify import verify as look

    report = look(location.open(), topic, deep, repair, spark.session("verify"), against=against)
    if output is Output.JSON:
        print_json(report.to_dict())
    else:
        for finding in report.findings:
            print(finding)
        for hole in report.holes:
            print(f"hole: {shown_hole(hole)}")
        for one in report.repaired:
            print(f"repaired: {one['topic']}-{one['partition']}: {one['path']} is {one['new_path']} now")
        found = f"{len(report.findings) + report.left_out:,} faults" if report.findings else "no faults"
        print(
            f"verify{' (deep)' if report.deep else ''}: {len(report.topics):,} topics, "
            f"{report.partitions:,} partitions, {report.segments:,} segments, "
            f"{human_bytes(report.bytes_read)} read, {found}, {report.seconds:.1f} s"
        )
    if report.uncorrected or report.left_out:
        raise typer.Exit(FOUND_FAULTS)
