"""A topic as a lazy frame: of the log alone, or of a table's files and the log's tail as one.

Polars reads the files itself, each by its name, with the columns and conditions of the query.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from spark_segments.lake.as_one import AsOne, TableHalf
from spark_segments.log import Scan

_KEY = ("partition", "key")

FrameOf = Callable[[Scan], pl.LazyFrame]


def frame_of(one: AsOne, schema: pl.Schema, log_frame: FrameOf) -> pl.LazyFrame:
    """The frame of a topic, with the columns of `schema`. `log_frame`: the frame of a scan of the log."""
    half = one.half
    if half is None:
        return log_frame(one.tail)
    rows = _rows(half, schema)
    if half.is_latest and one.has_tail:
        places = ["key"] if one.across else list(_KEY)
        of_table = [half.key_column if name == "key" else name for name in places]
        rows = rows.join(log_frame(one.tail_keys), left_on=of_table, right_on=places, how="anti")
    rows = rows.select(_columns(half, one, schema))
    if one.has_tail:
        rows = pl.concat([rows, log_frame(one.tail)])
    if one.scan.selection.view is not None and not half.is_latest:
        is_newest = pl.col("offset") == pl.col("offset").max().over(_KEY)
        rows = rows.filter(pl.col("key").is_not_null()).filter(is_newest)
        if not one.scan.selection.include_tombstones:
            rows = rows.filter(pl.col("value").is_not_null())
    return rows


def _rows(half: TableHalf, schema: pl.Schema) -> pl.LazyFrame:
    """The rows of the table that count, with those of its columns that are asked for."""
    names = [name for name in half.table.schema.names if name in schema or name == half.key_column]
    columns = {name: schema.get(name, pl.Binary()) for name in names}
    if not half.files:
        return pl.LazyFrame(schema=columns)
    rows = pl.scan_parquet(
        half.addresses,
        schema=columns,
        extra_columns="ignore",
        glob=False,
        hive_partitioning=False,
        storage_options=half.table.storage.delta_uri()[1] or None,
    )
    for partition, start in half.log_starts.items():
        rows = rows.filter((pl.col("partition") != partition) | (pl.col("offset") >= start))
    return rows


def _columns(half: TableHalf, one: AsOne, schema: pl.Schema) -> list[pl.Expr]:
    """The columns of records, of the table's rows."""
    constants = {"topic": one.scan.snapshot.topic, "timestampType": half.timestamp_type}
    return [
        pl.lit(constants[name], dtype=kind).alias(name) if name in constants else pl.col(name)
        for name, kind in schema.items()
    ]
