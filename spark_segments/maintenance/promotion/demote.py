"""Demotion: a former leader, or a follower of one, becomes a follower of the leader that the topic has now.

What it took after the new leader's log had parted from its own is in no other log. So a demotion refuses a topic that
has such records, and names the first of them, until it is told to cut them (Kafka's truncation by leader epoch). Their
files stay until vacuum takes them, and earlier versions of the topic can be read so long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.config import topic_config
from spark_segments.errors import DivergedLogError, NotLeaderError
from spark_segments.log.directory import LogDirectory, selected
from spark_segments.log.divergence import Copy, Tail, check_same_topic, diverged, foreign_tails
from spark_segments.log.manifest.delta.actions import commit_info
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import (
    FENCE_TOKEN,
    FENCED,
    FOLLOWER,
    LEADER,
    ROLE_EPOCH,
    SOURCE_COMMIT_ID,
    SOURCE_COMMITTED_MS,
    SOURCE_URI,
    SOURCE_VERSION,
    role_epoch_of,
    role_of,
)
from spark_segments.log.manifest.transaction import FORGOTTEN, Transaction
from spark_segments.log.report import Report
from spark_segments.maintenance.promotion.role_changes import cut_off, demoted, fenced, leaving_rows
from spark_segments.maintenance.selection import each_topic
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CutTail:
    """A tail that is cut: its offsets, and how many segments, of how many .log bytes, hold them.

    Of a segment that reaches into the tail, a copy of what lies below it stays in the log.
    """

    partition: int
    first_offset: int
    log_end_offset: int
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CutTransaction:
    """A writer's last transaction in a tail that is cut. `kept_version`: the last one that the leader has, or None."""

    app_id: str
    version: int
    kept_version: int | None


