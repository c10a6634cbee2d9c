"""Groups of a log directory: the part of `LogDir` that keeps positions of readers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from spark_segments.errors import CommitConflictError, InvalidOptionError, LogDirError
from spark_segments.log.groups.group_log import GROUPS_DIRECTORY, OpenGroupLog
from spark_segments.log.groups.group_table import GroupTable, Rows
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

    class Log(Protocol):
        """The part of a log directory that this module uses."""

        storage: Storage
        open_group_log: OpenGroupLog
        _committed: dict[str, Committed]

        @property
        def is_kafka(self) -> bool: ...

        def snapshot(self, topic: str, version: int | None = None) -> Snapshot: ...

        def committed(self, group: str) -> Committed: ...

        def group_table(self, group: str) -> GroupTable: ...


class Groups:
    """The part of `LogDir` that is about groups."""

    def groups(self: Log) -> list[str]:
        """The names of the groups that have positions, sorted."""
        if self.is_kafka:
            return []
        names = self.storage.directories(GROUPS_DIRECTORY)
        return [group for group in names if self.group_table(group).positions()]

    def group_table(self: Log, group: str) -> GroupTable:
        """The table of a group. Raises InvalidOptionError for a name that is no group's, LogDirError where Kafka wrote
        the directory.
        """
        check_group_name(group)
        if self.is_kafka:
            raise LogDirError(
                "A directory that Kafka wrote has no groups here: it is opened read-only",
                path=self.storage.uri,
                hint="Import it into a log directory, and read in a group there: segments import KAFKA_DIR LOG_DIR",
            )
        return GroupTable(self.storage, group, self.open_group_log)

    def committed(self: Log, group: str) -> Committed:
        """The positions of a group: {topic: {partition: the next offset to be read}}, empty where it has none.

        Raises InvalidOptionError for a name that is no group's, LogDirError for a directory that Kafka wrote.
        """
        found = self._committed[group] = Committed(group, self.group_table(group).positions())
        return found

    def commit_offsets(
        self: Log,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        *,
        after: Committed | None = None,
        snapshots: Iterable[Snapshot] = (),
    ) -> Committed:
        """Moves the positions of a group to {topic: {partition: offset}}, and returns all of its positions.

        Each position is swapped against what it was in `after`: the positions that the reader began at, which
        `committed` or its last commit gave it. By default that is what this LogDir found or committed last; threads
        that read in one group must name theirs. So of two readers that went on from the same position, one commits.

        `snapshots`: the versions of the topics that were read, by default the newest of each. A position says which log
        was read: where a topic was deleted and made again meanwhile, or another leader took its place, it is a position
        in the log that was read, and whoever goes on there is told.

        Raises CommitConflictError where another reader has moved one of these positions; UnknownTopicError for a
        partition that is not there; OffsetOutOfRangeError for an offset above its log end. Nothing is committed then.
        """
        table = self.group_table(group)
        before = after if after is not None else self._committed.get(group, Committed(group, {}))
        if before.group != group:
            raise InvalidOptionError("The positions are another group's", expected=group, found=before.group)
        now_ms = time.time_ns() // 1_000_000
        moved: dict[TopicPartition, Position] = {}
        was_read = {snapshot.topic: snapshot for snapshot in snapshots}
        for topic, partitions in offsets.items():
            snapshot = was_read[topic] if topic in was_read else self.snapshot(topic)
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
        table = self.group_table(group)
        table.commit(lambda rows: {} if rows else None)
        self._committed.pop(group, None)


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
