"""How far the readers of groups are behind: their positions beside the ends of the logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_segments.log.groups.group import Group
from spark_segments.log.manifest.snapshot import Snapshot


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

    @staticmethod
    def of(groups: Iterable[Group], snapshots: Iterable[Snapshot]) -> list[GroupLag]:
        """The positions of groups in these topics, by group, topic and partition.

        A position of a topic that was deleted and made again is left out: it says nothing about the new topic.
        """
        topics = {snapshot.topic: (snapshot.topic_id, snapshot.offset_bounds()) for snapshot in snapshots}
        lags = []
        for group in groups:
            for (topic, partition), position in sorted(group.positions().items()):
                topic_id, bounds = topics.get(topic, (None, {}))
                if topic_id == position.topic_id and partition in bounds:
                    lags.append(
                        GroupLag(group.id, topic, partition, position.offset, *bounds[partition], position.committed_ms)
                    )
        return lags
