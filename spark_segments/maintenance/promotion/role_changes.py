"""The commits that change the role of a topic: plans for `Manifest.commit`, each checked anew in every try.

Each of them finds out by itself whether it was made before, so that a promotion can be repeated from any step on.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.errors import CommitConflictError, NotLeaderError
from spark_segments.execution import run_tasks
from spark_segments.log.divergence import Tail, check_same_topic
from spark_segments.log.manifest.change import DEMOTE, Change
from spark_segments.log.manifest.commit import Plan
from spark_segments.log.manifest.rows import SEALED, Partition, Segment, partitions_of, removed_rows, segments_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import (
    DEMOTED,
    FENCE,
    FENCE_TOKEN,
    FENCE_VERSION,
    FENCED,
    FOLLOWER,
    FORMER_URI,
    LEADER,
    LEADER_URI,
    PROMOTE,
    PROMOTION_TOKEN,
    ROLE,
    ROLE_EPOCH,
    SOURCE_COMMIT_ID,
    SOURCE_COMMITTED_MS,
    SOURCE_URI,
    SOURCE_VERSION,
    role_epoch_of,
    role_of,
)
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.log.segment.copying import copy_batches
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.reader import locate, windows
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CutRows:
    """The rows of a cut. `leaving`: rows that leave the log. `shortened`: copies of those that reach into a tail, up to
    the tail.
    """

    tails: tuple[Tail, ...]
    leaving: pa.Table
    shortened: tuple[Segment, ...]


def leaving_rows(live: pa.Table, tails: Sequence[Tail]) -> pa.Table:
    """The live rows that hold offsets of the tails."""
    if not tails:
        return live.slice(0, 0)
    first = np.full(1 + max(tail.partition for tail in tails), _NONE)
    for tail in tails:
        first[tail.partition] = tail.first_offset
    partition = live.column("partition").to_numpy()
    limit = np.where(partition < len(first), first[np.minimum(partition, len(first) - 1)], _NONE)
    within = (live.column("next_offset").to_numpy() > limit) | (live.column("base_offset").to_numpy() >= limit)
    return live.filter(pa.array(within))


def cut_off(
    snapshot: Snapshot, storage: Storage, config: TopicConfig, tails: Sequence[Tail], spark: SparkSession | None = None
) -> CutRows:
    """Writes what is left of the segments that reach into a tail. Each is a task, at most one a partition."""
    leaving = leaving_rows(snapshot.live, tails)
    first = {tail.partition: tail.first_offset for tail in tails}
    across = [(row, first[row.partition]) for row in segments_of(leaving) if row.base_offset < first[row.partition]]
    shortened = run_tasks(partial(_shortened, storage, snapshot.topic, SegmentLimits.of(config)), across, spark)
    return CutRows(tuple(tails), leaving, tuple(row for row in shortened if row is not None))


def _shortened(storage: Storage, topic: str, limits: SegmentLimits, task: tuple[Segment, int]) -> Segment | None:
    """Task function: copies the batches of a segment that end below an offset. None where there are none.

    A batch that holds the offset goes as a whole, as in Kafka's truncation: the leader has what it held below.
    """
    row, end = task
    last = _end_of_batches(storage, row, end)
    if last <= row.base_offset:
        return None
    copied = copy_batches(
        storage,
        topic,
        [row],
        row.base_offset,
        last,
        sealed=row.state == SEALED,
        leader_epochs=None,
        limits=limits,
    )
    return dataclasses.replace(copied, next_offset=end)


def _end_of_batches(storage: Storage, row: Segment, end: int) -> int:
    """`end`, or the first offset of the batch that holds it where that is lower."""
    for window in windows(storage, row, locate(storage, row, end)):
        batches = window.batches
        holds = (batches.base_offset + row.offset_shift < end) & (batches.last_offset + row.offset_shift >= end)
        if holds.any():
            return int(batches.base_offset[holds][0]) + row.offset_shift
        if len(batches) and int(batches.last_offset[-1]) + row.offset_shift >= end:
            break
    return end


States = Mapping[str, str]

_OF_ROLES = (
    DEMOTED, FENCE_TOKEN, FENCE_VERSION, FORMER_URI, LEADER_URI, PROMOTION_TOKEN, ROLE, ROLE_EPOCH,
    SOURCE_COMMIT_ID, SOURCE_COMMITTED_MS, SOURCE_URI, SOURCE_VERSION,
)  # fmt: skip
"""The states that say what role a topic has. A new role replaces them all, and keeps every other state."""


def begun(found: Snapshot) -> Plan:
    """Gives a topic the token of a promotion, if it has none and its role is still the one that was found."""

    def plan(here: Snapshot) -> Change | None:
        roles = ((role_of(one), role_epoch_of(one)) for one in (found, here))
        if PROMOTION_TOKEN in here.states or len({*roles}) > 1:
            return None
        return _changed(PROMOTE, here, {**here.states, PROMOTION_TOKEN: uuid.uuid4().hex})

    return plan


def fenced(successor: Snapshot, token: str, role_epoch: int, leader_uri: str) -> Plan:
    """Fences a leader for the promotion with this token, of `successor` in the log directory `leader_uri`.

    A follower whose promotion has begun loses its token instead, so that it is not promoted any more. The plan raises
    NotLeaderError where another promotion has fenced the topic, LogDirError where it is another topic by now.
    """

    def plan(current: Snapshot) -> Change | None:
        check_same_topic(successor, current)
        role = role_of(current)
        if role == FENCED and current.states.get(FENCE_TOKEN) == token:
            return None
        if role == FENCED:
            raise replaced(current)
        if role == FOLLOWER:
            if PROMOTION_TOKEN not in current.states:
                return None
            kept = {name: value for name, value in current.states.items() if name != PROMOTION_TOKEN}
            return _changed(FENCE, current, kept)
        return _changed(
            FENCE,
            current,
            _without_role(current)
            | {
                ROLE: FENCED,
                ROLE_EPOCH: str(role_epoch),
                FENCE_TOKEN: token,
                FENCE_VERSION: str(current.version + 1),
                LEADER_URI: leader_uri,
            },
        )

    return plan


def opened(token: str, role_epoch: int, former_uri: str, least_epochs: Mapping[int, int], version: int | None) -> Plan:
    """Makes a topic the leader: the last step of the promotion with this token. Every partition gets a new epoch.

    `least_epochs`: {partition: the lowest epoch that it may get}. `version`: the version of the former leader that a
    follower must have mirrored, None where it need not. The plan raises NotLeaderError where the promotion was taken
    back.
    """

    def plan(here: Snapshot) -> Change | None:
        states = here.states
        if role_of(here) == LEADER and states.get(FENCE_TOKEN) == token:
            return None
        if states.get(PROMOTION_TOKEN) != token:
            raise NotLeaderError(
                f"The promotion of topic {here.topic} was taken back while it ran",
                expected=f"{PROMOTION_TOKEN} {token}",
                found=states.get(PROMOTION_TOKEN, "none"),
            )
        if version is not None and int(states.get(SOURCE_VERSION, -1)) < version:
            raise NotLeaderError(
                f"Topic {here.topic} does not have all that its leader committed before the fence",
                expected=f"version {version} of the leader",
                found=states.get(SOURCE_VERSION, "none"),
                hint="Promote it again: the rest is copied then",
            )
        new = {ROLE: LEADER, ROLE_EPOCH: str(role_epoch), FENCE_TOKEN: token, FORMER_URI: former_uri}
        rows = [_in_new_epoch(row, least_epochs.get(row.partition, 0)) for row in partitions_of(here.partitions)]
        topic = dataclasses.replace(here.topic_row, states=_without_role(here) | new)
        return Change(PROMOTE, topic=topic, partitions=rows)

    return plan


def demoted(
    compared: Snapshot,
    cut: CutRows,
    source: States,
    transactions: Sequence[Transaction],
    now_ms: int,
) -> Plan:
    """Makes a topic a follower, and cuts the tails that its leader does not have.

    `source`: the states that say what it follows. `transactions`: the last ones of writers whose later transactions are
    cut. The rows of the tails are removed at `now_ms`, the store's clock; their files stay until vacuum takes them. The
    plan raises CommitConflictError where the topic is not as it was compared any more.
    """

    def plan(here: Snapshot) -> Change:
        if here.states != compared.states or not here.partitions.equals(compared.partitions):
            raise CommitConflictError(
                f"Topic {here.topic} was changed since it was compared with its leader",
                expected=f"version {compared.version}",
                found=f"version {here.version}",
                hint="Run it again",
            )
        return Change(
            DEMOTE,
            add=cut.shortened,
            replace=removed_rows(cut.leaving, now_ms),
            partitions=[_ended(here.partition(tail.partition), tail.first_offset) for tail in cut.tails],
            topic=dataclasses.replace(
                here.topic_row, states={**_without_role(here), ROLE: FOLLOWER, DEMOTED: "yes", **source}
            ),
            transactions=transactions,
        )

    return plan


def _ended(row: Partition, end: int) -> Partition:
    """A partition's row once its log ends at `end`, maybe below its log start."""
    epochs = LeaderEpochs.of(row).up_to(end).entries
    return dataclasses.replace(
        row,
        log_start_offset=min(row.log_start_offset, end),
        log_end_offset=end,
        first_dirty_offset=min(row.first_dirty_offset, end),
        last_stable_offset=min(row.last_stable_offset, end),
        leader_epoch=epochs[-1][0],
        leader_epochs=epochs,
        producer_snapshot=None,
    )


