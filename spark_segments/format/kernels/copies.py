"""Copies of many spans of memory, one behind the other."""

from __future__ import annotations

import cython

if not cython.compiled:  # else copies.pxd
    from spark_segments.format.kernels.memory import address_of, copy_bytes, i64, load_native_i64


def gather(starts, sizes, out, base: i64 = 0) -> None:
    """Copies `sizes` bytes (int64[n]) from `starts` (int64[n], counted from address `base`) to the buffer `out`.

    A size of 0 or less copies nothing. Raises ValueError, with bytes copied, where `out` is too short.
    """
    start: i64 = address_of(starts)
    size_at: i64 = address_of(sizes)
    to: i64 = address_of(out)
    end: i64 = to + len(out)
    rows: i64 = len(starts)
    row: i64 = 0
    size: i64
    with cython.nogil:
        while row < rows:
            size = load_native_i64(size_at + 8 * row)
            if size > 0:
                if size > end - to:
                    break
                copy_bytes(to, base + load_native_i64(start + 8 * row), size)
                to += size
            row += 1
    if row < rows:
        raise ValueError(f"{len(out)} bytes have no room for all that is gathered")
