"""Vacuum: the only job that deletes files.

Removed rows go when file.delete.delay.ms has passed: first they are marked as being deleted, so that no restore takes
them back, then their files go, then the rows; a crash in between leaves rows that say what is still to be done. Files
that no row names go when they are older than any writer may be. Old versions of the manifest go last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import LogDirError
from spark_segments.execution import run_tasks
from spark_segments.log.kafka_partition import PRODUCER_SNAPSHOT_SUFFIX
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import MANIFEST_DIRECTORY, Change
from spark_segments.log.manifest_upkeep import ORPHAN_AGE_MS
from spark_segments.log.rows import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    REMOVED,
    SEGMENT_SCHEMA,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    segments_of,
)
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.report import Report
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX)
BEING_DELETED_MS = -1  # as removed_ms: vacuum has begun to delete the file
DELETE_FILES_A_TASK = 1000


@dataclass(frozen=True, slots=True)
class _ListDirectory:
    """Task function: the files of one partition directory."""

    storage: Storage

    def __call__(self, directory: str) -> list[FileInfo]:
        return self.storage.list(directory)


@dataclass(frozen=True, slots=True)
class _DeleteFiles:
    """Task function: deletes files; those that are gone already are fine."""

    storage: Storage

    def __call__(self, paths: Sequence[str]) -> int:
        self.storage.delete(paths)
        return len(paths)


def expired_rows(rows: pa.Table, config: TopicConfig, now_ms: int) -> pa.Table:
    """The removed rows whose files no reader of an earlier snapshot may count on any more at `now_ms`."""
    removed = pc.equal(rows.column("state"), REMOVED)
    age_ms = pc.subtract(now_ms, rows.column("removed_ms"))
    due = pc.or_(pc.greater(age_ms, config.file_delete_delay_ms), pc.equal(rows.column("removed_ms"), BEING_DELETED_MS))
    return rows.filter(pc.fill_null(pc.and_(removed, due), False))


def orphans(files: Iterable[FileInfo], named: set[str], store_now_ms: int) -> list[FileInfo]:
    """Files that no row names and that are too old to be a writer's who may still commit them."""
    return [file for file in files if file.path not in named and store_now_ms - file.mtime_ms > ORPHAN_AGE_MS]


def vacuum(
    log: LogDir,
    spark: SparkSession | None = None,
    topic: str | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Deletes what has left the log of one topic or all (deleted topics included) for long enough, and old manifest
    files.

    `now_ms` decides over removed rows; orphans go by the store's clock alone, whatever `now_ms` is.
    """
    if log.is_kafka:
        raise LogDirError(
            "Maintenance does not touch a directory of Kafka's",
            path=log.uri,
            hint="Import it into a log directory of its own: segments import KAFKA_DIR LOG_DIR",
        )
    report = Report("vacuum", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    if topic is not None:
        log.snapshot(topic)  # an unknown one is an error
    for name in [topic] if topic is not None else sorted(log.storage.directories(MANIFEST_DIRECTORY)):
        _vacuum_topic(log, spark, name, now_ms, dry_run, report, progress)
    return report.finish()


def _vacuum_topic(
    log: LogDir,
    spark: SparkSession | None,
    topic: str,
    now_ms: int,
    dry_run: bool,
    report: Report,
    progress: Callable[[int, int], None] | None,
) -> None:
    manifest = log.manifest(topic)
    directories = [name for name in log.storage.directories() if _is_partition_of(name, topic)]
    # List first, then read the manifest: whatever a commit named after the listing is not in the list.
    store_now_ms = log.storage.now_ms()
    listed = [file for files in run_tasks(_ListDirectory(log.storage), directories, spark) for file in files]
    snapshot = manifest.snapshot(deleted=True)
    config = topic_config(snapshot.config, log.defaults)
    expired = expired_rows(all_rows(snapshot), config, now_ms)
    stray = orphans(listed, _named(snapshot), store_now_ms)
    if not dry_run and expired.num_rows:
        expired = _claim(log, topic, config, now_ms)
    segments = segments_of(expired)
    paths = [path for segment in segments for path in files_of(segment)] + [file.path for file in stray]
    if not dry_run:
        pieces = [paths[start : start + DELETE_FILES_A_TASK] for start in range(0, len(paths), DELETE_FILES_A_TASK)]
        run_tasks(_DeleteFiles(log.storage), pieces, spark, progress=progress)
        if segments:
            _drop(log, topic, [segment.path for segment in segments])
        manifest.vacuum(retention_ms=config.file_delete_delay_ms, now_ms=now_ms)
    _note(report, topic, segments, stray)


def _claim(log: LogDir, topic: str, config: TopicConfig, now_ms: int) -> pa.Table:
    """Marks the expired rows as being deleted, in one commit, and returns them."""

    def plan(current: Snapshot) -> Change | None:
        rows = expired_rows(all_rows(current), config, now_ms)
        rows = rows.filter(pc.not_equal(rows.column("removed_ms"), BEING_DELETED_MS))
        if rows.num_rows == 0:
            return None
        position = SEGMENT_SCHEMA.get_field_index("removed_ms")
        marked = rows.set_column(position, "removed_ms", pa.repeat(pa.scalar(BEING_DELETED_MS), rows.num_rows))
        return Change("vacuum", replace=marked.cast(SEGMENT_SCHEMA))

    log.manifest(topic).commit(plan, deleted=True)
    rows = all_rows(log.manifest(topic).snapshot(deleted=True))
    return rows.filter(pc.fill_null(pc.equal(rows.column("removed_ms"), BEING_DELETED_MS), False))


def _drop(log: LogDir, topic: str, paths: Sequence[str]) -> None:
    def plan(current: Snapshot) -> Change | None:
        rows = all_rows(current)
        there = rows.filter(pc.is_in(rows.column("path"), pa.array(paths, pa.string()))).column("path").to_pylist()
        return Change("vacuum", drop=there) if there else None

    log.manifest(topic).commit(plan, deleted=True)


def all_rows(snapshot: Snapshot) -> pa.Table:
    """A topic's rows and those that deleted topics of its name have left."""
    return pa.concat_tables([snapshot.segments, snapshot.leftovers])


def files_of(segment: Segment) -> list[str]:
    """The .log of a row and all sidecars that it can have."""
    return [segment.stem + suffix for suffix in SUFFIXES]


def _named(snapshot: Snapshot) -> set[str]:
    stems = [path.removesuffix(LOG_SUFFIX) for path in all_rows(snapshot).column("path").to_pylist()]
    return {stem + suffix for stem in stems for suffix in SUFFIXES}


def _is_partition_of(directory: str, topic: str) -> bool:
    name, _, number = directory.rpartition("-")
    return name == topic and number.isdigit()


def _note(report: Report, topic: str, segments: Sequence[Segment], stray: Sequence[FileInfo]) -> None:
    partitions = np.array([segment.partition for segment in segments] or [], np.int64)
    strays = np.array([int(file.path.split("/")[0].rpartition("-")[2]) for file in stray] or [], np.int64)
    for partition in np.unique(np.concatenate([partitions, strays])):
        mine = [segment for segment in segments if segment.partition == partition]
        lost = [file for file, number in zip(stray, strays, strict=True) if number == partition]
        log_bytes = sum(segment.log_bytes for segment in mine)
        report.add(
            topic, int(partition), "vacuum",
            bytes_in=log_bytes + sum(file.size for file in lost),
            removed_segments=len(mine), orphan_files=len(lost),
        )  # fmt: skip
