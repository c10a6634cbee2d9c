"""Groups of a log directory: the part of `LogDir` that keeps positions of readers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from spark_segments.errors import CommitConflictError, InvalidOptionError, LogDirError
from spark_segments.log.groups.positions import (
    Committed,
    Position,
    TopicPartition,
    check_group_name,
    new_position,
)
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.groups.group_table import GroupTable, Rows

    class Log(Protocol):
        """The part of a log directory that this module uses."""

        storage: Storage
        _committed: dict[str, Committed]

        @property
        def is_kafka(self) -> bool: ...

        def snapshot(self, topic: str, version: int | None = None) -> Snapshot: ...

        def committed(self, group: str) -> Committed: ...


class Groups:
    """The part of `LogDir` that is about groups."""

    def groups(self: Log) -> list[str]:
        """The names of the groups that have positions, sorted."""
        if self.is_kafka:
            return []
        names = self.storage.directories("_groups")
        return [group for group in names if _table(self, group).positions()]

    def committed(self: Log, group: str) -> Committed:
        """The positions of a group: {topic: {partition: the next offset to be read}}, empty where it has none.

        Raises InvalidOptionError for a name that is no group's, LogDirError for a directory that Kafka wrote.
        """
        found = self._committed[group] = Committed(group, _table(self, group).positions())
        return found

    def commit_offsets(
        self: Log, group: str, offsets: Mapping[str, Mapping[int, int]], *, after: Committed | None = None
    ) -> Committed:
        """Moves the positions of a group to {topic: {partition: offset}}, and returns all of its positions.

        Each position is swapped against what it was in `after`: the positions that the reader began at, which
        `committed` or its last commit gave it. By default that is what this LogDir found or committed last; threads
        that read in one group must name theirs. So of two readers that went on from the same position, one commits.

        Raises CommitConflictError where another reader has moved one of these positions; UnknownTopicError for a
        partition that is not there; OffsetOutOfRangeError for an offset above its log end. Nothing is committed then.
        """
        table = _table(self, group)
        before = after if after is not None else self._committed.get(group, Committed(group, {}))
        if before.group != group:
            raise InvalidOptionError("The positions are another group's", expected=group, found=before.group)
        now_ms = time.time_ns() // 1_000_000
        moved: dict[TopicPartition, Position] = {}
        for topic, partitions in offsets.items():
            snapshot = self.snapshot(topic)
            for partition, offset in partitions.items():
                moved[topic, partition] = new_position(snapshot, partition, offset, now_ms)

        def swapped(rows: Rows) -> Rows | None:
            for key in moved:
                _check_unmoved(group, key, before.positions.get(key), rows.get(key))
            return rows | moved if moved else None

        done = self._committed[group] = Committed(group, table.commit(swapped))
        return done

    def delete_group(self: Log, group: str) -> None:
        """Forgets all positions of a group. A reader that goes on in it cannot commit what it read before."""
        table = _table(self, group)
        table.commit(lambda rows: {} if rows else None)
        self._committed.pop(group, None)


def _table(log: Log, group: str) -> GroupTable:
    from spark_segments.log.groups.group_table import GroupTable

    check_group_name(group)
    if log.is_kafka:
        raise LogDirError(
            "A directory that Kafka wrote has no groups here: it is opened read-only",
            path=log.storage.uri,
            hint="Import it into a log directory, and read in a group there: segments import KAFKA_DIR LOG_DIR",
        )
    return GroupTable(log.storage, group)


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
