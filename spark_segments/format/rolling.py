"""Where a partition rolls to a new segment as batches are appended: Kafka's LogSegment.shouldRoll before each append.

Rolling an idle partition by the clock is not decided here but by the plan of the job roll, with the same jitter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import NO_TIMESTAMP
from spark_segments.format.sidecars import segment_kernels
from spark_segments.format.sidecars.fields import BASE_OFFSET, FIRST_TIMESTAMP, SIZE_BYTES
from spark_segments.format.sidecars.index import batch_columns, index_limits, new_state


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """The state of the segment that the next batch may join, as far as the rule needs it."""

    base_offset: int
    size_bytes: int = 0
    first_batch_max_timestamp_ms: int = NO_TIMESTAMP
    index_state: np.ndarray = field(default_factory=new_state)


@dataclass(frozen=True, slots=True)
class Rolls:
    """`rows` (int64[]): the batches that begin a new segment. `open`: the last segment's state after all batches."""

    rows: np.ndarray
    open: OpenSegment


def segment_jitter_ms(topic_id: str, partition: int, base_offset: int, segment_ms: int, segment_jitter_ms: int) -> int:
    """The jitter in ms that a segment's segment.ms is reduced by: uniform below min(segment.jitter.ms, segment.ms).

    Kafka draws the jitter at random. Here it is the first eight bytes of BLAKE2b of
    "<topic id>/<partition>/<base offset>" as a big-endian number, modulo that bound. So every plan over the same rows
    uses the same jitter.
    """
    bound = min(segment_jitter_ms, segment_ms)
    if bound <= 0:
        return 0
    digest = hashlib.blake2b(f"{topic_id}/{partition}/{base_offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % bound


def roll_points(
    batches: BatchTable,
    *,
    segment_bytes: int,
    roll_ms: Callable[[int], int],
    index_interval_bytes: int,
    index_bytes: int,
    open_segment: OpenSegment | None = None,
    offset_shift: int = 0,
    waited_ms: int = 0,
) -> Rolls:
    """Where new segments start when `batches` are appended to `open_segment`, in order and each by itself.

    A batch starts a new segment, unless the segment is still empty, in any of these cases:
    - The segment would exceed `segment_bytes` with the batch.
    - The batch's largest timestamp is more than `roll_ms` after that of the segment's first batch. Where the first
      batch has no timestamp, `waited_ms`, how long the segment has been open, is compared instead.
    - The offset index is full, or the time index has only one slot left.
    - The batch's last offset is more than an int32 above the segment's base offset.
    A new segment's base offset is its first batch's.

    `roll_ms` returns segment.ms less the jitter for a base offset. `offset_shift` is added to the offsets of
    `batches`. Without `open_segment` the first batch starts a segment, which is not in `rows`. To go on, pass
    `Rolls.open` as `open_segment` of the next call.
    """
    rows: list[int] = []
    segment = open_segment
    if segment is None:
        segment = OpenSegment(int(batches.base_offset[0]) + offset_shift if len(batches) else 0)
    columns = batch_columns(batches)
    limits = index_limits(index_interval_bytes, index_bytes)
    row = 0
    while True:
        state = segment.index_state.copy()
        state[BASE_OFFSET] = segment.base_offset - offset_shift
        state[[SIZE_BYTES, FIRST_TIMESTAMP]] = segment.size_bytes, segment.first_batch_max_timestamp_ms
        until = [segment_bytes, roll_ms(segment.base_offset), waited_ms]
        row = segment_kernels.first_roll(columns, row, state.reshape(1, -1), np.append(limits, until))
        if row == len(batches):
            last = OpenSegment(segment.base_offset, int(state[SIZE_BYTES]), int(state[FIRST_TIMESTAMP]), state)
            return Rolls(np.array(rows, np.int64), last)
        rows.append(int(row))
        segment = OpenSegment(int(batches.base_offset[row]) + offset_shift)
        waited_ms = 0
