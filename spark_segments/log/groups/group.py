"""A group: its positions, and commits that replace positions if they are still the ones that the reader began at.

A commit is the file of the next number, created if there is none: group_swap.py has its way there, group_files.py the
files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    SegmentsError,
    StorageError,
)
from spark_segments.log.directory import LogDirectory
from spark_segments.log.groups.group_files import (
    GROUPS_DIRECTORY,
    GroupCommit,
    GroupFiles,
    GroupRows,
    check_group_id,
    expired_files,
    group_of,
    offsets_of,
)
from spark_segments.log.groups.group_swap import GroupPlan, GroupSwap, newest_commit
from spark_segments.log.manifest.commit.change import ORPHAN_AGE_MS
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.positions import Loss, PartitionState, Position, TopicPartition
from spark_segments.printing import Printed, Prints
from spark_segments.quantities import wall_ms
from spark_segments.storage import FileInfo

CommittedOffsets = Mapping[str, Mapping[int, "int | Position"]]


class Positions(Mapping[TopicPartition, Position]):
    """{(topic, partition): Position} of a group as its commit `number` left them; 0: it has never committed.

    A commit that begins at them holds only while the positions that it moves are still these. Never changes.
    """

    def __init__(self, group: str, commit: GroupCommit) -> None:
        self.group = group
        self.commit = commit
        self._rows = MappingProxyType(commit.rows)

    @property
    def number(self) -> int:
        """The number of the commit."""
        return self.commit.number

    @property
    def lease(self) -> int:
        """The highest lease under which a server committed to the group; 0: none did."""
        return self.commit.lease

    @property
    def made_by(self) -> str:
        """Who made the group; empty if it is not known."""
        return self.commit.made_by

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """{topic: {partition: the next offset to be read}}."""
        return offsets_of(self._rows)

    def __getitem__(self, key: TopicPartition) -> Position:
        return self._rows[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Positions({self.group!r}, number={self.number}, {self.offsets})"

    def starts(self, snapshot: Snapshot, partitions: Collection[int] | None = None) -> dict[int, int]:
        """{partition: the next offset to be read} of the partitions of a topic, or of those given, in which the group
        has a position.

        Raises OffsetOutOfRangeError where a reader that resumed at a position would miss records, or read wrong ones.
        """
        starts = {}
        for (topic, partition), position in self.items():
            if topic == snapshot.topic and (partitions is None or partition in partitions):
                check_position(snapshot, partition, position, self.group)
                starts[partition] = position.offset
        return starts


def check_position(snapshot: Snapshot, partition: int, position: Position, group: str) -> None:
    """Raises OffsetOutOfRangeError where a reader that went on at the position would miss records, or read other
    records than the ones that follow the records it has read.
    """
    state = PartitionState.of(snapshot, partition)
    loss = position.loss_in(state, (snapshot.topic, partition), f"group {group}")
    if loss is not None:
        to = {Loss.DELETED: "earliest", Loss.MADE_ANEW: "earliest", Loss.OTHER_LOG: "latest"}.get(
            loss.kind, loss.offset
        )
        raise OffsetOutOfRangeError(
            loss.message,
            expected=loss.expected,
            found=loss.found,
            hint=f"Choose where it goes on: segments groups reset LOG_DIR {group} {snapshot.topic} --to {to}",
        )


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The position of a group in a partition, and the ends of its log. `committed_ms`: by the reader's clock."""

    group: str
    topic: str
    partition: int
    offset: int
    log_start_offset: int
    log_end_offset: int
    committed_ms: int

    @property
    def lag(self) -> int:
        """Offsets that the group has not read."""
        return max(0, self.log_end_offset - self.offset)

    @property
    def gone(self) -> int:
        """Offsets that left the log before the group read them."""
        return max(0, self.log_start_offset - self.offset)


