"""Makes the manifest of a topic anew: plan, then one commit as a version that the table never had.

The log's files are read alone, and what is left of the old manifest stays until vacuum. A topic gets a new id unless
all of its commits are known: its offsets may be given out a second time, and streams, groups and mirrors must see that.
A follower keeps its leader's id, for it gives out no offsets: its mirror brings what is missing.
"""

from __future__ import annotations

import base64
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import CommitConflictError, InvalidOptionError, LogDirError, StorageError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.change import Change, check, partition_rows
from spark_segments.log.manifest.delta.delta_log import (
    FENCED,
    REBUILD,
    CommitFailedError,
    CommitNote,
    VersionTakenError,
    reason,
)
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.recovery_copy import RECOVERY_DIRECTORY, write_recovery_copy
from spark_segments.log.manifest.row_files import FileChange
from spark_segments.log.manifest.rows import (
    OUT_OF_LOG,
    PARTITION_SCHEMA,
    REMOVED,
    SEGMENT_SCHEMA,
    Partition,
    Segment,
    partitions_of,
    removed_rows,
    row_keys,
    segments_of,
    segments_table,
)
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.snapshot import SegmentRows, Snapshot, in_log_order
from spark_segments.log.manifest.states import FOLLOWER, REBUILT_FROM, ROLE
from spark_segments.log.manifest.topic_row import FIRST_FORMAT_VERSION, Topic, topic_table
from spark_segments.log.manifest.transaction import transactions_table
from spark_segments.log.marker import is_marked, mark
from spark_segments.log.rebuild.anchors import Batches
from spark_segments.log.rebuild.known import KnownTopic, known_topic
from spark_segments.log.rebuild.later_files import LaterFile, batches_in, has_records_of, later_files
from spark_segments.log.rebuild.loss import check_lost
from spark_segments.log.rebuild.placing import KnownLog, PlacedLog, place
from spark_segments.log.rebuild.report import RebuildReport, described
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.storage import Storage

ALL = "all"
"""Instead of paths: all files that can be added."""

_DELAY_KEY = "file.delete.delay.ms"


def open_damaged(
    uri: str, storage_options: Mapping[str, str] | None = None, *, defaults: Mapping[str, str] | None = None
) -> LogDir:
    """As `LogDir.open`, and opens a log directory, too, whose whole `_manifest` is lost, with its marker."""
    storage = Storage(uri, dict(storage_options or {}))
    if not is_marked(storage) and storage.directories(RECOVERY_DIRECTORY):
        return LogDir(storage, defaults=defaults)
    return LogDir.open(uri, storage_options, defaults=defaults)


def rebuild_manifest(log: LogDir, topic: str, *, add: Sequence[str] = (), dry_run: bool = False) -> RebuildReport:
    """Makes the manifest of a topic anew from its newest recovery copy and the commits after it that can be read.

    `add`: files, by their paths in the report, that no known row names and that are to be added; or `ALL`. They come
    behind the log end, or where the file of a known row is gone. `dry_run` changes nothing and returns what would be
    done. Nothing may write to the topic meanwhile.

    No file of the log is changed. Raises LogDirError where the manifest can be read, where there is no recovery copy,
    where a newer package wrote either, or where the topic was deleted; InvalidOptionError for a path in `add` that is
    no file to add; CommitConflictError where somebody commits meanwhile; StorageError where the store fails: then
    nobody knows whether the manifest is lost.
    """
    if log.is_kafka:
        raise LogDirError("A directory that Kafka wrote has no manifest", path=log.uri)
    manifest = log.manifest(topic)
    check_lost(manifest)
    known = known_topic(manifest.log)
    if known.snapshot.deleted_ms is not None:
        raise LogDirError(
            f"Topic {topic} was deleted: there is nothing to rebuild",
            path=manifest.log.location,
            hint=f"segments topic delete --force LOG_DIR {topic} lets vacuum take its files",
        )
    is_follower = known.snapshot.states.get(ROLE) == FOLLOWER
    if is_follower and add:
        raise InvalidOptionError(f"Topic {topic} is a follower: its mirror brings what is missing", found=add[0])
    plan = _plan(log, known, add)
    report = described(log, known, plan.later, plan.placed, plan.possible, plan.partitions, is_exact=plan.is_exact)
    report.dry_run = dry_run
    topic_id = known.snapshot.topic_id
    keeps_id = plan.is_exact or is_follower
    if not keeps_id:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    report.topic_id = None if dry_run and not keeps_id else topic_id
    report.version = known.last_version + FENCED + 2
    if not dry_run:
        _commit(log, manifest, known, plan, topic_id, report.version)
    return report


