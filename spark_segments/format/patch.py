"""New offsets for whole batches: the base offset and leader epoch, which the CRC does not cover, are overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np

from spark_segments.format import batch_kernels as kernels
from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import BATCH_OVERHEAD

_MAGIC = 2


def rebase(
    buffer: Any, batches: BatchTable, shift: int, leader_epoch: int | None = None, *, file_position: int = 0
) -> None:
    """Adds `shift` to the base offset of each batch in a writable buffer, and sets the leader epoch if given.

    buffer[0] is byte `file_position` of the file in which the positions of `batches` count. The table `batches` is not
    changed. Raises ValueError for entries of magic 0 and 1, whose offsets do not all lie in a header.
    """
    out = np.frombuffer(buffer, np.uint8)
    if not out.flags.writeable:
        raise ValueError("rebase writes to its buffer: hand over a copy")
    if len(batches) == 0:
        return
    if (batches.magic != _MAGIC).any():
        raise ValueError("only batches of magic 2 can be given new offsets")
    starts = batches.byte_position - file_position
    if starts.min() < 0 or starts.max() + BATCH_OVERHEAD > len(out):
        raise ValueError("a batch lies outside the buffer")
    kernels.rebase(out, starts, shift, leader_epoch is not None, 0 if leader_epoch is None else leader_epoch)
