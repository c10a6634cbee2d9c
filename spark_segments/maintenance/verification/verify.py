"""Verification: checks every invariant of a log directory, managed or written by Kafka, and reports violations.

A quick check compares rows, listings and sizes. A deep check reads every byte: batches, records, index entries, time
look-ups, row figures, leader epochs, transactions, keys. A repair rebuilds sidecars (repair.py); records never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from spark_segments.config import is_topic_name, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.extensions import observed_job
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.log.directory import LogDirectory
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.files.commit_notes import RECOVERY_DIRECTORY, made_versions, were_made
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.log.manifest.recovery.loss import LostManifest, lost_commits
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.report import Report
from spark_segments.maintenance.rebuild.rebuild import is_lost, rebuild_manifest
from spark_segments.maintenance.verification.manifest_rows import (
    check_applications,
    check_clocks,
    check_files,
    check_rows,
    check_shared_rows,
    check_statistics,
    check_topic,
    readable,
)
from spark_segments.maintenance.verification.shared_objects import check_footers, check_objects
from spark_segments.progress import Progress
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.maintenance.verification.checksums import ChecksumList
    from spark_segments.maintenance.verification.evidence import Signing


@dataclass
class VerifiedTopic:
    """A topic at one version, how it is verified, and what was found. Its snapshot is read when it is first asked for:
    that it cannot be read is a finding.

    `progress`: of a deep look. `repaired`: lines of what was repaired, by the `Segment.place`. Of a shared object that
    is one of its runs.
    """

    log: LogDirectory
    name: str
    version: int | None = None
    timestamp_ms: int | None = None
    is_deep: bool = False
    repairs: bool = False
    cuts: bool = False
    spark: SparkSession | None = None
    progress: Progress | None = None
    partitions: int = 0
    segments: int = 0
    bytes_read: int = 0
    holes: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    repaired: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_latest(self) -> bool:
        return self.version is None and self.timestamp_ms is None

    @cached_property
    def snapshot(self) -> Snapshot:
        return self.log.snapshot(self.name, self.version, self.timestamp_ms)

    @cached_property
    def findings(self) -> Findings:
        return Findings(self.name)

    def lose(self, segment: Segment, offsets: Iterable[tuple[int, int]]) -> None:
        """Notes offsets (start, end exclusive) of batches that cannot be read."""
        place = {"topic": self.name, "partition": segment.partition, "path": segment.path}
        self.lost += [{**place, "start_offset": start, "end_offset": end} for start, end in offsets]

    def cut(self, before: Segment, after: Segment, holes: Sequence[Hole]) -> None:
        """Notes that damaged batches of a segment were taken out: what was found of its files is corrected."""
        self.repaired[before.place] = {"partition": after.partition, "path": before.path, "new_path": after.path}
        self.holes += [{"topic": self.name, **hole.to_dict()} for hole in holes]
        files = (before.path, before.index_path, before.time_index_path, before.txn_index_path)
        self.findings.found = [
            dataclasses.replace(finding, rebuilds=before.place) if finding.path in files else finding
            for finding in self.findings.found
        ]

    def add_to(self, report: Report) -> None:
        """Adds its lines and findings to the report."""
        report.count(partitions=self.partitions, segments=self.segments)
        report.details["holes"] += self.holes
        report.details["lost"] += self.lost
        read: dict[str, Any] = {"bytes_in": self.bytes_read, "bytes_out": self.bytes_read}
        report.add(self.name, None, "verified", **read, partitions=self.partitions, segments=self.segments)
        for line in self.repaired.values():
            report.add(self.name, action="repaired", **line)
        _add(report, self.findings, self.repaired.keys())


@observed_job("verify")
def verify(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    deep: bool = False,
    repair: bool = False,
    cut: bool = False,
    against: Path | ChecksumList | None = None,
    sign: Signing | None = None,
) -> Report:
    """Verifies the topics that are selected, or all, in this process or, where there is a session, on Spark.

    Faults of the log are the report's `findings`, never errors. A topic has a line, with what was read of it as
    `bytes_in`. `details`: deep, partitions, segments; findings_left_out, of which there were MOST_OF_A_KIND already;
    uncorrected, the findings that no repair has corrected; holes, the known holes that the topics have recorded, which
    are no findings; lost, the offsets of damaged batches, which cannot be read.

    `repair` first rebuilds the manifests of `topics` that are lost or damaged, each of which is in `details` as
    "rebuilt" with what a rebuild says (restore.md): where commits may be lost, the topic gets a new id. It checks
    deeply, then rebuilds the wrong sidecars under new names, in a single commit for each topic; each
    has a line, with its `new_path`. The findings stay in the report. With `cut` it takes damaged batches out of the
    log, too: their offsets become holes of the topic, and all other records stay. `against`: a list of checksums
    (checksums.py) that the files are compared with, too; `details` has what became of them as
    "listed". `sign`: a deep look that finds nothing writes a signed list of
    what it has read (evidence.py), which `details` names as "signed". Raises UnknownTopicError for a name of `topics`
    that is not there, LogDirError for a repair of a directory that Kafka wrote, NotLeaderError for that of a follower.

    `progress` is called with (topics done, all topics), and of a deep look with (bytes read, bytes to read), which
    begin again with each topic, and with each part of a large one.
    """
    if cut and not repair:
        raise InvalidOptionError("Damaged batches are taken out by a repair", expected="repair, too", found="cut alone")
    if repair and log.is_kafka:
        raise LogDirError(
            "A Kafka log directory is read-only",
            path=log.uri,
            hint="Import it, or start a broker on it. Both rebuild the indexes",
        )
    if sign is not None:
        if repair or not deep:
            raise InvalidOptionError(
                "What is signed was read whole, and is not changed", expected="deep, without a repair", found="sign"
            )
        if log.is_kafka:
            raise LogDirError("Nothing of a broker's own directory is signed", path=log.uri, hint="Import it first")
        sign.check()
    listed = None
    if against is not None:
        from spark_segments.maintenance.verification.checksums import ChecksumList, check_against

        listed = ChecksumList.read(against) if isinstance(against, Path) else against
    report = _new_report(deep or repair, dry_run)
    rebuilt = _rebuild_lost(log, topics, report) if repair and topics is not None else []
    kept = log.storage.directories(RECOVERY_DIRECTORY) if topics is None and log.kafka is None else ()
    kept = [name for name in kept if is_topic_name(name)]
    names = LogDirectory.selected(log.directories(), topics)
    if dry_run:
        names = [name for name in names if name not in rebuilt]
    for name in sorted({*kept} - {*names}):
        _add(report, _lost_manifest(log, name))
    snapshots, began_ms = [], log.storage.now_ms()
    for number, name in enumerate(names):
        try:
            topic = VerifiedTopic(log, name, is_deep=deep or repair, repairs=repair and not dry_run, spark=spark)
            topic.cuts = cut and topic.repairs
            topic.progress = progress if topic.is_deep else None
            _verify(topic, report)
            if sign is not None and not report.findings:
                snapshots.append(topic.snapshot)
        except UnknownTopicError:
            if topics is not None and name in topics:
                raise
        if progress is not None and not (deep or repair):
            progress(number + 1, len(names))
    if log.kafka is not None:
        findings = Findings("")
        log.kafka.check_directory(findings)
        _add(report, findings)
    if listed is not None:
        of_topics, bytes_read, became = check_against(log, listed, topics, spark)
        report.details["listed"] = became.to_dict()
        report.bytes_in += bytes_read
        for findings in of_topics:
            _add(report, findings)
    if sign is not None and not report.findings:
        report.details["signed"] = sign.write(log.storage, snapshots, began_ms, spark)
    return report.finish()


def _rebuild_lost(log: LogDirectory, topics: Sequence[str], report: Report) -> list[str]:
    """Rebuilds the manifests that are lost or damaged, unless it is a dry run, and returns the names of the topics."""
    lost = [name for name in log.named(topics) if is_lost(log, name)]
    for name in lost:
        rebuilt = rebuild_manifest(log, name, dry_run=report.dry_run)
        report.details.setdefault("rebuilt", []).append({"topic": name, **rebuilt.details})
        report.partitions += rebuilt.partitions
    return lost


def verify_topic(
    log: LogDirectory,
    name: str,
    version: int | None = None,
    timestamp_ms: int | None = None,
    *,
    deep: bool = False,
    spark: SparkSession | None = None,
) -> Report:
    """Verifies one snapshot of a topic, the newest or that of a version or time. See `verify`."""
    report = _new_report(deep)
    _verify(VerifiedTopic(log, name, version, timestamp_ms, is_deep=deep, spark=spark), report)
    return report.finish()


def _new_report(deep: bool, dry_run: bool = False) -> Report:
    counts = dict.fromkeys(("partitions", "segments", "findings_left_out", "uncorrected"), 0)
    return Report("verify", dry_run, details={"deep": deep, **counts, "holes": [], "lost": []})


def _add(report: Report, findings: Findings, repaired: Collection[str] = ()) -> None:
    """Adds findings to the report. `repaired`: the `Segment.place` of each segment that was repaired."""
    report.findings += findings.found
    report.count(
        findings_left_out=findings.left_out,
        uncorrected=findings.left_out + sum(finding.rebuilds not in repaired for finding in findings.found),
    )


def _lost_manifest(log: LogDirectory, topic: str) -> Findings:
    """A finding where commits of a topic were made whose manifest nobody can find."""
    findings = Findings(topic)
    if were_made(log.storage, topic):
        lost = LostManifest.of(log.manifest(topic).log)
        findings.add(f"{lost.message}. {lost.hint}", path=f"{MANIFEST_DIRECTORY}/{topic}")
    return findings


def _verify(topic: VerifiedTopic, report: Report) -> None:
    if topic.log.kafka is None:
        _verify_managed(topic)
    else:
        _verify_kafka(topic)
    topic.add_to(report)


def _verify_managed(topic: VerifiedTopic) -> None:
    findings, storage = topic.findings, topic.log.storage
    made = made_versions(storage, topic.name) if topic.is_latest else set()
    try:
        snapshot = topic.snapshot
        _ = snapshot.segments
    except UnknownTopicError:
        raise
    except (SegmentsError, DeltaError, OSError, ValueError) as error:
        findings.add("The manifest cannot be read", path=f"{MANIFEST_DIRECTORY}/{topic.name}", found=error)
        return
    lost = lost_commits(topic.log.manifest(topic.name).log, made, snapshot.version)
    if lost is not None:
        findings.add(
            f"{lost.message}. {lost.hint}",
            path=f"{MANIFEST_DIRECTORY}/{topic.name}",
            expected=lost.expected,
            found=lost.found,
        )
    if topic.repairs:
        from spark_segments.maintenance.verification.deep import REPAIR

        snapshot.role.check(snapshot.topic, REPAIR)
    try:
        config = topic_config(snapshot.config, topic.log.defaults)
    except InvalidOptionError as error:
        findings.add("The topic's configuration is not valid", rule="M30", expected=error.expected, found=error)
        config = topic_config({}, {})
    files = _listing(storage, snapshot)
    now_ms = storage.now_ms()
    snapshot = readable(snapshot, findings)
    check_topic(snapshot, findings)
    state = topic.log.manifest(topic.name).state(snapshot.version)
    check_applications(state.last_transactions(), findings)
    check_statistics(state.store, state.files, findings)
    check_rows(snapshot, findings)
    check_shared_rows(snapshot.live, findings)
    check_clocks(snapshot.segments, now_ms, findings)
    check_files(snapshot, files, findings, kept_since_ms=now_ms - config.file_delete_delay_ms)
    objects = check_objects(snapshot, files, findings)
    topic.partitions, topic.segments = snapshot.partitions.num_rows, snapshot.live.num_rows
    topic.holes = [{"topic": topic.name, **hole.to_dict()} for hole in Hole.of(snapshot.states)]
    if topic.is_deep:
        from spark_segments.maintenance.verification.deep import DeepLook

        try:
            check_footers(topic, snapshot, objects)
            look = DeepLook(topic, snapshot, config, files)
            look.run()
            if topic.repairs:
                look.repair()
            if topic.cuts:
                look.cut()
        except MissingFileError as error:  # after its segment was checked
            findings.add("The file is missing", path=error.path, expected="the file", found="no file")
    _pass_over_replaced(topic)


def _pass_over_replaced(topic: VerifiedTopic) -> None:
    """Replaces errors about files that left the log meanwhile, and that vacuum deleted, by a single warning."""
    findings = topic.findings
    missing = [finding for finding in findings.found if finding.message.endswith("is missing") and finding.path]
    if not missing:
        return
    snapshot = topic.snapshot
    try:
        rows = topic.log.snapshot(topic.name).segments
        kept = rows.filter(pc.fill_null(pc.greater_equal(rows.column("removed_ms"), 0), True))
    except UnknownTopicError:
        kept = snapshot.live.slice(0, 0)
    named = {path.removesuffix(LOG_SUFFIX) for path in kept.column("path").to_pylist()}
    live = {path.removesuffix(LOG_SUFFIX) for path in snapshot.live.column("path").to_pylist()}
    replaced = [finding for finding in missing if (finding.path or "").rpartition(".")[0] in live - named]
    if replaced:
        findings.found = [finding for finding in findings.found if finding not in replaced]
        findings.add(
            "Segments left the log while they were verified, and vacuum took their files",
            severity=Findings.WARNING,
            path=replaced[0].path,
            expected="a file.delete.delay.ms that is longer than verify takes",
            found=f"{len(replaced)} files gone: run verify again",
        )


def _verify_kafka(topic: VerifiedTopic) -> None:
    from spark_segments.maintenance.verification.deep import DeepLook

    kafka, findings = topic.log.kafka, topic.findings
    assert kafka is not None
    partitions = kafka.check_files(topic.name, findings)
    if not partitions:
        _ = topic.snapshot  # raises
    if not topic.is_deep:
        topic.partitions = partitions
        return
    try:
        snapshot = topic.snapshot
    except (SegmentsError, OSError) as error:
        findings.add("The topic cannot be opened", found=error)
        return
    kafka.check_log(topic.name, findings)
    topic.partitions, topic.segments = snapshot.partitions.num_rows, snapshot.live.num_rows
    DeepLook(topic, snapshot, topic_config({}, {}), None).run()


def _listing(storage: Storage, snapshot: Snapshot) -> dict[str, FileInfo]:
    directories = {path.rpartition("/")[0] for path in snapshot.segments.column("path").to_pylist()}
    return {
        info.path: info
        for directory in sorted(directories)
        if _is_inside(directory)
        for info in storage.list(directory)
    }


def _is_inside(directory: str) -> bool:
    """Whether a row's path stays in the log directory. Where it does not, another check finds the row wrong."""
    return bool(directory) and not directory.startswith("/") and ".." not in directory.split("/")
