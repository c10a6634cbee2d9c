"""Vacuum: the only job that deletes files.

A removed row goes when file.delete.delay.ms has passed. First it is marked as being deleted, so that no restore takes
it back. Then its files are deleted, then the row: a crash in between leaves rows that say what is still to be done. The
row of a shared object goes without the file while other rows need the file.
Files that no row names are deleted once they are older than any writer may be. Old versions of the manifest go last.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks
from spark_segments.extensions import observed_job
from spark_segments.format.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.log.directory import LogDirectory
from spark_segments.log.groups.group import Group
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import ORPHAN_AGE_MS, Change
from spark_segments.log.manifest.commit.committing import Commit
from spark_segments.log.manifest.commit.upkeep import DroppedVersions
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG, SEGMENT_SCHEMA, Segment, normal_paths, shared_directory
from spark_segments.log.manifest.state.recovery_copy import drop_recovery_copies
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TableState, forced_files
from spark_segments.log.report import Report
from spark_segments.maintenance.job import Job, Result, Task
from spark_segments.progress import Progress
from spark_segments.quantities import Time
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX)
"""The files of a row that has a .log to itself: the .log and what may lie beside it."""


def files_to_delete(topic: str, rows: pa.Table, all_rows: pa.Table) -> list[str]:
    """The files of `rows`, which are being deleted. `all_rows`: all rows of the manifest at that version or later.

    Whatever a row says, these are files in the topic's own directories.

    A file is among them only if every row that names it, as a shared object's runs do, is being deleted: no state
    follows that one, so nobody can need the file again. Of two vacuums that delete the last rows of a file at the same
    time, the later one sees it.
    """
    needed = all_rows.filter(pc.not_equal(all_rows.column("state"), Segment.DELETING)).column("path")
    is_needed = pc.is_in(normal_paths(rows.column("path")), normal_paths(needed).combine_chunks())
    rows = rows.filter(pc.invert(is_needed))
    shared = pc.is_valid(rows.column("index_position"))
    stems = [path.removesuffix(LOG_SUFFIX) for path in rows.filter(pc.invert(shared)).column("path").to_pylist()]
    files = [stem + suffix for stem in stems for suffix in SUFFIXES]
    files += pc.unique(rows.filter(shared).column("path")).to_pylist()
    own = re.compile(rf"({re.escape(topic)}-[0-9]+|{re.escape(shared_directory(topic))})/[^/]+")
    return [path for path in files if own.fullmatch(path)]


def orphans(files: Iterable[FileInfo], rows: pa.Table) -> list[FileInfo]:
    """The files that belong to no row: neither a row's .log or shared object nor a file beside a .log, however the
    row's path is spelt.
    """
    files = list(files)
    if not files:
        return []
    paths = normal_paths(rows.column("path")).combine_chunks()
    named = pc.utf8_slice_codeunits(paths, 0, -len(LOG_SUFFIX))
    file_paths = normal_paths(pa.chunked_array([[file.path for file in files]], pa.string()))
    has_row = pc.or_(
        pc.is_in(pc.replace_substring_regex(file_paths, r"\.[^.]*$", ""), named), pc.is_in(file_paths, paths)
    )
    return [file for file, flag in zip(files, has_row.to_pylist(), strict=True) if not flag]


TRIES = 5
"""How often a step is tried that reads rows which another vacuum may take meanwhile."""

SEGMENTS_A_TASK = 200
DIRECTORIES_A_TASK = 20
SEGMENTS_A_WAVE = 100_000
DIRECTORIES_A_WAVE = 1000
_DELAY_KEY = "file.delete.delay.ms"
_DIRECTORY_OF_TOPIC = re.compile(r"(?P<topic>.+)-(?P<number>[0-9]+|shared|s)")  # of a partition, or shared objects
_LIFECYCLE_RULE = (
    "No vacuum finds the parts of uploads that never ended: give the bucket a lifecycle rule that aborts incomplete "
    "multipart uploads after seven days"
)
THREADS = 16
"""Of this process: on an object store, listing and deleting is mostly waiting. As many tasks are done sooner here than
Spark plans a job for them, and a topic has no more tasks than that unless it is a large one."""


def _run(
    job: Job, function: Callable[[Task], Result], tasks: Sequence[Task], progress: Progress | None = None
) -> list[Result]:
    """As `run_tasks`, for tasks that mostly wait for the store: up to THREADS tasks are done in this process."""
    spark = job.spark if len(tasks) > THREADS else None
    return run_tasks(function, tasks, spark, progress=progress, at_a_time=THREADS)


def _list_old_files(storage: Storage, before_ms: int, directories: Sequence[str]) -> list[FileInfo]:
    """Task function: the files of some partition directories that are older than `before_ms`."""
    return [
        file
        for directory in directories
        for file in storage.list(directory, recursive=True)
        if file.mtime_ms < before_ms
    ]


def expired_rows(
    rows: pa.Table, config: TopicConfig, now_ms: int, deleted_topics: Mapping[str, TopicConfig] | None = None
) -> pa.Table:
    """The rows out of the log whose files no reader of an earlier snapshot may count on any more at `now_ms`.

    `deleted_topics`: by topic id, the configuration of deleted topics. Rows of all other topics go by `config`.
    """
    removed = row_tables.in_states(rows, *OUT_OF_LOG)
    removed_ms = removed.column("removed_ms")
    delay = pa.scalar(config.file_delete_delay_ms, pa.int64())
    for topic_id, its_config in (deleted_topics or {}).items():
        its_delay = pa.scalar(its_config.file_delete_delay_ms, pa.int64())
        delay = pc.if_else(pc.equal(removed.column("topic_id"), topic_id), its_delay, delay)
    # Both are times of the store, unless the caller names another moment: a machine whose clock is ahead would else
    # take files from readers that still count on them. A row that is marked goes whatever its age: a vacuum that died
    # had decided it, and its files may be gone already.
    old = pc.greater(pc.subtract(now_ms, removed_ms), delay)
    return removed.filter(pc.or_(old, pc.equal(removed.column("state"), Segment.DELETING)))


def claimed_rows(rows: pa.Table) -> pa.Table:
    """Removed rows, marked so that no restore takes them back and the next vacuum deletes their files."""
    return row_tables.with_column(rows, "state", pa.repeat(Segment.DELETING, rows.num_rows))


@observed_job("vacuum")
def vacuum(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    planned: dict[str, Snapshot] | None = None,
) -> Report:
    """Deletes files that left the log longer than file.delete.delay.ms ago, files that no row names, and old manifest
    files. Deleted topics are included, and of all topics the old files of groups.

    `now_ms` decides over removed rows. Files that no row names go by the store's clock alone. A topic whose manifest
    cannot be read loses nothing. If an error ends the vacuum of a topic, the report has what was deleted before it as
    well as the error: see `Report`. Each step follows the topic's configuration at the moment when the step begins.
    """
    job = Job.of("vacuum", log, topics, spark, dry_run, progress, now_ms, planned)
    present = log.storage.directories()
    directories = _by_topic(present)
    for name in job.names():
        is_named = topics is not None and name in topics
        try:
            _vacuum_topic(job, name, directories[name], topic_optional=not is_named)
        except SegmentsError as error:
            if is_named and isinstance(error, UnknownTopicError):
                raise
            job.report.fail(name, None, error)
    if log.key_offsets.directory in present:
        _vacuum_indexes(job)
    if topics is None:
        _vacuum_groups(job)
    if dry_run and log.storage.keeps_unfinished_uploads:  # runs by a schedule would repeat it every night
        job.report.warn(_LIFECYCLE_RULE)
    return job.report.finish()


def _by_topic(directories: Iterable[str]) -> dict[str, list[str]]:
    """The directories of partitions and shared objects, by the topic that owns them."""
    by_topic: dict[str, list[str]] = defaultdict(list)
    for directory in directories:
        owner = _owner(directory)
        if owner is not None:
            by_topic[owner].append(directory)
    return by_topic


def _vacuum_groups(job: Job) -> None:
    """Deletes the files of groups that nobody needs any more."""
    for group in Group.all(job.log):
        try:
            files = group.expired_files()
            if not job.report.dry_run:
                job.storage.delete(file.path for file in files)
            job.report.count(group_files=len(files))
        except SegmentsError as error:
            job.report.warn(f"The files of group {group.id} were not looked at: {error}")


def _vacuum_indexes(job: Job) -> None:
    """Deletes the files that indexes of keys do not need any more, after the topic's file.delete.delay.ms."""
    index = job.log.key_offsets
    names = None if job.topics is None else job.names()
    for topic in index.topics():
        if names is not None and topic not in names:
            continue
        try:
            config = _config_of(job, topic)
            files, errors = index.unneeded_files(topic, config.file_delete_delay_ms, job.now_ms)
            if not job.report.dry_run:
                job.storage.delete(file.path for file in files)
            job.report.count(index_files=len(files), index_bytes=sum(file.size for file in files))
        except SegmentsError as error:
            errors = [error]
        for problem in errors:
            job.report.warn(f"The files of the index of {topic} were not looked at: {problem}")