@dataclass(frozen=True, slots=True, repr=False)
class Group(Prints):
    """A group of a log directory by its id, whether or not it has committed. Holds no state."""

    log: LogDirectory
    id: str

    MOST_FILES: ClassVar = GroupCommit.KEPT + GroupCommit.TRIM_EVERY
    """So many files a group has at most."""

    def __post_init__(self) -> None:
        check_group_id(self.id)

    @classmethod
    def all(cls, log: LogDirectory) -> list[Group]:
        """The groups that have committed, by id. A deleted group is among them, and has no positions."""
        if log.is_kafka:
            return []
        storage = log.storage
        ids = storage.at_once(lambda name: group_of(storage, name), storage.directories(GROUPS_DIRECTORY))
        return [cls(log, group) for group in sorted(ids)]

    @classmethod
    def with_positions(cls, log: LogDirectory) -> list[Group]:
        """The groups that have positions, by id. One whose positions cannot be read is there, too."""
        groups = cls.all(log)
        found = log.storage.at_once(cls._has_positions, groups)
        return [group for group, has_positions in zip(groups, found, strict=True) if has_positions]

    def _has_positions(self) -> bool:
        try:
            return bool(self.positions())
        except SegmentsError:
            return True

    def lags(self, snapshots: Iterable[Snapshot]) -> list[GroupLag]:
        """Its positions in these topics, by topic and partition.

        A position of a topic that was deleted and made again is left out: it says nothing about the new topic.
        """
        topics = {snapshot.topic: (snapshot.topic_id, snapshot.offset_bounds()) for snapshot in snapshots}
        lags = []
        for (topic, partition), position in sorted(self.positions().items()):
            topic_id, bounds = topics.get(topic, (None, {}))
            if topic_id == position.topic_id and partition in bounds:
                start, end = bounds[partition]
                lags.append(GroupLag(self.id, topic, partition, position.offset, start, end, position.committed_ms))
        return lags

    def positions(self) -> Positions:
        """Its newest positions; none where it never committed, or was deleted. Raises StorageError."""
        return Positions(self.id, newest_commit(self._files()))

    def commit(self, positions: Positions, offsets: CommittedOffsets) -> Positions:
        """Moves positions to {topic: {partition: the next offset to be read}}, and returns all of them.

        `positions`: what the reader began at, or what its last commit returned. Each position is swapped against what
        it was there, so of two readers that went on from one position one commits.
        An offset is one in the newest version of its topic. A `Position` says which log was read (`Position.at`): where
        a topic was deleted and made again meanwhile, or another leader took its place, this is an error.

        Raises CommitConflictError where another reader has moved one of these positions; UnknownTopicError for a
        partition that is not there; OffsetOutOfRangeError for an offset above its log end. Nothing is committed then.
        StorageError: nothing is committed. UnknownOutcomeError: it may be.
        """
        if positions.group != self.id:
            raise InvalidOptionError("The positions are another group's", expected=self.id, found=positions.group)
        moved = self._new_positions(offsets, resets=False)

        def swapped(rows: GroupRows) -> GroupRows | None:
            for key in moved:
                _check_unmoved(self.id, key, positions.get(key), rows.get(key))
            return rows | moved if moved else None

        return self.update(swapped, positions)

    def reset(self, offsets: CommittedOffsets) -> Positions:
        """Moves positions to {topic: {partition: offset}}, from any position. A running reader of the group cannot
        commit there any more.

        Raises OffsetOutOfRangeError for an offset below the log start or above the log end, else as `commit`.
        """
        moved = self._new_positions(offsets, resets=True)
        return self.update(lambda rows: rows | moved if moved else None)

    def delete(self) -> None:
        """Forgets all positions, also where their file is damaged. A reader that goes on in the group cannot commit
        what it read before.
        """
        self.update(lambda rows: {} if rows else None, skips_damage=True)

    def update(
        self,
        plan: GroupPlan,
        positions: Positions | None = None,
        *,
        skips_damage: bool = False,
        check: Callable[[Positions], None] | None = None,
        lease: int = 0,
        made_by: str = "",
    ) -> Positions:
        """Replaces the positions by what `plan` makes of them, and returns the new ones.

        `plan` is called again where another commit came first; an error that it raises ends the commit. It returns None
        where nothing is to do. `positions`: where to begin, without a look whether it is still the newest.
        `skips_damage`: a damaged file has no positions; the plan gets one that nobody has, so that it has work to do.
        `check`: called with the positions that each try begins at; an error that it raises ends the commit. `lease`:
        that of the committing server. `made_by`: who made the group, where it has no positions yet.

        Raises StorageError where nothing was committed, CommitConflictError where other commits came first in every
        try, UnknownOutcomeError where the commit may have happened.
        """
        swap = GroupSwap(
            self._files(),
            plan,
            least=0 if positions is None else positions.number,
            skips_damage=skips_damage,
            check=None if check is None else lambda commit: check(Positions(self.id, commit)),
            lease=lease,
            made_by=made_by,
        )
        begun = positions.commit if positions is not None and positions.number else swap.newest()
        return Positions(self.id, swap.run(begun, swap.plan(begun)))

    def expired_files(self) -> list[FileInfo]:
        """Files that nobody needs any more: old commits, and what a killed commit has staged. Of a group that was
        deleted longer ago than any commit takes, all but the newest, and that once it is alone.
        """
        files = self._files()
        listing = files.listing()
        old = expired_files(listing)
        newest = listing.numbers.get(listing.newest)
        # The newest file goes last, and only after so long that no commit is under way: a number without a file is free
        # again, also for a commit that began on what the group was before it was deleted.
        if newest is not None and self.log.storage.now_ms() - newest.mtime_ms > ORPHAN_AGE_MS:
            with suppress(StorageError):  # damaged positions are no reason to delete any
                if not files.read(listing.newest).rows:
                    old = [info for info in listing.numbers.values() if info is not newest] or [newest]
        return old

    def _printed(self) -> Printed:
        positions = self.positions()
        snapshots = [self.log.snapshot(topic) for topic in positions.offsets if self.log.is_there(topic)]
        bounds = {
            (snapshot.topic, number): both
            for snapshot in snapshots
            for number, both in snapshot.offset_bounds().items()
        }
        rows = []
        for key, position in sorted(positions.items()):
            start, end = bounds.get(key, (None, None))
            rows.append([*key, position.offset, start, end, None if end is None else max(0, end - position.offset)])
        columns = ("topic", "partition", "offset", "log start", "log end", "lag")
        return Printed("Group", {"id": self.id, "commits": positions.number}, columns, rows)

    def _files(self) -> GroupFiles:
        if self.log.is_kafka:
            raise LogDirError(
                "A directory that Kafka wrote has no groups here: it is opened read-only",
                path=self.log.storage.uri,
                hint="Import it into a log directory, and read in a group there: segments import KAFKA_DIR LOG_DIR",
            )
        return GroupFiles(self.log.storage, self.id)

    def _new_positions(self, offsets: CommittedOffsets, *, resets: bool) -> GroupRows:
        """The positions at these offsets, all committed at one time. A topic is read once, and only where an offset
        does not say which log it is of.
        """
        now_ms = wall_ms()
        rows: GroupRows = {}
        for topic, partitions in offsets.items():
            self.log.manifest(topic)  # refuses a name that no topic can have
            newest: Snapshot | None = None
            for partition, offset in partitions.items():
                if isinstance(offset, Position):
                    position = offset
                else:
                    newest = newest or self.log.snapshot(topic)
                    position = _position_in(newest, partition, offset, resets=resets)
                _check_metadata(position)
                rows[topic, int(partition)] = replace(position, committed_ms=now_ms)
        return rows


