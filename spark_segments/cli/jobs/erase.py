"""`segments erase`: removes the records of keys from a topic."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from spark_segments.cli.confirmation import confirm, print_way_back
from spark_segments.cli.jobs.maintenance import finish, run
from spark_segments.cli.options import (
    KEY,
    KEY_BASE64,
    YES,
    ConfiguredLogOptions,
    JobOptions,
    SparkOptions,
    flag,
    key_bytes,
    with_options,
)
from spark_segments.cli.output import Output
from spark_segments.quantities import plural

if TYPE_CHECKING:
    from spark_segments.log import Report


@with_options
def erase(
    location: ConfiguredLogOptions,
    settings: JobOptions,
    spark: SparkOptions,
    key: list[str] | None = KEY,
    key_base64: list[str] | None = KEY_BASE64,
    history: bool = flag("Also delete files of earlier versions that have the keys, at once, by a vacuum."),
    yes: bool = YES,
) -> None:
    """Erases the records of keys from a topic: no other record goes, and every offset stays.

    On a terminal it says what it would erase, and asks first.

    A compacted topic first gets a tombstone of each key, then all older
    records of the key go. From other topics all its records go. The job
    reads every segment, chunks that are not rolled yet included.

    The old files stay for readers of earlier versions until vacuum deletes
    them, after file.delete.delay.ms. With --history they go at once, and
    reads of these versions fail. Exports and backups are not touched.
    `segments explain LOG_DIR TOPIC --key KEY` says what is left.

    Example: segments erase /data/log customers --key ada@example.org --dry-run
    """
    from spark_segments.log import LogDirectory
    from spark_segments.maintenance import erase as job

    keys = key_bytes(key, key_base64)
    log, versions = location.open(), {}

    def erased(settings: JobOptions) -> Report:
        return run(job, log, settings, spark, keys=keys, history=history)

    if not settings.dry_run and settings.topics():
        names = ", ".join(settings.topics() or [])
        confirm(
            f"Erase {plural(len(keys), 'key')} from {names}{', history included' if history else ''}?",
            yes,
            lambda: erased(dataclasses.replace(settings, dry_run=True)),
        )
        if not history:
            versions = {
                name: log.topic(name).snapshot.version
                for name in LogDirectory.selected(log.topics(), settings.topics())
            }
    report = erased(settings)
    for name in report.topics:
        if name in versions:
            print_way_back(location.log_dir, name, versions[name], "--including-erased")
    if settings.output is not Output.JSON and not report.partitions:
        print("No file of the log has a record of these keys that is to go.")
    finish(settings.metrics, log, report)