def _config_of(job: Job, topic: str) -> TopicConfig:
    """The configuration of a topic, which may be gone."""
    try:
        return job.config(job.log.snapshot(topic))
    except UnknownTopicError:
        return topic_config({}, job.log.defaults)


def _owner(directory: str) -> str | None:
    """The topic whose partition or shared objects are in the directory, None for any other directory."""
    match = _DIRECTORY_OF_TOPIC.fullmatch(directory)
    if match is None or not (match["number"].isdecimal() or directory == shared_directory(match["topic"])):
        return None
    return match["topic"]


def _vacuum_topic(job: Job, topic: str, directories: Sequence[str], *, topic_optional: bool) -> None:
    log = job.log
    now_ms = job.now_ms
    report = job.report
    manifest = log.manifest(topic)
    try:
        state, rows = _latest_rows(manifest)
    except SegmentsError as error:
        deleted_ms = manifest.log.deleted_by_force_ms()
        if deleted_ms is not None:
            if now_ms - deleted_ms > topic_config({}, log.defaults).file_delete_delay_ms:
                _delete_unreadable(job, manifest, directories)
        elif isinstance(error, UnknownTopicError) and topic_optional:
            # There are only files of a topic whose creation failed.
            _note_manifest(report, manifest.drop_old_versions(ORPHAN_AGE_MS, now_ms, dry_run=report.dry_run))
        else:
            raise
        return
    expired: list[pa.Table] = []
    stray: list[FileInfo] = []
    try:
        if report.dry_run:
            snapshot = job.as_planned(state.snapshot)
            expired.append(_expired(job, snapshot, rows if snapshot is state.snapshot else all_rows(snapshot)))
        else:
            expired.extend(_delete_expired(job, manifest, (state, rows)))
        for start in range(0, len(directories), DIRECTORIES_A_WAVE):
            wave = directories[start : start + DIRECTORIES_A_WAVE]
            stray += _delete_orphans(job, manifest, wave)
    finally:  # the waves before an error are done
        _note(report, topic, pa.concat_tables([SEGMENT_SCHEMA.empty_table(), *expired]), stray)
    longest_ms = _longest_delay_ms(log, manifest.log.state_after(state).snapshot)
    _note_manifest(report, manifest.drop_old_versions(longest_ms, now_ms, dry_run=report.dry_run))


