"""Verification: checks every invariant of a log directory, managed or written by Kafka, and reports violations.

A quick check compares rows, listings and sizes. A deep check reads every byte: batches, records, index entries, time
look-ups, row figures, leader epochs, transactions, keys. A repair rebuilds sidecars; records never change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from spark_segments.config import TopicConfig, is_topic_name, selected_topics, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.format.file_names import LOG_SUFFIX
from spark_segments.log.directory import LogDirectory
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.files.commit_notes import RECOVERY_DIRECTORY, CommitNotes, CommitTraces, notes_of
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.log.manifest.recovery.loss import LostManifest, lost_commits
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.report import Report
from spark_segments.maintenance.rebuild.rebuild import is_lost, rebuild_manifest
from spark_segments.maintenance.verification.commits import check_commits
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
from spark_segments.maintenance.verification.shared_objects import SharedObject, check_footers, check_objects
from spark_segments.progress import Progress
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class VerifiedTopic:
    """A topic at one version, how it is verified, and what was found. Its snapshot is read when it is first asked for:
    that it cannot be read is a finding.

    `progress`: of a deep look. `repaired`: lines of what was repaired, by the `Segment.place`. Of a shared object that
    is one of its runs; of a note its path.
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
    warnings: list[str] = field(default_factory=list)
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
        for text in self.warnings:
            report.warn(text)
        read: dict[str, Any] = {"bytes_in": self.bytes_read, "bytes_out": self.bytes_read}
        report.add(self.name, None, "verified", **read, partitions=self.partitions, segments=self.segments)
        for line in self.repaired.values():
            report.add(self.name, action="repaired", **line)
        _add(report, self.findings, self.repaired.keys())


@dataclass
class Verification:
    """A look at the topics that are selected, or at all, in this process or, where there is a session, on Spark.

    Faults of the log are the report's `findings`, never errors. `signed_lists.verify` has the public function, and says
    what each mode does. `keeps_snapshots`: `snapshots` has what was read of each topic while nothing had been found.
    `began_ms`: when it began, by the store's clock.
    """

    log: LogDirectory
    topics: Sequence[str] | None = None
    spark: SparkSession | None = None
    progress: Progress | None = None
    dry_run: bool = False
    deep: bool = False
    repair: bool = False
    cut: bool = False
    keeps_snapshots: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)
    began_ms: int = 0

    def __post_init__(self) -> None:
        self._check_mode()
        self.report = _new_report(self._is_deep, self.dry_run)

    @property
    def _is_deep(self) -> bool:
        return self.deep or self.repair  # a sidecar is rebuilt from a log that was read whole

    def _check_mode(self) -> None:
        if self.cut and not self.repair:
            raise InvalidOptionError(
                "Damaged batches are taken out by a repair", expected="repair, too", found="cut alone"
            )
        if self.repair and self.log.is_kafka:
            raise LogDirError(
                "A Kafka log directory is read-only",
                path=self.log.uri,
                hint="Import it, or start a broker on it. Both rebuild the indexes",
            )

    def run(self) -> None:
        """Looks at the topics, and at what the directory has beside them."""
        # Copies are listed before the topics: listed after them, the copy of a topic that was created in between would
        # seem to have no manifest.
        copies = self._recovery_copies()
        names = self._rebuild_lost()
        for name in sorted(copies - {*names}):
            self.add(_lost_manifest(self.log, name))
        self.began_ms = self.log.storage.now_ms()
        for number, name in enumerate(names):
            self._verify_topic(name)
            if self.progress is not None and not self._is_deep:
                self.progress(number + 1, len(names))
        if self.log.kafka is not None:
            findings = Findings("")
            self.log.kafka.check_directory(findings)
            self.add(findings)

    def add(self, findings: Findings) -> None:
        """Adds findings to the report."""
        _add(self.report, findings)

    def _rebuild_lost(self) -> list[str]:
        """The topics to look at, once a repair has rebuilt the manifests that are lost or damaged."""
        if not self.repair or self.topics is None:
            return selected_topics(self.log.directories(), self.topics)
        lost = [name for name in self.log.named(self.topics) if is_lost(self.log, name)]
        for name in lost:
            rebuilt = rebuild_manifest(self.log, name, dry_run=self.dry_run)
            self.report.details.setdefault("rebuilt", []).append({"topic": name, **rebuilt.details})
            self.report.partitions += rebuilt.partitions
        names = selected_topics(self.log.directories(), self.topics)
        return [name for name in names if not (self.dry_run and name in lost)]  # a dry run has rebuilt none

    def _recovery_copies(self) -> set[str]:
        """The topics of which there is a recovery copy, where all topics are looked at."""
        if self.topics is not None or self.log.kafka is not None:
            return set()
        return set(filter(is_topic_name, self.log.storage.directories(RECOVERY_DIRECTORY)))

    def _verify_topic(self, name: str) -> None:
        topic = VerifiedTopic(
            self.log, name, is_deep=self._is_deep, repairs=self.repair and not self.dry_run, spark=self.spark
        )
        topic.cuts = self.cut and topic.repairs
        topic.progress = self.progress if topic.is_deep else None
        try:
            _verify(topic, self.report)
        except UnknownTopicError:
            # A topic that somebody deleted meanwhile is no fault, unless it was asked for by its name.
            if self.topics is not None and name in self.topics:
                raise
            return
        if self.keeps_snapshots and not self.report.findings:
            self.snapshots.append(topic.snapshot)


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
    if CommitTraces.of(log.storage, topic).are_listed:
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
    notes = notes_of(topic.log.storage, topic.name) if topic.is_latest else None
    if not _is_manifest_readable(topic):
        return
    snapshot = topic.snapshot
    findings = topic.findings
    if notes is not None:
        _check_commits(topic, notes)
    if topic.repairs:
        from spark_segments.maintenance.verification.deep import REPAIR

        snapshot.check_role(REPAIR)
    config = _config(topic)
    files = _listing(topic.log.storage, snapshot)
    readable_rows = readable(snapshot, findings)
    objects = _check_rows(topic, readable_rows, config, files)
    topic.partitions = readable_rows.partitions.num_rows
    topic.segments = readable_rows.live.num_rows
    topic.holes = [{"topic": topic.name, **hole.to_dict()} for hole in Hole.of(readable_rows.states)]
    if topic.is_deep:
        _look_deep(topic, readable_rows, config, files, objects)
        if not findings.found:  # a scan of a damaged log ends at the damage, which is told already
            topic.log.key_offsets.verify(snapshot, findings)
    _pass_over_replaced(topic)


