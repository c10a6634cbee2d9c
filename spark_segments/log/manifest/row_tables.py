"""Functions over Arrow tables of rows: of segments, and `raised` of partitions."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.manifest.rows import OUT_OF_LOG, PARTITION_SCHEMA, Partition, Segment


def live(rows: pa.Table) -> pa.Table:
    """Segment rows that are in the log."""
    states = rows.column("state")
    out = functools.reduce(pc.or_, (pc.equal(states, state) for state in OUT_OF_LOG))
    return rows.filter(pc.invert(out)) if pc.any(out).as_py() else rows


def in_states(rows: pa.Table, *states: str) -> pa.Table:
    """The rows of segments that are in one of these states."""
    return rows.filter(pc.is_in(rows.column("state"), pa.array(states, pa.string())))


def in_log_order(rows: pa.Table) -> pa.Table:
    """Rows by (partition, base offset, next offset), each column in one piece; rows alike in these keep their order.

    An import leaves a segment without offsets, Kafka's empty active one, where the next segment begins: it comes first.
    """
    rows = rows.combine_chunks()
    if rows.num_rows < 2:
        return rows
    partition, base, following = (rows.column(name).to_numpy() for name in ("partition", "base_offset", "next_offset"))
    rises = (base[1:] > base[:-1]) | ((base[1:] == base[:-1]) & (following[1:] >= following[:-1]))
    rises = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & rises)
    if rises.all():
        return rows
    order = np.lexsort((following, base, partition))
    # As a buffer: pyarrow.array imports numpy.ma for an array of numpy, which takes longer than this.
    return rows.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))


def keys(segments: pa.Table) -> pa.ChunkedArray:
    """string[rows]: the identity of each row, comparable between tables.

    It is the path where the file has a single row, so that large topics without shared objects pay nothing for it.
    """
    shared = pc.is_valid(segments.column("index_position"))
    paths = segments.column("path")
    if not pc.any(shared).as_py():
        return paths
    numbers = (segments.column(name).cast(pa.string()) for name in ("partition", "position"))
    return pc.if_else(shared, pc.binary_join_element_wise(paths, *numbers, "\n"), paths)


def without(segments: pa.Table, others: pa.Table) -> pa.Table:
    """The rows whose identity no row of `others` has."""
    return segments.filter(pc.invert(pc.is_in(keys(segments), keys(others).combine_chunks())))


def removed(segments: pa.Table, removed_ms: int) -> pa.Table:
    """The same rows once they have left the log.

    `removed_ms` is the store's clock at the commit, read again for each try. The clock that a job plans by (`now_ms`)
    may lie in the past, and then readers would have no file.delete.delay.ms left.
    """
    for name, value in {"state": Segment.REMOVED, "removed_ms": removed_ms}.items():
        segments = with_column(segments, name, pa.repeat(value, segments.num_rows))
    return segments


def with_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The rows with other values in a column."""
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), values)


def raised(rows: Iterable[Partition] | pa.Table) -> pa.Table:
    """Partition rows for the manifest: first dirty and last stable offset are raised to the log start at least.

    An open transaction that began below the log start holds the last stable offset at the log start, not below
    (Kafka's UnifiedLog.maybeIncrementFirstUnstableOffset).
    """
    table = rows.cast(PARTITION_SCHEMA) if isinstance(rows, pa.Table) else Partition.table(rows)
    for name in ("first_dirty_offset", "last_stable_offset"):
        table = with_column(table, name, pc.max_element_wise(table.column(name), table.column("log_start_offset")))
    return table
