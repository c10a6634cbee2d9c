"""Arrow batches on their way to Spark and from Spark: small ones are put together, of large ones there is a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa

MIN_BATCH_BYTES = 1 << 20
"""Smaller batches are put together: to pass a batch to the JVM, or to encode its typed columns, has a fixed cost."""

LARGE_BATCH_BYTES = 256 << 20
"""Of a larger batch of Spark's there is a warning, which says how to bound it."""

_log = logging.getLogger(__name__)


def merged(batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The same rows in exactly this schema; None: all batches have the same one. Small batches are put together up to
    MIN_BATCH_BYTES.
    """
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if schema is not None and batch.schema != schema:
            # Nullability differs where a user's schema says that an offset cannot be null.
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= MIN_BATCH_BYTES:
            yield _one(pending)
            pending = []
            pending_bytes = 0
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def watched(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches. Warns once where one is so large that Spark should bound them by their bytes."""
    is_told = False
    for batch in batches:
        batch_bytes = batch.get_total_buffer_size()
        if batch_bytes > LARGE_BATCH_BYTES and not is_told:
            _log.warning(
                "Spark handed %d rows of %d MiB over at once. With spark.sql.execution.arrow.maxBytesPerBatch=4m it "
                "looks at the size of a batch after each row, and ends it in time",
                batch.num_rows,
                batch_bytes >> 20,
            )
            is_told = True
        yield batch
