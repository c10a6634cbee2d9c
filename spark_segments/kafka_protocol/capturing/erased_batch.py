"""A batch that an erasure at the source rewrote: what it still has must be what was captured.

A broker never rewrites a batch of a topic that is not compacted. `segments serve` can serve one that `segments erase`
has rewritten, and says of which offsets that is so. The batch there and the batch here then have the same header, and
the same record at each offset that both have: an erasure may have been made there, here, or in both.
"""

from __future__ import annotations

from typing import Any

from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import MAGIC
from spark_segments.format.window import Window
from spark_segments.log import Segment, SegmentFile
from spark_segments.storage import Storage

_HEADER = ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence", "is_control")
_RECORD = ("offset", "timestamp", "key", "value", "headers")


def batch_here(storage: Storage, segment: Segment, base_offset: int) -> Window | None:
    """The batch at this offset of the log, with its offset in the file; None where the segment has none there."""
    for window in SegmentFile(storage, segment).windows():
        rows = window.batches.base_offset + window.offset_shift == base_offset
        if rows.any():
            return window.take(rows)
    return None


def agree(here: Window, source: Window, topic: str, partition: int) -> bool:
    """Whether two windows of one batch each are one batch, but for records that one of them lacks."""
    headers = [_header(window) for window in (here, source)]
    if headers[0] != headers[1]:
        return False
    ours, theirs = (_records(window, topic, partition) for window in (here, source))
    return all(ours[offset] == theirs[offset] for offset in ours.keys() & theirs.keys())


def _header(window: Window) -> list[int] | None:
    batches = window.batches
    if int(batches.magic[0]) != MAGIC:
        return None
    values = [int(getattr(batches, name)[0]) for name in _HEADER]
    return [
        value + window.offset_shift if name.endswith("_offset") else value
        for name, value in zip(_HEADER, values, strict=True)
    ]


def _records(window: Window, topic: str, partition: int) -> dict[int, dict[str, Any]]:
    decoded = decode_batches(window, topic=topic, partition=partition, columns=_RECORD)
    return {row["offset"]: row for batch in decoded for row in batch.to_pylist()}
