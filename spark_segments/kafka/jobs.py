"""Import and export of several topics: a topic that fails does not keep the others back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPolicy:
    """How topics are imported. `overrides`: settings of a topic that is made. `recovery`: "kafka" takes a log as a
    broker would. `keep_retention`: a topic that is made gets Kafka's retention, too; else retention.ms=-1.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)
    recovery: str | None = None
    keep_retention: bool = False


@observed_job("import")
def import_all(
    source: KafkaDirectory,
    log: LogDirectory,
    topics: Sequence[str],
    options: ImportPolicy | None = None,
    *,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Imports topics of a Kafka directory, each as `TopicImport` does. The report's warnings are about their settings.

    Raises InvalidOptionError for an unknown `recovery` before anything is copied. A topic that fails is raised after
    all the others were imported.
    """
    options = options or ImportPolicy()
    if options.recovery not in (None, _KAFKA):
        raise InvalidOptionError("Unknown recovery", expected=_KAFKA, found=options.recovery)
    settings = imported_settings(source, topics, options.overrides, keep_retention=options.keep_retention)
    report = Report("import", dry_run=False, details={"holes": []})
    failed: dict[str, SegmentsError] = {}
    for topic in topics:
        config = settings[topic].config
        try:
            with _missing_files():
                limits = SegmentLimits.of(topic_config(config, log.defaults))
                TopicImport(
                    source,
                    log.manifest(topic),
                    config,
                    limits,
                    as_broker=options.recovery == _KAFKA,
                    spark=spark,
                    progress=progress,
                ).run(report)
            report.warnings += [f"{topic}: {text}" for text in settings[topic].warnings]
        except SegmentsError as error:
            failed[topic] = error
    if len(topics) == 1 and failed:
        raise failed[topics[0]]
    _raise_failed("imported", source.storage.uri, failed, report)
    return report.finish()


@observed_job("export")
def export_all(
    log: LogDirectory,
    target: Storage,
    topics: Sequence[str],
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
            snapshot = log.snapshot(topic)
            _ = snapshot.live
            snapshots.append(snapshot)
        except SegmentsError as error:
            failed[topic] = error
    if len(topics) == 1 and failed:
        raise failed[topics[0]]
    readable = [(snapshot, topic_config(snapshot.config, log.defaults)) for snapshot in snapshots]
    with _missing_files():
        report = export_topics(log.storage, target, readable, topic_ids=topic_ids, spark=spark, progress=progress)
    _raise_failed("exported", log.uri, failed, report)
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
