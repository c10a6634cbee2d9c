"""The commits of an import: copied segments take their places in the topic, unless it has changed since the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.kafka.directory import KafkaSnapshot
from spark_segments.kafka.import_plan import PartitionPlan, SegmentCopy
from spark_segments.log import (
    CapturedBatch,
    Change,
    CopiedEnd,
    Hole,
    Manifest,
    Operation,
    Partition,
    Segment,
    Snapshot,
)

_MISSING_THERE = "the source has no segment of them"
"""The reason of a hole."""


@dataclass(frozen=True, slots=True)
class _Landed:
    """A part of a commit: rows that are added to a partition and changed there, and its row if that changes."""

    added: Sequence[Segment]
    replaced: Sequence[Segment]
    row: Partition | None
    holes: Sequence[Hole]


@dataclass(slots=True)
class Landing:
    """Commits copied segments. A partition that is now whole also takes the offsets of Kafka's checkpoints.

    `gaps`: by partition, offsets between Kafka's segments that no segment has. `created`: partitions that this import
    created here. `holes`: the committed holes. `rows`: the row of each partition when it was planned, or after its last
    commit here.
    """

    manifest: Manifest
    kafka: KafkaSnapshot
    before: Snapshot
    plans: Mapping[int, PartitionPlan]
    gaps: Mapping[int, Sequence[tuple[int, int]]]
    created: frozenset[int]
    holes: list[Hole] = field(default_factory=list)
    rows: dict[int, Partition] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {row.partition: row for row in self.before.partition_rows}

    def commit(
        self, copies: Sequence[tuple[SegmentCopy, Segment]], partitions: Collection[int], *, last: bool = False
    ) -> None:
        """Commits these partitions. `last`: no more copies follow. Offsets that the log passes here though no copy has
        them are recorded as holes by the same commit. Raises SegmentsError where the rows changed since the plan was
        made.
        """
        landed: list[_Landed] = []

        def plan(current: Snapshot) -> Change | None:
            # Each try of the commit plans again, on the version that it is made on.
            landed[:] = [
                self._landed(current, theirs, [copy for copy in copies if copy[1].partition == theirs.partition], last)
                for theirs in self.kafka.partition_rows
                if theirs.partition in partitions
            ]
            return self._change(current, landed, {row.partition for _, row in copies})

        done = self.manifest.commit(plan)
        if done.change is not None:
            self.holes += [hole for partition in landed for hole in partition.holes]
            self.rows |= {row.partition: row for row in done.partition_rows}

    def _change(self, current: Snapshot, landed: Sequence[_Landed], copied: Collection[int]) -> Change | None:
        """The commit of what landed; None where it changes nothing. `copied`: partitions that get segments."""
        holes = [hole for partition in landed for hole in partition.holes]
        row = Hole.topic_row(current, holes) if holes else current.topic_row
        # A capture takes what lies behind its last batch for records of a writer, and these are the cluster's.
        row = CapturedBatch.topic_row_without(row, copied)
        changed = [partition.row for partition in landed if partition.row is not None]
        topic = CopiedEnd.topic_row(row, {row.partition: row.log_end_offset for row in changed})
        change = Change(
            Operation.IMPORT,
            add=[row for partition in landed for row in partition.added],
            replace=[row for partition in landed for row in partition.replaced],
            partitions=changed,
            topic=None if topic == current.topic_row else topic,
            thinned=self._cleaned_there(),
        )
        return change if change.add or change.replace or change.partitions else None

    def _landed(
        self, current: Snapshot, theirs: Partition, copies: Sequence[tuple[SegmentCopy, Segment]], last: bool
    ) -> _Landed:
        """The rows of a partition's copies, and those that they replace, on top of `current`."""
        here = current.partition(theirs.partition)
        planned = self.rows[theirs.partition]
        is_appended = here.log_end_offset != planned.log_end_offset
        is_restored = here.first_dirty_offset < planned.first_dirty_offset  # what was cleaned since is back
        if is_appended or is_restored:
            raise self._changed(here)
        replaced = self._replaced(current, copies) if copies else []
        row = self._partition(here, theirs, [row for _, row in copies], last)
        if row.log_end_offset > here.log_end_offset and not copies:
            # Kafka has no segment there: the partition lost its files and begins again at its log start.
            now_ms = self.manifest.storage.now_ms()
            replaced = [segment.removed(now_ms) for segment in current.live_of(theirs.partition)]
        return _Landed(
            [segment for _, segment in copies],
            replaced,
            None if row == here else row,
            self._holes(here, theirs, row.log_end_offset),
        )

    def _holes(self, here: Partition, theirs: Partition, end: int) -> list[Hole]:
        """The offsets that nobody has copied, where the log end goes from `here` to `end`.

        here    |=====log end|
        Kafka                 removed|log start====| gap |=======|end
        holes                |-------|             |-----|
        """
        number = here.partition
        now_ms = self.manifest.storage.now_ms()
        start = max(here.log_end_offset, min(theirs.log_start_offset, end))
        holes = []
        if start > here.log_end_offset and number not in self.created:
            holes.append(Hole(number, here.log_end_offset, start, now_ms, Hole.REMOVED_BEFORE))
        for gap_start, gap_end in self.gaps.get(number, ()):
            if max(gap_start, start) < gap_end <= end:
                holes.append(Hole(number, max(gap_start, start), gap_end, now_ms, _MISSING_THERE))
        return holes

    def _replaced(self, current: Snapshot, copies: Sequence[tuple[SegmentCopy, Segment]]) -> list[Segment]:
        """The rows here that change when the copies of a partition are added.

        one task replaces   |=====live=====|=active=|
                                           |===copy====|===copy===|
        replaces all        |=====live=====|=active=|
                            |===copy====|=====copy=====|===copy===|
        """
        number = copies[0][1].partition
        live = {row.identity: row for row in current.live_of(number)}
        gone = self._gone(number, copies)
        here = current.partition(number)
        if self.plans[number].replaces_all and gone.keys() != live.keys():
            raise self._changed(here)
        if any(live.get(identity) != row for identity, row in gone.items()):
            raise self._changed(here)
        kept = [row for identity, row in live.items() if identity not in gone]
        # The offsets of a row that was appended meanwhile would be there twice.
        if kept and copies[0][1].base_offset < kept[-1].next_offset:
            raise self._changed(here)
        now_ms = self.manifest.storage.now_ms()
        replaced = [row.removed(now_ms) for row in gone.values()]
        if any(row.state != Segment.CHUNK for _, row in copies):
            replaced += self._sealed(kept, now_ms)
        return replaced

    def _gone(self, number: int, copies: Sequence[tuple[SegmentCopy, Segment]]) -> dict[tuple[str, int, int], Segment]:
        """The rows of a partition that give way to the copies, by identity, as they were when the plan was made."""
        if self.plans[number].replaces_all:
            return {row.identity: row for row in self.before.live_of(number)}
        return {row.identity: row for task, _ in copies for row in task.replaces}

    def _sealed(self, kept: Sequence[Segment], now_ms: int) -> list[Segment]:
        """The rows that were active here. Only the last segment is active, so below a sealed copy they no longer are.
        Raises LogDirError for a run of a shared object, which no row can make a segment.
        """
        sealed = []
        for row in kept:
            if row.state != Segment.CHUNK:
                continue
            if row.is_shared:
                raise LogDirError(
                    f"Partition {row.partition} of {self.manifest.topic} has appended records below those to be "
                    "imported",
                    path=self.manifest.storage.location(row.path),
                    hint="They share a file with other partitions, so that no segment can be made of them as they "
                    "are: roll the topic, then import again",
                )
            is_empty = not row.log_bytes
            sealed.append(row.removed(now_ms) if is_empty else dataclasses.replace(row, state=Segment.SEALED))
        return sealed

    def _cleaned_there(self) -> dict[int, int]:
        """{partition: the log end here before}, where Kafka's cleaner removed records: all rows here give way to it."""
        ends = {row.partition: row.log_end_offset for row in self.before.partition_rows}
        return {number: ends[number] for number, plan in self.plans.items() if plan.replaces_all}

    def _changed(self, here: Partition) -> SegmentsError:
        planned = self.rows[here.partition]
        return SegmentsError(
            f"{self.kafka.topic}-{here.partition} was appended to or changed while it was imported",
            path=self.manifest.storage.uri,
            expected=f"a log end of {planned.log_end_offset}, a first dirty offset of {planned.first_dirty_offset} and "
            f"the segments of version {self.before.version}",
            found=f"a log end of {here.log_end_offset}, a first dirty offset of {here.first_dirty_offset}",
            hint="Import again, into a log directory that nothing else writes to",
        )

    def _partition(self, here: Partition, theirs: Partition, rows: Sequence[Segment], last: bool) -> Partition:
        """The partition's row with these copies."""
        plan = self.plans[here.partition]
        end = max([here.log_end_offset, *(row.next_offset for row in rows)])
        if last or end >= theirs.log_end_offset:
            end = theirs.log_end_offset
            values = dataclasses.replace(theirs, topic_id=here.topic_id)
        else:
            epochs = tuple(epoch for epoch in theirs.leader_epochs if epoch[1] < end) or here.leader_epochs
            epoch = epochs[-1][0] if epochs else here.leader_epoch
            values = dataclasses.replace(here, leader_epoch=epoch, leader_epochs=epochs)
        first_dirty = here.first_dirty_offset
        if rows and plan.replaces_all:
            first_dirty = theirs.first_dirty_offset
        elif plan.adopts_cleaning:
            first_dirty = max(first_dirty, min(theirs.first_dirty_offset, end))
        log_start = max(here.log_start_offset, min(theirs.log_start_offset, end))
        return dataclasses.replace(
            values,
            log_start_offset=log_start,
            log_end_offset=end,
            first_dirty_offset=max(first_dirty, log_start),
            last_stable_offset=max(values.last_stable_offset, log_start),
        )
