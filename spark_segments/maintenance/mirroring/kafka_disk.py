"""A copy of a Kafka broker's disk, below its high watermarks: an import that a running broker cannot disturb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments.errors import UnknownTopicError
from spark_segments.log.kafka.directory import committed_directory
from spark_segments.log.kafka.transfer import import_all
from spark_segments.log.logdir import LogDir
from spark_segments.log.verification.checksums import ChecksumList, list_checksums
from spark_segments.maintenance.selection import selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mirror_kafka(
    source: LogDir,
    target: LogDir,
    spark: SparkSession | None = None,
    topics: Sequence[str] | None = None,
    *,
    checksums: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Copies topics of a broker's log directory, each up to the high watermark that the broker noted last, and returns
    what was copied of each, as `LogDir.import_kafka` does. Run again, it copies what has come since.

    `topics`, `checksums`: as in `mirror`. The topics here stand alone: they follow nothing, and keep their records
    until they are altered, as after an import. Raises LogDirError where the directory has no
    replication-offset-checkpoint, and for topics that fail, after all others were copied.
    """
    directory = committed_directory(source.storage)
    there = directory.topics()
    names = selected(there, topics)
    if not names:
        raise UnknownTopicError(
            "The directory holds no topic to mirror", path=source.uri, hint=f"There are: {', '.join(there[:20])}"
        )
    done = import_all(
        directory, target.storage, names, target.manifest, {}, target.defaults, spark=spark, progress=progress
    )
    if checksums is not None:
        known = ChecksumList.read(checksums).files if checksums.exists() else {}
        list_checksums(target.storage, [target.snapshot(name) for name in names], known, spark).write(checksums)
    return done
