"""Tables beside a topic `orders`: what they hold, and what they are to hold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from spark_segments import LogDir
from spark_segments.maintenance import table
from verification.world.topics import append

Row = dict[str, Any]

COLUMNS = ["key", "value", "headers", "partition", "offset", "timestamp"]
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}


def by_place(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def is_iceberg(uri: str) -> bool:
    """Whether tests have an Iceberg table at the address: its directory has the name."""
    return Path(uri).parent.name == "iceberg"


def iceberg_table(uri: str) -> Table:
    catalog = load_catalog("segments", type="sql", uri=f"sqlite:///{Path(uri).parent}/iceberg.sqlite")
    return catalog.load_table(Path(uri).parts[-2:])


def columns_of(key: str) -> list[str]:
    """The columns of a record, its key in the column `key`: a typed table may have its bytes as key_bytes."""
    return [key if name == "key" else name for name in COLUMNS]


def rows_of(table: pa.Table, key: str) -> list[Row]:
    """Rows with the columns of a record, whatever the column of the key is."""
    return table.rename_columns(["key" if name == key else name for name in table.column_names]).to_pylist()


def content(uri: str, key: str = "key") -> list[Row]:
    """The rows of a table now, in the order of their places."""
    if is_iceberg(uri):
        table = iceberg_table(uri).scan(selected_fields=tuple(columns_of(key))).to_arrow()
    else:
        table = DeltaTable(uri).to_pyarrow_table(columns=columns_of(key))
    return by_place(rows_of(table, key))


def readable(log: LogDir, topic: str = "orders", view: str | None = None) -> list[Row]:
    """The rows that a table has: what a reader of committed records sees."""
    scan = log.topic(topic).scan(
        columns=COLUMNS, isolation="read_committed", view=view, include_tombstones=view is None
    )
    return scan.to_table().to_pylist()


def update(log: LogDir, uri: str, topic: str = "orders", **options: Any) -> dict[str, Any]:
    """What the report says of the table, and that no part of it failed."""
    report = table(log, topics=[topic], table_uri=uri, **_of_format(uri), **options)
    assert report.failed == []
    return report.details[topic]


def failure(log: LogDir, uri: str, **options: Any) -> str:
    (line,) = table(log, topics=["orders"], table_uri=uri, **_of_format(uri), **options).failed
    return line["error"]


def _of_format(uri: str) -> dict[str, str]:
    return {"table_format": "iceberg"} if is_iceberg(uri) else {}


def with_orders(log: LogDir, partitions: int = 1) -> LogDir:
    """The log directory with a topic of three records."""
    log.create_topic("orders", partitions=partitions, config=CONFIG)
    append(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    return log