def _position_in(newest: Snapshot, partition: int, offset: int, *, resets: bool) -> Position:
    """A position in the newest version of a topic. Raises OffsetOutOfRangeError for an offset above the log end, and
    where a group `resets` to one below the log start: a reader would begin elsewhere than it was told.
    """
    position = Position.at(newest, partition, offset)
    row = newest.partition(partition)
    if resets and offset < row.log_start_offset:
        raise OffsetOutOfRangeError(
            f"No position of {newest.topic}-{partition}: the offset is below the log start",
            expected=f"{row.log_start_offset} to {row.log_end_offset}",
            found=offset,
        )
    return position


def _check_metadata(position: Position) -> None:
    metadata_bytes = len(position.metadata.encode())
    if metadata_bytes > Position.LONGEST_METADATA:
        raise InvalidOptionError(
            "The metadata of a position is too long",
            expected=f"at most {Position.LONGEST_METADATA} bytes",
            found=metadata_bytes,
        )


def _check_unmoved(group: str, key: TopicPartition, expected: Position | None, found: Position | None) -> None:
    if expected == found:
        return
    topic, partition = key
    raise CommitConflictError(
        f"Another reader has moved the position of group {group} in {topic}-{partition} since this reader read it",
        expected="no position" if expected is None else f"offset {expected.offset}",
        found="no position" if found is None else f"offset {found.offset}",
        hint="A position has one reader at a time: give each reader a group, or its own partitions, and begin again "
        "from the group's positions",
    )
