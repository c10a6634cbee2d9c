"""Verification: checks every invariant of a log directory, managed or written by Kafka, and reports violations.

A quick check compares rows, listings and sizes. A deep check reads every byte: batches, records, index entries, time
look-ups, row figures, leader epochs, transactions, keys. A repair rebuilds sidecars (repair.py); records never change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.bins import in_bins
from spark_segments.log.kafka.directory import KafkaDirectory, KafkaSnapshot
from spark_segments.log.manifest.holes import holes_of
from spark_segments.log.manifest.manifest import MANIFEST_DIRECTORY
from spark_segments.log.manifest.rows import LOG_SUFFIX, Partition, partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.verification.checksums import ChecksumList, check_against
from spark_segments.log.verification.findings import ERROR, WARNING, Finding, Findings
from spark_segments.log.verification.gaps import check_gaps
from spark_segments.log.verification.kafka_directories import add_report, check_listing, check_log_directory
from spark_segments.log.verification.keys import KeysTask, verify_keys
from spark_segments.log.verification.manifest_rows import check_files, check_rows, well_named
from spark_segments.log.verification.repair import REPAIR, Rebuild, Rebuilder, commit_repairs
from spark_segments.log.verification.segments import SegmentFacts, SegmentTask, look_at
from spark_segments.log.verification.shared_objects import check_footers, check_objects
from spark_segments.log.verification.topic_row import check_applications, check_clocks, check_shared_rows, check_topic
from spark_segments.log.verification.transactions import aborted_by, check_transactions
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.log.logdir import LogDir

_KEY_TASKS_AT_A_TIME = 2  # each holds a map of keys
SEGMENTS_A_WAVE = 10_000
"""How many segments have their facts, some kilobytes each, in memory together."""

_SEGMENTS_A_TASK_BYTES = 256 << 20  # on Spark, a task checks many small segments


@dataclass
class VerifyReport:
    """The outcome: what was checked, found and repaired. `left_out`: findings beyond MOST_OF_A_KIND of a message.

    `repaired_places`: the `Segment.place` of what was repaired. Of a shared object that is one of its runs. `holes`:
    those that the topics have recorded, as plain values; they are known, and no findings.
    """

    deep: bool
    topics: list[str] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    left_out: int = 0
    repaired: list[dict[str, Any]] = field(default_factory=list)
    repaired_places: set[str] = field(default_factory=set)
    holes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no findings, not even warnings."""
        return not self.findings

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity == ERROR for finding in self.findings)

    @property
    def uncorrected(self) -> list[Finding]:
        """The findings that a repair has not corrected."""
        return [finding for finding in self.findings if finding.rebuilds not in self.repaired_places]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, as for JSON."""
        return {
            "job": "verify",
            "deep": self.deep,
            "ok": self.ok,
            "topics": self.topics,
            "partitions": self.partitions,
            "segments": self.segments,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "errors": self.errors,
            "findings": [finding.to_dict() for finding in self.findings],
            "findings_left_out": self.left_out,
            "repaired": self.repaired,
            "holes": self.holes,
        }

    def add(self, findings: Findings) -> None:
        self.findings += findings.found
        self.left_out += findings.left_out


def verify(
    log: LogDir,
    topic: str | None = None,
    deep: bool = False,
    repair: bool = False,
    spark: SparkSession | None = None,
    *,
    against: Path | None = None,
) -> VerifyReport:
    """Verifies one topic or all of them, in this process or, where there is a session, on Spark.

    `repair` checks deeply, then rebuilds the wrong sidecars under new names, in a single commit for each topic.
    `repaired` lists what it corrected; the findings stay in the report. `against`: a list of checksums (checksums.py)
    that the files are compared with, too. Raises UnknownTopicError for a `topic` that is
    not there, LogDirError for a repair of a directory that Kafka wrote, NotLeaderError for that of a follower. Faults
    of the log are findings, never errors.
    """
    if repair and log.is_kafka:
        raise LogDirError(
            "A Kafka log directory is read-only",
            path=log.uri,
            hint="Import it, or start a broker on it. Both rebuild the indexes",
        )
    started = time.monotonic()
    listed = None if against is None else ChecksumList.read(against)
    report = VerifyReport(deep or repair)
    for name in _topics(log, topic):
        if log.is_kafka:
            _verify_kafka(log, name, report, spark)
        else:
            _verify_managed(log, name, report, spark, repair=repair, must_be_there=topic is not None)
    if log.is_kafka:
        findings = Findings("")
        check_log_directory(log.storage, findings)
        report.add(findings)
    if listed is not None:
        of_topics, bytes_read = check_against(log, listed, topic, spark)
        report.bytes_read += bytes_read
        for found in of_topics:
            report.add(found)
    report.seconds = time.monotonic() - started
    return report


def _topics(log: LogDir, topic: str | None) -> list[str]:
    """The names of the topics to verify, among them managed topics whose manifest is damaged."""
    if log.is_kafka:
        names = log.topics()
        if topic is not None and topic not in names:
            _ = log.topic(topic).snapshot  # raises
        return names if topic is None else [topic]
    if topic is not None:
        return [topic]
    return sorted(path.rpartition("/")[2] for path in log.storage.directories(MANIFEST_DIRECTORY))


def _verify_managed(
    log: LogDir, topic: str, report: VerifyReport, spark: SparkSession | None, *, repair: bool, must_be_there: bool
) -> None:
    findings = Findings(topic)
    try:
        snapshot = log.topic(topic).snapshot
        _ = snapshot.segments
    except UnknownTopicError:
        if must_be_there:
            raise
        return  # deleted
    except (SegmentsError, DeltaError, OSError, ValueError) as error:
        findings.add("The manifest cannot be read", path=f"{MANIFEST_DIRECTORY}/{topic}", found=error)
        report.topics.append(topic)
        report.add(findings)
        return
    if repair:
        check_role(snapshot, REPAIR)
    try:
        config = topic_config(snapshot.config, log.defaults)
    except InvalidOptionError as error:
        findings.add("The topic's configuration is not valid", rule="M30", expected=error.expected, found=error)
        config = topic_config({}, {})
    files = _listing(log.storage, snapshot)
    now_ms = log.storage.now_ms()
    check_topic(snapshot, findings)
    check_applications(log.topic(topic).manifest.state(snapshot.version).last_transactions(), findings)
    check_rows(snapshot, findings)
    check_shared_rows(snapshot.live, findings)
    check_clocks(snapshot.segments, now_ms, findings)
    check_files(snapshot, files, findings, kept_since_ms=now_ms - config.file_delete_delay_ms)
    objects = check_objects(snapshot, files, findings)
    _count(report, topic, snapshot)
    if not any(finding.rule == "M27" for finding in findings.found):
        report.holes += [{"topic": topic, **hole.to_dict()} for hole in holes_of(snapshot.states)]
    if report.deep:
        try:
            check_footers(log.storage, snapshot, objects, findings, spark)
            facts = _look_deep(log, snapshot, config, files, report, findings, spark, keep=repair)
            if repair:
                _repair(log, snapshot, config, facts, findings, spark, report)
        except MissingFileError as error:  # after its segment was checked
            findings.add("The file is missing", path=error.path, expected="the file", found="no file")
    _pass_over_replaced(log, snapshot, findings)
    report.add(findings)


def _pass_over_replaced(log: LogDir, snapshot: Snapshot, findings: Findings) -> None:
    """Replaces errors about files that left the log meanwhile, and that vacuum deleted, by a single warning."""
    missing = [finding for finding in findings.found if finding.message.endswith("is missing") and finding.path]
    if not missing:
        return
    try:
        rows = log.topic(snapshot.topic).snapshot.segments
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
            severity=WARNING,
            path=replaced[0].path,
            expected="a file.delete.delay.ms that is longer than verify takes",
            found=f"{len(replaced)} files gone: run verify again",
        )


def _verify_kafka(log: LogDir, topic: str, report: VerifyReport, spark: SparkSession | None) -> None:
    findings = Findings(topic)
    sources = KafkaDirectory(log.storage).sources(topic)
    for source in sources:
        findings.partition = source.partition
        check_listing(log.storage, source, findings)
    findings.partition = None
    if not report.deep:
        report.topics.append(topic)
        report.partitions += len(sources)
        report.add(findings)
        return
    try:
        snapshot = log.topic(topic).snapshot
    except (SegmentsError, OSError) as error:
        findings.add("The topic cannot be opened", found=error)
        report.topics.append(topic)
        report.add(findings)
        return
    assert isinstance(snapshot, KafkaSnapshot)
    add_report(snapshot.report, findings)
    _count(report, topic, snapshot)
    _look_deep(log, snapshot, topic_config({}, {}), None, report, findings, spark)
    report.add(findings)


def _count(report: VerifyReport, topic: str, snapshot: Snapshot) -> None:
    report.topics.append(topic)
    report.partitions += snapshot.partitions.num_rows
    report.segments += snapshot.live.num_rows


def _listing(storage: Storage, snapshot: Snapshot) -> dict[str, FileInfo]:
    directories = {path.rpartition("/")[0] for path in snapshot.segments.column("path").to_pylist()}
    return {info.path: info for directory in directories if _is_inside(directory) for info in storage.list(directory)}


def _is_inside(directory: str) -> bool:
    """Whether a row's path stays in the log directory. Where it does not, another check finds the row wrong."""
    return bool(directory) and not directory.startswith("/") and ".." not in directory.split("/")


