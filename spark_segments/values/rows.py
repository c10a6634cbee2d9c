"""Parts of the rows of a binary column: where they begin and end, and copies of their bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.format.kernels.copies import gather
from spark_segments.values.undecodable import Undecodable


def offsets_of(array: pa.BinaryArray | pa.LargeBinaryArray | pa.StringArray) -> np.ndarray:
    """Where the rows begin and end in the array's data: int64[n + 1]."""
    if not len(array):
        return np.zeros(1, np.int64)
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * kind.itemsize)
    return offsets.astype(np.int64, copy=False)


def without(array: pa.BinaryArray, head: int, tail: int = 0) -> pa.BinaryArray:
    """Rows without nulls, each without its first `head` and last `tail` bytes. Raises Undecodable for a shorter row."""
    offsets = offsets_of(array)
    starts, sizes = offsets[:-1] + head, np.diff(offsets) - head - tail
    if (sizes < 0).any():
        raise Undecodable("too few bytes", int(np.flatnonzero(sizes < 0)[0]))
    out_offsets = np.concatenate([[0], np.cumsum(sizes)])
    out = np.empty(int(out_offsets[-1]), np.uint8)
    if out.size:
        gather(array.buffers()[2], starts, sizes, out)
    return pa.Array.from_buffers(
        pa.binary(), len(array), [None, pa.py_buffer(out_offsets.astype(np.int32)), pa.py_buffer(out)]
    )
