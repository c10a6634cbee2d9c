"""A topic as one with its table, in each door, against a read of its log."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.duckdb import TopicDatabase
from spark_segments.polars import scan_topic

ISOLATION = ("read_uncommitted", "read_committed")


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows by partition and offset."""
    return sorted(rows.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def check_polars(
    log: LogDir, topic: str = "orders", formats: Mapping[str, str] | None = None
) -> dict[tuple[str | None, str], bool]:
    """{(view, isolation): whether Polars reads Parquet for it}, by the plans of its frames. Raises AssertionError where
    they are not the topic's records.
    """
    reads_table = {}
    for isolation, view, has_tombstones in itertools.product(ISOLATION, (None, "latest"), (True, False)):
        if view is None and not has_tombstones:
            continue
        options = {"view": view, "isolation": isolation, "formats": formats, "include_tombstones": has_tombstones}
        expected = log.topic(topic).scan(**options).to_table()
        frame = scan_topic(log.uri, topic, log.storage.storage_options, **options)
        rows = frame.collect()
        assert rows.schema == pl.from_arrow(expected.slice(0, 0)).schema
        assert in_order(rows.to_arrow()) == in_order(expected), (
            f"{view or 'all records'}, {isolation}, {has_tombstones}"
        )
        assert frame.select(pl.len()).collect().item() == expected.num_rows
        if has_tombstones:
            reads_table[view, isolation] = "Parquet SCAN" in frame.explain()
    return reads_table


def check_duckdb(
    log: LogDir, topic: str = "orders", formats: Mapping[str, str] | None = None
) -> dict[tuple[str | None, str], bool]:
    """{(view, isolation): whether DuckDB reads Parquet for it}, by its plans. Raises AssertionError where its views are
    not the topic's records.
    """
    reads_table = {}
    for isolation in ISOLATION:
        with TopicDatabase(log, isolation=isolation, formats=formats) as database:
            for view in (None, "latest"):
                name = topic if view is None else f"{topic}$latest"
                rows = database.sql(f'SELECT * FROM "{name}"').to_table()
                plan = str(database.sql(f'EXPLAIN SELECT * FROM "{name}"').fetchall())
                expected = log.topic(topic).scan(view=view, isolation=isolation, formats=formats).to_table()
                assert rows.schema.names == expected.schema.names
                assert in_order(rows) == in_order(expected), f"{view or 'all records'}, {isolation}: {plan}"
                count = database.sql(f'SELECT count(*) AS n FROM "{name}"').to_table()
                assert count.to_pylist() == [{"n": expected.num_rows}], f"{view or 'all records'}, {isolation}"
                reads_table[view, isolation] = "READ_PARQUET" in plan
    return reads_table