@dataclass(frozen=True, slots=True)
class _LookAt:
    """Task function: the facts of several segments."""

    storage: Storage

    def __call__(self, tasks: Sequence[SegmentTask]) -> list[SegmentFacts]:
        return [look_at(self.storage, task) for task in tasks]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Task function: the findings of one partition's clean tail."""

    storage: Storage

    def __call__(self, task: KeysTask) -> list[Finding]:
        return verify_keys(self.storage, task)


def _look_deep(
    log: LogDir,
    snapshot: Snapshot,
    config: TopicConfig,
    files: Mapping[str, FileInfo] | None,
    report: VerifyReport,
    findings: Findings,
    spark: SparkSession | None,
    *,
    keep: bool = False,
) -> dict[int, list[SegmentFacts]]:
    """Checks every live segment, then what only several segments of a partition show together.

    Partitions are done in waves, so that the facts of a topic's segments are not in memory together. Returns
    {partition: facts in order} of all of them to `keep`, else nothing.
    """
    by_kafka = files is None
    named = set() if by_kafka else well_named(snapshot)
    kept: dict[int, list[SegmentFacts]] = {}
    for partitions in _waves(snapshot):
        tasks = [
            SegmentTask(
                snapshot.topic,
                segment,
                row.log_start_offset,
                row.leader_epochs,
                SegmentLimits.of(config),
                by_kafka,
            )
            for number, row in partitions.items()
            for segment in snapshot.live_of(number)
            if files is None or (segment.path in files and segment.path in named)
        ]
        facts: dict[int, list[SegmentFacts]] = {number: [] for number in partitions}
        look, at_a_time = _LookAt(log.storage), log.storage.tasks_at_a_time
        for several in run_tasks(look, _grouped(tasks, spark), spark, at_a_time=at_a_time):
            for one in several:
                facts[one.segment.partition].append(one)
                findings.found += one.findings
                findings.left_out += one.left_out
                report.bytes_read += one.bytes_read
        if not by_kafka:  # recovery has compared the sidecars that Kafka wrote with the log
            for number, segments in facts.items():
                if not any(one.damaged for one in segments):
                    transactions = [one.transactions for one in segments]
                    findings.partition = number
                    check_transactions(transactions, aborted_by(transactions), findings)
            findings.partition = None
            if "compact" not in config.cleanup_policy:
                for number, segments in facts.items():
                    check_gaps(snapshot, partitions[number], segments, findings)
        _check_keys(log, snapshot, config, by_kafka, partitions, facts, findings, spark)
        if keep:
            kept |= facts
    return kept


