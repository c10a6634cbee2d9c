"""What takes the place of segments in an erasure: copies without the records of the keys, and of the runs beside them.

It removes records with the cleaner of format/cleaner/; compaction/ removes what newer records supersede.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.errors import SegmentsError
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.format.cleaner.transactions import UntouchedTransactions
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.compaction.group_rewrite import GroupRewrite, RewrittenGroup, discard_groups, named
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.rolling.copies import CopySegments, CopyTask, copied
from spark_segments.maintenance.rolling.planned_segments import PlannedSegment
from spark_segments.maintenance.rolling.roll_plan import RollRules
from spark_segments.storage import Storage

_BYTES_A_KEY = 64  # of the map; at least 4096


@dataclass(frozen=True, slots=True)
class EraseFromSegment:
    """Task function: writes a segment again without the records of keys below an offset, {key: that offset}.

    Every other record keeps its offset and its bytes, batch headers stay even where no record of a batch does, and so
    do tombstones, transaction markers, and the entries of the .txnindex. The new file has the state of the old one, and
    bytes that the row does not name are not in it.
    """

    storage: Storage
    topic: str
    config: TopicConfig
    leader_epochs: Mapping[int, LeaderEpochs]

    def __call__(self, task: tuple[Segment, Mapping[bytes, int]]) -> RewrittenGroup:
        segment, ends = task
        offsets = np.array(list(ends.values()), np.int64)
        latest = LatestKeys(max(4096, _BYTES_A_KEY * len(ends)))
        fits = latest.put_records(pa.array(list(ends), pa.binary()), offsets)
        assert fits, "the map has room for all keys"
        # The filter drops what lies below the newest offset of its key, as a compaction does: here that is where an
        # erasure ends.
        latest.advance(int(offsets.max()))
        # Nothing but records of the keys goes: no tombstone for its age, and no marker of a transaction.
        rules = RecordFilter(latest, 0, 0, -1, ActiveProducers.of(), only_superseded=True)
        file = SegmentFile(self.storage, segment)
        transactions = UntouchedTransactions()
        aborted = file.aborted_in(segment.base_offset, segment.next_offset)
        epochs = self.leader_epochs[segment.partition]
        with GroupRewrite(self.storage, self.topic, self.config, [segment], epochs) as rewrite:
            for window in (named(window, segment) for window in file.windows()):
                _check_begin(window, segment)
                for cleaned in clean_batches(window, rules, transactions):
                    # The file is written in any case: bytes that the row does not name may have the keys, too.
                    rewrite.add(segment, dataclasses.replace(cleaned, changed=True, aborted=aborted))
                    aborted = cleaned.aborted  # none: the entries are written once
            done = rewrite.close()
        return dataclasses.replace(
            done, outputs=[dataclasses.replace(row, state=segment.state) for row in done.outputs]
        )

    def copied_out(self, job: Job, rows: Sequence[Segment]) -> list[RewrittenGroup]:
        """Copies runs, with all their records, into new shared objects or files, as a roll does."""
        tasks = [
            CopyTask(
                PlannedSegment(row.partition, row.base_offset, row.next_offset, (row,), sealed=False),
                self.leader_epochs[row.partition],
            )
            for row in rows
        ]
        copy = CopySegments(self.storage, self.topic, RollRules.of(rows[0].topic_id, self.config))
        outputs = copied(copy, tasks, job.spark, progress=job.progress)
        done = [
            RewrittenGroup((row,), (output,), CleanerStats(records_read=output.records))
            for row, output in zip(rows, outputs, strict=True)
            if isinstance(output, Segment)
        ]
        errors = [output for output in outputs if isinstance(output, SegmentsError)]
        if errors:
            discard_groups(self.storage, done)
            raise errors[0]
        return done


def _check_begin(window: Window, segment: Segment) -> None:
    """Raises SegmentsError for a row that begins inside a batch: a file of that name could not hold the batch."""
    if len(window.batches) and int(window.batches.base_offset[0]) + segment.offset_shift < segment.base_offset:
        raise SegmentsError(
            "The row of a segment begins inside a batch",
            path=segment.path,
            byte_position=int(window.batches.byte_position[0]),
            expected=f"a batch that begins at offset {segment.base_offset} or later",
            found=int(window.batches.base_offset[0]) + segment.offset_shift,
            hint="Roll the topic, which cuts the batch, and erase again",
        )
