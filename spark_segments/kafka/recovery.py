"""Log recovery of a partition that Kafka wrote, as after an unclean stop: with recovery point 0, in memory.

Every .log is scanned batch by batch with its CRC. The log ends before the first bad batch; the segments behind it are
dropped. The scan yields indexes, producer state, transactions and leader epochs; a sidecar file is used where the scan
shows that it is true. No file is changed: bytes and files that Kafka would cut or delete are reported.

Where segments overlap, the log holds what a broker serves to a reader that begins at the log start: a segment to its
end, then the segment with the largest base offset at or below the next offset. Offsets that this walk skips are not in
the log, wherever a read begins.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from spark_segments.format.sidecars.producer_state import ProducerEntry, ProducerState
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.recovered_log import Cut, Overlap, PartitionFiles, RecoveredLog
from spark_segments.kafka.segment_scan import ScanRange, SegmentScan, span_of
from spark_segments.log import Segment
from spark_segments.storage import Storage


def recover(
    storage: Storage,
    files: PartitionFiles,
    *,
    log_start_offset: int = 0,
    leader_epochs: tuple[tuple[int, int], ...] = (),
    producers: tuple[ProducerEntry, ...] = (),
    copies: EarlyCopies | None = None,
    copied_end: int = 0,
) -> RecoveredLog:
    """Scans a partition. `leader_epochs`: from its checkpoint; `producers`: the state before its first segment.
    `copies`: makes copies meanwhile, of segments that can have offsets at or above `copied_end` and the log start.

    Raises FileNotFoundError for a file that is gone by the time it is read: the directory is in use, list it again.
    """
    recovered = RecoveredLog(leader_epochs=leader_epochs)
    state = ProducerState(producers)
    bases = [base_offset for base_offset, _ in files.logs]
    begin = max(0, bisect_right(bases, log_start_offset) - 1)  # the segment that a read from the log start begins in
    for number, (base_offset, info) in enumerate(files.logs):
        next_offset = recovered.segments[-1].next_offset if recovered.segments else base_offset
        is_last = number + 1 == len(bases)
        if not is_last and bases[number + 1] <= next_offset:
            _pass_over(storage, files, number, recovered, served=recovered.segments[-1].path)
            continue
        scan_range = _scan_range(files, number, begin, next_offset)
        # A copy of a part of a file would not be the file, and what is here already is not copied again.
        is_whole = scan_range.start_offset == base_offset and scan_range.end_offset is None
        is_new = is_last or bases[number + 1] > max(copied_end, log_start_offset)
        segment_copies = copies if is_new and is_whole else None
        scan = SegmentScan(storage, files, number, scan_range, state, recovered, segment_copies)
        segment = scan.run()
        _note_overlap(files, scan, info.path, scan_range.start_offset, recovered)
        if scan.ended:
            served = files.logs[begin][1].path
            _pass_over(storage, files, number, recovered, served=served, first_offset=segment.next_offset)
        if segment.batches or scan_range.start_offset == base_offset:
            _append(recovered, segment)
        if scan.problem is not None:
            _cut(files, number, scan, recovered)
            break
    _end(files, state, recovered)
    return recovered


def _scan_range(files: PartitionFiles, number: int, begin: int, next_offset: int) -> ScanRange:
    """What of a segment is in the log, from `next_offset` on. `begin`: the number of the segment that a read from the
    log start begins in.

    Below the log start no read comes: such a segment ends where the first that is read begins. A high watermark cuts
    the last segment alone: what a broker has rolled lies below it.
    """
    start_offset = max(files.logs[number][0], next_offset)
    end_offset = files.logs[begin][0] if number < begin else None
    limit = files.end_offset if number + 1 == len(files.logs) else None
    return ScanRange(start_offset, end_offset, limit)


def _note_overlap(
    files: PartitionFiles, scan: SegmentScan, path: str, start_offset: int, recovered: RecoveredLog
) -> None:
    """Reports the offsets of a segment that the segment before it has, too.

    before   |==============|
    scan              |=====|========|
                      first start_offset       the log has the first segment's batches of what both have
    """
    if scan.first_offset < start_offset:
        last_offset = min(start_offset, scan.next_offset) - 1
        served = recovered.segments[-1].path
        recovered.overlaps.append(Overlap(files.topic, files.partition, path, scan.first_offset, last_offset, served))


def _end(files: PartitionFiles, state: ProducerState, recovered: RecoveredLog) -> None:
    """Sets what holds at the log end."""
    if recovered.segments:
        last = recovered.segments[-1]
        recovered.log_end_offset = last.next_offset
        if files.has_active:
            recovered.segments[-1] = replace(last, state=Segment.CHUNK)
    recovered.last_stable_offset = state.last_stable_offset(recovered.log_end_offset)
    recovered.producers = state.entries()


def _append(recovered: RecoveredLog, segment: Segment) -> None:
    """Adds a segment. The segment before it then reaches up to its base offset: compaction may have emptied the gap."""
    if recovered.segments:
        if recovered.segments[-1].next_offset < segment.base_offset:
            recovered.gaps.append((recovered.segments[-1].next_offset, segment.base_offset))
        recovered.segments[-1] = replace(recovered.segments[-1], next_offset=segment.base_offset)
    recovered.segments.append(segment)


def _pass_over(
    storage: Storage, files: PartitionFiles, number: int, recovered: RecoveredLog, *, served: str, first_offset: int = 0
) -> None:
    """Reports the offsets of a segment, from `first_offset` on, that no read from the log start reaches."""
    base_offset, info = files.logs[number]
    begin, end, problem = span_of(storage, info, base_offset)
    if end > base_offset or problem is not None:
        begin = max(begin, first_offset)
        last_offset = max(begin, end - 1)
        recovered.overlaps.append(Overlap(files.topic, files.partition, info.path, begin, last_offset, served, problem))


def _cut(files: PartitionFiles, number: int, scan: SegmentScan, recovered: RecoveredLog) -> None:
    """Reports where the log ends in the file of this number, and which later segments that drops."""
    info = files.logs[number][1]
    dropped = [later for _, later in files.logs[number + 1 :]]
    recovered.cuts.append(
        Cut(
            files.topic,
            files.partition,
            info.path,
            scan.log_bytes,
            info.size - scan.log_bytes,
            scan.problem or "",
            tuple(later.path for later in dropped),
            sum(later.size for later in dropped),
        )
    )