def _waves(snapshot: Snapshot) -> Iterator[dict[int, Partition]]:
    """The partitions, as many at a time as have SEGMENTS_A_WAVE live segments; a single one may have more."""
    rows = partitions_of(snapshot.partitions)
    sizes = {row.partition: snapshot.live_table(row.partition).num_rows for row in rows}
    waves = in_bins(
        rows,
        lambda row: sizes[row.partition],
        lambda _, total, row: total + sizes[row.partition] > SEGMENTS_A_WAVE,
    )
    return ({row.partition: row for row in wave} for wave in waves)


def _grouped(tasks: Sequence[SegmentTask], spark: SparkSession | None) -> list[list[SegmentTask]]:
    def begins(_: list[SegmentTask], total: int, task: SegmentTask) -> bool:
        return spark is None or total + task.segment.log_bytes > _SEGMENTS_A_TASK_BYTES

    return list(in_bins(tasks, lambda task: task.segment.log_bytes, begins))


def _check_keys(
    log: LogDir,
    snapshot: Snapshot,
    config: TopicConfig,
    by_kafka: bool,
    partitions: Mapping[int, Partition],
    facts: Mapping[int, list[SegmentFacts]],
    findings: Findings,
    spark: SparkSession | None,
) -> None:
    """Checks the clean tails whose segments are all whole."""
    if not by_kafka and "compact" not in config.cleanup_policy:
        return
    tasks = []
    for number, row in partitions.items():
        tail = [one for one in facts[number] if one.segment.base_offset < row.first_dirty_offset]
        if row.first_dirty_offset <= row.log_start_offset or not tail or any(one.damaged for one in tail):
            continue
        aborted = AbortedTransactions.concatenate(aborted_by(one.transactions for one in facts[number]).values())
        segments = tuple(one.segment for one in tail)
        tasks.append(KeysTask(snapshot.topic, number, segments, row.log_start_offset, row.first_dirty_offset, aborted))
    for found in run_tasks(_Keys(log.storage), tasks, spark, at_a_time=_KEY_TASKS_AT_A_TIME):
        findings.found += found


