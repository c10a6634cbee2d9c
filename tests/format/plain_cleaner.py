"""The rules of Kafka's cleaner in plain Python, over decoded batches: the model that the kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.format.plain_decode import PlainBatch, PlainRecord

ABORT, COMMIT = 0, 1


@dataclass(frozen=True)
class PlainRound:
    """One cleaning: the map, its end, and what else the rules ask for; `producers`: id → (last offset or -1, epoch)."""

    latest: dict[bytes, int]
    map_end_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    producers: dict[int, tuple[int, int]]
    codec: int | None = None


def marker_of(batch: PlainBatch) -> int | None:
    return batch.records[0].key[3] if batch.control and batch.records else None


def undone(batches: Sequence[PlainBatch]) -> list[bool]:
    """Which data batches of a whole log belong to a transaction whose next marker is an ABORT."""
    next_marker: dict[int, int] = {}
    result = []
    for batch in reversed(batches):
        if (kind := marker_of(batch)) is not None:
            next_marker[batch.producer_id] = kind
        is_data = batch.transactional and not batch.control
        result.append(is_data and next_marker.get(batch.producer_id) == ABORT)
    return result[::-1]


def latest_offsets(
    segments: Sequence[Sequence[PlainBatch]], aborted: set[int], start_offset: int, end_offset: int, max_keys: int
) -> tuple[dict[bytes, int], int]:
    """The map of all segments given, and its end: `end_offset`, or the offset of the first record that had no room."""
    latest: dict[bytes, int] = {}
    for batch in (batch for segment in segments for batch in segment):
        if batch.control or batch.base_offset in aborted:
            continue
        for record in batch.records:
            if record.key is not None and record.offset >= start_offset:
                if record.key not in latest and len(latest) == max_keys:
                    return latest, record.offset
                latest[record.key] = record.offset
    return latest, end_offset


def clean(batches: Sequence[PlainBatch], aborted: set[int], cleaning: PlainRound) -> list[PlainBatch]:
    """What is left of the log's first batches, from its start on; `aborted` by base offset."""
    data_seen: set[tuple[int, bool]] = set()  # (producer, whether its data are aborted) of the transaction under way
    result = []
    for batch in batches:
        is_aborted = batch.base_offset in aborted
        kind = marker_of(batch)
        if batch.control:
            marker_is_free = kind is None or (
                kind in (ABORT, COMMIT) and (batch.producer_id, kind == ABORT) not in data_seen
            )
            discardable = marker_is_free
            data_seen.discard((batch.producer_id, kind == ABORT))
        else:
            discardable = is_aborted
            if batch.transactional:
                data_seen.add((batch.producer_id, is_aborted))
        left = _left_of(batch, discardable, cleaning)
        if left is not None:
            result.append(left)
    return result


def _left_of(batch: PlainBatch, discardable: bool, cleaning: PlainRound) -> PlainBatch | None:
    horizon = batch.delete_horizon_ms
    expired = horizon is not None and horizon <= cleaning.now_ms
    discarded = discardable and (not batch.control or expired)
    kept = () if discarded else tuple(record for record in batch.records if _stays(record, batch, cleaning))
    if not kept:
        return _emptied(batch) if _must_stay(batch, cleaning) else None
    tombstones = any(record.value is None for record in kept)
    needs_horizon = horizon is None and (tombstones or (batch.control and discardable))
    if kept == batch.records and not needs_horizon:
        return batch
    if needs_horizon:
        horizon = cleaning.now_ms + cleaning.delete_retention_ms
    codec = batch.codec if cleaning.codec is None or batch.control else cleaning.codec
    return replace(
        batch,
        attributes=batch.attributes & ~(7 | 64) | codec | (64 if horizon is not None else 0),
        base_timestamp=horizon if horizon is not None else kept[0].timestamp,
        max_timestamp=batch.max_timestamp if batch.log_append_time else max(record.timestamp for record in kept),
        records=kept,
    )


def _stays(record: PlainRecord, batch: PlainBatch, cleaning: PlainRound) -> bool:
    if batch.control or record.offset >= cleaning.map_end_offset:
        return True
    if record.key is None or record.offset < cleaning.latest.get(record.key, -1):
        return False
    horizon = batch.delete_horizon_ms
    return record.value is not None or horizon is None or cleaning.now_ms < horizon


def _must_stay(batch: PlainBatch, cleaning: PlainRound) -> bool:
    if batch.last_offset + 1 == cleaning.first_uncleanable_offset:
        return True
    if batch.producer_id not in cleaning.producers:
        return False
    last_offset, epoch = cleaning.producers[batch.producer_id]
    return batch.last_offset == last_offset if last_offset >= 0 else batch.control and batch.producer_epoch == epoch


def _emptied(batch: PlainBatch) -> PlainBatch:
    return replace(batch, attributes=batch.attributes & ~(7 | 64), base_timestamp=-1, records=())
