"""The partition of a record, by the rule of Kafka's own producers, and rows grouped by partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.encoding import encode_kernels
from spark_segments.format.encoding.arrow_buffers import binary_view, one_array


def murmur2_partitions(keys: pa.Array | pa.ChunkedArray, partitions: int) -> np.ndarray:
    """int32[n]: toPositive(murmur2(key)) mod `partitions` for each binary or string key; NO_PARTITION for null keys.

    This is the rule of the built-in partitioner of org.apache.kafka.clients.producer, so a key gets the same partition
    as from Kafka's clients.
    """
    if partitions < 1:
        raise InvalidOptionError("A topic has no partitions to choose from", expected="1 or more", found=partitions)
    partition_ids = np.empty(len(keys), np.int32)
    keys = one_array(keys)
    encode_kernels.partitions_of(binary_view(keys, "key", len(keys)), partitions, partition_ids)
    return partition_ids


def group_rows(partition_ids: np.ndarray, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """(order int64[n], starts int64[partitions + 1]): order[starts[p]:starts[p + 1]] are the rows of partition p.

    The rows of a partition stay in their order. `partition_ids` is int32[n]. Raises InvalidOptionError for a partition
    outside of [0, partitions).
    """
    ids = np.ascontiguousarray(partition_ids, np.int32)
    order = np.empty(len(ids), np.int64)
    starts = np.zeros(partitions + 1, np.int64)
    wrong: int = encode_kernels.group(ids, order, starts)
    if wrong >= 0:
        raise InvalidOptionError(
            f"The partition of row {wrong} does not exist", expected=f"0 to {partitions - 1}", found=int(ids[wrong])
        )
    return order, starts
