"""Rows of transactions: the last transaction of each application, from format version 2 on.

Delta's txn actions go with the commits as well, and serve the topics of version 1. Kafka's transactions, which live in
the batches, are another matter.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_segments.log.manifest.transaction import Transaction

TRANSACTION_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("application_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("query_id", pa.string()),
        pa.field("committed_ms", pa.int64()),
    ]
)

FORGOTTEN = -1
"""The last version of an application that starts anew. It is below every version that an append may have."""


def transactions_table(topic_id: str, transactions: Iterable[Transaction], committed_ms: int) -> pa.Table:
    """Rows of TRANSACTION_SCHEMA, in the order given."""
    rows = [
        {
            "topic_id": topic_id,
            "application_id": one.application,
            "version": one.version,
            "query_id": one.query_id,
            "committed_ms": committed_ms,
        }
        for one in transactions
    ]
    return pa.Table.from_pylist(rows, TRANSACTION_SCHEMA)


def transactions_of(table: pa.Table) -> list[Transaction]:
    """The inverse of `transactions_table`."""
    columns = (table.column(name).to_pylist() for name in ("application_id", "version", "query_id"))
    return [Transaction(*row) for row in zip(*columns, strict=True)]
