"""Rebuilds the manifest of a topic from the result of playback.py, in one commit, as a version that it never had.

The rest of the old manifest stays until vacuum. A topic gets a new id unless all of its commits are known: its offsets
may be assigned a second time, and streams, groups and mirrors must see that. A follower keeps its leader's id, since it
assigns no offsets: its mirror copies the missing commits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import (
    CommitConflictError,
    FormatVersionError,
    LogDirError,
    SegmentsError,
    StorageError,
    UnknownTopicError,
)
from spark_segments.log.directory import LogDirectory
from spark_segments.log.groups.group import Group
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change, check_change
from spark_segments.log.manifest.files.commit_notes import RECOVERY_DIRECTORY, notes_of
from spark_segments.log.manifest.files.delta.actions import REBUILD, CommitNote
from spark_segments.log.manifest.files.delta.delta_log import FENCED
from spark_segments.log.manifest.files.delta.delta_rs import CommitFailedError, VersionTakenError
from spark_segments.log.manifest.files.row_files import FileChange
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.recovery.loss import lost_commits
from spark_segments.log.manifest.recovery.playback import KnownTopic, known_topic
from spark_segments.log.manifest.role import FOLLOWER
from spark_segments.log.manifest.rows import OUT_OF_LOG, PARTITION_SCHEMA, SEGMENT_SCHEMA, Segment
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.state.recovery_copy import list_copies, write_recovery_copy
from spark_segments.log.manifest.state.snapshot import SegmentRows, Snapshot
from spark_segments.log.manifest.state.topic_log import delta_transactions
from spark_segments.log.manifest.topic_row import TopicRow, topic_table
from spark_segments.log.manifest.transaction import transactions_table
from spark_segments.log.marker import is_marked, mark
from spark_segments.log.report import Report
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.delta import hint_after, reason
from spark_segments.storage.scratch import scratch_directory

_DELAY_KEY = "file.delete.delay.ms"


def open_damaged(
    uri: str, storage_options: Mapping[str, str] | None = None, *, defaults: Mapping[str, str] | None = None
) -> LogDirectory:
    """As `LogDir.open`, and opens a log directory, too, whose whole `_manifest` is lost, with its marker."""
    storage = Storage(uri, dict(storage_options or {}))
    if not is_marked(storage) and storage.directories(RECOVERY_DIRECTORY):
        return LogDirectory(storage, defaults=defaults)
    return LogDirectory.open(uri, storage_options, defaults=defaults)


def rebuild_manifest(log: LogDirectory, topic: str, *, dry_run: bool = False) -> Report:
    """Rebuilds the manifest of a topic from a recovery copy and the proven commits after it: playback.py.

    Files that no known row names are listed, and never added. `dry_run` changes nothing and returns what would be done.
    Nothing may write to the topic meanwhile.

    No file of the log is changed. Raises LogDirError where the manifest can be read, where there is no recovery copy,
    where either has another format, or where the topic was deleted; CommitConflictError where somebody commits
    meanwhile; StorageError where the store fails: then nobody knows whether the manifest is lost.
    """
    if log.is_kafka:
        raise LogDirError("A directory that Kafka wrote has no manifest", path=log.uri)
    manifest = log.manifest(topic)
    _check_lost(log, manifest)
    facts = known_topic(manifest.log)
    if facts.snapshot.deleted_ms is not None:
        raise LogDirError(
            f"Topic {topic} was deleted: there is nothing to rebuild",
            path=manifest.log.location,
            hint=f"segments topic delete --force LOG_DIR {topic} lets vacuum take its files",
        )
    report = described(log, facts, dry_run=dry_run)
    topic_id = facts.snapshot.topic_id
    keeps_id = report.details["is_exact"] or facts.snapshot.role == FOLLOWER
    if not keeps_id:
        topic_id = TopicRow.new_id()
    # FENCED numbers are used up before it, so that a writer that still remembers the lost table cannot commit.
    version = facts.last_version + FENCED + 2
    report.details |= {"version": version, "topic_id": None if dry_run and not keeps_id else topic_id}
    if not dry_run:
        _commit(log, manifest, facts, topic_id, version)
    return report.finish()


def _commit(log: LogDirectory, manifest: Manifest, facts: KnownTopic, topic_id: str, version: int) -> None:
    snapshot = facts.snapshot
    rows = snapshot.source.read(None)
    live = row_tables.live(rows)
    removed = row_tables.in_states(rows, *OUT_OF_LOG)
    topic = snapshot.topic_row
    partitions = snapshot.partitions
    if topic_id != snapshot.topic_id:
        # Under the old id, streams and groups would go on at offsets of which nobody knows whether they are the same
        # records.
        live = row_tables.with_column(live, "topic_id", pa.repeat(topic_id, live.num_rows))
        partitions = row_tables.with_column(partitions, "topic_id", pa.repeat(topic_id, partitions.num_rows))
        topic = _under_a_new_id(topic, topic_id, removed)
    none = SEGMENT_SCHEMA.empty_table()
    nothing = Snapshot(snapshot.topic, -1, "", {}, 0, PARTITION_SCHEMA.empty_table(), SegmentRows(none))
    check_change(nothing, Change(REBUILD, topic=topic), live, none, none, partitions)
    store = manifest.log.store
    transactions = facts.transactions
    tables = {
        TOPIC_KIND: topic_table(topic),
        PARTITION_KIND: partitions,
        SEGMENT_KIND: row_tables.in_log_order(pa.concat_tables([live, removed])),
        TRANSACTION_KIND: transactions_table(topic_id, transactions, log.storage.now_ms()),
    }
    encoded = [file for kind, table in tables.items() for file in store.encode_all(kind, table)]
    change = FileChange([file for file, _ in encoded], [])
    note = CommitNote(uuid.uuid4().hex, 0, REBUILD)
    noted = manifest.log.note_of(version, (), change, note, {file.path: data for file, data in encoded})
    # The files and the note first: a version that names a file which is not there could be read by nobody.
    log.storage.write_all([*store.named(encoded), noted], unique=True)
    mark(log.storage)
    try:
        # It is forced with any settings of the topic, since it is done once, after a loss.
        by_id = delta_transactions(transactions, topic_id)
        manifest.log.delta.durable(True).make_anew(version, facts.newest, change, note, by_id)
        manifest.log.mark_made(version, note)
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
    """The topic's row. Removed rows keep their id: vacuum deletes their files as a deleted topic's."""
    topic_ids = set(pc.unique(removed.column("topic_id")).to_pylist())
    before = {**topic.deleted_topics, topic.topic_id: topic.config.get(_DELAY_KEY, "")}
    ids = ",".join([*filter(None, [topic.states.get(TopicRow.REBUILT_FROM)]), topic.topic_id])
    deleted = {name: delay for name, delay in before.items() if name in topic_ids}
    states = {**topic.states, TopicRow.REBUILT_FROM: ids}
    return dataclasses.replace(topic, topic_id=topic_id, deleted_topics=deleted, states=states)


def is_lost(log: LogDirectory, topic: str) -> bool:
    """Whether the manifest of a topic is to be rebuilt: the latest version, or any of its rows, cannot be read from the
    existing files, or commits after it were made and are gone.

    Raises UnknownTopicError where nothing of such a topic is there, LogDirError where it was deleted by force,
    FormatVersionError where it has another format; StorageError where the store fails: then nobody knows.
    """
    manifest = log.manifest(topic)
    if manifest.log.deleted_by_force_ms() is not None:
        raise LogDirError(
            f"Topic {manifest.topic} was deleted by force: there is nothing to rebuild",
            path=manifest.log.location,
            hint="To have it again, take the file deleted.json away first",
        )
    # Listed before the manifest is read. Listed after it, a commit that comes in between would seem lost.
    notes = notes_of(log.storage, topic)
    failure = _failure(manifest)
    left = [*list_copies(manifest.log), *log.storage.list(manifest.log.directory, recursive=True)]
    if isinstance(failure, UnknownTopicError) and not left:
        raise failure
    if failure is not None:
        # delta-rs has one error for a store that fails and for damaged files. Files that were read are not the store's.
        with scratch_directory() as place:
            copy = Storage(place)
            manifest.storage.at_once(
                lambda info: _copy(manifest.storage, info, copy),
                manifest.storage.list(manifest.log.directory, recursive=True),
            )
            if _failure(Manifest(copy, manifest.topic)) is not None:
                return True
        if _failure(manifest) is not None:
            raise failure
    return lost_commits(manifest.log, notes, manifest.state(deleted=True).version) is not None


def _check_lost(log: LogDirectory, manifest: Manifest) -> None:
    """Raises LogDirError where there is nothing to rebuild, and as `is_lost` does."""
    if is_lost(log, manifest.topic):
        return
    raise LogDirError(
        f"The manifest of {manifest.topic} can be read: there is nothing to rebuild",
        path=manifest.log.location,
        hint="segments verify looks for other faults, and topic restore goes back to an earlier version",
    )


def _failure(manifest: Manifest) -> Exception | None:
    """The error of reading all rows of the latest version. Another format is no failure: it is raised."""
    try:
        state = manifest.state(deleted=True)
        state.store.read_all(state.files)
    except FormatVersionError:
        raise
    except (SegmentsError, FileNotFoundError, KeyError, pa.ArrowException) as error:
        return error
    return None


def _copy(storage: Storage, info: FileInfo, target: Storage) -> None:
    with contextlib.suppress(FileNotFoundError):  # gone since the listing
        target.write(info.path, storage.read(info.path))


def described(log: LogDirectory, facts: KnownTopic, *, dry_run: bool) -> Report:
    """The report of what is known: a line for each partition, with its offsets and segments.

    `details`: copy_version and known_version are the versions of the recovery copy (-1: the notes begin with the
    topic), and the last that is known by the commits after it. is_exact: all commits are known, so that the topic keeps
    its id. unproven: commits whose notes are there and that may have been made or not. unnamed_files: files of the log
    that no known row names, with their bytes, and the version of the unproven commit that names them. missing_files:
    files of known rows that are gone or cut: reads of these offsets fail. not_known: what nobody can tell, in
    sentences. The rebuild adds the version and the topic_id of the topic that it makes.
    """
    snapshot = facts.snapshot
    files = _files(log.storage, snapshot)
    named = set(snapshot.source.read(None).column("path").to_pylist())
    unnamed = [info for path, info in sorted(files.items()) if path.endswith(".log") and path not in named]
    by_path = {path: note.version for note in facts.unproven for path in note.paths}
    report = Report("rebuild-manifest", dry_run)
    for row in snapshot.partitions.to_pylist():
        offsets = {name: row[name] for name in ("log_start_offset", "log_end_offset")}
        segments = len(snapshot.live_of(row["partition"]))
        report.add(snapshot.topic, row["partition"], "rebuilt", **offsets, segments=segments)
    report.details |= {
        "copy_version": facts.copy_version,
        "known_version": snapshot.version,
        "lost_versions": facts.lost_versions,
        # A commit of an older version of this package leaves files and no note.
        "is_exact": facts.is_whole and not any(info.mtime_ms >= facts.known_ms for info in unnamed),
        "topic_id_before": snapshot.topic_id,
        "unproven": [
            {"version": note.version, "operation": note.operation, "files": sorted(note.paths & files.keys())}
            for note in facts.unproven
        ],
        "unnamed_files": [
            {"path": info.path, "bytes": info.size, "written_ms": info.mtime_ms, "note": by_path.get(info.path)}
            for info in unnamed
        ],
        "missing_files": list(_missing_files(snapshot, files)),
        "transactions": [{"app_id": sent.application, "version": sent.version} for sent in facts.transactions],
        "groups": _groups(log, snapshot.topic),
    }
    report.details["not_known"] = _not_known(facts, report)
    return report


def _missing_files(snapshot: Snapshot, files: Mapping[str, FileInfo]) -> Iterator[dict[str, Any]]:
    """The live rows whose file is gone, or ends before the row does."""
    for row in Segment.of_table(snapshot.live):
        # A file that was cut still has the row's first records. Readers of the others fail, so that the row is listed.
        if row.path not in files or files[row.path].size < row.end_position:
            yield {name: getattr(row, name) for name in ("path", "partition", "base_offset", "next_offset")}


def _files(storage: Storage, snapshot: Snapshot) -> dict[str, FileInfo]:
    """The files in all directories of the topic's partitions and shared objects, by path."""
    mine = re.compile(re.escape(snapshot.topic) + r"-(\d+|shared)")
    rows = snapshot.source.read(None)
    directories = {path.rpartition("/")[0] for path in pc.unique(rows.column("path")).to_pylist()}
    directories |= {name for name in storage.directories() if mine.fullmatch(name)}
    return {info.path: info for name in sorted(directories) for info in storage.list(name)}