def _longest_delay_ms(log: LogDirectory, snapshot: Snapshot) -> int:
    """For how long readers of an old version may count on it: the longest delay of the topics of this name."""
    configs = [topic_config(snapshot.config, log.defaults), *deleted_topics(log, snapshot).values()]
    return max(config.file_delete_delay_ms for config in configs)


def deleted_topics(log: LogDirectory, snapshot: Snapshot) -> dict[str, TopicConfig]:
    """By topic id, the configuration of deleted topics of this name as far as it is known: file.delete.delay.ms."""
    return {
        topic_id: topic_config({_DELAY_KEY: delay} if delay else {}, log.defaults)
        for topic_id, delay in snapshot.deleted_topics.items()
    }


def _expired(job: Job, snapshot: Snapshot, rows: pa.Table) -> pa.Table:
    return expired_rows(rows, job.config(snapshot), job.now_ms, deleted_topics(job.log, snapshot))


def _delete_unreadable(job: Job, manifest: Manifest, directories: Sequence[str]) -> None:
    """Deletes all files of a topic that was deleted by force, its manifest last."""
    log = job.log
    report = job.report
    files = [file for directory in directories for file in log.storage.list(directory, recursive=True)]
    _note(report, manifest.topic, SEGMENT_SCHEMA.empty_table(), files)
    paths = forced_files(log.storage, manifest.log.directory)
    report.count(manifest_files=len(paths))
    if not report.dry_run:
        _delete(job, [file.path for file in files])
        drop_recovery_copies(log.storage, manifest.topic)
        for path in paths:
            log.storage.delete(path)


