"""The job: keeps a follower of every topic of a log directory, or of the topics of some patterns, at another place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments.config import selected_topics
from spark_segments.errors import LogDirError, SegmentsError, UnknownTopicError
from spark_segments.execution import failure_of, run_tasks
from spark_segments.extensions import observed_job
from spark_segments.log import LogDirectory, Report, Snapshot
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.progress import Progress
from spark_segments.quantities import wall_ms
from spark_segments.replicas.groups import mirror_groups, positions_of_all
from spark_segments.replicas.leader import Leader
from spark_segments.replicas.role import role_of
from spark_segments.replicas.topic_mirror import TOPICS_AT_A_TIME, TopicMirror
from spark_segments.signed_lists.checksum_list import write_checksums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.log import Positions

_COUNTS = ("commits", "jumps", "files")


@observed_job("mirror")
def mirror(
    log: LogDirectory,
    *,
    leader: LogDirectory,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    groups: bool = False,
    checksums: Path | None = None,
) -> Report:
    """Makes topics of `log` equal to the topics of these names in `leader`, commit by commit, up to the newest.

    `topics`: names or patterns (`orders*`) of the topics to mirror; none: all. Topics are made, altered, deleted and
    made again as they were at the leader; offsets, topic ids, paths and settings are the leader's. A topic of `log`
    is at every moment a past state of the leader. Run it again after it was killed; several runs may overlap.

    `groups`: the positions of all groups in these topics are mirrored, too, and replace the positions of the groups of
    these names in `log`. A group whose positions cannot be mirrored keeps its positions in `log`, with a warning.

    `checksums`: a file for the list of the checksums of all files of these followers, which `segments verify --against`
    checks. Where the list of an earlier run is in it, the files in that are not read again.

    A topic's line in the report has its lag after the run, unless that cannot be read; a dry run says only how far the
    followers are behind, in versions, commits, records and time. A topic that fails has a line
    that says why, and the others go on.

    Raises UnknownTopicError for a name that is no topic of either; LogDirError where both are the same log directory,
    or Kafka wrote either.
    """
    source = leader
    target = log
    check_places(source, target)
    report = Report("mirror", dry_run)
    leader_topics = {*source.directories()}
    all_names = selected_topics(leader_topics, topics)
    names = [name for name in all_names if name in leader_topics]
    unknown = {*all_names} - leader_topics - {*target.directories()}
    if unknown:
        raise UnknownTopicError(f"Unknown topic {min(unknown)!r}", path=source.uri)
    if dry_run:
        _note_lags(report, source, target, all_names)
        return report.finish()
    # Before the topics: no position is beyond what these get.
    positions: dict[str, Positions] = {}
    unread: dict[str, SegmentsError] = {}
    if groups:
        positions, unread = positions_of_all(source)
    mirrors = _mirrored(source, target, names, spark, progress, report)
    if groups:
        followers = {topic for topic in target.topics() if topic in names} - {line["topic"] for line in report.failed}
        report.details["groups"], unwritten = mirror_groups(target, positions, followers)
        for group, why in (unread | unwritten).items():
            report.warn(f"The positions of group {group} were not mirrored: {why}")
    if checksums is not None:
        _write_checksums(target, mirrors, checksums, spark)
    for topic in lost_leaders(source, target, leader_topics, topics):
        report.warn(
            f"Topic {topic} is not in {source.uri} any more, not even as a deleted topic: its follower is kept as it is"
        )
    return report.finish()


def _write_checksums(
    target: LogDirectory, mirrors: Sequence[TopicMirror], path: Path, spark: SparkSession | None
) -> None:
    """Writes the list of the checksums of the followers' files. What was copied just now is not read again."""
    names = {topic_mirror.topic for topic_mirror in mirrors}
    copied = {file.path: file for topic_mirror in mirrors for file in topic_mirror.files}
    snapshots = [target.snapshot(topic) for topic in target.topics() if topic in names]
    write_checksums(target.storage, snapshots, path, copied, spark)


def _mirrored(
    source: LogDirectory,
    target: LogDirectory,
    names: Sequence[str],
    spark: SparkSession | None,
    progress: Progress | None,
    report: Report,
) -> list[TopicMirror]:
    """Mirrors topics, each with a line in the report. Progress is of one topic's files, or of several topics."""
    progress_of_files = progress if len(names) == 1 else None

    def run(topic: str) -> tuple[TopicMirror, SegmentsError | None]:
        topic_mirror = TopicMirror(source, target, topic, spark, progress_of_files)
        try:
            topic_mirror.run()
            if topic_mirror.is_deleting:  # the leader's bytes are gone, too
                report.partitions.extend(vacuum(target, topics=[topic], spark=spark).failed)
        except (SegmentsError, FileNotFoundError) as error:
            return topic_mirror, failure_of(error)
        return topic_mirror, None

    progress_of_topics = None if progress_of_files is not None else progress
    mirrors = []
    for topic_mirror, error in run_tasks(run, names, progress=progress_of_topics, at_a_time=TOPICS_AT_A_TIME):
        _note(report, topic_mirror, error)
        mirrors.append(topic_mirror)
    return mirrors


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a follower is behind. What the leader has more would be lost with the leader now.

    `leader_version`, `source_version`: the leader's newest version, and the version that the follower is. `commits`:
    the versions between. `records`: offsets that the follower lacks, over all partitions. `lag_ms`: how long ago the
    first of these commits was made, 0 without any.
    """

    leader_version: int
    source_version: int
    commits: int
    records: int
    lag_ms: int

    def to_dict(self) -> dict[str, Any]:
        """The figures of a follower's line in the report."""
        lag = {"lag_commits": self.commits, "lag_records": self.records, "lag_ms": self.lag_ms}
        return {"leader_version": self.leader_version, "source_version": self.source_version, **lag}


