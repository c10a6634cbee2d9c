"""Makes the manifest of a topic anew: what playback.py knows, in one commit, as a version that the table never had.

What is left of the old manifest stays until vacuum. A topic gets a new id unless all of its commits are known: its
offsets may be given out a second time, and streams, groups and mirrors must see that. A follower keeps its leader's id,
for it gives out no offsets: its mirror brings what is missing.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import uuid
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, LogDirError, SegmentsError, StorageError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.change import Change, check
from spark_segments.log.manifest.commit_notes import RECOVERY_DIRECTORY
from spark_segments.log.manifest.delta.delta_log import (
    FENCED,
    REBUILD,
    CommitFailedError,
    CommitNote,
    VersionTakenError,
    hint_after,
    reason,
)
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.recovery_copy import write_recovery_copy
from spark_segments.log.manifest.row_files import FileChange
from spark_segments.log.manifest.rows import OUT_OF_LOG, PARTITION_SCHEMA, SEGMENT_SCHEMA
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.snapshot import SegmentRows, Snapshot, in_log_order
from spark_segments.log.manifest.states import FOLLOWER, REBUILT_FROM, ROLE
from spark_segments.log.manifest.topic_row import FIRST_FORMAT_VERSION, NewerFormatError, TopicRow, topic_table
from spark_segments.log.manifest.transaction import transactions_table
from spark_segments.log.manifests import Manifests
from spark_segments.log.marker import is_marked, mark
from spark_segments.log.rebuild.playback import KnownTopic, known_topic
from spark_segments.log.rebuild.report import described
from spark_segments.log.report import Report
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.scratch import scratch_directory

_DELAY_KEY = "file.delete.delay.ms"


def open_damaged(
    uri: str, storage_options: Mapping[str, str] | None = None, *, defaults: Mapping[str, str] | None = None
) -> LogDir:
    """As `LogDir.open`, and opens a log directory, too, whose whole `_manifest` is lost, with its marker."""
    storage = Storage(uri, dict(storage_options or {}))
    if not is_marked(storage) and storage.directories(RECOVERY_DIRECTORY):
        return LogDir(Manifests(storage, defaults=defaults))
    return LogDir.open(uri, storage_options, defaults=defaults)


def rebuild_manifest(log: LogDir, topic: str, *, dry_run: bool = False) -> Report:
    """Makes the manifest of a topic anew from a recovery copy and the commits after it that are proven: playback.py.

    Files that no known row names are listed, and never added. `dry_run` changes nothing and returns what would be done.
    Nothing may write to the topic meanwhile.

    No file of the log is changed. Raises LogDirError where the manifest can be read, where there is no recovery copy,
    where a newer package wrote either, or where the topic was deleted; CommitConflictError where somebody commits
    meanwhile; StorageError where the store fails: then nobody knows whether the manifest is lost.
    """
    if log.is_kafka:
        raise LogDirError("A directory that Kafka wrote has no manifest", path=log.uri)
    manifest = log.topic(topic).manifest
    _check_lost(manifest)
    known = known_topic(manifest.log)
    if known.snapshot.deleted_ms is not None:
        raise LogDirError(
            f"Topic {topic} was deleted: there is nothing to rebuild",
            path=manifest.log.location,
            hint=f"segments topic delete --force LOG_DIR {topic} lets vacuum take its files",
        )
    report = described(log, known, dry_run=dry_run)
    topic_id = known.snapshot.topic_id
    keeps_id = report.details["is_exact"] or known.snapshot.states.get(ROLE) == FOLLOWER
    if not keeps_id:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    version = known.last_version + FENCED + 2
    report.details |= {"version": version, "topic_id": None if dry_run and not keeps_id else topic_id}
    if not dry_run:
        _commit(log, manifest, known, topic_id, version)
    return report.finish()


def _commit(log: LogDir, manifest: Manifest, known: KnownTopic, topic_id: str, version: int) -> None:
    snapshot = known.snapshot
    format_version = snapshot.format_version
    rows = snapshot.source.read(None)
    is_out = pc.is_in(rows.column("state"), pa.array(OUT_OF_LOG))
    live, removed = rows.filter(pc.invert(is_out)), rows.filter(is_out)
    topic, partitions = snapshot.topic_row, snapshot.partitions
    if topic_id != snapshot.topic_id:
        live, partitions = _with_id(live, SEGMENT_SCHEMA, topic_id), _with_id(partitions, PARTITION_SCHEMA, topic_id)
        topic = _under_a_new_id(topic, topic_id, removed)
    nothing = Snapshot(
        snapshot.topic, -1, "", {}, 0, PARTITION_SCHEMA.empty_table(), SegmentRows(SEGMENT_SCHEMA.empty_table()),
        format_version=FIRST_FORMAT_VERSION,
    )  # fmt: skip
    none = SEGMENT_SCHEMA.empty_table()
    check(nothing, Change(REBUILD, topic=topic), live, none, none, partitions)
    store, last = manifest.log.store, known.transactions
    tables = {
        TOPIC_KIND: topic_table(topic),
        PARTITION_KIND: partitions,
        SEGMENT_KIND: in_log_order(pa.concat_tables([live, removed])),
    }
    if format_version > FIRST_FORMAT_VERSION:
        tables[TRANSACTION_KIND] = transactions_table(topic_id, last, log.storage.now_ms())
    encoded = [one for kind, table in tables.items() for one in store.encode_all(kind, table, format_version)]
    change = FileChange([file for file, _ in encoded], [], format_version)
    note = CommitNote(uuid.uuid4().hex, 0, REBUILD)
    noted = manifest.log.note_of_anew(
        version, topic_id, change, note, last, {file.path: data for file, data in encoded}
    )
    log.storage.write_all([*store.named(encoded), noted], unique=True)
    mark(log.storage)
    try:
        manifest.log.make_anew(version, known.newest, topic_id, change, note, last)
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
            hint=hint_after(error, "Run it again: what it has written is passed over"),
        ) from error
    write_recovery_copy(manifest.log, manifest.log.state())


def _under_a_new_id(topic: TopicRow, topic_id: str, removed: pa.Table) -> TopicRow:
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


def _check_lost(manifest: Manifest) -> None:
    """Returns where the latest version of a manifest, or any of its rows, cannot be read from the files that are there.

    Raises LogDirError where it can be read, where the topic was deleted by force, and where a newer package wrote it;
    StorageError where the store fails: then nobody knows.
    """
    if manifest.log.deleted_by_force_ms() is not None:
        raise LogDirError(
            f"Topic {manifest.topic} was deleted by force: there is nothing to rebuild",
            path=manifest.log.location,
            hint="To have it again, take the file deleted.json away first",
        )
    failure = _failure(manifest)
    if failure is not None:
        # delta-rs has one error for a store that fails and for damaged files. Files that were read are not the store's.
        with scratch_directory() as place:
            copy = Storage(place)
            manifest.storage.at_once(
                lambda info: _copy(manifest.storage, info, copy),
                manifest.storage.list(manifest.log.directory, recursive=True),
            )
            if _failure(Manifest(copy, manifest.topic)) is not None:
                return
        if _failure(manifest) is not None:
            raise failure
    raise LogDirError(
        f"The manifest of {manifest.topic} can be read: there is nothing to rebuild",
        path=manifest.log.location,
        hint="segments verify looks for other faults, and topic restore goes back to an earlier version",
    )


def _failure(manifest: Manifest) -> Exception | None:
    """The error of reading all rows of the latest version. A newer format is no failure: it is raised."""
    try:
        manifest.snapshot(deleted=True).source.read(None)
    except NewerFormatError:
        raise
    except (SegmentsError, FileNotFoundError, KeyError, pa.ArrowException) as error:
        return error
    return None


def _copy(storage: Storage, info: FileInfo, target: Storage) -> None:
    with contextlib.suppress(FileNotFoundError):  # gone since the listing
        target.write(info.path, storage.read(info.path))