def _is_manifest_readable(topic: VerifiedTopic) -> bool:
    """Whether the topic's rows can be read. Why they cannot is a finding; that there is no topic is an error."""
    try:
        _ = topic.snapshot.segments
    except UnknownTopicError:
        raise
    except (SegmentsError, DeltaError, OSError, ValueError) as error:
        topic.findings.add("The manifest cannot be read", path=f"{MANIFEST_DIRECTORY}/{topic.name}", found=error)
        return False
    return True


def _check_commits(topic: VerifiedTopic, notes: CommitNotes) -> None:
    """Adds a finding where a commit is lost: its mark is there, and the log does not have it.

    `notes`: listed before the snapshot was read. Listed after it, they would have a commit that came in between, and
    that commit would seem lost.
    """
    lost = lost_commits(topic.log.manifest(topic.name).log, notes, topic.snapshot.version)
    if lost is not None:
        topic.findings.add(
            f"{lost.message}. {lost.hint}",
            path=f"{MANIFEST_DIRECTORY}/{topic.name}",
            expected=lost.expected,
            found=lost.found,
        )


def _config(topic: VerifiedTopic) -> TopicConfig:
    """The topic's configuration; the default one where it is not valid, which is a finding."""
    try:
        return topic_config(topic.snapshot.config, topic.log.defaults)
    except InvalidOptionError as error:
        topic.findings.add("The topic's configuration is not valid", rule="M30", expected=error.expected, found=error)
        return topic_config({}, {})


def _check_rows(
    topic: VerifiedTopic, snapshot: Snapshot, config: TopicConfig, files: dict[str, FileInfo]
) -> list[SharedObject]:
    """Compares rows with each other, with the clock and with the listed files."""
    findings = topic.findings
    now_ms = topic.log.storage.now_ms()
    check_topic(snapshot, findings)
    state = topic.log.manifest(topic.name).state(snapshot.version)
    check_applications(state.last_transactions(), findings)
    check_statistics(state.store, state.files, findings)
    if topic.is_latest:
        check_commits(topic, state)
    check_rows(snapshot, findings)
    check_shared_rows(snapshot.live, findings)
    check_clocks(snapshot.segments, now_ms, findings)
    # Vacuum may delete a file file.delete.delay.ms after it has left the log: such a file need not be there.
    check_files(snapshot, files, findings, kept_since_ms=now_ms - config.file_delete_delay_ms)
    return check_objects(snapshot, files, findings)


def _look_deep(
    topic: VerifiedTopic,
    snapshot: Snapshot,
    config: TopicConfig,
    files: dict[str, FileInfo],
    objects: list[SharedObject],
) -> None:
    """Reads every byte and, where the topic is repaired, rebuilds sidecars and takes damaged batches out."""
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
        topic.findings.add("The file is missing", path=error.path, expected="the file", found="no file")


def _pass_over_replaced(topic: VerifiedTopic) -> None:
    """Replaces errors about files that left the log meanwhile, and that vacuum deleted, by a single warning."""
    findings = topic.findings
    missing = [finding for finding in findings.found if finding.message.endswith("is missing") and finding.path]
    if not missing:
        return
    stems_then = _stems(topic.snapshot.live)
    stems_now = _stems_in_use(topic)
    replaced = [finding for finding in missing if (finding.path or "").rpartition(".")[0] in stems_then - stems_now]
    if replaced:
        findings.found = [finding for finding in findings.found if finding not in replaced]
        findings.add(
            "Segments left the log while they were verified, and vacuum took their files",
            severity=Findings.WARNING,
            path=replaced[0].path,
            expected="a file.delete.delay.ms that is longer than verify takes",
            found=f"{len(replaced)} files gone: run verify again",
        )


def _stems_in_use(topic: VerifiedTopic) -> set[str]:
    """Paths without suffixes of the segments that the newest version has in the log, or that wait for vacuum."""
    try:
        rows = topic.log.snapshot(topic.name).segments
    except UnknownTopicError:
        return set()
    is_kept = pc.greater_equal(rows.column("removed_ms"), 0)
    return _stems(rows.filter(pc.fill_null(is_kept, True)))


def _stems(rows: pa.Table) -> set[str]:
    return {path.removesuffix(LOG_SUFFIX) for path in rows.column("path").to_pylist()}


def _verify_kafka(topic: VerifiedTopic) -> None:
    from spark_segments.maintenance.verification.deep import DeepLook

    kafka = topic.log.kafka
    findings = topic.findings
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
    topic.partitions = snapshot.partitions.num_rows
    topic.segments = snapshot.live.num_rows
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
