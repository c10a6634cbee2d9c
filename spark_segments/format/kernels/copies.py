"""Copies of many spans of memory, one behind the other."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *


def gather(data, starts, sizes, out) -> None:
    """Copies `sizes` bytes (int64[n]) from `starts` (int64[n]) of a buffer to the buffer `out`.

    Without `data` (None), starts are addresses. A size of 0 or less copies nothing. Raises ValueError, with bytes
    copied, where a span reaches out of `data`, or `out` is too short.
    """
    base: i64 = 0 if data is None else address_of(data)
    last: i64 = LARGEST_OFFSET if data is None else size_of(data)
    start_at: i64 = address_of(starts)
    size_at: i64 = address_of(sizes)
    to: i64 = address_of(out)
    end: i64 = to + size_of(out)
    rows: i64 = len(starts)
    row: i64 = 0
    start: i64
    size: i64
    with cython.nogil:
        while row < rows:
            start = load_native_i64(start_at + 8 * row)
            size = load_native_i64(size_at + 8 * row)
            if size > 0:
                if start < 0 or size > last - start or size > end - to:
                    break
                copy_bytes(to, base + start, size)
                to += size
            row += 1
    if row < rows:
        raise ValueError(f"span {row} of {rows} does not lie in its buffer, or has no room in {len(out)} bytes")
