"""What a rebuild knows, and what it cannot know."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pyarrow.compute as pc

from spark_segments.errors import SegmentsError
from spark_segments.log.groups.group import all_groups
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.rows import segments_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.rebuild.playback import KnownTopic
from spark_segments.log.report import Report
from spark_segments.storage import FileInfo, Storage


def described(log: LogDir, known: KnownTopic, *, dry_run: bool) -> Report:
    """The report of what is known: a line for each partition, with its offsets and segments.

    `details`: copy_version and known_version are the versions of the recovery copy (-1: the notes begin with the
    topic), and the last that is known by the commits after it. is_exact: all commits are known, so that the topic keeps
    its id. unproven: commits whose notes are there and that may have been made or not. unnamed_files: files of the log
    that no known row names, with their bytes, and the version of the unproven commit that names them. missing_files:
    files of known rows that are gone or cut: reads of these offsets fail. not_known: what nobody can tell, in
    sentences. The rebuild adds the version and the topic_id of the topic that it makes.
    """
    snapshot = known.snapshot
    files = _files(log.storage, snapshot)
    named = set(snapshot.source.read(None).column("path").to_pylist())
    unnamed = [info for path, info in sorted(files.items()) if path.endswith(".log") and path not in named]
    by_path = {path: one.version for one in known.unproven for path in one.paths}
    report = Report("rebuild-manifest", dry_run)
    for row in snapshot.partitions.to_pylist():
        offsets = {name: row[name] for name in ("log_start_offset", "log_end_offset")}
        segments = len(snapshot.live_of(row["partition"]))
        report.add(snapshot.topic, row["partition"], "rebuilt", **offsets, segments=segments)
    report.details |= {
        "copy_version": known.copy_version,
        "known_version": snapshot.version,
        "lost_versions": known.lost_versions,
        # A commit of an older version of this package leaves files and no note.
        "is_exact": known.is_whole and not any(info.mtime_ms >= known.known_ms for info in unnamed),
        "topic_id_before": snapshot.topic_id,
        "unproven": [
            {"version": one.version, "operation": one.operation, "files": sorted(one.paths & files.keys())}
            for one in known.unproven
        ],
        "unnamed_files": [
            {"path": info.path, "bytes": info.size, "written_ms": info.mtime_ms, "note": by_path.get(info.path)}
            for info in unnamed
        ],
        "missing_files": [
            {name: getattr(row, name) for name in ("path", "partition", "base_offset", "next_offset")}
            for row in segments_of(snapshot.live)
            if row.path not in files or files[row.path].size < row.end_position
        ],
        "transactions": [{"app_id": one.application, "version": one.version} for one in known.transactions],
        "groups": _groups(log, snapshot.topic),
    }
    report.details["not_known"] = _not_known(known, report)
    return report


def _files(storage: Storage, snapshot: Snapshot) -> dict[str, FileInfo]:
    """The files in all directories of the topic's partitions and shared objects, by path."""
    mine = re.compile(re.escape(snapshot.topic) + r"-(\d+|shared)")
    rows = snapshot.source.read(None)
    directories = {path.rpartition("/")[0] for path in pc.unique(rows.column("path")).to_pylist()}
    directories |= {name for name in storage.directories() if mine.fullmatch(name)}
    return {info.path: info for name in sorted(directories) for info in storage.list(name)}


def _groups(log: LogDir, topic: str) -> list[dict[str, Any]]:
    positions_in_topic = []
    for group in all_groups(log.manifests):
        try:
            positions = group.positions()
        except SegmentsError:
            continue
        positions_in_topic += [
            {"group": group.id, "partition": partition, "offset": position.offset, "topic_id": position.topic_id}
            for (name, partition), position in sorted(positions.items())
            if name == topic
        ]
    return positions_in_topic


def _not_known(known: KnownTopic, report: Report) -> list[str]:
    """What nobody can tell, in sentences."""
    said = report.details
    if said["is_exact"]:
        return _of_files(said["missing_files"])
    version = known.snapshot.version
    doubts = []
    if said["unproven"]:
        doubts.append(
            f"Whether the commits after version {version} that have a note were made, {_versions(said['unproven'])}: "
            "nothing proves it. What they append is in files that the list names, and segments dump reads these."
        )
    if known.lost_versions > len({one["version"] for one in said["unproven"]}):
        doubts.append(
            f"Commits after version {version}, at least {known.lost_versions} of them: appends, settings, new "
            "partitions, what a restore took or brought back, and what retention, delete-records, compaction and erase "
            "took."
        )
    if not doubts:
        doubts.append(
            f"Whether there were commits after version {version}: an older version of this package, which writes no "
            "notes, may have made some."
        )
    if said["unnamed_files"]:
        doubts.append(
            "Whether a file that no known row names was committed. A task that failed, or that Spark ran twice, leaves "
            "such files too. Vacuum deletes them once they are 7 days old: copy what you need before."
        )
    if said["transactions"]:
        doubts.append(
            f"Transactions of writers after version {version}: an append that is sent again with a version above the "
            "one listed is added."
        )
    ends = {row["partition"]: row["log_end_offset"] for row in report.partitions}
    same = (one for one in said["groups"] if one["topic_id"] == said["topic_id_before"])
    if any(one["offset"] > ends.get(one["partition"], 0) for one in same):
        doubts.append("Records that groups have read: their positions lie above the last log end that is known.")
    return doubts + _of_files(said["missing_files"])


def _of_files(missing: Collection[dict[str, Any]]) -> list[str]:
    return ["Records whose file is gone or cut: reads of their offsets fail."] if missing else []


def _versions(unproven: Collection[dict[str, Any]]) -> str:
    return ", ".join(f"{one['operation']} of version {one['version']}" for one in unproven)
