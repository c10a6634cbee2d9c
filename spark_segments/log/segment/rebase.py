"""Record batches at their offsets in the log: only base offsets and leader epochs are rewritten."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from spark_segments.format.batches import BatchTable, rebase, scan_batches
from spark_segments.format.single_batch import batch_from
from spark_segments.format.window import Window
from spark_segments.log.segment.leader_epochs import LeaderEpochs


def trimmed(window: Window, start_offset: int) -> list[Window]:
    """A window's batches without records below `start_offset`, an offset of the log.

    Batches that end below it are left out. A batch that begins below it and ends at or above it is encoded again, as a
    window of the records that are left:

        batches    |1 2 3|4 5 6 7|8 9|        from offset 6 on
        left                 |6 7|8 9|
    """
    start_offset -= window.offset_shift
    kept = window.batches.last_offset >= start_offset
    if not kept.any():
        return []
    window = window.take(kept)
    if int(window.batches.base_offset[0]) >= start_offset:
        return [window]
    first, rest = window.take(slice(0, 1)), window.take(slice(1, None))
    data = pa.py_buffer(batch_from(first, start_offset))
    batches = scan_batches(data, path=window.path).batches
    piece = dataclasses.replace(window, data=data, batches=batches, byte_position=0)
    return [piece, rest] if len(rest.batches) else [piece]


def rebased(window: Window, leader_epochs: LeaderEpochs | None = None) -> tuple[np.ndarray, BatchTable]:
    """The bytes of a window's batches at their log offsets, and their table with positions from 0.

    The batches must be neighbours. Where `leader_epochs` are given, a batch without an epoch gets that of its offset in
    the log, from their `stamped_from` on, and with their `stamps_all` every batch does. Where a header changes, a
    writable window is changed in place and any other window is copied; else the bytes are the window's.
    """
    batches = window.batches
    shift = window.offset_shift
    data = window.batch_bytes
    batches = dataclasses.replace(batches, byte_position=batches.byte_position - batches.byte_position[0])
    stamped = np.ones(len(batches), bool)
    if leader_epochs is not None:
        stamped &= leader_epochs.stamps_all | (batches.leader_epoch < 0)
        stamped &= batches.base_offset + shift >= leader_epochs.stamped_from
    if shift or (leader_epochs is not None and stamped.any()):
        if not data.flags.writeable:
            data = data.copy()
        if shift:
            rebase(data, batches, shift, None)
        if leader_epochs is not None:
            epochs = leader_epochs.at(batches.base_offset + shift)
            for epoch in np.unique(epochs[stamped]).tolist():
                rebase(data, batches.take(stamped & (epochs == epoch)), 0, epoch)
        batches = dataclasses.replace(
            batches, base_offset=batches.base_offset + shift, last_offset=batches.last_offset + shift
        )
    return data, batches
