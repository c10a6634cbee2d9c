"""Rewriting a group: what cleaning leaves of neighbouring segments becomes the segment that takes their place.

Nothing is written for a group without changed batches. format/cleaner/ decides what happens to a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.format.batches import BatchTable
from spark_segments.format.cleaner.clean import CleanedBatches, CleanerStats
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.rebase import rebased
from spark_segments.log.segment.writer import SegmentWriter, discard
from spark_segments.storage import Storage

LARGEST_FILE_BYTES = 2**31 - 1  # positions in an index are an int32


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Neighbouring segments (`inputs`) and the segments that take their place (`outputs`): usually one, none if nothing
    changes. `stats`: how many of their records stayed, and why others did not.
    """

    inputs: Sequence[Segment]
    outputs: Sequence[Segment]
    stats: CleanerStats

    def after(self, start_offset: int) -> tuple[list[Segment], list[Segment]]:
        """(inputs, outputs) without the inputs below `start_offset`, which retention has taken meanwhile.

        An output is clipped if some of its inputs are gone, and left out if all of them are.
        """
        # Retention took the first input while the group was rewritten:
        #
        #   inputs     |gone|input 1|input 2|
        #   output     |output..............|
        #   clipped         |output.........|      its file still has the records of the first input; its row does not
        #
        # With the whole output, records below the log start would be back in the log.
        inputs = [segment for segment in self.inputs if segment.base_offset >= start_offset]
        outputs = []
        for segment in self.outputs:
            if inputs and segment.next_offset > inputs[0].base_offset:
                base_offset = max(segment.base_offset, inputs[0].base_offset)
                outputs.append(dataclasses.replace(segment, base_offset=base_offset, file_base_offset=base_offset))
        return inputs, outputs


def discard_groups(storage: Storage, done: Iterable[RewrittenGroup]) -> None:
    """Deletes the outputs of groups that will not be committed, so that a partition that fails in every run does not
    pile up files.
    """
    discard(storage, [segment for group in done for segment in group.outputs])


def named(window: Window, segment: Segment) -> Window:
    """The batches of a window that the segment's row names. A clipped row does not name all batches of its file."""
    return window.between(segment.base_offset, segment.next_offset)


class GroupRewrite:
    """Takes what is left of a group, part by part. Nothing is written before the first batch that changes.

    Batches without an epoch get that of their offset: a chunk that was sealed by its row has such batches. Used as a
    context manager, it leaves no file behind if an error comes before `close`. `counts_only`: it writes nothing.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        config: TopicConfig,
        group: Sequence[Segment],
        leader_epochs: LeaderEpochs,
        *,
        counts_only: bool = False,
    ) -> None:
        self._storage = storage
        self._topic = topic
        self._config = config
        self._group = group
        self._counts_only = counts_only
        self._leader_epochs = leader_epochs
        self._writer: SegmentWriter | None = None
        self._outputs: list[Segment] = []
        self._unchanged: list[tuple[Segment, int, int]] = []
        self._tombstones = 0
        self._aborted: list[AbortedTransactions] = []
        self._stats = CleanerStats()

    def __enter__(self) -> GroupRewrite:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        if kind is not None:
            discard(self._storage, self._outputs)

    def add(self, segment: Segment, cleaned: CleanedBatches) -> None:
        """Takes what is left of the next batches of a segment."""
        if self._counts_only:
            self._note(cleaned)
            return
        if self._writer is None and not cleaned.changed:
            self._leave(segment, cleaned.source)
            self._note(cleaned)
            return
        self._begin_changes()
        if len(cleaned.batches):
            self._append(*rebased(Window(cleaned.data, cleaned.batches), self._leader_epochs))
        self._note(cleaned)

    def drop(self, stats: CleanerStats) -> None:
        """Says that batches are left out: the group changes, so that its other batches must be written."""
        self._stats += stats
        if not self._counts_only:
            self._begin_changes()

    def _begin_changes(self) -> None:
        if self._writer is None:
            self._writer = self._begin(self._group[0].base_offset)
            for data, batches in self._copies():
                self._append(data, batches)

    def _leave(self, segment: Segment, batches: BatchTable) -> None:
        """Remembers unchanged batches: they are copied if a later batch changes."""
        start = int(batches.byte_position[0])
        end = int(batches.byte_position[-1] + batches.size[-1])
        if self._unchanged and self._unchanged[-1][0] is segment and self._unchanged[-1][2] == start:
            start = self._unchanged.pop()[1]
        self._unchanged.append((segment, start, end))

    def close(self) -> RewrittenGroup:
        """The group with the rows of its outputs."""
        if self._writer is not None:
            self._finish(self._group[-1].next_offset)
        return RewrittenGroup(self._group, self._outputs, self._stats)

    def _note(self, cleaned: CleanedBatches) -> None:
        self._stats += cleaned.stats
        self._tombstones += cleaned.stats.tombstones_kept
        self._aborted.append(cleaned.aborted)

    def _append(self, data: np.ndarray, batches: BatchTable) -> None:
        assert self._writer is not None
        # Delete horizons, and a codec that compresses less than the earlier codec, may make a group larger.
        if self._writer.log_bytes + len(data) > LARGEST_FILE_BYTES and self._writer.log_bytes:
            base_offset = int(batches.base_offset[0])
            self._finish(base_offset)
            self._writer = self._begin(base_offset)
        self._writer.append(data, batches)

    def _begin(self, base_offset: int) -> SegmentWriter:
        return SegmentWriter(
            self._storage,
            self._topic,
            self._group[0].partition,
            base_offset,
            limits=SegmentLimits.of(self._config),
        )

    def _finish(self, next_offset: int) -> None:
        assert self._writer is not None
        self._writer.add_tombstones(self._tombstones)
        for aborted in self._aborted:
            self._writer.add_aborted(aborted)
        self._tombstones = 0
        self._aborted = []
        row = self._writer.close(
            topic_id=self._group[0].topic_id,
            created_ms=max(segment.created_ms for segment in self._group),
            state=Segment.SEALED,
        )
        self._outputs.append(dataclasses.replace(row, next_offset=next_offset))

    def _copies(self) -> Iterator[tuple[np.ndarray, BatchTable]]:
        for segment, start, end in self._unchanged:
            for window in SegmentFile(self._storage, segment).windows(start, end):
                if len(window.batches):
                    yield rebased(window, self._leader_epochs)
