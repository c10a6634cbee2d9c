"""Message sets of magic 0 and 1 as record batches of magic 2: the same records at the same offsets.

As Kafka's LogValidator does when an old producer writes to a newer topic, except that offsets may have gaps. A record
without timestamp stays without a timestamp (−1) and counts as CreateTime.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.format.batches import scan_batches
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import compress
from spark_segments.format.layout import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    NONE,
    TIMESTAMP_TYPE_MASK,
)
from spark_segments.format.legacy import kernels
from spark_segments.format.legacy.message_sets import Messages, read_messages
from spark_segments.format.single_batch import made_batch
from spark_segments.format.window import Window

_LARGEST_DELTA = 2**31 - 1
_RECORD_OVERHEAD = 36  # the most that a record's varints and its attributes take


def opened(window: Window, start_offset: int, step_bytes: int) -> Iterator[tuple[Window, int | None]]:
    """The records of entries of magic 0 and 1 that may lie at `start_offset` of the log or above, as windows of batches
    of magic 2 without a codec, of about `step_bytes`: whatever a wrapper decompresses to.

    With each comes the timestamp type of its records, where the batches do not say it: records of magic 0 have none.
    Raises CorruptBatchError, after the windows before it, for damaged messages and for a wrong CRC-32.
    """
    # A wrapper's offset is that of its last message, save for wrappers whose offset librdkafka left at 0.
    last_offset = window.batches.last_offset
    window = window.take((last_offset + window.offset_shift >= start_offset) | (last_offset == 0))
    parts: list[bytes] = []
    part_type: int | None = None

    def joined() -> Iterator[tuple[Window, int | None]]:
        if parts:
            data = pa.py_buffer(b"".join(parts))
            batches = scan_batches(data, check_crc=False).batches
            yield Window(data, batches, path=window.path, offset_shift=window.offset_shift), part_type
            parts.clear()

    for messages in read_messages(window, step_bytes=step_bytes):
        untyped = messages.timestamp_type == NO_TIMESTAMP_TYPE
        edges = [0, *(np.flatnonzero(np.diff(untyped)) + 1).tolist(), len(untyped)]
        for first, last in pairwise(edges):
            timestamp_type = NO_TIMESTAMP_TYPE if untyped[first] else None
            if timestamp_type != part_type or sum(map(len, parts)) >= step_bytes:
                yield from joined()
            part_type = timestamp_type
            parts += [_encode(run, NONE) for run in _batches_of(messages.take(slice(first, last)), None)]
    yield from joined()


def as_magic_2(window: Window, batch_bytes: int = 128 * 1024) -> Window:
    """A window of the same records in magic 2. Without entries of magic 0 and 1 it is the window itself.

    A wrapper becomes a batch with the wrapper's codec, a very large wrapper several batches. Uncompressed messages are
    gathered into batches of up to `batch_bytes`. Raises CorruptBatchError for damaged messages.
    """
    batches = window.batches
    is_legacy = batches.magic < 2
    if not is_legacy.any():
        return window
    view = byte_view(window.data)
    parts: list[Any] = []
    edges = [0, *(np.flatnonzero(np.diff(is_legacy)) + 1).tolist(), len(batches)]
    for first, last in pairwise(edges):
        part = window.take(slice(first, last))
        if is_legacy[first]:
            for messages in read_messages(part):
                codec = int(part.batches.attributes[messages.row]) & CODEC_MASK
                parts += [_encode(run, codec) for run in _batches_of(messages, None if codec else batch_bytes)]
        else:
            sizes = part.batches.size.tolist()
            parts += [view[at : at + size] for at, size in zip(part.starts.tolist(), sizes, strict=True)]
    joined = byte_view(b"".join(parts))
    converted = scan_batches(joined, check_crc=False, path=window.path).batches
    return replace(window, data=joined, batches=converted, byte_position=0)


def _batches_of(messages: Messages, limit_bytes: int | None) -> Iterator[Messages]:
    """Runs of messages that fit one batch: a size, an int32 of offset deltas, one timestamp if it is LogAppendTime."""
    appended = messages.timestamp_type == LOG_APPEND_TIME
    apart = (appended[1:] != appended[:-1]) | (appended[1:] & (messages.timestamp[1:] != messages.timestamp[:-1]))
    ends = [*(np.flatnonzero(apart) + 1).tolist(), len(appended)]
    size_up_to = np.cumsum(np.maximum(messages.key_size, 0) + np.maximum(messages.value_size, 0) + _RECORD_OVERHEAD)
    start = 0
    for end in ends:
        while start < end:
            stop = int(np.searchsorted(messages.offset, int(messages.offset[start]) + _LARGEST_DELTA, side="right"))
            if limit_bytes is not None:
                before = int(size_up_to[start - 1]) if start else 0
                stop = min(stop, int(np.searchsorted(size_up_to, before + limit_bytes - BATCH_OVERHEAD, side="right")))
            stop = min(max(stop, start + 1), end)
            yield messages.take(slice(start, stop))
            start = stop


def _encode(messages: Messages, codec: int) -> bytes:
    count = len(messages.offset)
    base_offset, base_timestamp = int(messages.offset[0]), int(messages.timestamp[0])
    room = int((np.maximum(messages.key_size, 0) + np.maximum(messages.value_size, 0)).sum()) + count * _RECORD_OVERHEAD
    out = np.empty(room, np.uint8)
    used = kernels.write_records(
        messages.data,
        messages.offset - base_offset,
        messages.timestamp - base_timestamp,
        messages.key_start,
        messages.key_size,
        messages.value_start,
        messages.value_size,
        out,
    )
    appended = int(messages.timestamp_type[0]) == LOG_APPEND_TIME
    return made_batch(
        compress(codec, out[:used]),
        count,
        base_offset=base_offset,
        last_offset=int(messages.offset[-1]),
        leader_epoch=-1,
        attributes=codec | (TIMESTAMP_TYPE_MASK if appended else 0),
        base_timestamp=base_timestamp,
        max_timestamp=int(messages.timestamp.max()),
    )
