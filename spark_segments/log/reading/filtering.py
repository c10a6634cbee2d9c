"""Some rows of a batch of records: those of a mask, and those with some keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

_VIEW = pa.binary(16)  # a view, as bytes


def with_keys(
    batches: Iterator[pa.RecordBatch], keys: Sequence[bytes], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows with any of the keys, of batches that have the column key, and of these the `columns` alone."""
    among = pa.array(keys, pa.binary())
    for batch in batches:
        mask = pc.is_in(batch.column("key"), value_set=among)
        if mask.true_count:
            chosen = batch.select(columns)
            yield chosen if mask.true_count == batch.num_rows else filtered(chosen, mask)


def filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of a batch where `mask` is true. Arrow's own filter (pyarrow 26) does not take columns of views: they
    are copied, and what they point to is not.
    """
    arrays = [
        _views(column, mask) if pa.types.is_binary_view(column.type) else column.filter(mask)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _views(array: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    validity, views, *buffers = array.buffers()
    as_bytes = pa.Array.from_buffers(_VIEW, len(array), [validity, views], offset=array.offset).filter(mask)
    kept_validity, kept_views = as_bytes.buffers()
    return pa.Array.from_buffers(
        array.type, len(as_bytes), [kept_validity, kept_views, *buffers], offset=as_bytes.offset
    )
