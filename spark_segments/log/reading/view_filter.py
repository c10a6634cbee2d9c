"""Rows of a RecordBatch that has columns of views, which Arrow's own filter (pyarrow 26) does not take."""

from __future__ import annotations

import pyarrow as pa

_VIEW = pa.binary(16)  # a view, as bytes


def filtered(batch: pa.RecordBatch, wanted: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of a batch where `wanted` is true. Views are copied, and what they point to is not."""
    arrays = [
        _views(column, wanted) if pa.types.is_binary_view(column.type) else column.filter(wanted)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _views(array: pa.Array, wanted: pa.BooleanArray) -> pa.Array:
    validity, views, *buffers = array.buffers()
    as_bytes = pa.Array.from_buffers(_VIEW, len(array), [validity, views], offset=array.offset).filter(wanted)
    kept_validity, kept_views = as_bytes.buffers()
    return pa.Array.from_buffers(
        array.type, len(as_bytes), [kept_validity, kept_views, *buffers], offset=as_bytes.offset
    )