@dataclass(frozen=True, slots=True)
class Demotion:
    """What a demotion of a topic did, or in a dry run would do.

    `version_before`: the topic's version that still has the tails, until vacuum takes their files. `transactions` were
    sent by writers after the logs had parted: sent again to the leader, they are added.
    """

    topic: str
    dry_run: bool
    leader_uri: str
    version_before: int
    cut: tuple[CutTail, ...]
    transactions: tuple[CutTransaction, ...]

    def to_dict(self) -> dict[str, Any]:
        """The demotion as plain values, ready for JSON: all but what the report has, too."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("topic", "dry_run")}


def fenced_topics(log: LogDirectory) -> list[str]:
    """The topics of a log directory that are fenced."""
    return [topic for topic in log.topics() if role_of(log.snapshot(topic)) == FENCED]


def demote(
    log: LogDirectory,
    *,
    leader: LogDirectory,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    cut: bool = False,
) -> Report:
    """Makes former leaders in `log` followers of the topics of their names in `leader`.

    `topics`: names or patterns; without any, all that are fenced. `cut` cuts the records that the leader does not have.

    A topic's line in the report has what a `Demotion` says. A topic that fails has its error there, and the others go
    on. Raises InvalidOptionError where no topic is to be demoted.
    """
    report = Report("demote", dry_run)
    run = partial(demote_topic, log, leader=leader, cut=cut, dry_run=dry_run, spark=spark)

    def note(one: Demotion) -> None:
        report.add(one.topic, None, "demoted", **one.to_dict())

    names = fenced_topics(log) if topics is None else selected(log.topics(), topics)
    each_topic(report, names, run, note, progress, lacking="No topic here is fenced")
    return report.finish()


def demote_topic(
    log: LogDirectory,
    topic: str,
    leader: LogDirectory,
    *,
    cut: bool = False,
    dry_run: bool = False,
    spark: SparkSession | None = None,
) -> Demotion:
    """Makes a topic a follower of the topic in another log directory, which mirrors take it to from then on.

    The topic is a leader that `leader` was promoted over, fenced, or a follower of another log directory. Where it has
    records that the leader does not have, `cut` cuts them: their offsets leave the log, the log end goes back to the
    first of them, and no file is removed before vacuum's delay. A dry run lists what would be cut.

    A leader that was out of reach when the other was promoted over it is fenced first, before anything is compared.

    Raises DivergedLogError, which names the first such record, unless `cut` is given or nothing is changed;
    NotLeaderError where `leader` is no leader, or was not promoted over this topic; CommitConflictError where the topic
    changed meanwhile.
    """
    log.check_writable()
    leader.check_writable()
    manifest = log.manifest(topic)
    here, theirs = log.snapshot(topic), leader.snapshot(topic)
    check_same_topic(here, theirs)
    _check_roles(here, theirs, log.uri, leader.uri)
    if role_of(here) == LEADER and not dry_run:
        manifest.commit(fenced(theirs, theirs.states[FENCE_TOKEN], role_epoch_of(theirs), leader.uri))
        here = log.snapshot(topic)
    tails = foreign_tails(Copy(here, log.storage), Copy(theirs, leader.storage), spark)
    if tails and not cut and not dry_run:
        hint = (
            "To cut them here: --cut (--dry-run lists what it cuts). To keep them, and cut that topic instead: promote "
            "this one with --force, then demote that one"
        )
        raise diverged(topic, tails, log.uri, leader.uri, hint)
    if not tails and role_of(here) == FOLLOWER and here.states.get(SOURCE_URI) == leader.uri:
        return Demotion(topic, dry_run, leader.uri, here.version, (), ())
    _check_partitions(here, theirs)
    kept = _kept_transactions(log, leader, topic)
    done = Demotion(
        topic,
        dry_run,
        leader.uri,
        here.version,
        _cut_tails(here, tails),
        tuple(
            CutTransaction(one.application, one.version, None if last is None else last.version)
            for one, last in kept.items()
        ),
    )
    if not dry_run:
        again = [last or Transaction(one.application, FORGOTTEN) for one, last in kept.items()]
        cut_rows = cut_off(here, log.storage, topic_config(here.config, log.defaults), tails, spark)
        plan = demoted(here, cut_rows, _source(leader, theirs), again, log.storage.now_ms())
        manifest.commit(plan)
        manifest.keep_for_rebuild()
    return done


def _source(leader: LogDirectory, theirs: Snapshot) -> dict[str, str]:
    """The states that say what the topic follows: the version before the leader's newest.

    So the next mirror makes the topic what the leader is then, as one difference.
    """
    version = theirs.version - 1
    try:
        info = commit_info(leader.manifest(theirs.topic).log.delta.actions(version))
    except FileNotFoundError:  # an old commit, which vacuum has taken
        info = {}
    return {
        ROLE_EPOCH: str(role_epoch_of(theirs)),
        SOURCE_URI: leader.uri,
        SOURCE_VERSION: str(version),
        SOURCE_COMMIT_ID: info.get("commitId", ""),
        SOURCE_COMMITTED_MS: str(info.get("timestamp", theirs.committed_ms)),
    }


def _check_roles(here: Snapshot, theirs: Snapshot, uri: str, leader_uri: str) -> None:
    if role_of(theirs) != LEADER:
        raise NotLeaderError(
            f"Topic {theirs.topic} is no leader there", path=leader_uri, expected=LEADER, found=role_of(theirs)
        )
    epochs = role_epoch_of(here), role_epoch_of(theirs)
    if epochs[0] > epochs[1] or (role_of(here) == LEADER and epochs[0] == epochs[1]):
        raise NotLeaderError(
            f"Topic {theirs.topic} in {leader_uri} was not promoted over the topic in {uri}",
            expected=f"role_epoch above {epochs[0]}" if role_of(here) == LEADER else f"role_epoch {epochs[0]} or above",
            found=epochs[1],
            hint=f"Promote it first: segments promote {leader_uri} {theirs.topic} --from {uri}",
        )


def _check_partitions(here: Snapshot, there: Snapshot) -> None:
    count, their_count = here.partitions.num_rows, there.partitions.num_rows
    if count > their_count:
        raise DivergedLogError(
            f"Topic {here.topic} has more partitions than its leader, and partitions do not go away",
            expected=f"at most {their_count}",
            found=count,
            hint=f"Give the leader as many: segments topic alter … {here.topic} --partitions {count}",
        )


def _cut_tails(here: Snapshot, tails: list[Tail]) -> tuple[CutTail, ...]:
    sizes: pa.Table = (
        leaving_rows(here.live, tails).group_by("partition").aggregate([("log_bytes", "sum"), ("log_bytes", "count")])
    )
    by_partition = {row["partition"]: row for row in sizes.to_pylist()}
    nothing = {"log_bytes_count": 0, "log_bytes_sum": 0}
    return tuple(
        CutTail(tail.partition, tail.first_offset, tail.log_end_offset, row["log_bytes_count"], row["log_bytes_sum"])
        for tail in tails
        for row in [by_partition.get(tail.partition, nothing)]
    )


def _kept_transactions(log: LogDirectory, leader: LogDirectory, topic: str) -> dict[Transaction, Transaction | None]:
    """{a writer's last transaction here, where that is above its last one at the leader: the leader's, None if none}"""
    theirs = {one.application: one for one in leader.manifest(topic).state().last_transactions()}
    ours = log.manifest(topic).state().last_transactions()
    return {
        one: theirs.get(one.application)
        for one in ours
        if one.application not in theirs or one.version > theirs[one.application].version
    }