def _repair(
    log: LogDir,
    snapshot: Snapshot,
    config: TopicConfig,
    facts: Mapping[int, list[SegmentFacts]],
    findings: Findings,
    spark: SparkSession | None,
    report: VerifyReport,
) -> None:
    """Rebuilds the sidecars of whole segments that have a finding which a rebuild corrects."""
    wanted = {finding.rebuilds for finding in findings.found if finding.rebuilds is not None}
    tasks = []
    for segments in facts.values():
        aborted = aborted_by(one.transactions for one in segments)
        whole = not any(one.damaged for one in segments)
        for one in segments:
            # Only all segments together show which transactions the markers of a segment abort.
            known = whole or not one.transactions.events.has_aborts
            if one.segment.place in wanted and not one.damaged and known:
                tasks.append(
                    Rebuild(
                        snapshot.topic,
                        one.segment,
                        aborted[one.segment.place],
                        SegmentLimits.of(config),
                    )
                )
    if not tasks:
        return
    new = run_tasks(Rebuilder(log.storage), tasks, spark)
    old = [task.segment for task in tasks]
    committed = {segment.path for segment in commit_repairs(log.topic(snapshot.topic).manifest, old, new)}
    for before, after in zip(old, new, strict=True):
        if after.path in committed:
            report.repaired_places.add(before.place)
            line = {"topic": snapshot.topic, "partition": after.partition}
            report.repaired.append(line | {"path": before.path, "new_path": after.path})