def _delete_expired(job: Job, manifest: Manifest, latest: tuple[TableState, pa.Table]) -> Iterator[pa.Table]:
    """Deletes the files of expired rows, then the rows, wave by wave. Yields the rows of each wave that is done."""
    rows, all_rows_then = _claim(job, manifest, latest)
    for start in range(0, rows.num_rows, SEGMENTS_A_WAVE):
        wave = rows.slice(start, SEGMENTS_A_WAVE)
        # In this order. Rows first, and a crash would leave files that no row names, which only a listing finds. Files
        # first, and a crash leaves marked rows, which the next vacuum goes on with.
        _delete(job, files_to_delete(manifest.topic, wave, all_rows_then))
        _drop(manifest, wave)
        yield wave
        if job.progress is not None:
            job.progress(start + wave.num_rows, rows.num_rows)


def _delete(job: Job, files: Sequence[str]) -> None:
    step = SEGMENTS_A_TASK * len(SUFFIXES)
    _run(job, job.storage.delete, [files[start : start + step] for start in range(0, len(files), step)])


def _claim(job: Job, manifest: Manifest, latest: tuple[TableState, pa.Table]) -> tuple[pa.Table, pa.Table]:
    """Marks the expired rows as being deleted, in one commit, whose first try is on `latest`.

    Returns (these rows and the rows that were marked before, all rows of the manifest after the commit). Each further
    try reads the topic's configuration again: a file.delete.delay.ms that was raised meanwhile holds.
    """
    first_tries = [latest]
    seen: list[pa.Table] = []

    def change(current: Snapshot) -> Change | None:
        seen[:] = [latest[1] if current is latest[0].snapshot else all_rows(current)]
        rows = _expired(job, current, seen[0])
        rows = rows.filter(pc.not_equal(rows.column("state"), Segment.DELETING))
        if rows.num_rows == 0:
            return None
        return Change(Operation.VACUUM, replace=claimed_rows(rows))

    def claim() -> Commit:
        state = first_tries.pop()[0] if first_tries else None
        return manifest.commit(change, deleted=True, state=state)

    done = _despite_others(claim)
    rows = seen[0] if done.change is None else _latest_rows(manifest)[1]
    return row_tables.in_log_order(row_tables.in_states(rows, Segment.DELETING)), rows


def _drop(manifest: Manifest, rows: pa.Table) -> None:
    """Drops the rows of files that are gone from the manifest. Another vacuum may have done so already."""
    partitions = pc.unique(rows.column("partition")).to_pylist()
    keys = row_tables.keys(rows).combine_chunks()

    def change(current: Snapshot) -> Change | None:
        rows = current.source.read(partitions)
        rows = rows.filter(pc.is_in(row_tables.keys(rows), keys))
        return Change(Operation.VACUUM, drop=rows) if rows.num_rows else None

    _despite_others(lambda: manifest.commit(change, deleted=True))


