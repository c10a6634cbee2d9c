"""Parts of the rows of a binary column: where they begin and end, and copies of their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.format.kernels.copies import gather
from spark_segments.values.undecodable import Undecodable

_BINARY = pa.binary()


def offsets_of(array: pa.BinaryArray | pa.LargeBinaryArray | pa.StringArray) -> np.ndarray:
    """Where the rows begin and end in the array's data: int64[n + 1]."""
    if not len(array):
        return np.zeros(1, np.int64)
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * kind.itemsize)
    return offsets.astype(np.int64, copy=False)


def gathered(data: pa.Buffer | np.ndarray, starts: np.ndarray, sizes: np.ndarray, kind: Any = _BINARY) -> pa.Array:
    """Rows of a buffer's bytes, less than 2 GiB of them: `sizes` from `starts` (int64[n]) on. A start below 0 is null.

    `kind` is binary or string.
    """
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, dtype=np.int32, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    if out.size:
        gather(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), out)
    is_null = starts < 0
    valid = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    return pa.Array.from_buffers(kind, len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])


def without(array: pa.BinaryArray, head: int, tail: int = 0) -> pa.BinaryArray:
    """Rows without nulls, each without its first `head` and last `tail` bytes. Raises Undecodable for a shorter row."""
    offsets = offsets_of(array)
    starts = offsets[:-1] + head
    sizes = np.diff(offsets) - head - tail
    if (sizes < 0).any():
        raise Undecodable("too few bytes", int(np.flatnonzero(sizes < 0)[0]))
    return gathered(array.buffers()[2], starts, sizes)
