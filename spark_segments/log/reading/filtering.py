"""Some rows of a batch of records: those of a mask, those with some keys or fields, and those of a range of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.reading.field_condition import FieldCondition
from spark_segments.log.reading.time_range import TimeRange

_VIEW = pa.binary(16)  # a view, as bytes


def matching(
    batches: Iterator[pa.RecordBatch],
    columns: Sequence[str],
    keys: Sequence[bytes] | None,
    times: TimeRange | None,
    where: Sequence[FieldCondition] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows with any of the keys (None: all), a time in the range (None: all) and the fields of all conditions, and
    of these the `columns` alone.

    The batches have the column key where keys are given, timestamp where times are, and the columns of the conditions.
    """
    among = None if keys is None else pa.array(keys, pa.binary())
    for batch in batches:
        masks = []
        if among is not None:
            masks.append(pc.is_in(batch.column("key"), value_set=among))
        if times is not None:
            masks.append(times.mask(batch.column("timestamp")))
        masks += [condition.mask(batch) for condition in where]
        mask = reduce(pc.and_, masks)
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
