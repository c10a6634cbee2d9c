"""What is left of a segment without the erased records: a file that takes the segment's place in the log."""

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
from spark_segments.log.segment.copying import aborted_in
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.reader import windows
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.compaction.group_rewrite import GroupRewrite, named
from spark_segments.storage import Storage

_BYTES_A_KEY = 64  # of the map; at least 4096


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment, the segments that take its place, and what became of its records."""

    source: Segment
    outputs: tuple[Segment, ...]
    stats: CleanerStats


def erase_from_segment(
    storage: Storage,
    topic: str,
    config: TopicConfig,
    leader_epochs: Mapping[int, LeaderEpochs],
    task: tuple[Segment, Mapping[bytes, int]],
) -> ErasedSegment:
    """Task function: writes a segment again without the records of keys below an offset, {key: that offset}.

    Every other record keeps its offset and its bytes, batch headers stay even where no record of a batch does, and so
    do tombstones, transaction markers, and the entries of the .txnindex. The new file has the state of the old one, and
    bytes that the row does not name are not in it.
    """
    segment, ends = task
    offsets = np.array(list(ends.values()), np.int64)
    latest = LatestKeys(max(4096, _BYTES_A_KEY * len(ends)))
    fits = latest.put_records(pa.array(list(ends), pa.binary()), offsets)
    assert fits, "the map has room for all keys"
    latest.advance(int(offsets.max()))
    rules = RecordFilter(latest, 0, 0, -1, ActiveProducers.of(), only_superseded=True)
    aborted = aborted_in(storage, segment, segment.base_offset, segment.next_offset)
    transactions, stats = UntouchedTransactions(), CleanerStats()
    with GroupRewrite(storage, topic, config, [segment], leader_epochs[segment.partition]) as rewrite:
        for window in (named(one, segment) for one in windows(storage, segment)):
            _check_begin(window, segment)
            for cleaned in clean_batches(window, rules, transactions):
                # The file is written in any case: bytes that the row does not name may have the keys, too.
                rewrite.add(segment, dataclasses.replace(cleaned, changed=True, aborted=aborted))
                aborted = cleaned.aborted  # none: the entries are written once
                stats += cleaned.stats
        outputs = rewrite.close().outputs
    return ErasedSegment(segment, tuple(dataclasses.replace(one, state=segment.state) for one in outputs), stats)


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


def discard_erased(storage: Storage, done: Sequence[ErasedSegment]) -> None:
    """Deletes the files of segments that no commit will name."""
    discard(storage, [segment for one in done for segment in one.outputs])