def leader_epochs(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """{partition: (its last leader epoch, the offset from which on)}"""
    found = {}
    for row in partitions_of(snapshot.partitions):
        found[row.partition] = LeaderEpochs.of(row).entries[-1]
    return found


def new_leader_epochs(here: Snapshot, least_epochs: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """{partition: (the leader epoch that a promotion gives it, the offset from which on)}"""
    rows = [_in_new_epoch(row, least_epochs.get(row.partition, 0)) for row in partitions_of(here.partitions)]
    return {row.partition: row.leader_epochs[-1] for row in rows}


def _in_new_epoch(row: Partition, least_epoch: int) -> Partition:
    epochs = LeaderEpochs.of(row)
    epoch = max(epochs.entries[-1][0] + 1, row.leader_epoch + 1, least_epoch)
    return dataclasses.replace(
        row, leader_epoch=epoch, leader_epochs=epochs.followed_by(epoch, row.log_end_offset).entries
    )


def _changed(operation: str, snapshot: Snapshot, states: States) -> Change:
    return Change(operation, topic=dataclasses.replace(snapshot.topic_row, states=states))


def _without_role(snapshot: Snapshot) -> dict[str, str]:
    return {name: value for name, value in snapshot.states.items() if name not in _OF_ROLES}


def replaced(there: Snapshot) -> NotLeaderError:
    """The error for a topic that another promotion than this has fenced."""
    return NotLeaderError(
        f"Topic {there.topic} is no leader any more: another topic was promoted in its place",
        found=f"{ROLE_EPOCH} {role_epoch_of(there)}, {LEADER_URI} {there.states.get(LEADER_URI, 'unknown')}",
        hint="Name that log directory as the former leader: --from",
    )
