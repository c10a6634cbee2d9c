"""New offsets for whole batches: what lies outside the CRC of a record batch is written over in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.jit import njit, store_i32, store_i64
from spark_segments.format.layout import BASE_OFFSET_POSITION, BATCH_OVERHEAD, LEADER_EPOCH_POSITION

_MAGIC = 2


def rebase(
    buffer: Any, batches: BatchTable, shift: int, leader_epoch: int | None = None, *, file_position: int = 0
) -> BatchTable:
    """Adds `shift` to the base offset of every batch in a writable buffer, and sets their leader epoch if one is given.

    buffer[0] is byte `file_position` of the file that the positions of `batches` count in. Returns the table of the
    batches as they are now. Raises ValueError for entries of magic 0 and 1, whose offsets are not theirs alone.
    """
    out = np.frombuffer(buffer, np.uint8)
    if not out.flags.writeable:
        raise ValueError("rebase writes to its buffer: hand over a copy")
    if len(batches) == 0:
        return batches
    if (batches.magic != _MAGIC).any():
        raise ValueError("only batches of magic 2 can be given new offsets")
    starts = batches.position - file_position
    if starts.min() < 0 or starts.max() + BATCH_OVERHEAD > len(out):
        raise ValueError("a batch lies outside the buffer")
    base_offset = batches.base_offset + shift
    assert base_offset.min() >= 0, f"a shift of {shift} makes offsets negative"
    moved = replace(batches, base_offset=base_offset, last_offset=batches.last_offset + shift)
    if leader_epoch is not None:
        moved = replace(moved, leader_epoch=np.full(len(batches), leader_epoch, np.int32))
    _write(out, starts, base_offset, moved.leader_epoch)
    return moved


@njit
def _write(out, starts, base_offsets, leader_epochs):
    for batch in range(len(starts)):
        store_i64(out, starts[batch] + BASE_OFFSET_POSITION, base_offsets[batch])
        store_i32(out, starts[batch] + LEADER_EPOCH_POSITION, leader_epochs[batch])