def lag_of(leader: Leader, follower: Snapshot) -> Lag:
    """The lag of a follower now, by the clock of the leader's writers.

    Raises UnknownTopicError, and LogDirError where the leader is not the log that the follower has mirrored.
    """
    newest = leader.manifest.snapshot(deleted=True)
    source = role_of(follower).source
    assert source is not None
    reached = leader.check_lineage(follower, newest).version
    if newest.version == reached:
        return Lag(source.version, source.version, 0, 0, 0)
    first = leader.manifest.facts(reached + 1)
    since_ms = source.committed_ms if first is None else first.committed_ms
    bounds = follower.offset_bounds() if newest.topic_id == follower.topic_id else {}
    ends = ((end, bounds.get(number, (0, 0))[1]) for number, (_, end) in newest.offset_bounds().items())
    records = sum(max(0, theirs - ours) for theirs, ours in ends)
    return Lag(
        newest.version,
        source.version,
        newest.version - reached,
        records,
        max(0, wall_ms() - since_ms),
    )


def lags(
    source: LogDirectory, target: LogDirectory, topics: Sequence[str] | None = None
) -> dict[str, Lag | SegmentsError]:
    """How far each follower of `target` is behind its leader in `source`, by topic; its error where that is unknown."""
    lags_of: dict[str, Lag | SegmentsError] = {}
    for topic in selected_topics(target.directories(), topics):
        try:
            snapshot = target.manifest(topic).snapshot(deleted=True)
            if role_of(snapshot).is_follower:
                lags_of[topic] = lag_of(Leader(source.manifest(topic), source.uri), snapshot)
        except (SegmentsError, FileNotFoundError) as error:
            lags_of[topic] = failure_of(error)
    return lags_of


def _note_lags(report: Report, source: LogDirectory, target: LogDirectory, topics: Sequence[str]) -> None:
    lags_of = lags(source, target, topics) if topics else {}
    for topic in topics:
        lag = lags_of.get(topic)
        if isinstance(lag, Lag):
            report.add(topic, None, "behind" if lag.commits else "in step", **lag.to_dict())
        elif lag is None or isinstance(lag, UnknownTopicError):
            report.add(topic, None, "no follower" if lag is None else "not mirrored yet")
        else:
            report.fail(topic, None, lag)


def check_leader(source: LogDirectory) -> None:
    """Raises LogDirError for a directory that Kafka wrote."""
    if source.is_kafka:
        raise LogDirError(
            "A directory that Kafka wrote has no versions that a follower could follow",
            path=source.uri,
            hint="segments import --replicated copies what all in-sync replicas have, and again what has come since",
        )


def check_places(source: LogDirectory, target: LogDirectory) -> None:
    """Raises LogDirError unless a log directory can be mirrored from one place to the other."""
    check_leader(source)
    if target.is_kafka:
        raise LogDirError("Kafka wrote the directory: no topic can be mirrored into it", path=target.uri)
    if source.uri.rstrip("/") == target.uri.rstrip("/"):
        raise LogDirError("A log directory cannot follow itself", path=source.uri, hint="Name another target")


def lost_leaders(
    source: LogDirectory, target: LogDirectory, leader_topics: set[str], patterns: Sequence[str] | None
) -> list[str]:
    """Followers of `source` whose leaders have no manifest there: deleted by force, or lost. Nobody knows which."""
    lost = []
    for topic in selected_topics(target.directories(), patterns):
        if topic in leader_topics:
            continue
        try:
            role = role_of(target.snapshot(topic))
        except SegmentsError:
            continue
        if role.source is not None and role.source.uri == source.uri:
            lost.append(topic)
    return lost


def _note(report: Report, mirrored: TopicMirror, error: SegmentsError | None) -> None:
    """Adds a topic's line to the report."""
    counts = mirrored.counts
    report.count(**{name: counts[name] for name in _COUNTS})
    if error is not None:
        report.fail(mirrored.topic, None, error)
        return
    if mirrored.not_told is not None:
        report.warn(
            f"The accounts of keys at {mirrored.source.uri} do not name the follower {mirrored.target.uri} of topic "
            f"{mirrored.topic}, since no note can be left there: {mirrored.not_told}"
        )
    figures: dict[str, Any] = {name: counts[name] for name in _COUNTS}
    try:
        snapshot = mirrored.target.manifest(mirrored.topic).snapshot(deleted=True)
        if not role_of(snapshot).is_follower:  # it was promoted since, and has no lag
            report.add(mirrored.topic, None, "promoted")
            return
        lag = lag_of(Leader(mirrored.source.manifest(mirrored.topic), mirrored.source.uri), snapshot)
        figures |= {"version": snapshot.version} | lag.to_dict()
    except UnknownTopicError:  # it was deleted before it was ever mirrored
        return
    except (SegmentsError, FileNotFoundError) as why:  # what was mirrored is mirrored all the same
        report.warn(f"Nobody knows how far topic {mirrored.topic} is behind: {failure_of(why)}")
    report.add(
        mirrored.topic,
        None,
        "mirrored" if counts["commits"] else "in step",
        records_in=counts["records"],
        records_out=counts["records"],
        bytes_in=counts["bytes_read"],
        bytes_out=counts["bytes"],
        **figures,
    )