@dataclass(frozen=True, slots=True)
class _RebuildPlan:
    """`placed`: the partitions as they will be; `possible`: as they were with all files that can be added."""

    later: Sequence[LaterFile]
    placed: Mapping[int, PlacedLog]
    possible: Mapping[int, PlacedLog]
    partitions: Sequence[Partition]
    is_exact: bool


def _plan(log: LogDir, known: KnownTopic, add: Sequence[str]) -> _RebuildPlan:
    snapshot, storage = known.snapshot, log.storage
    config = topic_config(snapshot.config, log.defaults)
    limits = SegmentLimits.of(config)
    named = set(snapshot.source.read(None).column("path").to_pylist())
    count = snapshot.partitions.num_rows
    ids = [snapshot.topic_id, *filter(None, snapshot.states.get(REBUILT_FROM, "").split(","))]
    later = list(later_files(storage, snapshot.topic, ids, named, known.copied_ms, count, limits))
    usable = [file for file in later if file.row is not None]
    wanted = _wanted(usable, add)
    sizes = _sizes(storage, snapshot)
    placed, possible, partitions = {}, {}, []
    read: dict[tuple[str, int, int], Batches] = {}
    out = _out_of_log(snapshot)

    def is_there(segment: Segment) -> bool:
        return sizes.get(segment.path, -1) >= segment.end_position

    def is_gone(segment: Segment) -> bool:
        return segment.path not in sizes

    def batches_of(segment: Segment) -> Batches:
        if segment.identity not in read:
            read[segment.identity] = batches_in(storage, segment)
        return read[segment.identity]

    same_records = partial(has_records_of, storage, snapshot.topic)

    for row in partitions_of(snapshot.partitions):
        live = snapshot.live_of(row.partition)
        gone = out.get(row.partition, ())
        of_row = KnownLog(
            live,
            row.log_start_offset,
            row.log_end_offset,
            is_there,
            is_gone,
            batches_of,
            same_records,
            gone,
            config.compact,
        )
        mine = [file for file in usable if file.partition == row.partition]
        chosen = [file for file in mine if (file.path, file.position) in wanted]
        possible[row.partition] = place(of_row, mine, lambda file: file.path in add)
        placed[row.partition] = place(of_row, chosen, lambda file: file.path in add)
        partitions.append(_partition(row, placed[row.partition]))
        read.clear()
    unchanged = all(log.rows == snapshot.live_of(number) and not log.missing for number, log in placed.items())
    is_exact = known.is_whole and not later and unchanged
    return _RebuildPlan(later, placed, possible, partitions, is_exact)


def _wanted(usable: Sequence[LaterFile], add: Sequence[str]) -> set[tuple[str, int]]:
    paths = {file.path for file in usable}
    for path in add:
        if path != ALL and path not in paths:
            raise InvalidOptionError(
                "Not a file that can be added to the log",
                found=path,
                expected=f"{ALL}, or a path that the dry run lists as one",
            )
    return {(file.path, file.position) for file in usable if ALL in add or file.path in add}


def _sizes(storage: Storage, snapshot: Snapshot) -> dict[str, int]:
    """{path: bytes} of the files that are there, in all directories that the topic's rows name."""
    directories = {path.rpartition("/")[0] for path in pc.unique(snapshot.segments.column("path")).to_pylist()}
    return {info.path: info.size for directory in sorted(directories) for info in storage.list(directory)}


def _out_of_log(snapshot: Snapshot) -> dict[int, list[Segment]]:
    """{partition: its rows that have left the log, and whose files nobody has begun to delete}"""
    rows: dict[int, list[Segment]] = {}
    for row in segments_of(snapshot.segments.filter(pc.equal(snapshot.segments.column("state"), REMOVED))):
        rows.setdefault(row.partition, []).append(row)
    return rows


