"""What an unclean stop leaves of a partition that Kafka wrote: log recovery with recovery point 0, in memory.

Every .log is scanned batch by batch with its CRC. The log ends before the first batch that is bad; segments behind it
are dropped. Indexes, producer state, transactions and leader epochs follow from the scan; a sidecar file is used where
the scan shows that it is true. No file is touched: what Kafka would cut or delete is reported.
"""

from __future__ import annotations

from dataclasses import replace

from spark_segments.format.sidecars.producer_state import ProducerEntry, ProducerState
from spark_segments.log.kafka.recovered import Cut, LeaderEpochs, Note, PartitionFiles, Recovered
from spark_segments.log.kafka.segment_scan import SegmentScan, scan_windows
from spark_segments.log.manifest.rows import CHUNK
from spark_segments.storage import FileInfo, Storage


def recover(
    storage: Storage,
    files: PartitionFiles,
    *,
    leader_epochs: LeaderEpochs = (),
    producers: tuple[ProducerEntry, ...] = (),
) -> Recovered:
    """Scans a partition. `leader_epochs`: those of its checkpoint; `producers`: the state before its first segment.

    A file that is gone by the time it is read raises FileNotFoundError: the directory is in use, list it again.
    """
    found = Recovered(leader_epochs=leader_epochs)
    state = ProducerState(producers)
    for number, (base_offset, info) in enumerate(files.logs):
        scan = SegmentScan(storage, files, base_offset, info, state, found)
        segment = scan.run()
        if found.segments:
            _end_before(found, base_offset, files)
        found.segments.append(segment)
        if scan.problem is not None:
            dropped = [later for _, later in files.logs[number + 1 :]]
            found.cuts.append(
                Cut(
                    files.topic,
                    files.partition,
                    info.path,
                    segment.log_bytes,
                    info.size - segment.log_bytes,
                    scan.problem,
                    tuple(later.path for later in dropped),
                    sum(later.size for later in dropped),
                )
            )
            break
    if found.segments:
        last = found.segments[-1]
        found.log_end_offset = last.next_offset
        if files.has_active:
            found.segments[-1] = replace(last, state=CHUNK)
    found.last_stable_offset = state.last_stable_offset(found.log_end_offset)
    found.producers = state.entries()
    return found


def next_offset_of(storage: Storage, info: FileInfo, base_offset: int) -> int:
    """The offset after the last good batch of a .log, `base_offset` where it has none."""
    next_offset = base_offset
    for scan in scan_windows(storage, info):
        if len(scan.batches):
            next_offset = int(scan.batches.last_offset[-1]) + 1
    return next_offset


def _end_before(found: Recovered, base_offset: int, files: PartitionFiles) -> None:
    """A segment's offsets go up to the base offset of the next one: compaction may have emptied what is between."""
    last = found.segments[-1]
    if last.next_offset > base_offset:
        found.notes.append(
            Note(
                files.topic,
                files.partition,
                last.path,
                f"offsets {base_offset} to {last.next_offset - 1} belong to the next segment and are taken from there",
            )
        )
    found.segments[-1] = replace(last, next_offset=base_offset)
