"""What a copy of a topic has that its leader does not: the tails that a forced promotion left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_segments.difference import History, epoch_difference
from spark_segments.errors import DivergedLogError
from spark_segments.execution import run_tasks
from spark_segments.log import LeaderEpochs, Snapshot
from spark_segments.replicas.role import role_of
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Tail:
    """Offsets [`first_offset`, `log_end_offset`) of a partition, which the other log does not have or has otherwise."""

    partition: int
    first_offset: int
    log_end_offset: int

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.first_offset} to {self.log_end_offset - 1}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A topic at a snapshot, and the storage that its paths lead to."""

    snapshot: Snapshot
    storage: Storage


def foreign_tails(copy: Copy, leader: Copy, spark: SparkSession | None = None) -> list[Tail]:
    """The tails of `copy` that `leader` does not have, by partition. A partition is a task.

    Files that both name are not read, so a copy that has not diverged costs no read. Raises DivergedLogError where the
    two are not copies of one topic, CorruptBatchError where a file is damaged.
    """
    check_same_topic(copy.snapshot, leader.snapshot)
    rows = copy.snapshot.partition_rows
    count = leader.snapshot.partitions.num_rows
    pairs = [
        (
            History.of(copy.snapshot, copy.storage, row.partition),
            History.of(leader.snapshot, leader.storage, row.partition),
        )
        for row in rows
        if row.partition < count
    ]
    firsts: list[int | None] = run_tasks(_first_foreign_offset, pairs, spark)
    firsts += [row.log_start_offset if row.log_end_offset else None for row in rows if row.partition >= count]
    return [
        Tail(row.partition, first, row.log_end_offset)
        for row, first in zip(rows, firsts, strict=True)
        if first is not None
    ]


def tails_of_follower(follower: Copy, leader: Copy, spark: SparkSession | None = None, *, is_past: bool) -> list[Tail]:
    """As `foreign_tails` of a follower. No file is read for a past state of the leader's manifest (`is_past`) whose
    offsets the leader has in the same leader epochs.
    """
    if is_past and not _seems_parted(follower.snapshot, leader.snapshot):
        return []
    return foreign_tails(follower, leader, spark)


def has_new_role(follower: Snapshot, leader: Snapshot) -> bool:
    """Whether a leader may have become a copy of another one since the follower mirrored it. Two forced promotions may
    have given the same leader epoch to other records, so epochs alone do not tell.
    """
    return role_of(leader).is_follower or role_of(leader).epoch != role_of(follower).epoch


def _seems_parted(follower: Snapshot, leader: Snapshot) -> bool:
    """Whether a follower has offsets above its leader's log end, or in another leader epoch."""
    ends = leader.offset_bounds()
    if any(end > ends.get(number, (0, 0))[1] for number, (_, end) in follower.offset_bounds().items()):
        return True
    if follower.partitions.column("leader_epochs").equals(leader.partitions.column("leader_epochs")):
        return False
    theirs = {row.partition: LeaderEpochs.of(row) for row in leader.partition_rows}
    for row in follower.partition_rows:
        ours = LeaderEpochs.of(row)
        others = theirs.get(row.partition)
        if others is None:
            continue
        if epoch_difference(ours, others, row.log_start_offset, row.log_end_offset) is not None:
            return True
    return False


def check_same_topic(topic: Snapshot, other: Snapshot) -> None:
    """Raises DivergedLogError where two topics of a name are not copies of each other."""
    if topic.topic_id != other.topic_id:
        raise DivergedLogError(
            f"The two topics {topic.topic} are not copies of one topic: one was deleted and made again",
            expected=f"topic id {topic.topic_id}",
            found=other.topic_id,
            hint="Mirror the topic that is wanted into a log directory that has none of this name",
        )


def diverged(topic: str, tails: Sequence[Tail], copy_uri: str, leader_uri: str) -> DivergedLogError:
    """The error that names the first offset at which the copy differs from its leader."""
    first = tails[0]
    more = f", and in {len(tails) - 1} more partitions" if len(tails) > 1 else ""
    return DivergedLogError(
        f"Topic {topic} in {copy_uri} has records that the topic in {leader_uri} does not have, from offset "
        f"{first.first_offset} of {topic}-{first.partition} on{more}",
        expected=f"a log end of {topic}-{first.partition} of at most {first.first_offset}",
        found=first.log_end_offset,
        hint="Mirror the topic that is to stay into an empty log directory. The other one can be read where it is",
    )


def _first_foreign_offset(pair: tuple[History, History]) -> int | None:
    return pair[0].first_foreign_offset(pair[1])
