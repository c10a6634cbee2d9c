"""Transactions that were open here while the cluster's cleaner had time to remove their markers.

A cleaner removes the records of an aborted transaction first, and its marker delete.retention.ms later. A later
capture has the records and never sees the marker: the same producer's next commit would commit them. But
Kafka's cleaner keeps a marker as long as the log has a batch of its transaction (CleanedTransactionMetadata). So the
capture asks the cluster for the batches. Where the cluster has one, its log has the marker, or gets it later. Where it
has none, the outcome of the transaction cannot be known: it is undecided. The capture writes an abort marker here, at
an offset that the cleaner removed, before the producer's next batch: every reader of the log, Kafka included, finds
the transaction ended. The cluster has the records no more, committed or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.sidecars.producer_state import ProducerEntry
from spark_segments.format.single_batch import abort_marker
from spark_segments.format.window import Window
from spark_segments.kafka_protocol.capturing.source import (
    EARLIEST,
    LATEST,
    OFFSET_OUT_OF_RANGE,
    SourceCluster,
    SourceError,
    SourceTopic,
    error_of,
)


def missing_ends(
    source: SourceCluster, topic: SourceTopic, partition: int, opened: Mapping[int, ProducerEntry], end: int
) -> dict[int, ProducerEntry]:
    """{offset of an abort marker to write: its producer}, for the undecided transactions of `opened`, {producer id:
    its entry}. `end`: the log end here.

    Reads in the cluster from the first of the transactions on, and from the log end as far as it takes to find an
    offset for each. Raises SourceError and CorruptBatchError.
    """
    gone = dict(opened)
    for batches in _batches(source, topic, partition, min(_first(entry) for entry in opened.values()), end):
        is_data = ~batches.is_control & (batches.base_offset < end)
        for producer_id in {*batches.producer_id[is_data].tolist()} & gone.keys():
            if (batches.last_offset[is_data & (batches.producer_id == producer_id)] >= _first(gone[producer_id])).any():
                del gone[producer_id]
        if not gone:
            return {}
    stable = source.offset(topic, partition, LATEST, is_committed=True)
    gone = {producer_id: entry for producer_id, entry in gone.items() if _first(entry) < stable}
    return _free_offsets(_batches(source, topic, partition, end, None), gone, end)


def _first(entry: ProducerEntry) -> int:
    return entry.current_txn_first_offset


def _free_offsets(log: Iterator[BatchTable], gone: dict[int, ProducerEntry], end: int) -> dict[int, ProducerEntry]:
    """An offset for each producer, from `end` on, that no batch has, or that the producer's emptied marker has.

    Each marker that was taken has left one before the producer's next batch. So the producers get theirs in the order
    of these batches: a marker at a later offset would end the producer's next transaction.

        here     |open of A, of B|end
        cluster                  |f|batch of B|f|batch of A|      f: an offset that the cleaner emptied
        markers                   B            A
    """
    free: list[int] = []
    next_batches: dict[int, int] = {}  # {producer: the offset of its next batch}: its marker has to come before
    ends: dict[int, ProducerEntry] = {}
    for batches in log if gone else ():
        columns = (batches.base_offset, batches.last_offset, batches.producer_id, batches.is_control, batches.count)
        for base, last, producer_id, is_control, count in zip(*(column.tolist() for column in columns), strict=True):
            free += range(end, min(base, end + len(gone) - len(free)))
            end = last + 1
            if producer_id not in gone or producer_id in next_batches:
                continue
            if is_control and not count:
                ends[base] = gone.pop(producer_id)
            elif not free:  # nothing is missing before it: it is of the transaction, or its end
                del gone[producer_id]
            else:
                next_batches[producer_id] = base
        if len(free) >= len(gone):
            break
    for producer_id in sorted(gone, key=lambda producer_id: next_batches.get(producer_id, math.inf)):
        if free and free[0] < next_batches.get(producer_id, math.inf):
            ends[free.pop(0)] = gone[producer_id]
    return ends


def _batches(
    source: SourceCluster, topic: SourceTopic, partition: int, start: int, end: int | None
) -> Iterator[BatchTable]:
    """The batches of the cluster's log with offsets in [`start`, `end`), None for its high watermark."""
    while end is None or start < end:
        fetched = source.ask(topic, {partition: (start, -1)}).result()[partition]
        if fetched.error == OFFSET_OUT_OF_RANGE:
            begin = source.offset(topic, partition, EARLIEST)
            if begin <= start:
                return
            start = begin
            continue
        if fetched.error:
            raise error_of(fetched.error)
        scan = scan_batches(fetched.records)
        batches = scan.batches
        batches = batches.take((batches.last_offset >= start) & (batches.last_offset < fetched.high_watermark))
        if not len(batches):
            if scan.error is not None:
                raise scan.error
            if start < fetched.high_watermark:
                raise SourceError("The cluster gives no batches")
            return
        yield batches
        start = int(batches.last_offset[-1]) + 1


def with_ends(window: Window, ends: Mapping[int, ProducerEntry], start: int, leader_epoch: int) -> Window:
    """A window with an abort marker at each of `ends` from offset `start` to its last, in the place of an emptied one
    where there is one. `leader_epoch`: of the batch before the window, -1 where there is none.
    """
    batches = window.batches
    data = memoryview(window.data).cast("B")
    due = [offset for offset in sorted(ends) if start <= offset <= int(batches.last_offset[-1])]
    if not due:
        return window
    pieces: list[bytes | memoryview] = []
    begins = window.starts.tolist()
    sizes = batches.size.tolist()
    bases = batches.base_offset.tolist()
    done = 0
    for offset in due:
        while bases[done] < offset:
            pieces.append(data[begins[done] : begins[done] + sizes[done]])
            leader_epoch = int(batches.leader_epoch[done])
            done += 1
        epoch = leader_epoch if leader_epoch >= 0 else int(batches.leader_epoch[done])
        pieces.append(abort_marker(ends[offset], offset, epoch, int(batches.max_timestamp[done])))
        done += bases[done] == offset
    pieces += (data[begin : begin + size] for begin, size in zip(begins[done:], sizes[done:], strict=True))
    records = b"".join(pieces)
    return replace(window, data=records, batches=scan_batches(records, path=window.path).batches, byte_position=0)
