"""`segments erase`: removes the records of keys from a topic."""

from __future__ import annotations

import dataclasses
from functools import partial

from spark_segments.cli.confirmation import confirm, print_way_back
from spark_segments.cli.jobs.maintenance import JobOptions
from spark_segments.cli.options import (
    KEY,
    KEY_BASE64,
    YES,
    flag,
    key_bytes,
    with_options,
)
from spark_segments.cli.output import Output
from spark_segments.quantities import plural


@with_options
def erase(
    options: JobOptions,
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
    log, versions = options.open(), {}
    erased = partial(JobOptions.run, job=job, log=log, keys=keys, history=history)
    if not options.dry_run and options.topic:
        what = f"{plural(len(keys), 'key')} from {', '.join(options.topic)}{', history included' if history else ''}"
        confirm(f"Erase {what}?", yes, lambda: erased(dataclasses.replace(options, dry_run=True)))
        if not history:
            names = LogDirectory.selected(log.topics(), options.topic)
            versions = {name: log.topic(name).snapshot.version for name in names}
    report = erased(options)
    for name in report.topics:
        if name in versions:
            print_way_back(options.log_dir, name, versions[name], "--including-erased")
    if options.output is not Output.JSON and not report.partitions:
        print("No file of the log has a record of these keys that is to go.")
    options.finish(log, [report])
