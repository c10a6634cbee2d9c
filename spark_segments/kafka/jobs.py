"""Import and export of several topics: a topic that fails does not keep the others back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_segments.config import SegmentLimits, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, MissingFileError, SegmentsError
from spark_segments.extensions import observed_job
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.exporting import export_topics
from spark_segments.kafka.imported_settings import imported_settings
from spark_segments.kafka.importing import TopicImport
from spark_segments.log import LogDirectory, Report, Snapshot
from spark_segments.progress import Progress
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_KAFKA = "kafka"  # the only value of `recovery`


@observed_job("import")
def import_all(
    source: KafkaDirectory,
    log: LogDirectory,
    topics: Sequence[str],
    overrides: Mapping[str, str],
    *,
    recovery: str | None = None,
    keep_retention: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Imports topics of a Kafka directory, each as `TopicImport` does. The report's warnings are about their settings.

    Raises InvalidOptionError for an unknown `recovery` before anything is copied. A topic that fails is raised after
    all the others were imported.
    """
    if recovery not in (None, _KAFKA):
        raise InvalidOptionError("Unknown recovery", expected=_KAFKA, found=recovery)
    settings = imported_settings(source, topics, overrides, keep_retention=keep_retention)
    report = Report("import", dry_run=False, details={"holes": []})
    failed: dict[str, SegmentsError] = {}
    for topic in topics:
        try:
            with _missing_files():
                config = settings[topic].config
                limits = SegmentLimits.of(topic_config(config, log.defaults))
                work = TopicImport(
                    source, log.manifest(topic), config, limits, recovery == _KAFKA, spark=spark, progress=progress
                )
                work.run(report)
            report.warnings += [f"{topic}: {text}" for text in settings[topic].warnings]
        except SegmentsError as error:
            failed[topic] = error
    if len(topics) == 1 and failed:
        raise failed[topics[0]]
    _raise_failed("imported", source.storage.uri, failed, report)
    return report.finish()


@observed_job("export")
def export_all(
    storage: Storage,
    target: Storage,
    topics: Sequence[str],
    snapshot_of: Callable[[str], Snapshot],
    defaults: Mapping[str, str],
    *,
    topic_ids: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Exports topics as `export_topics` does. A topic whose manifest cannot be read is raised after the others."""
    snapshots: list[Snapshot] = []
    failed: dict[str, SegmentsError] = {}
    for topic in topics:
        try:
            snapshot = snapshot_of(topic)
            _ = snapshot.live
            snapshots.append(snapshot)
        except SegmentsError as error:
            failed[topic] = error
    if len(topics) == 1 and failed:
        raise failed[topics[0]]
    readable = [(snapshot, topic_config(snapshot.config, defaults)) for snapshot in snapshots]
    with _missing_files():
        report = export_topics(storage, target, readable, topic_ids=topic_ids, spark=spark, progress=progress)
    _raise_failed("exported", storage.uri, failed, report)
    return report


def _raise_failed(verb: str, path: str, failed: Mapping[str, SegmentsError], done: Report) -> None:
    """Raises LogDirError for the topics that failed, if any. The error also names the topics that succeeded."""
    if failed:
        raise LogDirError(
            f"Topics could not be {verb}: {', '.join(failed)}",
            path=path,
            found="; ".join(str(error) for error in failed.values()),
            hint=f"The others were {verb}: {', '.join(done.topics) or 'there are none'}",
        ) from next(iter(failed.values()))


@contextmanager
def _missing_files() -> Iterator[None]:
    """Files that go while a directory is copied raise MissingFileError."""
    try:
        yield
    except MissingFileError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError.gone(error.filename) from error