def _partition(before: Partition, placed: PlacedLog) -> Partition:
    start, end = placed.log_start_offset, placed.log_end_offset
    filled = min((first for first, _ in placed.added.values()), default=before.first_dirty_offset)
    stable = before.last_stable_offset
    return dataclasses.replace(
        before,
        log_start_offset=start,
        log_end_offset=end,
        first_dirty_offset=max(start, min(before.first_dirty_offset, filled)),
        last_stable_offset=end if stable == before.log_end_offset else max(stable, start),
    )


def _commit(
    log: LogDir, manifest: Manifest, known: KnownTopic, plan: _RebuildPlan, topic_id: str, version: int
) -> None:
    snapshot = known.snapshot
    format_version = snapshot.format_version
    live = segments_table(row for placed in plan.placed.values() for row in placed.rows)
    others = snapshot.source.read(None)
    replaced = segments_table(row for placed in plan.placed.values() for row in placed.replaced)
    returned = segments_table(row for placed in plan.placed.values() for row in placed.returned)
    others = others.filter(pc.is_in(others.column("state"), pa.array(OUT_OF_LOG)))
    others = others.filter(pc.invert(pc.is_in(row_keys(others), row_keys(returned))))
    removed = pa.concat_tables([others, removed_rows(replaced, log.storage.now_ms())])
    topic = snapshot.topic_row
    if topic_id != snapshot.topic_id:
        live = _with_id(live, SEGMENT_SCHEMA, topic_id)
        topic = _under_a_new_id(topic, topic_id, removed)
    partitions = _with_id(partition_rows(plan.partitions), PARTITION_SCHEMA, topic_id)
    nothing = Snapshot(
        snapshot.topic, -1, "", {}, 0, PARTITION_SCHEMA.empty_table(), SegmentRows(SEGMENT_SCHEMA.empty_table()),
        format_version=FIRST_FORMAT_VERSION,
    )  # fmt: skip
    none = SEGMENT_SCHEMA.empty_table()
    check(nothing, Change(REBUILD, topic=topic), live, none, none, partitions)
    store, last = manifest.log.store, known.transactions
    segments = in_log_order(pa.concat_tables([live, removed]))
    change = FileChange(
        [
            *store.write_all(TOPIC_KIND, topic_table(topic), format_version),
            *store.write_all(PARTITION_KIND, partitions, format_version),
            *store.write_all(SEGMENT_KIND, segments, format_version),
        ],
        [],
        format_version,
    )
    if format_version > FIRST_FORMAT_VERSION:
        rows = transactions_table(topic_id, last, log.storage.now_ms())
        change.added.extend(store.write_all(TRANSACTION_KIND, rows, format_version))
    mark(log.storage)
    try:
        manifest.log.make_anew(version, topic_id, change, CommitNote(uuid.uuid4().hex, 0, REBUILD), last)
    except VersionTakenError as error:
        raise CommitConflictError(
            f"Somebody commits to topic {snapshot.topic} while its manifest is rebuilt: {reason(error)}",
            path=manifest.log.location,
            hint="Stop all writers and jobs, then run it again",
        ) from error
    except CommitFailedError as error:
        raise StorageError(
            f"The manifest was not rebuilt: {reason(error)}",
            path=manifest.log.location,
            hint="Run it again: what it has written is passed over",
        ) from error
    write_recovery_copy(manifest.log)


def _under_a_new_id(topic: Topic, topic_id: str, removed: pa.Table) -> Topic:
    """The topic's row. Removed rows keep their id: vacuum takes their files as those of a deleted topic."""
    there = set(pc.unique(removed.column("topic_id")).to_pylist())
    before = {**topic.deleted_topics, topic.topic_id: topic.config.get(_DELAY_KEY, "")}
    states = dict(topic.states)
    if topic.format_version > FIRST_FORMAT_VERSION:
        states[REBUILT_FROM] = ",".join([*filter(None, [states.get(REBUILT_FROM)]), topic.topic_id])
    deleted = {name: delay for name, delay in before.items() if name in there}
    return dataclasses.replace(topic, topic_id=topic_id, deleted_topics=deleted, states=states)


def _with_id(rows: pa.Table, schema: pa.Schema, topic_id: str) -> pa.Table:
    ids = pa.array([topic_id] * rows.num_rows, pa.string())
    return rows.set_column(0, schema.field(0), ids)