def _groups(log: LogDirectory, topic: str) -> list[dict[str, Any]]:
    positions_in_topic = []
    for group in Group.all(log):
        try:
            positions = group.positions()
        # A damaged file of a group says nothing of the topic, and must not keep it from being rebuilt.
        except SegmentsError:
            continue
        positions_in_topic += [
            {"group": group.id, "partition": partition, "offset": position.offset, "topic_id": position.topic_id}
            for (name, partition), position in sorted(positions.items())
            if name == topic
        ]
    return positions_in_topic


def _not_known(facts: KnownTopic, report: Report) -> list[str]:
    """What nobody can tell, in sentences."""
    details = report.details
    if details["is_exact"]:
        return _of_files(details["missing_files"])
    version = facts.snapshot.version
    doubts = []
    if details["unproven"]:
        commits = ", ".join(f"{note['operation']} of version {note['version']}" for note in details["unproven"])
        doubts.append(
            f"Whether the commits after version {version} that have a note were made, {commits}: "
            "nothing proves it. What they append is in files that the list names, and segments dump reads these."
        )
    if facts.lost_versions > len({note["version"] for note in details["unproven"]}):
        doubts.append(
            f"Commits after version {version}, at least {facts.lost_versions} of them: appends, settings, new "
            "partitions, what a restore took or brought back, and what retention, delete-records, compaction and erase "
            "took."
        )
    if not doubts:
        doubts.append(
            f"Whether there were commits after version {version}: an older version of this package, which writes no "
            "notes, may have made some."
        )
    if details["unnamed_files"]:
        doubts.append(
            "Whether a file that no known row names was committed. A task that failed, or that Spark ran twice, leaves "
            "such files too. Vacuum deletes them once they are 7 days old: copy what you need before."
        )
    if details["transactions"]:
        doubts.append(
            f"Transactions of writers after version {version}: an append that is sent again with a version above the "
            "one listed is added."
        )
    ends = {row["partition"]: row["log_end_offset"] for row in report.partitions}
    positions = (position for position in details["groups"] if position["topic_id"] == details["topic_id_before"])
    if any(position["offset"] > ends.get(position["partition"], 0) for position in positions):
        doubts.append("Records that groups have read: their positions lie above the last log end that is known.")
    return doubts + _of_files(details["missing_files"])


def _of_files(missing: Collection[dict[str, Any]]) -> list[str]:
    return ["Records whose file is gone or cut: reads of their offsets fail."] if missing else []
