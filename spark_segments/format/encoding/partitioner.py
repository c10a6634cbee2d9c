"""The partition of a record, by the rule of Kafka's own producers, and rows grouped by partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.encoding.arrow_buffers import binary_view, one_array, readonly
from spark_segments.format.kernels.jit import load_u8, njit

NO_PARTITION = -1

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


def murmur2_partitions(keys: pa.Array | pa.ChunkedArray, partitions: int) -> np.ndarray:
    """int32[n]: toPositive(murmur2(key)) mod `partitions` for each binary or string key; NO_PARTITION for null keys.

    This is the rule of the built-in partitioner of org.apache.kafka.clients.producer, so a key gets the same partition
    as from Kafka's clients.
    """
    if partitions < 1:
        raise InvalidOptionError("A topic has no partitions to choose from", expected="1 or more", found=partitions)
    found = np.empty(len(keys), np.int32)
    keys = one_array(keys)
    _partitions(*binary_view(keys, "key", len(keys)), partitions, found)
    return found


def group_rows(partition_ids: np.ndarray, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """(order int64[n], starts int64[partitions + 1]): rows order[starts[p]:starts[p + 1]] are those of partition p.

    The rows of a partition stay in their order. `partition_ids` is int32[n]. Raises InvalidOptionError for a partition
    outside of [0, partitions).
    """
    ids = readonly(np.ascontiguousarray(partition_ids, np.int32))
    order = np.empty(len(ids), np.int64)
    starts = np.zeros(partitions + 1, np.int64)
    wrong = _group(ids, order, starts)
    if wrong >= 0:
        raise InvalidOptionError(
            f"The partition of row {wrong} does not exist", expected=f"0 to {partitions - 1}", found=int(ids[wrong])
        )
    return order, starts


@njit
def _partitions(offsets: Any, data: Any, validity: Any, first_bit: int, partitions: int, found: Any) -> None:
    for row in range(len(found)):
        bit = first_bit + row
        if len(validity) > 0 and (load_u8(validity, bit >> 3) >> (bit & 7)) & 1 == 0:
            found[row] = NO_PARTITION
        else:
            hashed = _murmur2(data, np.int64(offsets[row]), np.int64(offsets[row + 1]))
            found[row] = (np.int64(hashed) & 0x7FFFFFFF) % partitions


@njit(forceinline=True)
def _murmur2(data: Any, position: int, end: int) -> Any:
    """org.apache.kafka.common.utils.Utils.murmur2 of data[position:end], as uint32."""
    state = _SEED ^ np.uint32(end - position)
    while position + 4 <= end:
        word = np.uint32(
            load_u8(data, position)
            | load_u8(data, position + 1) << 8
            | load_u8(data, position + 2) << 16
            | load_u8(data, position + 3) << 24
        )
        word = np.uint32(word * _M)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _M)
        state = np.uint32(state * _M) ^ word
        position += 4
    if position < end:
        tail = np.int64(0)
        for index in range(end - position):
            tail |= load_u8(data, position + index) << (8 * index)
        state = np.uint32((state ^ np.uint32(tail)) * _M)
    state = np.uint32((state ^ (state >> np.uint32(13))) * _M)
    return state ^ (state >> np.uint32(15))


@njit
def _group(ids: Any, order: Any, starts: Any) -> int:
    """Fills `order` and `starts`. Returns -1, or the first row whose partition does not exist."""
    partitions = len(starts) - 1
    for row in range(len(ids)):
        if ids[row] < 0 or ids[row] >= partitions:
            return row
        starts[ids[row] + 1] += 1
    for partition in range(partitions):
        starts[partition + 1] += starts[partition]
    # Each start is used as the place of its partition's next row, and so ends where the next partition starts.
    for row in range(len(ids)):
        order[starts[ids[row]]] = row
        starts[ids[row]] += 1
    for partition in range(partitions, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
    return -1