def _delete_orphans(job: Job, manifest: Manifest, directories: Sequence[str]) -> list[FileInfo]:
    """Deletes the files in some directories that no row names, and returns them.

    A writer may stand still between its check of the files' age and its request to commit them. So vacuum takes the
    next version before it decides: that request can no longer be carried out.
    """
    # The times of files are the store's. By another machine's clock that is ahead, a chunk that a writer is about to
    # commit could be old enough.
    before_ms = job.storage.now_ms() - ORPHAN_AGE_MS
    step = DIRECTORIES_A_TASK
    tasks = [directories[start : start + step] for start in range(0, len(directories), step)]
    listed = _run(job, partial(_list_old_files, job.storage, before_ms), tasks, job.progress)
    # List first, then read the manifest: a file that a commit names after the listing is too young to be in the list.
    old = [file for files in listed for file in files]
    if not old:
        return []
    owners = [_partition_of(path) for path in directories]
    partitions = {owner for owner in owners if owner is not None}
    # Rows of any partition may name a shared object.
    scope = None if None in owners else partitions

    def unnamed() -> list[FileInfo]:
        return orphans(old, _despite_others(lambda: manifest.snapshot(deleted=True).source.read(scope)))

    stray = unnamed()
    if stray and not job.report.dry_run:
        _despite_others(manifest.take_next_version)
        stray = unnamed()
        _delete(job, [file.path for file in stray])
    return stray


def _latest_rows(manifest: Manifest) -> tuple[TableState, pa.Table]:
    """The latest state of a topic, deleted or not, and `all_rows` of it."""

    def read() -> tuple[TableState, pa.Table]:
        state = manifest.state(deleted=True, reopened=True)
        return state, all_rows(state.snapshot)

    return _despite_others(read)


def _despite_others(step: Callable[[], Result]) -> Result:
    """The result of a step that reads the latest version. Where another vacuum takes that version, it is done again."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(InvalidOptionError):
            return step()
    return step()  # the last try: its error is the caller's


def all_rows(snapshot: Snapshot) -> pa.Table:
    """A topic's rows and the rows that deleted topics of its name have left."""
    return snapshot.source.read(None)


def _partition_of(path: str) -> int | None:
    """The number of the partition whose directory this is, or is in. None for the directory of shared objects."""
    number = path.partition("/")[0].rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def _note(report: Report, topic: str, expired: pa.Table, stray: Sequence[FileInfo]) -> None:
    owner = expired.column("partition").to_numpy().astype(np.int64)
    owners = [(_partition_of(file.path), file) for file in stray]
    shared = [file for partition, file in owners if partition is None]
    stray_owner = np.array([partition for partition, _ in owners if partition is not None], np.int64)
    count = int(np.concatenate(([-1], owner, stray_owner)).max()) + 1
    segments = np.bincount(owner, minlength=count)
    files = np.bincount(stray_owner, minlength=count)
    log_bytes = np.zeros(count, np.int64)
    np.add.at(log_bytes, owner, expired.column("log_bytes").to_numpy())
    np.add.at(log_bytes, stray_owner, np.array([file.size for at, file in owners if at is not None], np.int64))
    for partition in np.flatnonzero(segments + files).tolist():
        report.add(
            topic, partition, "vacuum",
            bytes_in=int(log_bytes[partition]),
            removed_segments=int(segments[partition]), orphan_files=int(files[partition]),
        )  # fmt: skip
    if shared:
        size_bytes = sum(file.size for file in shared)
        report.add(topic, None, "vacuum", bytes_in=size_bytes, removed_segments=0, orphan_files=len(shared))


def _note_manifest(report: Report, done: DroppedVersions) -> None:
    report.count(manifest_files=len(done.paths), manifest_bytes=done.size_bytes)
