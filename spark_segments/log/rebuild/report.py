"""What a rebuild knows, adds, leaves out, and cannot know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.states import REBUILT_FROM
from spark_segments.log.rebuild.known import KnownTopic
from spark_segments.log.rebuild.later_files import LaterFile
from spark_segments.log.rebuild.placing import PlacedLog

ADDED = "added"
CAN_BE_ADDED = "can be added"
LEFT_OUT = "left out"

UNREADABLE = "reads fail"
PASSED_OVER = "passed over"


@dataclass(slots=True)
class RebuildReport:
    """The outcome of a rebuild, or of its dry run.

    `copy_version`, `known_version`: the versions of the recovery copy, and the last that is known by the commits after
    it. `is_exact`: all commits are known and every file is there, so that the topic keeps its id. `version` and
    `topic_id`: of the rebuilt topic; no id for a dry run that would give a new one. The lists are plain values, as in
    `to_dict`. `missing_files`: files that are gone or cut, and the offsets that no other file has. `returned_files`:
    files that had left the log and are in it again, with the same records as known files that are gone.
    """

    topic: str
    copy_version: int
    known_version: int
    lost_versions: int
    is_exact: bool
    topic_id_before: str
    dry_run: bool = False
    version: int = 0
    topic_id: str | None = None
    partitions: list[dict[str, Any]] = field(default_factory=list)
    later_files: list[dict[str, Any]] = field(default_factory=list)
    missing_files: list[dict[str, Any]] = field(default_factory=list)
    returned_files: list[dict[str, Any]] = field(default_factory=list)
    transactions: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    not_known: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, as for JSON."""
        return {"job": "rebuild-manifest"} | {name: getattr(self, name) for name in self.__slots__}


def described(
    log: LogDir,
    known: KnownTopic,
    later: Sequence[LaterFile],
    placed: Mapping[int, PlacedLog],
    possible: Mapping[int, PlacedLog],
    partitions: Sequence[Partition],
    *,
    is_exact: bool,
) -> RebuildReport:
    """The report of a plan."""
    snapshot = known.snapshot
    report = RebuildReport(
        snapshot.topic, known.copy_version, snapshot.version, known.lost_versions, is_exact, snapshot.topic_id
    )
    for row in partitions:
        before, rows = snapshot.partition(row.partition), placed[row.partition].rows
        report.partitions.append(
            {
                "partition": row.partition,
                "log_start_offset": row.log_start_offset,
                "log_end_offset": row.log_end_offset,
                "known_log_start_offset": before.log_start_offset,
                "known_log_end_offset": before.log_end_offset,
                "segments": len(rows),
            }
        )
        report.missing_files += [_missing(one, UNREADABLE) for one in placed[row.partition].missing]
        report.missing_files += [_missing(one, PASSED_OVER) for one in placed[row.partition].passed_over]
        report.returned_files += [_range(one) for one in placed[row.partition].returned]
    report.later_files = [_later(file, placed, possible) for file in later]
    report.transactions = [{"app_id": one.application, "version": one.version} for one in known.transactions]
    report.groups = _groups(log, snapshot.topic)
    report.not_known = _not_known(known, later, report)
    return report


def _range(row: Segment) -> dict[str, Any]:
    return {
        "path": row.path,
        "partition": row.partition,
        "base_offset": row.base_offset,
        "next_offset": row.next_offset,
    }


def _missing(row: Segment, reads: str) -> dict[str, Any]:
    return _range(row) | {"reads": reads}


def _later(file: LaterFile, placed: Mapping[int, PlacedLog], possible: Mapping[int, PlacedLog]) -> dict[str, Any]:
    row, place = file.row, (file.path, file.position)
    line: dict[str, Any] = {
        "path": file.path,
        "partition": file.partition,
        "position": file.position,
        "bytes": file.size_bytes,
        "written_ms": file.written_ms,
        "records": None if row is None else row.records,
        "max_timestamp_ms": None if row is None else row.max_timestamp_ms,
        "first_offset": None,
        "next_offset": None,
        "status": LEFT_OUT,
        "reason": file.problem,
    }
    if file.partition is None or row is None:
        return line
    now, then = placed[file.partition].added.get(place), possible[file.partition].added.get(place)
    if now is not None:
        return line | {"status": ADDED, "first_offset": now[0], "next_offset": now[1]}
    if then is not None:
        reason = "committed later, or never: no row that is known names it"
        if file.is_earlier:
            reason = "lost to an earlier rebuild, which left it out, or never committed: it has an id from before that"
        return line | {"status": CAN_BE_ADDED, "reason": reason}
    return line | {"reason": possible[file.partition].left_out.get(place)}


def _groups(log: LogDir, topic: str) -> list[dict[str, Any]]:
    return [
        {"group": group, "partition": partition, "offset": position.offset, "topic_id": position.topic_id}
        for group in log.groups()
        for (name, partition), position in sorted(log.group(group).positions().items())
        if name == topic
    ]


def _not_known(known: KnownTopic, later: Sequence[LaterFile], report: RebuildReport) -> list[str]:
    """What nobody can tell, in sentences."""
    if report.is_exact:
        return []
    version = known.snapshot.version
    found = [
        f"Commits after version {version}"
        + (f", at least {known.lost_versions} of them" if known.lost_versions else "")
        + ": appends, settings, new partitions, what a restore took or brought back, and what retention, "
        "delete-records, compaction and erase took. What they took is in the log again where its file is still there."
    ]
    if later:
        found.append(
            "Whether a file that no known row names was committed. A task that failed, or that Spark ran twice, leaves "
            "such files too: adding them may bring records twice. Vacuum deletes them once they are 7 days old."
        )
    if any(file.is_chunk for file in later):
        found.append(
            "The order of chunks that were written in the same moment of the store's clock, which on an object store "
            "is a second: the time of their records decides, and nothing where that is the same."
        )
    if later and REBUILT_FROM in known.snapshot.states:
        found.append(
            "What an earlier rebuild of this topic was told: files that it left out on purpose are among those that no "
            "known row names."
        )
    if report.transactions:
        found.append(
            f"Transactions of writers after version {version}: an append that is sent again with a version above the "
            "one listed is added, even if its records are in a file that was added here."
        )
    if any(row["log_start_offset"] > row["known_log_start_offset"] for row in report.partitions):
        found.append(
            "Why the first files of a log, which now starts behind them, are gone. Retention and vacuum take such "
            "files. But a disk may not be mounted either, and files that come back later are in no row."
        )
    if any(one["reads"] == UNREADABLE for one in report.missing_files):
        found.append("Records whose file is gone or cut and that no other file has: reads of their offsets fail.")
    if any(one["reads"] == PASSED_OVER for one in report.missing_files):
        found.append(
            "Whether compaction took the records of files that are gone and that reads pass over, or whether these are "
            "lost: the compacted file before them ends too early to tell."
        )
    ends = {row["partition"]: row["known_log_end_offset"] for row in report.partitions}
    same = (one for one in report.groups if one["topic_id"] == report.topic_id_before)
    if any(one["offset"] > ends.get(one["partition"], 0) for one in same):
        found.append("Records that groups have read: their positions lie above the last log end that is known.")
    return found
